"""What every writer of a report gets: plain data, at the same time the document results.json; its rows from runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np

from device_runner import result as run_result
from device_runner.device import DeviceFacts
from device_runner.problem import Problem
from device_runner.result import Status
from pipeline import config as configs
from pipeline.accuracy import result as accuracy_result
from pipeline.campaign import changed_facts
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import cold as cold_starts
from pipeline.campaign.statistics import compare as run_compare
from pipeline.campaign.statistics import groups as run_groups
from pipeline.campaign.statistics import mlperf as mlperf_rule
from pipeline.campaign.statistics import sustained as sustained_load
from pipeline.check import compare as output_compare
from pipeline.check import library_proof
from pipeline.check.compare import OutputCheck
from pipeline.compat import contexts as npu_contexts
from pipeline.core import documents, json_schema
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core.errors import Finding, PipelineError
from pipeline.core.variant import Artifact
from pipeline.partition import placement as node_placement
from pipeline.report.profiles import Profiled, ProfileView

DOCUMENT_VERSION: Final = 1


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """For drawing only: latencies at 20 even shares (2.5 %, 7.5 % … 97.5 %), whatever the number of samples."""

    latencies_ns: tuple[int, ...] = ()


class Row(campaign_record.RunKey, frozen=True, kw_only=True):
    """One artifact with one set of run options on one device, over all rounds.

    `run` names provider and options as configs do. `status` is that of the best round: ok where any round gave times,
    and then `failed_rounds` counts those that gave none. `load_ns` and `first_run_ns` are medians over rounds,
    `memory_peak_bytes` and `memory_private_bytes` (what no file is behind) are the largest. Statistics are None where
    nothing was timed. `same_as` is VARIANT/RUN of the row whose numbers these are: the same file with the same session
    options was measured once.
    """

    status: Status
    baseline: bool = False
    rounds: int = 0
    failed_rounds: int = 0
    size_bytes: int = 0
    original_bytes: int = 0
    """Of the model as it was given; 0 where that is not known."""
    load_ns: int = 0
    first_run_ns: int = 0
    memory_peak_bytes: int = 0
    memory_private_bytes: int = 0
    statistics: run_groups.Statistics | None = None
    comparison: run_compare.Comparison | None = None
    checks: tuple[OutputCheck, ...] = ()
    cautions: tuple[run_groups.Caution, ...] = ()
    shape: Shape = Shape()
    prediction: campaign_record.Prediction | None = None
    same_as: str = ""
    measured_with: dict[str, str] = {}
    """What identifies the measurement, as texts: the file's sha256, the release of ONNX Runtime, session options,
    inputs, settings; {} where nothing was timed."""


class ModeRow(campaign_record.RunKey, frozen=True, kw_only=True):
    """One artifact with one set of run options on one device, measured otherwise than in the steady state, or by
    another rule: one of `cold`, `sustained` and `mlperf` is set.

    `late` compares the end of sustained runs with that of the run that is the fastest at the beginning, by rounds whose
    starts were equal; null of that one itself.
    """

    baseline: bool = False
    cold: cold_starts.ColdNumbers | None = None
    sustained: sustained_load.SustainedNumbers | None = None
    late: run_compare.Comparison | None = None
    mlperf: mlperf_rule.MlperfNumbers | None = None


class ChoiceRow(msgspec.Struct, frozen=True, kw_only=True):
    """What ships to a target, and why it and not another.

    `fresh` compares it with `fresh.baseline` (VARIANT/RUN) in rounds that did not choose it. `device` is where it was
    measured, of several devices the one on which it loses most, "" where nothing was; `classes` are the devices that a
    search found it best for; `undecided` names what was shown neither slower than the best nor the same; `slower` has,
    by device, how much longer it takes than what is fastest there. `provider` is the run's, "" where none is known.
    """

    target: str
    model: str
    variant: str
    run: str
    file: str
    reason: str
    fresh: run_compare.Comparison | None = None
    device: str = ""
    classes: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    slower: dict[str, run_compare.Comparison] = {}
    provider: str = ""


class SimulatedContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a chip's NPU has of a model, and the numeric check of it in a simulator; no times of one mean anything."""

    context: npu_contexts.NpuContext
    checks: tuple[OutputCheck, ...] = ()


class ArtifactCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The numeric check of one artifact on the CPU of the computer that made it; without checks none could be done."""

    model: str
    variant: str
    checks: tuple[OutputCheck, ...] = ()


class Withheld(Problem, frozen=True, kw_only=True):
    """A model of which nothing ships to a target."""

    what: str = msgspec.field(name="reason")
    target: str
    model: str


class RequiredOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator that a build for the bundle must contain, as `domain:op`, with the opsets of its nodes.

    `types` are those that its kernels must have, for each argument whose types a build can restrict; () where all stay.
    `adds_bytes` is what it added to a library, by ABI, where two builds of this computer differ in it alone.
    """

    name: str
    opsets: tuple[int, ...]
    types: tuple[str, ...] = ()
    adds_bytes: dict[str, int] = {}


class CampaignReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole campaign.

    `created_at` is UTC in ISO 8601; `margin` the share within which two are called the same, `least` the
    difference that matters at least; `versions` names every
    program that had a part (ort-mobile, onnxruntime, onnx, …). `proofs` say whether the bundle runs in the libraries
    that ship. `checks` are those before anything is measured; `refusals` say why no bundle was made, `withheld` which
    models have nothing to ship. `warnings` say where they hold, "" for the whole campaign.
    """

    version: Literal[1] = DOCUMENT_VERSION
    name: str
    campaign: str
    created_at: str
    margin: float
    host: campaign_record.Host
    versions: dict[str, str]
    models: tuple[campaign_record.ModelFacts, ...] = ()
    devices: tuple[DeviceFacts, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    rows: tuple[Row, ...] = ()
    skipped: tuple[campaign_record.Skipped, ...] = ()
    failures: tuple[campaign_record.FailureRow, ...] = ()
    choices: tuple[ChoiceRow, ...] = ()
    profiles: tuple[Profiled, ...] = ()
    profile_views: tuple[ProfileView, ...] = ()
    """Profiles beside the least optimized one of their device and model, where there are two."""
    proofs: tuple[library_proof.LibraryProof, ...] = ()
    warnings: tuple[Finding, ...] = ()
    checks: tuple[ArtifactCheck, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    refusals: tuple[str, ...] = ()
    least: float = 0.0
    modes: tuple[ModeRow, ...] = ()
    """Cold starts, sustained runs and MLPerf's p90."""
    accuracy: tuple[accuracy_result.ArtifactAccuracy, ...] = ()
    """Of artifacts in another precision than their model's."""
    required: tuple[RequiredOperator, ...] = ()
    """Of the operator config in the bundle."""
    searches: tuple[campaign_record.PrecisionSearch, ...] = ()
    """What decided which layers stay float."""
    tuned: campaign_tuned.TuneReport | None = None
    """What searches for the best configuration found."""
    contexts: tuple[SimulatedContext, ...] = ()
    """Models compiled ahead for the NPUs of chips."""
    placements: tuple[node_placement.Placement, ...] = ()
    """Of each model and provider with rules, the graph that it claims most of."""

    @property
    def stopped(self) -> bool:
        """Whether nothing of the bundle may ship: it was not made, or the library that ships fails on it."""
        return bool(self.refusals) or any(proof.failed for proof in self.proofs)


