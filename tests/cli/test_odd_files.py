"""Pipes, devices and files without end in the place of every kind of file: one clear error each, and no waiting."""

import os
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.core.errors import ModelError
from pipeline.model.guards import MAX_BODY_DEPTH
from pipeline.model.onnx_model import load_model
from pipeline.model.sources import SourceModel, find_models
from tests.command import ort_mobile
from tests.onnx_samples import linear, parsed_nodes, save
from tests.ort_models import convert

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"

COMMANDS = {
    "config": ["run", "ODD"],
    "model": ["convert", "ODD", "--output", "out"],
    "model of a run": ["run", "--model", "ODD", "--output", "out"],
    "partition": ["partition", "ODD", "--ep", "nnapi"],
    "operator config": ["op-config", "check", "ODD", "m.ort"],
    "artifact": ["op-config", "create", "ODD"],
    "log": ["op-config", "check", "ops.config", "--from-log", "ODD"],
    "bundle": ["bundle", "verify", "bundle"],
    "library": ["library", "show", "ODD"],
    "driver profile": ["perf", "m.ort", "--device", "android-host:l.aar?driver=ODD"],
    "test data": ["run", "data.toml", "--convert-only", "--output", "out"],
    "labels": ["run", "labels.toml", "--convert-only", "--output", "out"],
    "model of accuracy": ["accuracy", "ODD", "--reference", str(MODEL), "--test-data", str(MODEL.parent)],
    "samples": ["accuracy", str(MODEL), "--reference", str(MODEL), "--test-data", "ODD"],
    "lines of labels": [
        "accuracy", str(MODEL), "--reference", str(MODEL), "--test-data", str(MODEL.parent), "--labels", "ODD",
    ],
    "vocabulary": [
        "accuracy", str(MODEL), "--reference", str(MODEL), "--test-data", str(MODEL.parent / "evaluation.npz"),
        "--metric", "wer", "--vocabulary", "ODD",
    ],
}  # fmt: skip


@pytest.fixture(name="in_time")
def _in_time() -> Iterator[None]:
    """A test that waits for ever ends with TimeoutError."""

    def end(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(600)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("in_time")
@pytest.mark.skipif(os.name != "posix", reason="pipes and devices have no names there")
@pytest.mark.parametrize("odd", ["pipe", "zeros"])
@pytest.mark.parametrize("place", COMMANDS)
def test_an_odd_file_is_refused_at_once(tmp_path: Path, place: str, odd: str) -> None:
    suffixes = {
        "model": ".zip", "model of a run": ".onnx", "artifact": ".ort", "library": ".aar",
        "model of accuracy": ".onnx", "samples": ".npz",
    }  # fmt: skip
    suffix = suffixes.get(place, ".toml")
    path = tmp_path / f"odd{suffix}"
    _make(path, odd)
    (tmp_path / "ops.config").write_text("ai.onnx;13;Relu\n")
    (tmp_path / "bundle").mkdir()
    _make(tmp_path / "bundle" / "manifest.json", odd)
    (tmp_path / "bundle" / "manifest.sha256").write_text("0")
    (tmp_path / "data").mkdir()
    _make(tmp_path / "data" / "input_0.pb", odd)
    for name, key, value in (("data", "test_data", "data"), ("labels", "labels", path.name)):
        (tmp_path / f"{name}.toml").write_text(f'name = "a"\n[[models]]\npath = "{MODEL}"\n{key} = "{value}"\n')
    arguments = [argument.replace("ODD", path.name) for argument in COMMANDS[place]]
    done = ort_mobile(*arguments, cwd=tmp_path, ORT_MOBILE_CACHE=str(tmp_path / "cache"), code=None)
    assert done.code in (1, 2, 3, 4), done.out
    assert "nternal error" not in done.text
    assert "no answer in time" not in done.text
    assert "check the path" not in done.out, "the file is there"


def _make(path: Path, odd: str) -> None:
    if odd == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


def with_weights(location: str) -> onnx.ModelProto:
    """A model whose weights are said to be in a file of that name."""
    model = linear()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return model


@pytest.mark.parametrize("location", ["a" * 300, "a/" * 3000 + "b", "pipe"])
def test_external_data_that_no_system_can_open_is_an_error_of_the_model(tmp_path: Path, location: str) -> None:
    (tmp_path / "m.onnx").write_bytes(with_weights(location).SerializeToString())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="external data") as caught:
        load_model(SourceModel(path=str(tmp_path / "m.onnx")), tmp_path / "work")
    assert len(caught.value.why) < 400


