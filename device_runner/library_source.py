"""Android's libonnxruntime: an AAR, a .so or a release's name to one library file, checked and unpacked once.

Everything lies by content under the cache folder: `libraries/files/DIGEST/NAME` as it was fetched,
`libraries/unpacked/DIGEST/ABI/libonnxruntime.so`, and `libraries/index/android-RELEASE.json`.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from device_runner.errors import MissingError, RunnerError, SpecError
from device_runner.files import sha256
from device_runner.probe.build import cache_folder
from device_runner.probe.elf import PT_LOAD, Elf, NotElf, parse_elf

LIBRARY = "libonnxruntime.so"
PREFIX = "android:"
RELEASE = re.compile(r"(?:android:)?(\d+\.\d+\.\d+)")
ARTIFACT = ("com.microsoft.onnxruntime", "onnxruntime-android")
"""Maven's group and artifact of the Android package."""
MAX_BYTES = 1 << 30
"""No libonnxruntime.so is larger than this; an archive that says so is not unpacked."""

GET = "ort-mobile library get android:{release}"


class LibraryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a library file is, from its bytes alone. `release` and `commit` are "" where it does not tell."""

    path: str
    sha256: str
    size_bytes: int
    abi: str
    release: str
    commit: str
    page_bytes: int
    needed: tuple[str, ...]
    imports: tuple[str, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A release in the cache: the file, its digest, where it came from and under which licence."""

    release: str
    file: str
    sha256: str
    source: str
    licence: str = ""


def library_folder() -> Path:
    """Where fetched and unpacked libraries are kept."""
    return cache_folder() / "libraries"


def release_of(text: str) -> str | None:
    """The release that `1.29.0` or `android:1.29.0` names, None for anything else."""
    found = RELEASE.fullmatch(text)
    return found.group(1) if found else None


def find_library(text: str, abi: str = "x86_64") -> LibraryFacts:
    """The checked library of an AAR, a .so or a release's name; see `find_archive` and `open_archive` for errors."""
    return open_archive(find_archive(text), abi)


def find_archive(text: str) -> Path:
    """The file that a path or a release's name stands for; raises SpecError, MissingError with what to do."""
    release = release_of(text)
    if release is None or Path(text).exists():
        return _existing(text)
    if found := next(iter(_candidates(release)), None):
        return found
    raise MissingError(
        f"no Android library of release {release} on this computer",
        where=str(library_folder()),
        why="it is in no Gradle or Maven cache, and was not fetched yet",
        remedy=f"`{GET.format(release=release)}`, or give the path of an AAR or of {LIBRARY}",
    )


def _existing(text: str) -> Path:
    path = Path(text)
    if not text or not path.is_file():
        raise SpecError(
            f"no library at {text!r}",
            why="there is no such file, and it is not a release such as 1.29.0",
            remedy=f"give the path of an AAR or of {LIBRARY}, or a release",
        )
    return path


def _candidates(release: str) -> Iterator[Path]:
    entry = read_entry(release)
    if entry and Path(entry.file).is_file():
        yield Path(entry.file)
    yield from build_tool_caches(release)


def build_tool_caches(release: str) -> Iterator[Path]:
    """AARs of a release (`*`: of all) in the caches of Gradle (GRADLE_USER_HOME) and Maven."""
    group, artifact = ARTIFACT
    gradle = Path(os.environ.get("GRADLE_USER_HOME") or Path.home() / ".gradle")
    yield from sorted(gradle.glob(f"caches/modules-2/files-2.1/{group}/{artifact}/{release}/*/*.aar"))
    maven = Path.home() / ".m2" / "repository" / group.replace(".", "/") / artifact
    yield from sorted(maven.glob(f"{release}/*.aar"))


def read_entry(release: str) -> Entry | None:
    """What was fetched for a release, None when nothing was or its note cannot be read."""
    try:
        return msgspec.json.decode(_entry_path(release).read_bytes(), type=Entry)
    except (OSError, msgspec.DecodeError):
        return None


def entries() -> list[Entry]:
    """All fetched releases, by name."""
    names = sorted(path.stem.removeprefix("android-") for path in (library_folder() / "index").glob("android-*.json"))
    return [entry for name in names if (entry := read_entry(name))]


def _entry_path(release: str) -> Path:
    return library_folder() / "index" / f"android-{release}.json"


def keep(content: bytes, *, name: str, release: str, source: str, licence: str) -> Entry:
    """Put a fetched file into the cache, whole or not at all, and note it as the library of a release."""
    digest = hashlib.sha256(content).hexdigest()
    path = library_folder() / "files" / digest / name
    if not path.is_file():
        _write(path, content)
    entry = Entry(release=release, file=str(path), sha256=digest, source=source, licence=licence)
    _write(_entry_path(release), msgspec.json.encode(entry))
    return entry


