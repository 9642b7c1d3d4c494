"""What becomes of NNAPI's claims when a session is made: its model built, its layout transformed (ep_rules A.3, D.7).

The order is that of ONNX Runtime's model builder: initializers, inputs, operations, outputs.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from math import prod

from pipeline.partition.answer import LoadForecast, Refusal, Settings
from pipeline.partition.claiming import Claim
from pipeline.partition.graph import Graph, Node
from pipeline.partition.outline import left_over
from pipeline.partition.rules import Rule
from pipeline.partition.selectors import SELECTORS, node_units, unit_of_node
from pipeline.partition.units import DEQUANTIZE, QUANTIZE, Case, Unit, UnitValue, equal_pair
from pipeline.providers.nnapi.rules import CHANNELS_LAST, TABLE, parameters, resize_scales, resize_sizes

QUANTIZED_SINGLE = frozenset(
    {
        "DequantizeLinear",
        "QuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "QLinearAdd",
        "QLinearMul",
        "QLinearSigmoid",
        "QLinearAveragePool",
    }
)
QUANTIZED_BINARY = frozenset(
    {"QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "Conv", "Gemm", "MatMul", "Add", "Mul"}
)
"""Quantized operations whose second operand is a quantized input too."""

TAKEN_APART = {
    "BatchNormalization": (1, 2, 3, 4),
    "Conv": (1,),
    "QLinearConv": (1,),
    "QLinearMatMul": (1,),
    "Reshape": (1,),
    "Clip": (1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 2),
    "Gather": (1,),
    "ReduceMean": (1,),
    "Split": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
}
"""Inputs that the builder of an operator turns into something else, so that NNAPI is not handed them as they are."""
HANDED_OTHERWISE = frozenset((*TAKEN_APART, "Gemm", "MatMul"))
"""Operators of which `_skipped` may name some."""

KINDS = {"f32", "i32", "u8"}
POOLS = ("AveragePool", "MaxPool", "QLinearAveragePool")


def _is_quantized(unit: Unit) -> bool:
    return unit.group or unit.target.op_type in QUANTIZED_SINGLE


class _Builder:
    """One partition while its model is built: each method is a step, which gives why it fails."""

    def __init__(self, graph: Graph, units: Sequence[Unit], settings: Settings, suspects: Container[int]) -> None:
        self.graph = graph
        self.suspects = suspects  # the others of the graph are no operation that fails
        self.units = units
        self.settings = settings
        special = [unit for unit in units if _is_quantized(unit) or unit.target.op_type in HANDED_OTHERWISE]
        self.skipped = {name for unit in special for name in _skipped(graph, unit)}
        self.quantized = {io.name: io for unit in reversed(special) for io in _quantized_inputs(unit)}
        self.nodes = [node for unit in units for node in unit.nodes]
        written = {name for node in self.nodes for name in node.outputs}
        read = dict.fromkeys(name for node in self.nodes for name in node.inputs if name)
        self.outside = [name for name in read if name not in written]

    def half_scales(self) -> Refusal | None:
        """Scales are read as f32 whatever they are; another type throws."""
        for unit in self.units:
            for io in (*unit.inputs, *unit.outputs) if _is_quantized(unit) else ():
                initializer = None if io.scale is None else self.graph.constant(io.scale)
                if initializer is not None and initializer.dtype != "f32":
                    return _failure(
                        unit.target,
                        f"the scale of '{io.name}' is {initializer.dtype}, which NNAPI's builder cannot read",
                        "use f32 scales",
                    )
        return None

    def outside_values(self) -> Refusal | None:
        """What comes from outside must be of a type that NNAPI has; u8 needs a consumer that gives its scale."""
        handed = [name for name in self.outside if name not in self.skipped]
        initializers = [("initializer", name) for name in handed if name in self.graph.initializers]
        for what, name in (*initializers, *(("input", name) for name in handed if self.graph.constant(name) is None)):
            kind = self.graph.value(name).dtype
            if kind not in KINDS:
                return _failure(
                    self._reader(name),
                    f"the partition's {what} '{name}' is {kind}; NNAPI supports f32, i32 and quantized u8",
                    "leave this node to the CPU (--safe), or express it without that input",
                )
            if kind == "u8" and name not in self.quantized:
                return _failure(
                    self._reader(name),
                    f"the partition's {what} '{name}' is u8 and no operation in the partition "
                    "has it as the input that gives its scale",
                    "leave this node to the CPU (--safe), or do not quantize it",
                )
        return None

    def _reader(self, name: str) -> Node:
        return next(node for node in self.nodes if name in node.inputs)

    def operations(self) -> Refusal | None:
        """Each operation in turn: shapes that NNAPI has, scales that fit."""
        scales: dict[str, tuple[float, int] | None] = {}
        for name in self.outside:
            if name in self.quantized:
                scales[name] = parameters(self.graph, self.quantized[name])
        for unit in (unit for unit in self.units if unit.target.index in self.suspects):
            refusal = _shape_problem(self.graph, unit.target) or _missing_operation(self.graph, unit, self.settings)
            if refusal is not None:
                return refusal
            for io in _quantized_inputs(unit):
                # A quantized value has one scale: its producer's and its consumer's must be equal.
                read, present = parameters(self.graph, io), scales.get(io.name)
                if io.name in self.skipped or read is None or present is None or read == present:
                    continue
                return _failure(
                    unit.target,
                    f"'{io.name}' has scale and zero point {present} where it is made and {read} where it is read",
                    "quantize with the same parameters on both sides",
                )
            scales |= {io.name: parameters(self.graph, io) for io in unit.outputs if io.scale is not None}
        return None

    def outputs(self) -> Refusal | None:
        """A scalar that a Reshape made has no place among NNAPI's outputs."""
        for unit in self.units:
            node = unit.target
            if node.op_type == "Reshape" and self.graph.value(node.outputs[0]).shape == ():
                return _failure(node, "it makes a scalar, which NNAPI has no outputs for", "reshape to [1]")
        return None


