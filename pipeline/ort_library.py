"""Where an Android libonnxruntime comes from, and what is in it: build tools' caches, Maven, registry packages.

Everything is fetched by the registries' own clients (mvn, npm), which know where the user's mirrors are. What was
fetched lies in the cache by content (device_runner.library_source); nothing of it is part of this project.
"""

import hashlib
import io
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runner.library_source import (
    ARTIFACT,
    LIBRARY,
    Entry,
    LibraryFacts,
    archive_abis,
    build_tool_caches,
    entries,
    find_archive,
    is_archive,
    keep,
    open_archive,
    read_entry,
    read_facts,
    release_of,
)
from pipeline.errors import ConfigError, MissingError

MIT = "MIT"
FETCH_SECONDS = 600
REASON = re.compile(r"(Could not [^(\n]*|\S+ was not found[^(\n]*|npm (?:error|ERR!) .*)")
"""Where Maven or npm says why it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A registry package that carries the Android library of a release.

    `sha256` is the package's own file's; `aar` the member that is an AAR, or `libraries` the members by ABI.
    """

    release: str
    name: str
    version: str
    sha256: str
    licence: str
    aar: str = ""
    libraries: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """How the registry's client calls it."""
        return f"{self.name}@{self.version}"


def _by_abi(folder: str, *abis: str) -> tuple[tuple[str, str], ...]:
    return tuple((abi, f"{folder}/{abi}/{LIBRARY}") for abi in abis)


PACKAGES = (
    Package(
        release="1.29.0",
        name="com.github.asus4.onnxruntime",
        version="0.4.9",
        sha256="e59788788818fdde1b2e522e766a21ba0f7d8391de55737abf81e32cc801785d",
        licence=MIT,
        aar="package/Plugins/Android/onnxruntime.aar",
    ),
    Package(
        release="1.28.0",
        name="@runanywhere/onnx",
        version="0.20.27",
        sha256="3d849b5fa58a8c6c2336cd6d55be96f2e8736f8d0ce8d77c75903006ebcfffb4",
        licence="RunAnywhere License (limits who may use the package; the library in it is MIT)",
        libraries=_by_abi("package/android/src/main/jniLibs", "arm64-v8a", "armeabi-v7a", "x86_64"),
    ),
    Package(
        release="1.17.1",
        name="react-native-sherpa-onnx-offline-tts",
        version="0.2.6",
        sha256="8eaf0069a46462bdb853cb9aee2be283e8f48b4ab8213f51184413cef947b34c",
        licence=MIT,
        aar="package/android/libs/sherpa-onnx-1.10.35.aar",
    ),
)
"""npm packages that carry unchanged Android builds of ONNX Runtime, each read and run before it was listed here."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list: a release, whether it is at hand, where, and the licence of what carries it."""

    release: str
    at_hand: bool
    place: str
    licence: str = ""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a library file is: facts of each ABI in it, and what the shims of android-host do not know of x86_64's."""

    archive: str
    libraries: tuple[LibraryFacts, ...]
    unknown_imports: tuple[str, ...]


def known_libraries() -> list[Known]:
    """Releases at hand (fetched, in Gradle's or Maven's cache), then those that a registry package carries."""
    fetched = [Known(release=e.release, at_hand=True, place=e.file, licence=e.licence) for e in entries()]
    cached = [Known(release=path.parts[_release_part(path)], at_hand=True, place=str(path)) for path in _all_cached()]
    there = {known.release for known in [*fetched, *cached]}
    packages = [
        Known(release=package.release, at_hand=False, place=f"npm: {package.title}", licence=package.licence)
        for package in PACKAGES
        if package.release not in there
    ]
    return [*fetched, *cached, *packages]


def _all_cached() -> list[Path]:
    return list(build_tool_caches("*"))


def _release_part(path: Path) -> int:
    """Where the release stands in a cached path: behind the artifact's name, in Gradle's as in Maven's layout."""
    return path.parts.index(ARTIFACT[1]) + 1


def get_library(name: str, *, accept_licence: bool = False) -> Entry:
    """Have the Android library of a release (`android:1.29.0`) at hand; fetch it where it is not.

    Raises ConfigError for a name that is none, MissingError that lists what was tried, or names a licence that must
    be accepted first.
    """
    release = release_of(name)
    if release is None:
        raise ConfigError(f"{name!r} is no release", remedy="write `android:` and a release, as in android:1.29.0")
    entry = read_entry(release)
    if entry and Path(entry.file).is_file():
        return entry
    ways = (_from_caches, lambda wanted: _from_npm(wanted, accept_licence), _from_maven)
    return _first(release, ways)


