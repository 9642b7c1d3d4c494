"""Rules of operators that move, cut and join values: where the batch of their outputs lies."""

import math
from typing import TYPE_CHECKING

from pipeline.passes.batch.walk import Batch, Found, Walk, axes_of, axis_of, only, without
from pipeline.passes.rewrites.facts import attribute, operand

if TYPE_CHECKING:
    from onnx import NodeProto

WHOLE_END = (1 << 31) - 1
"""From here on the end of a Slice means all that there is."""


def transpose(node: "NodeProto", walk: Walk) -> Found:
    """The axis moves."""
    found = walk.of(node, 0)
    rank = len(walk.shape(node.input[0]))
    perm = attribute(node, "perm") or list(reversed(range(rank)))
    return Batch(perm.index(found.axis), found.inner) if found and found.axis in perm else None


def squeeze(node: "NodeProto", walk: Walk) -> Found:
    """Axes that are named, and are not the batch's."""
    found = walk.of(node, 0)
    axes = axes_of(node, walk, len(walk.shape(node.input[0])))
    return without(found, axes, keep=False) if found and axes else None


def unsqueeze(node: "NodeProto", walk: Walk) -> Found:
    """New axes move the batch's to the right."""
    found, rank = walk.of(node, 0), len(walk.shape(node.output[0]))
    axes = axes_of(node, walk, rank)
    if not found or not axes:
        return None
    left = [axis for axis in range(rank) if axis not in axes]
    return Batch(left[found.axis], found.inner)


def concat(node: "NodeProto", walk: Walk) -> Found:
    """Another axis; what is the same for every sample is repeated."""
    axis = axis_of(node, len(walk.shape(node.input[0])), 0)
    places = {place for slot in range(len(node.input)) if (place := walk.of(node, slot))}
    if len(places) != 1:
        return None
    (place,) = places
    if place.axis == axis:
        return None
    for slot in range(len(node.input)):
        if walk.of(node, slot) is None and not (place.inner == 1 and walk.expand(node, slot, place.axis)):
            return None
    return place


def slices(node: "NodeProto", walk: Walk) -> Found:
    """Other axes, or all of the batch."""
    found, rank = walk.of(node, 0), len(walk.shape(node.input[0]))
    as_inputs = len(node.input) > 1
    starts = walk.integers(node, 1) if as_inputs else attribute(node, "starts")
    ends = walk.integers(node, 2) if as_inputs else attribute(node, "ends")
    steps = walk.integers(node, 4) if operand(node, 4) else [1] * len(starts or ())
    if not found or not starts or not ends or steps is None or (operand(node, 3) and not walk.integers(node, 3)):
        return None
    axes = axes_of(node, walk, rank, 3) or list(range(len(starts)))
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=False):
        if axis == found.axis and ((start, step) != (0, 1) or end < WHOLE_END):
            return None
    return found


def gather(node: "NodeProto", walk: Walk) -> Found:
    """Constant indices into another axis, or samples of indices into a table."""
    data, indices = walk.of(node, 0), walk.of(node, 1)
    axis = axis_of(node, len(walk.shape(node.input[0])), 0)
    if data and not indices and data.axis != axis:
        more = len(walk.shape(node.input[1])) - 1
        return Batch(data.axis + (more if data.axis > axis else 0), data.inner)
    return Batch(axis + indices.axis, indices.inner) if indices and not data else None


def flatten(node: "NodeProto", walk: Walk) -> Found:
    """Two axes; what is before the second is merged with the batch."""
    found, shape = walk.of(node, 0), walk.shape(node.input[0])
    axis = axis_of(node, len(shape), 1)
    if not found or found.axis >= axis or any(size != 1 for size in shape[: found.axis]):
        return None
    between = shape[found.axis + 1 : axis]
    return None if None in between else Batch(0, found.inner * math.prod(size or 0 for size in between))


def reshape(node: "NodeProto", walk: Walk) -> Found:
    """The order of numbers stays, so the batch is where as many of them come before it; its size is written anew."""
    found, target = walk.of(node, 0), walk.integers(node, 1)
    shape, made = walk.shape(node.input[0]), walk.shape(node.output[0])
    if not found or not target or not only(node, walk, 0) or attribute(node, "allowzero", 0):
        return None
    if found == Batch(0) and made[:1] == (walk.before,) and target[0] in (walk.before, 0):
        if target[0]:  # other axes may be open: the first stays what it is
            walk.replace(node, 1, [walk.after, *target[1:]])
        return found
    if None in shape or None in made or 0 in made:
        return None
    sizes = [size or 0 for size in made]
    first = math.prod(size or 0 for size in shape[: found.axis])
    places = [k for k in range(len(sizes)) if math.prod(sizes[:k]) == first and sizes[k] % walk.before == 0]
    if not places:
        return None
    alone = [k for k in places if sizes[k] == walk.before]
    axis = found.axis if found.axis in alone else (alone or places)[0]
    place = Batch(axis, sizes[axis] // walk.before)
    walk.replace(node, 1, [*sizes[:axis], walk.after * place.inner, *sizes[axis + 1 :]])
    return place


def expand(node: "NodeProto", walk: Walk) -> Found:
    """A target of 1 leaves the batch as it is."""
    found, target = walk.of(node, 0), walk.integers(node, 1)
    if not found or target is None or not only(node, walk, 0):
        return None
    rank = len(walk.shape(node.input[0]))
    place = Batch(found.axis + max(len(target) - rank, 0), found.inner)
    own = place.axis - max(rank - len(target), 0)
    if own >= 0 and target[own] not in (1, walk.before * found.inner):
        return None
    if own >= 0 and target[own] != 1:
        walk.replace(node, 1, [*target[:own], 1, *target[own + 1 :]])
    return place


def tile(node: "NodeProto", walk: Walk) -> Found:
    """Repeats of other axes."""
    found, repeats = walk.of(node, 0), walk.integers(node, 1)
    return found if found and repeats and repeats[found.axis] == 1 else None


def pad(node: "NodeProto", walk: Walk) -> Found:
    """Padding of other axes."""
    found, rank = walk.of(node, 0), len(walk.shape(node.input[0]))
    pads = attribute(node, "pads") or walk.integers(node, 1)
    if not found or not pads or operand(node, 3):
        return None
    return found if not pads[found.axis] and not pads[found.axis + rank] else None


RESIZE_OF_TWO_INPUTS = 10


def resize(node: "NodeProto", walk: Walk) -> Found:
    """Scales of 1, or sizes that are written anew."""
    found, slot = walk.of(node, 0), 2 if node.op_type == "Resize" and walk.opset > RESIZE_OF_TWO_INPUTS else 1
    scales = walk.constants.get(operand(node, slot))
    scales = attribute(node, "scales") if scales is None else scales.reshape(-1)
    if (
        not found
        or attribute(node, "axes")
        or attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    ):
        return None
    if scales is not None and len(scales):
        return found if float(scales[found.axis]) == 1 else None
    sizes = walk.integers(node, 3)
    if not sizes or sizes[found.axis] != walk.before * found.inner:
        return None
    walk.replace(node, 3, [*sizes[: found.axis], walk.after * found.inner, *sizes[found.axis + 1 :]])
    return found
