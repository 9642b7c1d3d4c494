"""The whole job in steps, and its campaign: planned, entered in the store, measured, its choice confirmed.

What looks best of many is partly lucky: in the rounds that chose it its interval holds the truth too rarely (measuring
S.3). So the choice and what it is compared with run again, in rounds that choose nothing.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from device_runner import providers as runner_providers
from device_runner.device import Device, DeviceFacts
from device_runner.spec import TensorFile
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import run_options
from pipeline.campaign import specs as campaign_specs
from pipeline.campaign import store as campaign_store
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store
from pipeline.check import compare as output_compare
from pipeline.check import many as check_many
from pipeline.check import result as check_result
from pipeline.compat import contexts as npu_contexts
from pipeline.compat import rules as compat_rules
from pipeline.config import Config
from pipeline.convert import onnx_needs
from pipeline.core import custom_ops as core_custom_ops
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core import progress as core_progress
from pipeline.core.errors import Finding
from pipeline.core.progress import Progress
from pipeline.job import campaigns, forecast
from pipeline.job.accuracies import with_accuracy
from pipeline.job.assemble import Assembled, EndedCampaign, assemble, close_job
from pipeline.job.bench import libraries_by_device, opened, require_devices
from pipeline.job.campaign_plan import campaign_plan, fresh_plan
from pipeline.job.campaigns import known_on_network, new_campaign, resume, stored_config, versions
from pipeline.job.choices import compared_runs
from pipeline.job.models import find
from pipeline.job.objections import check_against_targets
from pipeline.job.possible import possible_runs
from pipeline.job.predicted import predict
from pipeline.job.prepare import Prepared, prepare
from pipeline.job.quick import QUICKER, left_out, quick, with_none
from pipeline.job.stored import keep_campaign, kept_campaigns, locked
from pipeline.model import sources as model_sources
from pipeline.partition import placement as node_placement
from pipeline.release import custom_ops as release_custom_ops
from pipeline.release import shipped as release_shipped
from pipeline.report import growth

log = logging.getLogger(__name__)


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
    prove: bool = True
    """Run the bundle in the libraries that ship; without, the report has that as a reservation."""
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
    read: compat_rules.ReadArtifacts
    """What was read of the artifacts."""
    unloadable: dict[str, tuple[str, ...]]
    """By target the artifacts that its library refuses, as MODEL/VARIANT."""
    findings: tuple[Finding, ...] = ()
    """Of these and of the targets' libraries, for the report."""
    hints: tuple[str, ...] = ()
    """What a reader of the report must know of the job as a whole."""
    entered: Callable[[str], object] = str
    """Is told the id of each campaign as soon as it is in the store."""
    begun: float = field(default_factory=time.monotonic)
    """When the job began, by time.monotonic."""

    def measure(self, work: Path, progress: Progress) -> EndedCampaign:
        """Open the devices, enter the plan, run what is not stored yet, confirm what was chosen in fresh rounds, and
        find what crashes where that is asked; devices that ended early confirm nothing.
        """
        if self.options.convert_only:
            return EndedCampaign(campaign=self.enter({}, [], []))
        with self.bench(work, progress) as bench:
            measurable = [
                a
                for prepared_model in self.prepared
                for a in prepared_model.artifacts
                if a.source in prepared_model.references
            ]
            devices = list(bench.facts.values())
            legal, skipped = planning.plan_runs(
                self.config.runs, measurable, devices, campaign_denied.known_denied(), self.contexts
            )
            libraries = libraries_by_device(bench.facts, self.config.targets, self.options.library)
            possible, refused = self.possible(legal, bench.devices, libraries, change_layout=True)
            runs = planning.in_modes(possible, self.config.measure)
            predictions, placements = predict(
                runs, bench.facts, self.config.targets, self.folder / storage.ARTIFACTS, progress
            )
            # What a GPU's half precision does to the models that run on one, once for each in a precision.
            artifacts = {
                (a.model, a.variant.name): a for prepared_model in self.prepared for a in prepared_model.artifacts
            }
            on_gpu = {
                run.source: artifacts[run.model, run.variant]
                for run in runs
                if runner_providers.provider_named(run.options.provider).gpu and run.file.endswith(".onnx")
            }
            compared = [(artifact, self.references[source]) for source, artifact in on_gpu.items()]
            losses = check_many.gpu_losses(compared, self.folder / storage.ARTIFACTS, progress).values()
            campaign = self.enter(
                bench.facts, runs, [*skipped, *refused, *bench.unusable], losses, placements=placements
            )
            plan = self.plan(campaign.id, planning.distinct(runs), libraries, predictions)
            mean = forecast.here_seconds(plan.planned_runs, plan.measure, self.references)
            if line := self.total(plan, mean):
                progress.tell(line)
            shorter = "" if self.options.quick else QUICKER
            try:
                left = bench.run(campaign_measure.with_looks(plan, runs, self.store), shorter, mean)
                chosen, ended = to_confirm(campaign, self.store), set(left)
                again = [run for run in plan.planned_runs if run.device not in ended and run.id in chosen]
                left |= bench.run(fresh_plan(plan, again, self.store)) if again else {}
            except KeyboardInterrupt as error:
                planned = sum(1 for _ in plan.turns(plan.planned_runs))
                kept = planned - campaign_measure.runs_left(plan, self.store).total()
                raise KeyboardInterrupt(
                    f"{kept} of {planned} runs are kept; no report and no bundle were written"
                ) from error
            denied = bench.blame(plan) if self.options.blame else ()
            return EndedCampaign(campaign=campaign, left=left | bench.away(campaign), denied=denied)

    def total(self, plan: campaign_measure.CampaignPlan, run_seconds: float | None) -> str:
        """About how long the whole job takes, said before its first run; "" where that is soon."""
        proves = self.options.prove and release_shipped.libraries_of(self.config.targets, self.options.library)
        return forecast.total_text(
            time.monotonic() - self.begun,
            campaign_measure.runs_left(plan, self.store),
            run_seconds,
            sum(bool(prepared_model.artifacts) for prepared_model in self.prepared),
            auto=plan.measure.rounds == "auto",
            proof="the proof in the libraries that ship" if proves else "",
            proof_seconds=forecast.last_proof_seconds(self.store, self.config.name) if proves else None,
        )

    @contextlib.contextmanager
    def bench(self, work: Path, progress: Progress) -> Iterator[campaign_measure.Bench]:
        """The devices of the job; with `resume` also those on the network that an adb server has forgotten."""
        asked = self.options.devices
        forgotten = known_on_network(self.store, self.config) if self.options.resume and not asked else []
        names = [*(asked or self.config.devices), *forgotten]
        with opened(names, self.options.wait_seconds) as ready:
            yield ready.bench(self.store, work, progress)

    @property
    def references(self) -> dict[str, check_result.Reference]:
        """What the models compute, by the name of a model in a precision."""
        return {
            name: reference for prepared_model in self.prepared for name, reference in prepared_model.references.items()
        }

    @property
    def contexts(self) -> list[npu_contexts.NpuContext]:
        """What was compiled for chips and compared in their simulators without being wrong, or cannot be compared."""
        return [
            context
            for prepared_model in self.prepared
            for context in prepared_model.converted.contexts
            if context.not_run or output_compare.sound(prepared_model.checks.get(context.variant.name, ()))
        ]

    def possible(
        self,
        legal: Sequence[campaign_planned.PlannedRun],
        devices: Mapping[str, Device],
        libraries: Mapping[str, str | None],
        *,
        change_layout: bool = False,
    ) -> tuple[Sequence[campaign_planned.PlannedRun], Sequence[campaign_record.Skipped]]:
        """Runs that the library can load; every one with onnxruntime_perf_test, which brings a library of its own.

        `change_layout` is as for `possible_runs`.
        """
        if self.config.measure.perf_test and not self.options.library:
            return legal, []
        plugins = self.config.measure.plugins
        return possible_runs(legal, self.read, devices, libraries, plugins, change_layout=change_layout)

    def plan(
        self,
        campaign: str,
        planned_runs: Sequence[campaign_planned.PlannedRun],
        libraries: Mapping[str, str | None],
        predictions: Mapping[str, campaign_record.Prediction],
    ) -> campaign_measure.CampaignPlan:
        """What is run of planned runs, with the inputs of their models and the check of their outputs."""
        inputs = {
            name: campaign_specs.inputs_of(prepared_model.reference, prepared_model.model.dimensions)
            for prepared_model in self.prepared
            if prepared_model.reference
            for name in prepared_model.references
        }
        return campaign_plan(
            self.config,
            campaign,
            planned_runs,
            self.folder,
            references=self.references,
            inputs=inputs,
            libraries=libraries,
            predictions=predictions,
        )

    def enter(
        self,
        facts: Mapping[str, DeviceFacts],
        planned_runs: Sequence[campaign_planned.PlannedRun],
        skipped: Sequence[campaign_record.Skipped],
        losses: Iterable[Finding] = (),
        *,
        placements: tuple[node_placement.Placement, ...] = (),
        searching: bool = False,
        tuned: tuple[campaign_tuned.TunedModel, ...] = (),
        more_versions: Mapping[str, str] = {},
    ) -> CampaignRecord:
        """Store the plan before anything is measured; with `resume` the last one of the same plan goes on.

        `losses` are warnings about its runs, the rest is as in the record.
        """
        prepared = self.prepared
        record = campaign_record.JobRecord(
            config=stored_config(self.config),
            host=campaigns.host(),
            versions={**versions(), **more_versions},
            models=tuple(map(_model_facts, prepared)),
            planned=tuple(planning.recorded(planned_runs, self.config.measure.baseline)),
            skipped=(*_unmade(prepared), *skipped),
            failures=tuple(_failures(prepared)),
            warnings=(*notes(prepared, self.hints), *self.findings, *losses),
            unloadable=self.unloadable,
            checks={prepared_model.name: prepared_model.checks for prepared_model in prepared},
            references=self.references,
            tables={prepared_model.name: prepared_model.table for prepared_model in prepared},
            contexts=tuple(context for prepared_model in prepared for context in prepared_model.converted.contexts),
            accuracy=tuple(accuracy for prepared_model in prepared for accuracy in prepared_model.accuracy),
            searches=tuple(
                campaign_record.PrecisionSearch(model=prepared_model.name, precision=form.precision, search=form.search)
                for prepared_model in prepared
                for form in prepared_model.converted.models
                if form.search
            ),
            searching=searching,
            tuned=tuned,
            placements=placements,
        )
        artifacts = [artifact for prepared_model in prepared for artifact in prepared_model.artifacts]
        campaign = resume(self.store, record, artifacts, facts) if self.options.resume else None
        if campaign is None:
            campaign = new_campaign(self.config.name, record)
            self.store.start(campaign, facts.values(), artifacts)
        self.entered(campaign.id)
        return campaign


