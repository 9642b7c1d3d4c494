"""Diagnosing models on a device: their files, and the start measured once as it is, then remedies beside it in rounds.

Rounds end at a time, or when all remedies are decided; what is decided is not measured any more.
"""

import hashlib
import logging
import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.errors import RunnerError
from device_runner.options import illegal
from device_runner.profile import with_profile, with_profiler
from device_runner.providers import PROVIDERS
from device_runner.result import RunResult
from device_runner.spec import RunOptions
from pipeline.campaign.measure import CampaignPlan, OpenTurns, measure
from pipeline.campaign.plan import Inputs, PlannedRun, options_name, planned_id, run_options
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import DecisionRule
from pipeline.campaign.statistics.compare import LOOKS
from pipeline.campaign.store import Store
from pipeline.check.compare import Array, OutputCheck, OutputPrecision, compare_outputs, read_tensor, usual_tolerance
from pipeline.config import ConditionsConfig, Config, MeasureConfig, RunConfig
from pipeline.convert.many import ConversionOrder, convert_paths
from pipeline.convert.request import OptimizerPlatform
from pipeline.core.errors import ConfigError, ExitCode, MissingError, ModelError, PipelineError
from pipeline.core.progress import Progress, Stage
from pipeline.core.releases import installed_release
from pipeline.core.workers import Task, run_tasks
from pipeline.dataset import Dataset
from pipeline.dataset.dataset import dataset_of
from pipeline.dataset.guess import no_size
from pipeline.features.doctor.checks import (
    CHECKS,
    ExaminedModel,
    ModelTraits,
    Remedy,
    examine,
    together,
)
from pipeline.features.doctor.diagnosis import (
    Diagnosis,
    DoctorReport,
    MeasuredRemedy,
    RemediesTogether,
    finding_of_check,
    latency_comparisons,
    measured,
    open_remedies,
    start_of,
    typical,
    winners,
)
from pipeline.job.bench import (
    PerfOrder,
    host,
    inputs_of_files,
    new_campaign,
    open_bench,
    opened_alone,
    planned_files,
    preflight,
)
from pipeline.job.prepare import find, settings_of
from pipeline.job.template import data_beside, guess_for
from pipeline.model.sources import SourceModel, require_model_file
from pipeline.passes.registry import parse_step
from pipeline.passes.run import transform_file
from pipeline.release.app_code import code_for

SUFFIXES = (".onnx", ".ort")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorModel:
    """A model to diagnose: its file, what it is run on, and the run options to start from."""

    path: Path
    start: RunOptions = field(default_factory=RunOptions)
    data: Dataset = field(default_factory=Dataset)
    dimensions: Mapping[str, int] = field(default_factory=dict)


def models_of_config(config: Config) -> list[DoctorModel]:
    """The models of a config with the first combination of its first [[runs]]; those in archives are no files."""
    start = run_options(config.runs[0] if config.runs else RunConfig())[0]
    return [
        DoctorModel(path=Path(model.source.name), start=start, data=dataset_of(table), dimensions=table.sizes)
        for model, table in find(config)
    ]


