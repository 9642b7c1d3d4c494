"""Which outputs a model's operators bound, and how far."""

from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.check.reference import output_spans


def span_of(*nodes: onnx.NodeProto, constants: dict[str, float] | None = None) -> float | None:
    value = helper.make_tensor_value_info
    held = [helper.make_tensor(name, TensorProto.FLOAT, [], [number]) for name, number in (constants or {}).items()]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("y", TensorProto.FLOAT, None)],
        initializer=held,
    )
    return output_spans(graph).get("y")


def node(kind: str, inputs: str = "x", output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


@pytest.mark.parametrize(
    ("nodes", "span"),
    [
        ([node("Sigmoid")], 1.0),
        ([node("Softmax")], 1.0),
        ([node("Tanh")], 2.0),
        ([node("Relu")], None),
        ([node("Sigmoid", output="a"), node("Transpose", "a")], 1.0),
        ([node("Sigmoid", output="a"), node("Tanh", output="b"), node("Concat", "a b", axis=1)], 2.0),
        ([node("Sigmoid", output="a"), node("Relu", output="b"), node("Concat", "a b", axis=1)], None),
        ([node("Clip", min=0.0, max=6.0)], 6.0),
        ([node("Clip", min=0.0)], None),
        ([node("Identity")], None),
    ],
)
def test_bounds_of_operators(nodes: list[onnx.NodeProto], span: float | None) -> None:
    assert span_of(*nodes) == span


def test_bounds_from_constants() -> None:
    assert span_of(node("Clip", "x low high"), constants={"low": -1.0, "high": 1.0}) == 2.0
    assert span_of(node("Clip", "x x high"), constants={"high": 1.0}) is None
    assert span_of(node("DequantizeLinear", "x scale"), constants={"scale": 0.5}) == 127.5
    constant = helper.make_node("Constant", [], ["high"], value=helper.make_tensor("v", TensorProto.FLOAT, [], [6.0]))
    assert span_of(constant, node("Clip", "x low high"), constants={"low": 0.0}) == 6.0


def test_a_graph_that_goes_in_circles_has_no_bounds() -> None:
    assert span_of(node("Identity", "b", "a"), node("Identity", "a", "b"), node("Concat", "a b", axis=1)) is None