def _guessed_constants(prepared_model: Prepared) -> dict[str, float]:
    """Inputs that got one number in every sample, since somebody guessed it: `init`, or this run."""
    table, made = prepared_model.table, prepared_model.reference.data.inputs if prepared_model.reference else {}
    values = {name: value for name, value in made.items() if name not in table.inputs or name in table.guessed}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _model_facts(prepared_model: Prepared) -> campaign_record.ModelFacts:
    """A model as the record has it."""
    reference, lost = (
        prepared_model.reference,
        prepared_model.errors[0] if prepared_model.errors and not prepared_model.artifacts else None,
    )
    return campaign_record.ModelFacts(
        name=prepared_model.name,
        file=prepared_model.model.source.name,
        size_bytes=prepared_model.model.size_bytes,
        sha256=prepared_model.converted.result.content_digest if prepared_model.converted.result else "",
        inputs=tuple(map(_signature, reference.inputs)) if reference else (),
        outputs=tuple(map(_signature, reference.outputs)) if reference else (),
        error=lost.what if lost else "",
        remedy=lost.remedy if lost else "",
        dimensions=prepared_model.model.dimensions,
        guessed=tuple(name for name in prepared_model.table.guessed if name in prepared_model.table.dimensions),
        constants=_guessed_constants(prepared_model),
        attached=bool(prepared_model.table.takes or prepared_model.table.gives),
        oracle=prepared_model.oracle,
    )


