"""Devices that are ready and a store of what they measured: what every command that measures begins with."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from device_runner import device as runner_device
from device_runner import result as run_result
from device_runner.device import Device, DeviceFacts
from device_runner.errors import RunnerError, SpecError
from pipeline import config as configs
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import record as campaign_record
from pipeline.campaign import store as campaign_store
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core.errors import MissingError
from pipeline.core.progress import Progress
from pipeline.job.stored import locked

log = logging.getLogger(__name__)

T = TypeVar("T")

LEASE_POLL_SECONDS = 0.5
"""How often a device that another process has is tried again; it notices nothing of that."""

AT_ONCE = 32
"""Devices that are opened at the same time: each waits for its device most of the time."""


@dataclass(frozen=True, slots=True)
class OpenDevices:
    """Devices that are ready, their facts, and why the others are not used."""

    devices: dict[str, Device]
    facts: dict[str, DeviceFacts]
    unusable: tuple[campaign_record.Skipped, ...] = ()

    def bench(self, store: campaign_store.Store, work: Path, progress: Progress) -> campaign_measure.Bench:
        """These with a store for what they measure, and a folder for what is left of runs."""
        return campaign_measure.Bench(
            devices=self.devices,
            facts=self.facts,
            unusable=self.unusable,
            store=store,
            work=work,
            progress=progress,
        )


def patience(name: str, seconds: float, stop: threading.Event) -> runner_device.Waiting:
    """Waits so long in all for a device that another process has, and says once who has it; not after `stop`."""
    deadline = time.monotonic() + seconds
    holders: set[str] = set()

    def waiting(holder: str) -> bool:
        left = deadline - time.monotonic()
        if left <= 0 or stop.is_set():
            return False
        if holder not in holders:
            log.warning("%s: waits at most %s: %s", name, core_progress.duration_text(left), holder)
            holders.add(holder)
        stop.wait(min(LEASE_POLL_SECONDS, left))
        return True

    return waiting


@contextlib.contextmanager
def opened_alone(name: str, wait_seconds: float, library: str | None) -> Iterator[OpenDevices]:
    """One device, waited for while another process has it; raises what `open_device` and `require_library` raise.

    A selector that means one device stands for it; SpecError where it means several.
    """
    scheme, _, rest = name.partition(":")
    if scheme == "adb" and runner_device.is_selector(rest):
        present, silent = found([name], ready=True)
        if len(present) > 1:
            raise SpecError(
                f"{len(present)} devices are meant, and one is measured here",
                where=name,
                why=counting.few(present),
                remedy="name one of them with --device; `run`, `tune` and `gate` take several",
            )
        if not present:
            why = counting.few([skipped.text for skipped in silent], "; ") or "none is connected"
            remedy = "`ort-mobile devices` says what each one needs"
            raise MissingError("no device is ready", where=name, why=why, remedy=remedy)
        (name,) = present
    with runner_device.open_device(name, patience(name, wait_seconds, threading.Event())) as device:
        require_library([device], library)
        yield OpenDevices({device.name: device}, {device.name: device.facts()})


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
        with opened(found(names, ready=True)[0] or names, waiting=note) as ready:
            require_library(ready.devices.values(), library)
    except MissingError:
        if not (held and wait_seconds):
            raise


@contextlib.contextmanager
def opened(
    names: Sequence[str], wait_seconds: float = 0.0, waiting: runner_device.Waiting | None = None
) -> Iterator[OpenDevices]:
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
            if isinstance(result, campaign_record.Skipped):
                unusable.append(result)
            else:
                devices[result[0].name], facts[result[0].name] = result
        if not devices:
            raise MissingError(
                "no device is ready",
                where=counting.few(names),
                why=counting.few([f"{skipped.device}: {skipped.text}" for skipped in unusable], "; ")
                or "none is connected",
                remedy="`ort-mobile devices` says what each one needs; `ort-mobile run --convert-only` needs none",
            )
        yield OpenDevices(devices, facts, tuple(unusable))


def _open(
    name: str, stack: contextlib.ExitStack, waiting: runner_device.Waiting
) -> tuple[Device, DeviceFacts] | campaign_record.Skipped:
    """The device, which is closed with the stack, and its facts; or why it cannot be used. Raises SpecError."""
    try:
        device = stack.enter_context(runner_device.open_device(name, waiting))
        facts = msgspec.structs.replace(device.facts(), host=run_result.host_name())
    except SpecError:
        raise
    except RunnerError as error:
        return campaign_record.Skipped(device=name, what=error.text)
    if facts.readiness is not runner_device.Readiness.READY:
        return campaign_record.Skipped(device=name, what=f"{facts.readiness.value}: {facts.advice}")
    return device, facts


def found(names: Sequence[str], *, ready: bool = False) -> tuple[list[str], list[campaign_record.Skipped]]:
    """The names, each once, with selectors (`adb:*`, `adb:api=29-@HOST:PORT`) replaced by the devices that they mean.

    With `ready` selectors mean phones that can be used as they are. The second are selectors whose adb server does not
    answer.
    """
    devices: dict[str, None] = {}
    silent = []
    for name in names:
        scheme, _, rest = name.partition(":")
        try:
            if scheme == "adb" and runner_device.is_selector(rest):
                from device_runner.adb import device as adb_device

                usable = (
                    device
                    for device in adb_device.list_devices(rest)
                    if not ready or device.readiness is runner_device.Readiness.READY
                )
                devices.update(dict.fromkeys(device.name for device in usable))
            else:
                devices[name] = None
        except SpecError:
            raise
        except RunnerError as error:
            silent.append(campaign_record.Skipped(device=name, what=error.text))
    return list(devices), silent


def libraries_by_device(
    facts: Mapping[str, DeviceFacts], targets: Iterable[configs.Target], given: str | None
) -> dict[str, str | None]:
    """What each device runs with: `given`, else a phone has the library that ships to phones like it.

    None leaves it to the device, as with android-host, whose name has its library. Of several targets for a phone's
    ABIs the first that names a library counts.
    """
    ships = [target for target in targets if target.platform is configs.Platform.ANDROID and target.library]

    def chosen(phone: DeviceFacts) -> str | None:
        fitting = [target for target in ships if not target.abis or not set(phone.abis).isdisjoint(target.abis)]
        by_cable = phone.name.startswith("adb:") and phone.platform == "android"
        return fitting[0].library if fitting and by_cable else None

    return {name: given or chosen(phone) for name, phone in facts.items()}


@contextlib.contextmanager
def open_bench(
    opening: contextlib.AbstractContextManager[OpenDevices], folder: Path | None, progress: Progress
) -> Iterator[campaign_measure.Bench]:
    """The devices of `opened` or `opened_alone`, and the store of a folder that no other job may use meanwhile.

    Without a folder nothing is kept.
    """
    with contextlib.ExitStack() as stack:
        if folder:
            stack.enter_context(locked(folder))
        work = stack.enter_context(storage.scratch(folder))
        store = stack.enter_context(campaign_store.open_store(f"sqlite:///{(folder or work) / storage.DATABASE}"))
        yield stack.enter_context(opening).bench(store, work, progress)
