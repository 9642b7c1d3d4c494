"""Grouping of supported units into partitions by waves (ep_rules B), and the rounds of a session (A.2, A.7).

Claimed nodes are one fused node from then on; functions that nobody claimed and the CPU cannot run are inlined, and the
provider is asked again about the nodes of their bodies.
"""

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.partition.answer import Cut, LoadForecast, OperatorGain, Settings
from pipeline.partition.functions import View, inlined_view, without_functions
from pipeline.partition.graph import Edge, Graph, Node
from pipeline.partition.rules import Claim, claim
from pipeline.partition.units import Unit, Units, node_units, plain_units

if TYPE_CHECKING:
    from onnx import ModelProto


Accept = Callable[[Unit, "Wave"], bool]
"""Whether a unit joins the wave; asked again when it is put off to the next one."""


class Wave:
    """The group that is being filled: its units and the outputs of their targets, which rule D.2.9 asks for."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.outputs: set[str] = set()

    def add(self, unit: Unit) -> None:
        """Take a unit in."""
        self.units.append(unit)
        self.outputs.update(unit.target.outputs)


def unit_edges(graph: Graph, unit: Unit) -> Sequence[Edge]:
    """Edges out of a unit as its target's: an edge to an own QuantizeLinear counts as that one's edges (B.1)."""
    if not unit.group:
        return graph.out_edges[unit.target.index]
    quantizers = {q.index for q in unit.qs}
    edges: list[Edge] = []
    for edge in graph.out_edges[(unit.clip or unit.target).index]:
        if edge.consumer in quantizers:
            edges.extend(e._replace(source_slot=edge.source_slot) for e in graph.out_edges[edge.consumer])
        else:
            edges.append(edge)
    return sorted(edges)


def in_degree(graph: Graph, unit: Unit) -> int:
    """Edges into a unit as ONNX Runtime counts them: those into its Qs or its Clip are not among them (B.1)."""
    inside = sum(len(graph.in_edges[dq.index]) for dq in unit.dqs)
    return inside + len(graph.in_edges[unit.target.index]) - len(unit.dqs)


def group_by_waves(
    graph: Graph, units: Units, accept: Accept, keep: Callable[[Sequence[Unit]], bool] = lambda _: True
) -> list[tuple[Unit, ...]]:
    """Groups of units in the order in which ONNX Runtime closes them; `keep` may veto a group when it closes (B.2)."""
    owner = units.by_node()
    waiting = {unit.target.index: in_degree(graph, unit) for unit in units.units}
    ready = deque(unit for unit in units.units if waiting[unit.target.index] == 0)
    later: deque[Unit] = deque()
    border: set[int] = set()
    wave, closed = Wave(), []
    while ready or later:
        if not ready:
            closed.append(wave)
            wave, border = Wave(), set()
            ready, later = later, ready
            continue
        unit = ready.popleft()
        accepted = accept(unit, wave)
        if not accepted and unit.target.index in border:
            later.append(unit)
            continue
        if accepted:
            wave.add(unit)
            border.discard(unit.target.index)
        for edge in unit_edges(graph, unit):
            consumer = owner[edge.consumer]
            if accepted:
                border.add(consumer.target.index)
            waiting[consumer.target.index] -= 1
            if waiting[consumer.target.index] == 0:
                ready.append(consumer)
    closed.append(wave)
    return [tuple(w.units) for w in closed if w.units and keep(w.units)]


def downstream(graph: Graph, units: Units, starts: Iterable[Unit]) -> set[int]:
    """Target indices of the given units and of everything behind them along edges, in linear time (stop ops, B.5)."""
    owner = units.by_node()
    reached: set[int] = set()
    stack = list(starts)
    while stack:
        unit = stack.pop()
        if unit.target.index not in reached:
            reached.add(unit.target.index)
            stack.extend(owner[edge.consumer] for edge in unit_edges(graph, unit))
    return reached


def outside_inputs(units: Sequence[Unit]) -> list[str]:
    """Values that a group reads and has not made before, in the order of first reading, initializers included (B.4)."""
    written: set[str] = set()
    read: dict[str, None] = {}
    for unit in units:
        for node in unit.nodes:
            read.update(dict.fromkeys(name for name in node.inputs if name and name not in written))
            written.update(node.outputs)
    return list(read)


MOST = 64
"""Candidates tried for a model, those with most claimed neighbours first: the time stays linear in the nodes."""

TRIVIAL = ("trivial", "constant")
"""Codes of nodes that the provider could take, but not as a partition of their own."""


def cuts(graph: Graph, settings: Settings, provider_claim: Claim) -> tuple[Cut, ...]:
    """Refused nodes whose claim would join partitions or take in more nodes, the best first.

    What computes on the CPU (XNNPACK) does not group, so nothing cuts there.
    """
    if settings.rules.on_cpu or not provider_claim.groups:
        return ()
    waves = _waves(graph, settings, provider_claim)
    candidates = (_cut(waves, provider_claim, unit) for unit in waves.candidates())
    return tuple(sorted((cut for cut in candidates if cut), key=lambda cut: (cut.partitions, -cut.claimed, cut.output)))


def operator_gains(graph: Graph, settings: Settings, provider_claim: Claim) -> tuple[OperatorGain, ...]:
    """What supporting all refused nodes of one operator would give, for every operator that has some.

    What computes on the CPU (XNNPACK) does not group: its partitions are none.
    """
    waves = _waves(graph, settings, provider_claim)
    refused: dict[str, list[int]] = {}
    for position, unit in enumerate(waves.units):
        if unit.target.index in provider_claim.refusals and not waves.supported[position]:
            refused.setdefault(unit.target.op_type, []).append(position)
    return tuple(_gain(waves, settings, provider_claim, name, units) for name, units in refused.items())


def _gain(waves: "_Waves", settings: Settings, provider_claim: Claim, op_type: str, refused: list[int]) -> OperatorGain:
    if settings.rules.on_cpu:
        partitions, claimed = 0, len(provider_claim.claimed) + sum(len(waves.units[i].nodes) for i in refused)
    else:
        partitions, claimed = waves.grouped(frozenset(refused))
    return OperatorGain(op_type=op_type, nodes=len(refused), partitions=partitions, claimed=claimed)


def _waves(graph: Graph, settings: Settings, provider_claim: Claim) -> "_Waves":
    units = node_units(graph, settings) if settings.rules.qdq_units else plain_units(graph)
    return _Waves(graph, units, provider_claim)


class _Waves:
    """The grouping in its closed form (ep_rules B.3), for asking again and again with another node supported."""

    def __init__(self, graph: Graph, units: Units, provider_claim: Claim) -> None:
        self.units = units.units
        self.trivial = {index for index, refusal in provider_claim.refusals.items() if refusal.code in TRIVIAL}
        place = {unit.target.index: position for position, unit in enumerate(self.units)}
        owner = units.by_node()
        self.producers: list[list[int]] = [[] for _ in self.units]
        for position, unit in enumerate(self.units):
            for edge in unit_edges(graph, unit):
                self.producers[place[owner[edge.consumer].target.index]].append(position)
        claimed = provider_claim.claimed
        self.supported = [u.target.index in claimed or u.target.index in self.trivial for u in self.units]

    def candidates(self) -> list[int]:
        """Refused units that a claimed one feeds, those with most claimed neighbours first."""
        near = [0] * len(self.units)
        fed = [False] * len(self.units)
        for position, producers in enumerate(self.producers):
            for producer in producers:
                near[position] += self.supported[producer]
                near[producer] += self.supported[position]
                fed[position] = fed[position] or self.supported[producer]
        refused = [i for i in range(len(self.units)) if fed[i] and not self.supported[i]]
        return sorted(refused, key=lambda i: -near[i])[:MOST]

    def grouped(self, forced: frozenset[int]) -> tuple[int, int]:
        """Partitions and claimed nodes if more units were supported; groups of trivial nodes only do not count."""
        wave = [0] * len(self.units)
        sizes: dict[int, int] = {}
        real: set[int] = set()
        for position, unit in enumerate(self.units):
            producers = self.producers[position]
            highest = max((wave[p] for p in producers), default=0)
            if self.supported[position] or position in forced:
                sizes[highest] = sizes.get(highest, 0) + len(unit.nodes)
                if unit.target.index not in self.trivial:
                    real.add(highest)
            elif any(wave[p] == highest and (self.supported[p] or p in forced) for p in producers):
                highest += 1
            wave[position] = highest
        return len(real), sum(sizes[number] for number in real)


def _cut(waves: _Waves, provider_claim: Claim, forced: int) -> Cut | None:
    partitions, claimed = waves.grouped(frozenset({forced}))
    if partitions >= len(provider_claim.groups) and claimed <= len(provider_claim.claimed):
        return None
    node = waves.units[forced].target
    refusal = provider_claim.refusals.get(node.index)
    return Cut(
        output=node.first_output,
        op_type=node.op_type,
        reason=refusal.text if refusal else "",
        remedy=refusal.remedy if refusal else "",
        partitions=partitions,
        claimed=claimed,
    )


Ask = Callable[[Graph, frozenset[int]], Claim]
"""Asks a provider about a graph of which only some nodes are without a provider."""

FUSED = "(fused)"
MOST_ROUNDS = 64
"""Bodies of functions call functions in turn; no schema of ONNX needs more rounds than a few."""


@dataclass(frozen=True, slots=True)
class LayoutRound:
    """What the provider was shown and what it claimed of it."""

    graph: Graph
    claim: Claim


def rounds(model: "ModelProto", first: LayoutRound, view: View, ask: Ask) -> Iterator[LayoutRound]:
    """All rounds, the first included. `model` is what the first round's graph was made of."""
    yield first
    whole, groups = first.graph, first.claim.groups
    for _ in range(MOST_ROUNDS):
        claimed = frozenset(node.first_output for group in groups for node in group)
        changed = without_functions(model, whole, claimed)
        if changed is model:
            return
        whole, fresh = inlined_view(whole, view(changed))
        fused = fuse(whole, groups)
        next_claim = ask(fused, fresh)
        yield LayoutRound(fused, next_claim)
        model, groups = changed, (*groups, *next_claim.groups)


