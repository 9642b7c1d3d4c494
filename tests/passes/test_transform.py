"""`ort-mobile transform`: what it writes and shows, its cache, and what it answers to bad input."""

import json
import os
import shutil
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from pipeline.config.tables import Step
from pipeline.core.errors import ConfigError
from pipeline.core.workers import Task, run_tasks
from pipeline.model.onnx_model import LeanModel
from pipeline.model.sources import SourceModel
from pipeline.passes import registry, run
from pipeline.passes.base import Effect, Options, Pass, PassContext
from tests.command import Done, ort_mobile
from tests.ground_truth import ORACLE
from tests.onnx_samples import linear, make, parsed_nodes, save, value
from tests.passes.real_models import extract


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    extract("mnist.op12", tmp_path).rename(tmp_path / "my.onnx")
    return tmp_path


def transform(folder: Path, *words: str, code: int | None = 0) -> Done:
    return ort_mobile("transform", *words, cwd=folder, code=code)


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"my.onnx"}


def test_steps_are_applied_checked_and_shown(folder: Path) -> None:
    done = transform(folder, "my.onnx", "out.onnx", "--do", "opset:version=21", "--do", "external-data:min_bytes=512")
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[1][:4] == ["opset:version=21", "13", "→", "13"]
    assert rows[2][0] == "external-data:min_bytes=512"
    assert "1 of 1 outputs are the original's" in done.out
    assert leftovers(folder) == {"out.onnx", "out.onnx.data"}
    assert onnx.load(folder / "out.onnx").opset_import[0].version == 21


def test_json_has_the_steps_and_the_comparison(folder: Path) -> None:
    done = transform(folder, "my.onnx", "out.onnx", "--do", "opset:version=13", "--json", "-")
    document = done.document()
    assert document["output"] == "out.onnx"
    assert document["steps"][0]["text"] == "opset:version=13"
    assert document["steps"][0]["nodes_before"] == 13
    assert document["saved"]["size_bytes"] == (folder / "out.onnx").stat().st_size
    assert [check["passed"] for check in document["verification"]["checks"]] == [True]


def test_the_comparison_uses_the_users_data(folder: Path) -> None:
    np.savez(folder / "data.npz", Input3=np.ones((1, 1, 28, 28), np.float32))
    done = transform(folder, "my.onnx", "out.onnx", "--do", "opset:version=13", "--test-data", "data.npz")
    assert "on data.npz" in done.out


def test_list_has_every_pass_in_one_line(folder: Path) -> None:
    done = transform(folder, "--list")
    assert [line.split()[0] for line in done.out.splitlines()] == list(registry.PASSES)


@pytest.mark.parametrize("name", ["mixed-precision", "prune-outputs", "opset"])
def test_options_of_a_pass_are_shown_with_what_they_mean(folder: Path, name: str) -> None:
    done = transform(folder, "--options", name)
    lines = [line.split(maxsplit=1) for line in done.out.splitlines()[1:]]
    assert done.code == 0
    assert [line[0].partition("=")[0] for line in lines] == list(registry.PASSES[name].options.__struct_fields__)
    assert all(len(line) == 2 for line in lines), "each has a text, inherited ones too"


