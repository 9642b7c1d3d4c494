"""Outlines of nodes: operator, attributes, types and shapes. Nodes of one outline are judged once.

A rule that passes a node by its outline alone passes every node of that outline. Nothing lists which rules do: the
graph that such a rule is shown has no more than the outline, and a rule that asks it for more (numbers of a constant,
neighbours, outputs of the graph) is asked about each node with the real graph. So is one that refuses a node, since the
reason names values. Names of nodes are not part of an outline: no rule that passes a node may look at them.
"""

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.graph import Constant, Graph, Node, Value
from pipeline.partition.units import Case, Unit

if TYPE_CHECKING:
    import numpy as np


class Beyond(Exception):
    """A rule asked for what an outline does not have."""


def _numbers() -> "np.ndarray[Any, Any]":
    raise Beyond


class _Shown:
    """What a rule is shown in place of the graph: types, shapes and constness of the values of one node."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.opset, self.outer = graph.opset, graph.outer
        self._graph, self._names = graph, {*node.inputs, *node.outputs}

    def value(self, name: str) -> Value:
        if name not in self._names:
            raise Beyond
        return self._graph.value(name)

    def constant(self, name: str) -> Constant | None:
        if name not in self._names:
            raise Beyond
        there = self._graph.constant(name)
        if there is None:
            return None
        return Constant(there.dtype, there.dims, _numbers, there.external, there.int64_field)

    def __getattr__(self, name: str) -> Any:
        raise Beyond


def _outline(graph: Graph, unit: Unit) -> Hashable:
    """The outline of a unit; the unit itself, which no other is equal to, where a node alone does not say it."""
    node = unit.target
    if unit.group or node.bodies:
        return node.index
    names = (*node.inputs, *node.outputs)
    values = []
    for place, name in enumerate(names):
        there = graph.constant(name) if name else None
        constness = (there.dtype, there.dims, there.external, there.int64_field) if there else bool(name)
        values.append((graph.value(name) if name else None, constness, names.index(name) == place or names.index(name)))
    # Attributes are one object for all nodes that have the same (graph.py)
    what = (node.op_type, node.domain, node.since_version, id(node.attributes), len(node.inputs))
    return what, tuple(values)


def _alike(graph: Graph, units: Sequence[Unit]) -> Sequence[Sequence[Unit]]:
    """The units by their outlines, those of the first unit first; kept by the graph."""
    kept = graph.outlines.get(id(units))
    if kept is None or kept[0] is not units:
        by_outline: dict[Hashable, list[Unit]] = {}
        for unit in units:
            by_outline.setdefault(_outline(graph, unit), []).append(unit)
        kept = graph.outlines[id(units)] = units, tuple(by_outline.values())
    return kept[1]


def left_over(graph: Graph, units: Sequence[Unit], passes: Callable[[Graph, Unit], bool]) -> Iterator[Unit]:
    """The units that are to be looked at one by one: all but those of outlines of which the first one passes.

    `passes` is given what stands for the graph. Units come by their outlines, not in their order.
    """
    for alike in _alike(graph, units):
        if len(alike) == 1 or not _by_outline(graph, alike[0], passes):
            yield from alike


def _by_outline(graph: Graph, unit: Unit, passes: Callable[[Graph, Unit], bool]) -> bool:
    try:
        return passes(cast("Graph", _Shown(graph, unit.target)), unit)
    except Beyond:
        return False


def refused(
    graph: Graph,
    units: Sequence[Unit],
    settings: Settings,
    refusal: Callable[[Case], Refusal | None],
    settled: Container[int],
) -> Mapping[int, Refusal]:
    """Why rules refuse units, by the index of the target; those that they pass, and those `settled`, are not there."""
    refusals: dict[int, Refusal] = {}
    for unit in left_over(graph, units, lambda shown, unit: refusal(Case(shown, unit, settings)) is None):
        why = None if unit.target.index in settled else refusal(Case(graph, unit, settings))
        if why is not None:
            refusals[unit.target.index] = why
    return refusals
