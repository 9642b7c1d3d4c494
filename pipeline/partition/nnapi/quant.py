"""What NNAPI asks of quantization parameters (ep_rules D.3) and of Resize (D.5)."""

from collections.abc import Sequence

from pipeline.partition.answer import Refusal
from pipeline.partition.graph import Graph
from pipeline.partition.rules import Case, constant, show, show_shape, shrinks_evenly
from pipeline.partition.units import Quant, UnitValue

WEIGHT_OPS = ("Conv", "QLinearConv", "Gemm", "MatMul", "QLinearMatMul")
"""Ops whose second operand may be i8."""

PER_CHANNEL_OPS = ("Conv", "QLinearConv", "Gemm")
"""Ops whose i8 weight may have a scale for each output channel."""

PER_TENSOR = "quantize this value per tensor to u8 with constant parameters"


def quantized_input(case: Case, position: int) -> Refusal | None:
    """Q(io) of ep_rules D.3 for an input."""
    if position >= case.listed:
        return Refusal("qtype", f"quantized input {position} is not listed", "give the input")
    return _accepted(case, case.unit.inputs[position], weight=position == 1 and case.node.op_type in WEIGHT_OPS)


def quantized_output(case: Case) -> Refusal | None:
    """Q(io) of ep_rules D.3 for the first output."""
    return _accepted(case, case.unit.outputs[0], weight=False)


def quantized_inputs(case: Case) -> Refusal | None:
    """Q(io) for every input, as Concat asks."""
    inputs = (quantized_input(case, position) for position in range(case.listed))
    return next((refusal for refusal in inputs if refusal is not None), None)


def first_input(case: Case) -> Refusal | None:
    """Q(in 0)."""
    return quantized_input(case, 0)


def two_operands(case: Case) -> Refusal | None:
    """QB of ep_rules D.3: u8 times u8, or u8 times an i8 weight."""
    if case.node.op_type in ("QLinearAdd", "QLinearMul") and len(case.node.inputs) == 7:
        return Refusal(
            "crash",
            f"{case.node.op_type} lists no output zero point: NNAPI's check reads beyond its inputs "
            "and the process ends",
            "list the output zero point as eighth input, 0 if there is none",
            fatal=True,
        )
    kinds = case.dtype(0), case.dtype(1)
    weights = ("u8", "i8") if case.node.op_type in WEIGHT_OPS else ("u8",)
    if kinds[0] != "u8" or kinds[1] not in weights:
        return Refusal(
            "qtype",
            f"the operands are {kinds[0]} and {kinds[1]}; NNAPI supports u8 with {' or '.join(weights)}",
            "quantize activations to u8 (QDQ u8u8, or u8s8 for weights)",
        )
    return quantized_input(case, 0) or quantized_input(case, 1) or quantized_output(case)


def _accepted(case: Case, io: UnitValue, *, weight: bool) -> Refusal | None:
    if io.quant is None:
        return Refusal(
            "throw",
            f"{case.node.op_type} with quantized inputs has no QuantizeLinear behind it: "
            "NNAPI throws and no session is made",
            "quantize the output too, or take the DequantizeLinear nodes away",
            fatal=True,
        )
    kind = case.graph.value(io.name).dtype
    signed_weight = weight and kind == "i8"
    if kind != "u8" and not signed_weight:
        return Refusal("qtype", f"quantized value '{io.name}' is {kind}, NNAPI supports u8", PER_TENSOR)
    return _scale(case, io, io.quant, signed_weight=signed_weight) or _zero_point(
        case, io, io.quant, signed_weight=signed_weight
    )


def _count(dims: tuple[int, ...]) -> int:
    """The number of parameters as ONNX Runtime counts them: 1 for a scalar, else the first dimension."""
    return dims[0] if dims else 1


def _channels(graph: Graph, name: str) -> int | None:
    shape = graph.value(name).shape
    return shape[0] if shape else None


