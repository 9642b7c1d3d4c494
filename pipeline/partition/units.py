"""QDQ node units (ep_rules C): which DequantizeLinear, target and QuantizeLinear nodes count as one operation.

NNAPI and XNNPACK judge units; for CoreML every node is a unit of its own (`plain_units`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipeline.core.abis import ARM64, X86_64
from pipeline.core.providers import NNAPI, XNNPACK
from pipeline.partition import selector_checks as check
from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.graph import Edge, FreshNames, Graph, Node
from pipeline.partition.selector_checks import Selector, SelectorGroup

DOMAINS = ("", "com.ms.internal.nhwc", "com.microsoft")

Release = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SelectorRow:
    """A selector with the schema versions it is registered for (None: all) and the first release that has it."""

    selector: Selector
    versions: Callable[[Release], tuple[int, ...] | None] = lambda _: None
    release: Release = (0, 0)


def _max_pool_versions(release: Release) -> tuple[int, ...]:
    return (12, 22) if release >= (1, 28) else (12,)


def _rows(names: str, selector: Selector, release: Release = (0, 0)) -> dict[str, SelectorRow]:
    return {name: SelectorRow(selector, release=release) for name in names.split()}


TABLE: Mapping[str, SelectorRow] = {
    **_rows("Gather GatherElements Reshape Expand Flatten Transpose Squeeze Unsqueeze Tile", check.drop_qdq),
    "MaxPool": SelectorRow(check.drop_qdq, _max_pool_versions),
    "Resize": SelectorRow(check.resize),
    **_rows("ArgMax ArgMin", check.drop_dq),
    **_rows(
        "AveragePool GlobalAveragePool GlobalMaxPool LeakyRelu ReduceMean ReduceMin ReduceMax ReduceProd ReduceSum "
        "Relu Gelu Elu HardSigmoid HardSwish Sigmoid Slice LogSoftmax Softmax Sqrt Atan Asin Sin Cos Sign Tanh Exp "
        "Log LRN Ceil Floor Round Abs Neg DepthToSpace SpaceToDepth LpNormalization",
        check.unary,
    ),
    "Clip": SelectorRow(check.clip),
    **_rows("Add Div Mul Pow Sub PRelu GridSample", check.binary),
    **_rows("Concat Max Min", check.variadic),
    "Split": SelectorRow(check.split),
    **_rows("Conv ConvTranspose", check.conv),
    "MatMul": SelectorRow(check.matmul),
    "Gemm": SelectorRow(check.gemm),
    **_rows("InstanceNormalization LayerNormalization", check.normalization),
    "BatchNormalization": SelectorRow(check.batch_normalization),
    **_rows("Equal Greater GreaterOrEqual Less LessOrEqual", check.compare),
    "Where": SelectorRow(check.where),
    "Pad": SelectorRow(check.pad),
    "TopK": SelectorRow(check.top_k),
    **_rows("Einsum Reciprocal", check.optional_q, (1, 23)),
    **_rows("CumSum", check.unary, (1, 23)),
    **_rows("ScatterElements RMSNormalization", check.variadic, (1, 24)),
}


def select(graph: Graph, node: Node, settings: Settings) -> SelectorGroup | None:
    """The QDQ group around a node, None when it has none."""
    group = _candidate(graph, node, settings)
    if group is None or not TABLE[node.op_type].selector(group):
        return None
    return group


def crashes(graph: Graph, node: Node, settings: Settings) -> Refusal | None:
    """A Pad without DequantizeLinear before a QuantizeLinear: releases up to 1.27 read out of range (C.2)."""
    if node.op_type != "Pad" or settings.ort_release >= (1, 28):
        return None
    group = _candidate(graph, node, settings)
    if group is None or group.dqs or not check.complete(group, 0):
        return None
    return Refusal(
        "crash",
        f"Pad '{node.name or node.first_output}' feeds a QuantizeLinear but has no DequantizeLinear before it: ONNX "
        "Runtime up to 1.27 reads out of range here and the process ends",
        "quantize the input of the Pad too, or take away the QuantizeLinear behind it",
        fatal=True,
    )


def _candidate(graph: Graph, node: Node, settings: Settings) -> SelectorGroup | None:
    """The nodes around a target before its selector decides; None when the op or a Relu behind it allows no group."""
    row = TABLE.get(node.op_type)
    if row is None or node.domain not in DOMAINS or row.release > settings.ort_release:
        return None
    versions = row.versions(settings.ort_release)
    if versions is not None and node.since_version not in versions:
        return None
    sources = sorted(graph.in_edges[node.index], key=lambda edge: edge.input_slot)
    dqs = tuple(graph.nodes[s.producer] for s in sources if graph.nodes[s.producer].op_type == "DequantizeLinear")
    clip = _activation(graph, node)
    last = clip or node
    consumers = sorted(graph.out_edges[last.index], key=lambda edge: edge.source_slot)
    qs = tuple(
        graph.nodes[edge.consumer] for edge in consumers if graph.nodes[edge.consumer].op_type == "QuantizeLinear"
    )
    if clip is not None and (len(qs) != 1 or not check.redundant(graph, clip, qs[0], settings.abi)):
        return None
    return SelectorGroup(graph=graph, target=node, dqs=dqs, clip=clip, qs=qs, release=settings.ort_release)


def _activation(graph: Graph, node: Node) -> Node | None:
    """The Relu or Clip behind a node when it is its only consumer and has one consumer itself."""
    edges = graph.out_edges[node.index]
    if len(edges) != 1:
        return None
    consumer = graph.nodes[edges[0].consumer]
    if (
        consumer.op_type not in ("Relu", "Clip")
        or len(graph.out_edges[consumer.index]) != 1
        or graph.gives_output(consumer)
    ):
        return None
    return consumer


def unique_dq(graph: Graph) -> Graph:
    """The graph after the pass, in bodies too; the same object when there is nothing to copy."""
    bodies = {
        index: tuple(unique_dq(body) for body in node.bodies) for index, node in graph.nodes.items() if node.bodies
    }
    if any(
        new is not old
        for index, parts in bodies.items()
        for new, old in zip(parts, graph.nodes[index].bodies, strict=True)
    ):
        nodes = {i: replace(n, bodies=bodies[i]) if i in bodies else n for i, n in graph.nodes.items()}
        graph = graph.with_nodes(nodes, graph.values)
    shared = [
        index for index in graph.order if graph.nodes[index].op_type == "DequantizeLinear" and _copies(graph, index)
    ]
    return _Copier(graph).run(shared) if shared else graph


def _copies(graph: Graph, index: int) -> list[Edge]:
    """Edges whose consumer gets a copy: all but the first, or all when a graph output or a body needs the original."""
    edges = graph.out_edges[index]
    explicit = [edge for edge in edges if edge.input_slot < len(graph.nodes[edge.consumer].inputs)]
    keep_original = graph.gives_output(graph.nodes[index]) or len(explicit) < len(edges)
    return explicit if keep_original else explicit[1:]


class _Copier:
    """Names and nodes of one graph while copies are added."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = dict(graph.nodes)
        self.values = dict(graph.values)
        self.node_names = {node.name for node in graph.nodes.values()}
        self.fresh = FreshNames()

    def run(self, shared: list[int]) -> Graph:
        for index in shared:
            for edge in _copies(self.graph, index):
                self._copy(self.graph.nodes[index], edge)
        return self.graph.with_nodes(self.nodes, self.values)

    def _copy(self, original: Node, edge: Edge) -> None:
        old = original.outputs[0]
        new = self.fresh.take(f"{old}/duplicated", self.values)
        self.values[new] = self.graph.value(old)
        name = self.fresh.take(f"{original.name}/duplicated", self.node_names)
        self.node_names.add(name)
        index = max(self.nodes) + 1
        self.nodes[index] = replace(original, index=index, name=name, outputs=(new,))
        consumer = self.nodes[edge.consumer]
        inputs = tuple(new if slot == edge.input_slot else given for slot, given in enumerate(consumer.inputs))
        self.nodes[edge.consumer] = replace(consumer, inputs=inputs)


DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"


class Quant(NamedTuple):
    """Quantization parameters of a unit's value: names of scale and zero point (None: not listed; "": left out)."""

    scale: str
    zero_point: str | None
    axis: int | None


class UnitValue(NamedTuple):
    """An input or output of a unit; `name` is empty when it is left out."""

    name: str
    quant: Quant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A target node with the DequantizeLinear, redundant Relu or Clip, and QuantizeLinear nodes that belong to it."""

    target: Node
    inputs: tuple[UnitValue, ...]
    outputs: tuple[UnitValue, ...]
    dqs: tuple[Node, ...] = ()
    clip: Node | None = None
    qs: tuple[Node, ...] = ()
    group: bool = False

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The members in the order in which they join a partition (B.2)."""
        return (*self.dqs, self.target, *((self.clip,) if self.clip else ()), *self.qs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """All units of a graph in topological order of their targets. `crash` is set when selecting them kills ORT."""

    units: tuple[Unit, ...]
    crash: Refusal | None = None

    def by_node(self) -> dict[int, Unit]:
        """The unit of each node: the first one that lists it."""
        owners: dict[int, Unit] = {}
        for unit in sorted(self.units, key=lambda unit: not unit.group):
            for node in unit.nodes:
                owners.setdefault(node.index, unit)
        return owners


def plain_units(graph: Graph) -> Units:
    """Every node as a unit with all its inputs and outputs as they are."""
    return Units(units=tuple(plain_unit(graph.nodes[index]) for index in graph.order))


def node_units(graph: Graph, settings: Settings) -> Units:
    """QDQ groups and single nodes, each node in one unit (C.2, C.3)."""
    groups: dict[int, Unit] = {}
    taken: set[int] = set()
    crash = None
    for index in graph.order:
        node = graph.nodes[index]
        crash = crash or crashes(graph, node, settings)
        group = select(graph, node, settings)
        if group is not None:
            groups[index] = _from_group(group)
            taken.update(member.index for member in groups[index].nodes)
    units = (
        groups.get(index) or _single(graph.nodes[index])
        for index in graph.order
        if index in groups or index not in taken
    )
    return Units(units=tuple(units), crash=crash)


def quant_of(node: Node) -> Quant:
    """The parameters that a QuantizeLinear or DequantizeLinear node lists; only a third input counts as zero point."""
    zero_point = node.inputs[2] if len(node.inputs) == 3 else None
    return Quant(node.inputs[1] if len(node.inputs) > 1 else "", zero_point, node.attributes.get("axis"))


def plain_unit(node: Node) -> Unit:
    """A node alone, with its inputs and outputs as they are."""
    return Unit(target=node, inputs=_values(node.inputs), outputs=_values(node.outputs))


def _values(names: tuple[str, ...]) -> tuple[UnitValue, ...]:
    return tuple(UnitValue(name) for name in names)


def _from_group(group: SelectorGroup) -> Unit:
    feeding = {dq.outputs[0]: dq for dq in group.dqs}
    inputs = tuple(
        UnitValue(feeding[name].inputs[0], quant_of(feeding[name])) if name in feeding else UnitValue(name)
        for name in group.target.inputs
    )
    outputs = tuple(UnitValue(q.outputs[0], quant_of(q)) for q in group.qs) or _values(group.target.outputs)
    return Unit(
        target=group.target, inputs=inputs, outputs=outputs, dqs=group.dqs, clip=group.clip, qs=group.qs, group=True
    )


class _Positions(NamedTuple):
    """Where a QLinear op lists its quantized inputs and output: (value, scale, zero point) positions."""

    inputs: tuple[tuple[int, int, int], ...]
    output: tuple[int, int]


_ONE_INPUT = _Positions(((0, 1, 2),), (3, 4))
_TWO_INPUTS = _Positions(((0, 1, 2), (3, 4, 5)), (6, 7))
QLINEAR: Mapping[str, _Positions] = {
    **dict.fromkeys(
        ("QLinearSigmoid", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearReduceMean"),
        _ONE_INPUT,
    ),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), _TWO_INPUTS),
}
"""Single nodes whose inputs carry quantization parameters (C.3)."""


