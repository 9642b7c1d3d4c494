"""What a libonnxruntime is, from its bytes alone: release, ABI, providers, kind of build; archives that hold one.

Sources: libraries of 1.17.1 to 1.31.1 as packages carry them, and minimal builds of 1.21.0. Every build but those
without logging carries the source paths of its checks (`core/providers/nnapi/...`), which tell what was compiled in:
exported symbols alone do not (XNNPACK, WebGPU and QNN export none).
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from device_runner.errors import UnavailableError
from device_runner.files import NOTE, ZIP_ERRORS, are_sound, cache_folder, note_digests, own_folder_errors, sha256
from device_runner.probe.elf import PT_LOAD, Elf, NotElf, parse_elf, parse_header
from device_runner.providers import CPU, PROVIDERS
from device_runner.reading import check_unpacked, open_regular

LIBRARY = "libonnxruntime.so"

PROVIDER_SOURCES = re.compile(rb"core[/\\]providers[/\\](\w{1,40})[/\\]")
PROVIDER_SYMBOLS = re.compile(rb"\0OrtSessionOptionsAppendExecutionProvider_(\w{1,40})\0")
MINIMAL_TEXT = b"ONNX format model is not supported in this build."
EXTENDED_SOURCES = re.compile(rb"core[/\\]optimizer[/\\](selectors_actions|transpose_optimization|nhwc_transformer)")
"""A plain minimal build compiles of the optimizer one base class only (cmake/onnxruntime_optimizer.cmake)."""


class LibraryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a library file is, from its bytes alone. `release` and `commit` are "" where it does not tell.

    `system` is android or linux, by the C library that it needs; `kind` full, extended or minimal; `providers` those
    compiled in, by short name, the CPU's always among them.
    """

    path: str
    sha256: str
    size_bytes: int
    abi: str
    system: str
    release: str
    commit: str
    kind: str
    providers: tuple[str, ...]
    page_bytes: int
    needed: tuple[str, ...]
    imports: tuple[str, ...]


_FACTS: dict[str, LibraryFacts] = {}


def read_facts(path: Path) -> LibraryFacts:
    """What a .so is; raises UnavailableError for a file that is none, is cut off, or is not ONNX Runtime."""
    digest = sha256(path)
    if digest not in _FACTS:
        _FACTS[digest] = _read_facts(path, digest)
    return msgspec.structs.replace(_FACTS[digest], path=str(path))


def android_facts(path: Path, abi: str) -> LibraryFacts:
    """As `read_facts`, of Android's library for an ABI; raises UnavailableError for any other, naming what it is."""
    facts = read_facts(path)
    if facts.system != "android":
        raise UnavailableError(
            f"this is no Android {LIBRARY}",
            where=str(path),
            why="it was not built for Android: it does not need Android's libc.so",
            remedy=f"give an AAR, or {LIBRARY} from one",
        )
    return of_abi(facts, abi)


def linux_facts(path: Path, abi: str) -> LibraryFacts:
    """As `android_facts`, of a library for Linux with glibc."""
    facts = read_facts(path)
    if facts.system != "linux":
        raise UnavailableError(
            f"this is no {LIBRARY} for Linux",
            where=str(path),
            why=f"it was built for {facts.system}",
            remedy=f"give wheel:RELEASE, jvm:RELEASE, or {LIBRARY} from one (`android-host:` runs Android's)",
        )
    return of_abi(facts, abi)


def of_abi(facts: LibraryFacts, abi: str) -> LibraryFacts:
    """The facts, when they are of that ABI; raises UnavailableError else."""
    if facts.abi != abi:
        raise UnavailableError(
            f"this library is for {facts.abi}, not for {abi}",
            where=facts.path,
            why=f"a process there runs {abi} only",
            remedy=f"give a library or an archive that has {abi}",
        )
    return facts


def _read_facts(path: Path, digest: str) -> LibraryFacts:
    content = path.read_bytes()
    try:
        elf = _parse_whole(content)
    except NotElf as error:
        raise UnavailableError(
            f"this is no {LIBRARY}",
            where=str(path),
            why=str(error),
            remedy=f"give an AAR, or a whole {LIBRARY} from one",
        ) from error
    return LibraryFacts(
        path=str(path),
        sha256=digest,
        size_bytes=len(content),
        abi=elf.abi,
        system="android" if "libc.so" in elf.needed else "linux",
        release=_text(rb"\0VERS_(\d+\.\d+\.\d+)\0", content),
        commit=_text(rb"git-commit-id=([0-9a-f]{7,40})", content),
        kind=_kind(content),
        providers=_providers(content),
        page_bytes=elf.page_bytes,
        needed=elf.needed,
        imports=tuple(sorted(elf.undefined)),
    )


