"""The device `linux-host:LIBRARY`: a libonnxruntime for Linux in a process of this computer, or of an emulator.

Its name may carry options behind a question mark, as in `linux-host:wheel:1.29.0?abi=arm64-v8a&cpu=cortex-a53`. The
same library on a computer of its own processor needs no emulator, and is then timed like `local`.
"""

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from device_runner.android_host.processor import HOST_ABIS, SLOWNESS, Processor, default_abi, find_processor, untimed
from device_runner.device import DeviceFacts, Waiting, no_waiting, read_options
from device_runner.errors import RunnerError, SpecError, UnavailableError
from device_runner.files import remove_abandoned, scratch_folder
from device_runner.library_facts import LibraryFacts
from device_runner.library_source import Library, resolve
from device_runner.local import LocalDevice, host_facts, machine_abi
from device_runner.probe.build import HOST, build_probe
from device_runner.result import Failure, FailureKind, RunResult, without_measurement
from device_runner.spec import RunSpec

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


class LinuxHost:
    """Runs specs with a library for Linux. A spec's own library goes before the device's."""

    def __init__(self, name: str, library: LibraryFacts, cpu: str = "") -> None:
        """Raises UnavailableError where the library's ABI cannot run here, SpecError for a CPU that does not exist."""
        self._name = name
        self._library = library
        remove_abandoned(FOLDER)
        self._opened = contextlib.ExitStack()
        folder = self._opened.enter_context(scratch_folder(FOLDER))
        try:
            self._processor = find_processor(library.abi, cpu).rooted(folder)
            check_needed(library, self._processor)
            native = library.abi == machine_abi()
            self._local = LocalDevice(
                build_probe(HOST if native else HOST_ABIS[library.abi].probe), emulator=self._processor.command
            )
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The whole name, options included."""
        return self._name

    @property
    def library(self) -> LibraryFacts:
        """The library that it runs."""
        return self._library

    def facts(self) -> DeviceFacts:
        """Facts of this computer, with the processor that runs the library."""
        cpu = self._processor.cpu
        played = {"model": f"{cpu}, emulated on this computer", "soc": f"{cpu} (emulated)"} if cpu else {}
        return msgspec.structs.replace(host_facts(self.name), abis=(self._library.abi,), **played)

    def library_for(self, given: str | None) -> Library:
        """The given library, else the one in its name."""
        return resolve(given or self._library.path, self._library.abi)

    def run(self, spec: RunSpec) -> RunResult:
        """Execute one spec in a fresh process; an emulator has ten times the time limit, and no times and no memory."""
        try:
            library = self.library_for(spec.library).linux()
        except RunnerError as error:
            kind = FailureKind.WRONG_LIBRARY
            failure = Failure(kind=kind, message=str(error), cause=error.why, remedy=error.remedy)
            return without_measurement(spec, self.name, failure)
        limit = spec.timeout_seconds * (SLOWNESS if self._processor.emulated else 1)
        result = self._local.run(msgspec.structs.replace(spec, library=library.path, timeout_seconds=limit))
        result = msgspec.structs.replace(result, device=self.name)
        return untimed(result, self._processor.cpu) if self._processor.emulated else result

    def close(self) -> None:
        """Remove its folder."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