def _unmade(prepared: Iterable[Prepared]) -> Iterator[campaign_record.Skipped]:
    """Variants that the releases do not have."""
    for prepared_model in prepared:
        for failure in (failure for failure in prepared_model.converted.failures if failure.skipped):
            what = f"{failure.why}; {failure.remedy}"
            yield campaign_record.Skipped(what=what, model=prepared_model.name, variant=failure.variant.name)


PREPARATION = "preparation"


def _failures(prepared: Iterable[Prepared]) -> Iterator[campaign_record.FailureRow]:
    """Models and variants that could not be made, run as reference, or checked."""
    for prepared_model in prepared:
        for error in prepared_model.errors:
            yield campaign_record.FailureRow(
                code=PREPARATION, what=error.what, why=error.why, remedy=error.remedy, model=prepared_model.name
            )
        for failure in (failure for failure in prepared_model.converted.failures if not failure.skipped):
            yield campaign_record.FailureRow(
                code=PREPARATION,
                what=failure.what,
                why=failure.why,
                remedy=failure.remedy,
                model=prepared_model.name,
                variant=failure.variant.name,
                level=failure.variant.level,
            )


def _signature(tensor: TensorFile) -> str:
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def notes(prepared: Sequence[Prepared], hints: Iterable[str]) -> Iterator[Finding]:
    """What a user should see of a job, and of its models."""
    yield from map(core_errors.warning, hints)
    for prepared_model in prepared:
        table, conversion = prepared_model.table, prepared_model.converted
        texts = [f"precision {verdict.text}" for verdict in conversion.verdicts]
        texts += [f"precision {form.precision}: {form.search.text}" for form in conversion.models if form.search]
        unseen = table.lists or (table.takes and table.takes.usual_sizes)  # the model's own have sizes
        if (result := conversion.result) and (dynamic := result.dynamic) and not unseen:
            texts.append(
                f"open dimensions {', '.join(dynamic)}: NNAPI takes nothing whose shape is open; "
                "fix them with `dimensions` in the config, where the model still loads with fixed ones"
            )
        texts += prepared_model.reference.notes if prepared_model.reference else ()
        if table.state:
            steps = table.stream_steps
            texts.append(f"a stream of {steps} steps: times are a step's, outputs those of each")
        texts += [finding.text for finding in growth.growth_findings(conversion)]
        texts += [note for artifact in prepared_model.artifacts for note in artifact.notes]
        texts += [finding.text for a in prepared_model.accuracy if a.result for finding in a.result.findings]
        yield from (core_errors.warning(text, prepared_model.name) for text in dict.fromkeys(texts))


