"""QDQ node units (ep_rules C): DequantizeLinear, target and QuantizeLinear nodes that count as one operation.

NNAPI and XNNPACK judge units, which `selectors` finds; for CoreML every node is a unit of its own (`plain_units`).
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from pipeline.core import abis as core_abis
from pipeline.partition.answer import Settings
from pipeline.partition.graph import Constant, FreshNames, Graph, Node
from pipeline.partition.types import Shape, Value

DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"


class UnitValue(NamedTuple):
    """An input or output of a unit; `name` is empty when it is left out.

    `scale` and `zero_point` are names of its quantization parameters. A value without them has no `scale`; a zero point
    is None where it is not listed, "" where it is left out.
    """

    name: str
    scale: str | None = None
    zero_point: str | None = None


class Unit(msgspec.Struct, frozen=True, kw_only=True):
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
        if not self.group:
            return (self.target,)
        return (*self.dqs, self.target, *((self.clip,) if self.clip else ()), *self.qs)


def plain_units(graph: Graph) -> tuple[Unit, ...]:
    """Every node as a unit with all its inputs and outputs as they are, in topological order."""
    if "plain" not in graph.units:
        graph.units["plain"] = tuple(plain_unit(graph.nodes[index]) for index in graph.order)
    return graph.units["plain"]


def plain_unit(node: Node) -> Unit:
    """A node alone, with its inputs and outputs as they are."""
    return Unit(target=node, inputs=unit_values(node.inputs), outputs=unit_values(node.outputs))


def unit_values(names: Iterable[str]) -> tuple[UnitValue, ...]:
    """Values that are not quantized."""
    return tuple(map(UnitValue, names))


def equal_pair(graph: Graph, dq: Node, q: Node) -> bool:
    """Whether a DequantizeLinear and a QuantizeLinear have equal, constant, scalar parameters (C.2, "pair equal")."""
    for node in (dq, q):
        versions = (1,) if node.domain == "com.microsoft" else (10, 13, 19, 21, 23, 24, 25) if node.domain == "" else ()
        if node.since_version not in versions or len(node.inputs) != 3:
            return False
    for a, b in zip(dq.inputs[1:], q.inputs[1:], strict=True):
        first, second = scalar(graph, a), scalar(graph, b)
        if first is None or second is None or first.dtype != second.dtype or first.numbers() != second.numbers():
            return False
    return True


LIMITS = {"i8": (-128, 127), "u8": (0, 255), "i16": (-32768, 32767), "u16": (0, 65535)}


def redundant(graph: Graph, clip: Node, q: Node, abi: str) -> bool:
    """Whether quantizing cuts at least as much as the Relu or Clip before it, as an ABI computes it (C.2, 4)."""
    scale = graph.constant(q.inputs[1]) if len(q.inputs) > 1 else None
    if scale is None or scale.dtype != "f32" or scale.dims != ():
        return False
    if len(q.inputs) < 3 or not q.inputs[2]:
        kind, offset = {2: "u8", 3: "i8", 4: "u16", 5: "i16"}.get(q.attributes.get("output_dtype") or 2, ""), 0
    else:
        zero_point = graph.constant(q.inputs[2])
        if zero_point is None or zero_point.dims != ():
            return False
        kind, offset = zero_point.dtype, int(zero_point.numbers()[0]) if zero_point.dtype in LIMITS else 0
    if kind not in LIMITS:
        return False
    low, high = LIMITS[kind]
    if clip.op_type == "Relu":
        return offset == low
    bounds = clip_bounds(graph, clip)
    if bounds is None:
        return False
    import numpy as np

    # r(bound / scale) + zero point: in f32, then in i32
    with np.errstate(all="ignore"):
        quotients = [float(np.rint(np.float32(bound) / np.float32(scale.numbers()[0]))) for bound in bounds]
    lower, upper = (core_abis.wrapped_sum(core_abis.as_int32(quotient, abi), offset) for quotient in quotients)
    return lower <= low and upper >= high


FLOAT_MAX = 3.4028234663852886e38


def clip_bounds(graph: Graph, clip: Node) -> tuple[float, float] | None:
    """Minimum and maximum of a Clip, the limits of f32 where it has none; None when one is not constant."""
    if clip.since_version < 11:
        low, high = clip.attributes.get("min"), clip.attributes.get("max")
        return -FLOAT_MAX if low is None else low, FLOAT_MAX if high is None else high
    bounds = [-FLOAT_MAX, FLOAT_MAX]
    for position, name in enumerate(clip.inputs[1:3]):
        if name:
            initializer = graph.constant(name)
            if initializer is None or initializer.count < 1:
                return None
            bounds[position] = float(initializer.numbers()[0])
    return bounds[0], bounds[1]


def unique_dq(graph: Graph) -> Graph:
    """The graph with a DequantizeLinear for each of its readers, in bodies too; the same object without any to copy.

    The first reader keeps the original, unless an output of the graph or a body needs it (C.1).
    """
    bodies = {i: tuple(map(unique_dq, node.bodies)) for i, node in graph.nodes.items() if node.bodies}
    if any(
        new is not old for i, parts in bodies.items() for new, old in zip(parts, graph.nodes[i].bodies, strict=True)
    ):
        nodes = {
            i: msgspec.structs.replace(node, bodies=bodies[i]) if i in bodies else node
            for i, node in graph.nodes.items()
        }
        graph = graph.with_nodes(nodes, graph.values)
    nodes, values = dict(graph.nodes), dict(graph.values)
    names, fresh = {node.name for node in nodes.values()}, FreshNames()
    for original in [graph.nodes[index] for index in graph.order if graph.nodes[index].op_type == DEQUANTIZE]:
        edges = graph.out_edges[original.index]
        explicit = [edge for edge in edges if edge.input_slot < len(graph.nodes[edge.consumer].inputs)]
        keep_original = graph.gives_output(original) or len(explicit) < len(edges)
        for edge in explicit if keep_original else explicit[1:]:
            output = fresh.take(f"{original.outputs[0]}/duplicated", values)
            values[output] = graph.value(original.outputs[0])
            name = fresh.take(f"{original.name}/duplicated", names)
            names.add(name)
            index = max(nodes) + 1
            nodes[index] = msgspec.structs.replace(original, index=index, name=name, outputs=(output,))
            reader = nodes[edge.consumer]
            inputs = tuple(output if slot == edge.input_slot else read for slot, read in enumerate(reader.inputs))
            nodes[edge.consumer] = msgspec.structs.replace(reader, inputs=inputs)
    return graph.with_nodes(nodes, values) if len(nodes) > len(graph.nodes) else graph


def scalar(graph: Graph, name: str) -> Constant | None:
    """A constant of one element, without an axis or with one; None for every other value."""
    initializer = graph.constant(name)
    return initializer if initializer is not None and initializer.dims in ((), (1,)) else None


class Case(msgspec.Struct, frozen=True):
    """One node unit that is judged. Positions are positions among the unit's inputs and outputs (ep_rules C.3)."""

    graph: Graph
    unit: Unit
    settings: Settings

    @property
    def node(self) -> Node:
        """The target node of the unit."""
        return self.unit.target

    @property
    def label(self) -> str:
        """The target in words: its operator, and its name or first output."""
        return self.node.label

    @property
    def ver(self) -> int:
        """since_version of the target's schema."""
        return self.unit.target.since_version

    @property
    def listed(self) -> int:
        """How many inputs are listed, left-out ones between them included."""
        return len(self.unit.inputs)

    def exists(self, position: int) -> bool:
        """Whether the input at a position is listed and has a name."""
        return position < len(self.unit.inputs) and self.unit.inputs[position].name != ""

    def input(self, position: int) -> str:
        """The name of an input; empty when it is left out or not listed."""
        return self.unit.inputs[position].name if position < len(self.unit.inputs) else ""

    def value(self, position: int) -> Value:
        """Type and shape of an input."""
        return self.graph.value(self.input(position))

    def shape(self, position: int) -> Shape | None:
        """The shape of an input, None when its rank is unknown."""
        return self.value(position).shape

    def rank(self, position: int) -> int:
        """The rank of an input, -1 when unknown."""
        shape = self.shape(position)
        return -1 if shape is None else len(shape)

    def dtype(self, position: int) -> str | None:
        """The element type of an input by its short name."""
        return self.value(position).dtype

    def constant(self, position: int) -> Constant | None:
        """The constant behind an input, None when it is computed, overridable, left out or not listed."""
        name = self.input(position)
        return self.graph.constant(name) if name else None

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the target node (schema defaults are there already)."""
        return self.unit.target.attributes.get(name, default)
