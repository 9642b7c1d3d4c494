"""Types and shapes as ONNX Runtime infers them: with constants of one form, of which it is given one."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipeline.core import ort_session
from pipeline.core.errors import ModelError
from pipeline.partition.types import infer
from tests.onnx_samples import make, parsed_nodes, value, weight

X = value("x", [1, 4, 8, 8])


def shape_of(model: onnx.ModelProto, name: str) -> tuple[int | None, ...] | None:
    return infer(model)[name].shape


def filters(*names: str) -> list[onnx.TensorProto]:
    return [weight(name, 4, 4, 3, 3) for name in names]


def test_many_constants_of_one_form_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []
    load_session = ort_session.load_session

    def load(data: bytes, options: object) -> object:
        given.append(data)
        return load_session(data, options)

    monkeypatch.setattr("pipeline.core.ort_session.load_session", load)
    names = [f"w{number}" for number in range(3)]
    nodes = parsed_nodes("a = Conv (x, w0)  b = Conv (a, w1)  y = Conv (b, w2)")
    model = make(nodes, [X], [value("y", None)], filters(*names))
    before = model.SerializeToString()
    assert [shape_of(model, name) for name in "aby"] == [(1, 4, 6, 6), (1, 4, 4, 4), (1, 4, 2, 2)]
    assert model.SerializeToString() == before
    sent = onnx.ModelProto.FromString(given[0]).graph
    assert (len(sent.initializer), len(sent.input)) == (1, 1)


def test_those_that_shapes_are_read_from_keep_their_numbers() -> None:
    nodes = parsed_nodes("a = Resize (x, , s)  y = Resize (x, , t)  c = Tile (x, n)  d = Tile (x, m)")
    constants: dict[str, np.ndarray[Any, Any]] = {
        "s": np.array([1, 1, 2, 2], np.float32), "t": np.array([1, 1, 3, 3], np.float32),
        "n": np.array([1, 1, 2, 1]), "m": np.array([1, 1, 1, 2]),
    }  # fmt: skip
    weights = [numpy_helper.from_array(numbers, name) for name, numbers in constants.items()]
    model = make(nodes, [X], [value("y", None), value("c", None), value("d", None)], weights)
    shapes = {name: shape_of(model, name) for name in "aycd"}
    assert shapes == {"a": (1, 4, 16, 16), "y": (1, 4, 24, 24), "c": (1, 4, 16, 8), "d": (1, 4, 8, 16)}


def test_a_body_reads_its_own_constant() -> None:
    body = helper.make_graph(parsed_nodes("z = Conv (x, w1)"), "body", [], [value("z", None)])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    nodes = [*parsed_nodes("a = Conv (x, w0)"), choice]
    inputs = [X, value("c", [1], onnx.TensorProto.BOOL)]
    model = make(nodes, inputs, [value("y", None), value("a", None)], filters("w0", "w1"))
    assert shape_of(model, "y") == (1, 4, 6, 6)


def test_what_callers_may_replace_stands_for_nothing() -> None:
    nodes = parsed_nodes("a = Conv (x, w0)  y = Conv (x, w1)")
    optional = value("w0", ["features", 4, 3, 3])
    model = make(nodes, [X, optional], [value("a", None), value("y", None)], filters("w0", "w1"))
    assert (shape_of(model, "a"), shape_of(model, "y")) == ((1, None, 6, 6), (1, 4, 6, 6))


def test_two_constants_of_one_name_contradict_each_other() -> None:
    nodes = parsed_nodes("a = Conv (x, w0)  y = Conv (x, w1)")
    model = make(nodes, [X], [value("a", None), value("y", None)], [*filters("w0", "w1"), weight("w1", 4, 4, 5, 5)])
    with pytest.raises(ModelError, match="contradict"):
        infer(model)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("a = Conv (x, w0)  y = Gather (a, w1)", "w1"),
        ("w1 = Conv (x, w0)  y = Conv (x, w1)", "w1"),
    ],
    ids=["of another type", "made twice"],
)
def test_a_complaint_names_the_model_s_constant(nodes: str, said: str) -> None:
    model = make(parsed_nodes(nodes), [X], [value("y", None)], filters("w0", "w1"))
    with pytest.raises(ModelError) as caught:
        infer(model)
    assert said in caught.value.why
