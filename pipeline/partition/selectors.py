"""Which quantized nodes are one unit with the DequantizeLinear and QuantizeLinear nodes around them.

ONNX Runtime's selectors decide that (ep_rules C.2 and the supplement by release, part 2): one function for each kind of
operator.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.graph import Graph, Node
from pipeline.partition.units import (
    DEQUANTIZE,
    QUANTIZE,
    Case,
    Unit,
    UnitValue,
    equal_pair,
    plain_unit,
    plain_units,
    redundant,
    scalar,
    unit_values,
)

Selector = Callable[[Case], bool]
"""Whether a candidate, a target with what stands around it, is a group."""


def _dtype_in(case: Case, position: int) -> str | None:
    """The quantized type in front of a DequantizeLinear of the group."""
    return case.graph.value(case.unit.dqs[position].inputs[0]).dtype


def _dtype_out(case: Case, position: int = 0) -> str | None:
    return case.graph.value(case.unit.qs[position].outputs[0]).dtype


def _can_create(case: Case) -> bool:
    """Whether the nodes can be taken together without anyone else needing a value between them."""
    graph, target = case.graph, case.node
    for dq in case.unit.dqs:
        edges = graph.out_edges[dq.index]
        if graph.gives_output(dq) or len(edges) != 1 or edges[0].consumer != target.index:
            return False
    if case.unit.clip is not None:
        return not graph.gives_output(target) and not graph.gives_output(case.unit.clip)
    for slot, name in enumerate(target.outputs if case.unit.qs else ()):
        edges = graph.out_edges[target.index]
        kinds = {graph.nodes[edge.consumer].op_type == QUANTIZE for edge in edges if edge.source_slot == slot}
        if len(kinds) == 2 or (True in kinds and name in graph.output_set):
            return False
    return True


def _complete(case: Case, count: int | None = None, *, no_q: bool = False) -> bool:
    """CheckQDQ: `count` DequantizeLinear nodes (None: one for each input), a QuantizeLinear for each output."""
    expected = sum(1 for name in case.node.inputs if name) if count is None else count
    if len(case.unit.dqs) != expected or not _can_create(case):
        return False
    if not case.unit.qs:
        return no_q
    outputs = sum(1 for name in case.node.outputs if name)
    edges = len(case.graph.out_edges[case.node.index])
    return outputs == len(case.unit.qs) == edges and not case.graph.gives_output(case.node)


def _alike(case: Case, count: int = 1) -> bool:
    """Whether the first inputs are of one quantized type, and the first output is of the same."""
    return {_dtype_in(case, position) for position in range(count)} == {_dtype_out(case)}


def _drop_qdq(case: Case) -> bool:
    """Ops that only move data: the same type and parameters on both sides."""
    unit = case.unit
    moves = unit.clip is None and _complete(case, 1) and _alike(case)
    return moves and equal_pair(case.graph, unit.dqs[0], unit.qs[0])


def _resize(case: Case) -> bool:
    """As `_drop_qdq`; from release 1.27 on only for modes that invent no values."""
    attributes = case.node.attributes
    moves = attributes.get("mode", "nearest") == "nearest" and (
        attributes.get("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
    )
    return _drop_qdq(case) and (case.settings.ort_release < (1, 27) or moves)


def _drop_dq(case: Case) -> bool:
    """ArgMax and ArgMin: constant scalar parameters in front, nothing behind."""
    if case.unit.clip is not None or len(case.unit.dqs) != 1 or not _can_create(case):
        return False
    inputs = case.unit.dqs[0].inputs
    return len(inputs) == 3 and all(scalar(case.graph, name) is not None for name in inputs[1:])


def _unary(case: Case) -> bool:
    """One quantized input, the same type behind."""
    return _complete(case, 1) and _alike(case)


def _clip(case: Case) -> bool:
    """As `_unary`; from release 1.24 on the bounds may be quantized too."""
    count = len(case.unit.dqs)
    if case.settings.ort_release < (1, 24):
        return _unary(case)
    return 1 <= count <= 3 and _complete(case, count) and _alike(case)


def _variadic(case: Case) -> bool:
    """All inputs and outputs of one type."""
    if not _complete(case) or not case.unit.dqs:
        return False
    outputs = {_dtype_out(case, i) for i in range(len(case.unit.qs))}
    return len({_dtype_in(case, i) for i in range(len(case.unit.dqs))} | outputs) == 1


def _conv(case: Case) -> bool:
    """Activation, weight and, when there is one, bias quantized; a float bias prevents the group."""
    if not _complete(case) or len(case.unit.dqs) < 2 or not _alike(case) or _mixed_weight(case):
        return False
    if len(case.unit.dqs) < 3:
        return True
    return _dtype_in(case, 2) == "i32" and (case.settings.ort_release < (1, 27) or _bias_scale_fits(case))


def _gemm(case: Case) -> bool:
    """Both operands quantized, with or without bias; may lack the QuantizeLinear behind it."""
    if not _complete(case, no_q=True) or len(case.unit.dqs) < 2 or _mixed_weight(case):
        return False
    if case.unit.qs and not _alike(case):
        return False
    attributes = case.node.attributes
    if len(case.unit.dqs) > 2 and (attributes.get("beta", 1.0) != 1.0 or _dtype_in(case, 2) != "i32"):
        return False
    return case.settings.ort_release < (1, 28) or _gemm_parameters_fit(case)


def _top_k(case: Case) -> bool:
    """Values move, indices are not quantized."""
    unit = case.unit
    if unit.clip is not None or len(unit.dqs) != 1 or len(unit.qs) != 1 or not _can_create(case):
        return False
    return _alike(case) and equal_pair(case.graph, unit.dqs[0], unit.qs[0])


_UNARY_OPS = (
    "AveragePool GlobalAveragePool GlobalMaxPool LeakyRelu ReduceMean ReduceMin ReduceMax ReduceProd ReduceSum "
    "Relu Gelu Elu HardSigmoid HardSwish Sigmoid Slice LogSoftmax Softmax Sqrt Atan Asin Sin Cos Sign Tanh Exp "
    "Log LRN Ceil Floor Round Abs Neg DepthToSpace SpaceToDepth LpNormalization CumSum"
)


_SELECTORS: Sequence[tuple[str, Selector]] = (
    ("Gather GatherElements Reshape Expand Flatten Transpose Squeeze Unsqueeze Tile MaxPool", _drop_qdq),
    ("Resize", _resize),
    ("ArgMax ArgMin", _drop_dq),
    (_UNARY_OPS, _unary),
    ("Clip", _clip),
    # Two quantized inputs and an output, all of one type
    (
        "Add Div Mul Pow Sub PRelu GridSample",
        lambda case: _complete(case) and len(case.unit.dqs) > 1 and _alike(case, 2),
    ),
    ("Concat Max Min ScatterElements RMSNormalization", _variadic),
    # One quantized input; every output of its type, whatever the parameters
    (
        "Split",
        lambda case: (
            case.unit.clip is None
            and _complete(case, 1)
            and {_dtype_out(case, i) for i in range(len(case.unit.qs))} == {_dtype_in(case, 0)}
        ),
    ),
    ("Conv ConvTranspose", _conv),
    # Both operands and the output quantized
    (
        "MatMul",
        lambda case: (
            len(case.unit.dqs) == 2
            and bool(case.unit.qs)
            and not _mixed_weight(case)
            and _complete(case)
            and _alike(case)
        ),
    ),
    ("Gemm", _gemm),
    # All inputs quantized, a bias in i32
    (
        "InstanceNormalization LayerNormalization",
        lambda case: (
            _complete(case)
            and len(case.unit.dqs) > 0
            and _alike(case)
            and (len(case.unit.dqs) < 3 or _dtype_in(case, 2) == "i32")
        ),
    ),
    # Input, scale and B quantized (from release 1.24 on mean and variance too)
    (
        "BatchNormalization",
        lambda case: (
            3 <= len(case.unit.dqs) <= (5 if case.settings.ort_release >= (1, 24) else 3)
            and _complete(case, len(case.unit.dqs))
            and _alike(case)
            and not _mixed_weight(case)
        ),
    ),
    # Both inputs quantized with one type; the output is bool
    (
        "Equal Greater GreaterOrEqual Less LessOrEqual",
        lambda case: _complete(case, no_q=True) and len(case.unit.dqs) > 1 and _dtype_in(case, 0) == _dtype_in(case, 1),
    ),
    # The two data inputs quantized
    ("Where", lambda case: _complete(case, 2) and _alike(case, 2)),
    # Data, and perhaps the padding value, quantized
    (
        "Pad",
        lambda case: (
            1 <= len(case.unit.dqs) <= 2 and _complete(case, len(case.unit.dqs)) and _alike(case, len(case.unit.dqs))
        ),
    ),
    ("TopK", _top_k),
    # All inputs quantized; when there is a QuantizeLinear, of the first input's type
    (
        "Einsum Reciprocal",
        lambda case: _complete(case, no_q=True) and len(case.unit.dqs) > 0 and (not case.unit.qs or _alike(case)),
    ),
)


SELECTORS: Mapping[str, Selector] = {name: selector for names, selector in _SELECTORS for name in names.split()}
"""The selector of each operator."""


SELECTED_SINCE: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("Einsum", "Reciprocal", "CumSum"), (1, 23)),
    **dict.fromkeys(("ScatterElements", "RMSNormalization"), (1, 24)),
}
"""The first release with a selector, of operators that older ones had none for."""


def _mixed_weight(case: Case) -> bool:
    return _dtype_in(case, 0) == "i8" and _dtype_in(case, 1) != "i8"


def _bias_scale_fits(case: Case) -> bool:
    """From release 1.27 on the bias must have scale x_scale * w_scale and no zero point (supplement, part 2)."""
    import numpy as np

    scales = [case.graph.constant(dq.inputs[1]) for dq in case.unit.dqs[:3]]
    x, w, b = (scale.read().reshape(-1) if scale and scale.dtype == "f32" else np.array([]) for scale in scales)
    if any(not array.size or not np.isfinite(array).all() for array in (x, w, b)) or x.size != 1:
        return False
    zero_name = next(iter(case.unit.dqs[2].inputs[2:]), "")
    zero = case.graph.constant(zero_name) if zero_name else None
    if zero_name and (zero is None or zero.dtype != "i32" or zero.count < 1 or any(zero.numbers())):
        return False
    if w.size != b.size and 1 not in (w.size, b.size):
        return False
    product = (x[0] * w).astype(np.float32)
    return bool((np.abs(b - product) <= np.float32(1e-6) + np.float32(0.01) * np.abs(product)).all())


def _gemm_parameters_fit(case: Case) -> bool:
    """From release 1.28 on shapes of scales and zero points of a Gemm count (supplement, part 2)."""
    a, b = case.unit.dqs[:2]
    graph, attributes = case.graph, case.node.attributes
    shapes = [_parameter_shapes(graph, node, required=True) for node in (a, b)]
    if shapes[0] is None or shapes[1] is None or not all(shape in ((), (1,)) for shape in shapes[0]):
        return False
    weight = graph.value(b.outputs[0]).shape
    columns = weight[0 if attributes.get("transB", 0) else 1] if weight is not None and len(weight) == 2 else None
    if len(set(shapes[1])) != 1 or shapes[1][0] not in ((), (1,), (columns,)):
        return False
    if case.unit.qs:
        behind = _parameter_shapes(graph, case.unit.qs[0], required=False)
        if behind is None or not all(shape in ((), (1,)) for shape in behind):
            return False
    return len(case.unit.dqs) < 3 or (attributes.get("alpha", 1.0) == 1.0 and attributes.get("beta", 1.0) == 1.0)


def _parameter_shapes(graph: Graph, node: Node, *, required: bool) -> "list[tuple[int | None, ...]] | None":
    names = [name for name in node.inputs[1:3] if name]
    shapes = [graph.value(name).shape for name in names]
    shaped = [shape for shape in shapes if shape is not None]
    if len(shaped) != len(shapes) or (required and len(names) != 2):
        return None
    return shaped


def node_units(graph: Graph, settings: Settings) -> tuple[Unit, ...]:
    """QDQ groups and single nodes in topological order of their targets, each node in one unit (C.2, C.3)."""
    key = (settings.ort_release, settings.abi)  # all that selectors look at beside the graph
    if key not in graph.units:
        if graph.operators.isdisjoint((DEQUANTIZE, QUANTIZE, *QLINEAR)):
            graph.units[key] = plain_units(graph)
            return graph.units[key]
        dqs = [node.index for node in graph.nodes.values() if node.op_type == DEQUANTIZE]
        fed = {edge.consumer for index in dqs for edge in graph.out_edges[index]}
        units = ((index, select(graph, graph.nodes[index], settings)) for index in graph.order if index in fed)
        groups = {index: unit for index, unit in units if unit is not None}
        taken = {member.index for unit in groups.values() for member in unit.nodes}
        graph.units[key] = tuple(
            groups.get(index) or _single(graph.nodes[index])
            for index in graph.order
            if index in groups or index not in taken
        )
    return graph.units[key]


def unit_of_node(units: Iterable[Unit]) -> dict[int, Unit]:
    """The unit of each node by its index: the first one that lists it, groups before single nodes."""
    owners: dict[int, Unit] = {}
    for unit in sorted(units, key=lambda unit: not unit.group):
        for node in unit.nodes:
            owners.setdefault(node.index, unit)
    return owners


def _quantized(name: str, node: Node) -> UnitValue:
    """A value with what its QuantizeLinear or DequantizeLinear lists; only a third input counts as zero point."""
    zero_point = node.inputs[2] if len(node.inputs) == 3 else None
    return UnitValue(name, node.inputs[1] if len(node.inputs) > 1 else "", zero_point)


_ONE_INPUT = (((0, 1, 2),), (3, 4))


_TWO_INPUTS = (((0, 1, 2), (3, 4, 5)), (6, 7))


QLINEAR: Mapping[str, tuple[tuple[tuple[int, int, int], ...], tuple[int, int]]] = {
    **dict.fromkeys(
        ("QLinearSigmoid", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearReduceMean"),
        _ONE_INPUT,
    ),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), _TWO_INPUTS),
}
"""Single nodes whose inputs carry quantization parameters (C.3): positions of (value, scale, zero point) of each
quantized input, and of the output's (scale, zero point)."""


