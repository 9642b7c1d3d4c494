"""What a device is, with its facts and NNAPI devices as values, and how its name in a config becomes one."""

import contextlib
import difflib
import fcntl
import fnmatch
import hashlib
import importlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import islice
from types import TracebackType
from typing import BinaryIO, Protocol, Self, runtime_checkable
from urllib.parse import parse_qsl

from msgspec import Struct

from device_runner.errors import SpecError, UnavailableError
from device_runner.files import own_folder_errors, state_folder
from device_runner.library import Library
from device_runner.providers import chip_named, chip_of_phone
from device_runner.result import Conditions, RunResult
from device_runner.spec import RunSpec

GRACE_SECONDS = 15.0
"""What a probe has beyond a spec's time limit to say that it was reached, before it is killed itself."""


SOC_MAKER = "ro.soc.manufacturer"
SOC_PROPERTIES = ("ro.soc.model", "ro.board.platform", "ro.hardware.chipname", "ro.chipname", "ro.hardware")
"""Where Android names the chip, best first: ro.soc.* came with API level 31, as did fields of `Build`."""


class DriverType(StrEnum):
    """Kinds of NNAPI devices; the numbers are in `TYPE_CODES`."""

    OTHER = "other"
    CPU = "cpu"
    GPU = "gpu"
    ACCELERATOR = "accelerator"


TYPE_CODES = {kind: code for code, kind in enumerate(DriverType, start=1)}

TYPES = {code: kind for kind, code in TYPE_CODES.items()}
"""As NNAPI numbers them; 0 is "unknown" there, and counts as other."""


class NnapiDevice(Struct, frozen=True, kw_only=True):
    """A device (a driver) of a phone's NNAPI. Its feature level is an API level up to 31, above 1000006 and more."""

    name: str
    type: DriverType
    feature_level: int
    version: str = ""


class GraphicsProcessor(Struct, frozen=True, kw_only=True):
    """A phone's GPU by Vulkan: name, versions of driver and Vulkan, whether shaders may use half precision (None: it
    does not say).
    """

    name: str
    driver: str = ""
    vulkan: str = ""
    shader_f16: bool | None = None


class Readiness(StrEnum):
    """Whether runs can start now."""

    READY = "ready"
    UNAUTHORIZED = "unauthorized"
    OFFLINE = "offline"
    UNUSABLE = "unusable"


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """What a device is. 0, "" and empty tuples where it does not tell.

    `host` is the computer that it is attached to and `serial` the number that its maker gave it: with them devices of
    several hosts are told apart (`identity`).
    `platform` is android, linux, macos; `abis` are Android's names (arm64-v8a, x86_64, ...), best first;
    `core_max_mhz` has one entry per core; `numa_nodes` have the cores of each node, from 1 as in 1-8,17-24. `advice`
    says what to do when it is not ready. `nnapi` is None where no probe has looked yet; `nnapi_devices` are named from
    API level 29 on. `gpu` is known from API level 29 on.
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
    numa_nodes: tuple[str, ...] = ()
    memory_bytes: int = 0
    page_bytes: int = 0
    free_bytes: int = 0
    battery_percent: int | None = None
    charging: bool | None = None
    thermal_status: int | None = None
    nnapi: bool | None = None
    nnapi_devices: tuple[NnapiDevice, ...] = ()
    gpu: GraphicsProcessor | None = None
    host: str = ""
    serial: str = ""


def core_count(facts: DeviceFacts, host_cores: int | None = None) -> int:
    """Cores of a device, 0 where it does not tell. Of a computer that names no clocks those of its host: this one's."""
    if facts.core_max_mhz or facts.platform not in ("linux", "macos"):
        return len(facts.core_max_mhz)
    return os.cpu_count() or 0 if host_cores is None else host_cores


def identity(facts: DeviceFacts) -> str:
    """The name of a device among those of all hosts, by its own name, its host and its serial.

    A phone keeps its name at whichever host and address it is reached: `adb:` and its serial. What is a part of a host
    (`local`, `android-host:…`), an emulator, or a phone on the network that does not say its serial, is NAME@HOST.
    """
    scheme, _, rest = facts.name.partition(":")
    serial = split_server(rest)[0]
    of_a_host = scheme != "adb" or serial.startswith("emulator-") or (on_network(serial) and not facts.serial)
    if of_a_host:
        return f"{facts.name}@{facts.host}"
    return f"adb:{facts.serial if on_network(serial) else serial}"


