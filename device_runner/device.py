"""What a device is, and how its name in a config becomes one."""

import importlib
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from device_runner.errors import SpecError
from device_runner.nnapi import NnapiDevice
from device_runner.result import Conditions, RunResult, Struct
from device_runner.spec import RunSpec


class Readiness(StrEnum):
    """Whether runs can start now."""

    READY = "ready"
    UNAUTHORIZED = "unauthorized"
    OFFLINE = "offline"
    UNUSABLE = "unusable"


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """What a device is. 0, "" and empty tuples where it does not tell.

    `platform` is android, linux, macos; `abis` are Android's names (arm64-v8a, x86_64, ...), best first;
    `core_max_mhz` has one entry per core. `advice` says what to do when it is not ready. `nnapi` is None where no probe
    has looked yet; `nnapi_devices` are named from API level 29 on.
    """

    name: str
    platform: str
    readiness: Readiness = Readiness.READY
    advice: str = ""
    manufacturer: str = ""
    model: str = ""
    soc: str = ""
    abis: tuple[str, ...] = ()
    api_level: int = 0
    os_release: str = ""
    fingerprint: str = ""
    core_max_mhz: tuple[int, ...] = ()
    memory_bytes: int = 0
    page_bytes: int = 0
    free_bytes: int = 0
    battery_percent: int | None = None
    charging: bool | None = None
    thermal_status: int | None = None
    nnapi: bool | None = None
    nnapi_devices: tuple[NnapiDevice, ...] = ()


class Device(Protocol):
    """Something that executes RunSpecs. `run` never raises for what a run meets: that is in its result."""

    @property
    def name(self) -> str:
        """How configs and results call it: `local`, `adb:SERIAL`."""

    def facts(self) -> DeviceFacts:
        """What it is; raises RunnerError when it cannot be asked."""

    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec. Files of the result lie in the spec's outputs_folder."""

    def close(self) -> None:
        """Give back what it holds: its work folder, its lease, settings that it changed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Conditioned(Protocol):
    """A device with heat, a battery, and settings that can be changed for runs."""

    @property
    def name(self) -> str:
        """How configs and results call it."""

    def conditions(self) -> Conditions:
        """State of it now, or some seconds ago; raises RunnerError when it does not answer."""

    def arrange(self, *, fixed_performance: bool, screen_on: bool) -> list[str]:
        """Set what is wanted until it is closed; what it cannot do, in words. Raises nothing."""


OPENERS: dict[str, str] = {
    "local": "device_runner.local:open_local",
    "adb": "device_runner.adb.device:open_adb",
    "android-host": "device_runner.android_host.device:open_android_host",
}
"""First part of a device's name to the function that opens it with the rest; imported when asked for."""


def open_device(text: str) -> Device:
    """The device of that name (`local`, `adb:SERIAL`); raises SpecError for a bad name, MissingError for none there."""
    scheme, _, rest = text.partition(":")
    if scheme not in OPENERS:
        raise SpecError(
            f"unknown device {text!r}",
            why=f"a device's name begins with one of: {', '.join(OPENERS)}",
            remedy="write `local`, or `adb:` and a serial as `ort-mobile devices` lists it",
        )
    module, _, function = OPENERS[scheme].partition(":")
    opener: Callable[[str], Device] = getattr(importlib.import_module(module), function)
    return opener(rest)
