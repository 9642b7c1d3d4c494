"""How wide the values of a model's outputs can spread, where the operators that make them bound it.

The absolute floor of the numeric check is a share of this: an error of 2e-7 in a probability is nothing, however small
the probability is on some input.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

SPANS = {
    "Sigmoid": 1.0, "HardSigmoid": 1.0, "Softmax": 1.0, "Hardmax": 1.0,
    "Tanh": 2.0, "Softsign": 2.0, "Erf": 2.0, "Sin": 2.0, "Cos": 2.0,
}  # fmt: skip
"""Operators of ONNX whose definition bounds their output, with upper minus lower bound."""

KEEPING = frozenset({
    "Identity", "Dropout", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split",
    "Gather", "GatherElements", "GatherND", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "MaxPool", "TopK",
    "GlobalMaxPool", "AveragePool", "GlobalAveragePool", "ReduceMax", "ReduceMin", "ReduceMean", "Resize", "Upsample",
})  # fmt: skip
"""Operators whose output is no wider than their first input."""

QUANTIZED_STEPS = 255
MOST_HOPS = 1000


def output_spans(graph: "GraphProto") -> dict[str, float]:
    """Upper minus lower bound by output name, for the outputs of a graph that its operators bound."""
    known = _Known(graph)
    found = {value.name: known.span(value.name) for value in graph.output}
    return {name: span for name, span in found.items() if span}


class _Known:
    """Who makes each value of a graph, and its small constants."""

    def __init__(self, graph: "GraphProto") -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}

    def span(self, name: str, hops: int = MOST_HOPS) -> float | None:
        """None where nothing bounds the value, or it is too far away to find out."""
        node = self.makers.get(name)
        if node is None or node.domain not in ("", "ai.onnx") or not hops:
            return None
        if node.op_type in KEEPING:
            return self.span(node.input[0], hops - 1)
        if node.op_type == "Concat":
            return _widest(self.span(part, hops // len(node.input)) for part in node.input)
        return SPANS.get(node.op_type) or (RULES[node.op_type](node, self) if node.op_type in RULES else None)

    def number(self, node: "NodeProto", slot: int) -> float | None:
        """A constant scalar input; None for any other."""
        name = node.input[slot] if slot < len(node.input) else ""
        tensor = self.tensors.get(name)
        if tensor is None and (maker := self.makers.get(name)) is not None and maker.op_type == "Constant":
            tensor = next((a.t for a in maker.attribute if a.name == "value"), None)
        return _scalar(tensor)


def _scalar(tensor: Any) -> float | None:
    import math

    import onnx

    if tensor is None or math.prod(tensor.dims) != 1 or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        value = float(onnx.numpy_helper.to_array(tensor).reshape(-1)[0])
    except (ValueError, TypeError):
        return None
    return value if math.isfinite(value) else None


def _widest(spans: Iterator[float | None]) -> float | None:
    found = list(spans)
    return max((span for span in found if span), default=None) if all(found) else None


def _clip(node: "NodeProto", known: _Known) -> float | None:
    """Between its bounds: attributes before opset 11, inputs from then on."""
    given = {a.name: a.f for a in node.attribute}
    low, high = given.get("min", known.number(node, 1)), given.get("max", known.number(node, 2))
    return high - low if low is not None and high is not None and high > low else None


def _dequantize(node: "NodeProto", known: _Known) -> float | None:
    """So many steps of one scale; what is per channel, or of more than 8 bits, counts as if it were not bounded."""
    scale = known.number(node, 1)
    return abs(scale) * QUANTIZED_STEPS if scale else None


RULES: dict[str, Callable[["NodeProto", _Known], float | None]] = {"Clip": _clip, "DequantizeLinear": _dequantize}
