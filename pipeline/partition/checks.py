"""Checks that rows of several providers share, and the words in which they refuse.

Each function here makes a check (`rules.Check`) for a position among a unit's inputs.
"""

from collections.abc import Callable, Collection

from pipeline.partition.answer import Refusal
from pipeline.partition.graph import Shape
from pipeline.partition.rules import Case, Check

Words = Callable[[Case], str]


def show_shape(shape: Shape | None) -> str:
    """A shape as a user reads it: [1, ?, 224], or that its rank is unknown."""
    if shape is None:
        return "of unknown rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def show(case: Case, position: int) -> str:
    """An input in words: its name, quoted and cut short."""
    name = case.input(position)
    return f"'{name[:80]}'" if name else f"number {position} (left out)"


def constant(position: int, what: str, *, code: str = "const") -> Check:
    """The input must be a constant initializer: neither computed, nor overridable, nor left out."""

    def check(case: Case) -> Refusal | None:
        if case.constant(position) is not None:
            return None
        name = case.input(position)
        if not name:
            return Refusal(
                code, f"{what} is left out, but listed", f"leave {what} out of the input list altogether, or give it"
            )
        if name in case.graph.overridable:
            return Refusal(
                code,
                f"{what} '{name}' is an initializer that is also a graph input, so callers could replace it",
                "take initializers out of the graph inputs (IR version 4 or later)",
            )
        return Refusal(code, f"{what} '{name}' is not a constant", f"make {what} an initializer")

    return check


def when(condition: Callable[[Case], bool], *checks: Check) -> Check:
    """Make the checks only where a condition holds."""

    def check(case: Case) -> Refusal | None:
        if not condition(case):
            return None
        return next((refusal for made in checks if (refusal := made(case)) is not None), None)

    return check


def listed(position: int) -> Callable[[Case], bool]:
    """Condition: the input is listed, even if left out by an empty name."""
    return lambda case: position < case.listed


def given(position: int) -> Callable[[Case], bool]:
    """Condition: the input is listed and has a name."""
    return lambda case: case.exists(position)


def since(version: int) -> Callable[[Case], bool]:
    """Condition: the op's schema is of this version or a later one."""
    return lambda case: case.ver >= version


def release(*minimum: int) -> Callable[[Case], bool]:
    """Condition: ONNX Runtime is of this release or a later one."""
    return lambda case: case.settings.ort_release >= minimum


def rank(position: int, low: int, high: int) -> Check:
    """The rank of an input lies between two bounds, both included."""
    span = str(low) if low == high else f"at most {high}" if low == 0 else f"{low} to {high}"

    def check(case: Case) -> Refusal | None:
        found = case.rank(position)
        if low <= found <= high:
            return None
        return Refusal(
            "rank",
            f"input {show(case, position)} has rank {found} {show_shape(case.shape(position))}, allowed is {span}",
            "reshape the value to an allowed rank around the node",
        )

    return check


def dtype(position: int, allowed: Collection[str]) -> Check:
    """The element type of an input is one of those given."""

    def check(case: Case) -> Refusal | None:
        found = case.dtype(position)
        if found in allowed:
            return None
        return Refusal(
            "type",
            f"input {show(case, position)} is of type {found or 'unknown'}, taken are {', '.join(sorted(allowed))}",
            f"compute this part in {' or '.join(sorted(allowed))}",
        )

    return check


def outputs(count: int) -> Check:
    """The node lists exactly so many outputs."""

    def check(case: Case) -> Refusal | None:
        found = len(case.node.outputs)
        if found == count:
            return None
        return Refusal("outputs", f"the node lists {found} outputs, taken are {count}", "drop the outputs nobody needs")

    return check


def attribute(name: str, allowed: Collection[object], *, default: object = None, code: str = "attr") -> Check:
    """An attribute has one of the allowed values; `default` stands for an absent one."""

    def check(case: Case) -> Refusal | None:
        found = case.attribute(name, default)
        if found in allowed:
            return None
        words = " or ".join(str(value) for value in allowed)
        return Refusal(code, f"attribute {name} is {found}, taken is {words}", f"export the node with {name} = {words}")

    return check


def shrinks_evenly(size: int, scale: float) -> bool:
    """Whether a size shrinks by a whole number that divides it (ep_rules E.3 `factor`); a size of 0 always does."""
    if not 0 < scale < 1:
        return False
    divisor = round(1 / scale)
    return abs(1 / scale - divisor) < 1e-4 and size % divisor == 0
