"""`ort-mobile check`: every provider beside the others, the same numbers as `partition`, and what would help."""

import json
from pathlib import Path

import msgspec
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from pipeline.advice.fitness import FitDocument, FitRow, ModelFit
from pipeline.cli.check import check
from pipeline.core.errors import ConfigError
from pipeline.core.providers import PROVIDER_RULES
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, make_settings
from pipeline.partition.judge import PartitionRequest, judge
from tests.partition_samples import chain, model, value

SAMPLES = {
    "whole": chain("Relu", "Sigmoid"),
    "cut": chain("Relu", "Softplus", "Relu", "Tanh"),
    "dynamic": chain("Relu", "Erf", "Relu", dims=("batch", 3, "height", "width")),
    "no_name": chain("Relu", "Tanh", dims=(1, 3, None, None)),
}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(check, [str(argument) for argument in arguments], catch_exceptions=False)


def asked(*arguments: object) -> FitDocument:
    return msgspec.json.decode(call(*arguments, "--json", "-").stdout, type=FitDocument)


def rows(model: ModelFit) -> dict[str, FitRow]:
    return {row.ep: row for row in model.rows}


@pytest.fixture(params=sorted(SAMPLES))
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    onnx.save(SAMPLES[request.param], tmp_path / f"{request.param}.onnx")
    return tmp_path / f"{request.param}.onnx"


def test_numbers_are_those_of_partition(path: Path) -> None:
    (answer,) = asked(path).models
    assert set(rows(answer)) == {*PROVIDER_RULES, "cpu"}
    for ep in PROVIDER_RULES:
        for sizes, fit in (({}, rows(answer)[ep].as_is), (answer.sizes, rows(answer)[ep].fixed)):
            if fit is None:
                assert not answer.dynamic
                continue
            request = PartitionRequest(
                source=SourceModel(path=str(path)), settings=make_settings(ep), optimize=Optimize.BASIC, sizes=sizes
            )
            judged = judge(request)
            assert (fit.supported, fit.nodes) == (judged.claimed, judged.nodes)
            assert fit.partitions == (None if ep == "xnnpack" else len(judged.partitions))


def test_a_whole_model_fits_and_needs_no_help(tmp_path: Path) -> None:
    onnx.save(SAMPLES["whole"], tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    assert rows(answer)["nnapi"].as_is.verdict == rows(answer)["cpu"].as_is.verdict == "yes"
    assert answer.helps == ()
    assert answer.dynamic == ()


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


def test_operators_in_the_way_come_with_what_they_would_gain(tmp_path: Path) -> None:
    onnx.save(SAMPLES["cut"], tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    first = answer.helps[0]
    assert first.what == "rewrite Softplus (1 node)"
    assert first.gains["nnapi"] == "3 → 4 of 4 nodes, 2 → 1 partitions"
    assert "Softplus" in first.reason
    assert len(answer.helps) <= 3


def test_the_terminal_has_the_table_and_the_next_command(tmp_path: Path) -> None:
    onnx.save(SAMPLES["dynamic"], tmp_path / "my model.onnx")
    result = call(tmp_path / "my model.onnx")
    assert result.exit_code == 0
    table = [line.split() for line in result.output.splitlines()]
    assert ["NNAPI", "0/3", "0", "no", "2/3", "2", "no"] in table
    assert ["CPU", "3/3", "-", "yes", "3/3", "-", "yes"] in table
    assert "guessed: batch, height, width" in result.output
    assert f"ort-mobile partition '{tmp_path}/my model.onnx' --optimize basic --dimension batch=1" in result.output
    assert "usability checker" in result.output


def test_a_broken_model_costs_no_other(tmp_path: Path) -> None:
    onnx.save(SAMPLES["whole"], tmp_path / "good.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    result = call(tmp_path, "--json", tmp_path / "out.json")
    assert result.exit_code == 1
    models = json.loads((tmp_path / "out.json").read_bytes())["models"]
    assert [bool(model["error"]) for model in models] == [True, False]
    assert "bad.onnx" in result.stderr
    assert "good.onnx" in result.stdout


def test_a_model_without_a_kernel_on_the_cpu_is_judged_all_the_same(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(model([node], [value("x", (1, 4), TensorProto.BFLOAT16)], ["y"]), tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx").models
    assert answer.error is None
    assert answer.optimize is Optimize.NONE
    assert rows(answer)["cpu"].as_is.verdict == "no"
    assert rows(answer)["cpu"].as_is.reason
    assert any("without optimization" in note for note in answer.notes)


def test_ort_files_that_onnxruntime_does_not_load_are_no_on_the_cpu(tmp_path: Path) -> None:
    for level, verdict in ((TensorProto.INT8, "yes"), (TensorProto.INT4, "no")):
        weights = [helper.make_tensor("w", level, (2, 2), [1, 2, 3, 4]), helper.make_tensor("s", 1, (), [0.5])]
        nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]), helper.make_node("MatMul", ["x", "d"], ["y"])]
        made = model(nodes, [value("x", (2, 2))], ["y"], opset=21)
        made.graph.initializer.extend(weights)
        made.ir_version = 10
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(tmp_path / "m.ort")
        onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
        (answer,) = asked(tmp_path / "m.ort").models
        assert rows(answer)["cpu"].as_is.verdict == verdict


def test_dimensions_that_no_model_has_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    onnx.save(SAMPLES["dynamic"], tmp_path / "m.onnx")
    (answer,) = asked(tmp_path / "m.onnx", "--dimension", "heigth=96").models
    assert answer.error
    assert "'heigth'" in answer.error
    assert "height" in str(answer.remedy)


def test_unknown_releases_are_refused() -> None:
    with pytest.raises(ConfigError):
        call("m.onnx", "--ort-release", "1.99")
