"""Libraries in processes of this computer: what runs their ABI's code, and the device `linux-host:LIBRARY`.

A library of the ABI of another processor runs in qemu-user with the CPU of a phone, and its results have no times and
no memory. An emulator chooses the kernels that the library takes there: the library reads the CPU's features from the
auxiliary vector, from ID registers and from /proc/cpuinfo. The first two are qemu's; the third comes from a folder that
is made from the same profile, since qemu 7.2 shows this computer's own (docs/facts/arm64_host.md, sections 1 and 2).

The name of a `linux-host` may carry options behind a question mark, as in
`linux-host:wheel:1.29.0?abi=arm64-v8a&cpu=cortex-a53`. On a computer of its own processor it is timed like `local`.
"""

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import msgspec

from device_runner.build import HOST, build_probe
from device_runner.device import DeviceFacts, Waiting, no_waiting, read_options
from device_runner.errors import RunnerError, SpecError, UnavailableError
from device_runner.files import scratch_folder
from device_runner.library import Library, LibraryFacts, resolve
from device_runner.local import LocalDevice, host_facts, machine_abi, without_times
from device_runner.result import Failure, FailureKind, Mark, RunResult
from device_runner.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuProfile:
    """A core of phones: qemu's name of it, and what Linux shows of it in /proc/cpuinfo.

    `announced` are bits of AT_HWCAP2 that Android's library is shown beyond what the emulator has: of a kernel that
    announces instructions which trap. `common`: phones have it, so that `all` stands for it.
    """

    qemu: str
    part: int
    variant: int = 0
    features: str
    architecture: int = 8
    announced: int = 0
    common: bool = True

    @property
    def core(self) -> str:
        """The emulator's name of it, without what is switched off in it."""
        return self.qemu.partition(",")[0]


V8 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
V8_2 = f"{V8} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
V8_6 = f"{V8_2} jscvt fcma ssbs sb flagm flagm2 frint i8mm bf16"

HWCAP2_SME = 0x7F << 23
"""SME and its products of 16-bit integers, doubles, bytes, halves, bfloat16, floats, and FA64 (Linux, asm/hwcap.h)."""

CPUS: dict[str, CpuProfile] = {
    "cortex-a53": CpuProfile(qemu="cortex-a53", part=0xD03, features=V8),
    "cortex-a55": CpuProfile(qemu="cortex-a76", part=0xD05, variant=2, features=V8_2),
    "cortex-a76": CpuProfile(qemu="cortex-a76", part=0xD0B, variant=4, features=V8_2),
    "cortex-a710": CpuProfile(qemu="cortex-a710", part=0xD47, variant=2, features=f"{V8_6} sve sve2 svei8mm svebf16"),
    "i8mm": CpuProfile(qemu="max,sve=off,sme=off", part=0xD47, variant=2, features=V8_6),
    "sme": CpuProfile(qemu="max", part=0xD47, variant=2, features=f"{V8_6} sve sve2 svei8mm svebf16 sme"),
    "sme-traps": CpuProfile(
        qemu="max,sme=off",
        part=0xD47,
        variant=2,
        features=f"{V8_6} sve sve2 svei8mm svebf16 sme",
        announced=HWCAP2_SME,
        common=False,
    ),
}
"""Profiles of arm64 by name: without dot product (A53); with dot product and half precision (A55, A76: qemu 7.2 has
no A55, whose instructions are the A76's); with i8mm as well (A710 in newer emulators, `i8mm` in all); with SME, which
qemu has since 7.1, and none has SME2. `sme-traps` announces SME and has none: what takes it ends with SIGILL."""


V7 = "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm"
V8_32 = f"{V7} aes pmull sha1 sha2 crc32"

