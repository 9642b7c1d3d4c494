"""What CoreML's op builders ask: data types (ep_rules E.2), arithmetic, normalization, convolution, pooling (E.4)."""

from collections.abc import Callable, Collection

from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.rules import (
    Check,
    attribute,
    constant,
    first_refusal,
    given,
    listed,
    outputs,
    rank,
    refuse,
    show,
    show_shape,
    when,
)
from pipeline.partition.types import Shape
from pipeline.partition.units import Case

NN = "NeuralNetwork"
MLP = "MLProgram"
BOTH = (NN, MLP)

MLPROGRAM_VERSION = 5
"""The Core ML version (iOS 15) that brought MLProgram."""


def model_format(settings: Settings) -> str:
    """The format that ONNX Runtime writes: up to release 1.21 NeuralNetwork where Core ML is too old for MLProgram."""
    return MLP if settings.mlprogram and settings.coreml_version >= MLPROGRAM_VERSION else NN


def mlprogram(case: Case) -> bool:
    """Condition: the model format is MLProgram."""
    return model_format(case.settings) == MLP


def neural_network(case: Case) -> bool:
    """Condition: the model format is NeuralNetwork."""
    return model_format(case.settings) == NN


def f16_by_version(case: Case) -> frozenset[str]:
    """The f16 of rows that ask for Core ML 6 themselves, whatever the library was built by."""
    return frozenset({"f16"}) if mlprogram(case) and case.settings.coreml_version >= 6 else frozenset()


def wide_types(case: Case) -> frozenset[str]:
    """What MLProgram supports in addition to f32 unless a row has its own: it depends on release and builder (E.2)."""
    settings = case.settings
    if not mlprogram(case):
        return frozenset()
    if settings.ort_release < (1, 22):
        return frozenset({"f16"} if settings.ort_release >= (1, 20) else ())
    built = settings.ort_release >= (1, 24) and settings.coreml6_types
    return frozenset({"f16", "i64"}) if built else frozenset()


def taken(position: int, types: Callable[[Case], Collection[str]]) -> Check:
    """The element type of an input is one of those that `types` gives for the case."""

    def check(case: Case) -> Refusal | None:
        allowed = types(case)
        if case.dtype(position) in allowed:
            return None
        element, words = case.dtype(position) or "unknown", " or ".join(sorted(allowed))
        if element == "f16":
            other = "try format MLProgram" if neural_network(case) else "ship release 1.24 or later"
            remedy = f"convert the model to f32 (Core ML computes in f16 itself), or {other}"
        elif element in ("u8", "i8", "u16", "i16"):
            remedy = "leave this node out of quantization: CoreML gets no quantized operators"
        else:
            remedy = f"compute this part in {words}; where it is a matter of shapes, fix the dimensions"
        format_ = model_format(case.settings)
        return Refusal(
            "type", f"input {show(case, position)} is {element}; CoreML ({format_}) supports {words} here", remedy
        )

    return check


F32 = frozenset({"f32"})
plain = taken(0, lambda case: F32 | wide_types(case))
"""The check of rows that name no types of their own: T0 of ep_rules E.2."""


same_types = refuse(
    lambda case: case.dtype(0) != case.dtype(1),
    "type",
    lambda case: f"the operands are of types {case.dtype(0)} and {case.dtype(1)}; CoreML needs one type for both",
    "make the exponent a value of the base's type",
)
"""Both operands of Pow have one type."""


def normalization_types(case: Case) -> Refusal | None:
    """f32 or f16, whatever the library; scale and bias of the same type."""
    refusal = float_types(case)
    for position in range(1, 3):
        if refusal is None and case.exists(position) and case.dtype(position) != case.dtype(0):
            return Refusal(
                "type",
                f"{show(case, position)} is of type {case.dtype(position)}, the input of type {case.dtype(0)}",
                "give scale and bias in the type of the input",
            )
    return refusal


