"""The whole job in steps, and its campaign: planned, entered in the store, measured, its choice confirmed.

What looks best of many is partly lucky: in the rounds that chose it its interval holds the truth too rarely (measuring
S.3). So the choice and what it is compared with run again, in rounds that choose nothing.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.providers import provider_named
from device_runner.result import Mark, RunResult
from device_runner.spec import TensorFile
from pipeline.accuracy.evaluate import measure_outputs
from pipeline.campaign.measure import CampaignPlan, OpenTurns, looking, runs_left
from pipeline.campaign.plan import (
    ON_THIS_COMPUTER,
    Inputs,
    PlannedRun,
    check_runs,
    distinct,
    in_modes,
    inputs_of,
    known_denied,
    order_of_round,
    plan_runs,
    planned_id,
    recorded,
)
from pipeline.campaign.record import FRESH_FROM, FRESH_ROUNDS, CampaignRecord, JobRecord, Prediction, Skipped
from pipeline.campaign.store import Store, open_store
from pipeline.check.compare import (
    Array,
    OutputCheck,
    beside_simulator,
    compare_outputs,
    read_tensor,
    top1_check,
    with_first_step,
)
from pipeline.check.many import gpu_losses, tolerance_for
from pipeline.check.reference import excused
from pipeline.check.result import Reference
from pipeline.compat.contexts import NpuContext
from pipeline.compat.rules import ReadArtifacts
from pipeline.config import AccuracyConfig, CheckConfig, Config, MeasureMode
from pipeline.core.custom_ops import custom_operators, of_this_computer
from pipeline.core.errors import Finding, PipelineError
from pipeline.core.files import ARTIFACTS, DATABASE, PROFILES, scratch
from pipeline.core.progress import Progress, StageLog
from pipeline.job.assemble import (
    assemble,
    compared_runs,
    conversion_skips,
    host,
    known_on_network,
    model_facts,
    new_campaign,
    notes,
    preparation_failures,
    resume,
    stored_config,
    versions,
)
from pipeline.job.bench import Bench, libraries_by_device, opened, require_devices
from pipeline.job.predict import predict
from pipeline.job.prepare import (
    QUICKER,
    Prepared,
    find,
    left_out,
    numbered,
    oldest_release,
    prepare,
    quick,
    with_accuracy,
)
from pipeline.job.ship import (
    EndedCampaign,
    JobResult,
    check_against_targets,
    close_job,
    possible_runs,
    write_operator_configs,
)
from pipeline.job.stored import keep_campaign, kept_campaigns, locked
from pipeline.release.shipped import custom_findings

log = logging.getLogger(__name__)


def _tensors(files: Sequence[TensorFile]) -> dict[str, Array]:
    return {tensor.name: read_tensor(tensor) for tensor in files}


class OutputJudge:
    """Judges the outputs of runs by the model in its precision; reads each reference once.

    Accuracy is that of the device's own answers on the labelled set, compared with the float original's; it is
    computed for the first round of a planned run, and every round is checked for its agreement.
    """

    def __init__(
        self, references: Mapping[str, Reference], config: CheckConfig, accuracy: AccuracyConfig, artifacts: Path
    ) -> None:
        self.references = references
        self.artifacts = artifacts
        self.accuracy = accuracy
        self.measured: set[str] = set()
        self.tolerances = {model: tolerance_for(reference, config) for model, reference in references.items()}
        self.expected = {model: _tensors(reference.outputs) for model, reference in references.items()}
        self.originals = {model: _tensors(reference.original) for model, reference in references.items()}
        self.simulated = {
            (model, variant): _tensors(files)
            for model, reference in references.items()
            for variant, files in reference.simulated.items()
        }
        self.streamed = {model: _tensors(row.stream.outputs) for model, row in references.items() if row.stream}

    def __call__(self, planned: PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        """The checks of one run; outputs that the device did not hand over fail."""
        model = planned.source
        actual = _tensors(result.outputs)
        expected, original = self.expected[model], self.originals[model]
        tracked: tuple[str, ...] = ()
        stream = self.references[model].stream
        if stream and planned.mode is MeasureMode.STEADY:
            expected, original, tracked = self.streamed[model], {}, stream.stream.tracked
        compared = compare_outputs(expected, actual, self.tolerances[model], original)
        checks = tuple(with_first_step(compared, expected, actual, tracked))
        if planned.device.startswith(ON_THIS_COMPUTER):
            checks = excused(checks, self.artifacts / planned.file, result.cpu)
        elif Mark.SIMULATED not in result.marks:
            checks = tuple(beside_simulator(checks, self.simulated.get((model, planned.variant), {}), actual))
        return (*checks, *self._labelled(planned, result))

    def _labelled(self, planned: PlannedRun, result: RunResult) -> Iterator[OutputCheck]:
        model = planned.source
        labelled = self.references[model].labelled
        if labelled and result.labelled_outputs:
            reference, actual = read_tensor(labelled.outputs), read_tensor(result.labelled_outputs)
            check = top1_check(labelled.outputs.name, reference, actual, self.tolerances[model])
            first = planned_id(planned) not in self.measured
            self.measured.add(planned_id(planned))
            yield self._with_accuracy(check, planned, result.labelled_outputs) if first else check

    def _with_accuracy(self, check: OutputCheck, planned: PlannedRun, outputs: TensorFile) -> OutputCheck:
        """The check with the metric of the outputs; as it is where there are no labels or they do not fit."""
        original = self.references.get(planned.model, self.references[planned.source]).labelled
        if original is None or not original.labels:
            return check
        try:
            named = msgspec.structs.replace(outputs, name=original.outputs.name)
            result = measure_outputs(planned.source, [named], [original.outputs], original.labels, self.accuracy)
        except PipelineError as error:
            log.warning("%s: no accuracy from this device: %s", planned.source, error)
            return check
        if result.value is None or result.reference_value is None:
            return check
        return msgspec.structs.replace(
            check, metric=result.metric, value=result.value, original_value=result.reference_value
        )


def campaign_plan(
    config: Config,
    campaign: str,
    planned_runs: Sequence[PlannedRun],
    folder: Path,
    *,
    references: Mapping[str, Reference],
    inputs: Mapping[str, Inputs],
    libraries: Mapping[str, str | None],
    predictions: Mapping[str, Prediction],
) -> CampaignPlan:
    """What is run of planned runs; references and inputs are by the source of a run, their files in `folder`."""
    return CampaignPlan(
        campaign=campaign,
        planned_runs=planned_runs,
        measure=config.measure,
        conditions=config.conditions,
        artifacts=folder / ARTIFACTS,
        inputs=inputs,
        libraries=libraries,
        judge=OutputJudge(references, config.check, config.accuracy, folder / ARTIFACTS),
        predictions=predictions,
        profiles=folder / PROFILES,
    )


def with_looks(plan: CampaignPlan, planned_runs: Sequence[PlannedRun], store: Store) -> CampaignPlan:
    """The plan with schedules that end rounds early, where that is asked for."""
    return replace(plan, schedules=looking(plan, planned_runs, store)) if plan.measure.rounds == "auto" else plan


def fresh_plan(plan: CampaignPlan, again: Sequence[PlannedRun], store: Store) -> CampaignPlan:
    """The plan of the fresh rounds of some runs."""
    rounds = {name: [run for run in again if run.device == name] for name in {run.device for run in again}}
    schedules = {
        name: OpenTurns(
            ((run, FRESH_FROM + number) for number in range(FRESH_ROUNDS) for run in order_of_round(runs, number)),
            store,
            plan.campaign,
        )
        for name, runs in rounds.items()
    }
    return replace(plan, planned_runs=again, schedules=schedules)


def to_confirm(campaign: CampaignRecord, store: Store) -> dict[str, str]:
    """The runs of every choice that rests on a comparison: ids of planned runs with their devices."""
    assembled = assemble(store, campaign)
    return {
        run.id: run.device
        for choice in assembled.choices
        for run in compared_runs(assembled.record, choice, assembled.report.rows)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What the command line adds to a config."""

    output: Path | None = None
    devices: tuple[str, ...] = ()
    library: str | None = None
    convert_only: bool = False
    resume: bool = False
    blame: bool = False
    """Find the options that crash and keep them in the deny list."""
    quick: bool = False
    """Convert and measure less, for a first look."""
    wait_seconds: float = 0.0
    """How long devices that other processes have are waited for."""


