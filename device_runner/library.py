"""libonnxruntime by path or by name: from an AAR, a JAR, a .so or a release to one file, checked.

Everything lies by content under the cache folder: `libraries/files/DIGEST/NAME` as it was fetched,
`libraries/unpacked/DIGEST/ABI/libonnxruntime.so`, and `libraries/index/SCHEME-RELEASE.json`.

What a library is, its bytes alone say (libraries of 1.17.1 to 1.31.1 as packages carry them, and minimal builds of
1.21.0): every build but those without logging carries the source paths of its checks (`core/providers/nnapi/...`),
which tell what was compiled in. Exported symbols alone do not: XNNPACK, WebGPU and QNN export none.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from device_runner.errors import NoLibraryError, UnavailableError
from device_runner.files import are_sound, cache_folder, keep_noted, own_folder_errors, replacing, sha256
from device_runner.probe import elf as elf_file
from device_runner.probe.elf import NotElf
from device_runner.providers import CPU, PROVIDERS
from device_runner.untrusted_files import ZIP_ERRORS, check_unpacked, decode_json, open_regular, read_regular

LIBRARY = "libonnxruntime.so"

PROVIDER_SOURCES = re.compile(rb"core[/\\]providers[/\\](\w{1,40})[/\\]")
PROVIDER_SYMBOLS = re.compile(rb"\0OrtSessionOptionsAppendExecutionProvider_(\w{1,40})\0")
MINIMAL_TEXT = b"ONNX format model is not supported in this build."
EXTENDED_SOURCES = re.compile(rb"core[/\\]optimizer[/\\](selectors_actions|transpose_optimization|nhwc_transformer)")
"""A plain minimal build compiles of the optimizer one base class only (cmake/onnxruntime_optimizer.cmake)."""


class LibraryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a library file is, from its bytes alone. `release` and `commit` are "" where it does not tell.

    `system` is android or linux, by the C library that it needs; `kind` full, extended or minimal; `providers` those
    compiled in, by short name, the CPU's always among them. `telemetry`: it has the code that reports its use.
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
    telemetry: bool = False


BUILD_MARK = b"ORT Build Info: "
"""Every build since 1.12 has it, linked into another library or not (1.17.1 to 1.31.1 for Android, iOS, Linux)."""
TELEMETRY_HOST = b"events.data.microsoft.com"
"""Where 1DS reports to, the telemetry of official builds of ONNX Runtime since 1.29 and of ONNX Runtime GenAI."""
VERSION_TEXT = re.compile(rb"\0(?:VERS_)?(1\.(?:[7-9]|[1-9]\d)\.\d{1,2})\0")
"""ORT_VERSION as a string of its own; other libraries inside have versions of this form, too."""


def read_build(content: elf_file.Buffer) -> dict[str, Any]:
    """What strings of the build of ONNX Runtime in a file tell, whatever file it is: fields of `LibraryFacts`.

    `release` is "" where several versions could be its own.
    """
    kind = "full"
    if content.find(MINIMAL_TEXT) >= 0:
        kind = "extended" if EXTENDED_SOURCES.search(content) else "minimal"
    # providers by their source folder or their own function
    folders = {name.decode("ascii") for name in PROVIDER_SOURCES.findall(content)} | {CPU}
    functions = {name.decode("ascii") for name in PROVIDER_SYMBOLS.findall(content)}
    names = (
        provider.name for provider in PROVIDERS.values() if provider.name in folders or provider.function in functions
    )
    # Exporters define the version of their symbols; a file that only asks for another's has it, too, and no mark.
    tagged = set(re.findall(rb"\0VERS_(\d+\.\d+\.\d+)\0", content))
    releases = tagged or set(VERSION_TEXT.findall(content))
    commit = re.search(rb"git-commit-id=([0-9a-f]{7,40})", content)
    return {
        "release": releases.pop().decode("ascii") if len(releases) == 1 else "",
        "commit": commit[1].decode("ascii") if commit else "",
        "kind": kind,
        "providers": tuple(sorted(names)),
        "telemetry": content.find(TELEMETRY_HOST) >= 0,
    }


_FACTS: dict[str, LibraryFacts] = {}


def read_facts(path: Path) -> LibraryFacts:
    """What a .so is; raises UnavailableError for a file that is none, is cut off, or is not ONNX Runtime."""
    digest = sha256(path)
    if digest not in _FACTS:
        content = path.read_bytes()
        elf, why = None, ""
        try:
            elf = elf_file.parse_elf(content)
        except NotElf as error:
            why = str(error)
        else:
            end = max(
                (part.offset + part.file_size for part in elf.segments if part.type == elf_file.PT_LOAD), default=0
            )
            if end > len(content):
                why = f"the file is cut off: {len(content)} of at least {end} bytes are there"
            elif not any(name == "OrtGetApiBase" and section for name, section in elf.symbols):
                why = "it does not export OrtGetApiBase"
        if elf is None or why:
            remedy = f"give an AAR, or a whole {LIBRARY} from one"
            raise UnavailableError(f"this is no {LIBRARY}", where=str(path), why=why, remedy=remedy)
        _FACTS[digest] = LibraryFacts(
            path=str(path),
            sha256=digest,
            size_bytes=len(content),
            abi=elf.abi,
            system=elf.system,
            page_bytes=elf.page_bytes,
            needed=elf.needed,
            imports=tuple(sorted(elf.undefined)),
            **read_build(content),
        )
    facts = _FACTS[digest]
    # CUDA and TensorRT are libraries of their own, which the main one opens beside itself
    files = (
        (provider.name, path.parent / f"libonnxruntime_providers_{provider.name}.so") for provider in PROVIDERS.values()
    )
    beside = {name for name, file in files if not PROVIDERS[name].plugin and file.is_file()}
    return msgspec.structs.replace(facts, path=str(path), providers=tuple(sorted({*facts.providers, *beside})))


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


MACHINES = {"arm64-v8a": "aarch64", "x86_64": "x86_64"}
"""ABI names of devices to those of wheels."""

MAX_BYTES = 256 << 20
"""No libonnxruntime for these devices is larger (full builds have 40 MB); a larger one is not unpacked."""

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
    small = []
    with _opened(path) as archive:
        for name in sorted(archive.namelist()):
            if not SHARED.fullmatch(name):
                continue
            with archive.open(name) as file, contextlib.suppress(NotElf):
                elf = elf_file.parse_header(file.read(HEAD_BYTES))
                if elf.bits == 64 and 0 < elf.page_bytes < PAGE_BYTES:
                    small.append(name)
    return small


def library_members(names: Iterable[str]) -> dict[str, str]:
    """The library's members by ABI: jni/ABI of an AAR, lib/ABI of an APK, the folders of the JVM's JAR."""
    members: dict[str, str] = {}
    for name in names:
        match = MEMBER.fullmatch(name)
        abi = match and (match["abi"] or JVM_ABIS.get(match["folder"]))
        if abi:
            members.setdefault(abi, name)
    return members


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except ZIP_ERRORS as error:
        raise UnavailableError(
            "this archive cannot be unpacked", where=str(path), why=str(error), remedy="fetch or build it again"
        ) from error


GROUP = "com.microsoft.onnxruntime"
"""Maven's group of all packages of ONNX Runtime."""


