"""The device `linux-host:LIBRARY`: a libonnxruntime for Linux in a process of this computer, or of an emulator.

Its name may carry options behind a question mark, as in `linux-host:wheel:1.29.0?abi=arm64-v8a&cpu=cortex-a53`. The
same library on a computer of its own processor needs no emulator, and is then timed like `local`.
"""

from pathlib import Path

import msgspec

from device_runner.android_host.processor import HOST_ABIS, Processor, default_abi, find_processor
from device_runner.device import DeviceFacts, Waiting, no_waiting, read_options
from device_runner.errors import SpecError, UnavailableError
from device_runner.host_device import HostDevice
from device_runner.library_facts import LibraryFacts
from device_runner.library_source import Library, resolve
from device_runner.local import host_facts

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
        return msgspec.structs.replace(host_facts(self.name), abis=(self._library.abi,), **played)


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
