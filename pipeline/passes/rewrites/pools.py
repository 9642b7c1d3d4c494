"""Convolutions and pools with explicit pads, and without what providers do not have."""

from typing import TYPE_CHECKING, Any

from pipeline.passes.rewrites.facts import GraphFacts, Writer, attribute

if TYPE_CHECKING:
    from onnx import NodeProto

SAME = ("SAME_UPPER", "SAME_LOWER")


def explicit_pads(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """auto_pad SAME as pads, and ceil_mode as more pads at the end.

    Pads of a MaxPool never win and those of an AveragePool without count_include_pad do not count, so windows that
    ceil_mode lets reach over the end read the same numbers.
    """
    x, y, kernel = known.shape(node.input[0]), known.shape(node.output[0]), _kernel(node, known)
    auto_pad, ceil = attribute(node, "auto_pad", "NOTSET"), int(attribute(node, "ceil_mode", 0))
    if x is None or y is None or kernel is None or len(kernel) != len(x) - 2 or not (auto_pad in SAME or ceil):
        return False
    counted = bool(attribute(node, "count_include_pad", 0))
    axes = len(kernel)
    strides = attribute(node, "strides") or [1] * axes
    dilations = attribute(node, "dilations") or [1] * axes
    pads = list(attribute(node, "pads") or [0] * (2 * axes))
    for axis in range(axes):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        needed = (y[axis + 2] - 1) * strides[axis] + window - x[axis + 2]
        before, after = _split(auto_pad, needed, pads[axis], pads[axes + axis])
        if max(before, after) >= window or (counted and after != pads[axes + axis]):
            return False
        pads[axis], pads[axes + axis] = before, after
    kept = {a.name: attribute(node, a.name) for a in node.attribute}
    changed: dict[str, Any] = {**kept, "pads": pads}
    for name in ("auto_pad", "ceil_mode"):
        changed.pop(name, None)
    write.add(node.op_type, *node.input, into=node.output[0], **changed)
    return True


def _kernel(node: "NodeProto", known: GraphFacts) -> list[int] | None:
    if found := attribute(node, "kernel_shape"):
        return list(found)
    weights = known.shape(node.input[1]) if node.op_type == "Conv" else None
    return list(weights[2:]) if weights else None


def _split(auto_pad: str, needed: int, before: int, after: int) -> tuple[int, int]:
    """Pads before and after an axis that needs so many in all; SAME_LOWER has the larger half before."""
    if auto_pad in SAME:
        total = max(needed, 0)
        small = total // 2
        return (small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small)
    return before, max(after, needed - before)


def counted_pads(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """An AveragePool whose padding counts, as a Pad with zeros before one without padding."""
    shape = known.shape(node.input[0])
    pads = list(attribute(node, "pads") or [])
    plain = attribute(node, "auto_pad", "NOTSET") == "NOTSET" and not attribute(node, "ceil_mode", 0)
    if shape is None or not attribute(node, "count_include_pad", 0) or not plain or known.opset < 11:
        return False
    kept: dict[str, Any] = {
        a.name: attribute(node, a.name) for a in node.attribute if a.name not in ("pads", "count_include_pad")
    }
    value = node.input[0]
    if any(pads):
        half = len(pads) // 2
        value = write.add("Pad", value, write.integers(0, 0, *pads[:half], 0, 0, *pads[half:]), write.constant(0.0))
    write.add("AveragePool", value, into=node.output[0], **kept)
    return True