def cast_types(case: Case) -> Refusal | None:
    """MLProgram casts between the types that Core ML has; NeuralNetwork only the result of ArgMax."""
    if neural_network(case):
        return taken(0, lambda _: ("i64",))(case)
    allowed = ("f16", "f32", "i32", "i64", *(("bool",) if case.settings.ort_release >= (1, 27) else ()))
    refusal = taken(0, lambda _: allowed)(case)
    element = case.graph.value(case.node.first_output).dtype
    if refusal is None and element not in allowed:
        return Refusal(
            "type",
            f"it casts to {element or 'an unknown type'}, Core ML has {', '.join(allowed)}",
            "cast to one of them",
        )
    return refusal


shape_types = taken(
    0,
    lambda case: (
        {"f32", "f16", "i32", *(("i64",) if case.settings.ort_release >= (1, 23) else ())} if mlprogram(case) else F32
    ),
)
gather_types = taken(
    0, lambda case: {"f32", "i64"} | (f16_by_version(case) if case.settings.ort_release >= (1, 24) else frozenset())
)
slice_types = taken(0, lambda case: {"f32", "i64"} | f16_by_version(case))
tile_types = taken(0, lambda case: {"f32", "i32", "i64", "bool"} | f16_by_version(case))
gather_nd_types = taken(0, lambda _: ("f32", "f16", "i32", "i64", "bool"))
float_types = taken(0, lambda _: ("f32", "f16"))
"""f32 or f16, whatever the library."""
where_types = (
    taken(0, lambda _: ("bool",)),
    taken(1, lambda _: ("f32", "f16")),
    taken(2, lambda c: (c.dtype(1) or "f32",)),
)
"""A bool condition and two floating-point operands of one type."""
both_bool = (taken(0, lambda _: ("bool",)), taken(1, lambda _: ("bool",)))
"""Both operands of And are bool."""
pad_types = (when(mlprogram, float_types), when(neural_network, plain))
"""Under MLProgram f16 too, whatever the library (release 1.26)."""


CAST_TO_I32 = 6


def in_initializers(position: int, what: str) -> Check:
    """The input is an initializer of this graph; one that is also a graph input will do, an outer one will not."""

    def check(case: Case) -> Refusal | None:
        # Of this very graph, even one that callers could replace (ep_rules A.4).
        if case.input(position) and case.graph.initializers.get(case.input(position)) is not None:
            return None
        return Refusal(
            "const",
            f"{what} {show(case, position)} is no initializer of the graph in which the node stands",
            f"make {what} an initializer of this graph",
        )

    return check


def prelu(case: Case) -> Refusal | None:
    """A constant slope for each channel, or one for all where there is more than one channel."""
    shape = case.shape(0) or ()
    if len(shape) not in (3, 4):
        return rank(0, 3, 4)(case)
    channels = shape[len(shape) - 3]
    if channels is None:
        return Refusal(
            "dynamic", f"the channels of {show(case, 0)} {show_shape(shape)} are not known", "fix this dimension"
        )
    refusal = constant(1, "the slope")(case)
    if refusal is not None:
        return refusal
    slope = case.shape(1) or ()
    single = case.value(1).static and set(slope) <= {1}
    by_channel = len(slope) == 3 and slope[1:] == (1, 1)
    if (single and channels != 1) or (by_channel and not single):
        return None
    return Refusal(
        "slope",
        f"slope {show(case, 1)} {show_shape(slope)} for {channels} channels; taken are [C, 1, 1], or one number "
        "where there are several channels",
        "give the slope as [C, 1, 1]; with one channel use LeakyRelu",
    )


def clip(case: Case) -> Refusal | None:
    """Bounds known beforehand, of the input's type, and not equal; integers without any (ep_rules E.3, clipminmax)."""
    if case.dtype(0) not in ("f32", "f16"):
        if case.ver >= 11 and not case.exists(1) and not case.exists(2):
            return None
        return Refusal("type", f"Clip of type {case.dtype(0)}: CoreML clips f32 and f16", "clip in f32")
    bounds = [case.attribute("min"), case.attribute("max")]
    for position, name in ((1, "min"), (2, "max")) if case.ver >= 11 else ():
        bounds[position - 1] = None
        if not case.exists(position):
            continue
        initializer = case.constant(position)
        if initializer is None:
            return constant(position, name)(case)
        if initializer.dtype != case.dtype(0):
            return Refusal(
                "type", f"{name} is {initializer.dtype}, the input {case.dtype(0)}", "give bounds of the input's type"
            )
        bounds[position - 1] = float(initializer.numbers()[0]) if initializer.count else None
    if None in bounds or bounds[0] != bounds[1]:
        return None
    return Refusal("value", f"min and max are both {bounds[0]:g}", "replace the node by a constant")


