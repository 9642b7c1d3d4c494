"""From stored runs to the rows, failures and skipped runs of a report. Pure functions."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from device_runner.result import Failure, FailureKind, RunResult, Status
from pipeline.campaign.provenance import facts_of_run
from pipeline.campaign.record import FRESH_FROM, FailureRow, RecordedRun, RunRecord, Skipped, rounds_of
from pipeline.campaign.statistics import (
    DEFAULT_RULE,
    Comparison,
    DecisionRule,
    Round,
    RunGroup,
    Summary,
    compare,
    summarize,
)
from pipeline.check.compare import OutputCheck, worst_sqnr
from pipeline.config import MeasureMode
from pipeline.core.errors import Finding, warning
from pipeline.report.model import Row, Shape

SHAPE_POINTS = 20
NEVER_RUN = "no round of it was run: the campaign ended before"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """All runs of one artifact with one set of run options on one device; `run` names the options.

    `same_as` is VARIANT/RUN of the one that was run in its place, with the same bytes and options; it has no runs then.
    """

    device: str
    model: str
    variant: str
    run: str
    runs: Sequence[RunRecord]
    size_bytes: int = 0
    baseline: bool = False
    same_as: str = ""

    @property
    def status(self) -> Status:
        """That of the best round; skipped where there is none."""
        found = {record.result.status for record in self.runs}
        return next((status for status in (Status.OK, Status.FAILED) if status in found), Status.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What runs come to. What was skipped in every round has no row."""

    rows: tuple[Row, ...]
    failures: tuple[FailureRow, ...]
    skipped: tuple[Skipped, ...]


def own_runs(
    planned: Sequence[RecordedRun], runs: Sequence[RunRecord], left_out: list[Finding]
) -> tuple[RunRecord, ...]:
    """Without those of a planned run of another device: whoever measures one device says nothing of the others."""
    devices = {one.id: one.device for one in planned}
    strange = [run for run in runs if devices.get(run.planned, run.result.device) != run.result.device]
    left_out += [
        warning(
            f"round {run.round} of the run {run.spec.id} was left out: it was planned for {devices[run.planned]}",
            " at the host ".join(filter(None, (run.result.device, run.result.host))),
        )
        for run in strange
    ]
    return tuple(run for run in runs if devices.get(run.planned, run.result.device) == run.result.device)


def measured_rows(
    planned: Sequence[RecordedRun],
    runs: Iterable[RunRecord],
    size_bytes: Mapping[tuple[str, str], int],
    mode: MeasureMode = MeasureMode.STEADY,
) -> list[MeasuredRow]:
    """Planned runs of a mode with their timed runs, in the order of the plan; sizes are by model and variant."""
    timed: dict[str, list[RunRecord]] = {}
    for record in runs:
        if not record.spec.profile and record.round < FRESH_FROM:
            timed.setdefault(record.planned, []).append(record)
    keys = {one.id: f"{one.variant}/{one.run}" for one in planned}
    return [
        MeasuredRow(
            device=one.device,
            model=one.model,
            variant=one.variant,
            run=one.run,
            runs=timed.get(one.id, ()),
            size_bytes=size_bytes[one.model, one.variant],
            baseline=one.baseline,
            same_as=keys.get(one.same_as, ""),
        )
        for one in planned
        if one.mode is mode
    ]


def fresh_comparison(runs: Sequence[RunRecord], chosen: RecordedRun, other: RecordedRun) -> Comparison | None:
    """The chosen run and another in rounds that chose nothing; None without any."""
    groups = []
    for one in (chosen, other):
        own = [run for run in runs if run.planned == one.id and run.round >= FRESH_FROM and run.result.failure is None]
        rounds = (Round(number=r.round, latencies_ns=r.result.latencies_ns, marks=r.result.marks) for r in own)
        groups.append(RunGroup(key=f"{one.variant}/{one.run}", rounds=tuple(rounds)))
    return compare(groups[0], groups[1])


def make_rows(measured: Sequence[MeasuredRow], rule: DecisionRule = DEFAULT_RULE) -> Rows:
    """Rows by device and model, each compared with the one of its device and model that is marked as baseline.

    Raises ValueError for two of the same device, model, variant and run.
    """
    places: dict[tuple[str, str], list[MeasuredRow]] = {}
    for one in measured:
        places.setdefault((one.device, one.model), []).append(one)
    groups = tuple(places.values())
    return Rows(
        rows=tuple(row for group in groups for row in _rows(group, rule)),
        failures=tuple(failure for group in groups for one in _run(group) for failure in _failures(one)),
        skipped=tuple(skipped for group in groups for one in _run(group) for skipped in _skipped(one)),
    )


def medians(rows: Iterable[Row]) -> dict[tuple[str, str, str, str], float]:
    """The median latency of rows that have one, in nanoseconds, by device, model, variant and run."""
    return {(row.device, row.model, row.variant, row.run): row.statistics.median_ns for row in rows if row.statistics}


def _rows(group: Sequence[MeasuredRow], rule: DecisionRule) -> list[Row]:
    """The rows of one device and model; what was not run itself has those numbers that count for it."""
    own = _run(group)
    base = baseline_row(own)
    own = [replace(one, baseline=one is base) for one in own]
    summaries = summarize([run_group(one) for one in own], _key(base) if base else None, rule)
    pairs = zip(own, summaries, strict=True)
    rows = {_key(one): _row(one, summary) for one, summary in pairs if one.status is not Status.SKIPPED}
    found = [(one, rows.get(one.same_as or _key(one))) for one in group]
    return [_same(one, row) if one.same_as else row for one, row in found if row]


