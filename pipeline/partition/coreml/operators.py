"""What CoreML requires of convolutions and of nodes that pick, split, repeat, reshape (ep_rules E.3, E.4, G.3)."""

from collections.abc import Sequence

from pipeline.partition.answer import Refusal
from pipeline.partition.coreml.types import mlprogram, neural_network
from pipeline.partition.graph import Shape
from pipeline.partition.rules import Case, constant, first_refusal, given, listed, rank, show, show_shape, when

LARGEST = 16384
"""Longest dimension that Core ML's convolutions take on the GPU."""

ACTIVATION_PARAMETERS = {"Relu": 0, "Sigmoid": 0, "Tanh": 0, "LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}
"""Activations that FusedConv may carry, with the number of their parameters."""


def conv(case: Case) -> Refusal | None:
    """1-D and 2-D convolutions; constant weights for NeuralNetwork."""
    return first_refusal(
        case,
        (
            when(neural_network, constant(1, "the weight")),
            _sizes,
            rank(1, 3, 4),
            when(listed(2), constant(2, "the bias")),
            _same_lower,
            _kernel,
        ),
    )


def conv_transpose(case: Case) -> Refusal | None:
    """A constant weight, symmetric padding, nothing said about the output's shape."""
    return first_refusal(
        case,
        (
            constant(1, "the weight"),
            when(listed(2), constant(2, "the bias")),
            _sizes,
            _transposed_padding,
            _kernel,
            _output_shape,
        ),
    )


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
    return conv(case)


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


def _same_lower(case: Case) -> Refusal | None:
    if mlprogram(case) and case.settings.coreml_version < 6 and case.attribute("auto_pad") == "SAME_LOWER":
        return Refusal("version", "auto_pad SAME_LOWER needs Core ML 6 (iOS 16)", "give the pads as numbers")
    return None


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
            f"ConvTranspose '{case.node.name or case.node.first_output}' has no attribute pads: ONNX Runtime's CoreML "
            "part reads it all the same and the process ends",
            "write pads (zeros) into the node",
            fatal=True,
        )
    if len(set(pads)) > 1:
        return Refusal("attr", f"pads {list(pads)} are not all equal", "pad equally, and cut with Slice behind it")
    return None


def _output_shape(case: Case) -> Refusal | None:
    if case.attribute("output_shape") is not None:
        return Refusal("attr", "output_shape is not taken", "give pads in its place")
    if any(case.attribute("output_padding") or ()):
        return Refusal("attr", "output_padding is not taken", "pad with Pad behind the node")
    return None


INTEGERS = ("i32", "i64")
MAX_RANK = 5
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
        return _scalar_index(case)
    if data + indices - 1 > MAX_RANK:
        return Refusal(
            "rank", f"the result would have rank {data + indices - 1}, Core ML has at most 5", "gather from fewer"
        )
    return None


def _scalar_index(case: Case) -> Refusal | None:
    if case.settings.ort_release < (1, 27):
        return Refusal(
            "rank",
            f"the index {show(case, 1)} is a single number, which releases before 1.27 do not take",
            "use an index of shape [1] and Squeeze the result",
        )
    return static(case) or rank(0, 0, MAX_RANK - 1)(case)


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
        return _counted(case)
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


def _counted(case: Case) -> Refusal | None:
    count, size = case.attribute("num_outputs"), _axis(case)
    if count is None or count < 2 or count != len(case.node.outputs) or size is None or count > size:
        return _refused(f"num_outputs {count}, {len(case.node.outputs)} outputs, dimension of size {size or 'unknown'}")
    return None


def _even(case: Case) -> Refusal | None:
    count, size = len(case.node.outputs), _axis(case)
    if count < 2 or size is None or size % count:
        return _refused(f"{count} equal parts of a dimension of size {size or 'unknown'}")
    return None
