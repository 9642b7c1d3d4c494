"""What CoreML's op builders ask of Reshape, Unsqueeze, Tile, Pad (ep_rules E.4) and Resize (E.5)."""

from collections.abc import Sequence
from math import prod

from pipeline.partition.answer import Refusal
from pipeline.partition.coreml.operators import MAX_RANK, static
from pipeline.partition.coreml.types import mlprogram, neural_network
from pipeline.partition.graph import Shape
from pipeline.partition.rules import (
    Case,
    Check,
    attribute,
    constant,
    first_refusal,
    listed,
    rank,
    show,
    show_shape,
    shrinks_evenly,
    since,
    when,
)


def reshape(case: Case) -> Refusal | None:
    """A constant shape of one to five entries, for an input whose shape is known."""
    refusal = constant(1, "the shape")(case)
    initializer = case.constant(1)
    if refusal is not None or initializer is None:
        return refusal
    entries = initializer.numbers()
    if not 1 <= len(entries) <= MAX_RANK:
        return Refusal("rank", f"the new shape {entries} has {len(entries)} entries, taken are 1 to 5", "use fewer")
    refusal = static(case) or rank(0, 1, MAX_RANK)(case)
    if refusal is None and case.attribute("allowzero", 0) == 1 and 0 in entries:
        return Refusal("zero", f"the new shape {entries} asks for a dimension of 0 (allowzero = 1)", "leave it out")
    return refusal


def unsqueeze(case: Case) -> Refusal | None:
    """Axes known beforehand (ONNX Runtime reads their number without looking), at most five dimensions."""
    if case.ver < 13:
        added = len(case.attribute("axes") or ())
    else:
        refusal = constant(1, "axes")(case)
        initializer = case.constant(1)
        if refusal is not None or initializer is None:
            return refusal
        if initializer.dims == ():
            return Refusal(
                "crash",
                f"Unsqueeze '{case.node.name or case.node.first_output}' has axes that are a single number: ONNX "
                "Runtime's CoreML part reads them as a list and the process ends",
                "give the axes as a list of one number",
                fatal=True,
            )
        added = initializer.dims[0]
    if case.rank(0) + added <= MAX_RANK:
        return None
    return Refusal("rank", f"the result has rank {case.rank(0) + added}, Core ML has at most 5", "use fewer dimensions")


SQUEEZE = when(since(13), when(listed(1), constant(1, "axes")))


def tile(case: Case) -> Refusal | None:
    """Repeats of at least one for each dimension; NeuralNetwork must know them beforehand."""
    initializer = case.constant(1)
    if initializer is None:
        return constant(1, "repeats")(case) if neural_network(case) else None
    repeats = initializer.numbers()
    if len(repeats) == case.rank(0) and all(count >= 1 for count in repeats):
        return None
    return Refusal(
        "repeats", f"repeats {repeats} of {show_shape(case.shape(0))}", "repeat at least once along each dimension"
    )


def pad(case: Case) -> Refusal | None:
    """Constant padding of the last two dimensions by NeuralNetwork; of any, or by reflection, by MLProgram (1.26)."""
    recent = case.settings.ort_release >= (1, 26)
    least = 1 if mlprogram(case) else 2
    return (
        rank(0, least, MAX_RANK)(case)
        or _pad_mode(case)
        or _pad_value(case, optional=recent and mlprogram(case))
        or _pads(case)
    )


def _pad_mode(case: Case) -> Refusal | None:
    mode = case.attribute("mode", "constant")
    if mode == "constant" or (mode == "reflect" and mlprogram(case)):
        return None
    return Refusal("mode", f"mode {mode} is not taken", "pad by a constant, or write reflection as Slice and Concat")


def _pad_value(case: Case, *, optional: bool) -> Refusal | None:
    if optional and (case.attribute("mode", "constant") != "constant" or not case.exists(2)):
        return None
    if case.graph.initializers.get(case.input(2)) is None:
        return Refusal(
            "const",
            f"the padding value {show(case, 2)} is no initializer of the graph in which the node stands",
            "give the padding value as an initializer",
        )
    if neural_network(case) and case.settings.ort_release >= (1, 23) and case.dtype(2) != "f32":
        return Refusal("type", f"the padding value is {case.dtype(2)}, not f32", "pad in f32")
    return None


