"""What CoreML's op builder asks of Resize (ep_rules E.5)."""

from collections.abc import Sequence
from math import prod

from pipeline.partition.answer import Refusal
from pipeline.partition.checks import attribute, constant, rank, show, show_shape, shrinks_evenly, since, when
from pipeline.partition.coreml_types import mlprogram, neural_network
from pipeline.partition.rules import Case, Check, first_refusal

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
    found = case.constant(position)
    if found is None:
        return constant(position, what)(case)
    numbers, axes = found.numbers(), _axes(case)
    if len(numbers) != len(axes):
        return Refusal("factor", f"{len(numbers)} {what} for {len(axes)} dimensions", "give one for each dimension")
    by_size = position == 3
    refusal = _sizes(case, numbers, axes) if by_size else _scales(case, numbers, axes)
    return refusal or _coordinates(case, numbers, by_size=by_size)


def _axes(case: Case) -> list[int]:
    found = case.attribute("axes") or range(case.rank(0))
    return [axis + case.rank(0) if axis < 0 else axis for axis in found]


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
