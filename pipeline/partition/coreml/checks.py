"""What CoreML's op builders ask of arithmetic, activations, normalization, reduction and pooling (ep_rules E.4)."""

from pipeline.partition.answer import Refusal
from pipeline.partition.coreml.types import mlprogram, neural_network
from pipeline.partition.graph import Constant
from pipeline.partition.rules import (
    Case,
    Check,
    attribute,
    constant,
    first_refusal,
    given,
    listed,
    outputs,
    rank,
    show,
    show_shape,
    when,
)

CAST_TO_I32 = 6


def own_initializer(case: Case, position: int) -> Constant | None:
    """The initializer of this very graph behind an input, even one that callers could replace (ep_rules A.4)."""
    return case.graph.initializers.get(case.input(position))


def in_initializers(position: int, what: str) -> Check:
    """The input is an initializer of this graph; one that is also a graph input will do, an outer one will not."""

    def check(case: Case) -> Refusal | None:
        if case.input(position) and own_initializer(case, position) is not None:
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
    return constant(1, "the slope")(case) or _slope(case, channels)


def _slope(case: Case, channels: int) -> Refusal | None:
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
    if case.ver >= 11:
        refusal = next((r for i, name in ((1, "min"), (2, "max")) if (r := _bound(case, i, name)) is not None), None)
        if refusal is not None:
            return refusal
        bounds = [_number(case, 1), _number(case, 2)]
    if None in bounds or bounds[0] != bounds[1]:
        return None
    return Refusal("value", f"min and max are both {bounds[0]:g}", "replace the node by a constant")


def _bound(case: Case, position: int, name: str) -> Refusal | None:
    if not case.exists(position):
        return None
    initializer = case.constant(position)
    if initializer is None:
        return constant(position, name)(case)
    if initializer.dtype != case.dtype(0):
        return Refusal(
            "type", f"{name} is {initializer.dtype}, the input {case.dtype(0)}", "give bounds of the input's type"
        )
    return None


def _number(case: Case, position: int) -> float | None:
    initializer = case.constant(position)
    return float(initializer.numbers()[0]) if initializer is not None and initializer.count else None


def batch_normalization(case: Case) -> Refusal | None:
    """Four dimensions; the parameters are initializers of this graph."""
    return first_refusal(
        case,
        (
            outputs(1),
            rank(0, 4, 4),
            attribute("spatial", (1,), default=1),
            *(in_initializers(i, name) for i, name in enumerate(("scale", "B", "mean", "variance"), 1)),
        ),
    )


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
    return constant(2, "C")(case) or _bias(case)


def _bias(case: Case) -> Refusal | None:
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


def softmax(case: Case) -> Refusal | None:
    """Before opset 13 the input is flattened, which needs its shape; up to release 1.22 it is always needed."""
    if (case.ver >= 13 and case.settings.ort_release >= (1, 23)) or case.value(0).static:
        return None
    return Refusal(
        "dynamic", f"input {show(case, 0)} {show_shape(case.shape(0))} is not static", "fix the model's dimensions"
    )


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
                f"Shape '{case.node.name or case.node.first_output}' has {name} = {value} for {show(case, 0)} of rank "
                f"{input_rank}: ONNX Runtime's CoreML part throws for {name} outside -{input_rank} to {input_rank - 1}",
                "leave out an `end` equal to the rank; take the Shape of a scalar out of the model",
                fatal=True,
            )
    first, last = (value + input_rank if value < 0 else value for value in (start, last))
    if first != last:
        return None
    return Refusal("attr", f"start {start} to end {end} gives nothing", "leave the node out")
