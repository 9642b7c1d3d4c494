"""Grouping of supported units into partitions by waves, with the vetoes on whole groups (ep_rules B)."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from pipeline.partition.graph import Edge, Graph
from pipeline.partition.units import Unit, Units

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
    own = {q.index for q in unit.qs}
    edges: list[Edge] = []
    for edge in graph.out_edges[(unit.clip or unit.target).index]:
        if edge.consumer in own:
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
    made: set[str] = set()
    read: dict[str, None] = {}
    for unit in units:
        for node in unit.nodes:
            read.update(dict.fromkeys(name for name in node.inputs if name and name not in made))
            made.update(node.outputs)
    return list(read)
