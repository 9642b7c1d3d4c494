"""Which refused nodes cut a model into partitions, ranked by what claiming each would give."""

from collections.abc import Iterable, Sequence

from pipeline.partition.answer import Cut, Provider, Settings
from pipeline.partition.claim import Claim
from pipeline.partition.graph import Graph
from pipeline.partition.grouping import group_by_waves, unit_edges
from pipeline.partition.units import Unit, Units, node_units, plain_units

MOST = 64
"""Candidates tried for a model, those with most claimed neighbours first: the time stays linear in the nodes."""

TRIVIAL = ("trivial", "constant")
"""Codes of nodes that the provider could take, but not as a partition of their own."""


def cuts(graph: Graph, settings: Settings, found: Claim) -> tuple[Cut, ...]:
    """Refused nodes whose claim would join partitions or take in more nodes, the best first.

    XNNPACK does not group, so nothing cuts there.
    """
    if settings.provider is Provider.XNNPACK or not found.groups:
        return ()
    units = node_units(graph, settings.ort_release) if settings.provider is Provider.NNAPI else plain_units(graph)
    supported = found.claimed | {index for index, refusal in found.refusals.items() if refusal.code in TRIVIAL}
    candidates = _candidates(graph, units, supported)
    made = (_cut(graph, units, supported, found, unit) for unit in candidates)
    return tuple(sorted((cut for cut in made if cut), key=lambda cut: (cut.partitions, -cut.claimed, cut.output)))


def _candidates(graph: Graph, units: Units, supported: frozenset[int]) -> list[Unit]:
    """Refused units that a claimed one feeds, those with most claimed neighbours first."""
    owner = units.by_node()
    fed: dict[int, int] = {}
    feeds: dict[int, int] = {}
    for unit in units.units:
        for edge in unit_edges(graph, unit):
            consumer = owner[edge.consumer].target.index
            fed[consumer] = fed.get(consumer, 0) + (unit.target.index in supported)
            feeds[unit.target.index] = feeds.get(unit.target.index, 0) + (consumer in supported)
    refused = [u for u in units.units if u.target.index not in supported and fed.get(u.target.index)]
    refused.sort(key=lambda u: -(fed.get(u.target.index, 0) + feeds.get(u.target.index, 0)))
    return refused[:MOST]


def _cut(graph: Graph, units: Units, supported: frozenset[int], found: Claim, forced: Unit) -> Cut | None:
    wanted = supported | {forced.target.index}
    groups = group_by_waves(graph, units, lambda unit, _: unit.target.index in wanted, keep=_worthwhile(found))
    partitions, claimed = len(groups), sum(len(unit.nodes) for group in groups for unit in group)
    if partitions >= len(found.groups) and claimed <= len(found.claimed):
        return None
    refusal = found.refusals.get(forced.target.index)
    return Cut(
        output=forced.target.first_output,
        op_type=forced.target.op_type,
        reason=refusal.text if refusal else "",
        remedy=refusal.remedy if refusal else "",
        partitions=partitions,
        claimed=claimed,
    )


def _worthwhile(found: Claim) -> "_Keep":
    return _Keep({index for index, refusal in found.refusals.items() if refusal.code in TRIVIAL})


class _Keep:
    """Drops groups that are trivial as they were before."""

    def __init__(self, trivial: Iterable[int]) -> None:
        self.trivial = frozenset(trivial)

    def __call__(self, group: Sequence[Unit]) -> bool:
        return any(node.index not in self.trivial for unit in group for node in unit.nodes)
