"""libonnxruntime by path or by name: an AAR, a JAR, a .so or a release to one library file, checked, unpacked once.

Everything lies by content under the cache folder: `libraries/files/DIGEST/NAME` as it was fetched,
`libraries/unpacked/DIGEST/ABI/libonnxruntime.so`, and `libraries/index/SCHEME-RELEASE.json`.
"""

import contextlib
import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from device_runner.errors import NoLibraryError, UnavailableError
from device_runner.files import ZIP_ERRORS, are_sound, cache_folder, note_digests, own_folder_errors, sha256
from device_runner.library_facts import (
    LIBRARY,
    MACHINES,
    MAX_BYTES,
    LibraryFacts,
    android_facts,
    archive_abis,
    is_archive,
    library_member,
    library_members,
    linux_facts,
    of_abi,
    read_facts,
)
from device_runner.reading import check_unpacked, decode_json, read_regular

GROUP = "com.microsoft.onnxruntime"
"""Maven's group of all packages of ONNX Runtime."""


class Package(NamedTuple):
    """A Maven package that carries the library: its artifact, and what the file ends in."""

    artifact: str
    ending: str


PACKAGES: dict[str, Package] = {"android": Package("onnxruntime-android", "aar"), "jvm": Package("onnxruntime", "jar")}
"""By the first part of a name: `android:1.29.0` is the AAR for phones, `jvm:1.28.0` the JAR for desktops."""

NAME = re.compile(r"(?:(android|jvm|wheel):)?(\d+\.\d+\.\d+)")
CHECKSUM_BYTES = 4096
"""Most that is read of a file with a checksum; the longest, of SHA-512, has 128 digits and perhaps a name."""

GET = "ort-mobile library get {name}"


class Name(NamedTuple):
    """A library by name: where it comes from (android, jvm, wheel) and its release."""

    scheme: str
    release: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.release}"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A release in the cache: the file, its digest, where it came from and under which licence."""

    release: str
    file: str
    sha256: str
    source: str
    licence: str = ""
    scheme: str = "android"


def library_folder() -> Path:
    """Where fetched and unpacked libraries are kept."""
    return cache_folder() / "libraries"


def name_of(text: str) -> Name | None:
    """What `android:1.29.0`, `jvm:1.28.0`, `wheel:1.31.1` or a bare release (Android's) names, None for all else."""
    found = NAME.fullmatch(text)
    return Name(found.group(1) or "android", found.group(2)) if found else None


def release_of(text: str) -> str | None:
    """The release of an Android library that `1.29.0` or `android:1.29.0` names, None for anything else."""
    name = name_of(text)
    return name.release if name and name.scheme == "android" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library on this computer for one ABI: its own file, the text that it was resolved from, what carried it.

    `archive` is the package that it was unpacked from, or the file itself. What the library is, is read from its bytes
    when it is asked for.
    """

    text: str
    archive: Path
    path: Path
    abi: str

    @property
    def facts(self) -> LibraryFacts:
        """What it is; raises UnavailableError for a file that is no whole library of its ABI, naming what it is."""
        return of_abi(read_facts(self.path), self.abi)

    @property
    def release(self) -> str:
        """Its release, "" where it does not tell; raises as `facts`."""
        return self.facts.release

    @property
    def sha256(self) -> str:
        """The digest of its own file."""
        return sha256(self.path)

    def android(self) -> LibraryFacts:
        """As `facts`, of a library that was built for Android; raises UnavailableError for any other."""
        return android_facts(self.path, self.abi)

    def linux(self) -> LibraryFacts:
        """As `android`, of a library that was built for Linux."""
        return linux_facts(self.path, self.abi)


def resolve(text: str, abi: str = "x86_64") -> Library:
    """The library for an ABI that a text stands for: the path of a .so, AAR or JAR, or a name as in `name_of`.

    Every place that is given a library calls this. Raises NoLibraryError for a path where nothing is, UnavailableError
    with what to do for a name that is not available and an archive without that ABI.
    """
    archive = find_archive(text, abi)
    return Library(text=text, archive=archive, path=_unpacked(archive, abi), abi=abi)


def resolve_all(text: str) -> tuple[Library, ...]:
    """As `resolve`, for each ABI of an archive, or for which a release's wheel was fetched; a .so has one."""
    archive = find_archive(text)
    if is_archive(archive):
        return tuple(resolve(text, abi) for abi in archive_abis(archive) or ["x86_64"])
    name = name_of(text)
    wheels = list(wheel_libraries(name)) if name else []
    files = wheels if archive in wheels else [archive]
    return tuple(Library(text=text, archive=file, path=file, abi=read_facts(file).abi) for file in files)


