"""`ort-mobile check`: every provider beside the others, the same numbers as `partition`, and what would help."""

import json
import re
import shlex
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from pipeline.advice.fitness import FitDocument, FitRow, ModelFit
from pipeline.core import workers
from pipeline.core.providers import on_any_chip
from pipeline.core.releases import NEWEST_RULES
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from tests.command import Done, ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.ort_models import parsed
from tests.partition_samples import chain, model, value

SAMPLES = {
    "whole": chain("Relu", "Sigmoid"),
    "cut": chain("Relu", "Softplus", "Relu", "Tanh"),
    "dynamic": chain("Relu", "Erf", "Relu", dims=("batch", 3, "height", "width")),
    "no_name": chain("Relu", "Tanh", dims=(1, 3, None, None)),
}


def call(*arguments: object, code: int | None = 0) -> Done:
    return ort_mobile("check", *arguments, code=code)


def asked(*arguments: object, code: int = 0) -> FitDocument:
    return msgspec.json.decode(call(*arguments, "--json", "-", code=code).out, type=FitDocument)


def rows(model: ModelFit) -> dict[str, FitRow]:
    return {row.ep: row for row in model.rows}


@pytest.fixture(params=sorted(SAMPLES))
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    onnx.save(SAMPLES[request.param], tmp_path / f"{request.param}.onnx")
    return tmp_path / f"{request.param}.onnx"


def test_numbers_are_those_of_partition(path: Path) -> None:
    (answer,) = asked(path).models
    assert set(rows(answer)) == {*on_any_chip(), "cpu"}
    for ep in on_any_chip():
        for sizes, fit in (({}, rows(answer)[ep].as_is), (answer.sizes, rows(answer)[ep].fixed)):
            if fit is None:
                assert not answer.dynamic
                continue
            request = PartitionRequest(
                source=SourceModel(path=str(path)), settings=make_settings(ep), optimize=Optimize.BASIC, sizes=sizes
            )
            judged = judge(request)
            assert (fit.supported, fit.nodes) == (judged.claimed, judged.nodes)
            assert fit.partitions == (None if ep in ("xnnpack", "webgpu") else len(judged.partitions))
            assert fit.copies == judged.copies


def test_dimensions_are_guessed_where_nobody_gave_them(tmp_path: Path) -> None:
    onnx.save(SAMPLES["dynamic"], tmp_path / "m.onnx")
    document = asked(tmp_path / "m.onnx", "--dimension", "height=96")
    (answer,) = document.models
    assert document.version == 1
    assert answer.dynamic == ("batch", "height", "width")
    assert answer.sizes["batch"] == 1
    assert answer.sizes["height"] == 96
    assert answer.guessed == ("batch", "width")
    nnapi = rows(answer)["nnapi"]
    assert nnapi.fixed
    assert (nnapi.as_is.supported, nnapi.as_is.verdict) == (0, "no")
    assert nnapi.fixed.supported == 2
    assert answer.helps[0].what.startswith("fix the dynamic dimensions (batch=1, height=96, ")
    assert answer.helps[0].gains["nnapi"] == "0 → 2 of 3 nodes, 0 → 2 partitions"


