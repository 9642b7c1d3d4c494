"""Measures model files as they are, without converting, storing or choosing: a quick look, by the same method."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TypeAlias

from device_runner.device import Device, DeviceFacts, open_device
from device_runner.files import sha256
from device_runner.minimize import Denied
from device_runner.result import utc_now
from device_runner.spec import OptimizationLevel, RunOptions, TensorFile
from pipeline.campaign.deny_list import denied_here, known_denied
from pipeline.campaign.measure import CampaignPlan, UnfinishedDevice
from pipeline.campaign.options import options_name
from pipeline.campaign.plan import Inputs, PlannedRun, lane_id, representatives
from pipeline.campaign.record import CampaignRecord, FailureRow, RunRecord, Skipped
from pipeline.campaign.store import open_store
from pipeline.compat.preflight import first_error, judged, read_artifacts, text_of
from pipeline.config import ConditionsConfig, MeasureConfig
from pipeline.core.errors import ConfigError, ExitCode, Finding, ModelError
from pipeline.core.progress import Progress
from pipeline.core.workers import Task, run_tasks
from pipeline.dataset import Dataset
from pipeline.dataset.guess import Feeds, FeedsRequest, make_feeds
from pipeline.job.devices import blame_crashes, measure_all
from pipeline.job.gate import use_of
from pipeline.job.predict import profile_run
from pipeline.job.record import host, versions
from pipeline.release.shipped import runtime_on
from pipeline.report.model import CampaignReport
from pipeline.report.profiled import Profiled
from pipeline.report.rows import MeasuredRow, make_rows

NAME = "perf"
ALL_FILES = "files"
"""What stands for the model in rows: every file is compared with the first."""


Judge: TypeAlias = Callable[[str, RunOptions], tuple[Finding, ...]]
"""What speaks against running a file, by its name, with options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfOrder:
    """What to measure where, and how."""

    files: tuple[Path, ...]
    options: tuple[RunOptions, ...]
    device: str
    library: str | None
    dimensions: dict[str, int]
    """Sizes of open dimensions, by symbolic name or `input[axis]`."""
    measure: MeasureConfig
    profiles: Path | None = None
    """Where profiles of one more run of each file go; None wants none."""
    data: Dataset = field(default_factory=Dataset)
    """What the files are run on; random numbers by default."""
    blame: bool = False
    """Find the options that crash and keep them in the deny list."""
    conditions: ConditionsConfig | None = None
    """In which state of the device runs start, and what is set on it meanwhile; None asks for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfResult:
    """The comparison of the files, and their profiles where these were asked for."""

    report: CampaignReport
    profiled: tuple[Profiled, ...] = ()
    denied: tuple[Denied, ...] = ()


def measure_files(order: PerfOrder, progress: Progress) -> PerfResult:
    """Run every file with every set of options, by the engine of campaigns and with a store of its own.

    Raises ConfigError for a file that is not there, and what opening the device raises.
    """
    for file in order.files:
        if not file.is_file():
            raise ConfigError("no such model file", where=str(file), remedy="check the path")
    with open_device(order.device) as device, tempfile.TemporaryDirectory() as work:
        facts, devices = device.facts(), {device.name: device}
        judge = _preflight(order, device)
        runs, skipped = _planned(order, device.name, facts, judge)
        run_for = representatives(runs)
        own = [run for run in runs if run_for[lane_id(run)] is run]
        plan = _campaign(order, own, device.name, Path(work))
        with open_store(f"sqlite:///{work}/results.sqlite") as store:
            store.start(CampaignRecord(id=plan.campaign, name=NAME, created_at=utc_now()))
            left = measure_all(plan, devices, store, Path(work), progress)
            denied = blame_crashes(plan, devices, {device.name: facts}, store, progress) if order.blame else ()
            records = store.runs(plan.campaign)
        profiled = _profiles(order, plan, device, facts, progress) if order.profiles else ()
        rows = make_rows(list(_measured(runs, run_for, records)), order.measure.margin_percent / 100)
        report = CampaignReport(
            name=NAME,
            campaign=plan.campaign,
            created_at=utc_now(),
            margin=order.measure.margin_percent / 100,
            host=host(),
            versions=versions(),
            devices=(facts,),
            rows=rows.rows,
            skipped=(*skipped, *rows.skipped),
            failures=(*_unfinished(left, rows.failures), *rows.failures),
            warnings=tuple(_warnings(runs, judge)),
        )
    return PerfResult(report=report, profiled=profiled, denied=denied)


def _campaign(order: PerfOrder, runs: Sequence[PlannedRun], device: str, work: Path) -> CampaignPlan:
    """The plan of a campaign that compares no outputs."""
    feeds = _feeds(order, work)
    inputs = {
        str(file): Inputs(tensors=feeds.get(file, ()), dimensions={} if file in feeds else order.dimensions)
        for file in order.files
    }
    return CampaignPlan(
        campaign=work.name,
        lanes=runs,
        measure=order.measure,
        conditions=order.conditions,
        artifacts=Path(),
        inputs=inputs,
        libraries={device: order.library},
        judge=None,
    )


def _feeds(order: PerfOrder, work: Path) -> dict[Path, tuple[TensorFile, ...]]:
    """Inputs for every file, made in processes of their own, where sizes or data are given; raises what is wrong.

    A file that cannot be read gets none: its own run says why.
    """
    if not (order.dimensions or order.data.given):
        return {}
    tasks = []
    for number, file in enumerate(order.files):
        folder = work / f"inputs-{number}"
        folder.mkdir()
        request = FeedsRequest(file=str(file), dimensions=order.dimensions, data=order.data, folder=str(folder))
        tasks.append(Task(label=str(file), request=request))
    found = {}
    for outcome in run_tasks(make_feeds, Feeds, tasks):
        if outcome.value:
            found[Path(outcome.task.request.file)] = outcome.value.tensors
        elif outcome.error and not isinstance(outcome.error, ModelError):
            raise outcome.error
    return found


def _warnings(runs: Sequence[PlannedRun], judge: Judge) -> Iterator[str]:
    """What of the files and options has no effect in that library, once for each file."""
    yield from {f"{run.variant}: {text_of(found)}": None for run in runs for found in judge(run.variant, run.options)}


def _planned(order: PerfOrder, device: str, facts: DeviceFacts, judge: Judge) -> tuple[list[PlannedRun], list[Skipped]]:
    """Every file with every set of options, split in those to be run and those that cannot, with the reason."""
    entries = known_denied()
    planned: list[PlannedRun] = []
    skipped: list[Skipped] = []
    for file, options in product(order.files, order.options):
        name = _name(file, order.files)
        run = PlannedRun(
            device=device,
            model=ALL_FILES,
            variant=name,
            source=str(file),
            file=str(file),
            sha256=sha256(file),
            size_bytes=file.stat().st_size,
            options=options,
        )
        failure = denied_here(options, facts, entries, run.sha256)
        reason = failure.message if failure else _without_effect(file, options) or first_error(judge(name, options))
        if reason:
            skipped.append(Skipped(reason=reason, device=device, variant=name, run=options_name(options)))
        else:
            planned.append(run)
    return planned, skipped


def _preflight(order: PerfOrder, device: Device) -> Judge:
    """What speaks against running a file (by its name) with options in the library that the device will load."""
    own = order.measure.perf_test and not order.library  # onnxruntime_perf_test brings a library of its own
    runtime = None if own else runtime_on(device, order.library)
    read = read_artifacts({_name(file, order.files): file for file in order.files})

    def judge(name: str, options: RunOptions) -> tuple[Finding, ...]:
        return judged(read, name, runtime, use_of(options, {})) if runtime else ()

    return judge


def _without_effect(file: Path, options: RunOptions) -> str:
    """Why it makes no sense to run a file at this level: what is in ORT format was optimized when it was converted."""
    changed = options.optimization_level is not OptimizationLevel.ALL and file.suffix.lower() == ".ort"
    return "levels have no effect on an ORT format file: its level was chosen when it was converted" if changed else ""


def _profiles(
    order: PerfOrder, plan: CampaignPlan, device: Device, facts: DeviceFacts, progress: Progress
) -> tuple[Profiled, ...]:
    """Each once more with the profiler on: what it costs is not in the times that are compared."""
    found = []
    with progress.stage("profile", len(plan.lanes)) as stage:
        for run in plan.lanes:
            stage.at(run.variant)
            found.append(profile_run(device, facts, run.variant, plan.spec(run, 0), Path(str(order.profiles))))
            stage.done()
    return tuple(found)


def exit_code(report: CampaignReport) -> ExitCode:
    """1 when a run failed or nothing could run."""
    return ExitCode.SOME_FAILED if report.failures or not report.rows else ExitCode.DONE


def _name(file: Path, files: Sequence[Path]) -> str:
    same = sum(other.name == file.name for other in files)
    return file.name if same == 1 else str(file)


def _unfinished(left: Sequence[UnfinishedDevice], failures: Sequence[FailureRow]) -> Iterator[FailureRow]:
    """Why a device did not finish, where that is no run's own failure: it did not become fit for one."""
    told = {failure.message for failure in failures}
    for one in left:
        if one.reason not in told:
            yield FailureRow(
                kind="not fit",
                message=one.reason,
                cause="what was asked for did not come",
                remedy="let the device rest and charge, or wait longer (--wait-seconds)",
                device=one.device,
            )


def _measured(
    runs: Sequence[PlannedRun], run_for: Mapping[str, PlannedRun], records: Sequence[RunRecord]
) -> Iterator[MeasuredRow]:
    """Every planned run with what came of it; the others are compared with the first."""
    for run in runs:
        first = run_for[lane_id(run)]
        yield MeasuredRow(
            device=run.device,
            model=run.model,
            variant=run.variant,
            run=options_name(run.options),
            runs=[record for record in records if record.planned == lane_id(run)],
            same_as="" if first is run else first.run_name,
            size_bytes=run.size_bytes,
            baseline=run is runs[0],
        )
