"""NNAPI (ep_rules D): the table of its operators and their checks."""

from collections.abc import Sequence
from math import prod

from pipeline.partition.answer import Refusal
from pipeline.partition.graph import Graph
from pipeline.partition.rules import (
    Check,
    Rule,
    Table,
    attribute,
    constant,
    dtype,
    given,
    listed,
    no_axes,
    outputs,
    rank,
    refuse,
    show,
    show_shape,
    shrinks_evenly,
    since,
    when,
)
from pipeline.partition.units import Case, UnitValue, clip_bounds


def ranks_up_to_4(case: Case) -> Refusal | None:
    """Both operands of a broadcasting op have at most four dimensions."""
    for position in (0, 1):
        if case.rank(position) > 4:
            return Refusal(
                "rank",
                f"operand {show(case, position)} {show_shape(case.shape(position))} has more than 4 dimensions",
                "merge dimensions with a Reshape before the node",
            )
    return None


no_zero_dimension = refuse(
    lambda case: 0 in (case.shape(0) or ()),
    "zero",
    lambda case: f"input {show(case, 0)} {show_shape(case.shape(0))} is empty",
    "leave the node out",
)
two_inputs = refuse(
    lambda case: len(case.node.inputs) != 2,
    "inputs",
    lambda case: f"it has {len(case.node.inputs)} inputs, NNAPI supports 2",
    "chain nodes of two inputs",
)
gather = refuse(
    lambda case: case.dtype(1) != "i32" and case.constant(1) is None,
    "const",
    lambda case: (
        f"indices {show(case, 1)} are {case.dtype(1)} and not constant; NNAPI supports i32 or constant indices"
    ),
    "compute the indices in i32",
)
BOUNDS: tuple[Check, ...] = (
    constant(1, "starts"),
    constant(2, "ends"),
    when(listed(3), constant(3, "axes")),
    when(listed(4), constant(4, "steps")),
)
"""Everything about a Slice is known beforehand."""
PARAMETERS = tuple(constant(position, name) for position, name in enumerate(("scale", "B", "mean", "variance"), 1))
"""Of BatchNormalization."""
axes = when(since(13), when(listed(1), constant(1, "axes")))
"""Axes of Squeeze and Unsqueeze, an input from opset 13 on, are constant when they are listed."""


def clip(case: Case) -> Refusal | None:
    """Only the two ranges that NNAPI has as activations: RELU6 and RELU1."""
    bounds = clip_bounds(case.graph, case.node)
    if bounds is None:
        return Refusal("const", "min or max is not a constant", "make the bounds of Clip initializers")
    if bounds in ((0.0, 6.0), (-1.0, 1.0)):
        return None
    return Refusal(
        "value",
        f"Clip to [{bounds[0]:g}, {bounds[1]:g}]: NNAPI has [0, 6] and [-1, 1] only",
        "use ReLU6, or Min and Max with constant operands",
    )


at_most_4 = refuse(
    lambda case: case.rank(0) > 4,
    "rank",
    lambda case: f"input {show(case, 0)} has rank {case.rank(0)}, at most 4 is taken",
    "reshape around it",
)
exactly_4 = refuse(
    lambda case: case.rank(0) != 4,
    "rank",
    lambda case: f"input {show(case, 0)} {show_shape(case.shape(0))} is not of rank 4",
    "use rank 4",
)
spatial = refuse(
    lambda case: case.attribute("spatial", 1) != 1,
    "attr",
    lambda _: "attribute spatial is 0",
    "convert the model to opset 9 or later",
)


def conv(case: Case) -> Refusal | None:
    """Constant 2-D weights; dilations from level 29 on, not together with groups."""
    quantized = case.unit.group or case.node.op_type == "QLinearConv"
    if quantized and case.node.domain == "com.microsoft":
        return Refusal("domain", "com.microsoft's quantized Conv is not taken", "use the ONNX operator")
    refusal = constant(1, "the weight")(case)
    if refusal is not None:
        return refusal
    weight, dilations, groups = case.shape(1) or (), case.attribute("dilations"), case.attribute("group", 1)
    if len(weight) != 4:
        return Refusal(
            "rank", f"weight {show(case, 1)} {show_shape(weight)} is not of rank 4", "write a 1-D Conv as a 2-D one"
        )
    if dilations is not None and tuple(dilations) != (1, 1):
        if groups != 1 and weight[1] != 1:
            text = f"dilations {list(dilations)} with {groups} groups"
            return Refusal("dilations", text, "use one group, or depthwise")
        if case.settings.api_level < 29:
            text = f"dilations {list(dilations)} need API level 29"
            return Refusal("dilations", text, "target Android 10 or later")
    return constant(2, "the bias")(case) if quantized and case.listed > 2 else None