def find_archive(text: str, abi: str = "") -> Path:
    """The file that a path or a release's name stands for; raises NoLibraryError, UnavailableError with what to do.

    `abi` chooses among wheels, which have one each, the first that is available without it. Archives have several.
    """
    name = name_of(text)
    if name is None or Path(text).exists():
        return _existing(text)
    damaged: list[UnavailableError] = []
    if found := next(_candidates(name, abi, damaged), None):
        return found
    if damaged:
        raise damaged[0]
    if name.scheme == "wheel":
        raise _no_wheel(name, abi)
    raise UnavailableError(
        f"no library {name} on this computer",
        where=str(library_folder()),
        why="it is in no Gradle or Maven cache, and was not fetched yet",
        remedy=f"`{GET.format(name=name)}`, or give the path of an AAR, a JAR or of {LIBRARY}",
    )


def _no_wheel(name: Name, abi: str) -> UnavailableError:
    what = f"no library {name}{abi and ' for '}{abi} on this computer"
    if abi and abi not in MACHINES:
        why = f"there are wheels for {', '.join(MACHINES)} only"
        return UnavailableError(what, why=why, remedy=f"give the path of a {LIBRARY} for {abi}")
    get = GET.format(name=name) + (f" --abi {abi}" if abi else "")
    return UnavailableError(
        what,
        where=str(wheel_folder()),
        why="it was not fetched yet",
        remedy=f"`{get}`, or give the path of {LIBRARY}",
    )


def _existing(text: str) -> Path:
    path = Path(text)
    if not text or not path.is_file():
        raise NoLibraryError(
            f"no library at {text!r}",
            why="there is no such file, and it is not a release such as 1.29.0",
            remedy=f"give the path of an AAR or of {LIBRARY}, or a release",
        )
    return path


def _candidates(name: Name, abi: str, damaged: list[UnavailableError]) -> Iterator[Path]:
    if entry := read_entry(name):
        yield Path(entry.file)
    yield from sound_files(name, damaged)
    yield from wheel_libraries(name, abi)


def sound_files(name: Name, damaged: list[UnavailableError]) -> Iterator[Path]:
    """Those of `build_tool_caches` that are what their build tool noted; why others are not is added to `damaged`."""
    for path in build_tool_caches(name):
        try:
            yield checked(path)
        except UnavailableError as error:
            damaged.append(error)


def build_tool_caches(name: Name) -> Iterator[Path]:
    """Files of a release (`*`: of all) in the caches of Gradle (GRADLE_USER_HOME) and Maven."""
    if name.scheme not in PACKAGES:
        return
    artifact, ending = PACKAGES[name.scheme]
    gradle = Path(os.environ.get("GRADLE_USER_HOME") or Path.home() / ".gradle")
    kept = gradle / "caches" / "modules-2" / "files-2.1" / GROUP / artifact
    yield from sorted(kept.glob(f"{name.release}/*/{artifact}-{name.release}.{ending}"))
    maven = Path.home() / ".m2" / "repository" / GROUP.replace(".", "/") / artifact
    yield from sorted(maven.glob(f"{name.release}/{artifact}-{name.release}.{ending}"))


def wheel_folder() -> Path:
    """Where device_runner.library_facts keeps the libraries of wheels, each in RELEASE-MACHINE."""
    return cache_folder() / "wheels"


