"""Devices that are ready and a store of what they measured: what every command that measures begins with.

They are found, opened or left out with the reason; files are planned as they are; a campaign is new, or the stored one
of the same plan goes on.
"""

import contextlib
import logging
import os
import platform
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from device_runner.device import (
    Device,
    DeviceFacts,
    Readiness,
    Waiting,
    is_selector,
    on_network,
    open_device,
    split_server,
)
from device_runner.device import identity as device_identity
from device_runner.errors import RunnerError, SpecError
from device_runner.files import decode_json, sha256
from device_runner.result import host_name, utc_now
from device_runner.spec import RunOptions, Stream, TensorFile
from pipeline import __version__
from pipeline.campaign.denied import denied_here, known_denied
from pipeline.campaign.measure import Bench
from pipeline.campaign.planned import ALL_FILES, Inputs, PlannedRun
from pipeline.campaign.record import CampaignRecord, Host, JobRecord, Skipped
from pipeline.campaign.store import Store, open_store
from pipeline.compat.rules import findings_for, first_error, read_artifacts, runtime_on
from pipeline.config import ConditionsConfig, Config, MeasureConfig, Platform, Target, TuneConfig
from pipeline.core.errors import Finding, MissingError, ModelError, Severity
from pipeline.core.files import DATABASE, scratch
from pipeline.core.groups import few
from pipeline.core.progress import Progress, duration_text
from pipeline.core.variant import Artifact
from pipeline.core.workers import Task, run_tasks
from pipeline.dataset import Dataset, TensorInfo
from pipeline.dataset.guess import inputs_of_file, make_feeds
from pipeline.job.stored import locked
from pipeline.model.signature import names_of, open_axes, resolve_dimensions
from pipeline.model.sources import SourceModel

log = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_POLL_SECONDS = 0.5
"""How often a device that another process has is tried again; it notices nothing of that."""

AT_ONCE = 32
"""Devices that are opened at the same time: each waits for its device most of the time."""


Opened: TypeAlias = tuple[dict[str, Device], dict[str, DeviceFacts], tuple[Skipped, ...]]
"""Devices that are ready, their facts, and why the others are not used."""


def patience(name: str, seconds: float, stop: threading.Event) -> Waiting:
    """Waits so long in all for a device that another process has, and says once who has it; not after `stop`."""
    deadline = time.monotonic() + seconds
    holders: set[str] = set()

    def waiting(holder: str) -> bool:
        left = deadline - time.monotonic()
        if left <= 0 or stop.is_set():
            return False
        if holder not in holders:
            log.warning("%s: waits at most %s: %s", name, duration_text(left), holder)
            holders.add(holder)
        stop.wait(min(LEASE_POLL_SECONDS, left))
        return True

    return waiting


@contextlib.contextmanager
def opened_alone(name: str, wait_seconds: float, library: str | None) -> Iterator[Opened]:
    """One device, waited for while another process has it; raises what `open_device` and `require_library` raise.

    A selector that means one device stands for it; SpecError where it means several.
    """
    scheme, _, rest = name.partition(":")
    if scheme == "adb" and is_selector(rest):
        present, silent = found([name], ready=True)
        if len(present) > 1:
            raise SpecError(
                f"{len(present)} devices are meant, and one is measured here", where=name, why=few(present),
                remedy="name one of them with --device; `run`, `tune` and `gate` take several",
            )  # fmt: skip
        if not present:
            why = few([skipped.text for skipped in silent], "; ") or "none is connected"
            remedy = "`ort-mobile devices` says what each one needs"
            raise MissingError("no device is ready", where=name, why=why, remedy=remedy)
        (name,) = present
    with open_device(name, patience(name, wait_seconds, threading.Event())) as device:
        require_library([device], library)
        yield {device.name: device}, {device.name: device.facts()}, ()