def pool(case: Case) -> Refusal | None:
    """2-D pooling without ceiling, dilations, indices or padding in the mean."""
    kernel = case.attribute("kernel_shape") or ()
    dilations = case.attribute("dilations")
    problems = (
        (case.rank(0) != 4, "rank", f"input {show(case, 0)} {show_shape(case.shape(0))} is not of rank 4"),
        (case.attribute("count_include_pad", 0) == 1, "attr", "count_include_pad = 1 is not taken"),
        (case.attribute("storage_order", 0) == 1, "attr", "storage_order = 1 is not taken"),
        (len(kernel) != 2, "attr", f"kernel_shape {list(kernel)} is not two-dimensional"),
        (case.attribute("ceil_mode", 0) == 1, "attr", "ceil_mode = 1 is not taken"),
        (dilations is not None and tuple(dilations) != (1, 1), "dilations", f"dilations {dilations} are not taken"),
        (len(case.node.outputs) != 1, "outputs", "the second output (indices) is not taken"),
    )
    return next((Refusal(code, text, "export the pooling without it") for bad, code, text in problems if bad), None)


def depth_to_space(case: Case) -> Refusal | None:
    """NNAPI's own order of channels (DCR)."""
    if case.settings.nchw and case.settings.api_level < 29:
        return Refusal("level", "with USE_NCHW it needs API level 29", "leave USE_NCHW out, or target Android 10")
    if case.ver >= 11 and case.attribute("mode", "DCR") != "DCR":
        return Refusal(
            "mode", "mode CRD is not taken", "export DepthToSpace with mode DCR (reorder the weights before it)"
        )
    return None


def flatten(case: Case) -> Refusal | None:
    """Not both dimensions of the result are 0."""
    shape = [dim or 0 for dim in case.shape(0) or ()]
    axis = case.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    if prod(shape[:axis]) or prod(shape[axis:]):
        return None
    return Refusal("zero", "both dimensions of the result are 0", "leave the node out")


def pad(case: Case) -> Refusal | None:
    """Constant, non-negative padding by a constant value."""
    if case.attribute("mode", "constant") != "constant":
        mode = case.attribute("mode")
        return Refusal(
            "mode", f"mode {mode} is not taken", "write reflect padding as Slice and Concat, or pad by a constant"
        )
    refusal = constant(1, "pads")(case)
    if refusal is not None:
        return refusal
    initializer = case.constant(1)
    pads = initializer.numbers() if initializer else []
    if any(pad < 0 for pad in pads):
        return Refusal("negative", f"pads {pads} are partly negative", "cut with Slice in place of negative padding")
    return constant(2, "the padding value")(case) if case.listed >= 3 else None


REDUCE_MEAN: tuple[Check, ...] = (
    when(given(1), constant(1, "axes")),
    refuse(
        lambda case: case.ver >= 18 and case.attribute("noop_with_empty_axes", 0) != 0,
        "noop",
        lambda _: "noop_with_empty_axes = 1 is not taken",
        "give the axes and set it to 0",
    ),
)
"""Axes known beforehand."""


def reshape(case: Case) -> Refusal | None:
    """A constant shape whose zeros copy dimensions that are not 0 themselves."""
    refusal = constant(1, "the shape")(case)
    if refusal is not None:
        return refusal
    rank = case.rank(0)
    if not 1 <= rank <= 4:
        return Refusal("rank", f"input {show(case, 0)} has rank {rank}, allowed is 1 to 4", "reshape in smaller steps")
    initializer, shape = case.constant(1), case.shape(0) or ()
    for position, size in enumerate(initializer.numbers() if initializer else []):
        bad = case.attribute("allowzero", 0) == 1 or (position < rank and shape[position] == 0)
        if size == 0 and bad:
            return Refusal("zero", "the shape asks for a dimension of 0", "write the dimension as a number or -1")
    return None