def _parse_whole(content: bytes) -> Elf:
    elf = parse_elf(content)
    if why := _objection(elf, content):
        raise NotElf(why)
    return elf


def _objection(elf: Elf, content: bytes) -> str:
    size = len(content)
    end = max((segment.offset + segment.file_size for segment in elf.segments if segment.type == PT_LOAD), default=0)
    if end > size:
        return f"the file is cut off: {size} of at least {end} bytes are there"
    exported = any(symbol.name == "OrtGetApiBase" and symbol.section for symbol in elf.symbols)
    if not exported:
        return "it does not export OrtGetApiBase"
    return ""


def _kind(content: bytes) -> str:
    if MINIMAL_TEXT not in content:
        return "full"
    return "extended" if EXTENDED_SOURCES.search(content) else "minimal"


def _providers(content: bytes) -> tuple[str, ...]:
    """Those of the registry whose source folder or own function the library names."""
    folders = {name.decode("ascii") for name in PROVIDER_SOURCES.findall(content)}
    functions = {name.decode("ascii") for name in PROVIDER_SYMBOLS.findall(content)}
    known = PROVIDERS.values()
    return tuple(sorted(row.name for row in known if row.name in {CPU, *folders} or row.function in functions))


def _text(pattern: bytes, content: bytes) -> str:
    found = re.search(pattern, content)
    return found.group(1).decode("ascii") if found else ""


MACHINES = {"arm64-v8a": "aarch64", "x86_64": "x86_64"}
"""ABI names of devices to those of wheels."""

PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux2014")
"""glibc levels that onnxruntime's wheels were built for (1.19 to 1.31), newest first."""

WHEEL_LIBRARY = re.compile(r"onnxruntime/capi/libonnxruntime\.so\.\d[\d.]*")
MAX_BYTES = 256 << 20
"""No libonnxruntime for these devices is larger (full builds have 40 MB); a larger one is not unpacked."""
SECONDS = 600.0


def foreign_library(abi: str, version: str = "") -> Path:
    """Libonnxruntime of the wheel for that ABI and release (the installed one's by default), from the cache or PyPI.

    Raises UnavailableError where there is no such wheel, or it cannot be fetched.
    """
    release = version or importlib.metadata.version("onnxruntime")
    machine = MACHINES.get(abi)
    if machine is None:
        raise UnavailableError(
            f"there is no onnxruntime wheel for {abi}", remedy="name a library for it with --library"
        )
    target = cache_folder() / "wheels" / f"{release}-{machine}" / "libonnxruntime.so"
    if not _is_kept(target):
        with own_folder_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            _unpack(_download(release, machine, Path(folder)), Path(folder) / "library").replace(target)
        with own_folder_errors(target):
            note_digests(target.parent, [target.name])
    return target


def _is_kept(target: Path) -> bool:
    """Whether the library is there and what was fetched; earlier releases noted no digest of it: that is done now."""
    if target.is_file() and not (target.parent / NOTE).exists():
        with own_folder_errors(target):
            note_digests(target.parent, [target.name])
    return are_sound(target.parent, [target.name])


