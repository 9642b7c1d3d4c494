"""Files to measure without a config: with what options, on what inputs, and what speaks against it."""

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

import msgspec

from device_runner import files as runner_files
from device_runner import spec as run_spec
from device_runner.device import Device, DeviceFacts
from device_runner.spec import RunOptions, TensorFile
from pipeline import config as configs
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.compat import rules as compat_rules
from pipeline.core import workers
from pipeline.core.errors import Finding, ModelError, Severity
from pipeline.dataset import Dataset, TensorInfo
from pipeline.dataset import guess as data_guess
from pipeline.model import signature
from pipeline.model.sources import SourceModel

FindingsOf: TypeAlias = Callable[[str, RunOptions], tuple[Finding, ...]]
"""What speaks against running a file, by its name, with options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOnData:
    """Files, and what they are run on."""

    files: tuple[Path, ...]
    dimensions: dict[str, int]
    """Sizes of open dimensions, by symbolic name or `input[axis]`."""
    data: Dataset = field(default_factory=Dataset)
    """Random numbers by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfOrder(FilesOnData):
    """What to measure where, and how."""

    options: tuple[RunOptions, ...]
    device: str
    library: str | None
    measure: configs.MeasureConfig
    profiles: Path | None = None
    """Where profiles of one more run of each file go; None wants none."""
    blame: bool = False
    """Find the options that crash and keep them in the deny list."""
    conditions: configs.ConditionsConfig | None = None
    """In which state of the device runs start, and what is set on it meanwhile; None asks for nothing."""
    concurrent: str = ""
    """Numbers of callers and how they call, as `--concurrent` has it; "" for none."""
    batches: tuple[int, ...] = ()
    least_memory: bool = False
    """Find the least private memory that each file runs with."""
    stream: run_spec.Stream | None = None
    """Steps of a model with state, run besides; None for none."""
    original: Path | None = None
    """What streams are compared with; None for the first file."""
    wait_seconds: float = 0.0
    """How long a device that another process has is waited for."""


def inputs_of_files(order: FilesOnData, work: Path) -> dict[str, campaign_planned.Inputs]:
    """What each file is given, by its path: the probe's own random numbers, or, where sizes or data are given or
    dimensions are open, what is made in `work` in processes of their own; raises what is wrong with these.

    A file that cannot be read gets none: its own run says why.
    """
    feeds: dict[Path, tuple[TensorFile, ...]] = {}
    tasks = []
    for number, file in enumerate(order.files):
        takes: tuple[TensorInfo, ...] = ()
        with contextlib.suppress(ModelError, OSError):
            takes = data_guess.inputs_of_file(file)
        if not (order.dimensions or order.data.given or signature.open_axes(takes)):
            continue
        folder = work / f"inputs-{number}"
        folder.mkdir()
        call = partial(data_guess.make_feeds, SourceModel(path=str(file)), order.dimensions, order.data, str(folder))
        tasks.append(workers.Task(label=str(file), call=call))
    for outcome in workers.run_tasks(tasks):
        if outcome.value:
            feeds[Path(outcome.task.label)] = outcome.value
        elif outcome.error and not isinstance(outcome.error, ModelError):
            raise outcome.error
    return {
        str(file): campaign_planned.Inputs(
            tensors=feeds.get(file, ()), dimensions={} if file in feeds else order.dimensions
        )
        for file in order.files
    }


def guessed_sizes(order: FilesOnData, inputs: Mapping[str, campaign_planned.Inputs]) -> dict[Path, dict[str, int]]:
    """By file, the sizes of open dimensions that neither the order nor its data give, as they are in the inputs."""
    guessed: dict[Path, dict[str, int]] = {}
    for file in order.files if not order.data.test_data else ():
        shapes = {tensor.name: tensor.shape for tensor in inputs[str(file)].tensors}
        guessed[file] = {}
        if not shapes:  # of a file that cannot be read, too
            continue
        takes = data_guess.inputs_of_file(file)
        given = signature.resolve_dimensions(takes, order.dimensions, str(file))
        guessed[file] = {
            name: shapes[axes[0].input][axes[0].axis]
            for name, axes in signature.names_of(signature.open_axes(takes)).items()
            if axes[0].key not in given and not isinstance(order.data.inputs.get(axes[0].input), tuple)
        }
    return guessed


def guess_warnings(guessed: Mapping[Path, Mapping[str, int]]) -> Iterator[Finding]:
    """The guessed sizes of each file as what one may want otherwise."""
    for file, sizes in guessed.items():
        if sizes:
            options = " ".join(f"--dimension {shlex.quote(f'{name}={size}')}" for name, size in sizes.items())
            yield Finding(
                severity=Severity.WARNING,
                where=_name(file, list(guessed)),
                what=f"sizes were guessed: {', '.join(f'{name} = {size}' for name, size in sizes.items())}",
                remedy=f"give those that your app uses: {options}",
            )


def warnings(runs: Sequence[campaign_planned.PlannedRun], findings_of: FindingsOf) -> Iterator[Finding]:
    """What of the files and options has no effect in that library, once for each file."""
    findings = (
        msgspec.structs.replace(finding, where=run.variant)
        for run in runs
        for finding in findings_of(run.variant, run.options)
    )
    yield from dict.fromkeys(findings)


def planned_files(
    order: PerfOrder, device: str, facts: DeviceFacts, findings_of: FindingsOf
) -> tuple[list[campaign_planned.PlannedRun], list[campaign_record.Skipped]]:
    """Every file with every set of options, split in those to be run and those that cannot, with the reason."""
    entries = campaign_denied.known_denied()
    planned: list[campaign_planned.PlannedRun] = []
    skipped: list[campaign_record.Skipped] = []
    for file, options in product(order.files, order.options):
        name = _name(file, order.files)
        run = campaign_planned.PlannedRun(
            device=device,
            model=campaign_planned.ALL_FILES,
            variant=name,
            source=str(file),
            file=str(file),
            sha256=runner_files.sha256(file),
            size_bytes=file.stat().st_size,
            options=options,
        )
        failure = campaign_denied.denied_here(options, facts, entries, run.sha256)
        reason = failure.what if failure else compat_rules.first_error(findings_of(name, options))
        if reason:
            remedy = failure.remedy if failure else ""
            skipped.append(msgspec.structs.replace(run.skipped(reason, remedy), model=""))
        else:
            planned.append(run)
    return planned, skipped


def preflight(order: PerfOrder, device: Device) -> FindingsOf:
    """What speaks against running a file (by its name) with options in the library that the device will load."""
    own_library = order.measure.perf_test and not order.library  # onnxruntime_perf_test brings a library of its own
    runtime = None if own_library else compat_rules.runtime_on(device, order.library, order.measure.plugins)
    read = compat_rules.read_artifacts({_name(file, order.files): file for file in order.files})

    def findings_of(name: str, options: RunOptions) -> tuple[Finding, ...]:
        return compat_rules.findings_for(read, name, runtime, options) if runtime else ()

    return findings_of


def _name(file: Path, files: Sequence[Path]) -> str:
    same = sum(other.name == file.name for other in files)
    return file.name if same == 1 else str(file)
