"""Float arithmetic that computes sizes and positions: it stays in 32 bits, whatever the rest of a model is in.

Half precision has every whole number up to 2,048 only: a width of 2,051 pixels becomes 2,052, and what is reshaped or
resized by it fails or has another size; positions of a sequence fall together.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pipeline.model import edit as onnx_edit
from pipeline.model import reads as model_reads

if TYPE_CHECKING:
    import onnx

SIZES = frozenset({"Shape", "Size", "Range"})
"""Operators whose results are sizes and positions, and no data of the model."""
EXACT_SLOTS = {"Resize": (1, 2), "Upsample": (1,), "Range": (0, 1, 2)}
"""Inputs of floats that sizes follow from."""
WHOLE = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""Whole numbers among ONNX's element types: what is cast to them is counted, or an index."""
ARITHMETIC = frozenset({
    "Abs", "Add", "Cast", "Ceil", "Clip", "Concat", "CumSum", "Div", "Exp", "Expand", "Floor", "Gather", "Identity",
    "Log", "Max", "Min", "Mod", "Mul", "Neg", "Pow", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "Round", "Sign", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators that a size is computed by; behind any other a number is what the model computed."""
WEIGHTS_FROM = 8192
"""A constant of so many elements is a model's weight, and what it is multiplied with no size."""


def size_arithmetic(model: "onnx.ModelProto") -> list[str]:
    """The names of nodes that compute sizes and positions, Constant nodes that only they read among them.

    Forward from sizes, as long as nothing but them and small constants is read; and backward from what is cast to whole
    numbers, or is a size or scale itself, up to what is no arithmetic.
    """
    reads = model_reads.Reads(model)
    nodes = [node for node in onnx_edit.all_nodes(model.graph) if node.name]
    large = {name for name, tensor in reads.constants.items() if _elements(tensor.dims) >= WEIGHTS_FROM}
    kept = {node.name for node in _from_sizes(nodes, reads, large)}
    kept |= {node.name for node in _to_sizes(nodes, large)}
    for node in nodes:
        readers = reads.readers.get(node.output[0], ()) if node.op_type == "Constant" else ()
        if readers and all(reader.name in kept for reader, _ in readers):
            kept.add(node.name)
    return [node.name for node in nodes if node.name in kept]


def own_constants(model: "onnx.ModelProto", kept: Iterable[str]) -> None:
    """Give nodes copies of the constants of the main graph that others read, too: one tensor has one type."""
    names, count = set(kept), Counter(name for node in onnx_edit.all_nodes(model.graph) for name in node.input)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in (node for node in onnx_edit.all_nodes(model.graph) if node.name in names):
        for slot, name in enumerate(node.input):
            if name in tensors and count[name] > 1 and _elements(tensors[name].dims) < WEIGHTS_FROM:
                copy = model.graph.initializer.add()
                copy.CopyFrom(tensors[name])
                copy.name = node.input[slot] = f"{name}/float/{node.name}/{slot}"


def _elements(dims: Sequence[int]) -> int:
    count = 1
    for size in dims:
        count *= size
    return count


def _from_sizes(nodes: Sequence["onnx.NodeProto"], reads: model_reads.Reads, large: set[str]) -> list["onnx.NodeProto"]:
    """Nodes that read sizes, and beside them nothing but small constants; nodes of a graph are in order."""
    derived, constants, of_sizes = set[str](), reads.constants.keys() - large, []
    for node in nodes:
        inputs = [name for name in node.input if name]
        follows = inputs and all(name in derived or name in constants for name in inputs)
        if node.op_type in SIZES or (follows and any(name in derived for name in inputs)):
            derived.update(node.output)
            of_sizes.append(node)
    return of_sizes


def _to_sizes(nodes: Sequence["onnx.NodeProto"], large: set[str]) -> list["onnx.NodeProto"]:
    """Arithmetic whose results become whole numbers, or are sizes and scales of other nodes."""
    makers = {name: node for node in nodes for name in node.output if name}
    counted = {
        node.name: node for node in nodes if node.op_type == "Cast" and onnx_edit.attribute(node, "to", 0) in WHOLE
    }
    slots = [(node, EXACT_SLOTS.get(node.op_type, ())) for node in nodes]
    names = [node.input[slot] for node, exact in slots for slot in exact if slot < len(node.input)]
    names += [node.input[0] for node in counted.values()]
    arithmetic = dict(counted)
    while names:
        node = makers.get(names.pop())
        if node is None or node.name in arithmetic or node.op_type not in ARITHMETIC or large & set(node.input):
            continue
        arithmetic[node.name] = node
        names += node.input
    return list(arithmetic.values())
