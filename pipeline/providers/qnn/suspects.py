"""Nodes that a Snapdragon's NPU takes and computes otherwise, without a word (`SUSPECTS`), and what helps.

Each row was found in the simulator (docs/npu.md); a rule says where to compare values, not that they are wrong.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Final

from pipeline.core import groups as counting
from pipeline.partition import graph as partition_graph

BOUNDS_ARE_INPUTS: Final = 11
"""Clip has its bounds as inputs since this opset, and Resize its coordinates."""

FLOATS, INTEGERS = ("f32", "f16"), ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")

IN_A_BRANCH = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "BatchNormalization")
"""Operators that take other axes in a branch, where layouts are not changed."""

OF_BOTH_SIGNS = ("Sub", "Neg", "Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization", "Sin", "Cos", "Tanh")
"""Operators whose results are below 0 as well."""


def _resize(graph: partition_graph.Graph, node: partition_graph.Node) -> bool:
    if node.since_version < BOUNDS_ARE_INPUTS:
        return True
    if node.attributes.get("mode", "nearest") != "nearest":
        return False
    at = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    rounding = node.attributes.get("nearest_mode", "round_prefer_floor")
    if rounding in ("floor", "ceil"):
        return at in ("half_pixel", "pytorch_half_pixel", "align_corners")
    before, after = (graph.value(name).shape or () for name in (node.inputs[0], node.outputs[0]))
    ties = (
        (2 * index + 1) * old % (2 * new) == 0
        for old, new in zip(before, after, strict=False)
        if old and new and old != new
        for index in range(new)
    )
    return rounding == "round_prefer_floor" and at in ("half_pixel", "pytorch_half_pixel") and any(ties)


def _counted(_: partition_graph.Graph, node: partition_graph.Node) -> bool:
    pads = any(node.attributes.get("pads") or ()) and bool(node.attributes.get("count_include_pad"))
    same = str(node.attributes.get("auto_pad", "NOTSET")).startswith("SAME")
    return (pads or same) and any(side % 2 == 0 for side in node.attributes.get("kernel_shape") or ())


def _wide(graph: partition_graph.Graph, node: partition_graph.Node) -> bool:
    kernel = (graph.value(node.inputs[1]).shape or ())[2:]
    dilations = node.attributes.get("dilations") or [1] * len(kernel)
    reach = [((side or 1) - 1) * step + 1 for side, step in zip(kernel, dilations, strict=False)]
    return any(pad >= side for pad, side in zip(node.attributes.get("pads") or (), reach * 2, strict=False))


def _cut_off(graph: partition_graph.Graph, node: partition_graph.Node) -> bool:
    maker = _maker(graph, node.inputs[0])
    there_and_back = maker is not None and maker.op_type == "Cast" and _is(graph, maker.inputs[0], FLOATS)
    return there_and_back and _is(graph, node.inputs[0], INTEGERS) and _is(graph, node.outputs[0], FLOATS)


def _is(graph: partition_graph.Graph, name: str, types: Container[str]) -> bool:
    return (graph.value(name).dtype or "") in types


def _norm(graph: partition_graph.Graph, node: partition_graph.Node) -> bool:
    return _is(graph, node.inputs[0], FLOATS)


def _below_0(graph: partition_graph.Graph, node: partition_graph.Node) -> bool:
    """Whether nothing keeps the input at 0 or above; an even power, or one of a whole number, is right of any."""
    power = graph.constant(node.inputs[1]) if node.op_type == "Pow" else None
    if power is not None and all(float(number).is_integer() for number in power.numbers()):
        return False
    maker = _maker(graph, node.inputs[0])
    return maker.op_type in OF_BOTH_SIGNS if maker else node.inputs[0] in graph.inputs


def _maker(graph: partition_graph.Graph, name: str) -> partition_graph.Node | None:
    """The node that computes a value, before it was quantized."""
    index, _ = graph.producers.get(name, (None, 0))
    node = None if index is None else graph.nodes[index]
    return _maker(graph, node.inputs[0]) if node and node.op_type in ("QuantizeLinear", "DequantizeLinear") else node


NOT_NAN = "with Max or Clip: of less the NPU makes numbers, not NaN"
NUMBERS = "numbers instead of NaN of what is below 0"
SCALED = "scale the values before they are squared"
BEYOND = "squares are summed in half precision, which ends at 65504"

SUSPECTS: Mapping[str, tuple[str, Callable[[partition_graph.Graph, partition_graph.Node], bool]]] = {
    "Clip": (
        "bounds of opsets below 11 are ignored",
        lambda _, node: (
            node.since_version < BOUNDS_ARE_INPUTS
            and any(abs(node.attributes.get(name, float("inf"))) < 3e38 for name in ("min", "max"))
        ),
    ),
    "Conv": ("padding as large as the kernel gives garbage", _wide),
    "AveragePool": ("padding of an even kernel gives zeros at the borders", _counted),
    "Resize": ("other pixels are taken", _resize),
    "Cast": ("Casts to integers and back cut nothing off", _cut_off),
    "Gather": (
        "indices of two dimensions take other elements of the last axis",
        lambda graph, node: (
            len(graph.value(node.inputs[1]).shape or ()) > 1
            and node.attributes.get("axis", 0) in (len(graph.value(node.inputs[0]).shape or ()) - 1, -1)
        ),
    ),
    "If": (
        "Conv, pools and BatchNormalization in a branch take other axes",
        lambda _, node: any(node.op_type in IN_A_BRANCH for body in node.bodies for node in body.nodes.values()),
    ),
    "ReduceL2": (BEYOND, _norm),
    "ReduceSumSquare": (BEYOND, _norm),
    "Sqrt": (NUMBERS, _below_0),
    "Log": (NUMBERS, _below_0),
    "Pow": (NUMBERS, _below_0),
}
"""By operator, what an NPU computes otherwise, and the rule by which such a node is known (docs/npu.md)."""

COMPUTED_RIGHT = {
    "Clip": "convert to opset 11 or later: the bounds of older ones are ignored (`transform --do opset:version=13`)",
    "Conv": "put padding as large as the kernel in a Pad of its own (`transform --do wide-padding`); between 16-bit "
    "values give each channel of the weight a scale of 2**-23 of the output's over the input's or more, as qnn16 does",
    "AveragePool": "count padding explicitly (`transform --do explicit-pads --do counted-pads`)",
    "Resize": "below opset 11 convert (`transform --do opset:version=13`); else name its mode by an equal one, or "
    "write it as Gather (`transform --do gathered-resize`)",
    "Cast": "cut off with Floor: Casts to integers and back are dropped (`transform --do floored-casts`)",
    "Gather": "give its indices in one row (`transform --do flat-indices`)",
    "If": "compute both branches and choose with Where: in a branch Conv, pools and BatchNormalization take other axes",
    "Reciprocal": "write it as a division (`transform --do one-input`)",
    "Max": "give a zero beside 16-bit values a scale like theirs, as qnn16 does",
    "ReduceL2": f"{SCALED} (`transform --do scaled-norm`)",
    "ReduceSumSquare": SCALED,
    "Sqrt": f"keep its input at 0 or above, {NOT_NAN}",
    "Log": f"keep its input above 0, {NOT_NAN}",
    "Pow": f"keep its base at 0 or above, {NOT_NAN}",
}
"""By operator, what helps where the NPU was seen to compute something else."""


def suspicions(graph: partition_graph.Graph, claimed: Container[int]) -> Iterator[str]:
    """A line for each operator with nodes that the NPU takes and may compute otherwise."""
    nodes = [node for node in graph.nodes.values() if node.index in claimed and not node.domain]
    for op_type, (cause, holds) in SUSPECTS.items():
        matching = [node for node in nodes if node.op_type == op_type and holds(graph, node)]
        if matching:
            first, *more = matching
            others = f" and {counting.counted(len(more), 'other')}" if more else ""
            yield (
                f"the NPU takes {op_type} '{first.first_output}'{others}, and may compute something else without a "
                f"word: {cause}. Compare the values with `partition --ep qnn --simulate`"
            )