class Device(ABC):
    """Something that executes RunSpecs; `name` is how configs and results call it: `local`, `adb:SERIAL`.

    What derives it puts onto `opened` what is to be given back when it is closed.
    """

    plugins: frozenset[str] = frozenset()
    """Execution providers that it loads from packages on this computer where its library lacks them."""

    software_gpu = False
    """Whether a driver that computes on the CPU plays its GPU, whose times and memory say nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened = contextlib.ExitStack()

    @abstractmethod
    def facts(self) -> DeviceFacts:
        """What it is; raises RunnerError when it cannot be asked."""

    @property
    def shader_f16(self) -> bool | None:
        """Whether shaders of its GPU may use half precision; None where that is not known."""
        return None

    @abstractmethod
    def library_for(self, given: str | None) -> Library:
        """The library that a spec with this one (None: none is named) is run with; raises RunnerError for none."""

    @abstractmethod
    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec. Files of the result lie in the spec's outputs_folder.

        Nothing is raised for what a run meets: that is in its result.
        """

    def close(self) -> None:
        """Give back what it holds: its work folder, its lease, settings that it changed."""
        self.opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@runtime_checkable
class Conditioned(Protocol):
    """A device with heat, a battery, and settings that can be changed for runs."""

    name: str
    """How configs and results call it."""

    def conditions(self) -> Conditions:
        """State of it now, or some seconds ago; raises RunnerError when it does not answer."""

    def arrange(self, *, fixed_performance: bool, screen_on: bool) -> list[str]:
        """Set what is wanted until it is closed; what it cannot do, in words. Raises nothing."""


ZONES_MAX = 256
HOTTEST_MILLIDEGREES = 150_000
"""What says more is no thermometer, as in probe/sensors.c."""


