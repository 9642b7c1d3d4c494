"""The campaign of a job: planned for the devices that are there, entered in the store, measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner.device import Device, DeviceFacts
from pipeline.campaign.deny_list import known_denied
from pipeline.campaign.measure import CampaignPlan, UnfinishedDevice, runs_left
from pipeline.campaign.plan import PlannedRun, distinct, in_modes, inputs_of, plan_runs, recorded
from pipeline.campaign.record import CampaignRecord, JobRecord, Prediction, Skipped
from pipeline.campaign.store import Store
from pipeline.config import Config
from pipeline.core.output import ARTIFACTS
from pipeline.core.progress import Progress
from pipeline.job.devices import EndedCampaign, OpenDevices, blame_crashes, libraries_by_device, opened
from pipeline.job.gate import TargetCheck, possible_runs
from pipeline.job.judge import campaign_plan
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
from pipeline.job.rounds import measure_and_confirm


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