def _single(node: Node) -> Unit:
    if node.op_type == DEQUANTIZE:
        inputs = tuple(UnitValue(name, quant_of(node)) for name in node.inputs[:1])
        return Unit(target=node, inputs=inputs, outputs=_values(node.outputs))
    if node.op_type == QUANTIZE:
        outputs = tuple(UnitValue(name, quant_of(node)) for name in node.outputs)
        return Unit(target=node, inputs=_values(node.inputs[:1]), outputs=outputs)
    positions = QLINEAR.get(node.op_type)
    if positions is None:
        return plain_unit(node)
    inputs = tuple(_qlinear_inputs(node, positions))
    quant = _listed_quant(node, *positions.output)
    return Unit(target=node, inputs=inputs, outputs=tuple(UnitValue(name, quant) for name in node.outputs))


def _qlinear_inputs(node: Node, positions: _Positions) -> Iterator[UnitValue]:
    for value, scale, zero_point in positions.inputs:
        yield UnitValue(_listed(node, value) or "", _listed_quant(node, scale, zero_point))
    if node.op_type == "QLinearConv" and len(node.inputs) == 9:
        yield UnitValue(node.inputs[8])


def _listed(node: Node, position: int) -> str | None:
    return node.inputs[position] if position < len(node.inputs) else None


