"""What `android-host:LIBRARY` and `linux-host:LIBRARY` share, and the latter: a library in processes of this computer.

A library of the ABI of another processor runs in an emulator, whose results have no times and no memory. The name of a
`linux-host` may carry options behind a question mark, as in `linux-host:wheel:1.29.0?abi=arm64-v8a&cpu=cortex-a53`. The
same library on a computer of its own processor needs no emulator, and is then timed like `local`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from device_runner.android_host.processor import HOST_ABIS, SLOWNESS, Processor, default_abi, find_processor, untimed
from device_runner.device import Device, DeviceFacts, Waiting, no_waiting, read_options
from device_runner.errors import RunnerError, SpecError, UnavailableError
from device_runner.files import scratch_folder
from device_runner.library import Library, LibraryFacts, resolve
from device_runner.local import LocalDevice, host_facts, machine_abi
from device_runner.probe.build import HOST, build_probe
from device_runner.result import Failure, FailureKind, Mark, RunResult, without_measurement
from device_runner.spec import RunSpec


class HostDevice(Device):
    """Runs specs with a library; a spec's own goes before the device's. Who derives it calls `_start` with what runs.

    `load` gives the facts of a library for this kind of device, or raises RunnerError. Folders whose names begin with
    `prefix` are removed where their process was killed.
    """

    MARKS: tuple[Mark, ...] = ()
    """What every result is marked with."""

    def __init__(self, name: str, library: LibraryFacts, prefix: str, load: Callable[[Library], LibraryFacts]) -> None:
        super().__init__(name)
        self.library = library
        """The library that it runs."""
        self._load = load
        self._folder = self.opened.enter_context(scratch_folder(prefix))

    def _start(self, processor: Processor, environment: Mapping[str, str] | None = None) -> None:
        native = self.library.abi == machine_abi()
        self._processor = processor
        self._local = LocalDevice(
            build_probe(HOST if native else HOST_ABIS[self.library.abi].probe),
            environment=environment,
            emulator=processor.command,
        )

    def library_for(self, given: str | None) -> Library:
        """The given library, else the one in its name."""
        return resolve(given or self.library.path, self.library.abi)

    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec in a fresh process; what the library does, a crash included, is in the result.

        An emulator has ten times the time limit, and its result no times and no memory.
        """
        try:
            library = self._load(self.library_for(spec.library))
        except RunnerError as error:
            kind = FailureKind.WRONG_LIBRARY
            failure = Failure(kind=kind, message=str(error), cause=error.why, remedy=error.remedy)
            return without_measurement(spec, self.name, failure)
        limit = spec.timeout_seconds * (SLOWNESS if self._processor.emulated else 1)
        result = self._local.run(msgspec.structs.replace(spec, library=library.path, timeout_seconds=limit))
        result = msgspec.structs.replace(result, device=self.name, marks=(*result.marks, *self.MARKS))
        return untimed(result, self._processor.cpu) if self._processor.emulated else result


SCHEME = "linux-host"
OPTIONS = ("abi", "cpu")

FOLDER = "ort-mobile-linux-"


def open_linux_host(rest: str, _waiting: Waiting = no_waiting) -> "LinuxHost":
    """The device that `linux-host:REST` names; raises SpecError for a bad option, UnavailableError for no library."""
    text, _, query = rest.partition("?")
    name = f"{SCHEME}:{rest}"
    options = read_options(query, name, OPTIONS)
    abi, cpu = options.get("abi") or default_abi(), options.get("cpu", "")
    find_processor(abi, cpu)
    if not text:
        remedy = f"write `{SCHEME}:` and wheel:1.29.0, jvm:1.28.0 or the path of a libonnxruntime.so"
        raise SpecError(f"{SCHEME} needs a library", remedy=remedy)
    return LinuxHost(name, resolve(text, abi).linux(), cpu)


class LinuxHost(HostDevice):
    """Runs specs with a library for Linux."""

    def __init__(self, name: str, library: LibraryFacts, cpu: str = "") -> None:
        """Raises UnavailableError where the library's ABI cannot run here, SpecError for a CPU that does not exist."""
        super().__init__(name, library, FOLDER, Library.linux)
        try:
            processor = find_processor(library.abi, cpu).rooted(self._folder)
            check_needed(library, processor)
            self._start(processor)
        except BaseException:
            self.close()
            raise

    def facts(self) -> DeviceFacts:
        """Facts of this computer, with the processor that runs the library."""
        cpu = self._processor.cpu
        played = {"model": f"{cpu}, emulated on this computer", "soc": f"{cpu} (emulated)"} if cpu else {}
        return msgspec.structs.replace(host_facts(self.name), abis=(self.library.abi,), **played)


def check_needed(library: LibraryFacts, processor: Processor) -> None:
    """Raise UnavailableError, with the package, where an emulator's root lacks a library that this one needs."""
    if not processor.emulated:
        return
    row = HOST_ABIS[library.abi]
    roots = [Path(processor.command[-1], folder) for folder in ("lib", "lib64", "usr/lib")]
    places = [Path(library.path).parent, *roots, *(root / row.root for root in roots)]
    missing = [name for name in library.needed if not any((place / name).exists() for place in places)]
    if missing:
        package = row.package.replace("libc6", "libstdc++6")
        raise UnavailableError(
            f"{', '.join(missing)} of {row.machine} is missing",
            where=processor.command[-1],
            why="a library for Linux needs the C++ library of its processor",
            remedy=f"`apt-get install {package}`, or unpack it into the root that ORT_MOBILE_SYSROOT names",
        )