def test_an_archive_that_would_fill_the_disk_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_runner.untrusted_files.SUSPECT_BYTES", 64 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m.onnx", bytes(100 << 20))
    (source,) = find_models([tmp_path / "bomb.zip"])
    with pytest.raises(ModelError) as caught:
        load_model(source, tmp_path / "work")
    assert "times what it has packed" in caught.value.why
    assert not (tmp_path / "work").exists() or not any((tmp_path / "work").rglob("*.onnx"))


@pytest.mark.parametrize("command", [("check",), ("partition", "--ep", "nnapi")], ids=" ".join)
def test_an_ort_file_is_judged_in_an_archive_as_beside_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = convert(linear(), tmp_path / "m.ort")
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.write(path, "m.ORT")
    beside, packed = (ort_mobile(*command, name, "--json", "-", cwd=tmp_path) for name in (path, "models.zip"))
    assert packed.out.replace("models.zip/m.ORT", str(path)) == beside.out


def test_a_name_that_is_twice_in_an_archive_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = save(linear(), tmp_path / "m.onnx").read_bytes()
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as archive:
        archive.writestr("m.onnx", model)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("m.onnx", model)
    assert len(find_models([tmp_path / "twice.zip"])) == 1
    assert "m.onnx is in it 2 times" in caplog.text


@pytest.mark.parametrize(("deep", "code"), [(MAX_BODY_DEPTH, 0), (MAX_BODY_DEPTH + 1, 1)])
def test_bodies_are_converted_as_deep_as_onnxruntime_loads_them(tmp_path: Path, deep: int, code: int) -> None:
    path = save(nested(deep), tmp_path / "m.onnx")
    done = ort_mobile("convert", path, "--output", tmp_path / "out", "--check", process=True, code=code)
    assert ("nested too deep" in done.text) == bool(code)


def nested(deep: int) -> onnx.ModelProto:
    """An If in the branch of an If, so many in one another."""
    nodes = parsed_nodes("o0 = Relu (x)")
    for depth in range(1, deep + 1):
        other = [helper.make_node("Neg", ["x"], [f"e{depth}"])]
        bodies = {
            "then_branch": helper.make_graph(nodes, "then", [], [_float(f"o{depth - 1}")]),
            "else_branch": helper.make_graph(other, "else", [], [_float(f"e{depth}")]),
        }
        nodes = [helper.make_node("If", ["c"], [f"o{depth}"], **bodies)]
    inputs = [_float("x"), helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [_float(f"o{deep}")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _float(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(np.float32)), [1])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('y = MaxPool <kernel_shape = [1, 1], auto_pad = "SAME"> (x)', "auto_pad of MaxPool '' is 'SAME'"),
        ('y = GRU <hidden_size = 1, direction = "sideways"> (x, x, x)', "direction of GRU '' is 'sideways'"),
        ("y = DequantizeLinear <block_size = -2> (x, x)", "block_size of DequantizeLinear '' is -2"),
        ("y = Relu (x)", "the model has no IR version"),
    ],
)
def test_what_no_release_opens_is_refused_alike(tmp_path: Path, text: str, told: str) -> None:
    model = helper.make_model(helper.make_graph(parsed_nodes(text), "g", [_float("x")], [_float("y")]))
    if "IR" in told:
        model.ClearField("ir_version")
    (path := tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert told in ort_mobile("partition", path, "--ep", "nnapi", code=1).text
    assert told in ort_mobile("convert", path, "--output", tmp_path / "out", code=1).err


def test_bodies_that_no_ort_file_holds_are_judged(tmp_path: Path) -> None:
    path = save(nested(MAX_BODY_DEPTH + 1), tmp_path / "m.onnx")
    assert ort_mobile("partition", path, "--ep", "nnapi").code == 0