BATCH_NORMALIZATION: tuple[Check, ...] = (
    outputs(1),
    rank(0, 4, 4),
    attribute("spatial", (1,), default=1),
    *(in_initializers(i, name) for i, name in enumerate(("scale", "B", "mean", "variance"), 1)),
)
"""Four dimensions; the parameters are initializers of this graph."""

NORMALIZATION: tuple[Check, ...] = (
    outputs(1),
    attribute("stash_type", (1,), default=1),
    constant(1, "the scale"),
    when(listed(2), constant(2, "the bias")),
)

AXES_CONSTANT: Check = when(given(1), constant(1, "axes"))


def noop_axes(case: Case) -> Refusal | None:
    """NeuralNetwork: noop_with_empty_axes with axes that ONNX Runtime takes for empty.

    It looks at one field of the tensor's message (int64_data); axes stored as raw bytes are empty to it.
    """
    if mlprogram(case) or case.attribute("noop_with_empty_axes", 0) == 0:
        return None
    axes = case.constant(1) if case.exists(1) else None
    if axes is not None and axes.int64_field:
        return None
    return Refusal(
        "noop",
        "noop_with_empty_axes = 1 with axes that ONNX Runtime takes for empty (also those stored as raw bytes)",
        "set noop_with_empty_axes to 0, or use format MLProgram",
    )


def argmax(case: Case) -> Refusal | None:
    """The first of equal values; NeuralNetwork's ArgMax has one consumer when it is cast to i32."""
    refusal = attribute("select_last_index", (0,), default=0)(case)
    if refusal is not None or mlprogram(case):
        return refusal
    edges = case.graph.out_edges[case.node.index]
    consumers = [case.graph.nodes[edge.consumer] for edge in edges]
    if len(edges) > 1 and any(n.op_type == "Cast" and n.attributes.get("to") == CAST_TO_I32 for n in consumers):
        return Refusal(
            "argmax_cast",
            "a Cast to i32 and other nodes read its output; NeuralNetwork can give the one or the others",
            "let all consumers read the cast value, or use format MLProgram",
        )
    return None


def concat(case: Case) -> Refusal | None:
    """Two inputs at least; NeuralNetwork joins channels of four dimensions only."""
    if case.listed < 2:
        return Refusal("inputs", "it joins a single input", "leave the node out")
    if mlprogram(case):
        return None
    axis = case.attribute("axis", 0)
    input_rank = case.rank(0)
    axis = axis + input_rank if axis < 0 else axis
    if input_rank != 4:
        return rank(0, 4, 4)(case)
    if axis != 1:
        return Refusal("axis", f"axis {axis}; NeuralNetwork joins along axis 1 only", "use format MLProgram")
    return None


def depth_to_space(case: Case) -> Refusal | None:
    """DCR for both formats; CRD for MLProgram where the shape is known."""
    mode = case.attribute("mode", "DCR")
    if neural_network(case):
        return attribute("mode", ("DCR",), default="DCR", code="mode")(case)
    if mode == "CRD" and not case.value(0).static:
        return Refusal(
            "dynamic", f"mode CRD needs {show(case, 0)} {show_shape(case.shape(0))} to be static", "fix the dimensions"
        )
    if mode == "DCR" and case.dtype(0) == "f16" and case.settings.coreml_version < 7:
        return Refusal("version", "mode DCR in f16 needs Core ML 7 (iOS 17)", "target iOS 17, or convert to f32")
    return None


def gemm(case: Case) -> Refusal | None:
    """A constant weight, plain attributes, a bias for the columns."""
    refusal = first_refusal(
        case,
        (
            constant(1, "B"),
            attribute("transA", (0,), default=0),
            attribute("alpha", (1.0,), default=1.0),
            attribute("beta", (1.0,), default=1.0),
        ),
    )
    if refusal is not None or case.listed < 3:
        return refusal
    refusal = constant(2, "C")(case)
    if refusal is not None:
        return refusal
    weight, bias = case.shape(1) or (), case.shape(2) or ()
    columns = weight[0 if case.attribute("transB", 0) else 1] if len(weight) == 2 else None
    if bias in ((), (1,), (columns,), (1, columns)):
        return None
    return Refusal(
        "bias", f"C {show_shape(bias)}; taken are a number, [{columns}] and [1, {columns}]", "add C with an Add node"
    )


