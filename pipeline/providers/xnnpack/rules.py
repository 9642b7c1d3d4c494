"""XNNPACK (ep_rules F): the table of its operators and their checks."""

from collections.abc import Sequence

from pipeline.core import abis as core_abis
from pipeline.partition.answer import Refusal
from pipeline.partition.rules import (
    Check,
    Rule,
    Table,
    attribute,
    constant,
    dtype,
    first_refusal,
    given,
    listed,
    no_axes,
    rank,
    refuse,
    show,
    show_shape,
    shrinks_evenly,
    when,
)
from pipeline.partition.types import Shape
from pipeline.partition.units import Case, UnitValue, plain_unit

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


_auto_pad = attribute("auto_pad", PADDINGS, default="NOTSET")


def grouped(case: Case) -> bool:
    """Condition: the node is judged with the DequantizeLinear and QuantizeLinear nodes around it."""
    return case.unit.group


def on_node(*checks: Check) -> Check:
    """Ask about the target alone: XNNPACK reads the inputs of Gemm and MatMul, not those of the group around them."""
    return lambda case: first_refusal(Case(case.graph, plain_unit(case.node), case.settings), checks)


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


MAX_POOL: tuple[Check, ...] = (
    rank(0, 4, 4),
    known(1, 2, 3),
    refuse(
        lambda case: any(case.node.outputs[1:]),
        "outputs",
        lambda _: "the second output (indices) is not taken",
        "drop the indices",
    ),
    attribute("ceil_mode", (0,), default=0),
    _auto_pad,
    _kernel,
)


AVERAGE_POOL: tuple[Check, ...] = (
    rank(0, 4, 4),
    known(1, 2, 3),
    attribute("ceil_mode", (0,), default=0),
    _auto_pad,
    _kernel,
    # Float kernels leave padding out of the mean, quantized ones count it.
    when(grouped, attribute("count_include_pad", (1,), default=0)),
    when(lambda case: not case.unit.group, attribute("count_include_pad", (0,), default=0)),
    refuse(
        lambda case: not set(case.attribute("dilations") or ()) <= {1},
        "dilations",
        lambda case: f"dilations {list(case.attribute('dilations'))} are not taken",
        "pool without dilations",
    ),
)


def softmax(case: Case) -> Refusal | None:
    """The last dimension since opset 13; before, whatever ONNX Runtime reads (`LOAD_CHECKS`)."""
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


def half_precision(case: Case) -> Refusal | None:
    """XNNPACK is compiled with half precision for ARM and desktop x86 alone (android_library.md, numerics)."""
    if case.dtype(0) != "f16" or not case.settings.android or case.settings.abi in core_abis.ARM_ABIS:
        return None
    return Refusal(
        "type",
        f"input {show(case, 0)} is f16; Android's x86 libraries have XNNPACK without half precision, ARM's have it",
        "compute in f32, or ask for the ABI of phones (--abi arm64-v8a)",
    )


own_half_precision = on_node(half_precision)


FLOAT_A = refuse(
    lambda case: case.dtype(0) not in FLOATS,
    "type",
    lambda case: f"A {show(case, 0)} is {case.dtype(0)}, XNNPACK supports f32 and f16",
    "compute in f32",
)


def _crash(case: Case, text: str) -> Refusal:
    return Refusal(
        "crash",
        f"{case.label} {text}: ONNX Runtime up to 1.26 reads its shape all the same, and the process ends",
        "give Gemm a bias C of shape [N] (zeros), or ship release 1.27 or later",
        fatal=True,
    )


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


def may_lack_c(case: Case) -> bool:
    """Condition: without C the process does not end, as it does up to release 1.26."""
    return case.settings.ort_release >= (1, 27)


GEMM = on_node(
    attribute("alpha", (1.0,), default=1.0),
    attribute("beta", (1.0,), default=1.0),
    FLOAT_A,
    constant(1, "B"),
    lambda case: None if may_lack_c(case) or case.listed > 2 else _crash(case, "has no input C"),
    when(lambda case: not may_lack_c(case) or case.exists(2), constant(2, "C")),
    *(rank(position, 0, 2) for position in (0, 1)),
    _bias,
)
"""Plain attributes, constant B and C, at most two dimensions."""

