"""CoreML (ep_rules E): its table of operators by release, the order of its checks, and what fails on load (E.6).

Which rows MLProgram had before release 1.21 is read off the lists of operators that the wheels 1.19.2 and 1.20.1 hold
(tools/mobile_helpers); their finer checks are taken to be those of 1.21.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from pipeline.core import releases as ort_releases
from pipeline.partition.answer import MAX_VERSION, LoadForecast, Refusal, Settings
from pipeline.partition.claiming import Claim, claim_by_rules
from pipeline.partition.graph import Graph, Node, bodies, given_outside
from pipeline.partition.provider_claims import ProviderClaims
from pipeline.partition.rules import (
    Check,
    Rule,
    Table,
    attribute,
    constant,
    external_refusal,
    first_refusal,
    given,
    listed,
    rank,
    refuse,
    rule_of,
    show,
    show_shape,
    shrinks_evenly,
    since,
    version_refusal,
    when,
)
from pipeline.partition.units import Case, plain_unit, plain_units
from pipeline.providers.coreml import checks
from pipeline.providers.coreml.checks import MAX_RANK, mlprogram, neural_network

INTEGERS = ("i32", "i64")
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
        if case.settings.ort_release < (1, 27):
            return Refusal(
                "rank",
                f"the index {show(case, 1)} is a single number, which releases before 1.27 do not take",
                "use an index of shape [1] and Squeeze the result",
            )
        return static(case) or rank(0, 0, MAX_RANK - 1)(case)
    if data + indices - 1 > MAX_RANK:
        return Refusal(
            "rank", f"the result would have rank {data + indices - 1}, Core ML has at most 5", "gather from fewer"
        )
    return None


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
    about_slices = (
        static,
        constant(1, "starts"),
        constant(2, "ends"),
        when(given(3), constant(3, "axes")),
        when(given(4), constant(4, "steps")),
    )
    refusal = first_refusal(case, about_slices)
    if refusal is not None:
        return refusal

    def indices(position: int) -> list[int] | None:
        initializer = case.constant(position)
        return initializer.numbers() if initializer is not None and initializer.dtype in INTEGERS else None

    shape = [dim or 0 for dim in case.shape(0) or ()]
    starts, ends = indices(1), indices(2)
    axes = indices(3) if case.exists(3) else list(range(len(starts or ())))
    steps = indices(4) if case.exists(4) else [1] * len(starts or ())
    malformed = Refusal("slice", "starts, ends, axes and steps do not fit together", "export the slice anew")
    if starts is None or ends is None or axes is None or steps is None:
        return Refusal("type", "starts, ends, axes and steps must be i32 or i64", "export the slice anew")
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return malformed
    places = [axis + len(shape) if axis < 0 else axis for axis in axes]
    if len(set(places)) < len(places) or not all(0 <= place < len(shape) for place in places):
        return malformed
    for place, start, end, step in zip(places, starts, ends, steps, strict=True):
        # ONNX's clamping of start and end, then whether anything lies between
        size = shape[place]
        first, last = (value + size if value < 0 else value for value in (start, end))
        if step > 0:
            empty = min(max(first, 0), size) >= min(max(last, 0), size)
        else:
            empty = min(max(first, 0), size - 1) <= min(max(last, -1), size - 1)
        if empty:
            return Refusal(
                "empty",
                f"from {start} to {end} by {step} along dimension {place} of {show_shape(tuple(shape))} is nothing",
                "leave the empty slice out",
            )
    return None


def split(case: Case) -> Refusal | None:
    """Parts that are known: given as a constant (or, since release 1.27, an attribute), counted, or even."""
    shape, axis, count = case.shape(0) or (), case.attribute("axis", 0), len(case.node.outputs)
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    parts: Sequence[int] | None = None
    problem = ""
    if case.exists(1):
        refusal = constant(1, "the list of parts")(case)
        if refusal is not None:
            return refusal
        initializer = case.constant(1)
        parts = initializer.numbers() if initializer else []
    elif case.ver >= 18:
        number = case.attribute("num_outputs")
        if number is None or number < 2 or number != count or size is None or number > size:
            problem = f"num_outputs {number}, {count} outputs, dimension of size {size or 'unknown'}"
    elif case.settings.ort_release >= (1, 27):
        parts = case.attribute("split") if case.ver < 13 else None
        if parts is None and (count < 2 or size is None or size % count):
            problem = f"{count} equal parts of a dimension of size {size or 'unknown'}"
    if parts is not None and len(parts) < 2:
        problem = "it splits into a single part"
    elif parts is not None and (size is None or sum(parts) != size or 0 in parts):
        problem = f"parts {list(parts)} of a dimension of size {size or 'unknown'}"
    remedy = "fix the dimension, and split into two or more parts that add up to it"
    return Refusal("split", problem, remedy) if problem else None


def reshape(case: Case) -> Refusal | None:
    """A constant shape of one to five entries, for an input whose shape is known."""
    refusal = constant(1, "the shape")(case)
    initializer = case.constant(1)
    if refusal is not None or initializer is None:
        return refusal
    entries = initializer.numbers()
    if not 1 <= len(entries) <= MAX_RANK:
        return Refusal("rank", f"the new shape {entries} has {len(entries)} entries, taken are 1 to 5", "use fewer")
    refusal = static(case) or rank(0, 1, MAX_RANK)(case)
    if refusal is None and case.attribute("allowzero", 0) == 1 and 0 in entries:
        return Refusal("zero", f"the new shape {entries} asks for a dimension of 0 (allowzero = 1)", "leave it out")
    return refusal


def unsqueeze(case: Case) -> Refusal | None:
    """Axes known beforehand (ONNX Runtime reads their number without looking), at most five dimensions."""
    if case.ver < 13:
        added = len(case.attribute("axes") or ())
    else:
        refusal = constant(1, "axes")(case)
        initializer = case.constant(1)
        if refusal is not None or initializer is None:
            return refusal
        if initializer.dims == ():
            return Refusal(
                "crash",
                f"{case.label} has axes that are a single number: ONNX "
                "Runtime's CoreML part reads them as a list and the process ends",
                "give the axes as a list of one number",
                fatal=True,
            )
        added = initializer.dims[0]
    if case.rank(0) + added <= MAX_RANK:
        return None
    return Refusal("rank", f"the result has rank {case.rank(0) + added}, Core ML has at most 5", "use fewer dimensions")


SQUEEZE = when(since(13), when(listed(1), constant(1, "axes")))


def tile(case: Case) -> Refusal | None:
    """Repeats of at least one for each dimension; NeuralNetwork must know them beforehand."""
    initializer = case.constant(1)
    if initializer is None:
        return constant(1, "repeats")(case) if neural_network(case) else None
    repeats = initializer.numbers()
    if len(repeats) == case.rank(0) and all(count >= 1 for count in repeats):
        return None
    return Refusal(
        "repeats", f"repeats {repeats} of {show_shape(case.shape(0))}", "repeat at least once along each dimension"
    )


def pad(case: Case) -> Refusal | None:
    """Constant padding of the last two dimensions by NeuralNetwork; of any, or by reflection, by MLProgram (1.26)."""
    release, mode, of_program = case.settings.ort_release, case.attribute("mode", "constant"), mlprogram(case)
    refusal = rank(0, 1 if of_program else 2, MAX_RANK)(case)
    if refusal is not None:
        return refusal
    if mode != "constant" and not (mode == "reflect" and of_program):
        remedy = "pad by a constant, or write reflection as Slice and Concat"
        return Refusal("mode", f"mode {mode} is not taken", remedy)
    refusal = _pad_value(case, optional=of_program and release >= (1, 26))
    if refusal is not None:
        return refusal
    initializer = case.graph.initializers.get(case.input(1))
    if initializer is None:
        return Refusal("const", f"pads {show(case, 1)} is no initializer of this graph", "make pads an initializer")
    pads = initializer.numbers()
    if any(pad < 0 for pad in pads):
        return Refusal("negative", f"pads {pads} are partly negative", "cut with Slice in place of negative padding")
    shape = case.shape(0) or ()
    axes = list(range(len(shape)))
    if case.listed > 3:
        given_axes = case.graph.initializers.get(case.input(3)) if case.exists(3) else None
        if given_axes is None:
            # Axes that are no initializer; listed under an empty name they end the session since release 1.26
            fatal = not case.exists(3) and release >= (1, 26)
            text = f"{case.label} lists axes {show(case, 3)}, which are no initializer"
            return Refusal(
                "crash" if fatal else "const",
                text + (": ONNX Runtime's CoreML part throws, and no session is made" if fatal else " of this graph"),
                "leave the axes out of the input list, or make them an initializer",
                fatal=fatal,
            )
        axes = [axis + len(shape) if axis < 0 else axis for axis in given_axes.numbers()]
    amounts = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=False), strict=False))
    outer = [axis for axis, pair in amounts.items() if any(pair) and axis < len(shape) - 2]
    if outer and (not of_program or mode != "constant"):
        return Refusal(
            "axis",
            f"it pads dimension {outer[0]} of {show_shape(shape)}, taken are the last two",
            "pad height and width only" + ("; or use format MLProgram (release 1.26)" if mode == "constant" else ""),
        )
    for axis, pair in amounts.items() if mode == "reflect" else ():
        size = shape[axis]
        if size is None or max(pair) >= size:
            return Refusal(
                "pads", f"it reflects {max(pair)} entries of a dimension of size {size or 'unknown'}", "pad by less"
            )
    return None


def _pad_value(case: Case, *, optional: bool) -> Refusal | None:
    if optional and (case.attribute("mode", "constant") != "constant" or not case.exists(2)):
        return None
    if case.graph.initializers.get(case.input(2)) is None:
        return Refusal(
            "const",
            f"the padding value {show(case, 2)} is no initializer of the graph in which the node stands",
            "give the padding value as an initializer",
        )
    if neural_network(case) and case.settings.ort_release >= (1, 23) and case.dtype(2) != "f32":
        return Refusal("type", f"the padding value is {case.dtype(2)}, not f32", "pad in f32")
    return None


EQUIVALENT = "export Resize as linear, or nearest with asymmetric coordinates and floor; double or halve sizes"


RESIZE: tuple[Check, ...] = (
    refuse(
        lambda case: 0 in (case.shape(0) or ()),
        "zero",
        lambda case: f"input {show(case, 0)} {show_shape(case.shape(0) or ())} is empty",
        "leave the node out",
    ),
    when(neural_network, rank(0, 4, 4)),
    when(mlprogram, rank(0, 3, 5)),
    when(since(18), attribute("antialias", (0,), default=0)),
    attribute("mode", ("linear", "nearest"), default="nearest", code="mode"),
    when(
        lambda case: case.attribute("mode", "nearest") == "nearest",
        attribute("nearest_mode", ("floor",), default="round_prefer_floor", code="coord"),
    ),
    attribute("exclude_outside", (0,), default=0),
    when(since(18), attribute("keep_aspect_ratio_policy", ("stretch",), default="stretch")),
)
"""Only height and width change, by modes that Core ML computes alike; `resize_target` asks about the factors."""


def resize_target(case: Case) -> Refusal | None:
    """Sizes go before scales; either is a constant."""
    if not case.exists(3) and not case.exists(2):
        return Refusal("const", "neither scales nor sizes are given", "give constant scales or sizes")
    by_size = case.exists(3)
    position, what = (3, "sizes") if by_size else (2, "scales")
    initializer = case.constant(position)
    if initializer is None:
        return constant(position, what)(case)
    axes = [axis + case.rank(0) if axis < 0 else axis for axis in case.attribute("axes") or range(case.rank(0))]
    numbers = initializer.numbers()
    if len(numbers) != len(axes):
        return Refusal("factor", f"{len(numbers)} {what} for {len(axes)} dimensions", "give one for each dimension")
    refusal = _sizes(case, numbers, axes) if by_size else _scales(case, numbers, axes)
    if refusal is not None:
        return refusal
    mode = case.attribute("coordinate_transformation_mode", "half_pixel")
    if neural_network(case) or case.attribute("mode", "nearest") == "nearest":
        modes: tuple[str, ...] = ("asymmetric",)
    else:
        modes = ("half_pixel", "align_corners", *(("asymmetric",) if by_size else ()))
        if mode == "pytorch_half_pixel":
            if len(numbers) < 2:
                return ONE_AXIS
            sides = zip((case.shape(0) or ())[-2:], numbers[-2:], strict=True)
            result = numbers[-2:] if by_size else [(dim or 0) * scale for dim, scale in sides]
            mode = "half_pixel" if min(result) > 1 else mode
    if mode in modes:
        return None
    return Refusal(
        "coord",
        f"coordinate_transformation_mode {mode}; CoreML supports {' or '.join(modes)} here",
        f"export Resize with {' or '.join(modes)}",
    )


ONE_AXIS = Refusal(
    "axes", "attribute axes names one dimension, ONNX Runtime reads two", "give scales or sizes for all dimensions"
)


def _scales(case: Case, scales: Sequence[float], axes: Sequence[int]) -> Refusal | None:
    shape = case.shape(0) or ()
    if None in shape[-2:]:
        return Refusal(
            "dynamic",
            f"height and width of {show(case, 0)} {show_shape(shape)} are not known",
            "fix the model's dynamic dimensions",
        )
    if any(axis < len(shape) - 2 and scale != 1 for axis, scale in zip(axes, scales, strict=True)):
        return Refusal("nc", f"scales {list(scales)} change more than height and width", "scale height and width only")
    if len(scales) < 2:
        return ONE_AXIS
    size, factors = [dim or 0 for dim in shape[-2:]], scales[-2:]
    if min(factors) >= 1:
        taken = all(float(scale).is_integer() for scale in factors)
    else:
        divided = all(shrinks_evenly(dim, scale) for dim, scale in zip(size, factors, strict=True))
        taken = max(factors) <= 1 and mlprogram(case) and divided
    if taken:
        return None
    return Refusal(
        "factor",
        f"height and width {size} by {list(factors)}: both must grow by whole numbers"
        + (", or both shrink by whole divisors of the size" if mlprogram(case) else ""),
        EQUIVALENT,
    )


def _sizes(case: Case, sizes: Sequence[int], axes: Sequence[int]) -> Refusal | None:
    """ONNX Runtime compares the i-th size with the i-th dimension, whatever dimension `axes` names there."""
    shape = case.shape(0) or ()
    for i, axis in enumerate(axes):
        if axis < len(shape) - 2 and shape[i] != sizes[i]:
            return Refusal(
                "nc", f"sizes {list(sizes)} of {show_shape(shape)} change more than height and width", EQUIVALENT
            )
    if mlprogram(case):
        return None
    if len(sizes) < 2:
        return ONE_AXIS
    if not case.value(0).static:
        return Refusal("dynamic", f"input {show(case, 0)} {show_shape(shape)} is not static", "fix the dimensions")
    if any(size % (dim or 1) for size, dim in zip(sizes[-2:], shape[-2:], strict=True)):
        return Refusal("factor", f"sizes {list(sizes[-2:])} are no multiples of {show_shape(shape[-2:])}", EQUIVALENT)
    return None


PLAIN = (checks.plain,)
FLOAT = (checks.plain, checks.float_types)
ONLY_NN = (checks.NN,)
ONLY_MLP = (checks.MLP,)


Rows = dict[str, Rule | tuple[Rule, ...]]


def _rules(names: str, *rules: Rule) -> Rows:
    return dict.fromkeys(names.split(), rules)


def later_in_mlprogram(names: str, rule: Rule, release: tuple[int, int] = (1, 21)) -> Rows:
    """Rows that NeuralNetwork had already when a release brought them to MLProgram."""
    return _rules(
        names,
        replace(rule, formats=ONLY_NN, before=release),
        replace(rule, formats=checks.BOTH, release=release),
    )


ELEMENTWISE: Table = {
    **_rules("Relu LeakyRelu Sigmoid Tanh", Rule(formats=checks.BOTH, since=6, types=PLAIN)),
    "Gelu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 21)),
    "Elu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 24)),
    **_rules("Exp Softplus", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 24))),
    "HardSigmoid": Rule(formats=checks.BOTH, since=6, types=FLOAT, release=(1, 26)),
    "QuickGelu": Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 26)),
    **later_in_mlprogram("PRelu", Rule(since=6, types=PLAIN, checks=(checks.prelu,))),
    **later_in_mlprogram("Sqrt Reciprocal", Rule(types=PLAIN), (1, 20)),
    **_rules("Erf Round", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 21))),
    **_rules("Ceil Sin Cos", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 27))),
    **_rules("Add Sub Mul Div", Rule(formats=checks.BOTH, since=7, types=PLAIN)),
    "Pow": Rule(formats=checks.BOTH, since=7, types=(checks.same_types, checks.plain)),
    "Max": Rule(formats=ONLY_MLP, since=7, types=PLAIN, release=(1, 21)),
    "Clip": Rule(formats=checks.BOTH, types=PLAIN, checks=(checks.clip,)),
    **later_in_mlprogram("Softmax", Rule(types=PLAIN, checks=(checks.softmax,))),
    "Identity": Rule(formats=checks.BOTH, types=PLAIN, release=(1, 27)),
    "Where": Rule(formats=ONLY_MLP, types=checks.where_types, release=(1, 28)),
    "And": Rule(formats=ONLY_MLP, types=checks.both_bool, release=(1, 28)),
}

LAYERS: Table = {
    **later_in_mlprogram("BatchNormalization", Rule(since=7, types=PLAIN, checks=checks.BATCH_NORMALIZATION)),
    **_rules(
        "InstanceNormalization LayerNormalization GroupNormalization",
        Rule(
            formats=ONLY_MLP,
            types=(checks.normalization_types,),
            checks=checks.NORMALIZATION,
            release=(1, 21),
        ),
    ),
    "LRN": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 3, 4),)),
    **later_in_mlprogram("ReduceMean ReduceSum", Rule(types=PLAIN, checks=(checks.AXES_CONSTANT, checks.noop_axes))),
    **_rules(
        "ReduceMax ReduceMin ReduceProd",
        Rule(formats=ONLY_MLP, types=PLAIN, checks=(checks.AXES_CONSTANT,), release=(1, 21)),
    ),
    **later_in_mlprogram("ArgMax", Rule(types=PLAIN, checks=(checks.argmax,))),
    "Conv": Rule(formats=checks.BOTH, types=PLAIN, checks=checks.CONV),
    "FusedConv": Rule(formats=ONLY_MLP, types=FLOAT, checks=(checks.fused_conv, *checks.CONV), release=(1, 27)),
    "ConvTranspose": Rule(formats=ONLY_MLP, types=PLAIN, checks=checks.CONV_TRANSPOSE),
    "Gemm": Rule(formats=checks.BOTH, types=PLAIN, checks=(checks.gemm,)),
    "MatMul": Rule(formats=checks.BOTH, types=PLAIN, checks=(checks.matmul,)),
    "GridSample": Rule(formats=ONLY_MLP, types=PLAIN, checks=(checks.grid_sample,)),
    **_rules("AveragePool MaxPool", Rule(formats=checks.BOTH, types=PLAIN, checks=(checks.pool,))),
    **_rules("GlobalAveragePool GlobalMaxPool", Rule(formats=checks.BOTH, types=PLAIN, checks=(rank(0, 4, 4),))),
    "DepthToSpace": Rule(formats=checks.BOTH, types=PLAIN, checks=(checks.depth_to_space,)),
    "Resize": Rule(formats=checks.BOTH, since=11, types=PLAIN, checks=(*RESIZE, resize_target)),
}

SHAPES: Table = {
    "Concat": Rule(formats=checks.BOTH, types=PLAIN, checks=(checks.concat,)),
    "Flatten": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 1, 5),)),
    **later_in_mlprogram("Gather", Rule(types=(checks.gather_types,), checks=(gather,)), (1, 22)),
    "GatherND": Rule(formats=ONLY_MLP, types=(checks.gather_nd_types,), checks=(gather_nd,), release=(1, 27)),
    **later_in_mlprogram("Pad", Rule(since=11, types=checks.pad_types, checks=(pad,)), (1, 26)),
    "Reshape": Rule(formats=checks.BOTH, since=5, types=PLAIN, checks=(reshape,)),
    **later_in_mlprogram("Shape", Rule(types=(checks.shape_types,), checks=(checks.shape,))),
    "Slice": Rule(formats=checks.BOTH, since=10, types=(checks.slice_types,), checks=(slice_,)),
    **_rules(
        "Split",
        Rule(formats=checks.BOTH, since=13, types=PLAIN, checks=(split,), before=(1, 27)),
        Rule(formats=checks.BOTH, types=PLAIN, checks=(split,), release=(1, 27)),
    ),
    **later_in_mlprogram("Squeeze", Rule(types=PLAIN, checks=(SQUEEZE,))),
    "Tile": Rule(formats=checks.BOTH, types=(checks.tile_types,), checks=(tile,), release=(1, 27)),
    "Transpose": Rule(formats=checks.BOTH, types=PLAIN),
    "Unsqueeze": Rule(formats=ONLY_MLP, types=PLAIN, checks=(unsqueeze,), release=(1, 21)),
}


MIN_COREML = (((0, 0), 3), ((1, 22), 5))
"""Lowest Core ML version by release (E.1): below it the provider cannot be made."""

TRIVIAL = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Tile", "Transpose", "Ceil")
"""Ops that are not worth a partition of their own since release 1.27 (B.6)."""


def _cast(case: Case) -> Refusal | None:
    """MLProgram: behind another node (until 1.27). NeuralNetwork: behind an ArgMax that is claimed, to i32."""
    sources = case.graph.in_edges[case.node.index]
    free = checks.mlprogram(case) and case.settings.ort_release >= (1, 27)
    if not sources and not free:
        return Refusal(
            "cast",
            f"no node makes its input {show(case, 0)}; CoreML supports a Cast behind another node",
            "give the model's input in the type that is needed, or ship release 1.27 or later",
        )
    if checks.mlprogram(case):
        return None
    producer = case.graph.nodes[sources[0].producer]
    if producer.op_type == "ArgMax" and case.attribute("to") == 6:
        argmax = Case(case.graph, plain_unit(producer), case.settings)
        if refusal(argmax) is None:
            return None
    return Refusal(
        "cast",
        f"it casts the output of {producer.op_type}; NeuralNetwork has only a Cast of ArgMax's result to i32",
        "use format MLProgram",
    )


TABLE: Table = {
    **ELEMENTWISE,
    **LAYERS,
    **SHAPES,
    **later_in_mlprogram("Cast", Rule(types=(checks.cast_types,), checks=(_cast,))),
}


def refusal(case: Case) -> Refusal | None:
    """The checks that every node passes through, in the order of ep_rules E.2."""
    rule = rule_of(TABLE, case.node.op_type, case.settings)
    if rule is None:
        op_type, release = case.node.op_type, case.settings.ort_release
        rows = TABLE.get(op_type, ())
        later = [row.release for row in ((rows,) if isinstance(rows, Rule) else rows) if row.release > release]
        if not later:
            return Refusal("op", f"{op_type} is not supported by the CoreML EP", "rewrite it with supported operators")
        first = ".".join(str(part) for part in min(later))
        return Refusal(
            "op", f"ONNX Runtime's CoreML has {op_type} from release {first} on", f"ship release {first} or later"
        )
    chosen = checks.model_format(case.settings)
    if chosen not in rule.formats:
        other = rule.formats[0]
        return Refusal(
            "format", f"{case.node.op_type} is there in format {other}, not in {chosen}", f"use format {other}"
        )
    settings = case.settings
    names = {position: value.name for position, value in enumerate(case.unit.inputs) if value.name}
    newest = ort_releases.at_release(MAX_VERSION, settings.ort_release)
    problem = version_refusal(case, "CoreML", rule.since, newest) or external_refusal(case, names.values())
    if problem is not None:
        return problem
    # Every input that exists counts, small ones like axes too (E.2.5).
    for position, input_name in names.items():
        value = case.graph.value(input_name)
        shape = value.shape
        if shape is None:
            remedy = "export the model with its shapes"
            return Refusal("shape", f"the shape of {show(case, position)} is not known", remedy)
        too_long = settings.ort_release < (1, 23) and checks.too_long(shape)
        if value.static and 0 not in shape and len(shape) <= checks.MAX_RANK and not too_long:
            continue  # nearly all: no text is made
        name = f"input {show(case, position)} {show_shape(shape)}"
        if settings.require_static_input_shapes and not value.static:
            return Refusal("dynamic", f"{name} is not static, as RequireStaticInputShapes asks", FIX)
        if 0 in shape and case.node.op_type != "Resize":
            return Refusal("zero", f"{name} is empty", "leave the empty value out")
        if len(shape) > checks.MAX_RANK:
            return Refusal("rank", f"{name} has rank {len(shape)}, Core ML has at most 5", "use fewer dimensions")
        if too_long:
            return Refusal("dimension", f"{name} has a dimension above {checks.LARGEST}", "work on shorter pieces")
    return first_refusal(case, (*rule.types, *rule.checks))


def _whole(graph: Graph, settings: Settings) -> Refusal | None:
    """The provider cannot be made (E.1), or is asked about a body without EnableOnSubgraphs."""
    least = ort_releases.at_release(MIN_COREML, settings.ort_release)
    if settings.coreml_version < least:
        return Refusal(
            "version",
            f"Core ML version {settings.coreml_version} is below {least}, which ONNX Runtime's CoreML needs",
            "target iOS 15 (version 5) or later",
            fatal=True,
        )
    if graph.outer is not None and not settings.enable_on_subgraphs:
        return Refusal(
            "subgraph",
            "CoreML supports nothing inside If, Loop and Scan unless EnableOnSubgraphs is set",
            "set EnableOnSubgraphs=1",
        )
    return None


TRIVIAL_REFUSAL = Refusal(
    "trivial",
    "its partition only moves or reshapes data, which costs more than it saves",
    "nothing to do: a neighbour decides",
)


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What CoreML claims of one graph; `only` are the nodes that no provider has yet."""
    return claim_by_rules(
        graph,
        settings,
        only,
        whole=_whole,
        units=lambda graph, _: plain_units(graph),
        taken=Refusal("other_ep", "it is another provider's already, or in an earlier partition"),
        operator=refusal,
        veto=lambda _graph, settings, group: (
            TRIVIAL_REFUSAL
            if settings.ort_release >= (1, 27) and all(node.op_type in TRIVIAL for node in group)
            else None
        ),
    )