def _shifted(model: LeanModel, _options: Options, _context: PassContext) -> LeanModel:
    """A pass that says it is exact, and is not."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    name = proto.graph.output[0].name
    proto.graph.node[-1].output[0] = "shifted"
    proto.graph.node.append(helper.make_node("Neg", ["shifted"], [name]))
    return LeanModel(proto=proto, folder=model.folder, weights={})


def test_a_wrong_result_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Pass(name="wrong", title="Negate.", apply=_shifted, effect=Effect.EXACT)
    monkeypatch.setitem(registry.PASSES, "wrong", wrong)
    report = run.transform(SourceModel(path=str(folder / "my.onnx")), (Step(do="wrong"),), str(folder), "o.onnx")
    assert report.verification
    assert report.verification.failed


@pytest.mark.parametrize(
    ("weight", "reason"),
    [(np.nan, "numbers where the original has NaN"), (np.inf, "NaN or infinity where the original has numbers")],
    ids=["nan", "inf"],
)
def test_outputs_without_a_figure_are_not_called_equal(weight: float, reason: str, tmp_path: Path) -> None:
    weights = np.eye(4, 16, dtype=np.float32)
    weights[1, 1] = weight
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = make([node], [value("x", [4, 4])], [value("y", [4, 16])], [onnx.numpy_helper.from_array(weights, "w")])
    onnx.save(model, tmp_path / "m.onnx")
    done = transform(tmp_path, "m.onnx", "o.onnx", "--do", "weight-only")
    assert "to the last bit" not in done.out
    assert f"y: cannot judge on random inputs: {reason}" in done.out
    assert "warning: the output 'y' was not compared" in done.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["nope.onnx", "o.onnx", "--do", "inline-data"], 2, "no such file"),
        (["my.onnx", "o.onnx"], 2, "--do"),
        (["my.onnx", "o.onnx", "--do", "opest:version=21"], 2, "did you mean 'opset'"),
        (["my.onnx", "o.onnx", "--do", "opset:verson=21"], 2, "options: version"),
        (["my.onnx", "o.onnx", "--do", "opset:version=new"], 2, "wrong option of opset"),
        (["my.onnx", "o.onnx", "--do", "opset"], 2, "version"),
        (["my.onnx", "my.onnx", "--do", "opset:version=21"], 2, "would replace the model"),
        (["my.onnx", ".", "--do", "opset:version=21"], 2, "name a file"),
        (["my.onnx", "pipe", "--do", "opset:version=21"], 2, "name a file"),
        (["my.onnx", "o.onnx", "--do", "transformer-fusions:model_type=brt"], 2, "bart, bert"),
        (["my.onnx", "o.onnx", "--do", "opset:version=11"], 1, "adapters"),
        (["my.onnx", "o.onnx", "--do", "opset:version=13", "--do", "inline-data"], 1, "leave the step out"),
        (["my.onnx", "o.onnx", "--do", "opset:version=13", "--input", "x=1"], 2, "no input 'x'"),
        (["my.onnx", "o.onnx", "--do", "opset:version=13", "--test-data", "nope"], 2, "nope"),
        (["my.onnx", "o.onnx", "--do", "static-qdq"], 3, "calibration data"),
        (["my.onnx", "my.weights", "--do", "external-data:file=my.weights"], 2, "would replace its weights"),
        (["--options", "static-qd"], 2, "did you mean 'static-qdq'?"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_and_nothing_is_written(words: list[str], code: int, says: str, folder: Path) -> None:
    before = (folder / "my.onnx").read_bytes()
    os.mkfifo(folder / "pipe")
    done = transform(folder, *words, code=code)
    assert says in done.err
    assert leftovers(folder) == {"pipe"}
    assert (folder / "pipe").is_fifo()
    assert (folder / "my.onnx").read_bytes() == before


def test_weights_of_another_model_are_not_replaced(folder: Path) -> None:
    (folder / "o.onnx.data").write_bytes(b"another model's")
    done = transform(folder, "my.onnx", "o.onnx", "--do", "external-data:min_bytes=64", code=2)
    assert "there already" in done.err
    assert leftovers(folder) == {"o.onnx.data"}
    assert (folder / "o.onnx.data").read_bytes() == b"another model's"


def test_a_broken_file_is_named(folder: Path) -> None:
    (folder / "my.onnx").write_bytes(b"\x08\x07garbage")
    done = transform(folder, "my.onnx", "o.onnx", "--do", "inline-data", code=1)
    assert "not a usable ONNX model" in done.err
    assert leftovers(folder) == set()


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd"])
def test_weights_outside_the_models_folder_are_refused(location: str, folder: Path) -> None:
    (folder / "models").mkdir()
    (folder / "secret.bin").write_bytes(bytes(10_000))
    model = linear(32)
    for tensor in model.graph.initializer:
        del tensor.external_data[:]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    save(model, folder / "models/bad.onnx")
    done = transform(folder / "models", "bad.onnx", "o.onnx", "--do", "inline-data", code=1)
    assert "not a file in the model's folder" in done.err
    assert not (folder / "models/o.onnx").exists()


def test_hostile_models_end_in_an_answer(tmp_path: Path) -> None:
    """In workers as the command's: whatever a file does to a library, it ends in a result or an error of ours."""
    with zipfile.ZipFile(ORACLE / "hostile.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".onnx") and "/" not in name)[::12]
        archive.extractall(tmp_path, names)
    steps = (Step(do="opset", options={"version": 21}), Step(do="fold-shapes"))
    tasks = []
    for number, name in enumerate(names):
        (tmp_path / str(number)).mkdir()
        source = SourceModel(path=str(tmp_path / name))
        call = partial(run.transform, source, steps, str(tmp_path / str(number)), "out.onnx")
        tasks.append(Task(label=name, call=call))
    outcomes = list(run_tasks(tasks, processes=2, timeout_seconds=60))
    assert len(outcomes) == len(names) > 15
    for outcome in outcomes:
        assert outcome.value or outcome.error
        assert outcome.error is None or "internal error" not in outcome.error.what, (outcome.task.label, outcome.error)


def test_the_command_leaves_nothing_of_a_hostile_model(folder: Path) -> None:
    with zipfile.ZipFile(ORACLE / "hostile.zip") as archive:
        (folder / "in.onnx").write_bytes(archive.read("a_reshape_overflow.onnx"))
    transform(folder, "in.onnx", "out.onnx", "--do", "fold-shapes", code=1)
    assert leftovers(folder) == {"in.onnx"}


def test_bodies_without_end_are_refused_before_a_library_sees_them(folder: Path) -> None:
    value = helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, [])
    body = helper.make_graph(parsed_nodes("o = Identity (c)"), "g", [], [value])
    for _ in range(24):
        node = helper.make_node("If", ["c"], ["o"], then_branch=body)
        body = helper.make_graph([node], "g", [], [value])
    body.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    (folder / "deep.onnx").write_bytes(helper.make_model(body).SerializeToString())
    done = transform(folder, "deep.onnx", "o.onnx", "--do", "opset:version=21", code=1)
    assert "nested too deep" in done.err
    assert leftovers(folder) == {"deep.onnx"}