def _scale(case: Case, io: UnitValue, quant: Quant, *, signed_weight: bool) -> Refusal | None:
    initializer = case.graph.constant(quant.scale)
    if initializer is None:
        return Refusal("qscale_const", f"the scale '{quant.scale}' of '{io.name}' is not a constant", PER_TENSOR)
    count = _count(initializer.dims)
    channels = _channels(case.graph, io.name)
    per_channel = signed_weight and case.node.op_type in PER_CHANNEL_OPS and case.settings.api_level >= 29
    if count == 1 or (per_channel and count == channels):
        return None
    return Refusal(
        "qscale_channel",
        f"'{io.name}' {show_shape(case.graph.value(io.name).shape)} has {count} scales; NNAPI supports one for each "
        "output channel only for i8 weights of Conv and Gemm, from API level 29 on",
        PER_TENSOR,
    )


def _zero_point(case: Case, io: UnitValue, quant: Quant, *, signed_weight: bool) -> Refusal | None:
    if quant.zero_point is None:
        return None
    initializer = case.graph.constant(quant.zero_point)
    if initializer is None:
        return Refusal("qzp_const", f"the zero point '{quant.zero_point}' of '{io.name}' is not a constant", PER_TENSOR)
    count = _count(initializer.dims)
    if not signed_weight:
        if count == 1:
            return None
        return Refusal("qzp_channel", f"'{io.name}' has {count} zero points, NNAPI supports one", PER_TENSOR)
    per_channel = case.node.op_type in PER_CHANNEL_OPS and count == _channels(case.graph, io.name)
    if initializer.dtype == "i8" and (count == 1 or per_channel) and not any(initializer.numbers()):
        return None
    return Refusal(
        "qzp",
        f"the i8 weight '{io.name}' has zero points other than 0",
        "quantize weights symmetrically (zero point 0)",
    )


def parameters(graph: Graph, io: UnitValue) -> tuple[float, int] | None:
    """Scale and zero point of a value as numbers; None when they are not constant or not one of each."""
    if io.quant is None:
        return None
    scale = graph.constant(io.quant.scale)
    zero = graph.constant(io.quant.zero_point) if io.quant.zero_point else None
    if scale is None or scale.count < 1 or (io.quant.zero_point is not None and (zero is None or zero.count < 1)):
        return None
    return float(scale.numbers()[0]), int(zero.numbers()[0]) if zero else 0


def same_parameters(case: Case) -> Refusal | None:
    """Every input's and the output's scale and zero point are those of input 0."""
    first = parameters(case.graph, case.unit.inputs[0])
    for io in (*case.unit.inputs[1:], case.unit.outputs[0]):
        pair = parameters(case.graph, io)
        if pair != first:
            return Refusal(
                "qparam",
                f"'{io.name}' has scale and zero point {pair}, input '{case.input(0)}' has {first}; they must be equal",
                "quantize inputs and output of this node with the same parameters",
            )
    return None


def sigmoid_output(case: Case) -> Refusal | None:
    """The output of Sigmoid and Softmax must have scale 1/256 and zero point 0."""
    pair = parameters(case.graph, case.unit.outputs[0])
    if pair == (1 / 256, 0):
        return None
    return Refusal(
        "qparam",
        f"the output has scale and zero point {pair}, NNAPI needs exactly (1/256, 0) here",
        "quantize this output with scale 1/256 and zero point 0",
    )


CHANNELS_LAST = (0, 2, 3, 1)
EQUIVALENT = "export Resize as linear half_pixel, or nearest with asymmetric coordinates and floor"


def resize(case: Case) -> Refusal | None:
    """Two spatial dimensions, the few modes that NNAPI computes alike, scales or sizes known beforehand."""
    if case.rank(0) != 4:
        return Refusal("rank", f"input {show(case, 0)} {show_shape(case.shape(0))} is not of rank 4", "use rank 4")
    return _mode(case) or _since_18(case) or _target(case)


