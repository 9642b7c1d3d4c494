"""Diagnosing models on a device: the start measured once as it is, then files of remedies beside it in rounds."""

import hashlib
import logging
import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from device_runner import options as runner_options
from device_runner import profile as ort_profile
from device_runner import providers as runner_providers
from device_runner.errors import RunnerError
from device_runner.result import RunResult
from device_runner.spec import RunOptions
from pipeline import config as configs
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import compare as run_compare
from pipeline.check import compare as output_compare
from pipeline.check.compare import Array, OutputCheck
from pipeline.config import Config
from pipeline.convert import command_job
from pipeline.convert import request as convert_request
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core import releases as ort_releases
from pipeline.core import workers
from pipeline.core.errors import ConfigError, MissingError, ModelError, PipelineError
from pipeline.core.progress import Progress
from pipeline.dataset import dataset
from pipeline.dataset import guess as data_guess
from pipeline.features.doctor import diagnosis
from pipeline.features.doctor.checks import CHECKS
from pipeline.features.doctor.examined import ExaminedModel, examine
from pipeline.features.doctor.finding import MeasuredRemedy, Remedy, together
from pipeline.job import bench as job_bench
from pipeline.job import campaigns, file_runs, models, predicted, template
from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel
from pipeline.passes import registry
from pipeline.passes import run as passes_run
from pipeline.release import app_code

log = logging.getLogger(__name__)


SUFFIXES = (".onnx", ".ort")


def orders_of_config(config: Config) -> list[file_runs.PerfOrder]:
    """The models of a config, each with the first combination of its first [[runs]]; those in archives are no files."""
    start = run_options.run_options(config.runs[0] if config.runs else configs.RunConfig())[0]
    return [
        file_runs.PerfOrder(
            files=(Path(model.source.name),),
            options=(start,),
            device=config.devices[0],
            library=None,
            dimensions=table.sizes,
            measure=config.measure,
            data=dataset.dataset_of(table),
            conditions=config.conditions,
        )
        for model, table in models.find(config)
    ]


def checked(order: file_runs.PerfOrder) -> file_runs.PerfOrder:
    """One model to start from, with data and sizes for its inputs, guessed where they are not given.

    ConfigError for a path that is no model file and for options that make no sense, ModelError for a broken model.
    """
    (path,), (start,) = order.files, order.options
    model_sources.require_model_file(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            "this is no model file",
            where=str(path),
            why=f"its name does not end in {' or '.join(SUFFIXES)}",
            remedy="name an .onnx or .ort file, or a config (.toml)",
        )
    if (failure := runner_options.illegal(start)) is not None:
        raise ConfigError(failure.what, where=run_options.options_name(start), remedy=failure.remedy)
    if path.suffix.lower() != ".onnx":
        return order
    data = template.data_beside(path, msgspec.structs.replace(order.data, sizes=dict(order.dimensions)))
    if order.dimensions or data.test_data:
        return replace(order, data=data)
    guess = template.guess_for(path, data)
    if guess.missing:
        raise data_guess.no_size(str(path), guess.missing, guess.why)
    if guess.texts:
        raise data_guess.no_text(str(path), list(guess.texts))
    values = msgspec.structs.replace(data, inputs=guess.values | data.inputs)
    return replace(order, data=values, dimensions=guess.dimensions)


FEWEST, MOST = run_compare.LOOKS[0], run_compare.LOOKS[-1]
"""Rounds: fewer give no verdict, and more are not worth the device's time."""

NO_RANKS = "these times cannot be compared: they are not those of a phone"


def seconds_of(runs: Iterable[RunRecord]) -> float:
    """The device's time that runs took."""
    return sum(run.result.elapsed_ns for run in runs) / 1e9


FileKey = tuple[tuple[str, ...], bool]

Tried = tuple[dict[str, MeasuredRemedy], dict[str, campaign_planned.PlannedRun]]
"""Remedies before they are measured by name, those that cannot be run with the reason, and the runs of the others."""


