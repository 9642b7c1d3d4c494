"""Operators that only move numbers, as others that only move numbers."""

from typing import TYPE_CHECKING

from pipeline.passes.rewrites.facts import GraphFacts, Writer, attribute

if TYPE_CHECKING:
    from onnx import NodeProto

RESHAPE_HAS_INPUT = 5
NN_RANK = 4
INT32 = 6
"""TensorProto.INT32."""


def as_reshape(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Flatten, Squeeze, Unsqueeze, or a Reshape to a computed shape: a Reshape to the shape that comes out."""
    shape = known.shape(node.output[0])
    if shape is None or not shape or 0 in shape or known.opset < RESHAPE_HAS_INPUT:
        return False
    if node.op_type == "Reshape" and known.graph.constant(node.input[1]) is not None:
        return False
    write.add("Reshape", node.input[0], write.integers(*shape), into=node.output[0])
    return True


def concat_on_channels(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Concat on axis 1 of rank 4, the one form that CoreML's NeuralNetwork takes, with the axes moved around it."""
    shapes = [known.shape(name) for name in node.input]
    output = known.shape(node.output[0])
    rank = len(output or ())
    axis = int(attribute(node, "axis", 1)) % rank if rank else 0
    if not known.neural_network or output is None or rank > NN_RANK or (rank, axis) == (NN_RANK, 1) or None in shapes:
        return False
    order = list(range(NN_RANK))
    place = axis + NN_RANK - rank
    order[1], order[place] = order[place], order[1]
    parts = [_turned(write, name, shape or (), order) for name, shape in zip(node.input, shapes, strict=True)]
    joined = write.add("Concat", *parts, axis=1)
    last = rank == NN_RANK
    turned = (
        joined
        if order[1] == 1
        else write.add("Transpose", joined, perm=order, **({"to": node.output[0]} if last else {}))
    )
    if not last:
        write.add("Reshape", turned, write.integers(*output), into=node.output[0])
    return True


def _turned(write: Writer, name: str, shape: tuple[int, ...], order: list[int]) -> str:
    """A value with leading axes of size 1 up to rank 4, its axes in the given order."""
    wide = [1] * (NN_RANK - len(shape)) + list(shape)
    value = name if len(shape) == NN_RANK else write.add("Reshape", name, write.integers(*wide))
    return value if order[1] == 1 else write.add("Transpose", value, perm=order)


def gather_i32(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Gather with 32-bit indices: valid indices are smaller than the axis, which is smaller than 2**31."""
    data = known.shape(node.input[0])
    if known.graph.value(node.input[1]).dtype != "i64" or known.graph.constant(node.input[1]) or not data:
        return False
    if max(data) >= 1 << 31:
        return False
    indices = write.add("Cast", node.input[1], to=INT32)
    write.add("Gather", node.input[0], indices, into=node.output[0], axis=attribute(node, "axis", 0))
    return True
