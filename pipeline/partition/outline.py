"""Outlines of nodes: operator, attributes, types, shapes and few numbers. Nodes of one outline are judged once.

A rule that judges a node by its outline alone says the same of every node of that outline, but for the names in its
words. Nothing lists which rules do: what stands for the node has placeholders for names, and what stands for the graph
has no more than the outline. A rule that asks it for more (weights, neighbours, outputs of the graph) is asked about
each node with the real graph.
"""

import contextlib
import re
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from pipeline.core.errors import ModelError
from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.graph import Constant, Graph, Node
from pipeline.partition.types import Value
from pipeline.partition.units import Case, Unit, UnitValue

if TYPE_CHECKING:
    import numpy as np

MOST_NUMBERS = 16
"""Elements up to which a list of integers is part of an outline: axes, shapes, sizes."""

PLACEHOLDER = re.compile("⟦(?:([0-9]+)|node)⟧")
PLAIN_NAME = re.compile(r"[\w./:-]{1,40}")
"""A name that texts show as it is: they cut long ones short, and may quote others."""


Answer = TypeVar("Answer")


class Beyond(Exception):
    """A rule asked for what an outline does not have."""


def _beyond() -> "np.ndarray[Any, Any]":
    raise Beyond


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of one node: of the values that it reads and makes, each once, and its own."""

    values: tuple[str, ...]
    node: str

    @classmethod
    def of(cls, node: Node) -> "_Names":
        return cls(tuple(dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name)), node.name)

    @property
    def plain(self) -> bool:
        return all(PLAIN_NAME.fullmatch(name) for name in (*self.values, *filter(None, (self.node,))))

    def put_into(self, text: str) -> str:
        """A text with these in the place of placeholders."""
        return PLACEHOLDER.sub(lambda match: self.values[int(match[1])] if match[1] else self.node, text)


class _Outline:
    """What rules are shown in place of the graph, and of one of its nodes."""

    def __init__(self, graph: Graph, unit: Unit) -> None:
        self.opset, self.outer = graph.opset, graph.outer
        self._graph, node = graph, unit.target
        places = {name: f"⟦{index}⟧" for index, name in enumerate(_Names.of(node).values)}
        self._names = {placeholder: name for name, placeholder in places.items()}

        def hidden(name: str | None) -> Any:
            return places[name] if name else name

        target = msgspec.structs.replace(
            node,
            name=node.name and "⟦node⟧",
            inputs=tuple(map(hidden, node.inputs)),
            outputs=tuple(map(hidden, node.outputs)),
        )
        inputs, outputs = (
            tuple(UnitValue(hidden(io.name), hidden(io.scale), hidden(io.zero_point)) for io in side)
            for side in (unit.inputs, unit.outputs)
        )
        self._unit = msgspec.structs.replace(unit, target=target, inputs=inputs, outputs=outputs)

    def asked(self, question: "Callable[[Graph, Unit], Answer]") -> "Answer":
        """The answer to a question about a graph and a unit of it; raises Beyond."""
        return question(cast("Graph", self), self._unit)

    def value(self, name: str) -> Value:
        if name not in self._names:
            raise Beyond
        return self._graph.value(self._names[name])

    def constant(self, name: str) -> Constant | None:
        if name not in self._names:
            raise Beyond
        there = self._graph.constant(self._names[name])
        if there is None:
            return None
        read = there.read if _few_integers(there) else _beyond
        return Constant(there.dtype, there.dims, read, there.external, there.int64_field)

    @property
    def overridable(self) -> Container[str]:
        return {placeholder for placeholder, name in self._names.items() if name in self._graph.overridable}

    def __getattr__(self, name: str) -> Any:
        raise Beyond


def _few_integers(constant: Constant) -> bool:
    return constant.dtype in ("i64", "i32") and len(constant.dims) < 2 and constant.count <= MOST_NUMBERS


def _alike(graph: Graph, units: Sequence[Unit]) -> Sequence[Sequence[Unit]]:
    """The units by their outlines, those of the first unit first; kept by the graph."""
    kept = graph.outlines.get(id(units))
    if kept is None or kept[0] is not units:
        by_outline: dict[Hashable, list[Unit]] = {}
        constants: dict[str, Hashable] = {}  # by name what an outline has of them
        for unit in units:
            by_outline.setdefault(_outline(graph, unit, constants), []).append(unit)
        kept = graph.outlines[id(units)] = units, tuple(by_outline.values())
    return kept[1]


def _outline(graph: Graph, unit: Unit, constants: dict[str, Hashable]) -> Hashable:
    """The outline of a unit; one of its own where a node alone does not say it."""
    node = unit.target
    if unit.group or node.bodies:
        return node.index
    names = (*node.inputs, *node.outputs)
    values: list[Hashable] = []
    for index, name in enumerate(names):
        if name not in constants:
            constants[name] = _of_constant(graph, name)
        first = names.index(name)
        values.append((graph.value(name), constants[name], first) if first == index and name else first)
    # Attributes are one object for all nodes that have the same (graph.py)
    what = (node.op_type, node.domain, node.since_version, id(node.attributes), len(node.inputs), bool(node.name))
    return what, tuple(values)


def _of_constant(graph: Graph, name: str) -> Hashable:
    there = graph.constant(name) if name else None
    if there is None:
        return name in graph.overridable, bool(name)
    numbers: Hashable = None
    with contextlib.suppress(ModelError):  # which a rule meets that reads them
        numbers = tuple(there.numbers()) if _few_integers(there) else None
    return there.dtype, there.dims, there.external, there.int64_field, numbers


def left_over(graph: Graph, units: Sequence[Unit], passes: Callable[[Graph, Unit], bool]) -> Iterator[Unit]:
    """The units that are to be looked at one by one: all but those of outlines that pass.

    `passes` is given what stands for the graph and a unit. Units come by their outlines, not in their order.
    """
    for alike in _alike(graph, units):
        try:
            passed = len(alike) > 1 and _Outline(graph, alike[0]).asked(passes)
        except Beyond:
            passed = False
        if not passed:
            yield from alike


def answered(graph: Graph, units: Sequence[Unit], question: Callable[[Graph, Unit], Answer]) -> Mapping[int, Answer]:
    """The answer to a question about each unit, by the index of its target; it has no names in it."""
    answers: dict[int, Answer] = {}
    for alike in _alike(graph, units):
        try:
            common = _Outline(graph, alike[0]).asked(question) if len(alike) > 1 else question(graph, alike[0])
            answers |= dict.fromkeys((unit.target.index for unit in alike), common)
        except Beyond:
            answers |= {unit.target.index: question(graph, unit) for unit in alike}
    return answers


def ask_rules(
    graph: Graph,
    units: Sequence[Unit],
    settings: Settings,
    refusal: Callable[[Case], Refusal | None],
    settled: Container[int],
) -> Mapping[int, Refusal]:
    """Why rules refuse units, by the index of the target; those that they pass, and those `settled`, are not there."""

    def judge(of: Graph, unit: Unit) -> Refusal | None:
        return refusal(Case(of, unit, settings))

    refusals: dict[int, Refusal] = {}
    for alike in _alike(graph, units):
        common: Refusal | None = None
        try:
            common = _Outline(graph, alike[0]).asked(judge) if len(alike) > 1 else None
            by_outline = len(alike) > 1
        except Beyond:
            by_outline = False
        if by_outline and common is None:
            continue
        for unit in alike:
            if unit.target.index in settled:
                continue
            why = (_told(common, unit.target) if common else None) or judge(graph, unit)
            if why is not None:
                refusals[unit.target.index] = why
    return refusals


def _told(common: Refusal, node: Node) -> Refusal | None:
    """A refusal with the names of a node; None where a text would show them otherwise."""
    if not PLACEHOLDER.search(common.what) and not PLACEHOLDER.search(common.remedy):
        return common
    names = _Names.of(node)
    if not names.plain:
        return None
    return msgspec.structs.replace(common, what=names.put_into(common.what), remedy=names.put_into(common.remedy))
