"""Inputs that have a value in the model's file: constants in artifacts, and named, or kept where that is asked for."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from pipeline.model.onnx_model import optional_inputs
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Optimize, Settings
from pipeline.partition.judge import PartitionRequest, judge
from tests.command import ort_mobile
from tests.onnx_samples import make, parsed_nodes, save, value, weight

FEEDS = {"x": np.ones((1, 4, 8, 8), np.float32)}


def overridable(ir_version: int = 8) -> onnx.ModelProto:
    """A Conv whose weight callers may replace."""
    nodes = parsed_nodes("c = Conv <pads = [1, 1, 1, 1]> (x, w)  y = Relu (c)")
    inputs = [value("x", [1, 4, 8, 8]), value("w", [4, 4, 3, 3])]
    model = make(nodes, inputs, [value("y", [1, 4, 8, 8])], [weight("w", 4, 4, 3, 3)])
    model.ir_version = ir_version
    return model


def converted(path: Path, *arguments: str) -> list[onnxruntime.InferenceSession]:
    output = path.parent / "out"
    ort_mobile("convert", path, "--level", "basic,all", "--style", "fixed", *arguments, "--output", output)
    files = sorted(output.glob("*.ort"))
    assert len(files) == 2
    return [onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]) for file in files]


def test_they_become_constants_and_that_is_told(tmp_path: Path) -> None:
    path = save(overridable(), tmp_path / "m.onnx")
    told = ort_mobile("convert", path, "--level", "basic", "--style", "fixed", "--output", tmp_path / "out").err
    assert "the optional input w is a constant; apps cannot set it (`--optional-input NAME`" in told
    assert all(session.get_overridable_initializers() == [] for session in converted(path))


@pytest.mark.parametrize("lean", [False, True])
def test_one_that_is_kept_can_be_set(tmp_path: Path, lean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(overridable(), tmp_path / "m.onnx")
    if lean:
        monkeypatch.setattr("pipeline.model.onnx_model.LEAN_MINIMUM_BYTES", 0)
        monkeypatch.setattr("pipeline.model.onnx_model.LARGE_BYTES", 64)
    for session in converted(path, "--optional-input", "w"):
        assert [info.name for info in session.get_inputs()] == ["x"]
        assert [info.name for info in session.get_overridable_initializers()] == ["w"]
        (zeros,) = session.run(None, {**FEEDS, "w": np.zeros((4, 4, 3, 3), np.float32)})
        assert not zeros.any()
        assert session.run(None, FEEDS)[0].any()


def test_what_is_no_optional_input_cannot_be_kept(tmp_path: Path) -> None:
    path = save(overridable(), tmp_path / "m.onnx")
    told = ort_mobile("convert", path, "--optional-input", "v", "--output", tmp_path / "out", code=2).err
    assert "the model has no optional input 'v'" in told
    assert "it has w" in told
    assert optional_inputs(overridable(ir_version=3)) == (), "every initializer is an input there, and a constant"


@pytest.mark.parametrize(("optimize", "claimed"), [(Optimize.NONE, 1), (Optimize.BASIC, 2)])
def test_level_basic_judges_what_convert_makes(tmp_path: Path, optimize: Optimize, claimed: int) -> None:
    path = save(overridable(), tmp_path / "m.onnx")
    settings = Settings(provider="nnapi", api_level=29)
    answer = judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings, optimize=optimize))
    assert answer.claimed == claimed, "the Relu alone, or the Conv too"
    assert "optional inputs w" in answer.warnings[0]


def test_no_value_is_taken_for_one(tmp_path: Path) -> None:
    path = save(overridable(), tmp_path / "m.onnx")
    told = ort_mobile("init", path, "--input", "w=1", "--output", tmp_path / "m.toml", code=2).err
    assert "'w' is an optional input" in told
    ort_mobile("init", path, "--output", tmp_path / "m.toml")
    assert '\n# optional_inputs = ["w"]\n' in (tmp_path / "m.toml").read_text()


def test_providers_claim_what_reads_a_constant(tmp_path: Path) -> None:
    path = save(overridable(), tmp_path / "m.onnx")
    arguments = ("--ep", "nnapi", "--reference", "none", "--level", "extended", "--output", tmp_path / "out")
    (artifact,) = json.loads(ort_mobile("convert", path, *arguments, "--json", "-").out)["artifacts"]
    assert (artifact["claimed"], artifact["constant_inputs"]) == ({"nnapi": 2}, ["w"])