def output_folder(config: Config, options: JobOptions) -> Path:
    """Where results go: the command line goes before the config, the config before output/NAME."""
    return options.output or Path(config.output.folder or Path("output") / config.name)


Measure = Callable[[CampaignJob, Path, Progress], EndedCampaign]
"""How a prepared job is measured, with a folder for what is left of its runs."""


def run_job(config: Config, options: JobOptions, shown: Progress, measure: Measure = CampaignJob.measure) -> Assembled:
    """Do the whole job; raises PipelineError when nothing of it can be done."""
    progress = core_progress.StageLog(shown)
    with prepared_job(config, options, progress) as (job, work):
        ended = measure(job, work, progress)
        return close_job(job.store, job.folder, ended, options.library, progress, prove=options.prove)


@contextlib.contextmanager
def prepared_job(config: Config, options: JobOptions, progress: Progress) -> Iterator[tuple[CampaignJob, Path]]:
    """The job with everything before its first run done, and a folder for what is left of runs."""
    begun = time.monotonic()
    run_options.check_runs(config.runs)
    hints: tuple[str, ...] = ()
    whole, config = config, quick(config) if options.quick else config
    for target in config.targets:
        tuple(release_custom_ops.custom_findings(config, target))  # what is missing is said before anything is written
    core_custom_ops.of_this_computer(config.custom_ops)
    folder = output_folder(config, options)
    if options.resume:  # the database that the folder keeps, where the config names none: there is what is to go on
        database = config.output.database or kept_campaigns(folder).database
        config = msgspec.structs.replace(config, output=msgspec.structs.replace(config.output, database=database))
    models = find(config)
    hints += tuple(model_sources.numbered_lines(model for model, _ in models))
    if not (options.convert_only or options.resume):  # to go on costs no conversion, and the store knows more devices
        require_devices(options.devices or config.devices, options.library, options.wait_seconds)
    with (
        core_custom_ops.custom_operators(config.custom_ops, "custom_ops"),
        locked(folder),
        storage.scratch(folder) as work,
    ):
        prepared = prepare(config, models, folder, work, progress)
        if options.quick and (again := with_none(config, whole, prepared)):
            config, hints = again.config, (again.why, *hints)
            broken = [pair for pair in models if pair[0].name in again.names]
            tried = {
                prepared_model.name: prepared_model
                for prepared_model in prepare(config, broken, folder, work / "none", progress)
            }
            prepared = [tried.get(prepared_model.name, prepared_model) for prepared_model in prepared]
        if options.quick:
            hints = (left_out(whole, config), *hints)
        prepared = with_accuracy(prepared, config, folder, progress)
        artifacts = [artifact for prepared_model in prepared for artifact in prepared_model.artifacts]
        files = [folder / storage.ARTIFACTS / artifact.file for artifact in artifacts]
        for name, text in release_shipped.operator_configs(config, files).items() if files else ():
            storage.write_text(folder / name, text)
        at_targets = check_against_targets(config, artifacts, folder)
        findings = at_targets.findings
        if open_question := onnx_needs.unproven(
            files, [release_shipped.release_for(target) for target in config.targets]
        ):
            findings = (*findings, open_question)
        entered = partial(keep_campaign, folder, database=config.output.database)
        # The database of a job: the config's, or a file in its output folder.
        with campaign_store.open_store(config.output.database or f"sqlite:///{folder / storage.DATABASE}") as store:
            yield (
                CampaignJob(
                    config,
                    options,
                    prepared,
                    folder,
                    store,
                    at_targets.read,
                    at_targets.unloadable,
                    findings,
                    hints,
                    entered,
                    begun,
                ),
                work,
            )