def _single(node: Node) -> Unit:
    if node.op_type == DEQUANTIZE:
        inputs = tuple(_quantized(name, node) for name in node.inputs[:1])
        return Unit(target=node, inputs=inputs, outputs=unit_values(node.outputs))
    if node.op_type == QUANTIZE:
        outputs = tuple(_quantized(name, node) for name in node.outputs)
        return Unit(target=node, inputs=unit_values(node.inputs[:1]), outputs=outputs)
    if node.op_type not in QLINEAR:
        return plain_unit(node)

    def listed(position: int) -> str | None:
        return node.inputs[position] if position < len(node.inputs) else None

    positions, (output_scale, output_zero) = QLINEAR[node.op_type]
    values = [UnitValue(listed(v) or "", listed(s) or "", listed(z)) for v, s, z in positions]
    if node.op_type == "QLinearConv" and len(node.inputs) == 9:  # the bias
        values.append(UnitValue(node.inputs[8]))
    outputs = tuple(UnitValue(name, listed(output_scale) or "", listed(output_zero)) for name in node.outputs)
    return Unit(target=node, inputs=tuple(values), outputs=outputs)


DOMAINS = ("", "com.ms.internal.nhwc", "com.microsoft")


def select(graph: Graph, node: Node, settings: Settings) -> Unit | None:
    """The QDQ group around a node, None when it has none."""
    unit = _candidate(graph, node, settings)
    # No selector takes a group without a DequantizeLinear.
    if unit is None or not unit.dqs or not SELECTORS[node.op_type](Case(graph, unit, settings)):
        return None
    return unit