def _listed_quant(node: Node, scale: int, zero_point: int) -> Quant:
    return Quant(_listed(node, scale) or "", _listed(node, zero_point), None)


MAX_POOL_NHWC = 12
"""The version of MaxPool from which on there is a kernel of half precision for channels last."""
MOST_NAMED = 3


def processor_warnings(graph: Graph, settings: Settings, *, optimized_there: bool) -> Iterator[str]:
    """What is otherwise on ARM than on x86, one text a cause (arm64_host.md 5.2, 5.3).

    `optimized_there`: the file is ONNX, and the device optimizes it.
    """
    if settings.provider in BY_UNITS and (clips := clips_by_processor(graph)):
        yield (
            f"{clips}; these claims are for {settings.abi}. Give --abi, or bound it by what the quantized type can "
            "hold, which is the same function"
        )
    if settings.abi == ARM64 and optimized_there and (pools := list(_half_pools(graph))):
        yield (
            f"{_named(pools)} in half precision before opset {MAX_POOL_NHWC}: on cores with half precision the CPU has "
            "no kernel for what level all makes of it, and there is no session (Failed to find kernel for "
            f"com.ms.internal.nhwc.MaxPool). Convert the model to opset {MAX_POOL_NHWC} or later, use level extended, "
            "or ship it in ORT format"
        )


BY_UNITS = (NNAPI, XNNPACK)
"""Providers whose claims depend on what belongs to a quantized group."""


def clips_by_processor(graph: Graph) -> str:
    """Which Relu and Clip nodes belong to a quantized group on ARM or on x86 only, in words; "" for none."""
    clips = list(_other_clips(graph))
    if not clips:
        return ""
    member, apart = ("ARM", "x86") if check.redundant(graph, *clips[0], ARM64) else ("x86", "ARM")
    return (
        f"{_named(clip for clip, _ in clips)} in front of QuantizeLinear: an open or a huge bound makes it part of "
        f"the quantized group on {member} and not on {apart}"
    )


def _other_clips(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Every Relu or Clip behind a node, with its only QuantizeLinear, that is redundant on one kind of processor."""
    for node in graph.nodes.values():
        clip = _activation(graph, node)
        behind = graph.nodes[graph.out_edges[clip.index][0].consumer] if clip else None
        if clip is None or behind is None or behind.op_type != "QuantizeLinear":
            continue
        if check.redundant(graph, clip, behind, ARM64) != check.redundant(graph, clip, behind, X86_64):
            yield clip, behind


def _half_pools(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes.values():
        old = (node.domain, node.op_type) == ("", "MaxPool") and node.since_version < MAX_POOL_NHWC
        if old and graph.value(node.inputs[0]).dtype == "f16":
            yield node


def _named(nodes: Iterable[Node]) -> str:
    named = list(nodes)
    names = ", ".join(f"{node.op_type} '{node.name or node.first_output}'" for node in named[:MOST_NAMED])
    return names + (f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else "")
