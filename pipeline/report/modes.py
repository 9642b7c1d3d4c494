"""Cold starts, sustained runs and MLPerf's p90: from stored runs to rows, and their tables for every format."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from device_runner.profile import CPU
from device_runner.result import Status
from pipeline.campaign.record import FailureRow, RecordedRun, RunRecord, Skipped, rounds_of
from pipeline.campaign.statistics import compare
from pipeline.config import MeasureConfig, MeasureMode, MeasureRule
from pipeline.core.groups import grouped
from pipeline.report import wording
from pipeline.report.model import (
    CampaignReport,
    ModeRow,
    RequiredOperator,
    baseline_of_runs,
    ends_of,
    measured_runs,
)
from pipeline.report.profiles import Profiled
from pipeline.report.wording import Listing
from pipeline.required_ops import RequiredOps
from pipeline.required_ops.value import CUSTOM

TIMES = 8
"""Moments of a sustained run that a table shows."""


def mode_rows(
    planned: Sequence[RecordedRun],
    runs: Sequence[RunRecord],
    measure: MeasureConfig,
    rule: compare.DecisionRule,
) -> tuple[tuple[ModeRow, ...], tuple[FailureRow, ...], tuple[Skipped, ...]]:
    """Rows of cold and sustained runs, and of the steady state by MLPerf's rule where the config asks for that.

    Beside them the failures and what was skipped, which name the mode with the run.
    """
    rows: list[ModeRow] = []
    failures: list[FailureRow] = []
    skipped: list[Skipped] = []
    for mode in measure.modes:
        measured = measured_runs(planned, runs, mode)
        by_mlperf = mode is MeasureMode.STEADY and measure.rule is MeasureRule.MLPERF
        bases = []
        compared: dict[tuple[str, str, str], compare.Comparison | None] = {}
        ran = ((row, timed) for row, timed in measured if not row.same_as)
        groups = grouped(((row.device, row.model), (row, timed)) for row, timed in ran)
        for (device, model), group in groups.items():
            base = baseline_of_runs(group)
            bases.append(base)
            if mode is MeasureMode.COLD:
                # Cold starts with the baseline's of their device and model, in pairs by round
                cold_groups = [
                    rounds_of(timed, row.way, lambda result: (result.load_ns + result.first_run_ns,))
                    for row, timed in group
                ]
                for key, (_, comparison, _) in compare.summarize(cold_groups, base.way if base else None, rule).items():
                    compared[device, model, key] = comparison
        for row, timed in measured:
            results = [record.result for record in timed if record.result.status is Status.OK]
            empty = ModeRow(
                device=row.device, model=row.model, variant=row.variant, run=row.run, baseline=row in bases
            )  # fmt: skip
            place = row.device, row.model, row.way
            if mode is MeasureMode.COLD and (cold := compare.cold_numbers(results, compared.get(place))):
                rows.append(msgspec.structs.replace(empty, cold=cold))
            if mode is MeasureMode.SUSTAINED:
                lasting = (compare.sustained_numbers(result.sustained) for result in results if result.sustained)
                rows += [msgspec.structs.replace(empty, sustained=numbers) for numbers in lasting if numbers]
            if by_mlperf and (by_rule := compare.mlperf_numbers(results)):
                rows.append(msgspec.structs.replace(empty, mlperf=by_rule))
        if mode is not MeasureMode.STEADY:
            failed, left_out = ends_of(measured)
            failures += [msgspec.structs.replace(row, run=f"{row.run} ({mode})") for row in failed]
            skipped += [msgspec.structs.replace(row, run=f"{row.run} ({mode})") for row in left_out]
    return tuple(rows), tuple(failures), tuple(skipped)


def mode_listings(report: CampaignReport) -> tuple[Listing, ...]:
    """The tables of a report's modes, each by model and device."""
    listings = []
    for (model, device), rows in grouped(((row.model, row.device), row) for row in report.modes).items():
        where = f"{model} on {device}"
        cold = []
        for row, starts in [(row, row.cold) for row in rows if row.cold]:
            compared = starts.comparison
            verdict = "baseline" if row.baseline else compared.verdict.value if compared else wording.DASH
            times = (starts.open_ns, starts.load_ns, starts.first_run_ns, starts.total_ns)
            # In how many rounds the files were out of memory, and why not in the others
            cache = f"model and library in all {starts.rounds} rounds"
            if not starts.cold_rounds == starts.library_rounds == starts.rounds:
                cache = f"model in {starts.cold_rounds}, library in {starts.library_rounds} of {starts.rounds} rounds"
                cache += f": {starts.why}" if starts.why else ""
            cold.append(
                (
                    row.variant, row.run, *map(wording.duration, times), wording.ratio(compared),
                    wording.interval(compared), verdict, cache,
                )
            )  # fmt: skip
        if cold:
            listings.append(Listing(title=f"Cold start: {where}", head=COLD_HEAD, rows=tuple(cold)))
        if lasting := [(row, row.sustained) for row in rows if row.sustained]:
            cells = tuple(
                (
                    row.variant,
                    row.run,
                    f"{numbers.length_ns / 1e9:.0f}",
                    str(numbers.inferences),
                    wording.duration(numbers.fresh_ns),
                    wording.duration(numbers.late_ns),
                    wording.significant(numbers.ratio),
                    "not slower" if numbers.throttled_after_ns is None else f"{numbers.throttled_after_ns / 1e9:.1f} s",
                    _change(numbers.fresh_mhz, numbers.late_mhz, "MHz"),
                    _change(numbers.fresh_celsius, numbers.late_celsius, "°C"),
                )
                for row, numbers in lasting
            )
            listings.append(Listing(title=f"Sustained load: {where}", head=SUSTAINED_HEAD, rows=cells))
            # Medians of the medians in even stretches of time, as far as the longest run went
            length = max(numbers.length_ns for _, numbers in lasting) / TIMES
            lines = []
            for row, numbers in lasting:
                stretches: list[list[int]] = [[] for _ in range(TIMES)]
                for start_ns, median_ns in numbers.curve:
                    stretches[min(int(start_ns / length), TIMES - 1)].append(median_ns)
                medians = (median(inside) if inside else None for inside in stretches)
                lines.append((row.variant, row.run, *map(wording.duration, medians)))
            head = ("Variant", "Run", *(f"{step * length / 1e9:.3g} s" for step in range(TIMES)))
            listings.append(Listing(title=f"Median latency over time: {where}", head=head, rows=tuple(lines)))
        if by_rule := [(row, row.mlperf) for row in rows if row.mlperf]:
            listings.append(
                Listing(
                    title=f"MLPerf single stream (LoadGen's early stopping estimate): {where}",
                    head=MLPERF_HEAD,
                    rows=tuple(
                        (
                            row.variant, row.run, wording.duration(numbers.p90_ns), wording.duration(numbers.lowest_ns),
                            wording.duration(numbers.highest_ns), str(numbers.rounds), str(numbers.queries),
                            f"{numbers.seconds:.0f}",
                            "yes" if numbers.valid else "no: fewer inferences or seconds than the rule wants",
                        )
                        for row, numbers in by_rule
                    ),
                )
            )  # fmt: skip
    return tuple(listings)