def softmax(case: Case) -> Refusal | None:
    """From opset 13 on; before level 29 only 2 or 4 dimensions, over the last one."""
    if case.ver < 13:
        return None
    rank = case.rank(0)
    axis = case.attribute("axis", -1)
    axis = axis + rank if axis < 0 else axis
    if case.settings.api_level < 29 and (rank not in (2, 4) or axis != rank - 1):
        return Refusal(
            "rank",
            f"rank {rank} and axis {axis}: before API level 29 only rank 2 or 4 over the last axis is taken",
            "target Android 10 or later, or transpose the axis to the end",
        )
    return None


def split(case: Case) -> Refusal | None:
    """Parts of equal size, known beforehand."""
    shape = case.shape(0) or ()
    axis = case.attribute("axis", 0)
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    if size is None:
        return Refusal("split", f"axis {axis} does not exist", "fix the axis")
    if case.exists(1):
        initializer = case.constant(1)
        if initializer is None:
            return constant(1, "the sizes")(case)
        sizes = initializer.numbers()
        if sum(sizes) != size or len(set(sizes)) != 1:
            return Refusal("split", f"parts {sizes} of {size} are not equal", "make the parts equal, or use Slice")
        return None
    outputs = len(case.node.outputs)
    count = case.attribute("num_outputs")
    if case.ver >= 18 and (count is None or count != outputs or count > size):
        return Refusal("split", f"num_outputs {count} for {outputs} outputs of {size}", "give num_outputs as it is")
    if size % outputs:
        return Refusal(
            "split", f"{size} is not divisible into {outputs} equal parts", "make the parts equal, or use Slice"
        )
    return None


def gemm(case: Case) -> Refusal | None:
    """Gemm, MatMul and QLinearMatMul: two matrices, of which B is a constant, or a batch of them (D.6)."""
    ranks = case.rank(0), case.rank(1)
    if ranks != (2, 2):
        if min(ranks) <= 2:
            return Refusal(
                "rank",
                f"A {show_shape(case.shape(0))} and B {show_shape(case.shape(1))}: NNAPI supports two matrices "
                "or two equal batches",
                "reshape A to two dimensions around the node when B is one matrix",
            )
        single = case.node.op_type == "MatMul" and not case.unit.group and case.dtype(0) == "f32"
        first, second = case.shape(0) or (), case.shape(1) or ()
        if single and case.settings.api_level >= 29 and len(first) == len(second) and first[:-2] == second[:-2]:
            return None
        return Refusal(
            "batch",
            f"batches {show_shape(first)} and {show_shape(second)}: NNAPI supports f32 MatMul of equal leading "
            "dimensions from API level 29 on",
            "expand the smaller batch, or target Android 10 or later",
        )
    if case.node.op_type != "Gemm":
        return constant(1, "B")(case)
    attributes = (case.attribute("transA", 0), case.attribute("alpha", 1.0), case.attribute("beta", 1.0))
    if attributes != (0, 1.0, 1.0):
        return Refusal(
            "attr",
            f"transA, alpha, beta are {attributes}, taken are (0, 1, 1)",
            "fold the factors into the weights and transpose A beforehand",
        )
    if not case.attribute("transB", 0) and case.constant(1) is None:
        return constant(1, "B")(case)
    if case.listed <= 2:
        return None
    shape = case.shape(2)
    columns = (case.shape(1) or ())[0 if case.attribute("transB", 0) else 1]
    flat = shape is not None and (len(shape) == 1 or case.settings.api_level >= 28)
    if shape and flat and all(dim == 1 for dim in shape[:-1]) and shape[-1] == columns:
        return constant(2, "the bias")(case) if case.unit.group else None
    return Refusal(
        "bias",
        f"C {show(case, 2)} {show_shape(shape)} is no vector of {columns} entries",
        "give the bias as a vector with an entry for each column",
    )


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
    if io.scale is None:
        return Refusal(
            "throw",
            f"{case.node.op_type} with quantized inputs has no QuantizeLinear behind it: "
            "NNAPI throws and no session is made",
            "quantize the output too, or take the DequantizeLinear nodes away",
            fatal=True,
        )
    value, scale = case.graph.value(io.name), case.graph.constant(io.scale)
    signed_weight = weight and value.dtype == "i8"
    if value.dtype != "u8" and not signed_weight:
        return Refusal("qtype", f"quantized value '{io.name}' is {value.dtype}, NNAPI supports u8", PER_TENSOR)
    if scale is None:
        return Refusal("qscale_const", f"the scale '{io.scale}' of '{io.name}' is not a constant", PER_TENSOR)
    count, channels = _count(scale.dims), value.shape[0] if value.shape else None
    by_channel = signed_weight and case.node.op_type in PER_CHANNEL_OPS
    if count != 1 and not (by_channel and case.settings.api_level >= 29 and count == channels):
        return Refusal(
            "qscale_channel",
            f"'{io.name}' {show_shape(value.shape)} has {count} scales; NNAPI supports one for each "
            "output channel only for i8 weights of Conv and Gemm, from API level 29 on",
            PER_TENSOR,
        )
    if io.zero_point is None:
        return None
    zero = case.graph.constant(io.zero_point)
    if zero is None:
        return Refusal("qzp_const", f"the zero point '{io.zero_point}' of '{io.name}' is not a constant", PER_TENSOR)
    count = _count(zero.dims)
    if not signed_weight:
        text = f"'{io.name}' has {count} zero points, NNAPI supports one"
        return None if count == 1 else Refusal("qzp_channel", text, PER_TENSOR)
    if zero.dtype == "i8" and (count == 1 or (by_channel and count == channels)) and not any(zero.numbers()):
        return None
    return Refusal(
        "qzp",
        f"the i8 weight '{io.name}' has zero points other than 0",
        "quantize weights symmetrically (zero point 0)",
    )


