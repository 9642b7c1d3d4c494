"""What `android-host:LIBRARY` and `linux-host:LIBRARY` share: a libonnxruntime in processes of this computer.

A library of another processor's ABI runs in an emulator, whose results have no times and no memory.
"""

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import msgspec

from device_runner.android_host.processor import HOST_ABIS, SLOWNESS, Processor, untimed
from device_runner.errors import RunnerError
from device_runner.files import remove_abandoned, scratch_folder
from device_runner.library_facts import LibraryFacts
from device_runner.library_source import Library, resolve
from device_runner.local import LocalDevice, machine_abi
from device_runner.probe.build import HOST, build_probe
from device_runner.result import Failure, FailureKind, Mark, RunResult, without_measurement
from device_runner.spec import RunSpec


class HostDevice:
    """Runs specs with a library; a spec's own goes before the device's. Who derives it calls `_start` with what runs.

    `load` gives the facts of a library for this kind of device, or raises RunnerError. Folders whose names begin with
    `prefix` are removed where their process was killed.
    """

    MARKS: tuple[Mark, ...] = ()
    """What every result is marked with."""

    def __init__(self, name: str, library: LibraryFacts, prefix: str, load: Callable[[Library], LibraryFacts]) -> None:
        self._name = name
        self._library = library
        self._load = load
        remove_abandoned(prefix)
        self._opened = contextlib.ExitStack()
        self._folder = self._opened.enter_context(scratch_folder(prefix))

    def _start(self, processor: Processor, environment: Mapping[str, str] | None = None) -> None:
        native = self._library.abi == machine_abi()
        self._processor = processor
        self._local = LocalDevice(
            build_probe(HOST if native else HOST_ABIS[self._library.abi].probe),
            environment=environment,
            emulator=processor.command,
        )

    @property
    def name(self) -> str:
        """The whole name, options included."""
        return self._name

    @property
    def library(self) -> LibraryFacts:
        """The library that it runs."""
        return self._library

    def library_for(self, given: str | None) -> Library:
        """The given library, else the one in its name."""
        return resolve(given or self._library.path, self._library.abi)

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

    def close(self) -> None:
        """Remove its folder."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
