"""Where the nodes of a graph run, as plain data for reports, and the same graph with one box for many nodes.

A partition is one box, and so is each run of connected nodes that no partition has. A run that joins what a partition
separates would make a circle with it: it is split there.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from device_runner.result import Struct
from pipeline.core.providers import PROVIDER_RULES
from pipeline.partition.answer import ModelAnswer

CPU_KIND, KERNEL_KIND = -1, -2
"""Kinds of nodes without a partition: refused ones, and those that a provider on the CPU has kernels for."""

MOST_JOINED = 600
"""Above so many boxes runs stay split where levels split them: to try each pair takes time by their square."""


NAMES_AND_SHAPES = re.compile(r"'[^']*'|\[[^\]]*\]")


def same_reason(reason: str) -> str:
    """What is equal in reasons that differ in names and shapes alone."""
    return NAMES_AND_SHAPES.sub("", reason)


class ClaimReason(Struct, frozen=True, kw_only=True):
    """Why nodes are refused, and what would change that; "" for nothing known."""

    reason: str
    remedy: str = ""


class PlacedNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node by its name, or its first output where it has none; `partition` is the number of its partition, from 0.

    `reason` is the place of why it is refused in `Placement.reasons`; unset for claimed nodes. `inputs` are the places
    of the nodes that feed it.
    """

    name: str
    operator: str
    partition: int | None = None
    reason: int | None = None
    inputs: tuple[int, ...] = ()


class Placement(Struct, frozen=True, kw_only=True):
    """Which nodes of a file a provider is predicted to claim on a device, by the rules of a release.

    `provider` is that of the rules: a name of `ort-mobile partition --ep`.
    """

    model: str
    variant: str = ""
    device: str = ""
    provider: str
    release: str
    nodes: tuple[PlacedNode, ...]
    reasons: tuple[ClaimReason, ...] = ()

    @property
    def title(self) -> str:
        """The provider as people write it."""
        return PROVIDER_RULES[self.provider].title if self.provider in PROVIDER_RULES else self.provider

    @property
    def claimed(self) -> int:
        """How many nodes are claimed."""
        return sum(node.partition is not None for node in self.nodes)

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return len({node.partition for node in self.nodes if node.partition is not None})

    @property
    def kinds(self) -> list[int]:
        """Of each node the number of its partition, or what it is without one; XNNPACK's are kernels one by one."""
        on_cpu = self.provider in PROVIDER_RULES and PROVIDER_RULES[self.provider].on_cpu
        return [
            CPU_KIND if node.partition is None else KERNEL_KIND if on_cpu else node.partition for node in self.nodes
        ]


