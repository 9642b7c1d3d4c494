"""What a provider claims of a graph: its rules asked about every unit, what they leave joined to groups.

`claim` is asked; a provider with rules answers with `claim_by_rules`, which has them asked for the units of one outline
at once (outline.py) and joins what they pass (`group_by_waves`).
"""

import importlib
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from pipeline.core.errors import ConfigError
from pipeline.model import types as onnx_types
from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.graph import Edge, Graph, Node, WaveStart, given_outside
from pipeline.partition.outline import ask_rules
from pipeline.partition.provider_claims import ChipCompiler, ProviderClaims
from pipeline.partition.selectors import unit_of_node
from pipeline.partition.types import Value
from pipeline.partition.units import Case, Unit


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a provider claims of one graph: groups of nodes in their order, and why it refuses the others, by index.

    A fatal refusal says that asking the provider ends the session: then nothing else here matters.
    """

    groups: tuple[tuple[Node, ...], ...] = ()
    refusals: Mapping[int, Refusal] = field(default_factory=dict)
    fatal: Refusal | None = None

    @cached_property
    def claimed(self) -> frozenset[int]:
        """Indices of all claimed nodes."""
        return frozenset(node.index for group in self.groups for node in group)

    def names(self) -> tuple[tuple[str, ...], ...]:
        """The groups by first outputs, as answers list them."""
        return tuple(tuple(node.first_output for node in group) for group in self.groups)


def claims_of(settings: Settings) -> ProviderClaims:
    """The functions of the provider that is asked; importing its rules takes a while, so that it is done then."""
    claims: ProviderClaims = importlib.import_module(f"pipeline.providers.{settings.rules.provider}.claims").CLAIMS
    return claims


def compiler_of(settings: Settings) -> ChipCompiler:
    """The compiler of the chips of the provider that is asked; ConfigError for one that has none."""
    compiler = claims_of(settings).compiler
    if compiler is None:
        raise ConfigError(
            f"no compiler of a chip says what {settings.rules.title} takes", remedy="ask for a provider of a chip"
        )
    return compiler


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What the provider claims of one graph, not of its bodies; `only` are the nodes that are still free.

    Those are given when it is asked again after functions were inlined (A.2).
    """
    claim_of_provider = claims_of(settings).claim
    if only is not None:
        return claim_of_provider(graph, settings, only)
    if settings not in graph.claims:  # a forecast, its findings and the copies each ask again
        graph.claims[settings] = claim_of_provider(graph, settings, None)
    kept: Claim = graph.claims[settings]
    return kept


def copies_of(graph: Graph, settings: Settings, claimed: Container[int], inside: int = 0) -> int | None:
    """How often one inference copies values between provider and CPU; None for one whose borders are partitions.

    `inside` are those in bodies of control flow, each counted once.
    """
    copies = claims_of(settings).copies
    if copies is None:
        return None
    kept = graph.claims.get(settings)
    if kept is None or claimed is not kept.claimed:
        return copies.count(graph, settings, claimed) + inside
    if settings not in graph.copies:
        graph.copies[settings] = copies.count(graph, settings, claimed)
    return graph.copies[settings] + inside


def copies_estimated(graph: Graph, settings: Settings, claimed: Container[int]) -> bool:
    """Whether `copies_of` may differ from what ONNX Runtime does."""
    copies = claims_of(settings).copies
    return copies is not None and copies.estimated(graph, settings, claimed)