def _failure(node: Node, text: str, remedy: str, code: str = "build") -> Refusal:
    return Refusal(code, f"NNAPI claims {node.label} and cannot build its model: {text}", remedy)


def _quantized_inputs(unit: Unit) -> list[UnitValue]:
    """Inputs by which the builder learns scales: the first one, and the second of binary operations."""
    if not _is_quantized(unit) or unit.target.op_type == "QuantizeLinear":
        return []
    return list(unit.inputs[: 2 if unit.target.op_type in QUANTIZED_BINARY else 1])


def _skipped(graph: Graph, unit: Unit) -> Iterable[str]:
    """Names of initializers that the unit's builder does not hand over as they are."""
    if _is_quantized(unit):
        for io in (*unit.inputs, *unit.outputs):
            yield from (name for name in (io.scale, io.zero_point) if name)
    node, names = unit.target, [io.name for io in unit.inputs]
    positions = TAKEN_APART.get(node.op_type, ())
    if node.op_type == "MatMul" or (node.op_type == "Gemm" and not node.attributes.get("transB", 0)):
        batch = len(graph.value(unit.inputs[0].name).shape or ()) > 2
        positions = () if batch else (1,)
    if _is_quantized(unit) and node.op_type in ("Conv", "QLinearConv", "Gemm"):
        positions = (*positions, 2)
    yield from (names[position] for position in positions if position < len(names) and names[position])


