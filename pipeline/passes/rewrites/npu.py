"""Rewrites of what a Snapdragon's NPU takes and computes otherwise (docs/npu.md)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pipeline.model.edit import attribute, operand
from pipeline.model.types import FLOAT
from pipeline.passes.rewrites.arithmetic import REDUCE_AXES_ARE_INPUT, axes_of
from pipeline.passes.rewrites.facts import GraphFacts, Writer

if TYPE_CHECKING:
    from onnx import NodeProto

    from pipeline.passes.rewrites.facts import Array

INTEGERS = ("i8", "i16", "i32", "i64")
PAD_HAS_INPUTS = 11
LEAST_NORM = 2.0**-12
"""Divisor of rows of zeros: half precision has it, and its square."""


def scaled_norm(node: "NodeProto", facts: GraphFacts, write: Writer) -> bool:
    """ReduceL2 of values divided by their largest magnitude: no sum of squares passes the end of half precision."""
    shape, axes = facts.shape(node.input[0]), axes_of(node, facts)
    if shape is None or 0 in shape or not axes or not facts.is_f32(node.input[0]) or facts.opset < PAD_HAS_INPUTS:
        return False
    x, keep = node.input[0], int(attribute(node, "keepdims", 1))
    largest = write.add("Max", _reduced("ReduceMax", write.add("Abs", x), axes, 1, facts, write),
                        write.constant(LEAST_NORM))  # fmt: skip
    norm = _reduced("ReduceL2", write.add("Div", x, largest), axes, 1, facts, write)
    if keep:
        write.add("Mul", norm, largest, into=node.output[0])
        return True
    rest = [size for axis, size in enumerate(shape) if axis not in axes]
    write.add("Reshape", write.add("Mul", norm, largest), write.integers(*rest), into=node.output[0])
    return True


def _reduced(op_type: str, x: str, axes: list[int], keep: int, facts: GraphFacts, write: Writer) -> str:
    if facts.opset < REDUCE_AXES_ARE_INPUT:
        return write.add(op_type, x, attributes={"axes": axes, "keepdims": keep})
    return write.add(op_type, x, write.integers(*axes), attributes={"keepdims": keep})


def flat_indices(node: "NodeProto", facts: GraphFacts, write: Writer) -> bool:
    """Constant indices of Gather in one row, counted from the beginning, and a Reshape behind it."""
    import numpy as np

    shape, indices = facts.shape(node.input[0]), facts.constant(node.input[1])
    output = facts.shape(node.output[0])
    if shape is None or output is None or indices is None or (indices.ndim < 2 and not (indices < 0).any()):
        return False
    axis = int(attribute(node, "axis", 0)) % len(shape)
    row = write.constant(np.where(indices < 0, indices + shape[axis], indices).reshape(-1), indices.dtype.name)
    taken = write.add("Gather", node.input[0], row, attributes={"axis": axis})
    write.add("Reshape", taken, write.integers(*output), into=node.output[0])
    return True


COORDINATES: "Mapping[str, Callable[[Array, float, int, int], Array]]" = {
    "half_pixel": lambda at, scale, _size, _given: (at + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda at, scale, size, _given: (at + 0.5) / scale - 0.5 if size > 1 else 0 * at,
    "asymmetric": lambda at, scale, _size, _given: at / scale,
    "align_corners": lambda at, _scale, size, given: at * (given - 1) / (size - 1) if size > 1 else 0 * at,
}
"""Where a pixel comes from, by coordinate_transformation_mode: its place, the scale, sizes after and before."""


def gathered_resize(node: "NodeProto", facts: GraphFacts, write: Writer) -> bool:
    """Resize to the nearest pixel as Gather of rows and of columns."""
    import numpy as np

    before, after = facts.shape(node.input[0]), facts.shape(node.output[0])
    mode = str(attribute(node, "coordinate_transformation_mode", "half_pixel"))
    way = str(attribute(node, "nearest_mode", "round_prefer_floor"))
    rounding: dict[str, Callable[[Array], Array]] = {
        "floor": np.floor, "ceil": np.ceil, "round_prefer_ceil": lambda at: np.floor(at + 0.5),
        "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    }  # fmt: skip
    if before is None or after is None or before[:2] != after[:2] or len(before) != 4 or facts.opset < PAD_HAS_INPUTS:
        return False
    if attribute(node, "mode", "nearest") != "nearest" or mode not in COORDINATES or way not in rounding:
        return False
    scales = facts.constant(operand(node, 2))
    value = node.input[0]
    for axis in (2, 3):
        scale = float(scales[axis]) if scales is not None and scales.size == 4 else after[axis] / before[axis]
        at = COORDINATES[mode](np.arange(after[axis]), scale, after[axis], before[axis])
        places = write.constant(np.clip(rounding[way](at), 0, before[axis] - 1), "int64")
        value = write.add("Gather", value, places, into=node.output[0] * (axis == 3), attributes={"axis": axis})
    return True


def wide_padding(node: "NodeProto", facts: GraphFacts, write: Writer) -> bool:
    """Conv with a padding as large as its kernel as Pad and Conv without."""
    pads = list(attribute(node, "pads", []))
    shape = facts.shape(node.input[1])
    kernel = list(shape[2:]) if shape else []
    dilations = list(attribute(node, "dilations", [1] * len(kernel)))
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    if not pads or not kernel or facts.opset < PAD_HAS_INPUTS or not facts.is_f32(node.input[0]):
        return False
    if all(pad < size for pad, size in zip(pads, reach * 2, strict=True)):
        return False
    half = len(kernel)
    around = write.integers(0, 0, *pads[:half], 0, 0, *pads[half:])
    kept = {
        entry.name: attribute(node, entry.name) for entry in node.attribute if entry.name not in ("pads", "auto_pad")
    }
    padded = write.add("Pad", node.input[0], around, write.constant(0.0), attributes={"mode": "constant"})
    write.add("Conv", padded, *node.input[1:], into=node.output[0], attributes=kept)
    return True


def floored(node: "NodeProto", facts: GraphFacts, write: Writer) -> bool:
    """A Cast of floats to integers and back as the sign times the floor of the magnitude, up to 2 to the 24."""
    place = facts.graph.producers.get(node.input[0])
    maker = facts.graph.nodes[place[0]] if place else None
    if maker is None or maker.op_type != "Cast" or maker.domain or int(attribute(node, "to", 0)) != FLOAT:
        return False
    x = maker.inputs[0]
    if not facts.is_f32(x) or facts.graph.value(node.input[0]).dtype not in INTEGERS or operand(node, 1):
        return False
    write.add("Mul", write.add("Sign", x), write.add("Floor", write.add("Abs", x)), into=node.output[0])
    return True