def encode(report: CampaignReport) -> bytes:
    """The bytes of results.json: keys in the order of the schema, names and counts sorted, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(report, order="deterministic"), indent=2) + b"\n"


def decode(content: bytes, where: str = storage.RESULTS) -> CampaignReport:
    """A report from the bytes of results.json; raises PipelineError for what is none, or a later version's."""
    try:
        report = documents.decode_document(content, CampaignReport, where)
        _refuse_negative(report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PipelineError(
            "this is no results.json of ort-mobile",
            where=where,
            why=str(error),
            remedy="name another file, or write it again: ort-mobile report FOLDER",
        ) from error
    return report


def _refuse_negative(report: CampaignReport) -> None:
    """Raise DecodeError for times below zero, on which verdicts would rest."""
    for row in report.rows:
        numbers = row.statistics
        of_all = (numbers.min_ns, numbers.median_ns, numbers.mean_ns, *numbers.round_medians_ns) if numbers else ()
        if min(row.load_ns, row.first_run_ns, *of_all, *row.shape.latencies_ns) < 0:
            raise msgspec.DecodeError(f"{row.variant} {row.run} on {row.device} has a negative time")


def schema() -> dict[str, Any]:
    """The JSON schema of the document."""
    return json_schema.document_schema(
        CampaignReport,
        "results.json of ort-mobile",
        "A campaign: what was converted, measured, checked and chosen. Times are nanoseconds.",
    )


SHAPE_POINTS = 20
NEVER_RUN = "no round of it was run: the campaign ended before"

MeasuredRun = tuple[campaign_record.RecordedRun, Sequence[RunRecord]]
"""A planned run with its timed runs; none of one that runs the same as another."""


def status_of(runs: Sequence[RunRecord]) -> Status:
    """That of the best round; skipped where there is none."""
    statuses = {record.result.status for record in runs}
    return next((status for status in (Status.OK, Status.FAILED) if status in statuses), Status.SKIPPED)


def own_runs(
    planned: Sequence[campaign_record.RecordedRun], read: campaign_record.ReadRuns
) -> campaign_record.ReadRuns:
    """Without those of a planned run of another device: whoever measures one device says nothing of the others."""
    devices = {run.id: run.device for run in planned}
    strange = [run for run in read.runs if devices.get(run.planned, run.result.device) != run.result.device]
    left_out = [
        core_errors.warning(
            f"round {run.round} of the run {run.spec.id} was left out: it was planned for {devices[run.planned]}",
            " at the host ".join(filter(None, (run.result.device, run.result.host))),
        )
        for run in strange
    ]
    own = tuple(run for run in read.runs if devices.get(run.planned, run.result.device) == run.result.device)
    return campaign_record.ReadRuns(runs=own, left_out=(*read.left_out, *left_out))


def measured_runs(
    planned: Iterable[campaign_record.RecordedRun],
    runs: Iterable[RunRecord],
    mode: configs.MeasureMode = configs.MeasureMode.STEADY,
) -> list[MeasuredRun]:
    """Planned runs of a mode with their timed runs, in the order of the plan."""
    timed = counting.grouped(
        (record.planned, record)
        for record in runs
        if not record.spec.profile and record.round < campaign_record.FRESH_FROM
    )
    return [(run, timed.get(run.id, ())) for run in planned if run.mode is mode]


def fresh_comparison(
    runs: Sequence[RunRecord], chosen: campaign_record.RecordedRun, other: campaign_record.RecordedRun
) -> run_compare.Comparison | None:
    """The chosen run and another in rounds that chose nothing; None without any."""
    group, baseline = (
        campaign_record.rounds_of(
            (run for run in runs if run.planned == planned.id and run.round >= campaign_record.FRESH_FROM), planned.way
        )
        for planned in (chosen, other)
    )
    return run_compare.compare(group, baseline)


def _middle(times_ns: Iterable[int]) -> int:
    """The median of times where they are known, which is not in a process that others had used; 0 without any."""
    known = [time_ns for time_ns in times_ns if time_ns]
    return int(np.median(known)) if known else 0


def make_rows(
    measured: Sequence[MeasuredRun],
    sizes: Mapping[tuple[str, str], int],
    rule: run_compare.DecisionRule = run_compare.DEFAULT_RULE,
    originals: Mapping[str, int] = {},
) -> tuple[Row, ...]:
    """Rows by device and model, each compared with the one of its device and model that is marked as baseline.

    What was skipped in every round has no row; what was not run itself has those numbers that count for it. `sizes` are
    bytes by model and variant, `originals` those of models as they were given. Raises ValueError for two of the same
    device, model, variant and run.
    """
    rows = []
    for group in counting.grouped(
        ((planned.device, planned.model), (planned, runs)) for planned, runs in measured
    ).values():
        ran = [(planned, runs) for planned, runs in group if not planned.same_as]
        base = baseline_of_runs(ran)
        groups = [campaign_record.rounds_of(runs, planned.way) for planned, runs in ran]
        summaries = run_compare.summarize(groups, base.way if base else None, rule)
        by_id = {}
        for planned, runs in ran:
            if (status := status_of(runs)) is Status.SKIPPED:
                continue
            statistics, comparison, cautions = summaries[planned.way]
            passed = [record for record in runs if record.result.status is Status.OK]
            results = [record.result for record in passed]
            pooled = [latency for result in results for latency in result.latencies_ns]
            shares = (np.arange(SHAPE_POINTS) + 0.5) / SHAPE_POINTS
            shape = np.quantile(pooled, shares, method="inverted_cdf").astype(int).tolist() if pooled else ()
            by_id[planned.id] = Row(
                **planned.parts,
                status=status,
                baseline=planned is base,
                rounds=len(results),
                failed_rounds=sum(record.result.status is Status.FAILED for record in runs),
                size_bytes=sizes.get((planned.model, planned.variant), 0),
                original_bytes=originals.get(planned.model, 0),
                load_ns=_middle(result.load_ns for result in results),
                first_run_ns=_middle(result.first_run_ns for result in results),
                memory_peak_bytes=max((result.memory_peak_bytes for result in results), default=0),
                memory_private_bytes=max((result.memory_private_bytes for result in results), default=0),
                statistics=statistics,
                comparison=comparison,
                checks=worst_checks(record.checks for record in runs),
                cautions=cautions,
                shape=Shape(latencies_ns=tuple(shape)),
                prediction=next((record.prediction for record in runs if record.prediction is not None), None),
                measured_with=changed_facts.facts_of_run(passed[0]) if passed else {},
            )
        for planned, _ in group:
            row = by_id.get(planned.same_as or planned.id)
            if row and planned.same_as:  # its numbers, without the doubts and the drawing that the other shows
                row = msgspec.structs.replace(
                    row,
                    variant=planned.variant,
                    run=planned.run,
                    same_as=row.way,
                    baseline=False,
                    cautions=(),
                    shape=Shape(),
                )
            rows += [row] if row else []
    return tuple(rows)


def ends_of(
    measured: Sequence[MeasuredRun],
) -> tuple[tuple[campaign_record.FailureRow, ...], tuple[campaign_record.Skipped, ...]]:
    """The failures of what was run, and what was skipped in every round, by device and model."""
    failures, skipped = [], []
    silent = run_result.Failure(code=run_result.FailureKind.GARBAGE, what="the run failed and did not say why")
    ran = ((planned, runs) for planned, runs in measured if not planned.same_as)
    groups = counting.grouped(((planned.device, planned.model), (planned, runs)) for planned, runs in ran).values()
    for planned, runs in (pair for group in groups for pair in group):
        # Equal failures of several rounds once, with how often
        failed = (record.result for record in runs if record.result.status is Status.FAILED)
        counts = Counter(silent if result.failure is None else result.failure for result in failed)
        failures += [
            campaign_record.FailureRow(
                code=failure.code.value,
                what=failure.what,
                why=failure.why,
                remedy=failure.remedy,
                **planned.parts,
                times=times,
            )
            for failure, times in counts.items()
        ]
        if status_of(runs) is Status.SKIPPED:
            # Why it was skipped, where every round was or there was none
            reasons = [record.result.failure for record in runs if record.result.failure is not None]
            first = reasons[0] if reasons else run_result.Failure(code=run_result.FailureKind.WRONG_DEVICE, what="")
            skipped.append(
                campaign_record.Skipped(
                    what="; ".join(dict.fromkeys(failure.what for failure in reasons)) or NEVER_RUN,
                    why=first.why,
                    remedy=first.remedy,
                    **planned.parts,
                )
            )
    return tuple(failures), tuple(skipped)


def medians(rows: Iterable[Row]) -> dict[tuple[str, str, str, str], float]:
    """The median latency of rows that have one, in nanoseconds, by device, model, variant and run."""
    return {row.names: row.statistics.median_ns for row in rows if row.statistics}


def baseline_of_runs(group: Sequence[MeasuredRun]) -> campaign_record.RecordedRun | None:
    """What the others of a device and model are compared with: the one marked so or, where all its runs failed, the
    first that gave times, one with the same options before others.
    """
    marked = next((planned for planned, _ in group if planned.baseline), None)
    timed = [planned for planned, runs in group if status_of(runs) is Status.OK]
    if marked is None or marked in timed:
        return marked
    return min(timed, key=lambda planned: planned.run != marked.run, default=marked)


def worst_checks(checks: Iterable[Sequence[OutputCheck]]) -> tuple[OutputCheck, ...]:
    """One check per output over several runs: the largest errors, the smallest agreement, passed only if always.

    Failed once is failed; what was known once only is not known. The first whose metric was computed has it for all.
    """
    worst = []
    for output, alike in counting.grouped((check.output, check) for of_run in checks for check in of_run).items():
        measured = next((check for check in alike if check.metric), alike[0])
        passed, failed = all(check.passed for check in alike), any(check.failed for check in alike)
        # what failed counts before what is not known
        gravest = min((check for check in alike if not check.passed), key=lambda check: not check.failed, default=None)
        worst.append(
            OutputCheck(
                output=output,
                passed=passed,
                unknown=not passed and not failed,
                random_inputs=any(check.random_inputs for check in alike),
                max_abs_error=_among(max, (check.max_abs_error for check in alike)),
                max_rel_error=_among(max, (check.max_rel_error for check in alike)),
                limit=_among(min, (check.limit for check in alike)),
                sqnr_db=output_compare.worst_sqnr(alike),
                cosine=_among(min, (check.cosine for check in alike)),
                top1_agreement=_among(min, (check.top1_agreement for check in alike)),
                reason=gravest.reason if gravest else "",
                remedy=gravest.remedy if gravest else "",
                metric=measured.metric,
                value=measured.value,
                original_value=measured.original_value,
                from_simulator=_among(max, (check.from_simulator for check in alike)),
            )
        )
    return tuple(worst)


def _among(choose: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return choose(numbers) if numbers else None