class ModelOnDevice:
    """One model on the only device of a bench: the files of remedies, and rounds of these beside the start.

    Rounds end at a time, or when all remedies are decided; what is decided is not measured any more. `start` are the
    options that remedies change, `base` is the run of the model as it is with them; outputs are compared at its
    `precision`.
    """

    def __init__(
        self,
        order: file_runs.PerfOrder,
        bench: campaign_measure.Bench,
        work: Path,
        inputs: campaign_planned.Inputs,
        base: campaign_planned.PlannedRun,
        *,
        resume: bool,
    ) -> None:
        ((name, self.device),) = bench.devices.items()
        self.order, self.facts, self.store, self.progress = order, bench.facts[name], bench.store, bench.progress
        self.work, self.inputs, self.base, self.resume = work, inputs, base, resume
        self.model, self.start = order.files[0], order.options[0]
        self.rule = run_compare.DecisionRule(
            margin=order.measure.margin_percent / 100, least=order.measure.least_percent / 100
        )
        on_x86 = any(abi.startswith("x86") for abi in self.facts.abis)
        self.platform = convert_request.OptimizerPlatform.AMD64 if on_x86 else convert_request.OptimizerPlatform.ARM
        self.precision = output_compare.OutputPrecision.FLOAT32
        self.lossy: set[str] = set()
        self.expected: dict[str, Array] = {}
        self.of_base: list[RunRecord] = []
        self.reason = ""
        self.seconds_needed = 0.0
        self.seconds_stored = 0.0

    def plan(self, campaign: str, runs: Sequence[campaign_planned.PlannedRun]) -> campaign_measure.CampaignPlan:
        """Every run gets the same inputs."""
        return campaign_measure.CampaignPlan(
            campaign=campaign,
            planned_runs=runs,
            measure=self.order.measure,
            conditions=self.order.conditions,
            artifacts=Path(),
            inputs={run.source: self.inputs for run in runs},
            libraries={self.device.name: self.order.library},
            check=None,
        )

    def _made(self, remedy: Remedy, folder: Path) -> Path:
        """The file that a remedy runs; outputs of one that passes changed are compared with the model's."""
        path = self.model
        if remedy.steps:
            parsed = [registry.parse_step(step) for step in remedy.steps]
            path = folder / f"{self.model.stem}.{'+'.join(step.do for step in parsed)}.onnx"
            report = passes_run.transform_file(SourceModel(path=str(self.model)), parsed, path, data=self.order.data)
            if report.verification and report.verification.failed:
                wrong = next(check for check in report.verification.checks if check.failed)
                raise ModelError("the changed model's outputs differ", why=wrong.reason)
        if not remedy.ort_format:
            return path
        job = command_job.ConversionJob(
            levels=("all",),
            styles=("fixed",),
            release=str(ort_releases.installed_release()),
            abi=self.platform.abis[0],
            platform=self.platform,
            dimensions={},
            output=folder,
            cache=None,
            check=False,
            config=False,
            processes=1,
            data=self.order.data,
        )
        (converted,) = command_job.convert_paths([str(path)], job).converted
        if converted.error:
            raise converted.error
        if not converted.artifacts:
            raise ModelError("it could not be converted", why="; ".join(failure.what for failure in converted.failures))
        return folder / converted.artifacts[0].file

    def setting(self, remedy: Remedy) -> MeasuredRemedy:
        """A remedy with how it is set, before it is measured."""
        options, name = remedy.options(self.start), self.model.name
        before, after = (app_code.code_for(self.facts.platform, candidate, name) for candidate in (self.start, options))
        language = next(iter(after))
        lines, commands = [], []  # of a config, and what makes the file
        changed = name  # what the next command takes
        if remedy.settings:
            lines += ["[[runs]]", *(f"{key} = {_toml(value)}" for key, value in remedy.settings.items())]
        lines += [f"# [[runs]] session_config: leave out {key}" for key in remedy.without]
        if remedy.level:
            lines += ["[variants]", f'levels = ["{remedy.level.value}"]']
        if remedy.steps:
            steps = " ".join(f"--do '{step}'" for step in remedy.steps)
            changed = f"{self.model.stem}.changed.onnx"
            commands.append(f"ort-mobile transform {name} {changed} {steps}")
        if remedy.ort_format:
            on_arm = self.platform is convert_request.OptimizerPlatform.ARM
            processor = "" if on_arm else f" --target-platform {self.platform.value}"
            commands.append(f"ort-mobile convert {changed} --level all --style fixed{processor} --output converted")
        return MeasuredRemedy(
            remedy=remedy,
            run=run_options.options_name(options),
            set=tuple(lines),
            commands=tuple(commands),
            calls=tuple(str(line) for line in after[language] if line and line not in before[language]),
            language=language,
        )

    def tried(self, remedies: Sequence[Remedy]) -> Tried:
        """Files and planned runs of remedies; those with the same key run the same file."""
        files: dict[FileKey, Path] = {((), False): self.model}
        failed: dict[FileKey, str] = {}
        for remedy in remedies:
            if remedy.file_key not in files and remedy.file_key not in failed:
                try:
                    files[remedy.file_key] = self._made(remedy, Path(tempfile.mkdtemp(dir=self.work)))
                except PipelineError as error:
                    failed[remedy.file_key] = error.text
        findings_of = file_runs.preflight(replace(self.order, files=tuple(files.values()), options=()), self.device)
        shells = {remedy.name: self.setting(remedy) for remedy in remedies}
        planned_runs = {}
        for remedy in remedies:
            why = failed.get(remedy.file_key, "")
            if not why:
                perf = replace(self.order, files=(files[remedy.file_key],), options=(remedy.options(self.start),))
                planned, skipped = file_runs.planned_files(perf, self.device.name, self.facts, findings_of)
                if planned:
                    planned_runs[remedy.name] = planned[0]
                    continue
                why = skipped[0].what
            shells[remedy.name] = msgspec.structs.replace(shells[remedy.name], why=why)
        return shells, planned_runs

    def measured(
        self, tried: Tried, until: float, name: str, rule: run_compare.DecisionRule, *, least: int
    ) -> dict[str, MeasuredRemedy]:
        """Every remedy with its numbers, by name; at least so many rounds, also when the time is over.

        With looks in the rule, remedies that are decided are not measured any more.
        """
        shells, planned_runs = tried
        self.lossy |= {run.id for key, run in planned_runs.items() if shells[key].remedy.lossy}
        runs = [self.base, *planned_runs.values()]
        campaign = self._campaign(name, runs)
        self.seconds_stored += seconds_of(self.store.runs(campaign))
        with self.progress.stage(name, len(runs) * FEWEST) as stage:
            self._run(campaign, runs, until - self.seconds_stored, stage, rule, least)
        records = self._records(campaign)
        self.of_base = records.get(self.base.id, [])
        others = {key: records.get(run.id, []) for key, run in planned_runs.items()}
        compared = diagnosis.latency_comparisons(self.of_base, others, rule)
        results = {}
        for key, shell in shells.items():
            remedy = diagnosis.measured(shell, self.of_base, others.get(key, []), compared.get(key), rule)
            few = self.reason or f"the time was over before {FEWEST} rounds"
            why = few if remedy.rounds < FEWEST else "" if remedy.latency else NO_RANKS
            results[key] = msgspec.structs.replace(remedy, why=remedy.why or why)
        return results

    def _campaign(self, name: str, runs: Sequence[campaign_planned.PlannedRun]) -> str:
        """The campaign to go on with, where that is asked for and it has a whole first round; else a new one.

        Without the first round's start there is nothing that the other outputs could be compared with.
        """
        library = self.device.library_for(self.order.library).sha256
        what = (self.device.name, library, runs[0].sha256, [run.text for run in runs], self.order.measure)
        campaign_name = f"doctor-{name}-{hashlib.sha256(msgspec.json.encode(what, order='sorted')).hexdigest()[:24]}"
        for earlier in reversed(self.store.campaigns(campaign_name) if self.resume else []):
            turns = campaign_measure.OpenTurns([(run, 0) for run in runs], self.store, earlier.id)
            if turns.due() is None:
                return earlier.id
        campaign = campaigns.new_campaign(campaign_name)
        self.store.start(campaign, [self.facts])
        return campaign.id

    def _run(
        self,
        campaign: str,
        going: list[campaign_planned.PlannedRun],
        until: float,
        stage: core_progress.Stage,
        rule: run_compare.DecisionRule,
        least: int,
    ) -> None:
        """Run round after round what goes on, of which the start is first; `reason` says why the device was left."""
        device, seconds = self.device, 0.0

        def show(_device: str, run: campaign_planned.PlannedRun, number: int) -> None:
            stage.at(f"round {number + 1}: {run.way}")
            if number < FEWEST:
                stage.done()

        for number in range(1, MOST + 1):
            began = time.monotonic()
            if number > least and began + seconds > until:
                return
            plan = self.plan(campaign, going)
            rounds = msgspec.structs.replace(plan.measure, rounds=number, profile=False)
            plan = replace(plan, measure=rounds, check=self._checks if number == 1 else None)
            left = campaign_measure.measure(plan, {device.name: device}, self.store, self.work, show)
            if reason := left.get(device.name, ""):
                self.reason = reason
                return
            self.reason = ""
            seconds = max(time.monotonic() - began, seconds_of(self.store.runs(campaign, number=number - 1)))
            if number == 1:
                self.seconds_needed = FEWEST * seconds
                if least < FEWEST:
                    # The start and as many of the fastest as FEWEST rounds have time for; always one
                    time_left = max(0.0, until - time.monotonic())
                    count = max(2, int(time_left / max(seconds, 1e-9) * len(going) / (FEWEST - 1)))
                    first = {run.planned: run.result.median_ns for run in self.store.runs(campaign, number=0)}
                    fastest = sorted(going[1:], key=lambda run: first.get(run.id) or math.inf)[: count - 1]
                    going = [run for run in going if run is going[0] or run in fastest]
            if number in rule.looks:
                # Without the remedies of which it is known whether they are faster
                records = self._records(campaign)
                groups = [
                    campaign_record.rounds_of(records.get(name, []), name) for name in (planned.id for planned in going)
                ]
                kept = {group.key for group in run_compare.undecided(groups[1:], groups[0], rule)}
                going = [going[0], *(run for run in going[1:] if run.id in kept)]
            if len(going) < 2:
                return

    def _records(self, campaign: str) -> dict[str, list[RunRecord]]:
        return counting.grouped((record.planned, record) for record in self.store.runs(campaign))

    def _checks(self, planned: campaign_planned.PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        """Outputs compared with those that the start gave in its first run; none where it gave no outputs."""
        actual = {tensor.name: output_compare.read_tensor(tensor) for tensor in result.outputs}
        if planned.id == self.base.id:
            self.expected = self.expected or actual
            return ()
        lossy = planned.id in self.lossy
        tolerance = output_compare.usual_tolerance(output_compare.OutputPrecision.FLOAT16 if lossy else self.precision)
        return tuple(output_compare.compare_outputs(self.expected, actual, tolerance))


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(nested)}" for key, nested in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    return msgspec.json.encode(value).decode()