def _shape_problem(graph: Graph, node: Node) -> Refusal | None:
    if node.op_type in ("Reshape", "Unsqueeze", "Squeeze"):
        # NNAPI's Reshape reads a 0 as "copy", and counts elements
        before = [dim or 0 for dim in graph.value(node.inputs[0]).shape or ()]
        after = graph.value(node.outputs[0]).shape
        constant = graph.constant(node.inputs[1]) if node.op_type == "Reshape" else None
        if constant is not None:
            shape = [int(dim) for dim in constant.numbers()]
        elif node.op_type != "Reshape" and after is not None and 0 in before:
            shape = [dim or 0 for dim in after]
        else:
            return None
        if any(dim == 0 and position >= len(before) for position, dim in enumerate(shape)):
            return _failure(node, f"NNAPI has no dimension of 0 in the shape {shape}", "leave empty tensors to the CPU")
        copied = [before[position] if dim == 0 else dim for position, dim in enumerate(shape)]
        if -1 not in copied and prod(copied) != prod(before):
            return _failure(node, f"{before} does not fit into the shape {shape}", "leave empty tensors to the CPU")
        return None
    if node.op_type in (*POOLS, "Conv", "QLinearConv"):
        return _window_problem(graph, node)
    if node.op_type == "Split" and node.since_version >= 18 and "num_outputs" not in node.attributes:
        # Sizes given as an input: the builder divides by the attribute all the same, which is 0 then (SIGFPE).
        return _failure(
            node,
            "it divides by num_outputs, which is not set, and ends the process",
            "set num_outputs in place of the input `split`, or leave this node to the CPU (--safe)",
        )
    return None


LEVEL_29 = 29


def _missing_operation(graph: Graph, unit: Unit, settings: Settings) -> Refusal | None:
    """What is claimed below the API level whose operations, or types of theirs, the builder asks NNAPI for."""
    if settings.api_level >= LEVEL_29:
        return None
    node, shapes = unit.target, [graph.value(io.name).shape or () for io in unit.inputs]
    if node.op_type == "LeakyRelu":
        needs = "LESS and SELECT"
    elif node.op_type == "LRN" and settings.nchw:
        needs = "normalization across channels that come first (USE_NCHW)"
    elif node.op_type == "Resize" and graph.value(unit.inputs[0].name).dtype == "u8":
        needs = "resizing of 8 bits"
    elif node.op_type in ("Conv", "QLinearConv") and node.attributes.get("group", 1) != 1 and shapes[1][1:2] != (1,):
        needs = "convolution in groups that is not depthwise"
    else:
        return None
    return _failure(
        node,
        f"NNAPI has {needs} from API level {LEVEL_29} on, asked for is {settings.api_level}",
        f"target API level {LEVEL_29} or later, or leave this node to the CPU (--safe)",
        code="level",
    )


def _window_problem(graph: Graph, node: Node) -> Refusal | None:
    """A window larger than what it slides over gives a negative size."""
    shape = graph.value(node.inputs[0]).shape or ()
    kernel = node.attributes.get("kernel_shape")
    if kernel is None and len(node.inputs) > 1:
        kernel = (graph.value(node.inputs[3 if node.op_type == "QLinearConv" else 1]).shape or ())[2:]
    if not kernel or node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    count = len(kernel)
    pads = node.attributes.get("pads") or (0,) * (2 * count)
    dilations = node.attributes.get("dilations") or (1,) * count
    for axis, size in enumerate(shape[2 : 2 + count]):
        room = (size or 0) + pads[axis] + pads[axis + count] - dilations[axis] * ((kernel[axis] or 0) - 1) - 1
        if room < -1:
            return _failure(node, f"its window {list(kernel)} is larger than the input {list(shape)}", "pad the input")
    return None


PASSED = frozenset({
    "Abs", "Ceil", "Clip", "Cos", "Elu", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg", "Relu",
    "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh",
})  # fmt: skip
"""Operators of one input that a Transpose is pushed through."""

MOVED = frozenset((DEQUANTIZE, "Resize", "MaxPool", "Transpose"))
"""Without one of these in a graph, another layout undoes no claim."""
GROUPED = "without the Transposes around it, it becomes part of a quantized group, which is refused"
ADVICE = "set USE_NCHW, or leave the node to the CPU (--safe)"


def refusal_when_permuted(case: Case) -> Refusal | None:
    """What of a Resize is not taken behind the layout transformation: shape and target are channels-last then (A.3)."""
    position = 2 if case.exists(2) else 3
    initializer, shape = case.constant(position), case.shape(0)
    if initializer is None or shape is None or initializer.count != 4 or len(shape) != 4:
        return None
    numbers = initializer.numbers()
    last = [numbers[axis] for axis in CHANNELS_LAST]
    sizes = [shape[axis] or 0 for axis in CHANNELS_LAST]
    return resize_scales(case, sizes, last) if position == 2 else resize_sizes(case, sizes, last)


