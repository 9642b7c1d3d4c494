"""Pads as Slice and Concat, which move numbers and change none."""

from typing import TYPE_CHECKING

from pipeline.passes.rewrites.facts import GraphFacts, Writer, attribute, operand

if TYPE_CHECKING:
    from onnx import NodeProto

PADS_ARE_INPUTS = 11
SLICE_HAS_INPUTS = 10
MOST_FILL = 1 << 18
"""Entries of a block of constants that takes the place of constant padding."""


def pad_as_concat(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """A Pad of known pads, axis by axis: what goes before, the values, what comes after.

    Modes reflect and edge take slices of the values, constant takes a block of one number. Outputs are bit-identical:
    ONNX pads one axis after the other too.
    """
    import numpy as np

    shape, pads = known.shape(node.input[0]), _pads(node, known)
    mode = attribute(node, "mode", "constant")
    if shape is None or pads is None or known.opset < SLICE_HAS_INPUTS or mode not in ("constant", "reflect", "edge"):
        return False
    fill = _fill(node, known) if mode == "constant" else None
    sizes = list(shape)
    steps = [(axis, *pads[axis]) for axis in sorted(pads) if any(pads[axis])]
    if (mode == "constant" and fill is None) or not steps or not all(_fits(mode, sizes[a], b, e) for a, b, e in steps):
        return False
    value = node.input[0]
    for number, (axis, before, after) in enumerate(steps):
        into = node.output[0] if number == len(steps) - 1 else ""
        if mode == "constant" and int(np.prod(sizes)) // sizes[axis] * max(before, after) > MOST_FILL:
            return False
        parts = [
            *_side(write, value, mode, sizes, axis, before, fill, end=False),
            value,
            *_side(write, value, mode, sizes, axis, after, fill, end=True),
        ]
        value = _concat(write, parts, axis, len(sizes), known, into)
        sizes[axis] += before + after
    return True


def _pads(node: "NodeProto", known: GraphFacts) -> dict[int, tuple[int, int]] | None:
    """(before, after) by axis; None when they are not constant, or the axes are not."""
    rank = len(known.shape(node.input[0]) or ())
    axes = list(range(rank))
    if known.opset < PADS_ARE_INPUTS:
        found = attribute(node, "pads", [])
    else:
        given = known.constant(operand(node, 1))
        if given is None:
            return None
        found = [int(number) for number in given.reshape(-1)]
    if operand(node, 3):
        named = known.constant(operand(node, 3))
        if named is None:
            return None
        axes = [int(axis) % rank for axis in named.reshape(-1)] if rank else []
    count = len(axes)
    return {axis: (found[i], found[count + i]) for i, axis in enumerate(axes)} if len(found) == 2 * count else None


def _fill(node: "NodeProto", known: GraphFacts) -> float | None:
    """The number that constant padding puts in; None when it is not known or the values are no floats."""
    if not known.is_f32(node.input[0]):
        return None
    if known.opset < PADS_ARE_INPUTS:
        return float(attribute(node, "value", 0.0))
    if not operand(node, 2):
        return 0.0
    given = known.constant(operand(node, 2))
    return float(given.reshape(-1)[0]) if given is not None and given.size == 1 else None


def _fits(mode: str, size: int, before: int, after: int) -> bool:
    """Whether the axis has the values that the mode needs, and nothing is cut off."""
    least = {"constant": 1, "edge": 1, "reflect": max(before, after) + 1}[mode]
    return before >= 0 and after >= 0 and size >= least


def _side(
    write: Writer,
    value: str,
    mode: str,
    sizes: list[int],
    axis: int,
    count: int,
    fill: float | None,
    *,
    end: bool,
) -> list[str]:
    """What stands before or after the values on one axis."""
    import numpy as np

    if not count:
        return []
    if mode == "constant":
        block = [*sizes[:axis], count, *sizes[axis + 1 :]]
        return [write.constant(np.full(block, fill, "float32"))]
    size = sizes[axis]
    if mode == "edge":
        first = size - 1 if end else 0
        return [_slice(write, value, axis, first, first + 1, 1)] * count
    if count == 1:
        first = size - 2 if end else 1
        return [_slice(write, value, axis, first, first + 1, 1)]
    if end:
        return [_slice(write, value, axis, size - 2, size - 2 - count, -1)]
    return [_slice(write, value, axis, count, 0, -1)]


def _slice(write: Writer, value: str, axis: int, start: int, stop: int, step: int) -> str:
    """One axis' slice; a stop before the first entry is written so that it does not count from the end."""
    stop = stop if stop >= 0 else -(1 << 31)
    return write.add(
        "Slice", value, write.integers(start), write.integers(stop), write.integers(axis), write.integers(step)
    )


def _concat(write: Writer, parts: list[str], axis: int, rank: int, known: GraphFacts, into: str) -> str:
    """Concat; CoreML's NeuralNetwork joins on axis 1 of rank 4 only, so there the axes are swapped before and after."""
    if not known.neural_network or rank != 4 or axis == 1:
        return write.add("Concat", *parts, into=into, axis=axis)
    order = list(range(rank))
    order[1], order[axis] = order[axis], order[1]
    turned = {part: write.add("Transpose", part, perm=order) for part in dict.fromkeys(parts)}
    joined = write.add("Concat", *(turned[part] for part in parts), axis=1)
    return write.add("Transpose", joined, into=into, perm=order)
