"""The runs of a diagnosis: the start once as it is and once with the profiler, then remedies beside it in rounds.

Rounds end at a time, or when all remedies are decided; what is decided is not measured any more.
"""

import hashlib
import logging
import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.profile import with_profile, with_profiler
from device_runner.providers import PROVIDERS
from device_runner.result import RunResult
from device_runner.spec import RunOptions
from pipeline.campaign.measure import CampaignPlan, OpenTurns, measure
from pipeline.campaign.plan import Inputs, PlannedRun, planned_id
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import DecisionRule
from pipeline.campaign.statistics.compare import LOOKS
from pipeline.campaign.store import Store
from pipeline.check.compare import (
    Array,
    OutputCheck,
    OutputPrecision,
    compare_outputs,
    read_tensor,
    usual_tolerance,
)
from pipeline.core.progress import Progress, Stage
from pipeline.core.workers import Task, run_tasks
from pipeline.features.doctor.diagnosis import MeasuredRemedy, latency_comparisons, measured, open_remedies
from pipeline.features.doctor.files import DoctorModel, DoctorOrder, make_files, shell_of
from pipeline.features.doctor.subject import Examination, ExaminedModel, ExamineRequest, Remedy, examine
from pipeline.job.perf_files import PerfOrder, inputs_of_files, planned_files, preflight
from pipeline.job.predict import settings_of
from pipeline.job.record import new_campaign