def wheel_libraries(name: Name, abi: str = "") -> Iterator[Path]:
    """Libraries out of wheels of a release (`*`: of all) that were fetched for an ABI, for any without one."""
    machine = MACHINES.get(abi) if abi else "*"
    if name.scheme == "wheel" and machine:
        yield from sorted(wheel_folder().glob(f"{name.release}-{machine}/{LIBRARY}"))


def wheel_abi(path: Path) -> str:
    """The ABI of one of `wheel_libraries`, by its folder's name; "" for a folder of another name."""
    machine = path.parent.name.partition("-")[2]
    return next((abi for abi, known in MACHINES.items() if known == machine), "")


def checked(path: Path) -> Path:
    """A cached file, checked against what its build tool noted: Gradle its folder's name, Maven the file beside it.

    Raises UnavailableError when it is another file. Both are SHA-1, Gradle's without leading zeros.
    """
    beside = path.with_name(f"{path.name}.sha1")
    noted = read_regular(beside, CHECKSUM_BYTES).decode("ascii", "replace").split()[:1] if beside.is_file() else []
    wanted = noted[0] if noted else path.parent.name
    if re.fullmatch(r"[0-9a-f]{30,40}", wanted):
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha1").hexdigest()
        if int(found, 16) != int(wanted, 16):
            raise UnavailableError(
                "this file is not what its repository says",
                where=str(path),
                why=f"its SHA-1 is {found}, the repository's is {wanted}",
                remedy="delete it, and let the build tool fetch it again",
            )
    return path


def read_entry(name: Name) -> Entry | None:
    """What was fetched for a name, None when nothing was, its note cannot be read, its file is gone or was damaged."""
    entry = _noted(name)
    with contextlib.suppress(OSError):
        return entry if entry and sha256(Path(entry.file)) == entry.sha256 else None
    return None


def _noted(name: Name) -> Entry | None:
    """The note has the file's path in the folder of libraries, which may have moved since (earlier: a whole path)."""
    try:
        entry = decode_json(read_regular(_entry_path(name)), Entry)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    path = library_folder() / entry.file
    return msgspec.structs.replace(entry, file=str(path)) if path.is_file() else None


def entries() -> list[Entry]:
    """All that was fetched and is still there, by name; the files themselves are not read."""
    names = sorted(path.stem for path in (library_folder() / "index").glob("*.json"))
    found = (_noted(Name(*stem.split("-", 1))) for stem in names if "-" in stem)
    return [entry for entry in found if entry]


def _entry_path(name: Name) -> Path:
    return library_folder() / "index" / f"{name.scheme}-{name.release}.json"


def keep(content: bytes, *, file: str, name: Name, source: str, licence: str) -> Entry:
    """Put a fetched file into the cache, whole or not at all, and note it as the library of that name."""
    digest = hashlib.sha256(content).hexdigest()
    place = f"files/{digest}/{file}"
    path = library_folder() / place
    if not path.is_file() or sha256(path) != digest:
        _write(path, content)
    note = Entry(scheme=name.scheme, release=name.release, file=place, sha256=digest, source=source, licence=licence)
    _write(_entry_path(name), msgspec.json.encode(note))
    return msgspec.structs.replace(note, file=str(path))


def _unpacked(path: Path, abi: str) -> Path:
    if not is_archive(path):
        return path
    target = library_folder() / "unpacked" / sha256(path) / abi / LIBRARY
    if not are_sound(target.parent, [target.name]):
        _write(target, library_member(path, abi))
        with own_folder_errors(target):
            note_digests(target.parent, [target.name])
    return target


def require_package(file: Path | BinaryIO, name: Name) -> None:
    """Raise UnavailableError unless a file is what the repository has under a name: an archive with the library.

    Its libraries must be of a size that `resolve` unpacks. Nothing is unpacked.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = library_members(archive.namelist())
            for member in members.values():
                check_unpacked(archive.getinfo(member), MAX_BYTES)
    except ZIP_ERRORS as error:
        raise UnavailableError(f"what was fetched as {name} is no such package", why=str(error)) from error
    if not members:
        raise UnavailableError(f"what was fetched as {name} is no such package", why=f"it has no {LIBRARY}")


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; raises UnavailableError when the disk says no."""
    with own_folder_errors(path):
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
