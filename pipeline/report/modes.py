"""Cold starts, sustained runs and MLPerf's p90: from stored runs to rows, and their tables for every format."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from device_runner.result import Status
from pipeline import config as configs
from pipeline.campaign import record as campaign_record
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import cold as cold_starts
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import mlperf as mlperf_rule
from pipeline.campaign.statistics import sustained as sustained_load
from pipeline.core import groups as counting
from pipeline.report import wording
from pipeline.report.model import (
    CampaignReport,
    MeasuredRun,
    ModeRow,
    baseline_of_runs,
    ends_of,
    measured_runs,
)
from pipeline.report.wording import Listing

TIMES = 8
"""Moments of a sustained run that a table shows."""


@dataclass(frozen=True, slots=True)
class ModeRows:
    """The rows of modes; failures and what was skipped, which name the mode with the run."""

    rows: tuple[ModeRow, ...]
    failures: tuple[campaign_record.FailureRow, ...]
    skipped: tuple[campaign_record.Skipped, ...]


def mode_rows(
    planned: Sequence[campaign_record.RecordedRun],
    runs: Sequence[RunRecord],
    measure: configs.MeasureConfig,
    rule: run_compare.DecisionRule,
) -> ModeRows:
    """Rows of cold and sustained runs, and of the steady state by MLPerf's rule where the config asks for that."""
    rows: list[ModeRow] = []
    failures: list[campaign_record.FailureRow] = []
    skipped: list[campaign_record.Skipped] = []
    for mode in measure.modes:
        measured = measured_runs(planned, runs, mode)
        by_mlperf = mode is configs.MeasureMode.STEADY and measure.rule is configs.MeasureRule.MLPERF
        bases = []
        compared: dict[tuple[str, str, str], run_compare.Comparison | None] = {}
        ran = ((run, timed) for run, timed in measured if not run.same_as)
        groups = counting.grouped(((run.device, run.model), (run, timed)) for run, timed in ran)
        for (device, model), group in groups.items():
            base = baseline_of_runs(group)
            bases.append(base)
            if mode is configs.MeasureMode.COLD:
                # Cold starts with the baseline's of their device and model, in pairs by round
                cold_groups = [
                    campaign_record.rounds_of(timed, run.way, lambda result: (result.load_ns + result.first_run_ns,))
                    for run, timed in group
                ]
                summaries = run_compare.summarize(cold_groups, base.way if base else None, rule)
                for key, summary in summaries.items():
                    compared[device, model, key] = summary.comparison
            if mode is configs.MeasureMode.SUSTAINED:
                compared |= {(device, model, key): late for key, late in late_comparisons(group, rule).items()}
        for run, timed in measured:
            results = [record.result for record in timed if record.result.status is Status.OK]
            empty = ModeRow(**run.parts, baseline=run in bases)
            run_key = run.device, run.model, run.way
            if mode is configs.MeasureMode.COLD and (cold := cold_starts.cold_numbers(results, compared.get(run_key))):
                rows.append(msgspec.structs.replace(empty, cold=cold))
            if mode is configs.MeasureMode.SUSTAINED and (lasting := sustained_load.middle_of(results)):
                rows.append(msgspec.structs.replace(empty, sustained=lasting, late=compared.get(run_key)))
            if by_mlperf and (by_rule := mlperf_rule.mlperf_numbers(results)):
                rows.append(msgspec.structs.replace(empty, mlperf=by_rule))
        if mode is not configs.MeasureMode.STEADY:
            failed, left_out = ends_of(measured)
            failures += [msgspec.structs.replace(failure, run=f"{failure.run} ({mode})") for failure in failed]
            skipped += [msgspec.structs.replace(skipped, run=f"{skipped.run} ({mode})") for skipped in left_out]
    return ModeRows(tuple(rows), tuple(failures), tuple(skipped))


def late_comparisons(
    group: Sequence[MeasuredRun], rule: run_compare.DecisionRule
) -> dict[str, run_compare.Comparison | None]:
    """The ends of sustained runs of one model on one device, each compared with that of the fastest at the beginning.

    In pairs by round, of starts that were equal.
    """
    usual = sustained_load.usual_start(record.result for _, timed in group for record in timed)
    fresh: dict[str, int] = {}
    groups = []
    for run, timed in group:
        if numbers := sustained_load.middle_of(record.result for record in timed):
            fresh[run.way] = numbers.fresh_ns
            compared = [record for record in timed if sustained_load.began_as_usual(record.result, usual)]
            groups.append(campaign_record.rounds_of(compared, run.way, sustained_load.late_ns))
    first = min(fresh, key=lambda way: fresh[way], default=None)
    return {key: summary.comparison for key, summary in run_compare.summarize(groups, first, rule).items()}


def rails_listing(where: str, lasting: Sequence[tuple[ModeRow, sustained_load.SustainedNumbers]]) -> Listing | None:
    """Energy of sustained runs by power rail; None where no device tells."""
    cells = tuple(
        (mode_row.variant, mode_row.run, use.name, f"{wording.significant(use.watts)} W", f"{use.millijoules:.3g} mJ")
        for mode_row, numbers in lasting
        for use in numbers.rails[:RAILS_SHOWN]
    )
    return Listing(title=f"Energy by power rail: {where}", head=RAILS_HEAD, rows=cells) if cells else None


