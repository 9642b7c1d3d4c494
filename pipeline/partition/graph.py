"""The graph as an execution provider sees it: plain values, so that rules never touch protobuf or flatbuffers.

A view is built once per model (`view`), is never changed, and
answers every question of the rules: types and shapes as ONNX Runtime inferred them, constants, edges, order.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from pipeline.partition.units import Unit

Shape = tuple[int | None, ...]
"""Dimensions; None is a dimension without a value. A shape that is itself None is of unknown rank."""


@dataclass(frozen=True, slots=True)
class Value:
    """Type and shape of one value as ONNX Runtime has them; `dtype` is None when it is no tensor or unknown."""

    dtype: str | None = None
    shape: Shape | None = None

    @property
    def static(self) -> bool:
        """Whether every dimension has a value (zero dimensions and scalars are static)."""
        return self.shape is not None and None not in self.shape


UNKNOWN = Value()


@dataclass(frozen=True, slots=True)
class Constant:
    """An initializer: its type and dimensions at once, its numbers only when a rule asks for them.

    `external` marks data in a file of its own. `int64_field` is False when the numbers are stored as raw bytes, which
    one CoreML rule mistakes for an empty list (ep_rules E.4, ReduceMean). `read` may raise ModelError.
    """

    dtype: str
    dims: tuple[int, ...]
    read: Callable[[], "np.ndarray[Any, Any]"]
    external: bool = False
    int64_field: bool = False

    def numbers(self) -> list[Any]:
        """All entries in one flat list."""
        return self.read().reshape(-1).tolist()

    @property
    def count(self) -> int:
        """The number of entries."""
        return prod(self.dims)


class Edge(NamedTuple):
    """A value that goes from an output slot of one node to an input slot of another; fields sort as in A.8."""

    consumer: int
    source_slot: int
    input_slot: int
    producer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `attributes` holds the defaults of the schema too (ep_rules A.5); tensors there are Constants.

    `index` orders nodes everywhere (A.8). `domain` is "" for ai.onnx. `implicit_inputs` are the outer values that the
    bodies read, each once. An input or output that is left out has the empty name.
    """

    index: int
    name: str
    op_type: str
    domain: str
    since_version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    bodies: tuple["Graph", ...] = ()
    implicit_inputs: tuple[str, ...] = ()

    @property
    def first_output(self) -> str:
        """The name by which answers call the node: its first output that is not left out."""
        return next((name for name in self.outputs if name), "")


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph or a body of If, Loop, Scan. `nodes` by index; `initializers` includes the values of Constant nodes.

    `overridable` names initializers that a caller may replace: listed as graph inputs, IR version 4 or later (A.4).
    `outer` is the graph around a body. `opset` is the main graph's import of the default domain (None: not imported).
    `units` keeps the units that it was divided into before, by what they depend on: one graph is judged many times.
    """

    nodes: Mapping[int, Node]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Constant]
    overridable: frozenset[str] = frozenset()
    outer: "Graph | None" = None
    opset: int | None = None
    units: dict[object, tuple["Unit", ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    waves: dict[int, tuple[Sequence["Unit"], Mapping[int, int], Mapping[int, Sequence["Unit"]]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def value(self, name: str) -> Value:
        """Type and shape of a value, here or in an outer graph; UNKNOWN when nothing is known."""
        value = self.values.get(name)
        if value is not None:
            return value
        return self.outer.value(name) if self.outer else UNKNOWN

    def constant(self, name: str) -> Constant | None:
        """const(x) of ep_rules A.4: the initializer behind a name, unless it can be overridden."""
        initializer = self.initializers.get(name)
        if initializer is not None:
            return None if name in self.overridable else initializer
        if self.outer is None or name in self.values:
            return None
        return self.outer.constant(name)

    @cached_property
    def output_set(self) -> frozenset[str]:
        """The names of the graph's outputs."""
        return frozenset(self.outputs)

    @cached_property
    def producers(self) -> dict[str, tuple[int, int]]:
        """For each value made here: the node's index and the output slot."""
        return {
            name: (node.index, slot)
            for node in self.nodes.values()
            for slot, name in enumerate(node.outputs)
            if name
        }  # fmt: skip

    @cached_property
    def in_edges(self) -> dict[int, tuple[Edge, ...]]:
        """Edges into each node by input slot; slots behind the listed inputs are the implicit ones."""
        edges: dict[int, tuple[Edge, ...]] = {}
        for index, node in self.nodes.items():
            slots = enumerate((*node.inputs, *node.implicit_inputs))
            sources = ((slot, *self.producers[name]) for slot, name in slots if name in self.producers)
            edges[index] = tuple(Edge(index, source_slot, slot, producer) for slot, producer, source_slot in sources)
        return edges

    @cached_property
    def out_edges(self) -> dict[int, tuple[Edge, ...]]:
        """Edges out of each node, sorted as ONNX Runtime keeps them (A.8)."""
        edges: dict[int, list[Edge]] = {index: [] for index in self.nodes}
        for edge in (edge for into in self.in_edges.values() for edge in into):
            edges[edge.producer].append(edge)
        return {index: tuple(sorted(leaving)) for index, leaving in edges.items()}

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Node indices in ONNX Runtime's default topological order (A.8): depth first from the leaves."""
        order: list[int] = []
        visited: set[int] = set()
        stack = [(index, False) for index in sorted(self.nodes) if not self.out_edges[index]]
        while stack:
            index, leaving = stack.pop()
            if leaving:
                order.append(index)
            elif index not in visited:
                visited.add(index)
                stack.append((index, True))
                producers = {edge.producer for edge in self.in_edges[index]}
                stack.extend((producer, False) for producer in sorted(producers) if producer not in visited)
        return tuple(order)

    def gives_output(self, node: Node) -> bool:
        """Whether one of the node's outputs is an output of the graph."""
        return any(name in self.output_set for name in node.outputs)

    def with_nodes(self, nodes: Mapping[int, Node], values: Mapping[str, Value]) -> "Graph":
        """The same graph with other nodes; bodies keep seeing the old one, whose names they read."""
        return replace(self, nodes=nodes, values=values)


class FreshNames:
    """The one counter of a graph for new nodes and new values, never reset (ep_rules C.1)."""

    def __init__(self) -> None:
        self.counter = 0

    def take(self, base: str, taken: Container[str]) -> str:
        """The base itself, or with the next number that makes it new."""
        name = base
        while name in taken:
            name = f"{base}_token_{self.counter}"
            self.counter += 1
        return name


def outside_inputs(nodes: Iterable[Node]) -> list[str]:
    """Values that a group reads and has not made before, in the order of first reading, initializers included (B.4)."""
    written: set[str] = set()
    read: dict[str, None] = {}
    for node in nodes:
        read.update(dict.fromkeys(name for name in node.inputs if name and name not in written))
        written.update(node.outputs)
    return list(read)


def given_outside(graph: Graph, group: Iterable[Node], members: Container[int]) -> Iterator[str]:
    """Values of a group that others read or that the graph gives (B.4), perhaps more than once."""
    for node in group:
        yield from (name for name in node.outputs if name in graph.output_set)
        for edge in graph.out_edges[node.index]:
            if edge.consumer not in members:
                yield node.outputs[edge.source_slot]


def bodies(graph: Graph) -> Iterator[tuple[Node, Graph]]:
    """Every body with the node that owns it, inner ones before outer ones, as ONNX Runtime asks (ep_rules A.2)."""
    for node in graph.nodes.values():
        for body in node.bodies:
            yield from bodies(body)
            yield node, body
