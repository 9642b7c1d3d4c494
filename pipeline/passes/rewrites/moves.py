"""Rewrites of operators that only move numbers: Pad, Concat, Reshape, Transpose, Gather, Resize."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.passes import edit as passes_edit

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto


SLICE_HAS_INPUTS = 10
MOST_FILL = 1 << 18
"""Entries of a block of constants that takes the place of constant padding."""


def pad_as_concat(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """A Pad of known pads, axis by axis: what goes before, the values, what comes after.

    Modes reflect and edge take slices of the values, constant takes a block of one number. Outputs are bit-identical:
    ONNX pads one axis after the other too.
    """
    import numpy as np

    shape, pads = facts.shape(node.input[0]), _pads(node, facts)
    mode = onnx_edit.attribute(node, "mode", "constant")
    if shape is None or pads is None or facts.opset < SLICE_HAS_INPUTS or mode not in ("constant", "reflect", "edge"):
        return False
    fill = _fill(node, facts) if mode == "constant" else None
    sizes = list(shape)
    steps = [(axis, *pads[axis]) for axis in sorted(pads) if any(pads[axis])]
    # Each axis has the values that the mode needs, and nothing is cut off
    fits = all(
        min(before, after) >= 0 and sizes[axis] >= (max(before, after) + 1 if mode == "reflect" else 1)
        for axis, before, after in steps
    )
    if (mode == "constant" and fill is None) or not steps or not fits:
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
        value = _concat(write, parts, axis, len(sizes), facts, into)
        sizes[axis] += before + after
    return True


def _pads(node: "NodeProto", facts: passes_edit.GraphFacts) -> dict[int, tuple[int, int]] | None:
    """(before, after) by axis; None when they are not constant, or the axes are not."""
    rank = len(facts.shape(node.input[0]) or ())
    axes = list(range(rank))
    if facts.opset < passes_edit.PAD_HAS_INPUTS:
        pads = onnx_edit.attribute(node, "pads", [])
    else:
        given = facts.constant(onnx_edit.operand(node, 1))
        if given is None:
            return None
        pads = [int(number) for number in given.reshape(-1)]
    if onnx_edit.operand(node, 3):
        named = facts.constant(onnx_edit.operand(node, 3))
        if named is None:
            return None
        axes = [int(axis) % rank for axis in named.reshape(-1)] if rank else []
    count = len(axes)
    return {axis: (pads[i], pads[count + i]) for i, axis in enumerate(axes)} if len(pads) == 2 * count else None


def _fill(node: "NodeProto", facts: passes_edit.GraphFacts) -> float | None:
    """The number that constant padding puts in; None when it is not known or the values are no floats."""
    if not facts.is_f32(node.input[0]):
        return None
    if facts.opset < passes_edit.PAD_HAS_INPUTS:
        return float(onnx_edit.attribute(node, "value", 0.0))
    if not onnx_edit.operand(node, 2):
        return 0.0
    given = facts.constant(onnx_edit.operand(node, 2))
    return float(given.reshape(-1)[0]) if given is not None and given.size == 1 else None


def _side(
    write: passes_edit.Writer,
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


def _slice(write: passes_edit.Writer, value: str, axis: int, start: int, stop: int, step: int) -> str:
    """One axis' slice; a stop before the first entry is written so that it does not count from the end."""
    stop = stop if stop >= 0 else -(1 << 31)
    return write.add(
        "Slice", value, write.integers(start), write.integers(stop), write.integers(axis), write.integers(step)
    )


def _concat(
    write: passes_edit.Writer, parts: list[str], axis: int, rank: int, facts: passes_edit.GraphFacts, into: str
) -> str:
    """Concat; CoreML's NeuralNetwork joins on axis 1 of rank 4 only, so there the axes are swapped before and after."""
    if not facts.neural_network or rank != 4 or axis == 1:
        return write.add("Concat", *parts, into=into, attributes={"axis": axis})
    order = list(range(rank))
    order[1], order[axis] = order[axis], order[1]
    turned = {part: write.add("Transpose", part, attributes={"perm": order}) for part in dict.fromkeys(parts)}
    joined = write.add("Concat", *(turned[part] for part in parts), attributes={"axis": 1})
    return write.add("Transpose", joined, into=into, attributes={"perm": order})


NN_RANK = 4


