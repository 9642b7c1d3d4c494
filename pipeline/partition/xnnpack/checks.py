"""What XNNPACK asks of single operators, Resize among them (ep_rules F.3)."""

from collections.abc import Sequence

from pipeline.core.abis import ARM_ABIS
from pipeline.partition.answer import Refusal
from pipeline.partition.graph import Shape
from pipeline.partition.rules import (
    Case,
    Check,
    attribute,
    constant,
    first_refusal,
    given,
    rank,
    show,
    show_shape,
    shrinks_evenly,
    when,
)
from pipeline.partition.units import plain_unit

FLOATS = ("f32", "f16")
PADDINGS = ("NOTSET", "VALID", "SAME_UPPER")
FIX = "fix the model's dynamic dimensions (the batch may stay open)"


def known(*positions: int) -> Check:
    """These dimensions of input 0 have values."""

    def check(case: Case) -> Refusal | None:
        shape = case.shape(0) or ()
        if all(shape[position] is not None for position in positions if position < len(shape)):
            return None
        return Refusal(
            "dynamic", f"channels, height or width of {show(case, 0)} {show_shape(shape)} are not known", FIX
        )

    return check


def _auto_pad(case: Case) -> Refusal | None:
    return attribute("auto_pad", PADDINGS, default="NOTSET")(case)


CONV: tuple[Check, ...] = (
    rank(0, 3, 4),
    known(1, 2, 3),
    constant(1, "the weight"),
    when(given(2), constant(2, "the bias")),
    when(lambda case: case.attribute("pads") is None, _auto_pad),
)


def _kernel(case: Case) -> Refusal | None:
    kernel = case.attribute("kernel_shape")
    if kernel is None or len(kernel) != 2:
        return Refusal("attr", f"kernel_shape {kernel} is not two-dimensional", "pool over two dimensions")
    if tuple(kernel) == (1, 1):
        return Refusal("attr", "kernel_shape [1, 1] pools nothing", "leave the pooling out")
    return None


def _one_output(case: Case) -> Refusal | None:
    if not any(case.node.outputs[1:]):
        return None
    return Refusal("outputs", "the second output (indices) is not taken", "drop the indices")


MAX_POOL: tuple[Check, ...] = (
    rank(0, 4, 4),
    known(1, 2, 3),
    _one_output,
    attribute("ceil_mode", (0,), default=0),
    _auto_pad,
    _kernel,
)


def _padding_counts(case: Case) -> Refusal | None:
    """Float kernels leave padding out of the mean, quantized ones count it."""
    wanted = 1 if case.unit.group else 0
    return attribute("count_include_pad", (wanted,), default=0)(case)


def _undilated(case: Case) -> Refusal | None:
    dilations = case.attribute("dilations")
    if dilations is None or set(dilations) <= {1}:
        return None
    return Refusal("dilations", f"dilations {list(dilations)} are not taken", "pool without dilations")


AVERAGE_POOL: tuple[Check, ...] = (
    rank(0, 4, 4),
    known(1, 2, 3),
    attribute("ceil_mode", (0,), default=0),
    _auto_pad,
    _kernel,
    _padding_counts,
    _undilated,
)


def softmax(case: Case) -> Refusal | None:
    """The last dimension since opset 13; before, whatever ONNX Runtime reads (`softmax_reads_outside`)."""
    shape = case.shape(0)
    if not shape:
        return Refusal("rank", f"the rank of {show(case, 0)} is unknown, or 0", "give the value a shape")
    if case.ver < 13:
        return None
    axis = case.attribute("axis", -1)
    if axis not in (-1, len(shape) - 1):
        return Refusal(
            "axis", f"axis {axis} of {show_shape(shape)} is not the last", "transpose, so that it is the last"
        )
    return known(len(shape) - 1)(case)


def softmax_reads_outside(case: Case) -> bool:
    """Before opset 13 a negative axis other than -1 makes ONNX Runtime read memory before the shape.

    What comes of it is open: mostly the process ends, sometimes it goes unnoticed and the node is claimed.
    """
    return case.ver < 13 and case.attribute("axis", -1) < -1