def baseline_row(group: Sequence[MeasuredRow]) -> MeasuredRow | None:
    """What the others of a device and model are compared with: the row marked so or, where all its runs failed, the
    first that gave times, one with the same options before others.
    """
    marked = next((one for one in group if one.baseline), None)
    if marked is None or _gave_times(marked):
        return marked
    return min(filter(_gave_times, group), key=lambda one: one.run != marked.run, default=marked)


def _gave_times(one: MeasuredRow) -> bool:
    return any(record.result.status is Status.OK for record in one.runs)


def _run(group: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    return [one for one in group if not one.same_as]


def _same(one: MeasuredRow, row: Row) -> Row:
    """The row of what runs the same: its numbers, without the doubts and the drawing that the other shows."""
    return msgspec.structs.replace(
        row, variant=one.variant, run=one.run, same_as=one.same_as, baseline=False, cautions=(), shape=Shape()
    )


def _key(one: MeasuredRow) -> str:
    return f"{one.variant}/{one.run}"


def run_group(one: MeasuredRow) -> RunGroup:
    """The latencies of every round that gave times, under `VARIANT/RUN`."""
    return rounds_of(one.runs, _key(one))


def _row(one: MeasuredRow, summary: Summary) -> Row:
    results = [record.result for record in one.runs if record.result.status is Status.OK]
    return Row(
        device=one.device,
        model=one.model,
        variant=one.variant,
        run=one.run,
        status=one.status,
        baseline=one.baseline,
        rounds=len(results),
        failed_rounds=sum(record.result.status is Status.FAILED for record in one.runs),
        size_bytes=one.size_bytes,
        load_ns=_median(result.load_ns for result in results),
        first_run_ns=_median(result.first_run_ns for result in results),
        memory_peak_bytes=max((result.memory_peak_bytes for result in results), default=0),
        statistics=summary.statistics,
        comparison=summary.comparison,
        checks=worst_checks(record.checks for record in one.runs),
        cautions=summary.cautions,
        shape=_shape(results),
        prediction=next((record.prediction for record in one.runs if record.prediction is not None), None),
        measured_with=next((facts_of_run(record) for record in one.runs if record.result.status is Status.OK), {}),
    )


def _median(values: Iterable[int]) -> int:
    found = list(values)
    return int(np.median(found)) if found else 0


def _shape(results: Sequence[RunResult]) -> Shape:
    pooled = [latency for result in results for latency in result.latencies_ns]
    if not pooled:
        return Shape()
    shares = (np.arange(SHAPE_POINTS) + 0.5) / SHAPE_POINTS
    return Shape(latencies_ns=tuple(np.quantile(pooled, shares, method="inverted_cdf").astype(int).tolist()))


def worst_checks(checks: Iterable[Sequence[OutputCheck]]) -> tuple[OutputCheck, ...]:
    """One check per output over several runs: the largest errors, the smallest agreement, passed only if always.

    Failed once is failed; what was known once only is not known.
    """
    by_output: dict[str, list[OutputCheck]] = {}
    for check in (check for one_run in checks for check in one_run):
        by_output.setdefault(check.output, []).append(check)
    return tuple(_worst(found) for found in by_output.values())


def _worst(checks: Sequence[OutputCheck]) -> OutputCheck:
    """One check for those of all rounds; the first whose metric was computed has it for all."""
    measured = next((check for check in checks if check.metric), checks[0])
    passed, failed = all(check.passed for check in checks), any(check.failed for check in checks)
    return OutputCheck(
        output=checks[0].output,
        passed=passed,
        unknown=not passed and not failed,
        random_inputs=any(check.random_inputs for check in checks),
        max_abs_error=_among(max, (check.max_abs_error for check in checks)),
        max_rel_error=_among(max, (check.max_rel_error for check in checks)),
        limit=_among(min, (check.limit for check in checks)),
        sqnr_db=worst_sqnr(checks),
        cosine=_among(min, (check.cosine for check in checks)),
        top1_agreement=_among(min, (check.top1_agreement for check in checks)),
        reason=next((check.reason for check in sorted(checks, key=_gravity) if not check.passed), ""),
        remedy=next((check.remedy for check in sorted(checks, key=_gravity) if not check.passed), ""),
        metric=measured.metric,
        value=measured.value,
        original_value=measured.original_value,
    )


def _gravity(check: OutputCheck) -> bool:
    """Sorts what failed before what is not known."""
    return not check.failed


def _among(choose: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _failures(one: MeasuredRow) -> list[FailureRow]:
    """Equal failures of several rounds once, with how often."""
    failed = (record.result for record in one.runs if record.result.status is Status.FAILED)
    counts = Counter(_failure(result) for result in failed)
    return [
        FailureRow(
            kind=failure.kind.value,
            message=failure.message,
            cause=failure.cause,
            remedy=failure.remedy,
            device=one.device,
            model=one.model,
            variant=one.variant,
            run=one.run,
            times=times,
        )
        for failure, times in counts.items()
    ]


def _failure(result: RunResult) -> Failure:
    unsaid = Failure(kind=FailureKind.GARBAGE, message="the run failed and did not say why")
    return unsaid if result.failure is None else result.failure


def _skipped(one: MeasuredRow) -> list[Skipped]:
    """Why it was skipped, where every round was or there was none."""
    if one.status is not Status.SKIPPED:
        return []
    said = dict.fromkeys(record.result.failure.message for record in one.runs if record.result.failure is not None)
    reason = "; ".join(said) or NEVER_RUN
    return [Skipped(what=reason, device=one.device, model=one.model, variant=one.variant, run=one.run)]