def test_guessed_sizes_that_make_no_session_give_way_to_others(tmp_path: Path) -> None:
    """Shape inference takes a height of 224; folded constants show that only one row of 48 can be squeezed away."""
    nodes = parsed_nodes("""
        rows = MaxPool <kernel_shape = [48, 1], strides = [48, 1]> (x)  shape = Shape (rows)
        height = Gather <axis = 0> (shape, two)  count = Max (height, one)
        sizes = Concat <axis = 0> (one, three, count, rest)  same = Reshape (rows, sizes)
        y = Squeeze (same, two)""")
    constants = {"one": np.array([1]), "two": np.array([2]), "three": np.array([3]), "rest": np.array([-1])}
    onnx.save(model(nodes, [value("x", (1, 3, "height", "width"))], ["y"], constants), tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    assert rows(answer)["cpu"].fit.verdict == "yes"
    assert answer.sizes["height"] == 48


def test_a_model_that_loads_with_open_dimensions_only_is_judged_as_it_is(tmp_path: Path) -> None:
    """Each branch of its If wants another size: ONNX Runtime looks at both when it makes a session."""
    branches = {}
    for name, size in (("then_branch", 3), ("else_branch", 5)):
        weight = onnx.numpy_helper.from_array(np.ones((size, 2), np.float32), f"w{size}")
        node = helper.make_node("MatMul", ["x", f"w{size}"], [f"y{size}"])
        branches[name] = helper.make_graph([node], name, [], [value(f"y{size}", (1, 2))], [weight])
    nodes = [
        *parsed_nodes("sum = ReduceSum <keepdims = 0> (x)  which = Cast <to = 9> (sum)"),
        helper.make_node("If", ["which"], ["y"], **branches),
    ]
    path = tmp_path / "m.onnx"
    onnx.save(model(nodes, [value("x", (1, "n"))], ["y"], {}), path)
    (answer,) = asked(path).models
    cpu = rows(answer)["cpu"]
    assert (cpu.as_is.verdict, cpu.fixed, answer.sizes) == ("yes", None, {})
    assert any("loads with open dimensions only" in note for note in answer.notes)
    assert not [line for line in call(path).out.splitlines() if "ort-mobile" in line and "--dimension" in line]
    request = PartitionRequest(source=SourceModel(path=str(path)), settings=make_settings("nnapi"), sizes={"n": 3})
    judged = judge(msgspec.structs.replace(request, optimize=Optimize.BASIC))
    assert judged.error
    assert judged.error.startswith("ONNX Runtime refuses the model with n=3")
    assert judged.remedy == "give other sizes, or leave them open: without sizes the model loads"


def test_operators_in_the_way_come_with_what_they_would_gain(tmp_path: Path) -> None:
    onnx.save(SAMPLES["cut"], tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    first = answer.helps[0]
    assert first.what == "rewrite Softplus (1 node)"
    assert first.gains["nnapi"] == "3 → 4 of 4 nodes, 2 → 1 partitions"
    assert "Softplus" in first.reason
    assert len(answer.helps) <= 3


def test_a_dynamically_quantized_model_is_for_the_cpu_and_the_advice_says_so(tmp_path: Path) -> None:
    nodes = parsed_nodes("""
        r = Relu (x)  q, s, z = DynamicQuantizeLinear (r)  i = MatMulInteger (q, w, z)  c = Cast <to = 1> (i)
        y = Mul (c, s)""")
    onnx.save(model(nodes, [value("x", ("N", 4))], ["y"], {"w": np.ones((4, 4), np.int8)}), tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    assert [one.what for one in answer.helps] == ["start from the float model: no change of this file helps"]
    assert "the model is dyn8: only the CPU has kernels of this form" in answer.helps[0].reason
    assert "WebGPU has no kernel for quantized values" in answer.helps[0].reason
    assert "(3 copies per inference)" in answer.helps[0].reason
    assert answer.helps[0].reason.count("the model is dyn8") == 1
    assert answer.notes == ()
    shown = call(tmp_path / "m.onnx").text
    assert "  iPhones: the CPU\n    the CPU has fast kernels for quantized models" in shown
    assert "  Snapdragons: QNN reaches the NPU, which is made for quantized models; ask about it with --chip" in shown
    assert "\nXNNPACK: supports no node" in shown
    assert "ort-mobile convert FLOAT.onnx --precision auto" in shown
    assert "--advise" not in shown


def test_what_to_try_first_is_the_better_verdict_then_what_is_developed(tmp_path: Path) -> None:
    onnx.save(SAMPLES["whole"], tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    assert rows(answer)["nnapi"].as_is.verdict == rows(answer)["cpu"].as_is.verdict == "yes"
    assert (answer.helps, answer.dynamic) == ((), ()), "it fits and needs no help"
    first = {choice.phones: choice for choice in answer.first}
    assert first["Android phones"].providers == ("webgpu", "nnapi")
    assert first["Android phones"].reason.startswith("every node has a kernel on the GPU")
    assert first["Snapdragons"].ask == "--chip SM8650"
    shown = call(tmp_path / "m.onnx").text
    assert "  Android phones: WebGPU, then NNAPI, then the CPU\n" in shown
    assert shown.partition("Details:")[2].splitlines()[0].endswith("--optimize basic --ep coreml-mlprogram,webgpu")


def test_the_oldest_systems_have_rows_where_their_verdict_is_another_one(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Softmax", "Relu", dims=(1, 4, 6)), tmp_path / "m.onnx")
    document = asked(tmp_path / "m.onnx")
    (answer,) = document.models
    assert set(document.levels.values()) == {"API level 31", "Core ML 7 (iOS 17)"}
    assert rows(answer)["nnapi"].as_is.verdict == "yes"
    assert [(row.ep, row.level, row.as_is.verdict) for row in answer.oldest] == [("nnapi", "API level 27", "no")]
    shown = call(tmp_path / "m.onnx").text
    assert f"(by the rules of {NEWEST_RULES}), API level 31, Core ML 7 (iOS 17)\n" in shown
    assert ["NNAPI,", "API", "level", "27", "2/3", "2", "no"] in [line.split() for line in shown.splitlines()]


def test_a_given_level_is_the_only_one(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Softmax", "Relu", dims=(1, 4, 6)), tmp_path / "m.onnx")
    document = asked(tmp_path / "m.onnx", "--api-level", 28, "--coreml-version", 9)
    (answer,) = document.models
    assert set(document.levels.values()) == {"API level 28", "Core ML 9"}
    assert rows(answer)["nnapi"].as_is.verdict == "no"
    assert answer.oldest == ()


def test_the_terminal_has_the_table_and_the_next_command(tmp_path: Path) -> None:
    onnx.save(SAMPLES["dynamic"], tmp_path / "my model.onnx")
    result = call(tmp_path / "my model.onnx")
    table = [line.split() for line in result.text.splitlines()]
    assert ["NNAPI", "0/3", "0", "no", "2/3", "2", "no"] in table
    assert ["CPU", "3/3", "-", "yes", "3/3", "-", "yes"] in table
    assert "guessed: batch, height, width" in result.text
    assert f"ort-mobile partition '{tmp_path}/my model.onnx' --optimize basic --dimension batch=1" in result.text
    assert "usability checker" in result.text


def test_what_is_advised_works_for_members_of_archives_and_is_left_out_for_ort_files(tmp_path: Path) -> None:
    onnx.save(SAMPLES["dynamic"], tmp_path / "m.onnx")
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.write(tmp_path / "m.onnx", "a b/m.onnx")
    (line,) = re.findall(r"automatically: ort-mobile (.*--advise)", call(tmp_path / "models.zip").out)
    assert "no advice" not in ort_mobile(*shlex.split(line)).out
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    text = call(tmp_path / "m.ort").out
    assert "--advise" not in text
    assert "ask about the ONNX model that it was made from" in text


def test_a_broken_model_costs_no_other(tmp_path: Path) -> None:
    onnx.save(SAMPLES["whole"], tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    result = call(tmp_path, "--json", tmp_path / "out.json", code=1)
    models = json.loads((tmp_path / "out.json").read_bytes())["models"]
    assert [bool(model["error"]) for model in models] == [True, False]
    assert "bad.onnx" in result.err
    assert "good.onnx" in result.out


def test_a_model_without_a_kernel_on_the_cpu_is_judged_all_the_same(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(model([node], [value("x", (1, 4), TensorProto.BFLOAT16)], ["y"]), tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    assert answer.error is None
    assert answer.optimize is Optimize.NONE
    assert rows(answer)["cpu"].as_is.verdict == "no"
    assert rows(answer)["cpu"].as_is.reason
    assert any("without optimization" in note for note in answer.notes)


def test_weights_that_only_some_levels_can_store_are_told(tmp_path: Path) -> None:
    weights = [helper.make_tensor("w", TensorProto.INT4, (2, 2), [1, 2, 3, 4]), helper.make_tensor("s", 1, (), [0.5])]
    made = model(parsed_nodes("d = DequantizeLinear (w, s)  y = MatMul (x, d)"), [value("x", (2, 2))], ["y"], opset=21)
    made.graph.initializer.extend(weights)
    made.ir_version = 10
    onnx.save(made, tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    assert any(
        "levels none and basic give no file that loads; levels extended and all" in note for note in answer.notes
    )


def test_ort_files_that_onnxruntime_does_not_load_are_no_on_the_cpu(tmp_path: Path) -> None:
    for level, verdict in ((TensorProto.INT8, "yes"), (TensorProto.INT4, "no")):
        weights = [helper.make_tensor("w", level, (2, 2), [1, 2, 3, 4]), helper.make_tensor("s", 1, (), [0.5])]
        nodes = parsed_nodes("d = DequantizeLinear (w, s)  y = MatMul (x, d)")
        made = model(nodes, [value("x", (2, 2))], ["y"], opset=21)
        made.graph.initializer.extend(weights)
        made.ir_version = 10
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(tmp_path / "m.ort")
        onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
        (answer,) = asked(tmp_path / "m.ort").models
        assert rows(answer)["cpu"].as_is.verdict == verdict


def test_a_release_that_is_not_known_yet_is_judged_by_the_newest_rules(path: Path) -> None:
    later, known = (asked(path, "--ort-release", release) for release in ("1.99", str(NEWEST_RULES)))
    assert (later.ort_release, later.rules_release) == ("1.99", known.rules_release)
    assert later.models == known.models


@pytest.mark.parametrize("near", [0.5, 0.0])
def test_a_model_in_half_precision_that_a_gpu_computes_wrong_has_a_note_of_check_and_partition(
    tmp_path: Path, near: float
) -> None:
    """A sum over 512 numbers near 0.5 whose differences are the output; near 0 it has no rounding that shows."""
    file = tmp_path / "m.onnx"
    onnx.save(sums_in_half(near), file)
    (answer,) = asked(file).models
    assert any("on a GPU output 'y' would be off" in note and "MatMul" in note for note in answer.notes) == bool(near)
    for ep in ("webgpu", "xnnpack"):
        shown = ort_mobile("partition", file, "--ep", ep, code=0).out
        assert ("on a GPU output 'y' would be off" in shown) == (bool(near) and ep == "webgpu")


def test_convert_tells_what_a_gpu_does_to_an_onnx_file_in_half_precision(tmp_path: Path) -> None:
    onnx.save(sums_in_half(0.5), tmp_path / "m.onnx")
    done = ort_mobile(
        "convert", "m.onnx", "--level", "none,basic", "--style", "fixed,onnx", "--check", "--output", "out",
        "--json", "-", cwd=tmp_path, code=None,
    )  # fmt: skip
    found = {row["variant"]: [each["rule"] for each in row["findings"]] for row in json.loads(done.out)["artifacts"]}
    assert found["none-onnx"] == ["webgpu-sums"]
    assert not any(rules for variant, rules in found.items() if "onnx" not in variant)


def sums_in_half(near: float) -> onnx.ModelProto:
    weights = (np.random.default_rng(0).standard_normal((512, 64)) * 0.01 + near).astype(np.float16)
    return parsed(
        "g (float16[1, 512] x) => (float16[1, 64] y) "
        "{ a = Abs (x)  s = MatMul (a, w)  m = ReduceMean <axes = [1], keepdims = 1> (s)  y = Sub (s, m) }",
        w=weights,
    )  # fmt: skip


@pytest.mark.parametrize("words", [("check",), ("partition", "--ep", "nnapi")])
def test_how_long_the_work_on_a_model_may_take_follows_from_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    onnx.save(chain(*["Relu"] * 1000), tmp_path / "m.onnx")  # no answer is there at once
    monkeypatch.setattr(workers, "TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(workers, "SECONDS_PER_BYTE", 0.0)
    assert "longer than 0 s" in ort_mobile(*words, tmp_path / "m.onnx", code=1).text
    monkeypatch.setattr(workers, "SECONDS_PER_BYTE", 1.0)
    ort_mobile(*words, tmp_path / "m.onnx")
