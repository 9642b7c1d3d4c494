"""Einsum of two operands as one matrix product."""

from typing import TYPE_CHECKING

from pipeline.passes.rewrites.facts import GraphFacts, Writer, attribute

if TYPE_CHECKING:
    from onnx import NodeProto

LEAST_OPSET = 12


def einsum_as_matmul(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Axes of both operands and the result are batches, axes of both and not of the result are summed over.

    Each operand is turned and reshaped to [batch, rows, columns], the product back to the result's axes. Equations with
    an ellipsis, a repeated index, or an index that one operand alone sums over are left alone.
    """
    parsed = _parsed(str(attribute(node, "equation", "")))
    if parsed is None or len(node.input) != 2 or not known.is_f32(node.input[0]):
        return False
    left, right, result = parsed
    sizes = _sizes(node, known, (left, right))
    batch = [i for i in result if i in left and i in right]
    summed = [i for i in left if i in right and i not in result]
    rows = [i for i in result if i in left and i not in right]
    columns = [i for i in result if i in right and i not in left]
    whole = (
        {*batch, *rows, *summed} == set(left)
        and {*batch, *summed, *columns} == set(right)
        and {*batch, *rows, *columns} == set(result)
    )
    if not sizes or not summed or not whole:
        return False
    first = _laid_out(write, node.input[0], left, (batch, rows, summed), sizes)
    second = _laid_out(write, node.input[1], right, (batch, summed, columns), sizes)
    product = write.add("MatMul", first, second)
    made = [*batch, *rows, *columns]
    shape = write.integers(*(sizes[index] for index in made))
    order = [made.index(index) for index in result]
    if order == sorted(order):
        write.add("Reshape", product, shape, into=node.output[0])
    else:
        write.add("Transpose", write.add("Reshape", product, shape), into=node.output[0], perm=order)
    return True


def _sizes(node: "NodeProto", known: GraphFacts, operands: tuple[str, str]) -> dict[str, int]:
    """The size behind each index; nothing when one is open, zero, or two differ."""
    found: dict[str, int] = {}
    for name, indices in zip(node.input, operands, strict=True):
        shape = known.shape(name)
        if shape is None or len(shape) != len(indices) or 0 in shape:
            return {}
        if any(found.setdefault(index, size) != size for index, size in zip(indices, shape, strict=True)):
            return {}
    return found


def _parsed(equation: str) -> tuple[str, str, str] | None:
    """The indices of two operands and of the result; None for other forms."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    parts = operands.split(",")
    plain = all(part.isalpha() and len(set(part)) == len(part) for part in (*parts, result))
    return (parts[0], parts[1], result) if arrow and len(parts) == 2 and plain else None


def _laid_out(write: Writer, value: str, indices: str, groups: tuple[list[str], ...], sizes: dict[str, int]) -> str:
    """The operand with its axes in groups, each of which is one axis; without batches a matrix."""
    import numpy as np

    order = [indices.index(index) for group in groups for index in group]
    turned = value if order == sorted(order) else write.add("Transpose", value, perm=order)
    shape = [int(np.prod([sizes[index] for index in group])) for group in groups]
    flat = shape if groups[0] else shape[1:]
    if flat == [sizes[indices[axis]] for axis in order]:
        return turned
    return write.add("Reshape", turned, write.integers(*flat))