def claim_by_rules(
    graph: Graph,
    settings: Settings,
    only: Container[int] | None,
    *,
    whole: Callable[[Graph, Settings], Refusal | None],
    units: Callable[[Graph, Settings], Sequence[Unit]],
    taken: Refusal,
    operator: Callable[[Case], Refusal | None],
    stopped: Refusal | None = None,
    in_group: Callable[[Case, Collection[str]], Refusal | None] | None = None,
    veto: Callable[[Graph, Settings, Sequence[Node]], Refusal | None] = lambda *_: None,
) -> Claim:
    """The way of one graph through the rules of one provider, in the order in which it meets them.

    `whole` refuses a graph before its nodes are looked at. `units` divides it into what is judged as one. `taken` is
    the refusal of a unit that somebody has already, `stopped` that of one that is or comes behind an operator of
    `Settings.stop_ops` (None: the provider has none). `operator` judges one unit, `in_group` with what the open group
    gives already when grouping comes to it. `veto` drops a group that is finished.
    """
    # The release, the system's version, the opset, being a body of If or Loop: for all nodes alike.
    nothing = whole(graph, settings)
    if nothing is not None:
        return Claim(fatal=nothing) if nothing.fatal else Claim(refusals=dict.fromkeys(graph.nodes, nothing))

    in_order = units(graph, settings)
    settled = _settled(graph, in_order, settings, only, taken, stopped)
    refusals = {**ask_rules(graph, in_order, settings, operator, settled), **settled}
    # Those that an open group may have to give something
    doubtful: Mapping[int, Refusal] = {}
    if in_group:
        doubtful = ask_rules(graph, in_order, settings, lambda case: in_group(case, ()), refusals)
    verdicts = _Verdicts(
        refusals, doubtful, lambda unit, given: in_group and in_group(Case(graph, unit, settings), given)
    )
    if settings.rules.on_cpu:  # nothing is compiled: every node of a unit stands alone
        groups = [[node] for unit in in_order if verdicts.accept(unit, ()) for node in unit.nodes]
    elif doubtful or any(refusal.fatal for refusal in refusals.values()):
        groups = group_by_waves(graph, in_order, verdicts.accept)
    else:  # what is refused decides: providers that refuse the same have the same groups
        key = id(in_order), frozenset(refusals)
        if key not in graph.groups:
            graph.groups[key] = group_by_waves(graph, in_order, verdicts.accept)
        groups = graph.groups[key]

    by_node = {
        node.index: refusals[unit.target.index]
        for unit in (in_order if refusals else ())
        if unit.target.index in refusals
        for node in unit.nodes
    }
    fatal = next((refusal for refusal in verdicts.met.values() if refusal.fatal), None)
    if fatal is not None and not settings.rules.on_cpu:
        return Claim(refusals=by_node, fatal=fatal)

    kept = []
    for group in groups:
        refusal = veto(graph, settings, group)
        if refusal is None:
            kept.append(tuple(group))
        else:
            by_node |= dict.fromkeys((node.index for node in group), refusal)
    return Claim(groups=tuple(kept), refusals=by_node, fatal=fatal)


def _settled(
    graph: Graph,
    units: Sequence[Unit],
    settings: Settings,
    only: Container[int] | None,
    taken: Refusal,
    stopped: Refusal | None,
) -> dict[int, Refusal]:
    """What is refused without a look at the rules, by the index of the target; arguments as in `claim_by_rules`."""
    stops = [unit for unit in units if stopped and unit.target.op_type in settings.stop_ops]
    behind_stops = downstream(graph, units, stops) if stops else frozenset()
    settled: dict[int, Refusal] = {}
    for unit in units if only is not None or behind_stops else ():
        # Kernels on the CPU replace all nodes of a unit; a compiling provider looks at the target alone.
        needed = unit.nodes if settings.rules.on_cpu else (unit.target,)
        if only is not None and not all(node.index in only for node in needed):
            settled[unit.target.index] = taken
        elif stopped and unit.target.index in behind_stops:
            settled[unit.target.index] = stopped
    return settled


class _Verdicts:
    """Which units are claimed: all but the refused ones, and those that the open group gives too little.

    `refusals` grow by the latter; `met` has all in the order in which grouping came to them.
    """

    def __init__(
        self,
        refusals: dict[int, Refusal],
        doubtful: Container[int],
        in_group: Callable[[Unit, Collection[str]], Refusal | None],
    ) -> None:
        self.refusals, self.doubtful, self.in_group = refusals, doubtful, in_group
        self.passed: set[int] = set()
        self.met: dict[int, Refusal] = {}

    def accept(self, unit: Unit, group_outputs: Collection[str]) -> bool:
        """Whether a unit is claimed; a doubtful one is judged once, when it first comes up."""
        index = unit.target.index
        if index in self.doubtful and index not in self.refusals and index not in self.passed:
            refusal = self.in_group(unit, group_outputs)
            if refusal is None:
                self.passed.add(index)
            else:
                self.refusals[index] = refusal
        if index in self.refusals:
            self.met.setdefault(index, self.refusals[index])
        return index not in self.refusals