def _download(release: str, machine: str, folder: Path) -> Path:
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")]
    command = [
        *_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder),
        *platforms, f"onnxruntime=={release}",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise _unfetched(release, machine, f"pip took longer than {SECONDS:.0f} s") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise _unfetched(release, machine, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no wheel")
    return wheels[0]


def _pip() -> tuple[str, ...]:
    """The pip of this environment, else that on PATH: environments of uv and `venv --without-pip` have none."""
    found = None if importlib.util.find_spec("pip") else shutil.which("pip3") or shutil.which("pip")
    return (found,) if found else (sys.executable, "-m", "pip")


def _unpack(wheel: Path, target: Path) -> Path:
    """The one library of a wheel as `target`; nothing else is unpacked, and no name in it counts."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if WHEEL_LIBRARY.fullmatch(name)]
            for name in names[:1]:
                check_unpacked(archive.getinfo(name), MAX_BYTES)
            content = archive.read(names[0]) if names else b""
    except ZIP_ERRORS as error:
        raise UnavailableError(
            "this wheel cannot be unpacked", where=wheel.name, why=str(error), remedy="fetch it again"
        ) from error
    if not names:
        raise UnavailableError(
            "this wheel has no libonnxruntime",
            where=wheel.name,
            why="wheels have a C library of their own from 1.19 on",
            remedy="name a library with --library",
        )
    with target.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return target


def _unfetched(release: str, machine: str, why: str) -> UnavailableError:
    return UnavailableError(
        f"the wheel of onnxruntime {release} for {machine} cannot be fetched",
        why=why,
        remedy="check the network, or name a library for the device with --library",
    )


JVM_ABIS = {"linux-x64": "x86_64", "linux-aarch64": "arm64-v8a"}
"""Folders of the JAR by Android's names of the ABIs. Its libraries for macOS and Windows are not for devices here."""

JVM_FOLDER = "ai/onnxruntime/native/"
MEMBER = re.compile(rf"(?:jni|lib)/(?P<abi>[\w-]+)/{LIBRARY}|ai/onnxruntime/native/(?P<folder>[\w-]+)/{LIBRARY}")
SHARED = re.compile(r"jni/[\w-]+/[\w.-]+\.so")
PAGE_BYTES = 16384
HEAD_BYTES = 65536


def is_archive(path: Path) -> bool:
    """Whether a file begins as a zip archive does; a cut-off one does too."""
    with open_regular(path) as file:
        return file.read(2) == b"PK"


def archive_abis(path: Path) -> list[str]:
    """ABIs that an archive has the library for, sorted; raises UnavailableError for one that cannot be read."""
    with _opened(path) as archive:
        return sorted(library_members(archive.namelist()))


def archive_system(path: Path) -> str:
    """The system of an archive's libraries: linux for the JVM's JAR, android for all others."""
    with _opened(path) as archive:
        return "linux" if any(name.startswith(JVM_FOLDER) for name in archive.namelist()) else "android"


def small_pages(path: Path) -> list[str]:
    """Libraries of an archive, whatever they are, whose segments are aligned to less than 16 KB, by their members.

    All of them are loaded by the app: one is enough to keep it from phones with 16 KB pages. Of 32-bit ABIs there are
    no such phones.
    """
    found = []
    with _opened(path) as archive:
        for name in sorted(archive.namelist()):
            if not SHARED.fullmatch(name):
                continue
            with archive.open(name) as file, contextlib.suppress(NotElf):
                elf = parse_header(file.read(HEAD_BYTES))
                if elf.bits == 64 and 0 < elf.page_bytes < PAGE_BYTES:
                    found.append(name)
    return found


def library_members(names: Iterable[str]) -> dict[str, str]:
    """The library's members by ABI: jni/ABI of an AAR, lib/ABI of an APK, the folders of the JVM's JAR."""
    found: dict[str, str] = {}
    for name in names:
        match = MEMBER.fullmatch(name)
        abi = match and (match["abi"] or JVM_ABIS.get(match["folder"]))
        if abi:
            found.setdefault(abi, name)
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except ZIP_ERRORS as error:
        raise UnavailableError(
            "this archive cannot be unpacked", where=str(path), why=str(error), remedy="fetch or build it again"
        ) from error


def library_member(path: Path, abi: str) -> bytes:
    """The library of an ABI in an archive: read by its exact name, so no path can lead out."""
    with _opened(path) as archive:
        members = library_members(archive.namelist())
        if abi not in members:
            raise _no_member(path, abi, sorted(members))
        check_unpacked(archive.getinfo(members[abi]), MAX_BYTES)
        return archive.read(members[abi])


def _no_member(path: Path, abi: str, found: list[str]) -> UnavailableError:
    return UnavailableError(
        f"this archive has no {LIBRARY} for {abi}",
        where=str(path),
        why=f"it has {', '.join(found)}" if found else "it is no package of ONNX Runtime",
        remedy=f"build the package with {abi} too (settings: build_abis), or use a phone (adb:SERIAL)",
    )
