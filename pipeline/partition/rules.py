"""How a provider's rules are written and evaluated: one table of rows, each a list of checks in order.

A check is a function from a `Case` (one node unit in its graph, with the settings) to a `Refusal` or None; the first
refusal is the reason. Checks of a kind that many rows need are made by the functions of `checks`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.graph import Constant, Graph, Node, Shape, Value
from pipeline.partition.units import Unit, UnitValue


@dataclass(frozen=True, slots=True)
class Case:
    """One node unit that is judged. Positions are positions among the unit's inputs and outputs (ep_rules C.3)."""

    graph: Graph
    unit: Unit
    settings: Settings

    @property
    def node(self) -> Node:
        """The target node of the unit."""
        return self.unit.target

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

    def values(self) -> Iterable[UnitValue]:
        """The unit's inputs that exist."""
        return (value for value in self.unit.inputs if value.name)


Check = Callable[[Case], Refusal | None]
"""Refuses a case or lets it pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of a provider's table.

    `since` and `until` bound the since_version of the op's schema (`until` None: the provider's own limit).
    `level` is the least NNAPI feature level, `coreml` the least CoreML version, `formats` the CoreML formats,
    `release` the ONNX Runtime release that brought the row and `before` the first one without it. `types` checks data
    types before the version is looked at, `checks` come last, each in order. `quantized` are the checks of types that
    stand for `types` when the unit is a QDQ group; None refuses groups.
    """

    types: tuple[Check, ...] = ()
    checks: tuple[Check, ...] = ()
    quantized: tuple[Check, ...] | None = None
    since: int = 1
    until: int | None = None
    level: Callable[[Case], int] | int = 0
    formats: tuple[str, ...] = ()
    release: tuple[int, int] = (0, 0)
    before: tuple[int, int] | None = None

    def present(self, settings: Settings) -> bool:
        """Whether this ONNX Runtime release has the row."""
        return self.release <= settings.ort_release and (self.before is None or settings.ort_release < self.before)


Table = Mapping[str, Rule | tuple[Rule, ...]]
"""Rules by op type; where a release changed a row, its versions in a tuple, of which at most one is present."""


def rule_of(table: Table, op_type: str, settings: Settings) -> Rule | None:
    """The row for an op type in the settings' release, None when there is none."""
    found = table.get(op_type, ())
    rows = (found,) if isinstance(found, Rule) else found
    return next((row for row in rows if row.present(settings)), None)


def first_refusal(case: Case, checks: Iterable[Check]) -> Refusal | None:
    """Evaluate checks in order and give the first refusal."""
    for check in checks:
        refusal = check(case)
        if refusal is not None:
            return refusal
    return None