PACKAGES = {"android": ("onnxruntime-android", "aar"), "jvm": ("onnxruntime", "jar")}
"""Maven's artifact with the library, and what its file ends in, by the first part of a name.

`android:1.29.0` is the AAR for phones, `jvm:1.28.0` the JAR for desktops.
"""

NAME = re.compile(r"(?:(android|jvm|wheel):)?(\d+\.\d+\.\d+)")
CHECKSUM_BYTES = 4096
"""Most that is read of a file with a checksum; the longest, of SHA-512, has 128 digits and perhaps a name."""

GET = "ort-mobile library get {name}"


@functools.cache
def known_digests() -> Mapping[str, str]:
    """The sha256 of files of ONNX Runtime's releases by name: wheels for Linux, JARs for the JVM.

    Of wheels the file `releases.sha256` has what PyPI states, of JARs what Maven Central's files have.
    """
    lines = Path(__file__).with_name("releases.sha256").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


class NamedLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library by name: where it comes from (`scheme`: android, jvm, wheel) and its release, `*` for all of them.

    Of one in the cache also the file, its digest, where that came from and under which licence.
    """

    release: str
    file: str = ""
    sha256: str = ""
    source: str = ""
    licence: str = ""
    scheme: str = "android"

    def __str__(self) -> str:
        return f"{self.scheme}:{self.release}"

    @property
    def artifact(self) -> str:
        """Maven's artifact; KeyError for a wheel, as below."""
        return PACKAGES[self.scheme][0]

    @property
    def file_name(self) -> str:
        """The name of its file there."""
        return f"{self.artifact}-{self.release}.{PACKAGES[self.scheme][1]}"

    @property
    def folder(self) -> str:
        """Where a Maven repository has all its releases."""
        return f"{GROUP.replace('.', '/')}/{self.artifact}"

    @property
    def path(self) -> str:
        """Where its file is in a Maven repository."""
        return f"{self.folder}/{self.release}/{self.file_name}"