def order_listing(where: str, rows: Sequence[ModeRow]) -> Listing | None:
    """Where the fastest at the end is not the fastest at the beginning: both, and whether that is shown."""
    lasting = [(row, row.sustained) for row in rows if row.sustained]
    if not lasting:
        return None
    fresh = min(lasting, key=lambda pair: pair[1].fresh_ns)
    late = min(lasting, key=lambda pair: pair[1].late_ns)
    if fresh[0] is late[0]:
        return None
    verdict = _said(late[0])
    return Listing(
        title=f"Fastest at the beginning, and at the end: {where}",
        head=("When", "Variant", "Run", "Fresh", "Late", "At the end against the first"),
        rows=tuple(
            (
                when,
                fastest.variant,
                fastest.run,
                wording.duration(numbers.fresh_ns),
                wording.duration(numbers.late_ns),
                said,
            )
            for when, (fastest, numbers), said in (("beginning", fresh, wording.DASH), ("end", late, verdict))
        ),
    )


def _sustained_cells(row: ModeRow, numbers: sustained_load.SustainedNumbers) -> tuple[str, ...]:
    return (
        row.variant,
        row.run,
        f"{numbers.length_ns / 1e9:.0f}",
        str(numbers.inferences),
        wording.duration(numbers.fresh_ns),
        wording.duration(numbers.late_ns),
        wording.significant(numbers.ratio),
        str(numbers.runs),
        wording.ratio(row.late),
        wording.interval(row.late),
        _said(row),
        "not slower" if numbers.throttled_after_ns is None else f"{numbers.throttled_after_ns / 1e9:.1f} s",
        _change(numbers.fresh_mhz, numbers.late_mhz, "MHz"),
        _change(numbers.fresh_celsius, numbers.late_celsius, "°C"),
    )


def _said(row: ModeRow) -> str:
    """Whether the end of a row's sustained runs is faster than that of the fastest at the beginning."""
    if row.late is None:
        return wording.DASH
    return row.late.verdict.value if row.late.low is not None else "too few rounds"


def mode_listings(report: CampaignReport) -> tuple[Listing, ...]:
    """The tables of a report's modes, each by model and device."""
    listings = []
    for (model, device), rows in counting.grouped(((run.model, run.device), run) for run in report.modes).items():
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
                    row.variant,
                    row.run,
                    *map(wording.duration, times),
                    wording.ratio(compared),
                    wording.interval(compared),
                    verdict,
                    cache,
                )
            )
        if cold:
            listings.append(Listing(title=f"Cold start: {where}", head=COLD_HEAD, rows=tuple(cold)))
        if lasting_rows := [(row, row.sustained) for row in rows if row.sustained]:
            cells = tuple(_sustained_cells(row, numbers) for row, numbers in lasting_rows)
            listings.append(Listing(title=f"Sustained load: {where}", head=SUSTAINED_HEAD, rows=cells))
            if rails := rails_listing(where, lasting_rows):
                listings.append(rails)
            if order := order_listing(where, rows):
                listings.append(order)
            # Medians of the medians in even stretches of time, as far as the longest run went
            length = max(numbers.length_ns for _, numbers in lasting_rows) / TIMES
            lines = []
            for row, numbers in lasting_rows:
                stretches: list[list[int]] = [[] for _ in range(TIMES)]
                for start_ns, median_ns in numbers.curve:
                    stretches[min(int(start_ns / length), TIMES - 1)].append(median_ns)
                medians = (median(inside) if inside else None for inside in stretches)
                lines.append((row.variant, row.run, *map(wording.duration, medians)))
            head = ("Variant", "Run", *(f"{step * length / 1e9:.3g} s" for step in range(TIMES)))
            listings.append(Listing(title=f"Median latency over time: {where}", head=head, rows=tuple(lines)))
        if rows_by_rule := [(row, row.mlperf) for row in rows if row.mlperf]:
            listings.append(
                Listing(
                    title=f"MLPerf single stream (LoadGen's early stopping estimate): {where}",
                    head=MLPERF_HEAD,
                    rows=tuple(
                        (
                            row.variant,
                            row.run,
                            wording.duration(numbers.p90_ns),
                            wording.duration(numbers.lowest_ns),
                            wording.duration(numbers.highest_ns),
                            str(numbers.rounds),
                            str(numbers.queries),
                            f"{numbers.seconds:.0f}",
                            "yes" if numbers.valid else "no: fewer inferences or seconds than the rule wants",
                        )
                        for row, numbers in rows_by_rule
                    ),
                )
            )
    return tuple(listings)


COLD_HEAD = (
    "Variant",
    "Run",
    "Library",
    "Load",
    "First run",
    "Load + first run",
    "Ratio",
    "Interval",
    "Verdict",
    "Out of page cache",
)
SUSTAINED_HEAD = (
    "Variant",
    "Run",
    "Seconds",
    "Inferences",
    "Fresh",
    "Late",
    "Late / fresh",
    "Runs",
    "To the fastest fresh",
    "Interval",
    "Verdict",
    "Slower from",
    "Clock",
    "Temperature",
)
RAILS_HEAD = ("Variant", "Run", "Rail", "Power", "An inference")
RAILS_SHOWN = 5
"""The highest; all are in results.json."""

MLPERF_HEAD = (
    "Variant",
    "Run",
    "p90 (MLPerf)",
    "Lowest round",
    "Highest round",
    "Rounds",
    "Queries",
    "Seconds",
    "Valid",
)


def _change(before: float | None, after: float | None, unit: str) -> str:
    texts = [wording.DASH if value is None else f"{value:g}" for value in (before, after)]
    return wording.DASH if before is None and after is None else f"{texts[0]} to {texts[1]} {unit}"