FOR_CHECKS = 0.7
"""The share of the time for the checklist; the rest is for the best together."""


def diagnose(
    orders: Sequence[file_runs.PerfOrder],
    progress: Progress,
    *,
    minutes: float = 5.0,
    folder: Path | None = None,
    resume: bool = False,
) -> diagnosis.DoctorReport:
    """Diagnose every model, each an order with one file and one set of options, all on the device of the first.

    One that fails costs no other. `minutes` are for all together; `folder` is where runs are stored, None keeps none;
    with `resume` the last diagnosis of the same model, device and settings that is stored there goes on. Raises the
    error of a model that is the only one, the first error where no model can be read, and what opening the device
    raises.
    """
    ready: list[file_runs.PerfOrder] = []
    failed: list[diagnosis.Diagnosis] = []
    errors: list[PipelineError] = []
    for order in orders:
        try:
            ready.append(checked(order))
        except PipelineError as error:
            errors.append(error)
            failed.append(diagnosis.Diagnosis(model=str(order.files[0]), device="", failure=(error.text,)))
    if errors and not ready:
        raise errors[0]
    of_all = orders[0]
    with job_bench.open_bench(
        job_bench.opened_alone(of_all.device, of_all.wait_seconds, of_all.library), folder, progress
    ) as bench:
        (facts,) = bench.facts.values()
        if facts.readiness.value != "ready":
            raise MissingError(
                "the device is not ready", where=facts.name, why=facts.readiness.value, remedy=facts.advice
            )
        diagnoses = []
        deadline = time.monotonic() + 60 * minutes
        for number, order in enumerate(ready):
            work = bench.work / str(number)
            work.mkdir()
            seconds = max(0.0, deadline - time.monotonic()) / (len(ready) - number)
            try:
                diagnoses.append(_diagnosed(order, bench, work, seconds, resume=resume))
            except RunnerError as error:
                if len(orders) == 1:
                    raise
                diagnoses.append(
                    diagnosis.Diagnosis(model=str(order.files[0]), device=order.device, failure=(error.text,))
                )
    return diagnosis.DoctorReport(
        host=campaigns.host(),
        device=facts,
        margin=of_all.measure.margin_percent / 100,
        minutes=minutes,
        diagnoses=(*diagnoses, *failed),
    )