def zones_celsius(files: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Temperature by thermal zone from Linux's files: path (`…/thermal_zone0/temp`, `…/type`) and first line of each.

    What a zone without a name says, and what is no temperature above 0 °C, is left out.
    """
    lines = dict(islice(files, 2 * ZONES_MAX))
    celsius: dict[str, float] = {}
    for path, line in lines.items():
        zone, _, kind = path.rpartition("/")
        name = "".join(char for char in lines.get(f"{zone}/type", "").strip() if char.isprintable())[:64]
        if kind == "temp" and name and re.fullmatch(r"[0-9]{1,6}", line.strip()):
            millidegrees = int(line)
            if 0 < millidegrees <= HOTTEST_MILLIDEGREES:
                celsius[name] = max(millidegrees / 1000, celsius.get(name, 0.0))
    return celsius


Waiting = Callable[[str], bool]
"""Called with who has a device while another process does; it takes its time, and False ends the waiting."""


def no_waiting(_holder: str) -> bool:
    """A device that another process has is not waited for."""
    return False


def take_lease(key: str, name: str, waiting: Waiting = no_waiting) -> BinaryIO:
    """The lock of a device, held until it is closed or the process ends; raises UnavailableError when another has it.

    `key` is what tells devices apart (`lease_key`), `name` how messages call it. While another has it, `waiting` is
    asked again and again; the device itself is left in peace.
    """
    folder = state_folder() / "leases"
    path = folder / hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    with own_folder_errors(folder, "ORT_MOBILE_STATE"):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    with contextlib.ExitStack() as opened:
        opened.callback(file.close)
        locked = False
        while not locked:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            why = f"process {path.read_text(errors='replace')[:20] or 'unknown'} of this computer runs on it"
            if not locked and not waiting(why):
                remedy = "wait for it (--wait SECONDS), or end that process"
                raise UnavailableError(f"{name} is in use", why=why, remedy=remedy)
        opened.pop_all()
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


OPENERS: dict[str, str] = {
    "local": "device_runner.local:open_local",
    "adb": "device_runner.adb.device:open_adb",
    "android-host": "device_runner.android_host.device:open_android_host",
    "linux-host": "device_runner.host_device:open_linux_host",
}
"""First part of a device's name to the function that opens it with the rest; imported when asked for."""


REPORTED = ("farm", "ios")
"""First parts of the names of devices that nobody opens: a package ran there, and somebody brought its results."""


def is_reported(name: str) -> bool:
    """Whether a device's results are reported by a package, not measured by whoever stores them."""
    return name.partition(":")[0] in REPORTED


def open_device(text: str, waiting: Waiting = no_waiting) -> Device:
    """The device of that name (`local`, `adb:SERIAL`); SpecError for a bad name, UnavailableError for none there.

    Only devices behind adb belong to one process at a time: `waiting` is asked whether to wait for the other.
    """
    scheme, rest = re.fullmatch(r"([^:?]*):?(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if is_reported(text):
        raise UnavailableError(
            f"{text} cannot be opened",
            why="a package runs there, and its results are brought",
            remedy="`ort-mobile export` makes the package, `ort-mobile collect` reads its sessions",
        )
    if scheme not in OPENERS:
        raise SpecError(
            f"unknown device {text!r}",
            why=f"a device's name begins with one of: {', '.join(OPENERS)}",
            remedy="write `local`, or `adb:` and a serial as `ort-mobile devices` lists it",
        )
    module, _, function = OPENERS[scheme].partition(":")
    opener: Callable[[str, Waiting], Device] = getattr(importlib.import_module(module), function)
    return opener(rest, waiting)


def read_options(query: str, where: str, names: Sequence[str]) -> dict[str, str]:
    """Options behind a name's question mark, as `abi=arm64-v8a&cpu=cortex-a53`; SpecError that names `where`."""
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    unknown = sorted(set(options) - set(names))
    if unknown or len(options) != len(pairs) or (query and not pairs):
        what = f"unknown option {unknown[0]!r}" if unknown else "these options cannot be read"
        raise SpecError(
            what,
            where=where,
            remedy=f"options are {', '.join(names)}, as in ?{'&'.join(f'{key}=...' for key in names[:2])}",
        )
    return options


Test = Callable[[DeviceFacts], bool]


def _glob(pattern: str, words: Callable[[DeviceFacts], Iterable[str]]) -> Test:
    """Whether one of a device's words fits a pattern, without regard to case."""
    return lambda facts: any(fnmatch.fnmatchcase(word.lower(), pattern.lower()) for word in words(facts))


def _api(text: str) -> Test:
    """One level, or a range with open ends: 29, 29-33, 29-, -33."""
    match = re.fullmatch(r"(\d{0,2})(-?)(\d{0,2})", text)
    if not match or not (match[1] or match[3]):
        raise SpecError(f"{text!r} is no API level or range", remedy="write api=29, api=29-33, api=29- or api=-33")
    low = int(match[1] or 0)
    high = int(match[3] or 99) if match[2] else low
    return lambda facts: facts.api_level > 0 and low <= facts.api_level <= high


CONDITIONS: dict[str, Callable[[str], Test]] = {
    "serial": lambda pattern: _glob(pattern, lambda facts: [split_server(facts.name.partition(":")[2])[0]]),
    "model": lambda pattern: _glob(pattern, lambda facts: [facts.model, f"{facts.manufacturer} {facts.model}"]),
    "soc": lambda pattern: _glob(pattern, lambda facts: [facts.soc, facts.soc.rpartition(" ")[2]]),
    # A Snapdragon, whatever letters of a variant the phone's own name of it has
    "chip": lambda text: _glob(
        chip_named(text).name,
        lambda facts: [chip.name for chip in (chip_of_phone(facts.soc.rpartition(" ")[2]),) if chip],
    ),
    "abi": lambda name: lambda facts: name in facts.abis,
    "api": _api,
}
"""Key of a condition to what makes its test; patterns are globs, without regard to case."""


def is_selector(text: str) -> bool:
    """Whether what follows `adb:` means devices by conditions, not one serial."""
    selector, _ = split_server(text)
    return "*" in selector or selector.partition("=")[0].strip() in CONDITIONS


def split_server(text: str) -> tuple[str, str]:
    """A serial or selector, and the address of its adb server behind the last @; "" where none is named."""
    before, at, address = text.rpartition("@")
    return (before, address) if at else (text, "")


def on_network(serial: str) -> bool:
    """Whether a serial is an address that a server can be told to connect: HOST:PORT, or mDNS's name of a service."""
    return bool(re.search(r":\d{1,5}$|\._adb(-tls-connect)?\._tcp", serial))


def parse_selector(text: str) -> Test:
    """A test of facts from `*`, a glob of serials, or `model=Pixel*,abi=arm64-v8a,api=29-33`; raises SpecError."""
    if "=" not in text:
        return CONDITIONS["serial"](text)
    tests = []
    for part in text.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in CONDITIONS or not value:
            close = difflib.get_close_matches(key, CONDITIONS, n=1)
            hint = f"; did you mean {close[0]}?" if close and close[0] != key else ""
            raise SpecError(
                f"{part.strip()!r} selects no devices", remedy=f"conditions are {', '.join(CONDITIONS)}{hint}"
            )
        tests.append(CONDITIONS[key](value))
    return lambda facts: all(test(facts) for test in tests)