def library_folder() -> Path:
    """Where fetched and unpacked libraries are kept."""
    return cache_folder() / "libraries"


def name_of(text: str) -> NamedLibrary | None:
    """What `android:1.29.0`, `jvm:1.28.0`, `wheel:1.31.1` or a bare release (Android's) names, None for all else."""
    match = NAME.fullmatch(text)
    return NamedLibrary(scheme=match[1] or "android", release=match[2]) if match else None


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
        try:
            return of_abi(read_facts(self.path), self.abi)
        except UnavailableError:
            if self.path != self.archive:  # what was unpacked is no library: it would fill the cache for nothing
                shutil.rmtree(self.path.parent, ignore_errors=True)
            raise

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
        facts = read_facts(self.path)
        if facts.system != "android":
            raise UnavailableError(
                f"this is no Android {LIBRARY}",
                where=str(self.path),
                why="it was not built for Android: it does not need Android's libc.so",
                remedy=f"give an AAR, or {LIBRARY} from one",
            )
        return of_abi(facts, self.abi)

    def linux(self) -> LibraryFacts:
        """As `android`, of a library that was built for Linux."""
        facts = read_facts(self.path)
        if facts.system != "linux":
            raise UnavailableError(
                f"this is no {LIBRARY} for Linux",
                where=str(self.path),
                why=f"it was built for {facts.system}",
                remedy=f"give wheel:RELEASE, jvm:RELEASE, or {LIBRARY} from one (`android-host:` runs Android's)",
            )
        return of_abi(facts, self.abi)


def resolve(text: str, abi: str = "x86_64") -> Library:
    """The library for an ABI that a text stands for: the path of a .so, AAR or JAR, or a name as in `name_of`.

    Every place that is given a library calls this. Raises NoLibraryError for a path where nothing is, UnavailableError
    with what to do for a name that is not available and an archive without that ABI.
    """
    archive = path = find_archive(text, abi)
    if is_archive(archive):
        path = library_folder() / "unpacked" / sha256(archive) / abi / LIBRARY
        if not are_sound(path.parent, [path.name]):
            with _opened(archive) as opened:
                members = library_members(opened.namelist())
                if abi not in members:
                    raise UnavailableError(
                        f"this archive has no {LIBRARY} for {abi}",
                        where=str(archive),
                        why=f"it has {', '.join(sorted(members))}" if members else "it is no package of ONNX Runtime",
                        remedy=f"build the package with {abi} too (settings: build_abis), or use a phone (adb:SERIAL)",
                    )
                # Read by its exact name, so no path can lead out.
                check_unpacked(opened.getinfo(members[abi]), MAX_BYTES)
                content = opened.read(members[abi])
            keep_noted(path, content)
    return Library(text=text, archive=archive, path=path, abi=abi)


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
        if not text or not Path(text).is_file():
            raise NoLibraryError(
                f"no library at {text!r}",
                why="there is no such file, and it is not a release such as 1.29.0",
                remedy=f"give the path of an AAR or of {LIBRARY}, or a release",
            )
        return Path(text)
    if library := read_entry(name):
        return Path(library.file)
    damaged: list[UnavailableError] = []
    if archive := next(chain(sound_files(name, damaged), wheel_libraries(name, abi)), None):
        return archive
    if damaged:
        raise damaged[0]
    if name.scheme == "wheel":
        what = f"no library {name}{abi and ' for '}{abi} on this computer"
        if abi and abi not in MACHINES:
            why = f"there are wheels for {', '.join(MACHINES)} only"
            raise UnavailableError(what, why=why, remedy=f"give the path of a {LIBRARY} for {abi}")
        get = GET.format(name=name) + (f" --abi {abi}" if abi else "")
        raise UnavailableError(
            what,
            where=str(wheel_folder()),
            why="it was not fetched yet, or has changed since",
            remedy=f"`{get}`, or give the path of {LIBRARY}",
        )
    raise UnavailableError(
        f"no library {name} on this computer",
        where=str(library_folder()),
        why="it is in no Gradle or Maven cache, and was not fetched yet or has changed since",
        remedy=f"`{GET.format(name=name)}`, or give the path of an AAR, a JAR or of {LIBRARY}",
    )


def sound_files(name: NamedLibrary, damaged: list[UnavailableError]) -> Iterator[Path]:
    """Those of `build_tool_caches` that are what their build tool noted; why others are not is added to `damaged`."""
    for path in build_tool_caches(name):
        try:
            yield checked(path)
        except UnavailableError as error:
            damaged.append(error)