def _first(release: str, ways: tuple[Callable[[str], Entry], ...]) -> Entry:
    reasons: list[str] = []
    remedies = [f"build one (nox -s android), or fetch {':'.join(ARTIFACT)}:{release} into Maven's cache"]
    for way in ways:
        try:
            return way(release)
        except MissingError as error:
            reasons.append(f"{error.what} ({error.why})" if error.why else error.what)
            remedies = [error.remedy, *remedies] if error.remedy else remedies
    raise MissingError(
        f"no Android library of release {release} could be had",
        why="; ".join(reasons),
        remedy=remedies[0],
    )


def _from_caches(release: str) -> Entry:
    path = next(iter(build_tool_caches(release)), None)
    if path is None:
        raise MissingError("it is in no Gradle or Maven cache")
    return keep(path.read_bytes(), name=path.name, release=release, source=str(path), licence=MIT)


def _client(name: str) -> str:
    if found := shutil.which(name):
        return found
    raise MissingError(f"{name} is not on PATH")


def _call(command: list[str], folder: str, what: str) -> None:
    """Run a registry's client; when it fails, the first line that says why is the reason."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"{what} did not answer within {FETCH_SECONDS} seconds") from error
    if done.returncode:
        said = REASON.search(done.stdout + done.stderr)
        raise MissingError(f"{what} gave none", why=said.group(1)[:300] if said else f"exit code {done.returncode}")


def _from_maven(release: str) -> Entry:
    group, artifact = ARTIFACT
    with tempfile.TemporaryDirectory(prefix="ort-mobile-maven-") as folder:
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
        options = [f"-Dartifact={group}:{artifact}:{release}:aar", f"-DoutputDirectory={folder}"]
        _call([_client("mvn"), "-q", "-B", plugin, *options], folder, "Maven")
        path = next(iter(Path(folder).glob("*.aar")), None)
        if path is None:
            raise MissingError("Maven gave no file")
        return keep(path.read_bytes(), name=path.name, release=release, source=f"Maven {group}:{artifact}", licence=MIT)


def _from_npm(release: str, accept_licence: bool) -> Entry:
    package = next((package for package in PACKAGES if package.release == release), None)
    if package is None:
        known = ", ".join(package.release for package in PACKAGES)
        raise MissingError(f"no registry package is known to carry it (known: {known})")
    if package.licence != MIT and not accept_licence:
        raise MissingError(
            f"{package.title} carries it under another licence",
            why=package.licence,
            remedy="read that licence, then `ort-mobile library get --accept-licence`",
        )
    with tempfile.TemporaryDirectory(prefix="ort-mobile-npm-") as folder:
        _call([_client("npm"), "pack", package.title, "--ignore-scripts", "--silent"], folder, "npm")
        content = _take(package, next(iter(Path(folder).glob("*.tgz"))))
    name = f"onnxruntime-android-{release}.aar"
    return keep(content, name=name, release=release, source=f"npm {package.title}", licence=package.licence)


def _take(package: Package, path: Path) -> bytes:
    """The AAR of a package, made of its libraries where it has none; raises MissingError for another digest."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise MissingError(
            f"{package.title} is not what it was",
            why=f"its sha256 is {digest}, known is {package.sha256}",
            remedy="do not use it; tell the project",
        )
    with tarfile.open(path) as archive:
        if package.aar:
            return _member(archive, package.aar)
        return _make_aar({f"jni/{abi}/{LIBRARY}": _member(archive, name) for abi, name in package.libraries})


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise MissingError(f"the package has no file {name}")
    return file.read()


def _make_aar(members: dict[str, bytes]) -> bytes:
    """A zip with nothing but these members, the same bytes each time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def show_library(text: str) -> Contents:
    """What is in an AAR, a .so or a release's library; raises device_runner's errors for what is none."""
    from device_runner.android_host.symbols import unknown_imports

    path = find_archive(text)
    libraries = tuple(open_archive(path, abi) for abi in _abis_of(path))
    unknown = [name for facts in libraries if facts.abi == "x86_64" for name in unknown_imports(facts.imports)]
    return Contents(archive=str(path), libraries=libraries, unknown_imports=tuple(unknown))


def _abis_of(path: Path) -> list[str]:
    if not is_archive(path):
        return [read_facts(path).abi]
    return archive_abis(path) or ["x86_64"]