class OutputsOfStart:
    """Compares outputs with those that the start gave in its first run."""

    def __init__(self, start: PlannedRun, precision: OutputPrecision) -> None:
        self.start = planned_id(start)
        self.precision = precision
        self.lossy: set[str] = set()
        self.expected: dict[str, Array] = {}

    def __call__(self, planned: PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        """The checks of one run; none where the start gave no outputs."""
        actual = {tensor.name: read_tensor(tensor) for tensor in result.outputs}
        if planned_id(planned) == self.start:
            self.expected = self.expected or actual
            return ()
        lossy = planned_id(planned) in self.lossy
        tolerance = usual_tolerance(OutputPrecision.FLOAT16 if lossy else self.precision)
        return tuple(compare_outputs(self.expected, actual, tolerance))


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorBench:
    """What a diagnosis of one model works with."""

    order: DoctorOrder
    model: DoctorModel
    device: Device
    facts: DeviceFacts
    work: Path
    progress: Progress

    @property
    def rule(self) -> DecisionRule:
        """When two runs are different or the same."""
        shares = self.order.measure
        return DecisionRule(margin=shares.margin_percent / 100, least=shares.least_percent / 100)

    def perf_order(self, files: Sequence[Path], options: Sequence[RunOptions] = ()) -> PerfOrder:
        """Files with run options as `ort-mobile perf` measures them."""
        return PerfOrder(
            files=tuple(files), options=tuple(options), device=self.order.device, library=self.order.library,
            dimensions=dict(self.model.dimensions), measure=self.order.measure, data=self.model.data,
            conditions=self.order.conditions,
        )  # fmt: skip

    def plan(self, campaign: str, runs: Sequence[PlannedRun], inputs: Inputs) -> CampaignPlan:
        """Every run gets the same inputs."""
        return CampaignPlan(
            campaign=campaign, planned_runs=runs, measure=self.order.measure, conditions=self.order.conditions,
            artifacts=Path(), inputs={run.source: inputs for run in runs},
            libraries={self.device.name: self.order.library}, judge=None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RemedyTrial:
    """Remedies before they are measured: the planned run of each by its name, and the others with the reason."""

    shells: dict[str, MeasuredRemedy]
    runs: dict[str, PlannedRun] = field(default_factory=dict)


def tried_on(bench: DoctorBench, remedies: Sequence[Remedy]) -> RemedyTrial:
    """Files and planned runs of remedies; what cannot be run has its reason."""
    files, failed = make_files(bench.model, remedies, bench.facts, bench.work)
    judge = preflight(bench.perf_order(list(files.values())), bench.device)
    tried = RemedyTrial(
        {remedy.name: shell_of(remedy, bench.model.start, bench.facts, bench.model.path) for remedy in remedies}
    )
    for remedy in remedies:
        why, run = failed.get(remedy.file_key, ""), None
        if not why:
            perf = bench.perf_order([files[remedy.file_key]], [remedy.options(bench.model.start)])
            planned, skipped = planned_files(perf, bench.device.name, bench.facts, judge)
            run, why = (planned[0], "") if planned else (None, skipped[0].what)
        if run:
            tried.runs[remedy.name] = run
        else:
            tried.shells[remedy.name] = msgspec.structs.replace(tried.shells[remedy.name], why=why)
    return tried


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """The start as it is planned, its inputs, and the model examined; or `failure`: what was said, why, what to do."""

    start: PlannedRun | None = None
    inputs: Inputs | None = None
    model: ExaminedModel | None = None
    failure: tuple[str, ...] = ()

    @property
    def precision(self) -> OutputPrecision:
        """What the model computes in."""
        if self.model and self.model.traits.quantized:
            return OutputPrecision.QUANTIZED
        return OutputPrecision.FLOAT16 if self.model and self.model.traits.half else OutputPrecision.FLOAT32


def first_look(bench: DoctorBench) -> FirstLook:
    """Run the start once as it is and once with the profiler, and read the model's graph."""
    perf = bench.perf_order([bench.model.path], [bench.model.start])
    inputs = inputs_of_files(perf, bench.work)[str(bench.model.path)]
    runs, skipped = planned_files(perf, bench.device.name, bench.facts, preflight(perf, bench.device))
    if not runs:
        return FirstLook(failure=(skipped[0].what,))
    usual = bench.device.run(bench.plan("first", runs, inputs).spec(runs[0], 0))
    if usual.failure:
        texts = (usual.failure.message, usual.failure.cause, usual.failure.remedy)
        return FirstLook(failure=tuple(text for text in texts if text))
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        spec = with_profiler(bench.plan("profile", runs, inputs).spec(runs[0], 0), folder)
        profiled = with_profile(bench.device.run(spec), bench.work / "profile.json.gz")
    return FirstLook(start=runs[0], inputs=inputs, model=_examined(bench, usual, profiled))


def _examined(bench: DoctorBench, usual: RunResult, profiled: RunResult) -> ExaminedModel:
    """The model with its graph and claims; where the graph cannot be read, checks that need it do not apply."""
    release = ".".join(usual.ort_version.split(".")[:2])
    there = [name for name, row in PROVIDERS.items() if row.ort_name in usual.available_providers]
    options = (RunOptions(provider=name) for name in there)
    wanted = tuple(settings for run_options in options if (settings := settings_of(run_options, bench.facts, release)))
    request = ExamineRequest(path=str(bench.model.path), settings=wanted)
    (outcome,) = run_tasks(examine, Examination, [Task(label=str(bench.model.path), request=request)])
    if outcome.error:
        log.warning("%s: its graph cannot be read: %s", bench.model.path, outcome.error)
    read = outcome.value or Examination()
    return ExaminedModel(
        suffix=bench.model.path.suffix.lower(), start=bench.model.start, facts=bench.facts, usual=usual,
        profiled=profiled, traits=read.traits, answers=read.answers, sizes=bench.model.dimensions,
    )  # fmt: skip


FEWEST, MOST = LOOKS[0], LOOKS[-1]
"""Rounds: fewer give no verdict, and more are not worth the device's time."""


NO_RANKS = "these times cannot be compared: they are not those of a phone"


def seconds_of(runs: Iterable[RunRecord]) -> float:
    """The device's time that runs took."""
    return sum(run.result.elapsed_ns for run in runs) / 1e9


class Rounds:
    """Measures remedies beside the start in rounds, until a time or until all are decided."""

    def __init__(self, bench: DoctorBench, store: Store, inputs: Inputs, judge: OutputsOfStart) -> None:
        self.bench = bench
        self.store = store
        self.inputs = inputs
        self.judge = judge
        self.of_start: list[RunRecord] = []
        self.reason = ""
        self.number = 0
        self.seconds_needed = 0.0
        self.seconds_stored = 0.0

    def measured(
        self, start: PlannedRun, tried: RemedyTrial, until: float, name: str, rule: DecisionRule, *, least: int
    ) -> dict[str, MeasuredRemedy]:
        """Every remedy with its numbers, by name; at least so many rounds, also when the time is over.

        With looks in the rule, remedies that are decided are not measured any more.
        """
        self.judge.lossy |= {planned_id(run) for key, run in tried.runs.items() if tried.shells[key].remedy.lossy}
        runs = [start, *tried.runs.values()]
        campaign = self._campaign(name, runs)
        self.seconds_stored += seconds_of(self.store.runs(campaign))
        with self.bench.progress.stage(name, len(runs) * FEWEST) as stage:
            self._run(campaign, runs, until - self.seconds_stored, stage, rule, least)
        records = self._records(campaign)
        self.of_start = records.get(planned_id(start), [])
        others = {key: records.get(planned_id(run), []) for key, run in tried.runs.items()}
        compared = latency_comparisons(self.of_start, others, rule)
        results = {}
        for key, shell in tried.shells.items():
            records_of = others.get(key, [])
            remedy = measured(shell, self.of_start, records_of, compared.get(key), rule)
            few = self.reason or f"the time was over before {FEWEST} rounds"
            why = few if remedy.rounds < FEWEST else "" if remedy.latency else NO_RANKS
            results[key] = msgspec.structs.replace(remedy, why=remedy.why or why)
        return results

    def _campaign(self, name: str, runs: Sequence[PlannedRun]) -> str:
        """The campaign to go on with, where that is asked for and it has a whole first round; else a new one.

        Without the first round's start there is nothing that the other outputs could be compared with.
        """
        bench = self.bench
        library = bench.device.library_for(bench.order.library).sha256
        what = (bench.device.name, library, runs[0].sha256, [run.key for run in runs], bench.order.measure)
        wanted = f"doctor-{name}-{hashlib.sha256(msgspec.json.encode(what, order='sorted')).hexdigest()[:24]}"
        campaign = new_campaign(wanted)
        stored = self.store.campaigns(wanted) if bench.order.resume else []
        for known in reversed(stored):
            turns = OpenTurns([(run, 0) for run in runs], self.store, known.id)
            if turns.due() is None:
                return known.id
        self.store.start(campaign, [bench.facts])
        return campaign.id

    def _run(
        self, campaign: str, going: list[PlannedRun], until: float, stage: Stage, rule: DecisionRule, least: int
    ) -> None:
        seconds = 0.0
        for self.number in range(1, MOST + 1):
            began = time.monotonic()
            if self.number > least and began + seconds > until:
                self.number -= 1
                return
            self.reason = self._one_round(campaign, going, stage)
            if self.reason:
                return
            seconds = max(time.monotonic() - began, seconds_of(self.store.runs(campaign, number=self.number - 1)))
            if self.number == 1:
                self.seconds_needed = FEWEST * seconds
                going = self._affordable(campaign, going, seconds, until) if least < FEWEST else going
            if self.number in rule.looks:
                going = self._undecided(campaign, going, rule)
            if len(going) < 2:
                return

    def _one_round(self, campaign: str, going: Sequence[PlannedRun], stage: Stage) -> str:
        """Run one round more of what goes on; why the device had to be left, or ""."""
        plan = self.bench.plan(campaign, going, self.inputs)
        plan = replace(
            plan,
            measure=msgspec.structs.replace(plan.measure, rounds=self.number, profile=False),
            judge=self.judge if self.number == 1 else None,
        )
        device = self.bench.device

        def show(_device: str, run: PlannedRun, number: int) -> None:
            stage.at(f"round {number + 1}: {run.run_name}")
            if number < FEWEST:
                stage.done()

        left = measure(plan, {device.name: device}, self.store, self.bench.work, show)
        return left[0].reason if left else ""

    def _records(self, campaign: str) -> dict[str, list[RunRecord]]:
        groups: dict[str, list[RunRecord]] = {}
        for record in self.store.runs(campaign):
            groups.setdefault(record.planned, []).append(record)
        return groups

    def _affordable(self, campaign: str, going: Sequence[PlannedRun], seconds: float, until: float) -> list[PlannedRun]:
        """The start and as many of the fastest as FEWEST rounds have time for; always one."""
        left = max(0.0, until - time.monotonic())
        count = max(2, int(left / max(seconds, 1e-9) * len(going) / (FEWEST - 1)))
        medians = {run.planned: run.result.median_ns for run in self.store.runs(campaign, number=0)}
        kept = [going[0], *sorted(going[1:], key=lambda run: medians.get(planned_id(run)) or math.inf)[: count - 1]]
        return [run for run in going if run in kept]

    def _undecided(self, campaign: str, going: Sequence[PlannedRun], rule: DecisionRule) -> list[PlannedRun]:
        """Without the remedies of which it is known whether they are faster."""
        records = self._records(campaign)
        others = {planned_id(run): records.get(planned_id(run), []) for run in going[1:]}
        kept = open_remedies(records.get(planned_id(going[0]), []), others, rule)
        return [going[0], *(run for run in going[1:] if planned_id(run) in kept)]