def selection_crash(graph: Graph, settings: Settings) -> Refusal | None:
    """A Pad without DequantizeLinear before a QuantizeLinear: releases up to 1.27 read out of range (C.2)."""
    if settings.ort_release >= (1, 28) or "Pad" not in graph.operators:
        return None
    for node in (graph.nodes[index] for index in graph.order):
        unit = _candidate(graph, node, settings) if node.op_type == "Pad" else None
        if unit is None or unit.dqs or not _complete(Case(graph, unit, settings), 0):
            continue
        return Refusal(
            "crash",
            f"{node.label} feeds a QuantizeLinear but has no DequantizeLinear before it: "
            "ONNX Runtime up to 1.27 reads out of range here and the process ends",
            "quantize the input of the Pad too, or take away the QuantizeLinear behind it",
            fatal=True,
        )
    return None


def _candidate(graph: Graph, node: Node, settings: Settings) -> Unit | None:
    """The nodes around a target before its selector decides; None when the op or a Relu behind it allows no group."""
    since = SELECTED_SINCE.get(node.op_type, (0, 0))
    if node.op_type not in SELECTORS or since > settings.ort_release or node.domain not in DOMAINS:
        return None
    if node.op_type == "MaxPool" and node.since_version not in ((12, 22) if settings.ort_release >= (1, 28) else (12,)):
        return None
    sources = sorted(graph.in_edges[node.index], key=lambda edge: edge.input_slot)
    dqs = tuple(graph.nodes[edge.producer] for edge in sources if graph.nodes[edge.producer].op_type == DEQUANTIZE)
    clip = activation(graph, node)
    readers = sorted(graph.out_edges[(clip or node).index], key=lambda edge: edge.source_slot)
    qs = tuple(graph.nodes[edge.consumer] for edge in readers if graph.nodes[edge.consumer].op_type == QUANTIZE)
    if clip is not None and (len(qs) != 1 or not redundant(graph, clip, qs[0], settings.abi)):
        return None
    feeding = {dq.outputs[0]: dq for dq in dqs}
    inputs = tuple(
        _quantized(feeding[name].inputs[0], feeding[name]) if name in feeding else UnitValue(name)
        for name in node.inputs
    )
    outputs = tuple(_quantized(q.outputs[0], q) for q in qs) or unit_values(node.outputs)
    return Unit(target=node, inputs=inputs, outputs=outputs, dqs=dqs, clip=clip, qs=qs, group=True)


def activation(graph: Graph, node: Node) -> Node | None:
    """The Relu or Clip behind a node when it is its only consumer and has one consumer itself."""
    edges = graph.out_edges[node.index]
    if len(edges) != 1:
        return None
    consumer = graph.nodes[edges[0].consumer]
    alone = len(graph.out_edges[consumer.index]) == 1 and not graph.gives_output(consumer)
    return consumer if consumer.op_type in ("Relu", "Clip") and alone else None