def build_tool_caches(name: NamedLibrary) -> Iterator[Path]:
    """Files of a release (`*`: of all) in the caches of Gradle (GRADLE_USER_HOME) and Maven."""
    if name.scheme not in PACKAGES:
        return
    gradle = Path(os.environ.get("GRADLE_USER_HOME") or Path.home() / ".gradle")
    kept = gradle / "caches" / "modules-2" / "files-2.1" / GROUP / name.artifact
    yield from sorted(kept.glob(f"{name.release}/*/{name.file_name}"))
    yield from sorted((Path.home() / ".m2" / "repository").glob(name.path))


def wheel_folder() -> Path:
    """Where device_runner.wheels keeps the libraries of wheels, each in RELEASE-MACHINE."""
    return cache_folder() / "wheels"


def wheel_libraries(name: NamedLibrary, abi: str = "") -> Iterator[Path]:
    """Libraries out of wheels of a release (`*`: of all) that were fetched for an ABI, for any without one.

    One that has changed since is left out, as if it had not been fetched.
    """
    machine = MACHINES.get(abi) if abi else "*"
    if name.scheme == "wheel" and machine:
        for path in sorted(wheel_folder().glob(f"{name.release}-{machine}/{LIBRARY}")):
            if are_sound(path.parent, [path.name]):
                yield path


def checked(path: Path) -> Path:
    """A cached file, checked against what its build tool noted: Gradle its folder's name, Maven the file beside it.

    Both are SHA-1, Gradle's without leading zeros. A known release is compared with its sha256, too. Raises
    UnavailableError when it is another file.
    """
    require_known(path.name, sha256(path), str(path))
    beside = path.with_name(f"{path.name}.sha1")
    noted = read_regular(beside, CHECKSUM_BYTES).decode("ascii", "replace").split()[:1] if beside.is_file() else []
    sha1 = noted[0] if noted else path.parent.name
    if re.fullmatch(r"[0-9a-f]{30,40}", sha1):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha1").hexdigest()
        if int(digest, 16) != int(sha1, 16):
            raise UnavailableError(
                "this file is not what its repository says",
                where=str(path),
                why=f"its SHA-1 is {digest}, the repository's is {sha1}",
                remedy="delete it, and let the build tool fetch it again",
            )
    return path


def require_known(file: str, digest: str, where: str) -> bool:
    """Whether the sha256 of a release's file is known; raises UnavailableError where it is another than `digest`."""
    listed = known_digests().get(file)
    if listed not in (None, digest):
        raise UnavailableError(
            f"{file} is not the one that was released",
            where=where,
            why=f"its sha256 is {digest}, that of the release is {listed}",
            remedy="do not use it: ask whoever runs the mirror or the cache that it came from",
        )
    return listed is not None


def read_entry(name: NamedLibrary) -> NamedLibrary | None:
    """What was fetched for a name, None when nothing was, its note cannot be read, its file is gone or was damaged."""
    library = _noted(name)
    with contextlib.suppress(OSError):
        return library if library and sha256(Path(library.file)) == library.sha256 else None
    return None


def _noted(name: NamedLibrary) -> NamedLibrary | None:
    """The note has the file's path in the folder of libraries, which may have moved since (earlier: a whole path)."""
    try:
        library = decode_json(read_regular(_entry_path(name)), NamedLibrary)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    path = library_folder() / library.file
    return msgspec.structs.replace(library, file=str(path)) if path.is_file() else None


def entries() -> list[NamedLibrary]:
    """All that was fetched and is still there, by name; the files themselves are not read."""
    stems = sorted(path.stem for path in (library_folder() / "index").glob("*.json"))
    notes = (_noted(name) for stem in stems if (name := name_of(stem.replace("-", ":", 1))))
    return [library for library in notes if library]


def _entry_path(name: NamedLibrary) -> Path:
    return library_folder() / "index" / f"{name.scheme}-{name.release}.json"


def keep(content: bytes, *, file: str, name: NamedLibrary, source: str, licence: str) -> NamedLibrary:
    """Put a fetched file into the cache, whole or not at all, and note it as the library of that name.

    Raises UnavailableError when the disk says no.
    """
    digest = hashlib.sha256(content).hexdigest()
    relative = f"files/{digest}/{file}"
    path = library_folder() / relative
    note = msgspec.structs.replace(name, file=relative, sha256=digest, source=source, licence=licence)
    whole = path.is_file() and sha256(path) == digest
    for target, data in (*(() if whole else ((path, content),)), (_entry_path(name), msgspec.json.encode(note))):
        with own_folder_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as part:
                part.write_bytes(data)
    return msgspec.structs.replace(note, file=str(path))


def require_package(file: Path | BinaryIO, name: NamedLibrary) -> None:
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