def _on_node(case: Case) -> Case:
    """The target alone: XNNPACK reads the inputs of Gemm and MatMul, not those of the group around them."""
    return Case(case.graph, plain_unit(case.node), case.settings)


def half_precision(case: Case) -> Refusal | None:
    """XNNPACK is compiled with half precision for ARM and desktop x86 alone (android_library.md, numerics)."""
    if case.dtype(0) != "f16" or not case.settings.android or case.settings.abi in ARM_ABIS:
        return None
    return Refusal(
        "type",
        f"input {show(case, 0)} is f16; Android's x86 libraries have XNNPACK without half precision, ARM's have it",
        "compute in f32, or ask for the ABI of phones (--abi arm64-v8a)",
    )


def own_half_precision(case: Case) -> Refusal | None:
    """The same of the node's own input, where a group around it is not looked at."""
    return half_precision(_on_node(case))


def gemm(case: Case) -> Refusal | None:
    """Plain attributes, constant B and C, at most two dimensions."""
    return first_refusal(
        _on_node(case),
        (
            attribute("alpha", (1.0,), default=1.0),
            attribute("beta", (1.0,), default=1.0),
            _float_a,
            constant(1, "B"),
            _c_exists,
            *(rank(position, 0, 2) for position in (0, 1)),
            _bias,
        ),
    )


def _float_a(case: Case) -> Refusal | None:
    if case.dtype(0) in FLOATS:
        return None
    return Refusal("type", f"A {show(case, 0)} is {case.dtype(0)}, XNNPACK supports f32 and f16", "compute in f32")


def _crash(case: Case, text: str) -> Refusal:
    name = case.node.name or case.node.first_output
    return Refusal(
        "crash",
        f"Gemm '{name}' {text}: ONNX Runtime up to 1.26 reads its shape all the same, and the process ends",
        "give Gemm a bias C of shape [N] (zeros), or ship release 1.27 or later",
        fatal=True,
    )


def _c_exists(case: Case) -> Refusal | None:
    """Without C the process ends up to release 1.26."""
    if case.settings.ort_release >= (1, 27):
        return constant(2, "C")(case) if case.exists(2) else None
    if case.listed < 3:
        return _crash(case, "has no input C")
    return constant(2, "C")(case)


def _bias(case: Case) -> Refusal | None:
    if not case.exists(2):
        return None
    shape, weight = case.shape(2), case.shape(1) or ()
    if shape is None or len(shape) > 2:
        return rank(2, 1, 2)(case)
    if not shape:
        scalar = Refusal("bias", "C is a single number", "give C as [N]")
        return scalar if case.settings.ort_release >= (1, 27) else _crash(case, "has a C of rank 0")
    if (shape[0] or 0) in [dim or 0 for dim in weight]:
        return None
    return Refusal(
        "bias",
        f"C {show_shape(shape)} does not begin with a dimension of B {show_shape(weight)}",
        "give C as [N], without a leading 1",
    )


def matmul(case: Case) -> Refusal | None:
    """A constant B of at most two dimensions."""
    return first_refusal(_on_node(case), (_two_inputs, _float_a, _matmul_a, rank(1, 0, 2), _matmul_b, constant(1, "B")))


def _two_inputs(case: Case) -> Refusal | None:
    if case.listed == 2:
        return None
    return Refusal("inputs", f"it lists {case.listed} inputs, taken are 2", "leave out the others")


def _matmul_a(case: Case) -> Refusal | None:
    """Up to release 1.22 at most two dimensions, all known and none 0."""
    shape = case.shape(0)
    if not shape:
        return Refusal("rank", f"the rank of A {show(case, 0)} is unknown, or 0", "give A a shape")
    if case.settings.ort_release >= (1, 23) or (len(shape) <= 2 and all(shape)):
        return None
    return Refusal(
        "rank",
        f"A {show(case, 0)} {show_shape(shape)}: releases up to 1.22 take two known dimensions at most",
        "ship release 1.23 or later, or reshape A to two dimensions",
    )


def _matmul_b(case: Case) -> Refusal | None:
    shape = case.shape(1) or ()
    if 0 not in shape:
        return None
    return Refusal("zero", f"B {show(case, 1)} {show_shape(shape)} is empty", "leave the node out")


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