def _count(dims: tuple[int, ...]) -> int:
    """The number of parameters as ONNX Runtime counts them: 1 for a scalar, else the first dimension."""
    return dims[0] if dims else 1


def parameters(graph: Graph, io: UnitValue) -> tuple[float, int] | None:
    """Scale and zero point of a value as numbers; None when they are not constant or not one of each."""
    if io.scale is None:
        return None
    scale = graph.constant(io.scale)
    zero = graph.constant(io.zero_point) if io.zero_point else None
    if scale is None or scale.count < 1 or (io.zero_point is not None and (zero is None or zero.count < 1)):
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


def resize_mode(case: Case) -> Refusal | None:
    """The few modes that NNAPI computes alike (D.5)."""
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


RESIZE_SINCE_18 = when(
    since(18),
    refuse(
        lambda case: case.attribute("antialias", 0) != 0, "attr", lambda _: "antialias = 1 is not taken", "set it to 0"
    ),
    no_axes,
    refuse(
        lambda case: case.attribute("keep_aspect_ratio_policy", "stretch") != "stretch",
        "attr",
        lambda _: "keep_aspect_ratio_policy other than stretch is not taken",
        "give the sizes themselves",
    ),
)


def resize_target(case: Case) -> Refusal | None:
    """Scales or sizes of two spatial dimensions, known beforehand (D.5)."""
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
    return resize_scales(case, shape, numbers) if position == 2 else resize_sizes(case, shape, numbers)


def resize_scales(case: Case, shape: Sequence[int], scales: Sequence[float]) -> Refusal | None:
    """What of a Resize by scales is not taken (D.5)."""
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


def resize_sizes(case: Case, shape: Sequence[int], sizes: Sequence[int]) -> Refusal | None:
    """What of a Resize by sizes is not taken (D.5)."""
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


F32: tuple[Check, ...] = (dtype(0, ("f32",)),)
F32_U8: tuple[Check, ...] = (dtype(0, ("f32", "u8")),)
BOTH_F32: tuple[Check, ...] = (*F32, dtype(1, ("f32",)))
ONE: tuple[Check, ...] = (first_input, quantized_output)
TWO: tuple[Check, ...] = (two_operands,)
RANK_1_4 = rank(0, 1, 4)
RANKS = (ranks_up_to_4,)

INTERNAL_U8 = ("Transpose", "Resize", "Concat", "MaxPool")
"""Single nodes that take u8 only from within their own partition (D.2.9)."""

LONELY = ("Reshape", "Flatten", "Identity")
"""Ops that are not worth a partition of their own (B.6)."""


def _by_layout(case: Case) -> int:
    return 29 if case.settings.nchw else 28


SAME_PARAMETERS = when(lambda case: case.unit.group or case.node.op_type == "QLinearAveragePool", same_parameters)
"""A quantized AveragePool keeps its scale."""


