"""The campaign of a job: planned for the devices that are there, entered in the store, measured, its choice confirmed.

What looks best of many is partly lucky: in the rounds that chose it its interval holds the truth too rarely (measuring
S.3). So the choice and what it is compared with run again, in rounds that choose nothing.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.result import RunResult
from device_runner.spec import TensorFile
from pipeline.accuracy.score import OutputsRequest, measure_outputs
from pipeline.campaign.deny_list import known_denied
from pipeline.campaign.measure import CampaignPlan, OpenTurns, UnfinishedDevice, looking, runs_left
from pipeline.campaign.plan import (
    Inputs,
    PlannedRun,
    distinct,
    in_modes,
    inputs_of,
    order_of_round,
    plan_runs,
    planned_id,
    recorded,
)
from pipeline.campaign.record import FRESH_FROM, FRESH_ROUNDS, CampaignRecord, JobRecord, Prediction, Skipped
from pipeline.campaign.store import Store
from pipeline.check.compare import Array, OutputCheck, compare_outputs, read_tensor, top1_check
from pipeline.check.many import tolerance_for
from pipeline.check.result import Reference
from pipeline.check.saturation import excused
from pipeline.config import AccuracyConfig, CheckConfig, Config
from pipeline.core.errors import PipelineError
from pipeline.core.output import ARTIFACTS, PROFILES
from pipeline.core.progress import Progress
from pipeline.job.assemble import assemble, compared_runs
from pipeline.job.bench import EndedCampaign, OpenDevices, blame_crashes, libraries_by_device, measure_all, opened
from pipeline.job.predict import predict
from pipeline.job.prepare import QUICKER, Prepared
from pipeline.job.record import (
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
from pipeline.job.ship import TargetCheck, possible_runs

log = logging.getLogger(__name__)

ON_THIS_PROCESSOR = ("local", "android-host:", "linux-host:")
"""What the names of devices begin with that are processes of this computer."""


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

    def __call__(self, planned: PlannedRun, result: RunResult) -> tuple[OutputCheck, ...]:
        """The checks of one run; outputs that the device did not hand over fail."""
        model = planned.source
        actual = _tensors(result.outputs)
        checks = tuple(compare_outputs(self.expected[model], actual, self.tolerances[model], self.originals[model]))
        if planned.device.startswith(ON_THIS_PROCESSOR):
            checks = excused(checks, self.artifacts / planned.file, result.cpu)
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
            found = measure_outputs(
                OutputsRequest(
                    model=planned.source,
                    outputs=(msgspec.structs.replace(outputs, name=original.outputs.name),),
                    expected=(original.outputs,),
                    labels=original.labels,
                    accuracy=self.accuracy,
                )
            )
        except PipelineError as error:
            log.warning("%s: no accuracy from this device: %s", planned.source, error)
            return check
        if found.value is None or found.reference_value is None:
            return check
        return msgspec.structs.replace(
            check, metric=found.metric, value=found.value, original_value=found.reference_value
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


def measure_and_confirm(
    plan: CampaignPlan,
    planned_runs: Sequence[PlannedRun],
    campaign: CampaignRecord,
    field: OpenDevices,
    store: Store,
    work: Path,
    progress: Progress,
    shorter: str = "",
    here_seconds: float | None = None,
) -> list[UnfinishedDevice]:
    """Run the rounds of a plan, then the fresh ones of what was chosen; devices that ended early have none."""
    looks = with_looks(plan, planned_runs, store)
    left = measure_all(looks, field.devices, store, work, progress, shorter, here_seconds)
    ended = {one.device for one in left}
    chosen = to_confirm(campaign, store)
    again = [run for run in plan.planned_runs if run.device not in ended and planned_id(run) in chosen]
    if again:
        opened = {name: field.devices[name] for name in sorted({run.device for run in again})}
        left += measure_all(fresh_plan(plan, again, store), opened, store, work, progress)
    return left


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
    found = assemble(store, campaign)
    return {
        run.id: run.device for choice in found.choices for run in compared_runs(found.record, choice, found.report.rows)
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
    checked: TargetCheck
    hints: tuple[str, ...] = ()
    """What a reader of the report must know of the job as a whole."""
    entered: Callable[[str], object] = str
    """Is told the id of each campaign as soon as it is in the store."""

    def measure(self, work: Path, progress: Progress) -> EndedCampaign:
        """Open the devices, enter the plan, run what is not stored yet, and find what crashes where that is asked."""
        if self.options.convert_only:
            return EndedCampaign(campaign=self.enter({}, [], []))
        with opened(self.device_names(), self.options.wait_seconds) as field:
            measurable = [a for one in self.prepared for a in one.artifacts if a.source in one.references]
            legal, skipped = plan_runs(self.config.runs, measurable, list(field.facts.values()), known_denied())
            libraries = libraries_by_device(field.facts, self.config.targets, self.options.library)
            possible, refused = self.possible(legal, field.devices, libraries)
            planned_runs = in_modes(possible, self.config.measure)
            predicted = predict(planned_runs, field.facts, self.checked.release, self.folder / ARTIFACTS, progress)
            campaign = self.enter(
                field.facts,
                planned_runs,
                [*skipped, *refused, *field.unusable],
                lambda record: msgspec.structs.replace(record, placements=predicted.placements),
            )
            plan = self.plan(campaign.id, distinct(planned_runs), libraries, predicted.by_run)
            left = self._measured(plan, planned_runs, campaign, field, work, progress)
            wanted = self.options.blame
            denied = blame_crashes(plan, field.devices, field.facts, self.store, progress) if wanted else ()
            left += field.away({run.device for run in campaign.job().planned}, self.store.devices(campaign.id))
            return EndedCampaign(campaign=campaign, left=tuple(left), denied=denied)

    def _measured(
        self,
        plan: CampaignPlan,
        planned_runs: Sequence[PlannedRun],
        campaign: CampaignRecord,
        field: OpenDevices,
        work: Path,
        progress: Progress,
    ) -> list[UnfinishedDevice]:
        """Run the plan; an interruption says how many runs are kept."""
        try:
            shorter = "" if self.options.quick else QUICKER
            expected = self._seconds_here(plan)
            return measure_and_confirm(
                plan, planned_runs, campaign, field, self.store, work, progress, shorter, expected
            )
        except KeyboardInterrupt as error:
            planned = sum(1 for _ in plan.turns(plan.planned_runs))
            kept = planned - runs_left(plan, self.store).total()
            raise KeyboardInterrupt(
                f"{kept} of {planned} runs are kept; no report and no bundle were written"
            ) from error

    def _seconds_here(self, plan: CampaignPlan) -> float | None:
        """How long a run on this computer takes on average, as long as inferences take that the original took."""
        took = {name: found.run_seconds for one in self.prepared for name, found in one.references.items()}
        seconds = [
            plan.measure.seconds_of(run.mode, took[run.source]) for run in plan.planned_runs if run.device == "local"
        ]
        return sum(seconds) / len(seconds) if seconds else None

    def device_names(self) -> list[str]:
        """What is to be opened; with `resume` also devices on the network that an adb server has forgotten."""
        asked = self.options.devices
        forgotten = known_on_network(self.store, self.config) if self.options.resume and not asked else []
        return [*(asked or self.config.devices), *forgotten]

    def possible(
        self, legal: Sequence[PlannedRun], devices: Mapping[str, Device], libraries: Mapping[str, str | None]
    ) -> tuple[Sequence[PlannedRun], Sequence[Skipped]]:
        """Runs that the library can load; every one with onnxruntime_perf_test, which brings a library of its own."""
        if self.config.measure.perf_test and not self.options.library:
            return legal, []
        return possible_runs(legal, self.checked.read, devices, libraries)

    def plan(
        self,
        campaign: str,
        planned_runs: Sequence[PlannedRun],
        libraries: Mapping[str, str | None],
        predictions: Mapping[str, Prediction],
    ) -> CampaignPlan:
        """What is run of planned runs, with the inputs and the judge of their models."""
        return campaign_plan(
            self.config,
            campaign,
            planned_runs,
            self.folder,
            references={name: reference for one in self.prepared for name, reference in one.references.items()},
            inputs={
                name: inputs_of(one.reference, one.model.dimensions)
                for one in self.prepared
                if one.reference
                for name in one.references
            },
            libraries=libraries,
            predictions=predictions,
        )

    def enter(
        self,
        facts: Mapping[str, DeviceFacts],
        planned_runs: Sequence[PlannedRun],
        skipped: Sequence[Skipped],
        change: Callable[[JobRecord], JobRecord] = lambda record: record,
    ) -> CampaignRecord:
        """Store the plan before anything is measured; with `resume` the last one of the same plan goes on."""
        record = change(self._record(planned_runs, skipped))
        campaign = self._resumed(record, facts) if self.options.resume else None
        if campaign is None:
            artifacts = [artifact for one in self.prepared for artifact in one.artifacts]
            campaign = new_campaign(self.config.name, record)
            self.store.start(campaign, facts.values(), artifacts)
        self.entered(campaign.id)
        return campaign

    def _resumed(self, record: JobRecord, facts: Mapping[str, DeviceFacts]) -> CampaignRecord | None:
        artifacts = [artifact for one in self.prepared for artifact in one.artifacts]
        return resume(self.store, record, artifacts, facts)

    def _record(self, planned_runs: Sequence[PlannedRun], skipped: Sequence[Skipped]) -> JobRecord:
        prepared = self.prepared
        return JobRecord(
            config=stored_config(self.config),
            host=host(),
            versions=versions(),
            models=tuple(model_facts(one) for one in prepared),
            planned=tuple(recorded(planned_runs, self.config.measure.baseline)),
            skipped=(*conversion_skips(prepared), *skipped),
            failures=tuple(preparation_failures(prepared)),
            warnings=(*notes(prepared, self.hints), *self.checked.notes),
            unloadable=self.checked.unloadable,
            checks={one.model.name: one.checks for one in prepared},
            references={name: reference for one in prepared for name, reference in one.references.items()},
            tables={one.model.name: one.table for one in prepared},
            accuracy=tuple(found for one in prepared for found in one.accuracy),
            searches=tuple(found for one in prepared for found in one.searches),
        )
