"""Where layout passes would push Transposes if they saw the whole graph (ep_rules H.2.3).

From level layout on each quantized convolution of the CPU gets Transposes around it, which are pushed wherever a value
leads to another Transpose; that search walks through claimed nodes too, though it may not change them.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pipeline.convert.splice.links import key
from pipeline.partition.graph import Graph

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

SOURCES = frozenset({"Transpose", "QLinearConv"})
FIRST_INPUT = frozenset({
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt",
    "Tan", "Tanh", "ThresholdedRelu", "Clip", "Cast", "Dropout", "Softmax", "LogSoftmax", "Hardmax", "ReduceL1",
    "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "ArgMin", "ArgMax", "Pad", "Split", "Slice", "Squeeze", "Unsqueeze", "Tile", "MaxPool", "Resize",
    "QuantizeLinear", "DequantizeLinear", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearReduceMean",
    "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearSoftmax",
})  # fmt: skip
EVERY_INPUT = frozenset({
    "Add", "And", "BitShift", "Concat", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max",
    "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
})  # fmt: skip
FIRST_AND_FOURTH = frozenset({"QLinearAdd", "QLinearMul"})
"""Operators that Transposes can be pushed through, by the inputs that carry what is transposed."""


def lies_before_transpose(graph: "GraphProto") -> set[str]:
    """Values that lead to a Transpose, or will when the CPU's quantized convolutions have theirs."""
    found: set[str] = set()
    for node in reversed(graph.node):  # nodes are in topological order
        if node.op_type in SOURCES:
            found.add(node.input[0])
        if not found.isdisjoint(node.output):
            found.update(transposable(node))
    return found


def transposable(node: "NodeProto") -> list[str]:
    """The inputs of a node that a Transpose behind it could be pushed to."""
    if node.op_type in FIRST_INPUT:
        return list(node.input[:1])
    if node.op_type in EVERY_INPUT:
        return [name for name in node.input if name]
    return [node.input[slot] for slot in (0, 3)] if node.op_type in FIRST_AND_FOURTH else []


def pushed_to(graph: "GraphProto", view: Graph, kept: Collection[str]) -> frozenset[str]:
    """The f32 values that claimed nodes read and that layout passes would push Transposes to."""
    leads = lies_before_transpose(graph)
    claimed = [node for node in graph.node if key(node) in kept]
    return frozenset(name for node in claimed for name in _reached(node, leads) if view.value(name).dtype == "f32")


def _reached(node: "NodeProto", leads: Collection[str]) -> Iterable[str]:
    if node.op_type == "Transpose":
        return list(node.input[:1])
    return transposable(node) if any(name in leads for name in node.output) else ()