def checked(model: DoctorModel) -> DoctorModel:
    """The model with data and sizes for its inputs, guessed where they are not given.

    ConfigError for a path that is no model file and for options that make no sense, ModelError for a broken model.
    """
    require_model_file(model.path)
    if model.path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            "this is no model file", where=str(model.path), why=f"its name does not end in {' or '.join(SUFFIXES)}",
            remedy="name an .onnx or .ort file, or a config (.toml)",
        )  # fmt: skip
    if (failure := illegal(model.start)) is not None:
        raise ConfigError(failure.message, where=options_name(model.start), remedy=failure.remedy)
    if model.path.suffix.lower() != ".onnx":
        return model
    data = data_beside(model.path, msgspec.structs.replace(model.data, sizes=dict(model.dimensions)))
    if model.dimensions or data.test_data:
        return replace(model, data=data)
    guess = guess_for(model.path, data)
    if guess.missing:
        raise no_size(str(model.path), guess.missing, guess.why)
    values = msgspec.structs.replace(data, inputs=guess.values | data.inputs)
    return replace(model, data=values, dimensions=guess.dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOrder:
    """What to diagnose where, and in how many minutes for all models together."""

    models: tuple[DoctorModel, ...]
    device: str = "local"
    minutes: float = 5.0
    library: str | None = None
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    conditions: ConditionsConfig | None = None
    folder: Path | None = None
    """Where runs are stored; without one nothing is kept."""
    resume: bool = False
    """Whether to go on with the last diagnosis of the same model, device and settings that is stored there."""
    wait_seconds: float = 0.0
    """How long a device that another process has is waited for."""


FileKey = tuple[tuple[str, ...], bool]


def make_files(
    model: DoctorModel, remedies: Iterable[Remedy], facts: DeviceFacts, work: Path
) -> tuple[dict[FileKey, Path], dict[FileKey, str]]:
    """The file of each remedy by its key, made in `work`; and why one could not be made. Outputs are checked."""
    files: dict[FileKey, Path] = {((), False): model.path}
    failed: dict[FileKey, str] = {}
    for key in dict.fromkeys(remedy.file_key for remedy in remedies):
        if key not in files:
            try:
                files[key] = _made(model, key, facts, Path(tempfile.mkdtemp(dir=work)))
            except PipelineError as error:
                failed[key] = error.text
    return files, failed


def _made(model: DoctorModel, key: FileKey, facts: DeviceFacts, folder: Path) -> Path:
    steps, ort_format = key
    path = model.path
    if steps:
        parsed = [parse_step(step) for step in steps]
        path = folder / f"{model.path.stem}.{'+'.join(step.do for step in parsed)}.onnx"
        report = transform_file(SourceModel(path=str(model.path)), parsed, path, data=model.data)
        if report.verification and report.verification.failed:
            wrong = next(check for check in report.verification.checks if check.failed)
            raise ModelError("the changed model's outputs differ", why=wrong.reason)
    return _converted(path, model, facts, folder) if ort_format else path


def _converted(path: Path, model: DoctorModel, facts: DeviceFacts, folder: Path) -> Path:
    """The model in ORT format at level all, fixed style, for the device's processor."""
    platform = _platform_of(facts)
    order = ConversionOrder(
        levels=("all",), styles=("fixed",), release=str(installed_release()), abi=platform.abis[0], platform=platform,
        dimensions={}, output=folder, cache=None,
        check=False, config=False, processes=1, data=model.data,
    )  # fmt: skip
    (converted,) = convert_paths([str(path)], order).converted
    if converted.error:
        raise converted.error
    if not converted.artifacts:
        raise ModelError("it could not be converted", why="; ".join(failure.what for failure in converted.failures))
    return folder / converted.artifacts[0].file


def _platform_of(facts: DeviceFacts) -> OptimizerPlatform:
    on_x86 = any(abi.startswith("x86") for abi in facts.abis)
    return OptimizerPlatform.AMD64 if on_x86 else OptimizerPlatform.ARM


def shell_of(remedy: Remedy, start: RunOptions, facts: DeviceFacts, model: Path) -> MeasuredRemedy:
    """A remedy with how it is set, before it is measured."""
    options = remedy.options(start)
    before, after = (code_for(facts.platform, options_of_run, model.name) for options_of_run in (start, options))
    language = next(iter(after))
    return MeasuredRemedy(
        remedy=remedy,
        run=options_name(options),
        set=tuple(_set(remedy)),
        commands=tuple(_commands(remedy, model, _platform_of(facts))),
        calls=tuple(line for line in after[language] if line and line not in before[language]),
        language=language,
    )


def _set(remedy: Remedy) -> Iterator[str]:
    """The lines of a config that make the change."""
    if remedy.settings:
        yield "[[runs]]"
        yield from (f"{key} = {_toml(value)}" for key, value in remedy.settings.items())
    yield from (f"# [[runs]] session_config: leave out {key}" for key in remedy.without)
    if remedy.level:
        yield "[variants]"
        yield f'levels = ["{remedy.level.value}"]'


def _commands(remedy: Remedy, model: Path, platform: OptimizerPlatform) -> Iterator[str]:
    """The commands that make the change."""
    if remedy.steps:
        steps = " ".join(f"--do '{step}'" for step in remedy.steps)
        yield f"ort-mobile transform {model.name} {model.stem}.changed.onnx {steps}"
    if remedy.ort_format:
        processor = "" if platform is OptimizerPlatform.ARM else f" --target-platform {platform.value}"
        yield f"ort-mobile convert {model.name} --level all --style fixed{processor} --output converted"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    return msgspec.json.encode(value).decode()


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


Tried = tuple[dict[str, MeasuredRemedy], dict[str, PlannedRun]]
"""Remedies before they are measured by name, those that cannot be run with the reason, and the runs of the others."""


def tried_on(bench: DoctorBench, remedies: Sequence[Remedy]) -> Tried:
    """Files and planned runs of remedies."""
    files, failed = make_files(bench.model, remedies, bench.facts, bench.work)
    judge = preflight(bench.perf_order(list(files.values())), bench.device)
    shells = {r.name: shell_of(r, bench.model.start, bench.facts, bench.model.path) for r in remedies}
    planned_runs = {}
    for remedy in remedies:
        why, run = failed.get(remedy.file_key, ""), None
        if not why:
            perf = bench.perf_order([files[remedy.file_key]], [remedy.options(bench.model.start)])
            planned, skipped = planned_files(perf, bench.device.name, bench.facts, judge)
            run, why = (planned[0], "") if planned else (None, skipped[0].what)
        if run:
            planned_runs[remedy.name] = run
        else:
            shells[remedy.name] = msgspec.structs.replace(shells[remedy.name], why=why)
    return shells, planned_runs


log = logging.getLogger(__name__)


def first_look(bench: DoctorBench, start: PlannedRun, inputs: Inputs) -> tuple[ExaminedModel | None, tuple[str, ...]]:
    """Run the start once as it is and once with the profiler, and read the model's graph.

    Where it fails, no model but what was said, why, and what to do.
    """
    usual = bench.device.run(bench.plan("first", [start], inputs).spec(start, 0))
    if usual.failure:
        texts = (usual.failure.message, usual.failure.cause, usual.failure.remedy)
        return None, tuple(text for text in texts if text)
    with tempfile.TemporaryDirectory(dir=bench.work) as folder:
        spec = with_profiler(bench.plan("profile", [start], inputs).spec(start, 0), folder)
        profiled = with_profile(bench.device.run(spec), bench.work / "profile.json.gz")
    release = ".".join(usual.ort_version.split(".")[:2])
    there = [name for name, row in PROVIDERS.items() if row.ort_name in usual.available_providers]
    options = (RunOptions(provider=name) for name in there)
    each_settings = tuple(
        settings for run_options in options if (settings := settings_of(run_options, bench.facts, release))
    )
    (outcome,) = run_tasks(
        [Task(label=str(bench.model.path), call=partial(examine, str(bench.model.path), each_settings))]
    )
    if outcome.error:  # checks that need the graph do not apply then
        log.warning("%s: its graph cannot be read: %s", bench.model.path, outcome.error)
    examined = ExaminedModel(
        suffix=bench.model.path.suffix.lower(), start=bench.model.start, facts=bench.facts, usual=usual,
        profiled=profiled, traits=outcome.value or ModelTraits(), sizes=bench.model.dimensions,
    )  # fmt: skip
    return examined, ()


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
        self, start: PlannedRun, tried: Tried, until: float, name: str, rule: DecisionRule, *, least: int
    ) -> dict[str, MeasuredRemedy]:
        """Every remedy with its numbers, by name; at least so many rounds, also when the time is over.

        With looks in the rule, remedies that are decided are not measured any more.
        """
        shells, planned_runs = tried
        self.judge.lossy |= {planned_id(run) for key, run in planned_runs.items() if shells[key].remedy.lossy}
        runs = [start, *planned_runs.values()]
        campaign = self._campaign(name, runs)
        self.seconds_stored += seconds_of(self.store.runs(campaign))
        with self.bench.progress.stage(name, len(runs) * FEWEST) as stage:
            self._run(campaign, runs, until - self.seconds_stored, stage, rule, least)
        records = self._records(campaign)
        self.of_start = records.get(planned_id(start), [])
        others = {key: records.get(planned_id(run), []) for key, run in planned_runs.items()}
        compared = latency_comparisons(self.of_start, others, rule)
        results = {}
        for key, shell in shells.items():
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
        campaign_name = f"doctor-{name}-{hashlib.sha256(msgspec.json.encode(what, order='sorted')).hexdigest()[:24]}"
        campaign = new_campaign(campaign_name)
        stored = self.store.campaigns(campaign_name) if bench.order.resume else []
        for earlier in reversed(stored):
            turns = OpenTurns([(run, 0) for run in runs], self.store, earlier.id)
            if turns.due() is None:
                return earlier.id
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
        return left.get(device.name, "")

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


