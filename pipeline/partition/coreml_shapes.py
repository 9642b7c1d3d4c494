"""What CoreML's op builders ask of nodes that pick, split, reshape, pad (ep_rules E.3, E.4, G.3), and of Resize."""

from collections.abc import Sequence
from math import prod

from pipeline.partition.answer import Refusal
from pipeline.partition.coreml_checks import MAX_RANK, mlprogram, neural_network
from pipeline.partition.graph import Shape
from pipeline.partition.rules import (
    Check,
    attribute,
    constant,
    first_refusal,
    given,
    listed,
    rank,
    show,
    show_shape,
    shrinks_evenly,
    since,
    when,
)
from pipeline.partition.units import Case

INTEGERS = ("i32", "i64")
FIX = "fix the model's dynamic dimensions"


def static(case: Case) -> Refusal | None:
    """The shape of input 0 is known in full."""
    if case.value(0).static:
        return None
    return Refusal("dynamic", f"input {show(case, 0)} {show_shape(case.shape(0))} is not static", FIX)


def gather(case: Case) -> Refusal | None:
    """A result of at most five dimensions; a single index since release 1.27."""
    data, indices = case.rank(0), case.rank(1)
    if case.settings.ort_release >= (1, 27) and case.dtype(1) not in INTEGERS:
        return Refusal("type", f"indices {show(case, 1)} are {case.dtype(1)}", "use i32 or i64 indices")
    if indices == 0:
        if case.settings.ort_release < (1, 27):
            return Refusal(
                "rank",
                f"the index {show(case, 1)} is a single number, which releases before 1.27 do not take",
                "use an index of shape [1] and Squeeze the result",
            )
        return static(case) or rank(0, 0, MAX_RANK - 1)(case)
    if data + indices - 1 > MAX_RANK:
        return Refusal(
            "rank", f"the result would have rank {data + indices - 1}, Core ML has at most 5", "gather from fewer"
        )
    return None


def gather_nd(case: Case) -> Refusal | None:
    """Constant indices into dimensions that are known."""
    if case.attribute("batch_dims", 0) != 0:
        return Refusal("attr", "batch_dims is not taken", "gather without batch_dims")
    if case.dtype(1) not in INTEGERS:
        return Refusal("type", f"indices {show(case, 1)} are {case.dtype(1)}", "use i32 or i64 indices")
    refusal = constant(1, "indices")(case)
    if refusal is not None:
        return refusal
    data, indices = case.shape(0) or (), case.shape(1) or ()
    depth = indices[-1] if indices else None
    if depth is None or depth > len(data):
        return Refusal("rank", f"indices {show_shape(indices)} do not fit data {show_shape(data)}", "fix the indices")
    if None in data[:depth]:
        return Refusal("dynamic", f"indexed dimensions of {show(case, 0)} {show_shape(data)} are not known", FIX)
    return None


def slice_(case: Case) -> Refusal | None:
    """Everything about the slice is known beforehand, and it is not empty."""
    refusal = first_refusal(
        case,
        (
            static,
            constant(1, "starts"),
            constant(2, "ends"),
            when(given(3), constant(3, "axes")),
            when(given(4), constant(4, "steps")),
        ),
    )
    return refusal or _plan(case, [dim or 0 for dim in case.shape(0) or ()])


def _indices(case: Case, position: int) -> list[int] | None:
    """An index tensor's numbers, None when it is of another type."""
    initializer = case.constant(position)
    return initializer.numbers() if initializer is not None and initializer.dtype in INTEGERS else None


def _plan(case: Case, shape: list[int]) -> Refusal | None:
    starts, ends = _indices(case, 1), _indices(case, 2)
    axes = _indices(case, 3) if case.exists(3) else list(range(len(starts or ())))
    steps = _indices(case, 4) if case.exists(4) else [1] * len(starts or ())
    malformed = Refusal("slice", "starts, ends, axes and steps do not fit together", "export the slice anew")
    if starts is None or ends is None or axes is None or steps is None:
        return Refusal("type", "starts, ends, axes and steps must be i32 or i64", "export the slice anew")
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return malformed
    places = [axis + len(shape) if axis < 0 else axis for axis in axes]
    if len(set(places)) < len(places) or not all(0 <= place < len(shape) for place in places):
        return malformed
    for place, start, end, step in zip(places, starts, ends, steps, strict=True):
        if _empty(shape[place], start, end, step):
            return Refusal(
                "empty",
                f"from {start} to {end} by {step} along dimension {place} of {show_shape(tuple(shape))} is nothing",
                "leave the empty slice out",
            )
    return None


def _empty(size: int, start: int, end: int, step: int) -> bool:
    """ONNX's clamping of start and end, then whether anything lies between."""
    start, end = (value + size if value < 0 else value for value in (start, end))
    if step > 0:
        return min(max(start, 0), size) >= min(max(end, 0), size)
    return min(max(start, 0), size - 1) <= min(max(end, -1), size - 1)


def split(case: Case) -> Refusal | None:
    """Parts that are known: given as a constant (or, since release 1.27, an attribute), counted, or even."""
    if case.exists(1):
        refusal = constant(1, "the list of parts")(case)
        initializer = case.constant(1)
        return refusal or _parts(case, initializer.numbers() if initializer else [])
    if case.ver >= 18:
        count, size = case.attribute("num_outputs"), _axis(case)
        if count is None or count < 2 or count != len(case.node.outputs) or size is None or count > size:
            return _refused(
                f"num_outputs {count}, {len(case.node.outputs)} outputs, dimension of size {size or 'unknown'}"
            )
        return None
    if case.settings.ort_release < (1, 27):
        return None
    parts = case.attribute("split") if case.ver < 13 else None
    return _even(case) if parts is None else _parts(case, parts)


def _axis(case: Case) -> int | None:
    """The size of the dimension that is split, None when it is not known."""
    shape = case.shape(0) or ()
    axis = case.attribute("axis", 0)
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def _refused(text: str) -> Refusal:
    return Refusal("split", text, "fix the dimension, and split into two or more parts that add up to it")


def _parts(case: Case, parts: Sequence[int]) -> Refusal | None:
    size = _axis(case)
    if len(parts) < 2:
        return _refused("it splits into a single part")
    if size is None or sum(parts) != size or 0 in parts:
        return _refused(f"parts {list(parts)} of a dimension of size {size or 'unknown'}")
    return None


def _even(case: Case) -> Refusal | None:
    count, size = len(case.node.outputs), _axis(case)
    if count < 2 or size is None or size % count:
        return _refused(f"{count} equal parts of a dimension of size {size or 'unknown'}")
    return None


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
                f"{case.label} has axes that are a single number: ONNX "
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
            # Axes that are no initializer; listed under an empty name they end the session since release 1.26
            fatal = not case.exists(3) and case.settings.ort_release >= (1, 26)
            text = f"{case.label} lists axes {show(case, 3)}, which are no initializer"
            return Refusal(
                "crash" if fatal else "const",
                text + (": ONNX Runtime's CoreML part throws, and no session is made" if fatal else " of this graph"),
                "leave the axes out of the input list, or make them an initializer",
                fatal=fatal,
            )
        axes = [axis + len(shape) if axis < 0 else axis for axis in given_axes.numbers()]
    return _padded(case, shape, dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=False), strict=False)))


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