def copied_bytes(graph: Graph, groups: Iterable[Iterable[Node]]) -> tuple[int, int] | None:
    """Bytes that one inference gives to partitions and takes from them; None where a value has no known size.

    A value counts for each partition that reads it, inputs of the model too, and once where it is read outside of the
    partition that makes it or is an output of the model. Constants are given when partitions are compiled.
    """
    given, taken = [], []
    for group in map(list, groups):
        names = (name for node in group for name in (*node.inputs, *node.implicit_inputs))
        read = {name for name in names if name and graph.constant(name) is None}
        given += [_bytes(graph.value(name)) for name in read.difference(*(node.outputs for node in group))]
        taken += [
            _bytes(graph.value(name)) for name in set(given_outside(graph, group, {node.index for node in group}))
        ]
    if -1 in given or -1 in taken:
        return None
    return sum(given), sum(taken)


def _bytes(value: Value) -> int:
    """The size of a tensor; -1 where it is not known before an inference."""
    bits = onnx_types.BITS.get(value.dtype or "", 0)
    return (prod(size or 0 for size in value.shape or ()) * bits + 7) // 8 if bits and value.static else -1


Accept = Callable[[Unit, Collection[str]], bool]
"""Whether a unit is claimed; given are the outputs of the targets in the group that is open then (D.2.9)."""


def group_by_waves(graph: Graph, units: Sequence[Unit], accept: Accept) -> list[list[Node]]:
    """The nodes of groups of units in the order in which ONNX Runtime closes them (B.2)."""
    # Once for all settings; ONNX Runtime counts no edges into a unit's Qs or its Clip (B.1).
    start = graph.waves.get(id(units))
    if start is None or start.units is not units:
        owner = unit_of_node(units)
        waiting = {
            unit.target.index: sum(len(graph.in_edges[node.index]) for node in (*unit.dqs, unit.target)) - len(unit.dqs)
            for unit in units
        }
        readers = {unit.target.index: [owner[edge.consumer] for edge in unit_edges(graph, unit)] for unit in units}
        start = graph.waves[id(units)] = WaveStart(units=units, waiting=waiting, readers=readers)
    waiting = dict(start.waiting)
    ready = deque(unit for unit in units if waiting[unit.target.index] == 0)
    later: deque[Unit] = deque()
    border: set[int] = set()  # units that read from the open group: a refused one waits until that is closed
    group: list[Node] = []
    group_outputs: set[str] = set()
    closed = []
    while ready or later:
        if not ready:
            closed.append(group)
            group, group_outputs, border = [], set(), set()
            ready, later = later, ready
            continue
        unit = ready.popleft()
        accepted = accept(unit, group_outputs)
        if not accepted and unit.target.index in border:
            later.append(unit)
            continue
        if accepted:
            group += unit.nodes
            group_outputs.update(unit.target.outputs)
            border.discard(unit.target.index)
        for consumer in start.readers[unit.target.index]:
            index = consumer.target.index
            if accepted:
                border.add(index)
            waiting[index] -= 1
            if waiting[index] == 0:
                ready.append(consumer)
    closed.append(group)
    return [group for group in closed if group]


def unit_edges(graph: Graph, unit: Unit) -> Sequence[Edge]:
    """Edges out of a unit as its target's: an edge to a QuantizeLinear of the unit counts as that one's edges (B.1)."""
    if not unit.group:
        return graph.out_edges[unit.target.index]
    quantizers = {q.index for q in unit.qs}
    edges: list[Edge] = []
    for edge in graph.out_edges[(unit.clip or unit.target).index]:
        edges.extend(graph.out_edges[edge.consumer] if edge.consumer in quantizers else (edge,))
    return sorted(edges)


def downstream(graph: Graph, units: Iterable[Unit], starts: Iterable[Unit]) -> set[int]:
    """Target indices of the given units and of everything behind them along edges, in linear time (stop ops, B.5)."""
    owner = unit_of_node(units)
    reached: set[int] = set()
    stack = list(starts)
    while stack:
        unit = stack.pop()
        if unit.target.index not in reached:
            reached.add(unit.target.index)
            stack.extend(owner[edge.consumer] for edge in unit_edges(graph, unit))
    return reached