COLD_HEAD = (
    "Variant", "Run", "Library", "Load", "First run", "Load + first run", "Ratio", "Interval", "Verdict",
    "Out of page cache",
)  # fmt: skip
SUSTAINED_HEAD = (
    "Variant", "Run", "Seconds", "Inferences", "Fresh", "Late", "Late / fresh", "Slower from", "Clock", "Temperature",
)  # fmt: skip
MLPERF_HEAD = (
    "Variant", "Run", "p90 (MLPerf)", "Lowest round", "Highest round", "Rounds", "Queries", "Seconds", "Valid",
)  # fmt: skip


def _change(before: float | None, after: float | None, unit: str) -> str:
    texts = [wording.DASH if value is None else f"{value:g}" for value in (before, after)]
    return wording.DASH if before is None and after is None else f"{texts[0]} to {texts[1]} {unit}"


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
    groups = grouped(((row.model or row.name, row.device), row) for row in profiles if row.profile)
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
    others = sorted({provider for _, provider in slowest} - {CPU})
    styles = {CPU: "on-cpu"} | {name: f"g{place % 10}" for place, name in enumerate(others)}
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

    ordered = sorted(needing.items(), key=lambda item: (len(item[1]), item[0]))
    return Listing(
        title="Operators of a reduced build",
        head=(
            "Operator", *(("Opsets", "Types") if operators else ()), "Needed by (nodes)",
            *(("Adds to a library",) if sized else ()),
        ),
        rows=tuple(tuple(cells(name, nodes)) for name, nodes in ordered),
    )  # fmt: skip


def required_operators(config: RequiredOps, added: Mapping[str, Mapping[str, int]]) -> tuple[RequiredOperator, ...]:
    """The operators of a config by name; `added` is what single ones added to libraries, in bytes by ABI."""

    def typed(kind: str, place: int, names: frozenset[str]) -> str:
        listed = ", ".join(sorted(names))
        return listed if kind == CUSTOM else f"{kind.removesuffix('s')} {place}: {listed}"

    return tuple(
        RequiredOperator(
            name=f"{domain}:{op}",
            opsets=tuple(config.opsets(domain, op)),
            types=tuple(typed(*slot, names) for slot, names in sorted(config.types.get((domain, op), {}).items())),
            adds_bytes=dict(added.get(f"{domain}:{op}", {})),
        )
        for domain, op in sorted(config.operator_keys())
    )
