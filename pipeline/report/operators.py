"""Operators for the page: their time in the profiles of a model, and which artifacts that ship need them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from device_runner.profile import CPU
from device_runner.result import OperatorTime
from pipeline.report import wording
from pipeline.report.model import CampaignReport, RequiredOperator
from pipeline.report.parts import Listing
from pipeline.report.profile_view import Profiled
from pipeline.required_ops import RequiredOps
from pipeline.required_ops.value import CUSTOM

Column = Callable[[RequiredOperator | None, Mapping[str, int]], str]
"""Text of an operator's cell: what is known of it, and the nodes that need it, by artifact."""

MOST_PROFILES, MOST_OPERATORS = 8, 15
"""Profiles beside each other in one table, and operators below each other: results.json has all."""

BAR = 72
"""Width of the longest bar of a table, in pixels."""

Key = tuple[str, str]
"""Operator and provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCell:
    """The time of an operator in one profile, and the width of its bar in pixels; 0 where it does not run."""

    text: str
    width: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """An operator on a provider; `style` is the colour of that provider, `change` the last profile less the first."""

    operator: str
    provider: str
    style: str
    cells: tuple[TimeCell, ...]
    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTable:
    """The operators of one model on one device, slowest first, a column for each profile, the fastest profile first."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[TimeRow, ...]

    @property
    def compared(self) -> bool:
        """Whether there are profiles to compare."""
        return len(self.heads) > 1


def time_tables(profiles: Sequence[Profiled]) -> tuple[TimeTable, ...]:
    """One table for each model and device that has profiles, in their order."""
    groups: dict[Key, list[Profiled]] = {}
    for one in profiles:
        if one.profile:
            groups.setdefault((one.model or one.name, one.device), []).append(one)
    return tuple(_table(model, device, group) for (model, device), group in groups.items())


def _table(model: str, device: str, group: Sequence[Profiled]) -> TimeTable:
    ordered = sorted(group, key=lambda one: sum(row.nanoseconds for row in _rows(one)))
    # the slowest stays, as what the others are compared with
    shown = ordered if len(ordered) <= MOST_PROFILES else [*ordered[: MOST_PROFILES - 1], ordered[-1]]
    times = [{(row.operator, row.provider): row.nanoseconds for row in _rows(one)} for one in shown]
    slowest = {key: max(found.get(key, 0.0) for found in times) for found in times for key in found}
    keys = sorted(slowest, key=lambda key: -slowest[key])[:MOST_OPERATORS]
    others = sorted({key[1] for key in slowest} - {CPU})
    styles = {CPU: "on-cpu"} | {name: f"g{place % 10}" for place, name in enumerate(others)}
    longest = max(slowest.values(), default=0.0) or 1.0
    rest = f", {len(shown)} of {len(ordered)} profiles" if len(shown) < len(ordered) else ""
    return TimeTable(
        title=f"Operators of {model}{' on ' if device else ''}{device}{rest}",
        heads=tuple(f"{one.variant or one.name} {one.run}" for one in shown),
        rows=tuple(
            TimeRow(
                operator=key[0],
                provider=key[1].removesuffix("ExecutionProvider").lower(),
                style=styles[key[1]],
                cells=tuple(_cell(found, key, longest) for found in times),
                change=wording.signed_duration(times[-1].get(key, 0.0) - times[0].get(key, 0.0)),
            )
            for key in keys
        ),
    )


def _rows(one: Profiled) -> Sequence[OperatorTime]:
    return one.profile.operators if one.profile else ()


def _cell(times: Mapping[Key, float], key: Key, longest: float) -> TimeCell:
    if key not in times:
        return TimeCell(text=wording.DASH)
    return TimeCell(text=wording.duration(times[key]), width=round(max(1.0, times[key] / longest * BAR), 1))


def needed_operators(report: CampaignReport) -> Listing:
    """Operators that a reduced build must contain, with the artifacts that ship and need them; the fewest first.

    What one artifact alone needs is what leaving it out would save. Opsets, types and sizes have columns where they
    are known: with a bundle, and with builds on this computer.
    """
    ships = {(one.model, one.variant) for one in report.choices}
    needing: dict[str, dict[str, int]] = {one.name: {} for one in report.required}
    for artifact in report.artifacts:
        if (artifact.model, artifact.variant.name) in ships:
            for operator, count in artifact.operators.items():
                needing.setdefault(operator, {})[f"{artifact.model}/{artifact.variant.name}"] = count
    ordered = sorted(needing.items(), key=lambda item: (len(item[1]), item[0]))
    known = {one.name: one for one in report.required}
    columns: list[tuple[str, Column]] = [("Needed by (nodes)", _needed_by)]
    if known:
        columns[:0] = [("Opsets", _opsets), ("Types", _types)]
    if any(one.adds_bytes for one in known.values()):
        columns.append(("Adds to a library", _added))
    rows = ((name, *(text(known.get(name), found) for _, text in columns)) for name, found in ordered)
    head = ("Operator", *(name for name, _ in columns))
    return Listing(title="Operators of a reduced build", head=head, rows=tuple(rows))


def required_operators(config: RequiredOps, added: Mapping[str, Mapping[str, int]]) -> tuple[RequiredOperator, ...]:
    """The operators of a config by name; `added` is what single ones added to libraries, in bytes by ABI."""
    return tuple(
        RequiredOperator(
            name=f"{domain}:{op}",
            opsets=tuple(config.opsets(domain, op)),
            types=tuple(_typed(*slot, names) for slot, names in sorted(config.types.get((domain, op), {}).items())),
            adds_bytes=dict(added.get(f"{domain}:{op}", {})),
        )
        for domain, op in sorted(config.operator_keys())
    )


def _typed(kind: str, place: int, names: frozenset[str]) -> str:
    listed = ", ".join(sorted(names))
    return listed if kind == CUSTOM else f"{kind.removesuffix('s')} {place}: {listed}"


def _needed_by(_one: RequiredOperator | None, found: Mapping[str, int]) -> str:
    listed = ", ".join(f"{artifact} ({count})" for artifact, count in found.items())
    return listed or "subgraphs, or what the device's optimizer adds"


def _opsets(one: RequiredOperator | None, _found: Mapping[str, int]) -> str:
    return ", ".join(map(str, one.opsets)) if one else wording.DASH


def _types(one: RequiredOperator | None, _found: Mapping[str, int]) -> str:
    return "; ".join(one.types) or "all" if one else wording.DASH


def _added(one: RequiredOperator | None, _found: Mapping[str, int]) -> str:
    sizes = one.adds_bytes.items() if one else ()
    return ", ".join(f"{wording.size(size)} ({abi})" for abi, size in sizes) or wording.DASH
