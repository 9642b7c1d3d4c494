"""Contexts for a Snapdragon's NPU: the loader's rule, and contexts made and simulated where the compiler is."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from device_runner.files import cache_folder
from device_runner.providers import CHIPS
from pipeline.compat.contexts import Loading, built_for, loader_answer
from pipeline.convert import contexts as making
from pipeline.convert.contexts import read_context
from pipeline.core.errors import ModelError
from pipeline.core.variant import context_variant
from pipeline.model.sources import NamedModel, SourceModel
from tests.command import ROOT, Done, ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model, value

npu = pytest.mark.npu
MNIST = ROOT / "build_configs/examples/mnist/mnist.onnx"
SAMPLES = MNIST.parent
V75 = "v2:6:2.51.0:5.51.0:75:57:0:0"


@pytest.mark.parametrize(
    ("context", "chip", "qairt", "loading"),
    [
        (V75, "SM8650", "", Loading.OPTIMAL),
        (V75, "SM8650", "2.52.0", Loading.OPTIMAL),
        (V75, "SM8650", "2.50.0", Loading.REFUSED),
        (V75, "SM8750", "", Loading.SUPPORTED),
        (V75, "SM8550", "", Loading.REFUSED),
        ("v2:6:2.51.0:5.51.0:69:36:0:0", "SM8550", "", Loading.REFUSED),
        ("v2:6:2.51.0:5.51.0:68:30:0:0", "SM8450", "", Loading.SUPPORTED),
        ("v2:6:2.51.0:5.51.0:73,75:43,57:0:0", "SM8550", "", Loading.OPTIMAL),
        ("v2:1:2.51.0:5.51.0:75:57:0:0", "SM8650", "", Loading.REFUSED),
    ],
)
def test_the_loader_of_a_phone_answers_by_generation_and_runtime(
    context: str, chip: str, qairt: str, loading: Loading
) -> None:
    assert loader_answer(built_for(context), CHIPS[chip], qairt)[0] is loading


@pytest.mark.parametrize("text", ["", "v1:6:2.51.0:5.51.0:75:57:0:0", "v2:6:2.51.0:5.51.0:x:57:0:0", V75 * 99])
def test_a_context_whose_chip_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="no context whose chip is known"):
        built_for(text)


def wrapper(folder: Path, **attributes: Any) -> Path:
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **attributes)
    path = folder / "c.onnx"
    onnx.save(model([node], [value("x", (1, 4))], ["y"]), path)
    return path


@pytest.mark.parametrize(
    ("attributes", "what"),
    [
        ({"source": "OpenVINOExecutionProvider", "ep_cache_context": "c_qnn.bin"}, "no context for Snapdragon's NPU"),
        ({"source": "QNNExecutionProvider", "ep_cache_context": "../c_qnn.bin"}, "binary of this context"),
        ({"source": "QNNExecutionProvider", "ep_cache_context": "missing.bin"}, "binary of this context"),
        ({"source": "QNNExecutionProvider", "ep_cache_context": "bytes", "embed_mode": 1}, "binary of this context"),
    ],
)
def test_a_context_from_elsewhere_is_refused(tmp_path: Path, attributes: dict[str, Any], what: str) -> None:
    (tmp_path / "c_qnn.bin").touch()
    (tmp_path / "in").mkdir()
    with pytest.raises(ModelError, match=what):
        read_context(wrapper(tmp_path / "in" if "../" in str(attributes) else tmp_path, **attributes))


def test_a_context_is_nothing_to_convert(tmp_path: Path) -> None:
    words = ("--output", tmp_path / "out", "--level", "basic", "--style", "fixed")
    refused = ort_mobile("convert", wrapper(tmp_path), *words, code=1)
    assert refused.text.count("error:") == 1
    assert "a context is compiled already" in refused.text


def test_what_is_no_onnx_file_is_no_context(tmp_path: Path) -> None:
    (tmp_path / "c.onnx").write_bytes(b"PK\3\4 no protobuf at all")
    with pytest.raises(ModelError, match="this is no context"):
        read_context(tmp_path / "c.onnx")


def contexts(folder: Path, source: Path, *more: object, chips: str = "SM8650", code: int = 0) -> Done:
    plain = ("--level", "basic", "--style", "fixed", "--no-config")
    return ort_mobile("convert", source, "--output", folder, *plain, "--context", chips, *more, code=code)


def test_without_the_compiler_a_context_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    error = contexts(tmp_path, MNIST, code=3).err
    assert "Qualcomm's compiler for the NPU is not installed" in error
    assert "onnxruntime-qnn" in error
    assert not list(tmp_path.iterdir())


def test_a_chip_that_there_is_not_is_refused(tmp_path: Path) -> None:
    assert "did you mean SM8650?" in contexts(tmp_path, MNIST, chips="SM8651", code=2).err


@npu
def test_contexts_have_the_same_bytes_in_two_folders(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / MNIST.name
    copy.parent.mkdir()
    copy.write_bytes(MNIST.read_bytes())
    contexts(tmp_path / "a", MNIST)
    contexts(tmp_path / "b" / "c", copy)
    names = {"mnist.qnn-SM8650.onnx", "mnist.qnn-SM8650_qnn.bin", "mnist.basic-fixed.ort"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / "c" / name).read_bytes()


@npu
@pytest.mark.long
def test_contexts_of_chips_and_precisions_compute_what_the_model_does(tmp_path: Path) -> None:
    more = ("--precision", "float,qnn", "--test-data", SAMPLES, "--check", "--json", tmp_path / "answer.json")
    done = contexts(tmp_path / "out", MNIST, *more, chips="SM8650,SM8635")
    rows = {row["variant"]: row for row in json.loads((tmp_path / "answer.json").read_text())["artifacts"]}
    made = {"qnn-SM8650", "qnn-SM8650-u8s8qnn", "qnn-SM8635-u8s8qnn"}
    for name in made:
        row = rows[name]
        chip = CHIPS[row["chip"]]
        assert row["checks"][0]["passed"]
        assert row["compatibility"].split(":")[4:6] == [str(chip.htp_arch), str(chip.soc_model)]
        assert (row["partitions"], row["cpu_nodes"]) == (1, 2 if row.get("precision") else 0)
        assert row["memory_bytes"] < 700 << 20
    assert rows["qnn-SM8635"]["skipped"]
    assert "Snapdragon 8s Gen 3 computes no floats" in done.err


def open_batch() -> onnx.ModelProto:
    return model(parsed_nodes("y = Relu (x)"), [value("x", ("n", 4))], ["y"])


def empty_input() -> onnx.ModelProto:
    return model(parsed_nodes("y = Softmax (x)"), [value("x", (0, 4))], ["y"])


def unknown_to_it() -> onnx.ModelProto:
    return model(parsed_nodes("y = Det (x)"), [value("x", (4, 4))], ["y"])


@npu
@pytest.mark.parametrize(
    ("sample", "chip", "what"),
    [
        (open_batch, "SM8650", "open: x[0] n"),
        (empty_input, "SM8650", "'x' has a dimension of size 0"),
        (unknown_to_it, "SM8650", "takes nothing of this model"),
        (unknown_to_it, "SM8635", "SM8635 takes quantized models only"),
    ],
)
def test_a_model_that_a_chip_cannot_have_is_told_why(tmp_path: Path, sample: object, chip: str, what: str) -> None:
    onnx.save(sample(), tmp_path / "m.onnx")  # type: ignore[operator]
    done = contexts(tmp_path / "out", tmp_path / "m.onnx", chips=chip, code=1)
    assert what in done.err
    assert not list((tmp_path / "out").glob("*.bin"))


@npu
@pytest.mark.long
def test_a_harmed_binary_is_one_error_of_the_run(tmp_path: Path) -> None:
    contexts(tmp_path, MNIST, "--precision", "float,qnn", "--test-data", SAMPLES)
    binary = tmp_path / "mnist.qnn-SM8650_qnn.bin"
    whole, other = binary.read_bytes(), (tmp_path / "mnist.qnn-SM8650-u8s8qnn_qnn.bin").read_bytes()
    for content, cause in (
        (whole[:20_000], "cut or damaged"),
        (np.random.default_rng(0).bytes(len(whole)), "cut or damaged"),
        (other, "another model's"),
        (None, "not beside its ONNX file"),
    ):
        binary.unlink()
        if content:
            binary.write_bytes(content)
        assert cause in " ".join(perf(tmp_path / "mnist.qnn-SM8650.onnx", "--provider", "qnn").text.split())
    binary.write_bytes(whole)
    named = (tmp_path / "mnist.qnn-SM8650.onnx").read_bytes()
    (tmp_path / "in").mkdir()
    there = tmp_path / "in/mnist.qnn-SM8650.onnx"
    there.write_bytes(named.replace(b"mnist.qnn-SM8650_qnn.bin", b"../../elsewhere_qnn1.bin"))
    assert "names a binary in another folder" in " ".join(perf(there, "--provider", "qnn").text.split())


@npu
def test_a_context_without_its_provider_says_so(tmp_path: Path) -> None:
    contexts(tmp_path, MNIST)
    assert "only the provider runs" in " ".join(perf(tmp_path / "mnist.qnn-SM8650.onnx").text.split())


def perf(model: Path, *more: str, chip: str = "SM8650") -> Done:
    options = ("--provider-option", f"soc_model={chip}") if more else ()
    few = ("--rounds", "1", "--min-runs", "1", "--min-seconds", "0.001", "--warmup", "0")
    return ort_mobile("perf", model, *more, *options, *few, code=1)


def compiled(folder: Path) -> bytes:
    """The binary of a context, made in this process."""
    work = folder / "work"
    work.mkdir(parents=True)
    variant = context_variant("SM8650")
    model = NamedModel(source=SourceModel(path=str(MNIST)), name="mnist")
    (made,) = making.make_context((model,), variant, str(folder / "out"), str(work))
    return (folder / "out" / made.binary).read_bytes()


@npu
def test_a_context_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled(tmp_path / "a")
    (entry,) = cache_folder().joinpath("npu").glob("*.bin")
    with monkeypatch.context() as without:
        without.setattr(making, "_compile", None)
        assert compiled(tmp_path / "b") == first
    entry.write_bytes(first[:-1])
    assert compiled(tmp_path / "c") == first
    assert entry.read_bytes() == first


@npu
def test_a_compiler_that_does_not_end_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.core.workers.time_limit", lambda _sizes: 0.01)
    with pytest.raises(ModelError, match="compiler does not end"):
        compiled(tmp_path)


def sizes_of_one_model(folder: Path) -> list[Path]:
    """The same weights for images of two sizes."""
    weights = np.random.default_rng(0).normal(0, 0.1, (64, 64, 3, 3)).astype(np.float32)
    folder.mkdir()
    for size in (32, 16):
        nodes = parsed_nodes("a = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu (a)")
        onnx.save(model(nodes, [value("x", (1, 64, size, size))], ["y"], {"w": weights}), folder / f"s{size}.onnx")
    return sorted(folder.iterdir())


@npu
def test_sizes_of_one_model_share_their_weights_in_one_binary(tmp_path: Path) -> None:
    """Made twice to the same bytes, smaller than two, and never run here, where the library would crash."""
    words = ("--context", "SM8650", "--share-weights", "--check", "--level", "basic", "--style", "fixed", "--no-config")

    def made(name: str) -> tuple[str, dict[str, bytes]]:
        models = sizes_of_one_model(tmp_path / f"models-{name}")
        text = ort_mobile("convert", *models, *words, "--output", tmp_path / name).out
        return text, {path.name: path.read_bytes() for path in (tmp_path / name).glob("*qnn-*")}

    text, files = made("a")
    assert made("b")[1] == files
    assert sorted(files) == ["s16.qnn-SM8650.onnx", "s16.qnn-SM8650_qnn.bin", "s32.qnn-SM8650.onnx"]
    assert "made, not run here: it shares its binary with s32.qnn-SM8650.onnx" in text
    refused = " ".join(perf(tmp_path / "a" / "s16.qnn-SM8650.onnx", "--provider", "qnn").text.split())
    assert "made, not run here: this context shares its binary with others" in refused
    contexts(tmp_path, tmp_path / "models-a" / "s16.onnx")
    alone = (tmp_path / "s16.qnn-SM8650_qnn.bin").stat().st_size
    assert len(files["s16.qnn-SM8650_qnn.bin"]) < 1.5 * alone


@npu
def test_a_model_without_a_context_names_the_one_that_it_would_share_a_binary_with(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_text("no model")
    error = contexts(tmp_path / "out", MNIST, tmp_path / "a.onnx", "--share-weights", code=1).err
    assert "a.onnx, with which it shares its binary: not a usable ONNX model" in " ".join(error.split())


@npu
def test_a_context_for_several_chips_is_not_given_to_the_simulator(tmp_path: Path) -> None:
    contexts(tmp_path, MNIST)
    path = tmp_path / "mnist.qnn-SM8650.onnx"
    made = onnx.load(path)
    (entry,) = (entry for entry in made.metadata_props if entry.value.startswith("v2:"))
    entry.value = entry.value.replace(":75:57:", ":75,79:57,69:")
    path.write_bytes(made.SerializeToString())
    refused = " ".join(perf(path, "--provider", "qnn").text.split())
    assert "this context is for several chips, which the simulator loads none of" in refused


@npu
def test_a_context_is_not_run_as_a_chip_whose_loader_refuses_it(tmp_path: Path) -> None:
    """The simulator would compute it as the chip that it is for, and say nothing."""
    contexts(tmp_path, MNIST)
    path = tmp_path / "mnist.qnn-SM8650.onnx"
    for chip, arch in (("SM8550", 73), ("SM8450", 69)):
        refused = " ".join(perf(path, "--provider", "qnn", chip=chip).text.split())
        assert f"the context is for V75, which the loader of {chip} (V{arch}) refuses" in refused


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--context", "SM8650+SM8750"), "a file for each: SM8650,SM8750"),
        (("--share-weights",), "add --format onnx or --context CHIP"),
    ],
)
def test_what_no_context_is_made_of_is_refused(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = ort_mobile("convert", MNIST, *words, "--output", tmp_path / "out", code=2)
    assert why in done.text
    assert not (tmp_path / "out").exists()