MATMUL = on_node(
    refuse(
        lambda case: case.listed != 2,
        "inputs",
        lambda case: f"it lists {case.listed} inputs, taken are 2",
        "leave out the others",
    ),
    FLOAT_A,
    refuse(
        lambda case: not case.shape(0),
        "rank",
        lambda case: f"the rank of A {show(case, 0)} is unknown, or 0",
        "give A a shape",
    ),
    # Up to release 1.22 at most two dimensions, all known and none 0
    refuse(
        lambda case: case.settings.ort_release < (1, 23) and not (case.rank(0) <= 2 and all(case.shape(0) or ())),
        "rank",
        lambda case: (
            f"A {show(case, 0)} {show_shape(case.shape(0))}: releases up to 1.22 take two known dimensions at most"
        ),
        "ship release 1.23 or later, or reshape A to two dimensions",
    ),
    rank(1, 0, 2),
    refuse(
        lambda case: 0 in (case.shape(1) or ()),
        "zero",
        lambda case: f"B {show(case, 1)} {show_shape(case.shape(1))} is empty",
        "leave the node out",
    ),
    constant(1, "B"),
)
"""A constant B of at most two dimensions."""


EQUIVALENT = "export Resize as linear half_pixel, asymmetric or align_corners"


def _target(case: Case) -> Refusal | None:
    """Scales or sizes are constant; each that is constant is tested."""
    shape = case.shape(0) or ()
    scales = case.constant(1 if case.ver == 10 else 2)
    sizes = case.constant(3) if case.ver > 10 else None
    if scales is None and sizes is None:
        return constant(1 if case.ver == 10 else 3 if case.exists(3) else 2, "scales or sizes")(case)
    refusal = _scales(case, shape, scales.numbers()) if scales is not None else None
    if refusal is not None or sizes is None:
        return refusal
    numbers = sizes.numbers()
    if len(numbers) < 2:
        return _short(case, "sizes", len(numbers))
    text = f"sizes {list(numbers)} of {show_shape(shape)} change the channels"
    return None if numbers[1] == shape[1] else Refusal("nc", text, "resize height and width only")


def _short(case: Case, what: str, count: int) -> Refusal:
    return Refusal(
        "crash",
        f"{case.label} has {count} {what}: ONNX Runtime's XNNPACK part reads more, and the process ends",
        "leave an empty list out by an empty name, or give one entry for each of the four dimensions",
        fatal=True,
    )


def _scales(case: Case, shape: Shape, scales: Sequence[float]) -> Refusal | None:
    if len(scales) > 1 and scales[1] != 1:
        return Refusal("nc", f"scales {list(scales)} change the channels", "resize height and width only")
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


def _coordinates(case: Case) -> Refusal | None:
    mode = case.attribute("coordinate_transformation_mode", "half_pixel") if case.ver > 10 else "asymmetric"
    shape = case.graph.value(case.unit.outputs[0].name).shape or ()
    large = all((dim or 0) > 1 for dim in shape[2:4])
    taken = ("asymmetric", "half_pixel", "align_corners", *(("pytorch_half_pixel",) if large else ()))
    if mode in taken:
        return None
    return Refusal("coord", f"coordinate_transformation_mode {mode} is not taken here", EQUIVALENT)


RESIZE: tuple[Check, ...] = (
    refuse(
        lambda case: case.rank(0) != 4 or not (case.shape(0) or (0, 0))[1],
        "rank",
        lambda case: f"input {show(case, 0)} {show_shape(case.shape(0))} is not of rank 4 with known channels",
        "resize values of shape [N, C, H, W]",
    ),
    _target,
    refuse(
        lambda case: case.graph.value(case.unit.outputs[0].name).shape is None,
        "crash",
        lambda case: (
            f"the rank of the result of {case.label} is not known: ONNX Runtime's "
            "XNNPACK part reads its dimensions all the same, and the process ends"
        ),
        "give the value's shape in the model (value_info), or constant sizes",
        fatal=True,
    ),
    attribute("mode", ("linear",), default="nearest", code="mode"),
    attribute("antialias", (0,), default=0),
    no_axes,
    attribute("keep_aspect_ratio_policy", ("stretch",), default="stretch"),
    attribute("extrapolation_value", (0.0,), default=0.0),
    _coordinates,
    attribute("exclude_outside", (0,), default=0),
)
"""Linear resizing of height and width, in the order of ONNX Runtime's checks (one of them ends the process)."""


CONV_TYPES = {("u8", "u8", "u8"), ("s8", "s8", "s8"), ("s8", "s8pc", "s8")}
"""Kinds of input, weight and output that Conv supports; s8pc has a scale for each output channel."""

REMEDY = "quantize activations and weights alike: u8 with u8, or i8 with i8 (weights per channel if you like)"