def _mode(case: Case) -> Refusal | None:
    mode = case.attribute("mode", "nearest")
    if mode not in ("linear", "nearest"):
        return Refusal("mode", f"mode {mode} is not taken", EQUIVALENT)
    if case.attribute("exclude_outside", 0) != 0:
        return Refusal("attr", "exclude_outside = 1 is not taken", "set it to 0")
    coordinates = case.attribute("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        rounding = case.attribute("nearest_mode", "round_prefer_floor")
        if (coordinates, rounding) != ("asymmetric", "floor"):
            return Refusal("coord", f"nearest with {coordinates} and {rounding} is not taken", EQUIVALENT)
    elif coordinates not in ("half_pixel", "align_corners", "asymmetric"):
        return Refusal("coord", f"linear with {coordinates} is not taken", EQUIVALENT)
    elif coordinates != "asymmetric" and case.settings.api_level < 30:
        return Refusal("coord", f"linear with {coordinates} needs API level 30", "target Android 11, or use asymmetric")
    return None


def _since_18(case: Case) -> Refusal | None:
    if case.ver < 18:
        return None
    if case.attribute("antialias", 0) != 0:
        return Refusal("attr", "antialias = 1 is not taken", "set it to 0")
    if case.attribute("axes"):
        return Refusal("attr", "attribute axes is not taken", "give scales or sizes for all four dimensions")
    if case.attribute("keep_aspect_ratio_policy", "stretch") != "stretch":
        return Refusal("attr", "keep_aspect_ratio_policy other than stretch is not taken", "give the sizes themselves")
    return None


def _target(case: Case) -> Refusal | None:
    position = 2 if case.exists(2) else 3
    if not case.exists(position):
        return Refusal("const", "neither scales nor sizes are given", "give constant scales")
    refusal = constant(position, "scales" if position == 2 else "sizes")(case)
    initializer = case.constant(position)
    if refusal is not None or initializer is None:
        return refusal
    numbers = initializer.numbers()
    if len(numbers) < 4:
        return Refusal(
            "crash",
            f"Resize '{case.node.name}' lists {show(case, position)} with {len(numbers)} entries: ONNX Runtime "
            "reads four and the process ends",
            "leave the empty input out by an empty name, or give four entries",
            fatal=True,
        )
    shape = [dim or 0 for dim in case.shape(0) or ()]
    return _scales(case, shape, numbers) if position == 2 else _sizes(case, shape, numbers)


def permuted(case: Case) -> Refusal | None:
    """The same question after the layout transformation: shape and target in channels-last order (A.3)."""
    position = 2 if case.exists(2) else 3
    initializer, shape = case.constant(position), case.shape(0)
    if initializer is None or shape is None or initializer.count != 4 or len(shape) != 4:
        return None
    numbers = initializer.numbers()
    last = [numbers[axis] for axis in CHANNELS_LAST]
    sizes = [shape[axis] or 0 for axis in CHANNELS_LAST]
    return _scales(case, sizes, last) if position == 2 else _sizes(case, sizes, last)


def _scales(case: Case, shape: Sequence[int], scales: Sequence[float]) -> Refusal | None:
    nchw = scales[1] == 1.0
    channel, height, width = scales[1:] if nchw else (scales[3], scales[1], scales[2])
    if (scales[0], channel) != (1.0, 1.0):
        return Refusal("nc", f"scales {list(scales)} change batch or channels", "scale height and width only")
    if height < 1 or width < 1:
        rows, columns = (shape[2], shape[3]) if nchw else (shape[1], shape[2])
        if not (rows and columns and shrinks_evenly(rows, height) and shrinks_evenly(columns, width)):
            return Refusal(
                "factor",
                f"shrinking {rows}x{columns} by {height:g}, {width:g}: both must shrink by a whole divisor of the size",
                "give sizes in place of scales, or shrink by a divisor",
            )
    return _layout(case, nchw)


def _sizes(case: Case, shape: Sequence[int], sizes: Sequence[int]) -> Refusal | None:
    nchw = sizes[1] == shape[1]
    channel = 1 if nchw else 3
    if sizes[0] != shape[0] or sizes[channel] != shape[channel]:
        return Refusal(
            "nc", f"sizes {list(sizes)} of {list(shape)} change batch or channels", "resize height and width only"
        )
    return _layout(case, nchw)


def _layout(case: Case, nchw: bool) -> Refusal | None:
    if nchw and case.settings.api_level <= 28:
        return Refusal("nchw", "channels first needs API level 29", "target Android 10 or later")
    return None