CORE_ML_TYPES = ("f32", "f16", "i32", "i64")
"""Element types that values between ONNX Runtime and a Core ML model may have (i64 travels as i32)."""


def forecast(rounds: Iterable[tuple[Graph, Claim]], settings: Settings) -> LoadForecast:
    """The compiled nodes of the last round (`rounds` has those of each), or the first thing that goes wrong.

    Bodies are asked about once, before the graph around them.
    """
    counts: list[int] = []
    for number, (graph, claimed) in enumerate(rounds):
        inside = [body for _, body in bodies(graph)] if number == 0 else []
        counts.append(0)
        for part in (graph, *inside):
            part_claim = claimed if part is graph else claim(part, settings)
            problem = part_claim.fatal or build_refusal(part, part_claim.groups, settings)
            if problem is not None:
                return LoadForecast.failing(problem)
            counts[-1] += len(part_claim.groups)
    return LoadForecast(partitions=counts[-1], rounds=tuple(counts))


def build_refusal(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why one of the partitions cannot become a Core ML model, so that no session is made."""
    types = (*CORE_ML_TYPES, *(("bool",) if settings.ort_release >= (1, 27) else ()))
    for group in groups:
        written = {name for node in group for name in node.outputs}
        read = {name for node in group for name in node.inputs if name} - written
        wrong = {
            name
            for name in read
            if name not in graph.initializers and graph.value(name).dtype not in types and graph.constant(name) is None
        }
        for reader, slot, name in (
            ((node, slot, name) for node in group for slot, name in enumerate(node.inputs)) if wrong else ()
        ):
            # Not Resize's roi, which is skipped
            if name in wrong and (reader.op_type != "Resize" or slot != 1):
                return _bad_type(graph, name, reader, types)
        for node in group if "Split" in graph.operators else ():
            if node.op_type == "Split" and len(node.inputs) > 1 and not node.inputs[1]:
                return Refusal(
                    "crash",
                    f"{node.label} lists its second input under an empty name: ONNX "
                    "Runtime's CoreML part reads it all the same and the process ends",
                    "leave the second input out of the list",
                    fatal=True,
                )
        for name in given_outside(graph, group, {node.index for node in group}):
            value = graph.value(name)
            if value.shape is None:
                return Refusal(
                    "io_shape",
                    f"value '{name}' leaves the Core ML model, and its rank is not known "
                    f"({show_shape(None)}): building the model fails and no session is made",
                    "give the value's shape in the model (value_info), or fix the model's dynamic dimensions",
                )
            if value.dtype not in types:
                return _bad_type(graph, name, group[-1], types)
    return None


def _bad_type(graph: Graph, name: str, node: Node, taken: Iterable[str]) -> Refusal:
    dtype = graph.value(name).dtype or "unknown"
    return Refusal(
        "io_type",
        f"value '{name}' goes between ONNX Runtime and the Core ML model with {node.label}, and is of type {dtype}; "
        f"Core ML has {', '.join(taken)} there, so building the model fails and no session is made",
        "cast the value to one of them before the node",
    )


CLAIMS = ProviderClaims(claim=claim, forecast=forecast, build_refusal=build_refusal, table=TABLE)
