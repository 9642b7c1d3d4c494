"""Operators: where runs spend their time, and which ones a reduced build needs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from device_runner import profile as ort_profile
from pipeline import required_ops
from pipeline.core import groups as counting
from pipeline.report import wording
from pipeline.report.model import CampaignReport, RequiredOperator
from pipeline.report.profiles import Profiled
from pipeline.report.wording import Listing
from pipeline.required_ops import value as required_ops_value

MOST_PROFILES, MOST_OPERATORS = 8, 15
"""Profiles beside each other in one table, and operators below each other: results.json has all."""

BAR = 72
"""Width of the longest bar of a table, in pixels."""


def time_tables(profiles: Sequence[Profiled]) -> tuple[dict[str, Any], ...]:
    """One table for each model and device that has profiles, in their order.

    Operators are slowest first, with a column for each profile, the fastest profile first. A row has operator,
    provider, colour of that provider, cells, and the last profile less the first; a cell the time in one profile, and
    the width of its bar in pixels: 0 where the operator does not run.
    """
    groups = counting.grouped(
        ((profile.model or profile.name, profile.device), profile) for profile in profiles if profile.profile
    )
    return tuple(_table(model, device, group) for (model, device), group in groups.items())


def _table(model: str, device: str, group: Sequence[Profiled]) -> dict[str, Any]:
    def times_of(profiled: Profiled) -> dict[tuple[str, str], float]:
        rows = profiled.profile.operators if profiled.profile else ()
        return {(row.operator, row.provider): row.nanoseconds for row in rows}

    ordered = sorted(group, key=lambda profiled: sum(times_of(profiled).values()))
    # the slowest stays, as what the others are compared with
    shown = ordered if len(ordered) <= MOST_PROFILES else [*ordered[: MOST_PROFILES - 1], ordered[-1]]
    columns = [times_of(profiled) for profiled in shown]
    slowest = {key: max(times.get(key, 0.0) for times in columns) for column in columns for key in column}
    keys = sorted(slowest, key=lambda key: -slowest[key])[:MOST_OPERATORS]
    others = sorted({provider for _, provider in slowest} - {ort_profile.CPU})
    styles = {ort_profile.CPU: "on-cpu"} | {name: f"g{index % 10}" for index, name in enumerate(others)}
    longest = max(slowest.values(), default=0.0) or 1.0

    def cell(times: Mapping[tuple[str, str], float], key: tuple[str, str]) -> tuple[str, float]:
        if key not in times:
            return wording.DASH, 0.0
        return wording.duration(times[key]), round(max(1.0, times[key] / longest * BAR), 1)

    rest = f", {len(shown)} of {len(ordered)} profiles" if len(shown) < len(ordered) else ""
    return {
        "title": f"Operators of {model}{' on ' if device else ''}{device}{rest}",
        "heads": [f"{profiled.variant or profiled.name} {profiled.run}" for profiled in shown],
        "rows": [
            (
                key[0],
                key[1].removesuffix("ExecutionProvider").lower(),
                styles[key[1]],
                tuple(cell(times, key) for times in columns),
                wording.signed_duration(columns[-1].get(key, 0.0) - columns[0].get(key, 0.0)),
            )
            for key in keys
        ],
    }


def needed_operators(report: CampaignReport) -> Listing:
    """Operators that a reduced build must contain, with the artifacts that ship and need them; the fewest first.

    What one artifact alone needs is what leaving it out would save. Opsets, types and sizes have columns where they
    are known: with a bundle, and with builds on this computer.
    """
    ships = {(choice.model, choice.variant) for choice in report.choices}
    operators = {operator.name: operator for operator in report.required}
    needing: dict[str, dict[str, int]] = {name: {} for name in operators}
    for artifact in report.artifacts:
        if (artifact.model, artifact.variant.name) in ships:
            for name, count in artifact.operators.items():
                needing.setdefault(name, {})[f"{artifact.model}/{artifact.variant.name}"] = count
    sized = any(operator.adds_bytes for operator in operators.values())

    def cells(name: str, nodes: Mapping[str, int]) -> Iterator[str]:
        operator = operators.get(name)
        yield name
        if operators:
            yield ", ".join(map(str, operator.opsets)) if operator else wording.DASH
            yield "; ".join(operator.types) or "all" if operator else wording.DASH
        listed = ", ".join(f"{artifact} ({count})" for artifact, count in nodes.items())
        yield listed or "subgraphs, or what the device's optimizer adds"
        if sized:
            sizes = operator.adds_bytes.items() if operator else ()
            yield ", ".join(f"{wording.size(size)} ({abi})" for abi, size in sizes) or wording.DASH

    ordered = sorted(needing.items(), key=lambda pair: (len(pair[1]), pair[0]))
    return Listing(
        title="Operators of a reduced build",
        head=(
            "Operator",
            *(("Opsets", "Types") if operators else ()),
            "Needed by (nodes)",
            *(("Adds to a library",) if sized else ()),
        ),
        rows=tuple(tuple(cells(name, nodes)) for name, nodes in ordered),
    )


def required_operators(
    config: required_ops.RequiredOps, added: Mapping[str, Mapping[str, int]]
) -> tuple[RequiredOperator, ...]:
    """The operators of a config by name; `added` is what single ones added to libraries, in bytes by ABI."""

    def typed(kind: str, position: int, names: frozenset[str]) -> str:
        listed = ", ".join(sorted(names))
        return listed if kind == required_ops_value.CUSTOM else f"{kind.removesuffix('s')} {position}: {listed}"

    return tuple(
        RequiredOperator(
            name=f"{domain}:{op}",
            opsets=tuple(config.opsets(domain, op)),
            types=tuple(typed(*slot, names) for slot, names in sorted(config.types.get((domain, op), {}).items())),
            adds_bytes=dict(added.get(f"{domain}:{op}", {})),
        )
        for domain, op in sorted(config.operator_keys())
    )