FOR_CHECKS = 0.7
"""The share of the time for the checklist; the rest is for the best together."""


def diagnose(order: DoctorOrder, progress: Progress) -> DoctorReport:
    """Diagnose every model; one that fails costs no other. Raises the error of a model that is the only one.

    Raises the first error where no model can be read, and what opening the device raises.
    """
    ready, failed = _usable(order.models)
    with open_bench(opened_alone(order.device, order.wait_seconds, order.library), order.folder, progress) as bench:
        ((name, device),) = bench.devices.items()
        facts = bench.facts[name]
        if facts.readiness.value != "ready":
            raise MissingError(
                "the device is not ready", where=facts.name, why=facts.readiness.value, remedy=facts.advice
            )
        diagnoses = []
        deadline = time.monotonic() + 60 * order.minutes
        for number, model in enumerate(ready):
            folder = bench.work / str(number)
            folder.mkdir()
            seconds = max(0.0, deadline - time.monotonic()) / (len(ready) - number)
            subject = DoctorBench(order=order, model=model, device=device, facts=facts, work=folder, progress=progress)
            try:
                diagnoses.append(_diagnosed(subject, bench.store, seconds))
            except RunnerError as error:
                if len(order.models) == 1:
                    raise
                diagnoses.append(_failed(model, order.device, error))
    return DoctorReport(
        host=host(),
        device=facts,
        margin=order.measure.margin_percent / 100,
        minutes=order.minutes,
        diagnoses=(*diagnoses, *failed),
    )