def _layout_refusal(graph: Graph, provider_claim: Claim, settings: Settings) -> Refusal | None:
    """The first claim that the transformation undoes, None where none is predicted."""
    if not settings.nhwc or not provider_claim.groups or graph.operators.isdisjoint(MOVED):
        return None
    claimed = provider_claim.claimed
    for unit in (unit for unit in node_units(graph, settings) if unit.target.index in claimed):
        node = unit.target
        # Scales and sizes are permuted to channels-last order and judged again.
        if node.op_type == "Resize" and refusal_when_permuted(Case(graph, unit, settings)) is not None:
            return _undone(node, "its scales or sizes, permuted to channels-last order, are not taken")
        # Observed in 1.23.2 and 1.28.0: a quantized Conv or Resize of an empty batch is not taken again.
        shape = graph.value(unit.inputs[0].name).shape if unit.inputs else None
        if unit.group and node.op_type in ("Conv", "Resize") and shape and 0 in shape:
            return _undone(node, "its input is empty")
        problem = None if unit.group else _new_pool_group(graph, node, settings) or _new_group(graph, node, settings)
        if problem is not None:
            return problem
    return None


def _new_pool_group(graph: Graph, node: Node, settings: Settings) -> Refusal | None:
    """A quantized MaxPool, which is refused, where it is a group only in the channels-last domain.

    That is opset 22 before release 1.28, and a Transpose in front, which a DequantizeLinear stands behind from then on.
    """
    if node.op_type != "MaxPool":
        return None
    dq, q = _only_producer(graph, node), _only_consumer(graph, node)
    if dq is not None and dq.op_type == "Transpose":
        dq = _only_producer(graph, dq) if _only_consumer(graph, dq) is node else None
    elif settings.ort_release >= (1, 28) or node.since_version <= 12:
        return None
    if dq is None or q is None or (dq.op_type, q.op_type) != (DEQUANTIZE, QUANTIZE):
        return None
    return _undone(node, GROUPED) if equal_pair(graph, dq, q) else None


def _new_group(graph: Graph, transpose: Node, settings: Settings) -> Refusal | None:
    """DequantizeLinear, Transpose, X, QuantizeLinear: with the Transpose pushed on, the others become one group."""
    if settings.ort_release >= (1, 28) or transpose.op_type != "Transpose":
        return None
    dq, node = _only_producer(graph, transpose), _only_consumer(graph, transpose)
    q = _only_consumer(graph, node) if node else None
    if dq is None or node is None or q is None or (dq.op_type, q.op_type) != (DEQUANTIZE, QUANTIZE):
        return None
    rule = TABLE.get(node.op_type)
    takes_groups = isinstance(rule, Rule) and rule.quantized is not None
    if node.op_type not in PASSED or node.op_type not in SELECTORS or takes_groups:
        return None
    both_u8 = graph.value(dq.inputs[0]).dtype == graph.value(q.outputs[0]).dtype == "u8"
    return _undone(dq, GROUPED, f"{ADVICE}, or ship ONNX Runtime 1.28 or later") if both_u8 else None


def _only_producer(graph: Graph, node: Node) -> Node | None:
    edges = graph.in_edges[node.index]
    return graph.nodes[edges[0].producer] if len(edges) == 1 else None


def _only_consumer(graph: Graph, node: Node) -> Node | None:
    edges = graph.out_edges[node.index]
    return graph.nodes[edges[0].consumer] if len(edges) == 1 and not graph.gives_output(node) else None


def _undone(node: Node, why: str, remedy: str = ADVICE) -> Refusal:
    return Refusal("layout", f"NNAPI claims {node.label} and then refuses it: {why}", remedy)


