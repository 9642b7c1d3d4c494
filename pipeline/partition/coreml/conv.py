"""What CoreML's op builders ask of Conv, ConvTranspose and FusedConv (ep_rules E.4, G.3)."""

from pipeline.partition.answer import Refusal
from pipeline.partition.coreml.types import mlprogram, neural_network
from pipeline.partition.graph import Shape
from pipeline.partition.rules import Case, constant, first_refusal, listed, rank, show_shape, when

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
    """Whether a dimension is above what Core ML takes."""
    return any(dim is not None and dim > LARGEST for dim in shape)


def _same_lower(case: Case) -> Refusal | None:
    if mlprogram(case) and case.settings.coreml_version < 6 and case.attribute("auto_pad") == "SAME_LOWER":
        return Refusal("version", "auto_pad SAME_LOWER needs Core ML 6 (iOS 16)", "give the pads as numbers")
    return None


def _kernel(case: Case) -> Refusal | None:
    """kernel_shape, when given, repeats what the weight says (a dynamic dimension counts as 0)."""
    kernel = case.attribute("kernel_shape")
    found = tuple(dim or 0 for dim in (case.shape(1) or ())[2:])
    if kernel is None or tuple(kernel) == found:
        return None
    return Refusal(
        "kernel",
        f"kernel_shape {list(kernel)} is not that of the weight, {list(found)}",
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