def _pads(case: Case) -> Refusal | None:
    initializer = case.graph.initializers.get(case.input(1))
    if initializer is None:
        return Refusal("const", f"pads {show(case, 1)} is no initializer of this graph", "make pads an initializer")
    pads = initializer.numbers()
    if any(pad < 0 for pad in pads):
        return Refusal("negative", f"pads {pads} are partly negative", "cut with Slice in place of negative padding")
    shape = case.shape(0) or ()
    axes = list(range(len(shape)))
    if case.listed > 3:
        given_axes = case.graph.initializers.get(case.input(3)) if case.exists(3) else None
        if given_axes is None:
            return _no_axes(case)
        axes = [axis + len(shape) if axis < 0 else axis for axis in given_axes.numbers()]
    return _padded(case, shape, dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=False), strict=False)))


def _no_axes(case: Case) -> Refusal:
    """Axes that are no initializer; listed under an empty name they end the session since release 1.26."""
    fatal = not case.exists(3) and case.settings.ort_release >= (1, 26)
    text = f"Pad '{case.node.name or case.node.first_output}' lists axes {show(case, 3)}, which are no initializer"
    return Refusal(
        "crash" if fatal else "const",
        text + (": ONNX Runtime's CoreML part throws, and no session is made" if fatal else " of this graph"),
        "leave the axes out of the input list, or make them an initializer",
        fatal=fatal,
    )


def _padded(case: Case, shape: Shape, amounts: dict[int, tuple[int, int]]) -> Refusal | None:
    mode = case.attribute("mode", "constant")
    outer = [axis for axis, pair in amounts.items() if any(pair) and axis < len(shape) - 2]
    if outer and (neural_network(case) or mode != "constant"):
        return Refusal(
            "axis",
            f"it pads dimension {outer[0]} of {show_shape(shape)}, taken are the last two",
            "pad height and width only" + ("; or use format MLProgram (release 1.26)" if mode == "constant" else ""),
        )
    for axis, pair in amounts.items() if mode == "reflect" else ():
        size = shape[axis]
        if size is None or max(pair) >= size:
            return Refusal(
                "pads", f"it reflects {max(pair)} entries of a dimension of size {size or 'unknown'}", "pad by less"
            )
    return None


EQUIVALENT = "export Resize as linear, or nearest with asymmetric coordinates and floor; double or halve sizes"


def resize(case: Case) -> Refusal | None:
    """Only height and width change, by modes and factors that Core ML computes alike."""
    return first_refusal(case, SHARED) or _target(case)


def _not_empty(case: Case) -> Refusal | None:
    shape = case.shape(0) or ()
    if 0 not in shape:
        return None
    return Refusal("zero", f"input {show(case, 0)} {show_shape(shape)} is empty", "leave the node out")


SHARED: tuple[Check, ...] = (
    _not_empty,
    when(neural_network, rank(0, 4, 4)),
    when(mlprogram, rank(0, 3, 5)),
    when(since(18), attribute("antialias", (0,), default=0)),
    attribute("mode", ("linear", "nearest"), default="nearest", code="mode"),
    when(
        lambda case: case.attribute("mode", "nearest") == "nearest",
        attribute("nearest_mode", ("floor",), default="round_prefer_floor", code="coord"),
    ),
    attribute("exclude_outside", (0,), default=0),
    when(since(18), attribute("keep_aspect_ratio_policy", ("stretch",), default="stretch")),
)


def _target(case: Case) -> Refusal | None:
    """Sizes go before scales; either is a constant."""
    if not case.exists(3) and not case.exists(2):
        return Refusal("const", "neither scales nor sizes are given", "give constant scales or sizes")
    position, what = (3, "sizes") if case.exists(3) else (2, "scales")
    initializer = case.constant(position)
    if initializer is None:
        return constant(position, what)(case)
    numbers, axes = initializer.numbers(), _axes(case)
    if len(numbers) != len(axes):
        return Refusal("factor", f"{len(numbers)} {what} for {len(axes)} dimensions", "give one for each dimension")
    by_size = position == 3
    refusal = _sizes(case, numbers, axes) if by_size else _scales(case, numbers, axes)
    return refusal or _coordinates(case, numbers, by_size=by_size)


