"""Measures model files as they are, without converting, storing or choosing: a quick look, by the same method."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from device_runner.device import Conditioned, Device, DeviceFacts, open_device
from device_runner.files import sha256
from device_runner.minimize import Denied
from device_runner.result import FailureKind, RunResult, Status, utc_now
from device_runner.spec import OptimizationLevel, RunOptions, RunSpec, TensorFile
from pipeline.campaign.deny_list import blame, denied_here, known_denied
from pipeline.campaign.measure import arrange, wait_until_fit
from pipeline.campaign.options import options_name
from pipeline.campaign.record import FailureRow, RunRecord, Skipped
from pipeline.compat.preflight import first_error, judged, read_artifacts, text_of
from pipeline.config import ConditionsConfig, MeasureConfig
from pipeline.core.errors import ConfigError, ExitCode, Finding, ModelError
from pipeline.core.progress import Progress
from pipeline.core.workers import Task, run_tasks
from pipeline.dataset import Dataset
from pipeline.dataset.guess import Feeds, FeedsRequest, make_feeds
from pipeline.job.gate import use_of
from pipeline.job.predict import profile_run
from pipeline.job.record import host, versions
from pipeline.release.shipped import runtime_on
from pipeline.report.model import CampaignReport
from pipeline.report.profiled import Profiled
from pipeline.report.rows import MeasuredRow, make_rows

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

    feeds: dict[Path, tuple[TensorFile, ...]] = field(default_factory=dict)
    """The inputs of files for which these are made here; the others get the probe's own random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfResult:
    """The comparison of the files, and their profiles where these were asked for."""

    report: CampaignReport
    profiled: tuple[Profiled, ...] = ()
    denied: tuple[Denied, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerfRun:
    """One file with one set of run options; `name` tells files of equal names apart by their folder.

    `same_as` is the lane that is run in its place: the same bytes with the same options.
    """

    file: Path
    name: str
    options: RunOptions
    same_as: "PerfRun | None" = None

    @property
    def key(self) -> str:
        """As rows name it."""
        return f"{self.name}/{options_name(self.options)}"


def measure_files(order: PerfOrder, progress: Progress) -> PerfResult:
    """Run every file with every set of options in alternating rounds of fresh processes.

    Raises ConfigError for a file that is not there, and what opening the device raises.
    """
    for file in order.files:
        if not file.is_file():
            raise ConfigError("no such model file", where=str(file), remedy="check the path")
    with open_device(order.device) as device, tempfile.TemporaryDirectory() as work:
        facts = device.facts()
        judge = _preflight(order, device)
        order = replace(order, feeds=_feeds(order, Path(work)))
        lanes, skipped = _lanes(order, device, facts, judge)
        if order.conditions and isinstance(device, Conditioned):
            arrange(device, order.conditions)
        own = [lane for lane in lanes if not lane.same_as]
        records, unfit = _rounds(order, device, own, progress)
        denied = tuple(_blamed(order, device, facts, records)) if order.blame else ()
        profiled = _profiles(order, device, facts, own, progress) if order.profiles else ()
        rows = make_rows(_measured(device.name, lanes, records), order.measure.margin_percent / 100)
        report = CampaignReport(
            name="perf",
            campaign=Path(work).name,
            created_at=utc_now(),
            margin=order.measure.margin_percent / 100,
            host=host(),
            versions=versions(),
            devices=(facts,),
            rows=rows.rows,
            skipped=(*skipped, *rows.skipped),
            failures=(*unfit, *rows.failures),
            warnings=tuple(_warnings(lanes, judge)),
        )
    return PerfResult(report=report, profiled=profiled, denied=denied)


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


def _warnings(lanes: Sequence[PerfRun], judge: Judge) -> Iterator[str]:
    """What of the files and options has no effect in that library, once for each file."""
    told = {f"{lane.name}: {text_of(finding)}": None for lane in lanes for finding in judge(lane.name, lane.options)}
    yield from told


def _lanes(order: PerfOrder, device: Device, facts: DeviceFacts, judge: Judge) -> tuple[list[PerfRun], list[Skipped]]:
    """Every file with every set of options, split in those to be run and those that cannot, with the reason."""
    entries = known_denied()
    lanes: list[PerfRun] = []
    skipped: list[Skipped] = []
    run: dict[tuple[str, str], PerfRun] = {}
    for file in order.files:
        name = _name(file, order.files)
        for options in order.options:
            failure = denied_here(options, facts, entries, sha256(file))
            reason = failure.message if failure else _without_effect(file, options) or first_error(judge(name, options))
            if reason:
                skipped.append(Skipped(reason=reason, device=device.name, variant=name, run=options_name(options)))
            else:
                first = run.get(work := (sha256(file), options_name(options)))
                lanes.append(PerfRun(file=file, name=name, options=options, same_as=first))
                run.setdefault(work, lanes[-1])
    return lanes, skipped


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


def _blamed(
    order: PerfOrder, device: Device, facts: DeviceFacts, records: dict[PerfRun, list[RunRecord]]
) -> Iterator[Denied]:
    """What is newly denied for the lanes that crashed."""
    for lane, runs in records.items():
        failure = runs[-1].result.failure if runs else None
        if failure and failure.kind is FailureKind.CRASH:
            entry = blame(device, facts, _spec(order, lane, 0), runs[-1].result)
            if entry:
                yield entry


def _profiles(
    order: PerfOrder, device: Device, facts: DeviceFacts, lanes: Sequence[PerfRun], progress: Progress
) -> tuple[Profiled, ...]:
    """One more run of each lane with the profiler on: what it costs is not in the times that are compared."""
    found = []
    with progress.stage("profile", len(lanes)) as stage:
        for lane in lanes:
            stage.at(lane.name)
            found.append(profile_run(device, facts, lane.name, _spec(order, lane, 0), Path(str(order.profiles))))
            stage.done()
    return tuple(found)


def exit_code(report: CampaignReport) -> ExitCode:
    """1 when a run failed or nothing could run."""
    return ExitCode.SOME_FAILED if report.failures or not report.rows else ExitCode.DONE


def _name(file: Path, files: Sequence[Path]) -> str:
    same = sum(other.name == file.name for other in files)
    return file.name if same == 1 else str(file)


def _rounds(
    order: PerfOrder, device: Device, lanes: Sequence[PerfRun], progress: Progress
) -> tuple[dict[PerfRun, list[RunRecord]], list[FailureRow]]:
    """What ran, and why the rest did not where the device did not become fit for it."""
    records: dict[PerfRun, list[RunRecord]] = {lane: [] for lane in lanes}
    with progress.stage("measure", len(lanes) * order.measure.rounds) as stage:
        for number in range(order.measure.rounds):
            for lane in lanes if number % 2 == 0 else reversed(lanes):
                stage.at(f"round {number + 1}: {lane.name}")
                if all(record.result.status is Status.OK for record in records[lane]):
                    if reason := _unfit(order, device):
                        return records, [_unfit_row(device.name, reason)]
                    spec = _spec(order, lane, number)
                    records[lane].append(_record(lane, number, spec, device.run(spec)))
                stage.done()
    return records, []


def _unfit(order: PerfOrder, device: Device) -> str:
    """Wait for the conditions that are asked for; why they do not come, or ""."""
    if order.conditions and isinstance(device, Conditioned):
        return wait_until_fit(device, order.conditions, threading.Event())
    return ""


def _unfit_row(device: str, reason: str) -> FailureRow:
    return FailureRow(
        kind="not fit",
        message=reason,
        cause="what was asked for did not come",
        remedy="let the device rest and charge, or wait longer (--wait-seconds)",
        device=device,
    )


def _spec(order: PerfOrder, lane: PerfRun, number: int) -> RunSpec:
    measure = order.measure
    return RunSpec(
        id=f"{lane.name[-200:]}#{number}",
        model=str(lane.file),
        model_sha256=sha256(lane.file),
        library=order.library,
        options=lane.options,
        inputs=order.feeds.get(lane.file, ()),
        dimensions={} if lane.file in order.feeds else order.dimensions,
        warmup=measure.warmup,
        min_runs=measure.min_runs,
        min_seconds=measure.min_seconds,
        max_seconds=measure.max_seconds,
        timeout_seconds=measure.timeout_seconds,
        perf_test=measure.perf_test,
    )


def _record(lane: PerfRun, number: int, spec: RunSpec, result: RunResult) -> RunRecord:
    return RunRecord(
        campaign="perf", planned=lane.key, round=number, model=ALL_FILES, variant=lane.name, spec=spec, result=result
    )


def _measured(device: str, lanes: Sequence[PerfRun], records: dict[PerfRun, list[RunRecord]]) -> list[MeasuredRow]:
    return [
        MeasuredRow(
            device=device,
            model=ALL_FILES,
            variant=lane.name,
            run=options_name(lane.options),
            runs=records.get(lane, ()),
            same_as=lane.same_as.key if lane.same_as else "",
            size_bytes=lane.file.stat().st_size,
            baseline=lane is lanes[0],
        )
        for lane in lanes
    ]
