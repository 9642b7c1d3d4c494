"""What NNAPI's op builders ask of single operators (ep_rules D.4 to D.6)."""

from math import prod

from pipeline.partition.answer import Refusal
from pipeline.partition.rules import Case, constant, show, show_shape
from pipeline.partition.selector_checks import clip_bounds


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


def no_zero_dimension(case: Case) -> Refusal | None:
    """Input 0 is not empty."""
    if 0 not in (case.shape(0) or ()):
        return None
    return Refusal("zero", f"input {show(case, 0)} {show_shape(case.shape(0))} is empty", "leave the node out")


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


def two_inputs(case: Case) -> Refusal | None:
    """Max and Min of two values."""
    if len(case.node.inputs) == 2:
        return None
    return Refusal("inputs", f"it has {len(case.node.inputs)} inputs, NNAPI supports 2", "chain nodes of two inputs")


def batch_normalization(case: Case) -> Refusal | None:
    """At most four dimensions, and parameters that are constants."""
    if case.rank(0) > 4:
        return Refusal(
            "rank", f"input {show(case, 0)} has rank {case.rank(0)}, at most 4 is taken", "reshape around it"
        )
    if case.attribute("spatial", 1) != 1:
        return Refusal("attr", "attribute spatial is 0", "convert the model to opset 9 or later")
    names = ("scale", "B", "mean", "variance")
    return next((r for i, name in enumerate(names, 1) if (r := constant(i, name)(case)) is not None), None)


def conv(case: Case) -> Refusal | None:
    """Constant 2-D weights; dilations from level 29 on, not together with groups."""
    quantized = case.unit.group or case.node.op_type == "QLinearConv"
    if quantized and case.node.domain == "com.microsoft":
        return Refusal("domain", "com.microsoft's quantized Conv is not taken", "use the ONNX operator")
    refusal = constant(1, "the weight")(case) or _conv_weight(case)
    if refusal is None and quantized and case.listed > 2:
        return constant(2, "the bias")(case)
    return refusal


def _conv_weight(case: Case) -> Refusal | None:
    weight = case.shape(1) or ()
    if len(weight) != 4:
        return Refusal(
            "rank", f"weight {show(case, 1)} {show_shape(weight)} is not of rank 4", "write a 1-D Conv as a 2-D one"
        )
    dilations = case.attribute("dilations")
    if dilations is None or tuple(dilations) == (1, 1):
        return None
    if case.attribute("group", 1) != 1 and weight[1] != 1:
        return Refusal(
            "dilations",
            f"dilations {list(dilations)} with {case.attribute('group')} groups",
            "use one group, or depthwise",
        )
    if case.settings.api_level < 29:
        return Refusal("dilations", f"dilations {list(dilations)} need API level 29", "target Android 10 or later")
    return None


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
    if case.rank(0) != 4:
        return Refusal("rank", f"input {show(case, 0)} {show_shape(case.shape(0))} is not of rank 4", "use rank 4")
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


def gather(case: Case) -> Refusal | None:
    """Indices in i32, or known beforehand."""
    if case.dtype(1) == "i32" or case.constant(1) is not None:
        return None
    return Refusal(
        "const",
        f"indices {show(case, 1)} are {case.dtype(1)} and not constant; NNAPI supports i32 or constant indices",
        "compute the indices in i32",
    )


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


def reduce_mean(case: Case) -> Refusal | None:
    """Axes known beforehand."""
    if case.exists(1) and case.constant(1) is None:
        return constant(1, "axes")(case)
    if case.ver >= 18 and case.attribute("noop_with_empty_axes", 0) != 0:
        return Refusal("noop", "noop_with_empty_axes = 1 is not taken", "give the axes and set it to 0")
    return None


def reshape(case: Case) -> Refusal | None:
    """A constant shape whose zeros copy dimensions that are not 0 themselves."""
    refusal = constant(1, "the shape")(case)
    if refusal is not None:
        return refusal
    rank = case.rank(0)
    if not 1 <= rank <= 4:
        return Refusal("rank", f"input {show(case, 0)} has rank {rank}, allowed is 1 to 4", "reshape in smaller steps")
    initializer, shape = case.constant(1), case.shape(0) or ()
    for position, entry in enumerate(initializer.numbers() if initializer else []):
        bad = case.attribute("allowzero", 0) == 1 or (position < rank and shape[position] == 0)
        if entry == 0 and bad:
            return Refusal("zero", "the shape asks for a dimension of 0", "write the dimension as a number or -1")
    return None


def slice_(case: Case) -> Refusal | None:
    """Everything about the slice is known beforehand."""
    if case.rank(0) > 4:
        return Refusal(
            "rank", f"input {show(case, 0)} has rank {case.rank(0)}, at most 4 is taken", "reshape around it"
        )
    refusal = no_zero_dimension(case)
    names = ("starts", "ends", "axes", "steps")
    for position, name in enumerate(names, 1):
        if refusal is None and (position < 3 or position < case.listed):
            refusal = constant(position, name)(case)
    return refusal


def softmax(case: Case) -> Refusal | None:
    """From opset 13 on at most four dimensions; before level 29 only 2 or 4, over the last one."""
    if case.ver < 13:
        return None
    rank = case.rank(0)
    if rank > 4:
        return Refusal("rank", f"input {show(case, 0)} has rank {rank}, at most 4 is taken", "reshape around it")
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
        return _split_sizes(case, size)
    outputs = len(case.node.outputs)
    wanted = case.attribute("num_outputs")
    if case.ver >= 18 and (wanted is None or wanted != outputs or wanted > size):
        return Refusal("split", f"num_outputs {wanted} for {outputs} outputs of {size}", "give num_outputs as it is")
    if size % outputs:
        return Refusal(
            "split", f"{size} is not divisible into {outputs} equal parts", "make the parts equal, or use Slice"
        )
    return None


def _split_sizes(case: Case, size: int) -> Refusal | None:
    initializer = case.constant(1)
    if initializer is None:
        return constant(1, "the sizes")(case)
    sizes = initializer.numbers()
    if sum(sizes) != size or len(set(sizes)) != 1:
        return Refusal("split", f"parts {sizes} of {size} are not equal", "make the parts equal, or use Slice")
    return None


def axes(case: Case) -> Refusal | None:
    """Axes of Squeeze and Unsqueeze, an input from opset 13 on, are constant when they are listed."""
    return constant(1, "axes")(case) if case.ver > 12 and case.listed > 1 else None


def gemm(case: Case) -> Refusal | None:
    """Gemm, MatMul and QLinearMatMul: two matrices, of which B is a constant, or a batch of them (D.6)."""
    ranks = case.rank(0), case.rank(1)
    if ranks != (2, 2):
        return _batch_matmul(case, ranks)
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
    return _gemm_bias(case) if case.listed > 2 else None


def _gemm_bias(case: Case) -> Refusal | None:
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


def _batch_matmul(case: Case, ranks: tuple[int, int]) -> Refusal | None:
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
        f"batches {show_shape(first)} and {show_shape(second)}: NNAPI supports f32 MatMul of equal leading dimensions "
        "from API level 29 on",
        "expand the smaller batch, or target Android 10 or later",
    )