def _diagnosed(
    order: file_runs.PerfOrder, bench: campaign_measure.Bench, work: Path, seconds: float, *, resume: bool
) -> diagnosis.Diagnosis:
    began = time.monotonic()
    path, ((name, device),) = str(order.files[0]), bench.devices.items()
    inputs = file_runs.inputs_of_files(order, work)[path]
    runs, skipped = file_runs.planned_files(order, name, bench.facts[name], file_runs.preflight(order, device))
    if not runs:
        return diagnosis.Diagnosis(model=path, device=name, failure=(skipped[0].what,))
    subject = ModelOnDevice(order, bench, work, inputs, runs[0], resume=resume)

    # The start once as it is and once with the profiler, and the model's graph: what checks decide by
    usual = device.run(subject.plan("first", runs[:1]).spec(runs[0], 0))
    if usual.failure:
        texts = (usual.failure.what, usual.failure.why, usual.failure.remedy)
        return diagnosis.Diagnosis(model=path, device=name, failure=tuple(text for text in texts if text))
    with tempfile.TemporaryDirectory(dir=work) as folder:
        spec = ort_profile.with_profiler(subject.plan("profile", runs[:1]).spec(runs[0], 0), folder)
        profiled = ort_profile.with_profile(device.run(spec), work / "profile.json.gz")
    release = ".".join(usual.ort_version.split(".")[:2])
    options = (
        RunOptions(provider=name)
        for name, provider in runner_providers.PROVIDERS.items()
        if provider.ort_name in usual.available_providers
    )
    settings = tuple(
        claim_settings
        for candidate in options
        if (claim_settings := predicted.settings_of(candidate, subject.facts, release))
    )
    model = ExaminedModel(
        path=path, start=subject.start, facts=subject.facts, usual=usual, profiled=profiled, sizes=order.dimensions
    )
    (outcome,) = workers.run_tasks([workers.Task(label=path, call=partial(examine, model, settings))])
    if outcome.error:  # checks that need the graph do not apply then
        log.warning("%s: its graph cannot be read: %s", path, outcome.error)
    model = outcome.value or model

    # Every remedy beside the start
    proposals = [propose(check, model) for check, propose in CHECKS]
    tried = subject.tried([proposed.remedy for proposal in proposals for proposed in proposal.measured])
    subject.precision = model.precision
    rule = replace(subject.rule, looks=run_compare.LOOKS)
    seconds_before = time.monotonic() - began
    results = subject.measured(tried, began + FOR_CHECKS * seconds, "checks", rule, least=1)
    start = diagnosis.start_of(subject.start, subject.of_base)
    whole = replace(model, usual=diagnosis.typical(model.usual, start))  # of all rounds, where the first look had one
    findings = tuple(
        diagnosis.finding_of_check(proposal, [results[proposed.remedy.name] for proposed in proposal.measured])
        if proposal.measured
        else diagnosis.finding_of_check(propose(check, whole), [])
        for (check, propose), proposal in zip(CHECKS, proposals, strict=True)
    )
    note = f"the device was left: {subject.reason}" if subject.reason else ""
    if not note and len(subject.of_base) < FEWEST:  # with those of the run that is resumed
        needed = (seconds_before + subject.seconds_needed) / FOR_CHECKS
        note = f"the time was too short for {FEWEST} rounds: give --minutes {math.ceil(needed / 60)} or more"

    # The winners together, and the best alone, in fresh rounds
    trial = None
    if best := [] if subject.reason else diagnosis.winners(findings):
        alone, both = best[-1].remedy, together([winner.remedy for winner in best])
        shells = subject.tried([both] if len(best) == 1 else [both, alone])
        again = subject.measured(shells, began + seconds, "together", subject.rule, least=FEWEST)
        trial = diagnosis.RemediesTogether(
            together=again[both.name], alone=again[alone.name] if len(best) > 1 else None
        )
    return diagnosis.Diagnosis(
        model=path,
        device=name,
        release=usual.ort_version,
        start=start,
        findings=findings,
        together=trial,
        notes=(note,) if note else (),
        seconds=time.monotonic() - began + subject.seconds_stored,
    )
