"""The sequence of the whole job, and what it leaves in its output folder."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_runner.device import Device, DeviceFacts
from device_runner.minimize import Denied
from device_runner.result import utc_now
from pipeline.campaign.deny_list import known_denied
from pipeline.campaign.measure import CampaignPlan, UnfinishedDevice, runs_left
from pipeline.campaign.options import check_runs
from pipeline.campaign.plan import PlannedRun, baseline_of, lane_id, plan_lanes, representatives
from pipeline.campaign.record import CampaignRecord, JobRecord, Prediction, RecordedRun, Skipped
from pipeline.campaign.store import Store, open_store
from pipeline.config import Config
from pipeline.core.errors import ExitCode, Finding, errors
from pipeline.core.files import scratch, write_bytes, write_text
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact
from pipeline.job.accuracy import with_accuracy
from pipeline.job.assemble import Assembled, assemble
from pipeline.job.devices import OpenDevices, blame_crashes, libraries_by_device, measure_all, opened
from pipeline.job.folder import DATABASE, locked
from pipeline.job.gate import (
    OutputJudge,
    TargetCheck,
    check_shipping,
    hold_against_targets,
    inputs_of,
    possible_lanes,
    read_all,
    unshipped,
)
from pipeline.job.predict import PROFILES, predict
from pipeline.job.prepare import ARTIFACTS, Prepared, find, left_out, prepare, quick
from pipeline.job.record import (
    conversion_skips,
    host,
    model_facts,
    notes,
    planned_lane,
    preparation_failures,
    versions,
)
from pipeline.job.resume import known_on_network, resume
from pipeline.job.ship import operator_configs, proven, ship
from pipeline.job.targets import oldest_release
from pipeline.model.sources import numbered_lines
from pipeline.release.manifest import Content


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a job left: the report, its folder, the bundle's content (None: nothing may ship), how it ended."""

    assembled: Assembled
    folder: Path
    content: Content | None
    left: tuple[UnfinishedDevice, ...] = ()
    denied: tuple[Denied, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What speaks against shipping; an error among it, and there is no bundle."""

    @property
    def exit_code(self) -> ExitCode:
        """4 when an output check or the library that ships says no, 1 when anything else failed, 0 when all is done."""
        record, report = self.assembled.record, self.assembled.report
        checks = [c for variants in record.checks.values() for found in variants.values() for c in found]
        checks += [check for row in report.rows for check in row.checks]
        refused = any(proof.failed for proof in report.proofs) or bool(errors(self.findings))
        if refused or any(check.failed for check in checks):
            return ExitCode.CHECK_FAILED
        return ExitCode.SOME_FAILED if report.failures or self.left or not self.content else ExitCode.DONE


def output_folder(config: Config, options: JobOptions) -> Path:
    """Where results go: the command line goes before the config, the config before output/NAME."""
    return options.output or Path(config.output.folder or Path("output") / config.name)


def database_url(config: Config, folder: Path) -> str:
    """The database of a job: the config's, or a file in its output folder."""
    return config.output.database or f"sqlite:///{folder / DATABASE}"


def run_job(config: Config, options: JobOptions, progress: Progress) -> JobResult:
    """Do the whole job; raises PipelineError when nothing of it can be done."""
    check_runs(config.runs)
    hints: tuple[str, ...] = (left_out(config),) if options.quick else ()
    config = quick(config) if options.quick else config
    folder = output_folder(config, options)
    found = find(config)
    hints += numbered_lines(model for model, _ in found)
    with locked(folder), scratch(folder) as work:
        prepared, sets = prepare(config, found, folder, work, progress)
        prepared = with_accuracy(prepared, sets, config, folder, progress)
        artifacts = [artifact for one in prepared for artifact in one.artifacts]
        write_operator_configs(config, folder, artifacts)
        held = hold_against_targets(config, artifacts, read_all(artifacts, folder), versions()["onnxruntime"])
        with open_store(database_url(config, folder)) as store:
            job = _Job(config, options, prepared, folder, store, held, hints)
            ended = job.enter_unmeasured() if options.convert_only else job.measure(work, progress)
            assembled = assemble(store, ended.campaign)
        findings = check_shipping(assembled, folder)
        refused = bool(errors(findings))
        content = None if refused else ship(assembled, folder, library=options.library, progress=progress)
        assembled = unshipped(assembled, findings) if refused else proven(assembled, folder)
        write_reports(assembled, folder)
    return JobResult(
        assembled=assembled, folder=folder, content=content, left=ended.left, denied=ended.denied, findings=findings
    )


def write_operator_configs(config: Config, folder: Path, artifacts: Sequence[Artifact]) -> None:
    """Both operator configs of everything that was converted."""
    if artifacts:
        texts = operator_configs(config, [folder / ARTIFACTS / artifact.file for artifact in artifacts])
        for name, text in texts.items():
            write_text(folder / name, text)


def write_reports(assembled: Assembled, folder: Path) -> None:
    """results.json, report.md and report.html."""
    from pipeline.report import document, html, markdown

    write_bytes(folder / document.FILE_NAME, document.encode(assembled.report))
    write_text(folder / markdown.FILE_NAME, markdown.render(assembled.report))
    write_text(folder / html.FILE_NAME, html.render(assembled.report))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A campaign after its runs: devices that could not finish, and options newly denied."""

    campaign: CampaignRecord
    left: tuple[UnfinishedDevice, ...] = ()
    denied: tuple[Denied, ...] = ()


@dataclass(frozen=True, slots=True)
class _Job:
    """A campaign of prepared models: enters it in the store and measures it."""

    config: Config
    options: JobOptions
    prepared: Sequence[Prepared]
    folder: Path
    store: Store
    held: TargetCheck
    hints: tuple[str, ...] = ()
    """What a reader of the report must know of the job as a whole."""

    def enter_unmeasured(self) -> _Ended:
        """Enter a campaign of which nothing is measured."""
        return _Ended(campaign=self._enter({}, [], []))

    def measure(self, work: Path, progress: Progress) -> _Ended:
        """Open the devices, enter the plan, run what is not stored yet, and find what crashes where that is asked."""
        with opened(self._devices()) as field:
            measurable = [a for one in self.prepared for a in one.artifacts if a.source in one.references]
            legal, skipped = plan_lanes(self.config.runs, measurable, list(field.facts.values()), known_denied())
            libraries = libraries_by_device(field.facts, self.config.targets, self.options.library)
            lanes, refused = self._possible(legal, field.devices, libraries)
            campaign = self._enter(field.facts, lanes, [*skipped, *refused, *field.unusable])
            run_for = representatives(lanes)
            predictions = predict(lanes, field.facts, oldest_release(self.config), self.folder, progress)
            plan = self._plan(
                campaign.id, [lane for lane in lanes if run_for[lane_id(lane)] is lane], libraries, predictions
            )
            left = self._measured(plan, field, work, progress)
            wanted = self.options.blame
            denied = blame_crashes(plan, field.devices, field.facts, self.store, progress) if wanted else ()
            return _Ended(campaign=campaign, left=(*left, *_away(campaign, field)), denied=denied)

    def _measured(
        self, plan: CampaignPlan, field: OpenDevices, work: Path, progress: Progress
    ) -> list[UnfinishedDevice]:
        """Run the plan; an interruption says how many runs are kept."""
        try:
            return measure_all(plan, field.devices, self.store, work, progress)
        except KeyboardInterrupt as error:
            planned = len(plan.lanes) * plan.rounds
            kept = planned - runs_left(plan, self.store).total()
            raise KeyboardInterrupt(
                f"{kept} of {planned} runs are kept; no report and no bundle were written"
            ) from error

    def _devices(self) -> list[str]:
        """What is to be opened; with `resume` also devices on the network that an adb server has forgotten."""
        asked = self.options.devices
        forgotten = known_on_network(self.store, self.config) if self.options.resume and not asked else []
        return [*(asked or self.config.devices), *forgotten]

    def _possible(
        self, legal: Sequence[PlannedRun], devices: Mapping[str, Device], libraries: Mapping[str, str | None]
    ) -> tuple[Sequence[PlannedRun], Sequence[Skipped]]:
        """Lanes that the library can load; every one with onnxruntime_perf_test, which brings a library of its own."""
        if self.config.measure.perf_test and not self.options.library:
            return legal, []
        return possible_lanes(legal, self.held.read, devices, libraries)

    def _plan(
        self,
        campaign: str,
        lanes: Sequence[PlannedRun],
        libraries: Mapping[str, str | None],
        predictions: Mapping[str, Prediction],
    ) -> CampaignPlan:
        references = {name: reference for one in self.prepared for name, reference in one.references.items()}
        inputs = {
            name: inputs_of(one.reference, one.model.dimensions)
            for one in self.prepared
            if one.reference
            for name in one.references
        }
        return CampaignPlan(
            campaign=campaign,
            lanes=lanes,
            measure=self.config.measure,
            conditions=self.config.conditions,
            artifacts=self.folder / ARTIFACTS,
            inputs=inputs,
            libraries=libraries,
            judge=OutputJudge(references, self.config.check),
            predictions=predictions,
            profiles=self.folder / PROFILES,
        )

    def _enter(
        self, facts: Mapping[str, DeviceFacts], lanes: Sequence[PlannedRun], skipped: Sequence[Skipped]
    ) -> CampaignRecord:
        """Store the plan before anything is measured; with `resume` the last one of the same plan goes on."""
        record = self._record(lanes, skipped)
        campaign = CampaignRecord(
            id=f"{utc_now()}-{secrets.token_hex(3)}",
            name=self.config.name,
            created_at=utc_now(),
            document=record,
        )
        if self.options.resume and (known := self._resumed(record, facts)):
            return known
        artifacts = [artifact for one in self.prepared for artifact in one.artifacts]
        self.store.start(campaign, facts.values(), artifacts)
        return campaign

    def _resumed(self, record: JobRecord, facts: Mapping[str, DeviceFacts]) -> CampaignRecord | None:
        artifacts = [artifact for one in self.prepared for artifact in one.artifacts]
        return resume(self.store, record, artifacts, facts)

    def _record(self, lanes: Sequence[PlannedRun], skipped: Sequence[Skipped]) -> JobRecord:
        prepared = self.prepared
        return JobRecord(
            config=self.config,
            host=host(),
            versions=versions(),
            models=tuple(model_facts(one) for one in prepared),
            planned=tuple(_planned(lanes, self.config.measure.baseline)),
            skipped=(*conversion_skips(prepared), *skipped),
            failures=tuple(preparation_failures(prepared)),
            warnings=(*self.hints, *notes(prepared), *self.held.notes),
            unloadable=self.held.unloadable,
            checks={one.model.name: one.checks for one in prepared},
            references={name: reference for one in prepared for name, reference in one.references.items()},
            tables={one.model.name: one.table for one in prepared},
            accuracy=tuple(found for one in prepared for found in one.accuracy),
        )


def _away(campaign: CampaignRecord, field: OpenDevices) -> Iterator[UnfinishedDevice]:
    """Devices of a resumed campaign that could not be opened this time."""
    reasons = {one.device: one.reason for one in field.unusable}
    for name in dict.fromkeys(run.device for run in campaign.job().planned):
        if name not in field.devices:
            yield UnfinishedDevice(device=name, reason=reasons.get(name, "it is not connected"))


def _planned(lanes: Sequence[PlannedRun], baseline: str | None) -> Iterator[RecordedRun]:
    """The lanes with the baseline of each device and model marked."""
    groups: dict[tuple[str, str], list[PlannedRun]] = {}
    for lane in lanes:
        groups.setdefault((lane.device, lane.model), []).append(lane)
    run_for = representatives(lanes)
    for group in groups.values():
        first = run_for[lane_id(baseline_of(group, baseline))]
        for lane in group:
            run = run_for[lane_id(lane)]
            yield planned_lane(lane, baseline=lane is first, same_as="" if run is lane else lane_id(run))