def _axes(case: Case) -> list[int]:
    axes = case.attribute("axes") or range(case.rank(0))
    return [axis + case.rank(0) if axis < 0 else axis for axis in axes]


ONE_AXIS = Refusal(
    "axes", "attribute axes names one dimension, ONNX Runtime reads two", "give scales or sizes for all dimensions"
)


def _scales(case: Case, scales: Sequence[float], axes: Sequence[int]) -> Refusal | None:
    shape = case.shape(0) or ()
    if None in shape[-2:]:
        return Refusal(
            "dynamic",
            f"height and width of {show(case, 0)} {show_shape(shape)} are not known",
            "fix the model's dynamic dimensions",
        )
    if any(axis < len(shape) - 2 and scale != 1 for axis, scale in zip(axes, scales, strict=True)):
        return Refusal("nc", f"scales {list(scales)} change more than height and width", "scale height and width only")
    if len(scales) < 2:
        return ONE_AXIS
    return _factors(case, [dim or 0 for dim in shape[-2:]], scales[-2:])


def _factors(case: Case, size: Sequence[int], scales: Sequence[float]) -> Refusal | None:
    if min(scales) >= 1:
        taken = all(float(scale).is_integer() for scale in scales)
    elif max(scales) <= 1:
        taken = mlprogram(case) and all(shrinks_evenly(dim, scale) for dim, scale in zip(size, scales, strict=True))
    else:
        taken = False
    if taken:
        return None
    return Refusal(
        "factor",
        f"height and width {list(size)} by {list(scales)}: both must grow by whole numbers"
        + (", or both shrink by whole divisors of the size" if mlprogram(case) else ""),
        EQUIVALENT,
    )


def _sizes(case: Case, sizes: Sequence[int], axes: Sequence[int]) -> Refusal | None:
    """ONNX Runtime compares the i-th size with the i-th dimension, whatever dimension `axes` names there."""
    shape = case.shape(0) or ()
    for i, axis in enumerate(axes):
        if axis < len(shape) - 2 and shape[i] != sizes[i]:
            return Refusal(
                "nc", f"sizes {list(sizes)} of {show_shape(shape)} change more than height and width", EQUIVALENT
            )
    if mlprogram(case):
        return None
    if len(sizes) < 2:
        return ONE_AXIS
    if not case.value(0).static:
        return Refusal("dynamic", f"input {show(case, 0)} {show_shape(shape)} is not static", "fix the dimensions")
    if any(size % (dim or 1) for size, dim in zip(sizes[-2:], shape[-2:], strict=True)):
        return Refusal("factor", f"sizes {list(sizes[-2:])} are no multiples of {show_shape(shape[-2:])}", EQUIVALENT)
    return None


def _coordinates(case: Case, numbers: Sequence[float], *, by_size: bool) -> Refusal | None:
    mode = case.attribute("coordinate_transformation_mode", "half_pixel")
    if neural_network(case) or case.attribute("mode", "nearest") == "nearest":
        taken: tuple[str, ...] = ("asymmetric",)
    else:
        taken = ("half_pixel", "align_corners", *(("asymmetric",) if by_size else ()))
        if mode == "pytorch_half_pixel":
            if len(numbers) < 2:
                return ONE_AXIS
            mode = "half_pixel" if min(_result(case, numbers[-2:], by_size=by_size)) > 1 else mode
    if mode in taken:
        return None
    return Refusal(
        "coord",
        f"coordinate_transformation_mode {mode}; CoreML supports {' or '.join(taken)} here",
        f"export Resize with {' or '.join(taken)}",
    )


def _result(case: Case, numbers: Sequence[float], *, by_size: bool) -> list[float]:
    if by_size:
        return list(numbers)
    return [prod((dim or 0, scale)) for dim, scale in zip((case.shape(0) or ())[-2:], numbers, strict=True)]