def exit_code(report: DoctorReport) -> ExitCode:
    """1 where a model could not be diagnosed."""
    return ExitCode.SOME_FAILED if any(diagnosis.failure for diagnosis in report.diagnoses) else ExitCode.DONE


def _usable(models: Sequence[DoctorModel]) -> tuple[list[DoctorModel], list[Diagnosis]]:
    ready, failed, errors = [], [], []
    for model in models:
        try:
            ready.append(checked(model))
        except PipelineError as error:
            errors.append(error)
            failed.append(_failed(model, "", error))
    if errors and not ready:
        raise errors[0]
    return ready, failed


def _failed(model: DoctorModel, device: str, error: RunnerError) -> Diagnosis:
    return Diagnosis(model=str(model.path), device=device, failure=(error.text,))


def _diagnosed(subject: DoctorBench, store: Store, seconds: float) -> Diagnosis:
    began = time.monotonic()
    path, device = str(subject.model.path), subject.device
    perf = subject.perf_order([subject.model.path], [subject.model.start])
    inputs = inputs_of_files(perf, subject.work)[path]
    runs, skipped = planned_files(perf, device.name, subject.facts, preflight(perf, device))
    if not runs:
        return Diagnosis(model=path, device=device.name, failure=(skipped[0].what,))
    model, failure = first_look(subject, runs[0], inputs)
    if model is None:
        return Diagnosis(model=path, device=device.name, failure=failure)
    proposals = [check.propose(model) for check in CHECKS]
    tried = tried_on(subject, [remedy for proposal in proposals for remedy in proposal.remedies])
    rounds = Rounds(subject, store, inputs, OutputsOfStart(runs[0], model.traits.precision))
    rule = replace(subject.rule, looks=LOOKS)
    seconds_before = time.monotonic() - began
    results = rounds.measured(runs[0], tried, began + FOR_CHECKS * seconds, "checks", rule, least=1)
    start = start_of(runs[0].options, rounds.of_start)
    whole = replace(model, usual=typical(model.usual, start))  # of all rounds, where the first look had one
    findings = tuple(
        finding_of_check(
            check, proposal if proposal.remedies else check.propose(whole), [results[r.name] for r in proposal.remedies]
        )
        for check, proposal in zip(CHECKS, proposals, strict=True)
    )
    note = f"the device was left: {rounds.reason}" if rounds.reason else ""
    if not note and rounds.number < FEWEST:
        needed = (seconds_before + rounds.seconds_needed) / FOR_CHECKS
        note = f"the time was too short for {FEWEST} rounds: give --minutes {math.ceil(needed / 60)} or more"
    best = [] if rounds.reason else winners(findings)
    return Diagnosis(
        model=path,
        device=device.name,
        release=model.usual.ort_version,
        start=start,
        findings=findings,
        together=_together(rounds, subject, runs[0], best, began + seconds),
        notes=(note,) if note else (),
        seconds=time.monotonic() - began + rounds.seconds_stored,
    )


def _together(
    rounds: Rounds, subject: DoctorBench, start: PlannedRun, best: Sequence[MeasuredRemedy], until: float
) -> RemediesTogether | None:
    """The winners together, and the best alone, in fresh rounds; None where none won."""
    if not best:
        return None
    alone = best[-1].remedy
    both = together([winner.remedy for winner in best])
    remedies = [both] if len(best) == 1 else [both, alone]
    results = rounds.measured(start, tried_on(subject, remedies), until, "together", subject.rule, least=FEWEST)
    return RemediesTogether(together=results[both.name], alone=results[alone.name] if len(best) > 1 else None)