def forecast(rounds: Iterable[tuple[Graph, Claim]], settings: Settings) -> LoadForecast:
    """The compiled nodes of the last round (`rounds` has those of each), or the first thing that goes wrong.

    NNAPI claims nothing in bodies. Without USE_NCHW the layout is transformed between question and answer.
    """
    counts: list[int] = []
    for graph, given in rounds:
        problem = given.fatal or _layout_refusal(graph, given, settings) or build_refusal(graph, given.groups, settings)
        if problem is not None:
            return LoadForecast.failing(problem, estimate=settings.nhwc)
        counts.append(len(given.groups))
    return LoadForecast(partitions=counts[-1], rounds=tuple(counts), estimate=settings.nhwc)


def crash_in_file(graph: Graph, claimed: Container[int]) -> Refusal | None:
    """The first QLinearConv of an ORT format file on which a session at level layout or all crashes; None for none.

    It is given another layout (NhwcTransformer) when NNAPI has compiled its nodes, and moving its Transposes fails
    where a group that nobody takes is before it, or a partition of NNAPI's reads it beside another of the CPU's: 18 of
    18 files like that crashed, 24 others loaded (1.29, ep_rules D.7). ONNX files get layouts before NNAPI compiles.
    """
    if not any(index in claimed for index in graph.nodes):
        return None
    rest = {index: node for index, node in graph.nodes.items() if index not in claimed}
    convolutions = {index for index, node in rest.items() if (node.op_type, node.domain) == ("QLinearConv", "")}
    read = _read_by_partition(graph, rest)
    for index in sorted(convolutions):
        beside = any(index in producers and len(producers) > 1 for producers in read)
        if beside or _after_group(graph, rest, index):
            return Refusal(
                "layout",
                f"ONNX Runtime crashes on another layout for {rest[index].label}, which NNAPI leaves to the CPU",
                "convert at level basic, quantize to u8 without channels (u8u8), ship the .onnx, or open the file with "
                "level extended",
            )
    return None


def _read_by_partition(graph: Graph, rest: Collection[int]) -> list[set[int]]:
    """For each connected set of claimed nodes, the nodes of the CPU that it reads."""
    read, seen = [], set[int]()
    for start in graph.nodes.keys() - rest:
        producers, waiting = set[int](), [start] if start not in seen else []
        while waiting:
            index = waiting.pop()
            if index in rest or index in seen:
                continue
            seen.add(index)
            before = [edge.producer for edge in graph.in_edges[index]]
            producers |= {producer for producer in before if producer in rest}
            waiting += [*before, *(edge.consumer for edge in graph.out_edges[index])]
        read.append(producers)
    return read


def _after_group(graph: Graph, rest: Mapping[int, Node], index: int) -> bool:
    """Whether DequantizeLinear, a node and QuantizeLinear, all left to the CPU, feed a convolution."""
    before = [edge.producer for edge in graph.in_edges[index] if edge.producer in rest]
    before += [edge.producer for at in before if rest[at].op_type == "MaxPool" for edge in graph.in_edges[at]]
    for quantize in (at for at in before if at in rest and rest[at].op_type == QUANTIZE):
        node = _only_producer(graph, rest[quantize])
        inputs = [edge.producer for edge in graph.in_edges[node.index]] if node and node.index in rest else []
        if any(at in rest and rest[at].op_type == DEQUANTIZE for at in inputs):
            return True
    return False


def build_refusal(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why the model of one of the partitions cannot be built, so that no session is made."""
    parts = node_units(graph, settings)
    owner = unit_of_node(parts)
    suspects = frozenset(
        unit.target.index
        for unit in left_over(
            graph,
            parts,
            lambda shown, unit: (
                not (
                    _is_quantized(unit)
                    or _shape_problem(shown, unit.target)
                    or _missing_operation(shown, unit, settings)
                )
            ),
        )
    )
    for group in groups:
        units = {owner[node.index].target.index: owner[node.index] for node in group}
        builder = _Builder(graph, list(units.values()), settings, suspects)
        for step in (builder.half_scales, builder.outside_values, builder.operations, builder.outputs):
            problem = step()
            if problem is not None:
                return problem
    return None