def as_reshape(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Flatten, Squeeze, Unsqueeze, or a Reshape to a computed shape: a Reshape to the shape that comes out."""
    shape = facts.shape(node.output[0])
    if shape is None or not shape or 0 in shape or facts.opset < passes_edit.RESHAPE_HAS_INPUT:
        return False
    if node.op_type == "Reshape" and facts.graph.constant(node.input[1]) is not None:
        return False
    write.add("Reshape", node.input[0], write.integers(*shape), into=node.output[0])
    return True


def concat_on_channels(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Concat on axis 1 of rank 4, the one form that CoreML's NeuralNetwork takes, with the axes moved around it."""
    shapes = [facts.shape(name) for name in node.input]
    output = facts.shape(node.output[0])
    rank = len(output or ())
    axis = int(onnx_edit.attribute(node, "axis", 1)) % rank if rank else 0
    if not facts.neural_network or output is None or rank > NN_RANK or (rank, axis) == (NN_RANK, 1) or None in shapes:
        return False
    order = list(range(NN_RANK))
    nn_axis = axis + NN_RANK - rank
    order[1], order[nn_axis] = order[nn_axis], order[1]
    parts = [_turned(write, name, shape or (), order) for name, shape in zip(node.input, shapes, strict=True)]
    joined = write.add("Concat", *parts, attributes={"axis": 1})
    last = rank == NN_RANK
    turned = joined
    if order[1] != 1:
        turned = write.add("Transpose", joined, into=node.output[0] if last else "", attributes={"perm": order})
    if not last:
        write.add("Reshape", turned, write.integers(*output), into=node.output[0])
    return True


def _turned(write: passes_edit.Writer, name: str, shape: tuple[int, ...], order: list[int]) -> str:
    """A value with leading axes of size 1 up to rank 4, its axes in the given order."""
    wide = [1] * (NN_RANK - len(shape)) + list(shape)
    value = name if len(shape) == NN_RANK else write.add("Reshape", name, write.integers(*wide))
    return value if order[1] == 1 else write.add("Transpose", value, attributes={"perm": order})


def gather_i32(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Gather with 32-bit indices: valid indices are smaller than the axis, which is smaller than 2**31."""
    data = facts.shape(node.input[0])
    if facts.graph.value(node.input[1]).dtype != "i64" or facts.graph.constant(node.input[1]) or not data:
        return False
    if max(data) >= 1 << 31:
        return False
    indices = write.add("Cast", node.input[1], attributes={"to": onnx_types.INT32})
    write.add(
        "Gather", node.input[0], indices, into=node.output[0], attributes={"axis": onnx_edit.attribute(node, "axis", 0)}
    )
    return True


HIGHEST_RANK = 4


def fewer_axes(model: "ModelProto", facts: passes_edit.GraphFacts) -> "ModelProto | None":
    """The model with such nodes between Reshapes, and Reshapes of Reshapes joined, so that no high rank is left."""
    rules = {"Transpose": merged_transpose, "Gather": flat_gather}
    changed = passes_edit.rewrite(model, facts, rules) if facts.opset >= passes_edit.RESHAPE_HAS_INPUT else None
    if changed is not None:
        # Let each Reshape to a known shape read what the Reshape before it read; drop those that nobody reads then
        graph = changed.graph
        makers = {node.output[0]: node for node in graph.node if node.op_type == "Reshape" and not node.domain}
        constants = {tensor.name: tensor for tensor in graph.initializer}
        taken = onnx_edit.names_in(graph)
        for node in makers.values():
            maker = makers.get(node.input[0])
            if maker is None or not _joinable(node, constants, facts):
                continue
            if (sizes := facts.shape(node.output[0])) is not None:
                written = passes_edit.Writer(node, taken)
                node.input[1] = written.integers(*sizes)
                graph.initializer.extend(written.tensors)
            node.input[0] = maker.input[0]
        read = onnx_edit.read_names(graph.node) | {value.name for value in graph.output}
        unread = makers.keys() - read
        onnx_edit.keep_only(graph.node, lambda node: node.op_type != "Reshape" or node.output[0] not in unread)
    return changed


def merged_transpose(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Axes of size 1 take no part in a Transpose, and neighbours that stay neighbours move as one."""
    shape, output = facts.shape(node.input[0]), facts.shape(node.output[0])
    if shape is None or output is None or len(shape) <= HIGHEST_RANK or 0 in shape:
        return False
    perm = onnx_edit.attribute(node, "perm") or list(reversed(range(len(shape))))
    groups: list[list[int]] = []
    for axis in perm:
        if shape[axis] == 1:
            continue
        gap = range(groups[-1][-1] + 1, axis) if groups else range(0)
        if groups and axis > groups[-1][-1] and all(shape[between] == 1 for between in gap):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if not 0 < len(groups) <= HIGHEST_RANK:
        return False
    before = sorted(groups)
    sizes = [math.prod(shape[axis] for axis in group) for group in before]
    value = write.add("Reshape", node.input[0], write.integers(*sizes))
    turned = write.add("Transpose", value, attributes={"perm": [before.index(group) for group in groups]})
    write.add("Reshape", turned, write.integers(*output), into=node.output[0])
    return True


def flat_gather(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Constant indices into one axis, with the axes before and after it merged."""
    shape, output = facts.shape(node.input[0]), facts.shape(node.output[0])
    indices = facts.graph.constant(node.input[1])
    if shape is None or not output or indices is None or len(shape) <= HIGHEST_RANK or len(indices.dims) > 1:
        return False
    axis = int(onnx_edit.attribute(node, "axis", 0)) % len(shape)
    flat = write.integers(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    taken = write.add("Gather", write.add("Reshape", node.input[0], flat), node.input[1], attributes={"axis": 1})
    write.add("Reshape", taken, write.integers(*output), into=node.output[0])
    return True


def _joinable(node: "NodeProto", constants: "Mapping[str, TensorProto]", facts: passes_edit.GraphFacts) -> bool:
    """Whether the target shape is known, or means the same for other inputs: no 0, which copies one of their sizes."""
    from onnx import numpy_helper

    sizes = facts.shape(node.output[0])
    if sizes is not None:
        return 0 not in sizes
    shape = constants.get(node.input[1])
    if shape is None or shape.data_location == shape.EXTERNAL or shape.name in facts.graph.overridable:
        return False
    return bool((numpy_helper.to_array(shape) != 0).all())


MODERN = 11
"""Opset from which Resize has coordinate modes."""

OPTIONAL_SINCE = 13
"""Opset from which the region and the scales may be left out; before, both are there, empty where they do not count."""

CENTRED = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric")
ROUNDED = ("round_prefer_floor", "round_prefer_ceil")


def equal_resize(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Resize with another name for the same positions, and without inputs that are empty and may be left out.

    Nearest, enlarged by whole numbers s: output q*s+r reads (q*s+r+0.5)/s-0.5, which lies within 0.5 of q and never
    at the border, so each rounding gives q; asymmetric with floor gives floor(q+r/s) = q. Linear: half_pixel and
    pytorch_half_pixel differ only where an output has size 1.
    """
    if facts.opset < MODERN:
        return False
    # How positions are chosen, with the defaults of the operator
    modes = {
        "coordinate_transformation_mode": onnx_edit.attribute(node, "coordinate_transformation_mode", "half_pixel")
    }
    if onnx_edit.attribute(node, "mode", "nearest") == "nearest":
        modes["nearest_mode"] = onnx_edit.attribute(node, "nearest_mode", "round_prefer_floor")
    after = _equal_modes(node, facts, modes)
    needed = 1 if facts.opset >= OPTIONAL_SINCE else 3
    constants = {name: facts.graph.constant(name) for name in node.input if name}
    empty = {name for name, constant in constants.items() if constant is not None and constant.count == 0}
    inputs = [name if slot < needed or name not in empty else "" for slot, name in enumerate(node.input)]
    while inputs and not inputs[-1]:
        inputs.pop()
    if after == modes and inputs == list(node.input):
        return False
    kept = {a.name: onnx_edit.attribute(node, a.name) for a in node.attribute if a.name not in after}
    write.add("Resize", *inputs, into=node.output[0], attributes={**kept, **after})
    return True


def _equal_modes(node: "NodeProto", facts: passes_edit.GraphFacts, modes: dict[str, Any]) -> dict[str, Any]:
    coordinates = modes["coordinate_transformation_mode"]
    plain = not onnx_edit.attribute(node, "antialias", 0) and not onnx_edit.attribute(node, "exclude_outside", 0)
    factors = _factors(node, facts)
    if not plain or coordinates not in CENTRED or factors is None or any(onnx_edit.attribute(node, "axes", [])):
        return modes
    whole = all(factor >= 1 and factor.is_integer() for factor in factors)
    if "nearest_mode" in modes:
        same = whole and modes["nearest_mode"] in ROUNDED
        return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if same else modes
    output = facts.shape(node.output[0]) or (1,)
    same = coordinates == "pytorch_half_pixel" and all(
        size > 1 or f == 1 for size, f in zip(output, factors, strict=False)
    )
    return {"coordinate_transformation_mode": "half_pixel"} if same else modes


def _factors(node: "NodeProto", facts: passes_edit.GraphFacts) -> list[float] | None:
    """By how much each axis grows, from constant scales or static sizes; None when not known."""
    scales = facts.constant(onnx_edit.operand(node, 2))
    if scales is not None and scales.size:
        return [float(scale) for scale in scales.reshape(-1)]
    before, after = facts.shape(node.input[0]), facts.shape(node.output[0])
    if not onnx_edit.operand(node, 3) or before is None or after is None or 0 in before:
        return None
    policy = onnx_edit.attribute(node, "keep_aspect_ratio_policy", "stretch")
    return [b / a for a, b in zip(before, after, strict=True)] if policy == "stretch" else None