def matmul(case: Case) -> Refusal | None:
    """NeuralNetwork: two dimensions and a constant B; MLProgram: no vector times matrix."""
    ranks = case.rank(0), case.rank(1)
    if neural_network(case):
        return constant(1, "B")(case) or (rank(0, 2, 2)(case) or rank(1, 2, 2)(case))
    if (ranks[0] == 1) != (ranks[1] == 1):
        return Refusal(
            "rank", f"operands of ranks {ranks[0]} and {ranks[1]}: one is a vector", "unsqueeze the vector to a matrix"
        )
    return None


def grid_sample(case: Case) -> Refusal | None:
    """Pictures, linear sampling; one combination of attributes computes otherwise in Core ML."""
    refusal = rank(0, 4, 4)(case)
    if refusal is not None:
        return refusal
    mode = case.attribute("mode", "linear")
    if mode not in ("linear", "bilinear", "zeros"):
        return Refusal("mode", f"mode {mode} is not taken", "sample with mode linear")
    reflects = case.attribute("padding_mode", "zeros") == "reflection" and not case.attribute("align_corners", 0)
    if mode != "zeros" and reflects:
        return Refusal(
            "mode", f"mode {mode} with reflection and align_corners = 0 is not taken", "set align_corners to 1"
        )
    return None


def pool(case: Case) -> Refusal | None:
    """2-D pooling without dilations and indices; without ceiling in NeuralNetwork."""
    kernel, dilations = case.attribute("kernel_shape"), case.attribute("dilations")
    refusal = rank(0, 4, 4)(case) or attribute("storage_order", (0,), default=0)(case)
    if refusal is not None:
        return refusal
    if kernel is None or len(kernel) != 2:
        return Refusal("attr", f"kernel_shape {kernel} is not two-dimensional", "pool over two dimensions")
    if neural_network(case) and case.attribute("ceil_mode", 0) == 1:
        return Refusal("attr", "ceil_mode = 1 is not taken by NeuralNetwork", "use format MLProgram, or pad before it")
    if dilations is not None and tuple(dilations) != (1, 1):
        return Refusal("dilations", f"dilations {list(dilations)} are not taken", "pool without dilations")
    return outputs(1)(case)


softmax = refuse(
    lambda case: not ((case.ver >= 13 and case.settings.ort_release >= (1, 23)) or case.value(0).static),
    "dynamic",
    lambda case: f"input {show(case, 0)} {show_shape(case.shape(0))} is not static",
    "fix the model's dimensions",
)
"""Before opset 13 the input is flattened, which needs its shape; up to release 1.22 it is always needed."""


def shape(case: Case) -> Refusal | None:
    """NeuralNetwork gives whole shapes; MLProgram a part, and ends the session where that part lies outside."""
    start, end, input_rank = case.attribute("start", 0), case.attribute("end"), case.rank(0)
    if neural_network(case):
        if start != 0 or end is not None:
            return Refusal("attr", "start and end are not taken by NeuralNetwork", "use format MLProgram")
        return None
    last = input_rank if end is None else end
    for name, value in (("start", start), *(() if end is None else (("end", end),))):
        if not -input_rank <= value < input_rank:
            return Refusal(
                "crash",
                f"{case.label} has {name} = {value} for {show(case, 0)} of rank "
                f"{input_rank}: ONNX Runtime's CoreML part throws for {name} outside -{input_rank} to {input_rank - 1}",
                "leave out an `end` equal to the rank; take the Shape of a scalar out of the model",
                fatal=True,
            )
    first, last = (value + input_rank if value < 0 else value for value in (start, last))
    if first != last:
        return None
    return Refusal("attr", f"start {start} to end {end} gives nothing", "leave the node out")


MAX_RANK = 5
LARGEST = 16384
"""Longest dimension that Core ML's convolutions take on the GPU."""