CPUS_32: dict[str, CpuProfile] = {
    "cortex-a7": CpuProfile(qemu="cortex-a7", part=0xC07, features=V7, architecture=7),
    "cortex-a53": CpuProfile(qemu="max", part=0xD03, features=V8_32),
    "cortex-a55": CpuProfile(qemu="max", part=0xD05, variant=2, features=f"{V8_32} fphp asimdhp asimddp"),
    "cortex-a76": CpuProfile(qemu="max", part=0xD0B, variant=4, features=f"{V8_32} fphp asimdhp asimddp"),
}
"""The same for code of 32 bits: an ARMv7 core, and ARMv8 cores that run it. qemu has one ARMv8 core for it, with all
instructions; the library takes those that the part number has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAbi:
    """How programs of an ABI are built and run on Linux: `machine` as qemu calls it, `probe` as builds do.

    `loader` is the dynamic linker below a system's root, `package` Debian's package with the C library for another
    computer, which lies in /usr/`root`. `cpus` are the profiles of an emulator; the library has other kernels for each
    of the `usual` ones, and the last is that of an emulator that is told none.
    """

    machine: str
    probe: str
    root: str
    loader: str
    package: str
    cpus: Mapping[str, CpuProfile] = field(default_factory=dict)
    usual: tuple[str, ...] = ()


HOST_ABIS: dict[str, HostAbi] = {
    "x86_64": HostAbi(
        machine="x86_64",
        probe="linux-x86_64",
        root="x86_64-linux-gnu",
        loader="lib64/ld-linux-x86-64.so.2",
        package="libc6-amd64-cross",
    ),
    "arm64-v8a": HostAbi(
        machine="aarch64",
        probe="linux-aarch64",
        root="aarch64-linux-gnu",
        loader="lib/ld-linux-aarch64.so.1",
        package="libc6-arm64-cross",
        cpus=CPUS,
        usual=("cortex-a53", "cortex-a76"),
    ),
    "armeabi-v7a": HostAbi(
        machine="arm",
        probe="linux-armel",
        root="arm-linux-gnueabi",
        loader="lib/ld-linux.so.3",
        package="libc6-armel-cross",
        cpus=CPUS_32,
        usual=("cortex-a53", "cortex-a76"),
    ),
}
"""By Android's name of the ABI."""