@dataclass(frozen=True, slots=True)
class CampaignJob:
    """A campaign of prepared models: enters it in the store and measures it."""

    config: Config
    options: JobOptions
    prepared: Sequence[Prepared]
    folder: Path
    store: Store
    read: ReadArtifacts
    """What was read of the artifacts."""
    unloadable: dict[str, tuple[str, ...]]
    """By target the artifacts that its library refuses, as MODEL/VARIANT."""
    findings: tuple[Finding, ...] = ()
    """Of these and of the targets' libraries, for the report."""
    hints: tuple[str, ...] = ()
    """What a reader of the report must know of the job as a whole."""
    entered: Callable[[str], object] = str
    """Is told the id of each campaign as soon as it is in the store."""

    def measure(self, work: Path, progress: Progress) -> EndedCampaign:
        """Open the devices, enter the plan, run what is not stored yet, confirm what was chosen in fresh rounds, and
        find what crashes where that is asked; devices that ended early confirm nothing.
        """
        if self.options.convert_only:
            return self.enter({}, [], []), {}, ()
        with self.bench(work, progress) as bench:
            measurable = [a for model in self.prepared for a in model.artifacts if a.source in model.references]
            devices = list(bench.facts.values())
            legal, skipped = plan_runs(self.config.runs, measurable, devices, known_denied(), self.contexts)
            libraries = libraries_by_device(bench.facts, self.config.targets, self.options.library)
            possible, refused = self.possible(legal, bench.devices, libraries)
            runs = in_modes(possible, self.config.measure)
            release = oldest_release(self.config)  # its rules say what is expected of runs
            predictions, placements = predict(runs, bench.facts, release, self.folder / ARTIFACTS, progress)
            losses = self.losses_on_gpus(runs, progress)
            campaign = self.enter(
                bench.facts, runs, [*skipped, *refused, *bench.unusable], losses, placements=placements
            )
            plan = self.plan(campaign.id, distinct(runs), libraries, predictions)
            shorter = "" if self.options.quick else QUICKER
            try:
                left = bench.run(with_looks(plan, runs, self.store), shorter, self._seconds_here(plan))
                chosen, ended = to_confirm(campaign, self.store), set(left)
                again = [run for run in plan.planned_runs if run.device not in ended and planned_id(run) in chosen]
                left |= bench.run(fresh_plan(plan, again, self.store)) if again else {}
            except KeyboardInterrupt as error:
                planned = sum(1 for _ in plan.turns(plan.planned_runs))
                kept = planned - runs_left(plan, self.store).total()
                raise KeyboardInterrupt(
                    f"{kept} of {planned} runs are kept; no report and no bundle were written"
                ) from error
            denied = bench.blame(plan) if self.options.blame else ()
            return campaign, left | bench.away(campaign), denied

    def _seconds_here(self, plan: CampaignPlan) -> float | None:
        """How long a run on this computer takes on average, as long as inferences take that the original took."""
        took = {name: reference.run_seconds for name, reference in self.references.items()}
        seconds = [
            plan.measure.seconds_of(run.mode, took[run.source]) for run in plan.planned_runs if run.device == "local"
        ]
        return sum(seconds) / len(seconds) if seconds else None

    @contextlib.contextmanager
    def bench(self, work: Path, progress: Progress) -> Iterator[Bench]:
        """The devices of the job; with `resume` also those on the network that an adb server has forgotten."""
        asked = self.options.devices
        forgotten = known_on_network(self.store, self.config) if self.options.resume and not asked else []
        names = [*(asked or self.config.devices), *forgotten]
        with opened(names, self.options.wait_seconds) as (devices, facts, unusable):
            yield Bench(devices=devices, facts=facts, unusable=unusable, store=self.store, work=work, progress=progress)

    @property
    def references(self) -> dict[str, Reference]:
        """What the models compute, by the name of a model in a precision."""
        return {name: reference for model in self.prepared for name, reference in model.references.items()}

    @property
    def contexts(self) -> list[NpuContext]:
        """What was compiled for chips and compared in their simulators without being wrong, or cannot be compared."""
        sound = [(model, context) for model in self.prepared for context in model.converted.contexts]
        return [
            context
            for model, context in sound
            if context.not_run
            or ((checks := model.checks.get(context.variant.name)) and not any(check.failed for check in checks))
        ]

    def possible(
        self, legal: Sequence[PlannedRun], devices: Mapping[str, Device], libraries: Mapping[str, str | None]
    ) -> tuple[Sequence[PlannedRun], Sequence[Skipped]]:
        """Runs that the library can load; every one with onnxruntime_perf_test, which brings a library of its own."""
        if self.config.measure.perf_test and not self.options.library:
            return legal, []
        plugins = self.config.measure.plugins
        return possible_runs(legal, self.read, devices, libraries, plugins)

    def losses_on_gpus(self, planned_runs: Iterable[PlannedRun], progress: Progress) -> Iterable[Finding]:
        """What a GPU's half precision does to the models that run on one, once for each in a precision."""
        artifacts = {(a.model, a.variant.name): a for model in self.prepared for a in model.artifacts}
        on_gpu = {
            run.source: artifacts[run.model, run.variant]
            for run in planned_runs
            if provider_named(run.options.provider).gpu and run.file.endswith(".onnx")
        }
        compared = [(artifact, self.references[source]) for source, artifact in on_gpu.items()]
        return gpu_losses(compared, self.folder / ARTIFACTS, progress).values()

    def plan(
        self,
        campaign: str,
        planned_runs: Sequence[PlannedRun],
        libraries: Mapping[str, str | None],
        predictions: Mapping[str, Prediction],
    ) -> CampaignPlan:
        """What is run of planned runs, with the inputs and the judge of their models."""
        inputs = {
            name: inputs_of(model.reference, model.model.dimensions)
            for model in self.prepared
            if model.reference
            for name in model.references
        }
        return campaign_plan(
            self.config, campaign, planned_runs, self.folder,
            references=self.references, inputs=inputs, libraries=libraries, predictions=predictions,
        )  # fmt: skip

    def enter(
        self,
        facts: Mapping[str, DeviceFacts],
        planned_runs: Sequence[PlannedRun],
        skipped: Sequence[Skipped],
        losses: Iterable[Finding] = (),
        **fields: Any,
    ) -> CampaignRecord:
        """Store the plan before anything is measured; with `resume` the last one of the same plan goes on.

        `losses` are warnings about its runs, `fields` more of the record's.
        """
        prepared = self.prepared
        record = JobRecord(
            config=stored_config(self.config),
            host=host(),
            versions=versions(),
            models=tuple(map(model_facts, prepared)),
            planned=tuple(recorded(planned_runs, self.config.measure.baseline)),
            skipped=(*conversion_skips(prepared), *skipped),
            failures=tuple(preparation_failures(prepared)),
            warnings=(*notes(prepared, self.hints), *self.findings, *losses),
            unloadable=self.unloadable,
            checks={model.name: model.checks for model in prepared},
            references=self.references,
            tables={model.name: model.table for model in prepared},
            contexts=tuple(context for model in prepared for context in model.converted.contexts),
            accuracy=tuple(accuracy for model in prepared for accuracy in model.accuracy),
            searches=tuple(search for model in prepared for search in model.searches),
        )
        record = msgspec.structs.replace(record, **fields)
        artifacts = [artifact for model in prepared for artifact in model.artifacts]
        campaign = resume(self.store, record, artifacts, facts) if self.options.resume else None
        if campaign is None:
            campaign = new_campaign(self.config.name, record)
            self.store.start(campaign, facts.values(), artifacts)
        self.entered(campaign.id)
        return campaign