def kind(case: Case, value: UnitValue) -> str | None:
    """u8, s8 or s8pc (one scale for each entry of dimension 0); None for what XNNPACK cannot use."""
    tensor = case.graph.value(value.name)
    if value.scale is None or tensor.dtype is None or tensor.shape is None:
        return None
    scale = case.graph.constant(value.scale)
    zero = case.graph.constant(value.zero_point) if value.zero_point else None
    if scale is None or (zero is not None and zero.dtype != tensor.dtype):
        return None
    scales = scale.dims[0] if scale.dims else 1
    zeros = 0 if zero is None else zero.dims[0] if zero.dims else 1
    if tensor.dtype == "u8":
        return "u8" if value.zero_point is None or scales == zeros == 1 else None
    if tensor.dtype != "i8" or zeros not in (0, scales):
        return None
    if scales == 1:
        return "s8"
    return "s8pc" if tensor.shape and tensor.shape[0] == scales else None


def _refused(case: Case, what: str) -> Refusal:
    return Refusal("quant", f"quantized {case.node.op_type}: {what}", REMEDY)


def conv_types(case: Case) -> Refusal | None:
    """The combinations of types that XNNPACK has kernels for; a constant i32 bias but for per-channel weights."""
    if not case.unit.group:
        return None
    kinds = kind(case, case.unit.inputs[0]), kind(case, case.unit.inputs[1]), kind(case, case.unit.outputs[0])
    if kinds not in CONV_TYPES:
        words = ", ".join(name or "not usable" for name in kinds)
        return _refused(case, f"input, weight and output are {words}")
    if kinds[1] != "s8pc" and listed(2)(case) and (case.dtype(2) != "i32" or case.constant(2) is None):
        return _refused(case, f"the bias {show(case, 2)} is no constant of type i32")
    return None


def same_kind(*taken: str) -> Check:
    """Input and output are of one of these kinds."""

    def check(case: Case) -> Refusal | None:
        first, last = kind(case, case.unit.inputs[0]), kind(case, case.unit.outputs[0])
        if first == last and first in taken:
            return None
        return _refused(case, f"input is {first or 'not usable'} and output {last or 'not usable'}")

    return check


def softmax_output(case: Case) -> Refusal | None:
    """The one scale and zero point that XNNPACK's kernel has."""
    output = case.unit.outputs[0]
    scale = case.graph.constant(output.scale) if output.scale is not None else None
    zero = case.graph.constant(output.zero_point) if output.zero_point and output.scale is not None else None
    if scale is not None and abs(scale.numbers()[0] - 1 / 256) > 1e-4:
        return _refused(case, f"the output's scale is {scale.numbers()[0]:g}, not 1/256")
    if zero is not None and zero.numbers()[0] != 0:
        return _refused(case, f"the output's zero point is {zero.numbers()[0]}, not 0")
    return None


AVERAGE_POOL_TYPES = when(
    grouped,
    refuse(
        lambda case: case.settings.ort_release >= (1, 24),
        "quant",
        lambda case: f"quantized {case.node.op_type}: not taken since release 1.24",
        REMEDY,
    ),
    same_kind("u8"),
)


WITH_I8 = (half_precision, dtype(0, ("f32", "f16", "u8", "i8")))
WITH_U8 = (half_precision, dtype(0, ("f32", "f16", "u8")))


MAX_POOL_TYPES = (
    own_half_precision,
    # MaxPool's type is that of the node's own input, in a QDQ group a float.
    refuse(
        lambda case: case.graph.value(case.node.inputs[0]).dtype not in ("f32", "f16", "u8", "i8"),
        "type",
        lambda case: f"input '{case.node.inputs[0]}' is of type {case.graph.value(case.node.inputs[0]).dtype}",
        "pool in f32",
    ),
)


TABLE: Table = {
    "Conv": Rule(since=11, types=WITH_I8, checks=(conv_types, *CONV)),
    "ConvTranspose": Rule(since=11, types=WITH_I8, checks=(conv_types, *CONV)),
    "MaxPool": Rule(since=8, types=MAX_POOL_TYPES, checks=(when(grouped, same_kind("u8", "s8")), *MAX_POOL)),
    "AveragePool": Rule(since=7, types=WITH_U8, checks=(AVERAGE_POOL_TYPES, *AVERAGE_POOL)),
    "Softmax": Rule(types=WITH_U8, checks=(when(grouped, same_kind("u8"), softmax_output), softmax)),
    "Resize": Rule(since=10, types=WITH_I8, checks=RESIZE),
    "Gemm": Rule(since=7, types=(own_half_precision,), checks=(GEMM,)),
    "MatMul": Rule(types=(own_half_precision,), checks=(MATMUL,)),
}