ARM = 0x41
"""The implementer's number."""
OLDEST_QEMU = (7, 2)
"""The oldest release that was tried."""
ANSWER_SECONDS = 20.0
"""How long an emulator may take to print its version: a program that hangs is no emulator."""
CPU_FILES = "ORT_MOBILE_ANDROID_CPU"
"""The variable that names the shims the folder with /proc/cpuinfo and /sys/devices/system/cpu (shims/threads.c)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What runs programs of an ABI: `command` stands before each of them, () where this computer runs them itself.

    `cpu` is the name of the emulated profile, "" without an emulator.
    """

    abi: str
    cpu: str = ""
    command: tuple[str, ...] = ()

    @property
    def emulated(self) -> bool:
        """Whether times and memory are an emulator's."""
        return bool(self.command)

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables for its programs; the files that describe the emulated CPU are written into `folder`."""
        if not self.emulated:
            return {}
        self._describe(folder / "cpu")
        return {CPU_FILES: str(folder / "cpu")}

    def rooted(self, folder: Path) -> "Processor":
        """The same with `folder` as the root that its programs for Linux see: the C library's, and the CPU's files.

        qemu looks for every absolute path there first, and behind it in this computer's own root.
        """
        if not self.emulated:
            return self
        folder.mkdir(parents=True, exist_ok=True)
        for path in Path(self.command[-1]).iterdir():
            if path.name not in ("proc", "sys"):
                (folder / path.name).symlink_to(path)
        self._describe(folder)
        return replace(self, command=(*self.command[:-1], str(folder)))

    def _describe(self, root: Path) -> None:
        for name, text in cpu_files(HOST_ABIS[self.abi].cpus[self.cpu], len(os.sched_getaffinity(0))):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "ascii")


def cpu_files(profile: CpuProfile, cores: int) -> Iterator[tuple[str, str]]:
    """The files that Linux on a phone with so many of these cores has, by their paths below the root."""
    lines = (
        "BogoMIPS\t: 52.00",
        f"Features\t: {profile.features}",
        f"CPU implementer\t: 0x{ARM:02x}",
        f"CPU architecture: {profile.architecture}",
        f"CPU variant\t: 0x{profile.variant:x}",
        f"CPU part\t: 0x{profile.part:03x}",
        "CPU revision\t: 1",
    )
    yield "proc/cpuinfo", "".join("\n".join((f"processor\t: {core}", *lines, "", "")) for core in range(cores))
    for name in ("possible", "present", "online"):
        yield f"sys/devices/system/cpu/{name}", f"0-{cores - 1}\n" if cores > 1 else "0\n"
    yield "sys/devices/system/cpu/kernel_max", f"{cores - 1}\n"
    yield "hwcap2", f"{profile.announced:#x}\n"


def default_abi() -> str:
    """The ABI that runs here without an emulator, x86_64 where none does."""
    return machine_abi() if machine_abi() in HOST_ABIS else "x86_64"


def check_host(abi: str = "") -> None:
    """Raise UnavailableError where no library of an ABI ("": this computer's own) can run; says what is missing."""
    find_processor(abi or default_abi())


def find_processor(abi: str, cpu: str = "") -> Processor:
    """What runs an ABI's programs here: the computer itself, unless a CPU is named or it is another one.

    Raises SpecError for an ABI or a CPU that does not exist, UnavailableError where the computer or its emulator cannot
    run it, with the packages to install.
    """
    if abi not in HOST_ABIS:
        what = f"this computer does not run libraries for {abi}"
        raise UnavailableError(what, remedy=f"use {' or '.join(HOST_ABIS)}, or a phone (adb:SERIAL)")
    host_abi = HOST_ABIS[abi]
    if cpu and cpu not in host_abi.cpus:
        choices = f"there are {', '.join(host_abi.cpus)}" if host_abi.cpus else "CPUs can be chosen for ARM's ABIs only"
        remedy = "name one of them" if host_abi.cpus else "name an ABI of ARM too (--abi arm64-v8a; ?abi= of a device)"
        raise SpecError(f"no CPU {cpu!r} for {abi}", why=choices, remedy=remedy)
    # Linux with glibc runs every ABI here, its own without help and ARM's by an emulator
    libc = platform.libc_ver()[0] or ("without glibc" if platform.system() == "Linux" else "")
    if (
        (platform.system(), platform.libc_ver()[0]) != ("Linux", "glibc")
        or machine_abi() not in HOST_ABIS
        or not (host_abi.cpus or abi == machine_abi())
    ):
        raise UnavailableError(
            f"a library for {abi} does not run on this computer",
            where=f"{platform.system()} {platform.machine()} {libc}".strip(),
            why=f"it runs in a process of {host_abi.machine} Linux with glibc"
            + ", or by qemu-user on x86-64" * bool(host_abi.cpus),
            remedy="use `local`, a phone (adb:SERIAL), or such a machine (most CI runners are)",
        )
    if abi == machine_abi() and not cpu:
        return Processor(abi=abi)
    cpu = cpu or host_abi.usual[-1]
    emulator = _emulator(abi)
    release, cores = _asked(emulator)
    remedy = "install QEMU 7.2 or newer (Debian 12 has it), or name one by ORT_MOBILE_QEMU"
    if release is None:
        why = f"it does not print its version within {ANSWER_SECONDS:g} seconds"
        raise UnavailableError("this is no qemu-user", where=emulator, why=why, remedy=remedy)
    shown = ".".join(map(str, release))
    if release < OLDEST_QEMU:
        raise UnavailableError("this emulator is too old", where=emulator, why=f"it is QEMU {shown}", remedy=remedy)
    if host_abi.cpus[cpu].core not in cores:
        others = ", ".join(name for name, profile in host_abi.cpus.items() if profile.core in cores)
        raise UnavailableError(
            f"this emulator has no {cpu}",
            where=emulator,
            why=f"QEMU {shown} has {others}",
            remedy="use one of these, or a newer QEMU",
        )
    # The C library: in ORT_MOBILE_SYSROOT (or the root that a package was unpacked into), or Debian's
    given = os.environ.get("ORT_MOBILE_SYSROOT", "")
    roots = [Path("/")] if abi == machine_abi() else []
    places = [Path(given), Path(given) / "usr" / host_abi.root] if given else [*roots, Path("/usr") / host_abi.root]
    root = next((folder for folder in places if (folder / host_abi.loader).is_file()), None)
    if root is None:
        raise _missing(abi, f"no {host_abi.loader} in {places[-1]}", "ORT_MOBILE_SYSROOT")
    return Processor(abi=abi, cpu=cpu, command=(emulator, "-cpu", host_abi.cpus[cpu].qemu, "-L", str(root.absolute())))


def common_cpus(abi: str) -> tuple[str, ...]:
    """The profiles of an ABI that phones have and the emulator here, for `all`; raises UnavailableError as above."""
    _, cores = _asked(_emulator(abi))
    return tuple(name for name, cpu in HOST_ABIS[abi].cpus.items() if cpu.common and cpu.core in cores)


def _missing(abi: str, what: str, variable: str) -> UnavailableError:
    host_abi = HOST_ABIS[abi]
    return UnavailableError(
        f"{what} to run libraries for {abi}",
        where=f"{platform.system()} {platform.machine()}",
        why=f"code for {host_abi.machine} needs qemu-user and its C library here",
        remedy=f"`apt-get install qemu-user {host_abi.package}`, or name unpacked ones by {variable}; "
        "x86_64 needs neither, where the library has it",
    )


def _emulator(abi: str) -> str:
    """The emulator of ORT_MOBILE_QEMU (the program, or the folder that it is in), else that on PATH."""
    name = f"qemu-{HOST_ABIS[abi].machine}"
    given = os.environ.get("ORT_MOBILE_QEMU", "")
    others = {f"qemu-{host_abi.machine}" for host_abi in HOST_ABIS.values()} - {name}
    if given and Path(given).is_file():
        if Path(given).name.removesuffix("-static") not in others:
            return str(Path(given).absolute())
        given = str(Path(given).parent)
    program = next(
        (path for file in (name, f"{name}-static") if (path := shutil.which(file, path=given or None))), None
    )
    if program is None:
        raise _missing(abi, f"no {name}" + (f" in {given}" if given else ""), "ORT_MOBILE_QEMU")
    return str(Path(program).absolute())


def _asked(emulator: str) -> tuple[tuple[int, ...] | None, frozenset[str]]:
    """Release and CPUs of an emulator, asked once while its file does not change; no release where it tells none."""
    facts = Path(emulator).stat()
    return _said(emulator, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=8)
def _said(emulator: str, size_bytes: int, modified_ns: int) -> tuple[tuple[int, ...] | None, frozenset[str]]:
    del size_bytes, modified_ns  # parts of the key
    texts = []
    for arguments in (("--version",), ("-cpu", "help")):
        try:
            done = subprocess.run(
                [emulator, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None, frozenset()
        texts.append(done.stdout)
    match = re.match(r"qemu-\w+ version (\d+)\.(\d+)", texts[0])
    return (tuple(map(int, match.groups())) if match else None), frozenset(texts[1].split())


SLOWNESS = 10
"""By how much time limits are longer under an emulator, which computes 30 to 500 times slower."""


class HostDevice(LocalDevice):
    """Runs specs with a library; a spec's own goes before the device's. Who derives it says which kind it loads."""

    MARKS: tuple[Mark, ...] = ()
    """What every result is marked with."""

    def __init__(
        self,
        name: str,
        library: LibraryFacts,
        processor: Processor,
        environment: Mapping[str, str] | None = None,
        vulkan: str = "",
    ) -> None:
        target = HOST if library.abi == machine_abi() else HOST_ABIS[library.abi].probe
        super().__init__(
            build_probe(target), name=name, environment=environment, emulator=processor.command, vulkan=vulkan
        )
        self.library = library
        """The library that it runs."""
        self._processor = processor

    def library_for(self, given: str | None) -> Library:
        """The given library, else the one in its name."""
        return resolve(given or self.library.path, self.library.abi)

    def _prepare(self, spec: RunSpec) -> tuple[RunSpec, Path] | Failure:
        """An emulator has ten times the time limit."""
        try:
            ready = super()._prepare(spec)
        except RunnerError as error:
            kind = FailureKind.WRONG_LIBRARY
            return Failure(code=kind, what=str(error), why=error.why, remedy=error.remedy)
        if isinstance(ready, Failure):
            return ready
        spec, path = ready
        limit = spec.timeout_seconds * (SLOWNESS if self._processor.emulated else 1)
        return msgspec.structs.replace(spec, library=str(path), timeout_seconds=limit), path

    def run(self, spec: RunSpec) -> RunResult:
        """As any device; the result is marked, and of an emulator it has no times and no memory."""
        result = super().run(spec)
        result = msgspec.structs.replace(result, marks=(*result.marks, *self.MARKS))
        if not self._processor.emulated:
            return result
        failure, cpu = result.failure, self._processor.cpu
        if failure and failure.signal == "SIGILL":
            failure = msgspec.structs.replace(
                failure,
                why=f"the library used an instruction that {cpu} or this emulator does not have",
                remedy="try a newer QEMU or another cpu=; whether phones have it, a phone shows"
                if cpu not in CPUS or not CPUS[cpu].announced
                else f"{cpu} plays a chip whose kernel announces SME and that traps, as reported of SM8850",
            )
        return without_times(msgspec.structs.replace(result, failure=failure, cpu=cpu), Mark.EMULATED)


SCHEME = "linux-host"
OPTIONS = ("abi", "cpu", "vulkan")

FOLDER = "ort-mobile-linux-"
"""Of the folders with an emulator's root; one whose process was killed goes with the next."""


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
    return LinuxHost(name, resolve(text, abi).linux(), cpu, options.get("vulkan", ""))


class LinuxHost(HostDevice):
    """Runs specs with a library for Linux."""

    def __init__(self, name: str, library: LibraryFacts, cpu: str = "", vulkan: str = "") -> None:
        """Raises UnavailableError where the library cannot run here, SpecError for a CPU that does not exist."""
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(scratch_folder(FOLDER))
            processor = find_processor(library.abi, cpu).rooted(folder)
            if processor.emulated:  # its root may lack a library that this one needs
                host_abi, root = HOST_ABIS[library.abi], processor.command[-1]
                folders = [Path(root, folder) for folder in ("lib", "lib64", "usr/lib")]
                places = [Path(library.path).parent, *folders, *(path / host_abi.root for path in folders)]
                missing = [file for file in library.needed if not any((folder / file).exists() for folder in places)]
                if missing:
                    package = host_abi.package.replace("libc6", "libstdc++6")
                    raise UnavailableError(
                        f"{', '.join(missing)} of {host_abi.machine} is missing",
                        where=root,
                        why="a library for Linux needs the C++ library of its processor",
                        remedy=f"`apt-get install {package}`, or unpack it into the root that ORT_MOBILE_SYSROOT names",
                    )
            super().__init__(name, library, processor, vulkan=vulkan)
            self.opened = opened.pop_all()

    def _load(self, library: Library) -> LibraryFacts:
        return library.linux()

    def facts(self) -> DeviceFacts:
        """Facts of this computer, with the processor that runs the library."""
        cpu = self._processor.cpu
        played = {"model": f"{cpu}, emulated on this computer", "soc": f"{cpu} (emulated)"} if cpu else {}
        return msgspec.structs.replace(host_facts(self.name), abis=(self.library.abi,), **played)