def output_folder(config: Config, options: JobOptions) -> Path:
    """Where results go: the command line goes before the config, the config before output/NAME."""
    return options.output or Path(config.output.folder or Path("output") / config.name)


def _with_kept_database(config: Config, folder: Path) -> Config:
    """The config with the database that the folder keeps, where it names none itself: there is what is to go on."""
    database = config.output.database or kept_campaigns(folder).database
    return msgspec.structs.replace(config, output=msgspec.structs.replace(config.output, database=database))


Measure = Callable[[CampaignJob, Path, Progress], EndedCampaign]
"""How a prepared job is measured, with a folder for what is left of its runs."""


def run_job(config: Config, options: JobOptions, shown: Progress, measure: Measure = CampaignJob.measure) -> JobResult:
    """Do the whole job; raises PipelineError when nothing of it can be done."""
    progress = StageLog(shown)
    with prepared_job(config, options, progress) as (job, work):
        return close_job(job.store, job.folder, measure(job, work, progress), options.library, progress)


@contextlib.contextmanager
def prepared_job(config: Config, options: JobOptions, progress: Progress) -> Iterator[tuple[CampaignJob, Path]]:
    """The job with everything before its first run done, and a folder for what is left of runs."""
    check_runs(config.runs)
    hints: tuple[str, ...] = (left_out(config),) if options.quick else ()
    config = quick(config) if options.quick else config
    for target in config.targets:
        tuple(custom_findings(config, target))  # what is missing is said before anything is written
    of_this_computer(config.custom_ops)
    folder = output_folder(config, options)
    config = _with_kept_database(config, folder) if options.resume else config
    models = find(config)
    hints += numbered(models)
    if not (options.convert_only or options.resume):  # to go on costs no conversion, and the store knows more devices
        require_devices(options.devices or config.devices, options.library, options.wait_seconds)
    with custom_operators(config.custom_ops, "custom_ops"), locked(folder), scratch(folder) as work:
        prepared, sets = prepare(config, models, folder, work, progress)
        prepared = with_accuracy(prepared, sets, config, folder, progress)
        artifacts = [artifact for model in prepared for artifact in model.artifacts]
        write_operator_configs(config, folder, [folder / ARTIFACTS / artifact.file for artifact in artifacts])
        read, unloadable, findings = check_against_targets(config, artifacts, folder)
        entered = partial(keep_campaign, folder, database=config.output.database)
        # The database of a job: the config's, or a file in its output folder.
        with open_store(config.output.database or f"sqlite:///{folder / DATABASE}") as store:
            yield CampaignJob(
                config, options, prepared, folder, store, read, unloadable, findings, hints, entered
            ), work  # fmt: skip