def _rules(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


TABLE: Table = {
    **_rules("Abs Exp Log Neg Sin Sqrt", Rule(level=29, since=6, types=F32)),
    **_rules("Floor Tanh", Rule(level=27, since=6, types=F32)),
    "Sigmoid": Rule(level=27, since=6, types=F32, checks=(RANK_1_4,)),
    "QLinearSigmoid": Rule(level=27, types=ONE, checks=(sigmoid_output,)),
    **_rules("Add Mul", Rule(level=27, since=7, types=F32, quantized=TWO, checks=RANKS)),
    **_rules("QLinearAdd QLinearMul", Rule(level=27, types=TWO, checks=RANKS)),
    **_rules("Sub Div", Rule(level=28, since=7, types=F32, checks=RANKS)),
    "Pow": Rule(level=29, since=7, types=BOTH_F32, checks=RANKS),
    "PRelu": Rule(level=29, types=F32, checks=RANKS),
    **_rules("Max Min", Rule(level=29, since=6, types=F32, checks=(two_inputs,))),
    "Relu": Rule(level=27, types=F32),
    "LeakyRelu": Rule(level=27, since=6, types=F32, checks=(RANK_1_4,)),
    "Elu": Rule(level=30, since=6, types=F32),
    "Clip": Rule(level=27, types=F32, checks=(clip,)),
    "Cast": Rule(level=29, since=6, types=F32, checks=(attribute("to", (1, 6), code="to"),)),
    "BatchNormalization": Rule(level=27, since=7, types=F32, checks=(outputs(1), at_most_4, spatial, *PARAMETERS)),
    "LRN": Rule(level=28, types=F32, checks=(rank(0, 4, 4),)),
    "Conv": Rule(level=_by_layout, types=F32, quantized=TWO, checks=(conv,)),
    "QLinearConv": Rule(level=_by_layout, types=TWO, checks=(conv,)),
    "AveragePool": Rule(level=_by_layout, types=F32, quantized=ONE, checks=(pool, SAME_PARAMETERS)),
    "QLinearAveragePool": Rule(level=_by_layout, types=ONE, checks=(pool, SAME_PARAMETERS)),
    "MaxPool": Rule(level=_by_layout, types=F32_U8, checks=(pool,)),
    **_rules("GlobalAveragePool GlobalMaxPool", Rule(level=_by_layout, types=F32, checks=(rank(0, 4, 4),))),
    "Concat": Rule(
        level=27,
        types=F32_U8,
        # Before level 29 a quantized Concat keeps one scale.
        quantized=(
            quantized_inputs,
            quantized_output,
            when(lambda case: case.settings.api_level < 29, same_parameters),
        ),
        checks=(RANK_1_4,),
    ),
    "DepthToSpace": Rule(level=27, types=F32, checks=(exactly_4, depth_to_space)),
    "Flatten": Rule(level=27, types=F32, checks=(RANK_1_4, flatten)),
    "Gather": Rule(level=29, types=F32, checks=(RANK_1_4, no_zero_dimension, gather)),
    "Identity": Rule(level=27, types=F32),
    "Pad": Rule(level=29, since=11, types=F32, checks=(RANK_1_4, no_zero_dimension, pad)),
    "ReduceMean": Rule(level=28, types=F32, checks=(RANK_1_4, *REDUCE_MEAN)),
    "Reshape": Rule(level=27, since=5, types=F32, quantized=ONE, checks=(reshape,)),
    "Resize": Rule(
        level=lambda case: 28 if case.dtype(0) == "u8" else 29,
        since=11,
        types=F32_U8,
        quantized=ONE,
        checks=(exactly_4, resize_mode, RESIZE_SINCE_18, resize_target),
    ),
    "Slice": Rule(level=28, since=10, types=F32, checks=(at_most_4, no_zero_dimension, *BOUNDS)),
    "Softmax": Rule(
        level=28, types=F32, quantized=(*ONE, sigmoid_output), checks=(when(since(13), at_most_4), softmax)
    ),
    "Split": Rule(level=29, since=13, types=F32, checks=(split,)),
    "Squeeze": Rule(level=28, types=F32, checks=(RANK_1_4, axes)),
    "Unsqueeze": Rule(level=27, types=F32, checks=(RANK_1_4, axes)),
    "Transpose": Rule(level=28, types=F32_U8, quantized=ONE, checks=(RANK_1_4,)),
    "DequantizeLinear": Rule(level=27, types=(first_input,)),
    "QuantizeLinear": Rule(level=29, types=(quantized_output,)),
    "Gemm": Rule(level=27, since=7, types=F32, quantized=TWO, checks=(gemm,)),
    "MatMul": Rule(level=27, types=F32, quantized=TWO, checks=(gemm,)),
    "QLinearMatMul": Rule(level=27, types=TWO, checks=(gemm,)),
}
