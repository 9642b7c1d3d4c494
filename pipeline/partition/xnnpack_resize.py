"""What XNNPACK asks of Resize (ep_rules F.3)."""

from collections.abc import Sequence

from pipeline.partition.answer import Refusal
from pipeline.partition.checks import attribute, constant, show, show_shape, shrinks_evenly
from pipeline.partition.graph import Shape
from pipeline.partition.rules import Case, Check, first_refusal

EQUIVALENT = "export Resize as linear half_pixel, asymmetric or align_corners"


def resize(case: Case) -> Refusal | None:
    """Linear resizing of height and width, in the order of ONNX Runtime's checks (one of them ends the process)."""
    shape = case.shape(0) or ()
    if len(shape) != 4 or not shape[1]:
        return Refusal(
            "rank",
            f"input {show(case, 0)} {show_shape(case.shape(0))} is not of rank 4 with known channels",
            "resize values of shape [N, C, H, W]",
        )
    return _target(case, shape) or _result(case) or first_refusal(case, ATTRIBUTES) or _coordinates(case)


def _target(case: Case, shape: Shape) -> Refusal | None:
    """Scales or sizes are constant; each that is constant is tested."""
    scales = case.constant(1 if case.ver == 10 else 2)
    sizes = case.constant(3) if case.ver > 10 else None
    if scales is None and sizes is None:
        return constant(1 if case.ver == 10 else 3 if case.exists(3) else 2, "scales or sizes")(case)
    refusal = _scales(case, shape, scales.numbers()) if scales is not None else None
    if refusal is None and sizes is not None:
        return _sizes(case, shape, sizes.numbers())
    return refusal


def _short(case: Case, what: str, count: int) -> Refusal:
    return Refusal(
        "crash",
        f"Resize '{case.node.name or case.node.first_output}' has {count} {what}: ONNX Runtime's XNNPACK part reads "
        "more, and the process ends",
        "leave an empty list out by an empty name, or give one entry for each of the four dimensions",
        fatal=True,
    )


def _channels(text: str) -> Refusal:
    return Refusal("nc", text, "resize height and width only")


def _scales(case: Case, shape: Shape, scales: Sequence[float]) -> Refusal | None:
    if len(scales) > 1 and scales[1] != 1:
        return _channels(f"scales {list(scales)} change the channels")
    if len(scales) < 4:
        return _short(case, "scales", len(scales))
    size = [dim or 0 for dim in shape[2:]]
    shrinks = scales[2] < 1 or scales[3] < 1
    if not shrinks or all(shrinks_evenly(dim, scale) for dim, scale in zip(size, scales[2:4], strict=True)):
        return None
    return Refusal(
        "factor",
        f"height and width {size} by {list(scales[2:4])}: both must shrink by whole divisors of the size",
        "shrink by a divisor of the size",
    )


def _sizes(case: Case, shape: Shape, sizes: Sequence[int]) -> Refusal | None:
    if len(sizes) < 2:
        return _short(case, "sizes", len(sizes))
    return (
        None if sizes[1] == shape[1] else _channels(f"sizes {list(sizes)} of {show_shape(shape)} change the channels")
    )


def _result(case: Case) -> Refusal | None:
    if case.graph.value(case.unit.outputs[0].name).shape is not None:
        return None
    return Refusal(
        "crash",
        f"the rank of the result of Resize '{case.node.name or case.node.first_output}' is not known: ONNX Runtime's "
        "XNNPACK part reads its dimensions all the same, and the process ends",
        "give the value's shape in the model (value_info), or constant sizes",
        fatal=True,
    )


def _no_axes(case: Case) -> Refusal | None:
    if not case.attribute("axes"):
        return None
    return Refusal("attr", "attribute axes is not taken", "give scales or sizes for all four dimensions")


ATTRIBUTES: tuple[Check, ...] = (
    attribute("mode", ("linear",), default="nearest", code="mode"),
    attribute("antialias", (0,), default=0),
    _no_axes,
    attribute("keep_aspect_ratio_policy", ("stretch",), default="stretch"),
    attribute("extrapolation_value", (0.0,), default=0.0),
)


def _coordinates(case: Case) -> Refusal | None:
    mode = case.attribute("coordinate_transformation_mode", "half_pixel") if case.ver > 10 else "asymmetric"
    shape = case.graph.value(case.unit.outputs[0].name).shape or ()
    large = all((dim or 0) > 1 for dim in shape[2:4])
    taken = ("asymmetric", "half_pixel", "align_corners", *(("pytorch_half_pixel",) if large else ()))
    if mode not in taken:
        return Refusal("coord", f"coordinate_transformation_mode {mode} is not taken here", EQUIVALENT)
    return attribute("exclude_outside", (0,), default=0)(case)