def open_archive(path: Path, abi: str = "x86_64") -> LibraryFacts:
    """The checked library for an ABI, unpacked where it lies in an AAR.

    Raises MissingError for a file that is no whole library of that ABI, naming what it is.
    """
    if not is_archive(path):
        return _checked(path, abi)
    target = library_folder() / "unpacked" / sha256(path) / abi / LIBRARY
    if not target.is_file():
        _write(target, _member(path, abi))
    return _checked(target, abi)


def is_archive(path: Path) -> bool:
    """Whether a file begins as a zip archive does; a cut-off one does too."""
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def archive_abis(path: Path) -> list[str]:
    """ABIs that an archive has the library for, sorted; raises MissingError for one that cannot be read."""
    with _opened(path) as archive:
        return _abis(archive.namelist())


def _abis(names: Iterable[str]) -> list[str]:
    return sorted({name.split("/")[1] for name in names if re.fullmatch(rf"(jni|lib)/[^/]+/{LIBRARY}", name)})


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise MissingError(
            "this archive cannot be unpacked", where=str(path), why=str(error), remedy="fetch or build it again"
        ) from error


def _member(path: Path, abi: str) -> bytes:
    """The library of an ABI in an AAR (jni/ABI) or APK (lib/ABI): read by its exact name, so no path can lead out."""
    with _opened(path) as archive:
        names = set(archive.namelist())
        wanted = next((name for name in (f"jni/{abi}/{LIBRARY}", f"lib/{abi}/{LIBRARY}") if name in names), None)
        if wanted is None:
            raise _no_member(path, abi, names)
        if archive.getinfo(wanted).file_size > MAX_BYTES:
            raise MissingError("the library in this archive is too large to be one", where=f"{path}: {wanted}")
        return archive.read(wanted)


def _no_member(path: Path, abi: str, names: set[str]) -> MissingError:
    found = _abis(names)
    return MissingError(
        f"this archive has no {LIBRARY} for {abi}",
        where=str(path),
        why=f"it has {', '.join(found)}" if found else "it is not an AAR of ONNX Runtime",
        remedy=f"build the AAR with {abi} too (settings: build_abis), or use a phone (adb:SERIAL)",
    )


_FACTS: dict[str, LibraryFacts] = {}


def _checked(path: Path, abi: str) -> LibraryFacts:
    facts = read_facts(path)
    if facts.abi != abi:
        raise MissingError(
            f"this library is for {facts.abi}, not for {abi}",
            where=str(path),
            why=f"a process here runs {abi} only",
            remedy=f"give an AAR that has {abi}, or use a phone (adb:SERIAL)",
        )
    return facts


def read_facts(path: Path) -> LibraryFacts:
    """What a .so is; raises MissingError for a file that is none, is cut off, or is not ONNX Runtime for Android."""
    digest = sha256(path)
    if digest not in _FACTS:
        _FACTS[digest] = _read_facts(path, digest)
    return msgspec.structs.replace(_FACTS[digest], path=str(path))


def _read_facts(path: Path, digest: str) -> LibraryFacts:
    content = path.read_bytes()
    try:
        elf = _parse_whole(content)
    except NotElf as error:
        raise MissingError(
            f"this is no Android {LIBRARY}",
            where=str(path),
            why=str(error),
            remedy=f"give an AAR, or a whole {LIBRARY} from one",
        ) from error
    return LibraryFacts(
        path=str(path),
        sha256=digest,
        size_bytes=len(content),
        abi=elf.abi,
        release=_text(rb"VERS_(\d+\.\d+\.\d+)\0", content),
        commit=_text(rb"git-commit-id=([0-9a-f]{7,40})", content),
        page_bytes=elf.page_bytes,
        needed=elf.needed,
        imports=tuple(sorted(elf.undefined)),
    )


def _parse_whole(content: bytes) -> Elf:
    elf = parse_elf(content)
    if why := _objection(elf, len(content)):
        raise NotElf(why)
    return elf


def _objection(elf: Elf, size: int) -> str:
    end = max((segment.offset + segment.file_size for segment in elf.segments if segment.type == PT_LOAD), default=0)
    if end > size:
        return f"the file is cut off: {size} of at least {end} bytes are there"
    if elf.bits == 64 and not any(symbol.name == "OrtGetApiBase" and symbol.section for symbol in elf.symbols):
        return "it does not export OrtGetApiBase"
    if elf.bits == 64 and "libc.so" not in elf.needed:
        return "it was not built for Android: it does not need Android's libc.so"
    return ""


def _text(pattern: bytes, content: bytes) -> str:
    found = re.search(pattern, content)
    return found.group(1).decode("ascii") if found else ""


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; raises RunnerError when the disk says no."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as file:
            part = Path(file.name)
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise RunnerError(
            "cannot write into the cache",
            where=str(path),
            why=error.strerror or str(error),
            remedy="free some space, or set ORT_MOBILE_CACHE to another folder",
        ) from error
