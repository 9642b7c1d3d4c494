"""`ort-mobile check` of models with many nodes: no session is made, and the work grows as the nodes do."""

import gc
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.advice.fitness import ModelFit, fit
from pipeline.core import ort_session
from pipeline.core.errors import ModelError
from pipeline.core.providers import on_any_chip
from pipeline.model.sources import SourceModel
from pipeline.partition import subject
from pipeline.partition.answer import Optimize, make_settings
from tests.command import ort_mobile
from tests.partition_samples import model, value

SETTINGS = tuple(make_settings(provider) for provider in on_any_chip())
OLDEST = tuple(make_settings(provider, api_level=27, coreml_version=5) for provider in on_any_chip())
FEW = 60


def chain(*operators: str, count: int) -> onnx.ModelProto:
    names = ["x", *(f"v{place}" for place in range(count - 1)), "y"]
    kinds = (operators * count)[:count]
    nodes = [helper.make_node(kind, [a], [b]) for kind, (a, b) in zip(kinds, pairwise(names), strict=True)]
    return model(nodes, [value("x", (1, 4))], ["y"], {})


def relus(count: int) -> onnx.ModelProto:
    return chain("Relu", count=count)


def partitions(count: int) -> onnx.ModelProto:
    """Half of the nodes are refused by some provider."""
    return chain("Relu", "Softplus", count=count)


def convolutions(count: int) -> onnx.ModelProto:
    """Each with weights of its own."""
    weights = {f"w{place}": np.full((2, 2, 1, 1), place, np.float32) for place in range(count)}
    names = ["x", *(f"v{place}" for place in range(count - 1)), "y"]
    nodes = [helper.make_node("Conv", [a, f"w{place}"], [b]) for place, (a, b) in enumerate(pairwise(names))]
    return model(nodes, [value("x", (1, 2, 4, 4))], ["y"], weights)


def sums(count: int) -> onnx.ModelProto:
    """Constants that partitions are handed, one for each node."""
    weights = {f"w{place}": np.full(4, place, np.float32) for place in range(count)}
    names = ["x", *(f"v{place}" for place in range(count - 1)), "y"]
    nodes = [helper.make_node("Add", [a, f"w{place}"], [b]) for place, (a, b) in enumerate(pairwise(names))]
    return model(nodes, [value("x", (1, 4))], ["y"], weights)


def wide(count: int) -> onnx.ModelProto:
    """All nodes but one beside each other."""
    names = [f"v{place}" for place in range(count - 1)]
    nodes = [helper.make_node("Elu", ["x"], [name], alpha=float(place)) for place, name in enumerate(names)]
    return model([*nodes, helper.make_node("Sum", names, ["y"])], [value("x", (1, 4))], ["y"], {})


def shapes(count: int) -> onnx.ModelProto:
    """Rules read the numbers of each constant."""
    weights = {f"w{place}": np.array([1, 4] if place % 2 else [4, 1], np.int64) for place in range(count)}
    names = ["x", *(f"v{place}" for place in range(count - 1)), "y"]
    nodes = [helper.make_node("Reshape", [a, f"w{place}"], [b]) for place, (a, b) in enumerate(pairwise(names))]
    return model(nodes, [value("x", (1, 4))], ["y"], weights)


def judged(made: onnx.ModelProto, folder: Path) -> ModelFit:
    onnx.save(made, folder / "m.onnx")
    return fit(SourceModel(path=str(folder / "m.onnx")), SETTINGS, OLDEST, {})


@pytest.fixture
def no_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model has too many nodes, and no session can be made."""

    def refuse(*_: object) -> None:
        raise AssertionError("a session was made")

    monkeypatch.setattr(subject, "MOST_NODES", 1)
    monkeypatch.setattr(ort_session, "make_session", refuse)


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, Python's own among them."""
    count = 0

    def called(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.usefixtures("no_sessions")
@pytest.mark.parametrize("made", [relus, partitions, convolutions, sums, wide, shapes])
def test_work_grows_in_proportion_to_the_nodes(made: Callable[[int], onnx.ModelProto], tmp_path: Path) -> None:
    judged(made(FEW), tmp_path)  # what is computed once for all models
    first, second, third = (calls_of(partial(judged, made(count), tmp_path)) for count in (FEW, 2 * FEW, 4 * FEW))
    assert third - second < 2.2 * (second - first)


@pytest.mark.usefixtures("no_sessions")
def test_without_a_session_the_answer_says_what_is_not_known(tmp_path: Path) -> None:
    answer = judged(relus(FEW), tmp_path)
    assert answer.optimize is Optimize.NONE
    (cpu,) = (row.fit for row in answer.rows if row.ep == "cpu")
    assert (cpu.verdict, cpu.supported, cpu.nodes) == ("unknown", 0, FEW)
    assert "ort-mobile convert" in cpu.reason
    assert any(note.startswith(f"not judged: what level basic makes of {FEW} nodes") for note in answer.notes)
    assert {row.fit.supported for row in answer.rows if row.ep in ("nnapi", "coreml-mlprogram")} == {FEW}


@pytest.mark.usefixtures("no_sessions")
def test_sizes_are_those_that_inference_accepts(tmp_path: Path) -> None:
    made = relus(FEW)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    answer = judged(made, tmp_path)
    assert answer.sizes == {"batch": 1}
    assert {row.ep: row.fixed.verdict for row in answer.rows if row.fixed}["cpu"] == "unknown"


@pytest.mark.usefixtures("no_sessions")
def test_what_loading_finds_is_an_error_as_ever(tmp_path: Path) -> None:
    broken = relus(FEW)
    broken.graph.node[-1].op_type = "Unheard"
    with pytest.raises(ModelError, match="Unheard"):
        judged(broken, tmp_path)


@pytest.mark.long
def test_the_command_says_what_is_not_judged(tmp_path: Path) -> None:
    onnx.save(relus(subject.MOST_NODES + 1), tmp_path / "m.onnx")
    lines = ort_mobile("check", tmp_path / "m.onnx").out
    assert "not judged: ONNX Runtime makes no session of more than 20,000 nodes here" in lines
    assert "not judged: what level basic makes of 20,001 nodes" in lines


def test_fewer_nodes_are_judged_with_a_session(tmp_path: Path) -> None:
    answer = judged(relus(3), tmp_path)
    assert answer.optimize is Optimize.BASIC
    assert {row.fit.verdict for row in answer.rows if row.ep == "cpu"} == {"yes"}
    assert not any("not judged" in note for note in answer.notes)


def test_bodies_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_NODES", 2)
    branches = {
        name: helper.make_graph(
            [helper.make_node("Relu", ["x"], [f"{name}y"])], name, [],
            [helper.make_tensor_value_info(f"{name}y", TensorProto.FLOAT, (1, 4))],
        )
        for name in ("then_branch", "else_branch")
    }  # fmt: skip
    made = model(
        [helper.make_node("If", ["c"], ["y"], **branches)],
        [helper.make_tensor_value_info("c", TensorProto.BOOL, ()), value("x", (1, 4))], ["y"], {},
    )  # fmt: skip
    assert judged(made, tmp_path).optimize is Optimize.NONE


@pytest.mark.usefixtures("no_sessions")
def test_cycles_are_looked_for_again_afterwards(tmp_path: Path) -> None:
    judged(relus(3), tmp_path)
    assert gc.isenabled()
    with pytest.raises(ModelError):
        fit(SourceModel(path=str(tmp_path / "none.onnx")), SETTINGS, OLDEST, {})
    assert gc.isenabled()