def placement_of(answer: ModelAnswer, *, model: str, variant: str = "", device: str = "") -> Placement:
    """The part of an answer that is drawn; an answer with an error has no nodes."""
    reasons: dict[tuple[str, str], int] = {}
    producer = {name: place for place, decision in enumerate(answer.decisions) for name in decision.outputs if name}
    nodes = tuple(
        PlacedNode(
            name=decision.name or next(filter(None, decision.outputs), ""),
            operator=decision.op_type,
            partition=decision.partition if decision.claimed else None,
            reason=None
            if decision.claimed
            else reasons.setdefault((decision.reason or "", decision.remedy or ""), len(reasons)),
            inputs=tuple(
                dict.fromkeys(producer[read] for read in decision.inputs if producer.get(read, place) != place)
            ),
        )
        for place, decision in enumerate(answer.decisions)
    )
    return Placement(
        model=model,
        variant=variant,
        device=device,
        provider=answer.ep,
        release=answer.release_text,
        nodes=nodes,
        reasons=tuple(ClaimReason(reason=reason, remedy=remedy) for reason, remedy in reasons),
    )


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes drawn as one box, by their places in order; `kind` as in `Placement.kinds`."""

    kind: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collapsed:
    """The boxes of a graph in the order of their first nodes, and (producer, consumer) of boxes, without circles."""

    groups: tuple[NodeGroup, ...]
    edges: tuple[tuple[int, int], ...]


def collapse(kinds: Sequence[int], edges: Sequence[tuple[int, int]]) -> Collapsed:
    """One box for each kind from 0 on, and for each connected run of nodes of another kind.

    `edges` are (producer, consumer) of nodes and make no circle. Partitions that make a circle together, which no
    runtime could run, are drawn as runs too.
    """
    units = [kind if kind >= 0 else -1 - place for place, kind in enumerate(kinds)]
    circular = set(units) - set(_ordered(_consumers(units, edges)))
    units = [-1 - place if unit in circular else unit for place, unit in enumerate(units)]
    boxes = _joined(units, kinds, edges)
    places = {box: place for place, box in enumerate(dict.fromkeys(boxes))}
    members: list[list[int]] = [[] for _ in places]
    for node, box in enumerate(boxes):
        members[places[box]].append(node)
    groups = tuple(NodeGroup(kinds[nodes[0]], tuple(nodes)) for nodes in members)
    between = dict.fromkeys((places[boxes[a]], places[boxes[b]]) for a, b in edges if boxes[a] != boxes[b])
    return Collapsed(groups, tuple(between))


def _consumers(units: Sequence[int], edges: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    consumers: dict[int, set[int]] = {unit: set() for unit in units}
    for a, b in edges:
        if units[a] != units[b]:
            consumers[units[a]].add(units[b])
    return consumers


def _ordered(consumers: Mapping[int, set[int]]) -> list[int]:
    """Producers before consumers; what is in or behind a circle is left out."""
    waiting = dict.fromkeys(consumers, 0)
    for unit in (consumer for below in consumers.values() for consumer in below):
        waiting[unit] += 1
    order = [unit for unit, count in waiting.items() if not count]
    for unit in order:
        for below in consumers[unit]:
            waiting[below] -= 1
            if not waiting[below]:
                order.append(below)
    return order


def _joined(units: Sequence[int], kinds: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The box of each node: its unit, or the first of those that it is joined with.

    A level counts changes of kind on the way to a unit. Neighbours of one kind and level are joined at once: every way
    from one to another over a third kind ends on a higher level. The others are joined where there is no other way.
    """
    kind = dict(zip(units, kinds, strict=True))
    consumers = _consumers(units, edges)
    level = dict.fromkeys(units, 0)
    for unit in _ordered(consumers):
        for below in consumers[unit]:
            level[below] = max(level[below], level[unit] + (kind[below] != kind[unit]))
    pairs = list(dict.fromkeys((units[a], units[b]) for a, b in edges if kinds[a] == kinds[b] and units[a] != units[b]))
    box = {unit: unit for unit in units}
    for a, b in pairs:
        if level[a] == level[b]:
            _join(box, a, b)
    if len({_root(box, unit) for unit in units}) <= MOST_JOINED:
        _join_apart(box, pairs, _consumers([_root(box, unit) for unit in units], edges))
    return [_root(box, unit) for unit in units]


def _root(box: dict[int, int], unit: int) -> int:
    while box[unit] != unit:
        box[unit] = unit = box[box[unit]]
    return unit


def _join(box: dict[int, int], a: int, b: int) -> None:
    box[_root(box, b)] = _root(box, a)


def _join_apart(box: dict[int, int], pairs: Sequence[tuple[int, int]], consumers: dict[int, set[int]]) -> None:
    """Join boxes of one kind that an edge joins and no other way, until there are none."""
    joined = True
    while joined:
        joined = False
        for first, second in pairs:
            a, b = _root(box, first), _root(box, second)
            if a == b or _way_around(consumers, a, b):
                continue
            _join(box, a, b)
            consumers[a] |= consumers.pop(b)
            for unit, below in consumers.items():
                if b in below:
                    below.remove(b)
                    below.add(a)
                if unit == a:
                    below.discard(a)
            joined = True


def _way_around(consumers: Mapping[int, set[int]], a: int, b: int) -> bool:
    """Whether a way leads from a box to a consumer of it over a third one."""
    waiting, seen = [unit for unit in consumers[a] if unit != b], {a}
    while waiting:
        unit = waiting.pop()
        if unit == b:
            return True
        if unit not in seen:
            seen.add(unit)
            waiting.extend(consumers[unit])
    return False