ACTIVATION_PARAMETERS = {"Relu": 0, "Sigmoid": 0, "Tanh": 0, "LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}
"""Activations that FusedConv may carry, with the number of their parameters."""


def fused_conv(case: Case) -> Refusal | None:
    """A Conv with one of the activations that MLProgram can add, and no Sum."""
    if case.listed > 3:
        return Refusal("inputs", "it adds a fourth input (Sum)", "convert at level basic, which keeps Conv and Add")
    activation = case.attribute("activation", "")
    parameters = case.attribute("activation_params") or ()
    if ACTIVATION_PARAMETERS.get(activation) != len(parameters):
        return Refusal(
            "activation",
            f"activation {activation or '(none)'} with {len(parameters)} parameters is not taken",
            "convert at level basic, which keeps Conv and activation apart",
        )
    return None


def _sizes(case: Case) -> Refusal | None:
    """Since release 1.23 (before, the limit was one of all inputs): ConvTranspose's output is not looked at."""
    if case.settings.ort_release < (1, 23):
        return None
    values = {"the weight": case.value(1), "the input": case.value(0)}
    if case.node.op_type != "ConvTranspose":
        values["the output"] = case.graph.value(case.node.first_output)
    for what, value in values.items():
        if value.shape is None:
            return Refusal("shape", f"the shape of {what} is not known", "fix the model's dynamic dimensions")
        if too_long(value.shape):
            return Refusal(
                "dimension",
                f"{what} {show_shape(value.shape)} has a dimension above {LARGEST}",
                "work on shorter pieces",
            )
    return None


def too_long(shape: Shape) -> bool:
    """Whether a dimension is above what Core ML supports."""
    return any(dim is not None and dim > LARGEST for dim in shape)


def _kernel(case: Case) -> Refusal | None:
    """kernel_shape, when given, repeats the weight's (a dynamic dimension counts as 0)."""
    kernel = case.attribute("kernel_shape")
    sizes = tuple(dim or 0 for dim in (case.shape(1) or ())[2:])
    if kernel is None or tuple(kernel) == sizes:
        return None
    return Refusal(
        "kernel",
        f"kernel_shape {list(kernel)} is not that of the weight, {list(sizes)}",
        "leave kernel_shape out, or make the weight a constant",
    )


def _transposed_padding(case: Case) -> Refusal | None:
    mode, pads = case.attribute("auto_pad", "NOTSET"), case.attribute("pads")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        return Refusal("attr", f"auto_pad {mode} is not taken", "give the pads as numbers")
    if mode != "NOTSET":
        return None
    if pads is None:
        return Refusal(
            "crash",
            f"{case.label} has no attribute pads: ONNX Runtime's CoreML "
            "part reads it all the same and the process ends",
            "write pads (zeros) into the node",
            fatal=True,
        )
    if len(set(pads)) > 1:
        return Refusal("attr", f"pads {list(pads)} are not all equal", "pad equally, and cut with Slice behind it")
    return None


CONV: tuple[Check, ...] = (
    when(neural_network, constant(1, "the weight")),
    _sizes,
    rank(1, 3, 4),
    when(listed(2), constant(2, "the bias")),
    refuse(
        lambda c: mlprogram(c) and c.settings.coreml_version < 6 and c.attribute("auto_pad") == "SAME_LOWER",
        "version",
        lambda _: "auto_pad SAME_LOWER needs Core ML 6 (iOS 16)",
        "give the pads as numbers",
    ),
    _kernel,
)
"""1-D and 2-D convolutions; constant weights for NeuralNetwork."""

CONV_TRANSPOSE: tuple[Check, ...] = (
    constant(1, "the weight"),
    when(listed(2), constant(2, "the bias")),
    _sizes,
    _transposed_padding,
    _kernel,
    refuse(
        lambda case: case.attribute("output_shape") is not None,
        "attr",
        lambda _: "output_shape is not taken",
        "give pads in its place",
    ),
    refuse(
        lambda case: any(case.attribute("output_padding") or ()),
        "attr",
        lambda _: "output_padding is not taken",
        "pad with Pad behind the node",
    ),
)
"""A constant weight, symmetric padding, nothing said about the output's shape."""
