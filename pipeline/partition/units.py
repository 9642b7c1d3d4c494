"""QDQ node units (ep_rules C): which DequantizeLinear, target and QuantizeLinear nodes count as one operation.

NNAPI and XNNPACK judge units; for CoreML every node is a unit of its own (`plain_units`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.partition.answer import Refusal
from pipeline.partition.graph import Graph, Node
from pipeline.partition.selector_checks import SelectorGroup
from pipeline.partition.selectors import crashes, select

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
        found: dict[int, Unit] = {}
        for unit in sorted(self.units, key=lambda unit: not unit.group):
            for node in unit.nodes:
                found.setdefault(node.index, unit)
        return found


def plain_units(graph: Graph) -> Units:
    """Every node as a unit with all its inputs and outputs as they are."""
    return Units(units=tuple(plain_unit(graph.nodes[index]) for index in graph.order))


def node_units(graph: Graph, release: tuple[int, int]) -> Units:
    """QDQ groups and single nodes, each node in one unit (C.2, C.3)."""
    groups: dict[int, Unit] = {}
    taken: set[int] = set()
    crash = None
    for index in graph.order:
        node = graph.nodes[index]
        crash = crash or crashes(graph, node, release)
        group = select(graph, node, release)
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
