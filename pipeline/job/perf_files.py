"""Files that are measured as they are: what may run where, with which inputs, and what has no effect."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

import msgspec

from device_runner.device import Device, DeviceFacts
from device_runner.files import sha256
from device_runner.spec import OptimizationLevel, RunOptions, Stream, TensorFile
from pipeline.campaign.plan import ALL_FILES, Inputs, PlannedRun, denied_here, known_denied
from pipeline.campaign.record import Skipped
from pipeline.compat.rules import first_error, judged, read_artifacts, runtime_on, use_of
from pipeline.config import ConditionsConfig, MeasureConfig
from pipeline.core.errors import Finding, ModelError
from pipeline.core.workers import Task, run_tasks
from pipeline.dataset import Dataset
from pipeline.dataset.guess import make_feeds
from pipeline.model.sources import SourceModel

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
    concurrent: str = ""
    """Numbers of callers and how they call, as `--concurrent` has it; "" for none."""
    batches: tuple[int, ...] = ()
    stream: Stream | None = None
    """Steps of a model with state, run besides; None for none."""
    original: Path | None = None
    """What streams are compared with; None for the first file."""
    wait_seconds: float = 0.0
    """How long a device that another process has is waited for."""


def inputs_of_files(order: PerfOrder, work: Path) -> dict[str, Inputs]:
    """What each file is given, by its path: made in `work`, or the probe's own random numbers."""
    feeds = _feeds(order, work)
    return {
        str(file): Inputs(tensors=feeds.get(file, ()), dimensions={} if file in feeds else order.dimensions)
        for file in order.files
    }


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
        call = partial(make_feeds, SourceModel(path=str(file)), order.dimensions, order.data, str(folder))
        tasks.append(Task(label=str(file), call=call))
    feeds = {}
    for outcome in run_tasks(tasks):
        if outcome.value:
            feeds[Path(outcome.task.label)] = outcome.value
        elif outcome.error and not isinstance(outcome.error, ModelError):
            raise outcome.error
    return feeds


def warnings(runs: Sequence[PlannedRun], judge: Judge) -> Iterator[Finding]:
    """What of the files and options has no effect in that library, once for each file."""
    placed = (
        msgspec.structs.replace(finding, where=run.variant)
        for run in runs
        for finding in judge(run.variant, run.options)
    )
    yield from dict.fromkeys(placed)


def planned_files(
    order: PerfOrder, device: str, facts: DeviceFacts, judge: Judge
) -> tuple[list[PlannedRun], list[Skipped]]:
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
            skipped.append(msgspec.structs.replace(run.skipped(reason), model=""))
        else:
            planned.append(run)
    return planned, skipped


def preflight(order: PerfOrder, device: Device) -> Judge:
    """What speaks against running a file (by its name) with options in the library that the device will load."""
    own_library = order.measure.perf_test and not order.library  # onnxruntime_perf_test brings a library of its own
    runtime = None if own_library else runtime_on(device, order.library, order.measure.plugins)
    read = read_artifacts({_name(file, order.files): file for file in order.files})

    def judge(name: str, options: RunOptions) -> tuple[Finding, ...]:
        return judged(read, name, runtime, use_of(options, {})) if runtime else ()

    return judge


def _without_effect(file: Path, options: RunOptions) -> str:
    """Why it makes no sense to run a file at this level: what is in ORT format was optimized when it was converted."""
    changed = options.optimization_level is not OptimizationLevel.ALL and file.suffix.lower() == ".ort"
    return "levels have no effect on an ORT format file: its level was chosen when it was converted" if changed else ""


def _name(file: Path, files: Sequence[Path]) -> str:
    same = sum(other.name == file.name for other in files)
    return file.name if same == 1 else str(file)
