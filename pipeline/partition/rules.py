"""How a provider's rules are written, and the checks that rows share.

A check is a function from a `Case` (one node unit in its graph, with the settings) to a `Refusal` or None; the first
refusal is the reason. Checks that many rows need are made by factories: `constant(1, "weight")`, `rank(0, 4, 4)`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.types import Shape
from pipeline.partition.units import Case

Check = Callable[[Case], Refusal | None]
"""Refuses a case or lets it pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of a provider's table.

    `since` is the least since_version of the op's schema, `level` the least NNAPI feature level, `formats` the CoreML
    formats, `release` the ONNX Runtime release that brought the row and `before` the first one without it. `types`
    checks data types before the version is looked at, `checks` come last, each in order. `quantized` are the checks of
    types that stand for `types` when the unit is a QDQ group; None refuses groups.
    """

    types: tuple[Check, ...] = ()
    checks: tuple[Check, ...] = ()
    quantized: tuple[Check, ...] | None = None
    since: int = 1
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
    entry = table.get(op_type, ())
    for rule in (entry,) if isinstance(entry, Rule) else entry:
        if rule.present(settings):
            return rule
    return None


def first_refusal(case: Case, checks: Iterable[Check]) -> Refusal | None:
    """Evaluate checks in order and give the first refusal."""
    for check in checks:
        refusal = check(case)
        if refusal is not None:
            return refusal
    return None


def version_refusal(case: Case, provider: str, since: int, highest: int) -> Refusal | None:
    """The schema of the target is of a version that the provider does not take."""
    if since <= case.ver <= highest:
        return None
    release = ".".join(str(part) for part in case.settings.ort_release)
    return Refusal(
        "opset",
        f"{case.node.op_type} of opset {case.ver}; {provider} in ONNX Runtime {release} needs {since} to {highest}",
        "convert the model to another opset",
    )


def external_refusal(case: Case, names: Iterable[str]) -> Refusal | None:
    """Up to release 1.22 initializers in files of their own are refused (D.2.6)."""
    if case.settings.ort_release >= (1, 23):
        return None
    for name in names:
        initializer = case.graph.initializers.get(name)
        if initializer is not None and initializer.external:
            return Refusal("external", f"initializer '{name}' lies in a file of its own", "save the model as one file")
    return None


def show_shape(shape: Shape | None) -> str:
    """A shape as a user reads it: [1, ?, 224], or that its rank is unknown."""
    if shape is None:
        return "of unknown rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def show(case: Case, position: int) -> str:
    """An input in words: its name, quoted and cut short."""
    name = case.input(position)
    return f"'{name[:80]}'" if name else f"number {position} (left out)"


def constant(position: int, what: str) -> Check:
    """The input must be a constant initializer: neither computed, nor overridable, nor left out."""

    def check(case: Case) -> Refusal | None:
        if case.constant(position) is not None:
            return None
        name = case.input(position)
        if not name:
            return Refusal(
                "const", f"{what} is left out, but listed", f"leave {what} out of the input list altogether, or give it"
            )
        if name in case.graph.overridable:
            return Refusal(
                "const",
                f"{what} '{name}' is an initializer that is also a graph input, so callers could replace it",
                "take initializers out of the graph inputs (IR version 4 or later)",
            )
        return Refusal("const", f"{what} '{name}' is not a constant", f"make {what} an initializer")

    return check


def when(condition: Callable[[Case], bool], *checks: Check) -> Check:
    """Make the checks only where a condition holds."""

    def check(case: Case) -> Refusal | None:
        return first_refusal(case, checks) if condition(case) else None

    return check


def refuse(
    condition: Callable[[Case], bool], code: str, text: Callable[[Case], str], remedy: str, *, fatal: bool = False
) -> Check:
    """Refuse where a condition holds."""
    return lambda case: Refusal(code, text(case), remedy, fatal) if condition(case) else None


no_axes = refuse(
    lambda case: bool(case.attribute("axes")),
    "attr",
    lambda _: "attribute axes is not taken",
    "give scales or sizes for all four dimensions",
)
"""A Resize names no axes."""


def listed(position: int) -> Callable[[Case], bool]:
    """Condition: the input is listed, even if left out by an empty name."""
    return lambda case: position < case.listed


def given(position: int) -> Callable[[Case], bool]:
    """Condition: the input is listed and has a name."""
    return lambda case: case.exists(position)


def since(version: int) -> Callable[[Case], bool]:
    """Condition: the op's schema is of this version or a later one."""
    return lambda case: case.ver >= version


def rank(position: int, low: int, high: int) -> Check:
    """The rank of an input lies between two bounds, both included."""
    span = str(low) if low == high else f"at most {high}" if low == 0 else f"{low} to {high}"

    def check(case: Case) -> Refusal | None:
        input_rank = case.rank(position)
        if low <= input_rank <= high:
            return None
        return Refusal(
            "rank",
            f"input {show(case, position)} has rank {input_rank} {show_shape(case.shape(position))}, allowed is {span}",
            "reshape the value to an allowed rank around the node",
        )

    return check


def dtype(position: int, allowed: Collection[str]) -> Check:
    """The element type of an input is one of those given."""

    def check(case: Case) -> Refusal | None:
        element = case.dtype(position)
        if element in allowed:
            return None
        return Refusal(
            "type",
            f"input {show(case, position)} is of type {element or 'unknown'}, taken are {', '.join(sorted(allowed))}",
            f"compute this part in {' or '.join(sorted(allowed))}",
        )

    return check


def outputs(count: int) -> Check:
    """The node lists exactly so many outputs."""

    def check(case: Case) -> Refusal | None:
        listed_outputs = len(case.node.outputs)
        if listed_outputs == count:
            return None
        return Refusal(
            "outputs", f"the node lists {listed_outputs} outputs, taken are {count}", "drop the outputs nobody needs"
        )

    return check


def attribute(name: str, allowed: Collection[object], *, default: object = None, code: str = "attr") -> Check:
    """An attribute has one of the allowed values; `default` stands for an absent one."""

    def check(case: Case) -> Refusal | None:
        actual = case.attribute(name, default)
        if actual in allowed:
            return None
        words = " or ".join(str(value) for value in allowed)
        return Refusal(
            code, f"attribute {name} is {actual}, taken is {words}", f"export the node with {name} = {words}"
        )

    return check


def shrinks_evenly(size: int, scale: float) -> bool:
    """Whether a size shrinks by a whole number that divides it (ep_rules E.3 `factor`); a size of 0 always does."""
    if not 0 < scale < 1:
        return False
    divisor = round(1 / scale)
    return abs(1 / scale - divisor) < 1e-4 and size % divisor == 0
