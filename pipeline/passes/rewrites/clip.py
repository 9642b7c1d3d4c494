"""Clip with bounds that a provider takes."""

from typing import TYPE_CHECKING, Any

from pipeline.passes.rewrites.facts import GraphFacts, Writer, attribute, operand

if TYPE_CHECKING:
    from onnx import NodeProto

BOUNDS_ARE_INPUTS = 11
BROADCASTS = 8
"""Opset from which Max and Min broadcast."""

DEEPEST = 8
"""Steps back from a bound to the constant that it is made of."""

NO_ARITHMETIC = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
"""Operators that a constant bound may have passed through: they keep one number what it is, or change its type."""


def constant_bounds(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Bounds that are made of constants by Cast, Identity and the like become constants themselves."""
    bounds = [operand(node, slot) for slot in (1, 2)]
    if known.opset < BOUNDS_ARE_INPUTS or not any(name and known.constant(name) is None for name in bounds):
        return False
    found = [_computed(name, known) if name else None for name in bounds]
    if any(name and number is None for name, number in zip(bounds, found, strict=True)):
        return False
    names = [write.constant(number, number.dtype.name) if number is not None else "" for number in found]
    write.add("Clip", node.input[0], *names, into=node.output[0])
    return True


def _computed(name: str, known: GraphFacts, depth: int = 0) -> Any:
    """The one number behind a value, through operators that only move or convert it; None when there is none."""
    import numpy as np
    from onnx import helper

    found = known.constant(name)
    if found is not None:
        return found.reshape(()) if found.size == 1 else None
    place = known.graph.producers.get(name)
    maker = known.graph.nodes[place[0]] if place else None
    if maker is None or maker.op_type not in NO_ARITHMETIC or depth == DEEPEST or maker.domain:
        return None
    number = _computed(maker.inputs[0], known, depth + 1)
    if number is None or maker.op_type != "Cast":
        return number
    return number.astype(np.dtype(helper.tensor_dtype_to_np_dtype(maker.attributes["to"])))


def clip_as_max_min(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Clip of any bounds as Relu, or as Max and Min: the same numbers, NNAPI has Clip for two pairs of bounds only."""
    bounds = _bounds(node, known)
    if bounds is None or known.opset < BROADCASTS or not known.is_f32(node.input[0]):
        return False
    low, high = bounds
    steps: list[tuple[str, float | None]] = [("Relu", None)] if low == 0 else [("Max", low)] if low is not None else []
    steps += [("Min", high)] if high is not None else []
    value = node.input[0]
    for position, (op_type, bound) in enumerate(steps):
        into = node.output[0] if position == len(steps) - 1 else ""
        value = write.add(op_type, value, *([] if bound is None else [write.constant(bound)]), into=into)
    return bool(steps)


def _bounds(node: "NodeProto", known: GraphFacts) -> tuple[float | None, float | None] | None:
    """Lower and upper bound, None where there is none; None at all when one is not known."""
    if known.opset < BOUNDS_ARE_INPUTS:
        return attribute(node, "min"), attribute(node, "max")
    found: list[float | None] = []
    for slot in (1, 2):
        name = operand(node, slot)
        number = _computed(name, known) if name else None
        if name and number is None:
            return None
        found.append(None if number is None else float(number))
    return found[0], found[1]