def fuse(graph: Graph, groups: tuple[tuple[Node, ...], ...]) -> Graph:
    """The graph with each group as one node, which reads and gives what the group did."""
    nodes = dict(graph.nodes)
    for group in groups:
        members = {node.index for node in group}
        index = max(nodes) + 1
        for member in members:
            del nodes[member]
        nodes[index] = _fused(graph, group, members, index)
    return replace(graph, nodes=nodes)


def _fused(graph: Graph, group: tuple[Node, ...], members: set[int], index: int) -> Node:
    written = {name for node in group for name in node.outputs if name}
    read = dict.fromkeys(name for node in group for name in (*node.inputs, *node.implicit_inputs) if name)
    return Node(
        index=index,
        name="",
        op_type=FUSED,
        domain="",
        since_version=1,
        inputs=tuple(name for name in read if name not in written),
        outputs=tuple(dict.fromkeys(given_outside(graph, group, members))),
    )


def given_outside(graph: Graph, group: tuple[Node, ...], members: set[int]) -> Iterator[str]:
    """Values of a group that others read or that the graph gives (ep_rules B.4), perhaps more than once."""
    for node in group:
        yield from (name for name in node.outputs if name in graph.output_set)
        for edge in graph.out_edges[node.index]:
            if edge.consumer not in members:
                yield node.outputs[edge.source_slot]


Forecast = Callable[..., LoadForecast]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """The graph of the file that ships. `model` is None for an ORT format file, in which nothing is inlined."""

    graph: Graph
    model: "ModelProto | None"
    view: View


def predict_load(shipped: SavedFile, shown: Graph, provider_claim: Claim, settings: Settings) -> LoadForecast:
    """How many compiled nodes the session will have, or why it cannot be made.

    `found` is the claim on `shown`, which is not asked for again where that is the graph that ships.
    """
    first = LayoutRound(shipped.graph, provider_claim if shown is shipped.graph else claim(shipped.graph, settings))
    if first.claim.fatal is not None:
        return LoadForecast.failing(first.claim.fatal)
    forecast: Forecast = importlib.import_module(settings.rules.load).forecast
    if shipped.model is None:
        return forecast((first,), settings)
    return forecast(
        rounds(shipped.model, first, shipped.view, lambda graph, free: claim(graph, settings, free)), settings
    )