def test_the_same_steps_are_found_in_the_cache(folder: Path) -> None:
    words = ["--do", "opset:version=21", "--do", "external-data:min_bytes=512", "--cache", "cache", "--json", "-"]
    first = transform(folder, "my.onnx", "a.onnx", *words).document()
    shutil.copyfile(folder / "my.onnx", folder / "copy.onnx")
    second = transform(folder, "copy.onnx", "b.onnx", *words).document()
    assert (first["reused"], second["reused"]) == (False, True)
    assert first["steps"] == second["steps"]
    assert (folder / "a.onnx.data").read_bytes() == (folder / "b.onnx.data").read_bytes()


def cached(folder: Path, model: str = "my.onnx") -> bool:
    """Whether a step on a model was found in the cache; run in this process."""
    source = SourceModel(path=str(folder / model))
    steps = (Step(do="opset", options={"version": 21}),)
    return run.transform(source, steps, str(folder), "o.onnx", check=False, cache=str(folder / "cache")).reused


def test_a_kept_result_is_written_with_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.model.onnx_model.LEAN_MINIMUM_BYTES", 0)  # weights of a kept result stay in its file
    source = SourceModel(path=str(save(linear(512), folder / "large.onnx")))
    steps, cache = (Step(do="fp16"),), str(folder / "cache")
    reports = [run.transform(source, steps, str(folder / name), "o.onnx", check=False, cache=cache) for name in "ab"]
    assert [report.reused for report in reports] == [False, True]
    assert (folder / "a/o.onnx").read_bytes() == (folder / "b/o.onnx").read_bytes()


def test_warnings_are_shown_again_where_the_result_was_kept(folder: Path) -> None:
    words = ["--do", "static-qdq:op_types=Conv", "--input", "Input3=0:1", "--no-check", "--cache", "cache"]
    for name in ("a.onnx", "b.onnx"):
        done = transform(folder, "my.onnx", name, *words)
        assert "warning: ranges come from 1 calibration sample;" in done.err
        assert ("unchanged since the last time" in done.out) == (name == "b.onnx")


def test_a_damaged_cache_costs_time_only(folder: Path) -> None:
    assert not cached(folder)
    (kept,) = (folder / "cache/objects").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    assert not cached(folder)
    (entry,) = (folder / "cache/entries").iterdir()
    entry.write_text(json.dumps({"key": "?"}))
    assert not cached(folder)
    assert cached(folder)


def test_the_key_follows_our_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cached(folder)
    assert cached(folder)
    monkeypatch.setattr("pipeline.core.own_sources.sources_digest", lambda _module: "other sources")
    assert not cached(folder)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("batch:size=2", {"size": 2}),
        ("batch:size=2:axes=input:0=1+c0=1", {"size": 2, "axes": {"input:0": 1, "c0": 1}}),
        ("prune-outputs:outputs=boxes:0+scores:0", {"outputs": ("boxes:0", "scores:0")}),
        ("fixed-dimensions:sizes=x[0]=1:rest=2", {"sizes": {"x[0]": 1}, "rest": 2}),
        ("external-data", {}),
    ],
)
def test_a_step_is_read_and_written_alike(text: str, options: dict[str, object]) -> None:
    step = registry.parse_step(text)
    assert step == Step(do=text.partition(":")[0], options=options)
    assert registry.parse_step(step.text) == step