def require_library(devices: Iterable[Device], library: str | None) -> None:
    """Raise what is wrong with a library that was named, where none of the devices has it.

    What single devices lack is a failure of their runs alone, as is what a device misses for which none was named.
    """
    refused: list[RunnerError] = []
    for device in devices if library else ():
        try:
            device.library_for(library)
        except RunnerError as error:
            refused.append(error)
        else:
            return
    if refused:
        raise refused[0]


def require_devices(names: Sequence[str], library: str | None, wait_seconds: float) -> None:
    """Raise at once what would end a job at its first run: no device is there, or none has the library that was named.

    Nothing is held afterwards. A device that another process has is there where the job is going to wait for it.
    """
    held: list[str] = []

    def note(holder: str) -> bool:
        held.append(holder)
        return False

    try:
        # adb forgets a network phone that does not answer when it is opened: the job itself must still meet it
        with opened(found(names, ready=True)[0] or names, waiting=note) as (devices, _, _):
            require_library(devices.values(), library)
    except MissingError:
        if not (held and wait_seconds):
            raise


@contextlib.contextmanager
def opened(names: Sequence[str], wait_seconds: float = 0.0, waiting: Waiting | None = None) -> Iterator[Opened]:
    """Open the devices, all at once; those that cannot be used are left out with their reason.

    Those that other processes have are waited for, `wait_seconds` at most; Ctrl-C ends that at once. Instead `waiting`,
    where it is given, decides.
    Raises SpecError for a name that no device can have, MissingError when no device is ready.
    """
    present, unusable = found(names)
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        devices, facts = {}, {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            waits = [waiting or patience(name, wait_seconds, stop) for name in present]
            futures = [pool.submit(_open, name, stack, wait) for name, wait in zip(present, waits, strict=True)]
            try:
                results = [future.result() for future in futures]
            except BaseException:
                stop.set()
                raise
        for result in results:
            if isinstance(result, Skipped):
                unusable.append(result)
            else:
                devices[result[0].name], facts[result[0].name] = result
        if not devices:
            raise MissingError(
                "no device is ready",
                where=few(names),
                why=few([f"{skipped.device}: {skipped.text}" for skipped in unusable], "; ") or "none is connected",
                remedy="`ort-mobile devices` says what each one needs; `ort-mobile run --convert-only` needs none",
            )
        yield devices, facts, tuple(unusable)


def _open(name: str, stack: contextlib.ExitStack, waiting: Waiting) -> tuple[Device, DeviceFacts] | Skipped:
    """The device, which is closed with the stack, and its facts; or why it cannot be used. Raises SpecError."""
    try:
        device = stack.enter_context(open_device(name, waiting))
        facts = msgspec.structs.replace(device.facts(), host=host_name())
    except SpecError:
        raise
    except RunnerError as error:
        return Skipped(device=name, what=error.text)
    if facts.readiness is not Readiness.READY:
        return Skipped(device=name, what=f"{facts.readiness.value}: {facts.advice}")
    return device, facts


def found(names: Sequence[str], *, ready: bool = False) -> tuple[list[str], list[Skipped]]:
    """The names, each once, with selectors (`adb:*`, `adb:api=29-@HOST:PORT`) replaced by the devices that they mean.

    With `ready` selectors mean phones that can be used as they are. The second are selectors whose adb server does not
    answer.
    """
    devices: dict[str, None] = {}
    silent = []
    for name in names:
        scheme, _, rest = name.partition(":")
        try:
            if scheme == "adb" and is_selector(rest):
                from device_runner.adb.device import list_devices

                usable = (row for row in list_devices(rest) if not ready or row.readiness is Readiness.READY)
                devices.update(dict.fromkeys(row.name for row in usable))
            else:
                devices[name] = None
        except SpecError:
            raise
        except RunnerError as error:
            silent.append(Skipped(device=name, what=error.text))
    return list(devices), silent


def libraries_by_device(
    facts: Mapping[str, DeviceFacts], targets: Iterable[Target], given: str | None
) -> dict[str, str | None]:
    """What each device runs with: `given`, else a phone has the library that ships to phones like it.

    None leaves it to the device, as with android-host, whose name has its library. Of several targets for a phone's
    ABIs the first that names a library counts.
    """
    ships = [target for target in targets if target.platform is Platform.ANDROID and target.library]

    def chosen(phone: DeviceFacts) -> str | None:
        fitting = [target for target in ships if not target.abis or not set(phone.abis).isdisjoint(target.abis)]
        by_cable = phone.name.startswith("adb:") and phone.platform == "android"
        return fitting[0].library if fitting and by_cable else None

    return {name: given or chosen(phone) for name, phone in facts.items()}


@contextlib.contextmanager
def open_bench(
    opening: contextlib.AbstractContextManager[Opened], folder: Path | None, progress: Progress
) -> Iterator[Bench]:
    """The devices of `opened` or `opened_alone`, and the store of a folder that no other job may use meanwhile.

    Without a folder nothing is kept.
    """
    with contextlib.ExitStack() as stack:
        if folder:
            stack.enter_context(locked(folder))
        work = stack.enter_context(scratch(folder))
        store = stack.enter_context(open_store(f"sqlite:///{(folder or work) / DATABASE}"))
        devices, facts, unusable = stack.enter_context(opening)
        yield Bench(devices=devices, facts=facts, unusable=unusable, store=store, work=work, progress=progress)


FindingsOf: TypeAlias = Callable[[str, RunOptions], tuple[Finding, ...]]
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
    """What each file is given, by its path: the probe's own random numbers, or, where sizes or data are given or
    dimensions are open, what is made in `work` in processes of their own; raises what is wrong with these.

    A file that cannot be read gets none: its own run says why.
    """
    feeds: dict[Path, tuple[TensorFile, ...]] = {}
    tasks = []
    for number, file in enumerate(order.files):
        takes: tuple[TensorInfo, ...] = ()
        with contextlib.suppress(ModelError, OSError):
            takes = inputs_of_file(file)
        if not (order.dimensions or order.data.given or open_axes(takes)):
            continue
        folder = work / f"inputs-{number}"
        folder.mkdir()
        call = partial(make_feeds, SourceModel(path=str(file)), order.dimensions, order.data, str(folder))
        tasks.append(Task(label=str(file), call=call))
    for outcome in run_tasks(tasks):
        if outcome.value:
            feeds[Path(outcome.task.label)] = outcome.value
        elif outcome.error and not isinstance(outcome.error, ModelError):
            raise outcome.error
    return {
        str(file): Inputs(tensors=feeds.get(file, ()), dimensions={} if file in feeds else order.dimensions)
        for file in order.files
    }


def guessed_sizes(order: PerfOrder, inputs: Mapping[str, Inputs]) -> dict[Path, dict[str, int]]:
    """By file, the sizes of open dimensions that neither the order nor its data give, as they are in the inputs."""
    guessed: dict[Path, dict[str, int]] = {}
    for file in order.files if not order.data.test_data else ():
        shapes = {tensor.name: tensor.shape for tensor in inputs[str(file)].tensors}
        guessed[file] = {}
        if not shapes:  # of a file that cannot be read, too
            continue
        takes = inputs_of_file(file)
        given = resolve_dimensions(takes, order.dimensions, str(file))
        guessed[file] = {
            name: shapes[axes[0].input][axes[0].axis]
            for name, axes in names_of(open_axes(takes)).items()
            if axes[0].key not in given and not isinstance(order.data.inputs.get(axes[0].input), tuple)
        }
    return guessed


def guess_warnings(guessed: Mapping[Path, Mapping[str, int]]) -> Iterator[Finding]:
    """The guessed sizes of each file as what one may want otherwise."""
    for file, sizes in guessed.items():
        if sizes:
            options = " ".join(f"--dimension {shlex.quote(f'{name}={size}')}" for name, size in sizes.items())
            yield Finding(
                severity=Severity.WARNING, where=_name(file, list(guessed)),
                what=f"sizes were guessed: {', '.join(f'{name} = {size}' for name, size in sizes.items())}",
                remedy=f"give those that your app uses: {options}",
            )  # fmt: skip


def warnings(runs: Sequence[PlannedRun], findings_of: FindingsOf) -> Iterator[Finding]:
    """What of the files and options has no effect in that library, once for each file."""
    findings = (
        msgspec.structs.replace(finding, where=run.variant)
        for run in runs
        for finding in findings_of(run.variant, run.options)
    )
    yield from dict.fromkeys(findings)


def planned_files(
    order: PerfOrder, device: str, facts: DeviceFacts, findings_of: FindingsOf
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
        reason = failure.message if failure else first_error(findings_of(name, options))
        if reason:
            remedy = failure.remedy if failure else ""
            skipped.append(msgspec.structs.replace(run.skipped(reason, remedy), model=""))
        else:
            planned.append(run)
    return planned, skipped


def preflight(order: PerfOrder, device: Device) -> FindingsOf:
    """What speaks against running a file (by its name) with options in the library that the device will load."""
    own_library = order.measure.perf_test and not order.library  # onnxruntime_perf_test brings a library of its own
    runtime = None if own_library else runtime_on(device, order.library, order.measure.plugins)
    read = read_artifacts({_name(file, order.files): file for file in order.files})

    def findings_of(name: str, options: RunOptions) -> tuple[Finding, ...]:
        return findings_for(read, name, runtime, options) if runtime else ()

    return findings_of


def _name(file: Path, files: Sequence[Path]) -> str:
    same = sum(other.name == file.name for other in files)
    return file.name if same == 1 else str(file)


PROGRAMS = ("onnxruntime", "onnx", "numpy", "flatbuffers")


def versions() -> dict[str, str]:
    """Every program that has a part in an artifact."""
    installed = {"ort-mobile": __version__}
    for name in PROGRAMS:
        with contextlib.suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def host() -> Host:
    """The computer that this runs on."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    processors = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=processors[0] if processors else platform.processor(),
        cores=os.cpu_count() or 0,
        memory_bytes=0 if sys.platform == "win32" else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        python=platform.python_version(),
    )


def new_campaign(name: str, document: JobRecord | None = None) -> CampaignRecord:
    """A campaign that begins now, under an id that no other has."""
    now = utc_now()
    return CampaignRecord(id=f"{now}-{secrets.token_hex(3)}", name=name, created_at=now, document=document)


def stored_config(config: Config) -> Config:
    """The config as it is stored: not with the database: its URL may have a password, and is no part of a plan."""
    output = msgspec.structs.replace(config.output, database=None)
    return msgspec.structs.replace(config, output=output)


def as_read(value: T) -> T:
    """A value as it is read back from the store: numbers and lists of a config may have become other equal ones."""
    return decode_json(msgspec.json.encode(value), type(value))


def known_on_network(store: Store, config: Config) -> list[str]:
    """Devices on the network that earlier campaigns of a config with selectors met, ready or not.

    An adb server forgets such a device when it loses it, so that no selector would find it again.
    """
    if not any(is_selector(name.partition(":")[2]) for name in config.devices):
        return []
    stored = as_read(stored_config(config))
    documents = [row.document for row in store.campaigns() if row.document and row.document.config == stored]
    names = [run.device for document in documents for run in document.planned]
    names += [row.device for document in documents for row in document.skipped]
    adb = [name for name in dict.fromkeys(names) if name.startswith("adb:")]
    return [name for name in adb if on_network(split_server(name.removeprefix("adb:"))[0])]


def resume(
    store: Store, record: JobRecord, artifacts: Sequence[Artifact], facts: Mapping[str, DeviceFacts]
) -> CampaignRecord | None:
    """The newest campaign of the same config and programs whose artifacts are unchanged, with what is new to it.

    New are planned runs of devices that were not there, and of models that failed then. It may have planned more, for
    a device that is not there now. None where there is no such campaign; why the newest is none is logged.
    """
    plan = as_read(record)
    now = {(artifact.model, artifact.variant.name, artifact.sha256): artifact for artifact in artifacts}
    last, stored, changed = None, list[tuple[str, str, str]](), ""
    for campaign in store.campaigns():
        if document := campaign.document:
            before = [(row.model, row.variant.name, row.sha256) for row in store.artifacts(campaign.id)]
            missing = [f"{model}/{variant}" for model, variant, sha256 in before if (model, variant, sha256) not in now]
            others = strangers(store.devices(campaign.id), facts)
            earlier = _places(document)
            # One that was only converted plans nothing, and nothing goes on with it. Runs are looked up last: of each
            # among all, and a lab has thousands of campaigns.
            continued = (earlier or not plan.planned) and _purpose(document) == _purpose(plan)
            if not continued or any(
                run not in document.planned for run in plan.planned if (run.device, run.model) in earlier
            ):
                changed = "its config, programs or runs are others"
            elif missing:
                changed = f"it has other files of {few(missing)}"
            elif others:
                changed = f"{few(others)} is now another device"
            else:
                last, stored = campaign, before
    if last is None:
        if changed:
            log.warning("nothing to resume, a new campaign begins: of the last one, %s", changed)
        return None
    document = last.job()
    if not _places(plan) - _places(document):
        return last
    new_devices = {run.device for run in plan.planned} - {run.device for run in document.planned}
    return store.amend(
        last.id,
        lambda document: _joined(document, plan),
        facts=[facts[device] for device in sorted(new_devices)],
        new_artifacts=[artifact for key, artifact in now.items() if key not in stored],
    )


def strangers(stored: Iterable[DeviceFacts], facts: Mapping[str, DeviceFacts]) -> list[str]:
    """Devices of a stored campaign that are others now, under the same name: `local` and emulators of another host."""
    return [
        row.name
        for row in stored
        if row.host and row.name in facts and device_identity(row) != device_identity(facts[row.name])
    ]


def _purpose(record: JobRecord) -> tuple[object, ...]:
    """What makes two plans the same: the config, but for how long a search may take, and the programs.

    Campaigns in rounds, of searches, and those that confirm what these found never continue one another; [tune] is of
    no importance to the first.
    """
    kind = record.searching, bool(record.tuned)
    tune = msgspec.structs.replace(record.config.tune, minutes=TuneConfig().minutes) if any(kind) else TuneConfig()
    return msgspec.structs.replace(record.config, tune=tune), record.versions, kind


def _places(document: JobRecord) -> set[tuple[str, str]]:
    """Every device with every model that it measures."""
    return {(run.device, run.model) for run in document.planned}


def _joined(document: JobRecord, plan: JobRecord) -> JobRecord:
    """The stored campaign's document with what is planned for new devices and models, and no more why these failed.

    What it says of models is newer where a model that had failed is there now.
    """
    earlier = _places(document)
    new = _places(plan) - earlier
    devices = {device for device, _ in _places(plan)} - {device for device, _ in earlier}
    models = {model for _, model in new} - {model for _, model in earlier}
    searches = (*document.tuned, *plan.tuned)
    placements = (*plan.placements, *document.placements)
    return msgspec.structs.replace(
        plan if models else document,
        config=document.config,
        host=document.host,
        versions=document.versions,
        planned=(*document.planned, *(run for run in plan.planned if (run.device, run.model) in new)),
        skipped=(
            *(row for row in document.skipped if row.device not in devices and row.model not in models),
            *(row for row in plan.skipped if row.device in devices or row.model in models),
        ),
        tuned=tuple({(search.device, search.model): search for search in searches}.values()),
        placements=tuple({(row.model, row.provider): row for row in placements}.values()),
    )