def test_one_model_at_a_time(folder: Path) -> None:
    shutil.copyfile(folder / "my.onnx", folder / "second.onnx")
    done = transform(folder, ".", "o.onnx", "--do", "opset:version=21", code=ConfigError.exit_code)
    assert "name one of them" in done.err


def sized(folder: Path, size: int, name: str = "my.weights", code: int = 0) -> Done:
    """A model of one size, of a model whose batch is open, with its weights in a file of that name."""
    if not (folder / "open.onnx").exists():
        save(linear(64), folder / "open.onnx")
    steps = (f"fixed-dimensions:sizes=batch={size}", "optimize:level=basic", f"external-data:min_bytes=64:file={name}")
    words = [word for step in steps for word in ("--do", step)]
    return transform(folder, "open.onnx", f"{size}.onnx", *words, code=code)


def test_models_of_several_sizes_have_their_weights_once(folder: Path) -> None:
    for size in (1, 4):
        assert "1 of 1 outputs are the original's" in sized(folder, size).out
    weights = (folder / "my.weights").read_bytes()
    assert len(weights) == 64 * 64 * 4 + 64 * 4  # a multiple of the alignment, then the last one
    places = [
        {tensor.name: [row.value for row in tensor.external_data] for tensor in graph.initializer}
        for graph in (onnx.load(folder / f"{size}.onnx", load_external_data=False).graph for size in (1, 4))
    ]
    assert places[0] == places[1]
    sized(folder, 1)
    assert (folder / "my.weights").read_bytes() == weights
    perf = ("perf", "1.onnx", "4.onnx", "--rounds", "1", "--min-runs", "1", "--min-seconds", "0.001", "--json", "-")
    assert [row["status"] for row in ort_mobile(*perf, cwd=folder).document()["rows"]] == ["ok", "ok"]


def test_weights_of_another_model_stay_where_they_are(folder: Path) -> None:
    sized(folder, 1)
    before = (folder / "my.weights").read_bytes()
    save(linear(64, seed=7), folder / "open.onnx")
    assert "1 of 1 outputs are the original's" in sized(folder, 4).out
    after = (folder / "my.weights").read_bytes()
    assert after.startswith(before)
    assert len(after) > len(before) + 64 * 64 * 4


def test_small_weights_at_the_end_are_found_again(folder: Path) -> None:
    save(linear(8), folder / "small.onnx")
    for _ in range(2):
        transform(folder, "small.onnx", "o.onnx", "--do", "external-data:file=my.weights:min_bytes=1")
        assert (folder / "my.weights").stat().st_size < 2 * 4096


def test_weights_in_a_file_move_to_one_of_several_models(folder: Path) -> None:
    transform(folder, "my.onnx", "apart.onnx", "--do", "external-data:min_bytes=1")
    transform(folder, "apart.onnx", "o.onnx", "--do", "external-data:min_bytes=1:file=my.weights")
    assert (folder / "my.weights").exists()
    whole = ("--do", "external-data:min_bytes=1:file=my.weights", "--do", "inline-data")
    transform(folder, "o.onnx", "whole.onnx", *whole)
    (folder / "my.weights").unlink()
    assert "1 of 1 outputs" in transform(folder, "whole.onnx", "again.onnx", "--do", "opset:version=21").out


@pytest.mark.parametrize("name", ["my.onnx", "../my.weights", ".weights", "a/b.weights", f"{'a' * 300}.weights"])
def test_a_file_of_another_kind_is_never_continued(folder: Path, name: str) -> None:
    before = (folder / "my.onnx").read_bytes()
    assert "is no name for weights" in sized(folder, 1, name, code=2).err
    assert (folder / "my.onnx").read_bytes() == before
    assert not (folder / "1.onnx").exists()


def test_weights_are_never_read_from_a_link(folder: Path) -> None:
    (folder / "my.weights").symlink_to("my.onnx")
    assert "is a link or no file" in sized(folder, 1, code=2).err
    assert (folder / "my.weights").is_symlink()
