"""Where a libonnxruntime comes from: npm packages, wheels, Maven repositories, caches; kept with its digest.

Everything is fetched by the registries' own clients (mvn, npm, pip), which know where the user's mirrors are; only
Maven Central has a plain HTTPS way beside. What was fetched lies in the cache by content
(device_runner.library); nothing of it is part of this project.
"""

import contextlib
import errno
import hashlib
import io
import logging
import os
import re
import shutil
import socket
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from device_runner import errors as runner_errors
from device_runner import files as runner_files
from device_runner import library as ort_library
from device_runner import safe_text, wheels
from pipeline.core import abis as core_abis
from pipeline.core.errors import ConfigError, MissingError
from pipeline.library.kernels import ArmCode, read_arm_code

Say: TypeAlias = Callable[[str], None]
"""Takes a line that says what is being done; fetching takes minutes."""

CENTRAL = "https://repo1.maven.org/maven2"
MIRROR_VARIABLE = "ORT_MOBILE_MAVEN"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
FETCH_SECONDS = 600
ANSWER_SECONDS = 30
MAX_BYTES = 1 << 30
CHECKSUM_BYTES = 4096
METADATA_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18
NOT_FOUND = 404
OFFLINE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN})
LOOPBACK = re.compile(r"http://(127\.0\.0\.1|localhost|\[::1\])(:|/|$)")
CHECKSUMS = ("sha512", "sha256", "sha1")
"""What repositories keep beside a file, the strongest first. All have SHA-1, newer releases on Central the others."""

MAVEN_REASON = re.compile(
    r"(Could not .*?|\S+ was not found.*?|Checksum validation failed.*?)(?: \(|\. This failure| -> \[Help|$)",
    re.MULTILINE,
)
"""Where Maven says why it gave none."""
FETCHED = re.compile(r"Downloaded from \S+: (\S+)")
"""Where Maven says which address a file came from; it does not where it has the file already."""


def silent(_: str) -> None:
    """Say nothing."""


def by_client(name: ort_library.NamedLibrary, say: Say = silent) -> tuple[bytes, str]:
    """The file by `mvn`, and the repository that it came from; raises MissingError with Maven's own reason.

    `mvn` refuses a file with a wrong checksum (-C).
    """
    client = shutil.which("mvn")
    if client is None:
        raise MissingError("mvn is not on PATH")
    with runner_files.scratch_folder() as folder:
        asked = f"{ort_library.GROUP}:{name.artifact}:{name.release}"
        say(f"asking mvn for {asked} (at most {FETCH_SECONDS} seconds)")
        artifact = f"-Dartifact={asked}:{ort_library.PACKAGES[name.scheme][1]}"
        output = run(
            [client, "-B", "-C", PLUGIN, artifact, f"-DoutputDirectory={folder}"], folder, "Maven", MAVEN_REASON
        )
        path = Path(folder, name.file_name)
        if not path.is_file():
            raise MissingError("Maven gave no file")
        addresses = [address for address in FETCHED.findall(output) if address.endswith(name.path)]
        source = (
            safe_text.public_address(addresses[0].removesuffix(f"/{name.path}"))
            if addresses
            else "Maven's local repository"
        )
        return path.read_bytes(), source


def run(command: list[str], folder: Path, program: str, reason: re.Pattern[str]) -> str:
    """What a registry's client prints in a folder; raises MissingError with the first line that says why it failed."""
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
        raise MissingError(f"{program} did not answer within {FETCH_SECONDS} seconds") from error
    if done.returncode:
        line = reason.search(done.stdout + done.stderr)
        why = line.group(1)[:300] if line else f"exit code {done.returncode}"
        raise MissingError(f"{program} gave none", why=why)
    return done.stdout


class NotPublishedError(MissingError):
    """A repository does not have a release; `releases` are those that it names, oldest first."""

    def __init__(self, what: str, *, why: str, releases: tuple[str, ...]) -> None:
        super().__init__(what, why=why)
        self.releases = releases


def by_https(name: ort_library.NamedLibrary, say: Say = silent) -> tuple[bytes, str]:
    """The file by HTTPS, and the repository's address; raises MissingError with what the server said.

    The file is compared with the checksum beside it.
    Plain HTTP, which anyone between can change, is for a mirror that ORT_MOBILE_MAVEN names only, with a warning unless
    it is on this computer.
    """
    base = (os.environ.get(MIRROR_VARIABLE) or CENTRAL).rstrip("/")
    if not re.match(r"https?://[^/]", base):
        raise MissingError(f"{MIRROR_VARIABLE} is no address", why=base, remedy=f"write one such as {CENTRAL}")
    if base.startswith("http:") and not LOOPBACK.match(base):
        log.warning("%s is not encrypted: who is between here and there can change what is fetched", base)
    address = f"{base}/{name.path}"
    say(f"fetching {address}")
    try:
        content = _get(address)
    except urllib.error.HTTPError as error:
        if error.code != NOT_FOUND:
            raise MissingError(f"{base} answers {error.code} {error.reason}", where=address) from error
        listed = ""
        with contextlib.suppress(MissingError, urllib.error.HTTPError):
            listed = _get(f"{base}/{name.folder}/maven-metadata.xml", METADATA_BYTES).decode("utf-8", "replace")
        releases = tuple(re.findall(r"<version>(\d{1,4}\.\d{1,4}\.\d{1,4})</version>", listed))
        newest = f"; the newest that it has are {', '.join(releases[-5:])}" if releases else ""
        raise NotPublishedError(
            f"{base} has no {name.file_name}", why=f"it answers 404{newest}", releases=releases
        ) from error
    say(f"fetched {len(content):,} bytes")
    for kind in CHECKSUMS:
        try:
            noted = _get(f"{address}.{kind}", CHECKSUM_BYTES).decode("ascii", "replace").split()
        except (MissingError, urllib.error.HTTPError):
            continue
        expected, digest = noted[0].lower() if noted else "", hashlib.new(kind, content).hexdigest()
        if digest != expected:
            raise MissingError(
                "what was fetched is not what the repository says",
                where=address,
                why=f"its {kind} is {digest}, the repository's is {expected[:128] or 'empty'}",
                remedy="try again; if it stays so, something between here and the repository changes files",
            )
        say(f"its {kind} is the one that {base} names")
        return content, safe_text.public_address(base)
    raise MissingError(f"{base} has no checksum of {name.file_name}", remedy="it is not used: fetch it by `mvn`")


def _get(address: str, limit_bytes: int = MAX_BYTES) -> bytes:
    """A file of a server, whole, within FETCH_SECONDS; raises MissingError, and HTTPError for what it refuses."""
    deadline = time.monotonic() + FETCH_SECONDS
    content = bytearray()
    try:
        with urllib.request.urlopen(address, timeout=min(ANSWER_SECONDS, FETCH_SECONDS)) as answer:  # noqa: S310 - https or http, see by_https
            if address.startswith("https:") and not answer.url.startswith("https:"):
                raise MissingError(f"{address} leads to an address that is not encrypted", why=answer.url)
            length = int(answer.headers.get("Content-Length") or 0)
            while len(content) <= limit_bytes and (chunk := answer.read1(CHUNK_BYTES)):
                content += chunk
                if time.monotonic() > deadline:
                    raise MissingError(
                        f"{address} is too slow", why=f"{len(content):,} bytes came within {FETCH_SECONDS} seconds"
                    )
    except urllib.error.HTTPError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        offline = isinstance(reason, socket.gaierror) or getattr(reason, "errno", 0) in OFFLINE
        host = urlsplit(address).hostname
        raise MissingError(
            f"no network: {host} cannot be reached" if offline else f"{address} cannot be fetched",
            why=str(reason),
            remedy="check the network, and HTTPS_PROXY where there is a proxy",
        ) from error
    if len(content) > limit_bytes or (length and len(content) != length):
        raise MissingError(f"{address} came cut off or too large", why=f"{len(content)} of {length} bytes")
    return bytes(content)


log = logging.getLogger(__name__)

MIT = "MIT"
REASON = re.compile(r"(npm (?:error|ERR!) .*)")
"""Where npm says why it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryPackage:
    """A registry package that carries the Android library of a release.

    `sha256` is the package's own file's; `aar` the member that is an AAR, or `libraries` the members by ABI.
    """

    release: str
    name: str
    version: str
    sha256: str
    licence: str
    publisher: str
    aar: str = ""
    libraries: tuple[tuple[str, str], ...] = ()

    @property
    def page(self) -> str:
        """Where its licence and its publisher can be read."""
        return f"https://www.npmjs.com/package/{self.name}/v/{self.version}"

    @property
    def title(self) -> str:
        """How the registry's client calls it."""
        return f"{self.name}@{self.version}"


PACKAGES = (
    RegistryPackage(
        release="1.29.0",
        name="com.github.asus4.onnxruntime",
        version="0.4.9",
        sha256="e59788788818fdde1b2e522e766a21ba0f7d8391de55737abf81e32cc801785d",
        licence=MIT,
        publisher="a plug-in for Unity by a third party",
        aar="package/Plugins/Android/onnxruntime.aar",
    ),
    RegistryPackage(
        release="1.26.0",
        name="com.github.asus4.onnxruntime",
        version="0.4.8",
        sha256="007a59a954d2161ffb1b3977a649c7945ee37bf30ad493891d4252c02e9536a4",
        licence=MIT,
        publisher="a plug-in for Unity by a third party",
        aar="package/Plugins/Android/onnxruntime.aar",
    ),
    RegistryPackage(
        release="1.28.0",
        name="@runanywhere/onnx",
        version="0.20.27",
        sha256="3d849b5fa58a8c6c2336cd6d55be96f2e8736f8d0ce8d77c75903006ebcfffb4",
        licence="RunAnywhere License (limits who may use the package; the library in it is MIT)",
        publisher="an SDK for React Native by a third party",
        libraries=tuple(
            (abi, f"package/android/src/main/jniLibs/{abi}/{ort_library.LIBRARY}")
            for abi in ("arm64-v8a", "armeabi-v7a", "x86_64")
        ),
    ),
    RegistryPackage(
        release="1.17.1",
        name="react-native-sherpa-onnx-offline-tts",
        version="0.2.6",
        sha256="8eaf0069a46462bdb853cb9aee2be283e8f48b4ab8213f51184413cef947b34c",
        licence=MIT,
        publisher="speech synthesis for React Native by a third party",
        aar="package/android/libs/sherpa-onnx-1.10.35.aar",
    ),
)
"""npm packages that carry unchanged Android builds of ONNX Runtime, each read and run before it was listed here."""


class KnownLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list: a library's name, whether it is available, where, and the licence of what carries it.

    `abi` is of a wheel, which has one; "" for packages with several.
    """

    name: str
    release: str
    at_hand: bool
    place: str
    licence: str = ""
    abi: str = ""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a library file is: facts of each ABI in it, and what the shims of android-host do not know of x86_64's.

    `arm_code` is what of arm64-v8a's code only some processors run.
    """

    archive: str
    libraries: tuple[ort_library.LibraryFacts, ...]
    unknown_imports: tuple[str, ...]
    arm_code: tuple[ArmCode, ...] = ()


def known_libraries() -> list[KnownLibrary]:
    """Libraries available (fetched, in Gradle's or Maven's cache), then those that a registry package carries."""
    libraries: dict[tuple[str, str], KnownLibrary] = {}

    def add(
        name: ort_library.NamedLibrary, place: str, licence: str = MIT, abi: str = "", *, at_hand: bool = True
    ) -> None:
        library = KnownLibrary(
            name=str(name), release=name.release, at_hand=at_hand, place=place, licence=licence, abi=abi
        )
        libraries.setdefault((library.name, abi), library)

    for entry in ort_library.entries():
        add(entry, entry.file, entry.licence)
    for scheme in ort_library.PACKAGES:
        for path in ort_library.build_tool_caches(every := ort_library.NamedLibrary(scheme=scheme, release="*")):
            add(
                ort_library.NamedLibrary(scheme=scheme, release=path.stem.removeprefix(f"{every.artifact}-")), str(path)
            )
    for path in ort_library.wheel_libraries(ort_library.NamedLibrary(scheme="wheel", release="*")):
        release, _, machine = path.parent.name.partition("-")
        abi = next((abi for abi, code in ort_library.MACHINES.items() if code == machine), "")
        add(ort_library.NamedLibrary(scheme="wheel", release=release), str(path), abi=abi)
    for package in PACKAGES:
        add(ort_library.NamedLibrary(release=package.release), f"npm: {package.title}", package.licence, at_hand=False)
    return list(libraries.values())


def get_library(
    text: str, *, accept_licence: bool = False, abi: str = "", say: Say = silent
) -> ort_library.NamedLibrary:
    """Find a library (`android:1.29.0`, `jvm:1.28.0`, `wheel:1.28.0`) in a cache, or fetch it.

    `abi` is for wheels, which have one each: x86_64 by default; `say` gets lines that tell what is being done. Raises
    ConfigError for a name that is none, MissingError that lists what was tried, or names a licence to accept first.
    """
    name = ort_library.name_of(text)
    if name is None:
        raise ConfigError(
            f"{text!r} is no library",
            remedy="write android:, jvm: or wheel: and a release, as in android:1.29.0",
        )
    if name.scheme == "wheel":
        return _from_wheel(name, abi or "x86_64", say)
    if library := ort_library.read_entry(name):
        say(f"{name} was fetched before")
        return library
    ways: list[Callable[[], ort_library.NamedLibrary]] = [
        lambda: _from_caches(name, say),
        lambda: _from_maven(name, *by_client(name, say)),
        lambda: _from_maven(name, *by_https(name, say)),
    ]
    published: set[str] = set()
    if name.scheme == "android":
        ways.append(lambda: _from_npm(name, say, accept_licence=accept_licence))
        published = {package.release for package in PACKAGES}
    reasons: list[str] = []
    remedies: list[str] = []
    for way in ways:
        try:
            return way()
        except runner_errors.UnavailableError as error:  # a damaged file in a build tool's cache is one of these too
            reasons.append(f"{error.what} ({error.why})" if error.why else error.what)
            say(f"not found there: {reasons[-1]}")
            remedies = [error.remedy, *remedies] if error.remedy else remedies
            published |= set(error.releases) if isinstance(error, NotPublishedError) else set()
    if nearest := _nearest(name.release, published):
        remedies.append(
            f"the nearest release that can be had is {nearest}: `ort-mobile library get {name.scheme}:{nearest}`"
        )
    remedies.append(
        f"fetch {ort_library.GROUP}:{name.artifact}:{name.release} into Maven's cache, or build one (`ort-mobile "
        "build`)"
    )
    raise MissingError(f"no library {name} could be had", why="; ".join(reasons), remedy=", or ".join(remedies))


def _nearest(release: str, published: set[str]) -> str:
    """The release nearest to another, the older of two; "" for none."""

    def distance(other: str) -> tuple[int, ...]:
        pairs = zip(other.split("."), release.split("."), strict=True)
        return tuple(abs(int(left) - int(right)) for left, right in pairs)

    return min(sorted(published - {release}), key=distance, default="")


def _from_caches(name: ort_library.NamedLibrary, say: Say) -> ort_library.NamedLibrary:
    say("looking into the caches of Gradle and Maven")
    damaged: list[runner_errors.UnavailableError] = []
    path = next(ort_library.sound_files(name, damaged), None)
    if path is None:
        raise damaged[0] if damaged else MissingError("it is in no Gradle or Maven cache")
    ort_library.require_package(path, name)
    return ort_library.keep(path.read_bytes(), file=path.name, name=name, source=str(path), licence=MIT)


def _from_maven(name: ort_library.NamedLibrary, content: bytes, repository: str) -> ort_library.NamedLibrary:
    ort_library.require_package(io.BytesIO(content), name)
    if not ort_library.require_known(name.file_name, hashlib.sha256(content).hexdigest(), repository):
        log.warning(
            "ort-mobile does not know the sha256 of %s: it was compared with what %s states, and with nothing else",
            name.file_name,
            repository,
        )
    source = f"Maven {ort_library.GROUP}:{name.artifact} of {repository}"
    return ort_library.keep(content, file=name.file_name, name=name, source=source, licence=MIT)


def _from_wheel(name: ort_library.NamedLibrary, abi: str, say: Say) -> ort_library.NamedLibrary:
    """The library out of the wheel for a Linux architecture; pip compares it with a digest."""
    if abi not in ort_library.MACHINES:
        raise ConfigError(
            f"there are no wheels for {abi}", where="--abi", remedy=f"choose one of: {', '.join(ort_library.MACHINES)}"
        )
    wheel = f"onnxruntime {name.release} for {ort_library.MACHINES[abi]}"
    say(f"asking pip for {wheel}, unless it was fetched before")
    library = wheels.foreign_library(abi, name.release)
    facts, source = ort_library.read_facts(library), f"{wheel}, asked for at {wheels.source_of(library)}"
    return msgspec.structs.replace(name, file=facts.path, sha256=facts.sha256, source=source, licence=MIT)


def _from_npm(name: ort_library.NamedLibrary, say: Say, *, accept_licence: bool) -> ort_library.NamedLibrary:
    package = next((package for package in PACKAGES if package.release == name.release), None)
    if package is None:
        releases = ", ".join(package.release for package in PACKAGES)
        raise MissingError(f"no npm package is known to carry it unchanged (known: {releases})")
    if package.licence != MIT and not accept_licence:
        raise MissingError(
            f"the npm package {package.title} carries it, under another licence",
            why=f"{package.licence}; it is {package.publisher}",
            remedy=f"read the licence ({package.page}), then `ort-mobile library get {name} --accept-licence`",
        )
    client = shutil.which("npm")
    if client is None:
        raise MissingError(f"npm is not on PATH: its package {package.title} carries the library")
    say(f"asking npm for {package.title} ({package.publisher}, licence {package.licence}: {package.page})")
    with runner_files.scratch_folder() as folder:
        run([client, "pack", package.title, "--ignore-scripts", "--silent"], folder, "npm", REASON)
        path = next(iter(folder.glob("*.tgz")), None)
        if path is None:
            raise MissingError("npm gave no file")
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
                content = _member(archive, package.aar)
            else:  # an AAR with nothing but its libraries, the same bytes each time
                buffer = io.BytesIO()
                with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as aar:
                    for abi, member in package.libraries:
                        info = zipfile.ZipInfo(f"jni/{abi}/{ort_library.LIBRARY}")
                        info.compress_type = zipfile.ZIP_DEFLATED
                        aar.writestr(info, _member(archive, member))
                content = buffer.getvalue()
    say(f"its sha256 is {package.sha256}, which ort-mobile knows as that of an unchanged ONNX Runtime {name.release}")
    ort_library.require_package(io.BytesIO(content), name)
    return ort_library.keep(
        content, file=name.file_name, name=name, source=f"npm {package.title}", licence=package.licence
    )


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    """A file of a package, read where it comes: to find it by its name, all is decompressed once more before."""
    file = next((archive.extractfile(member) for member in archive if member.name == name), None)
    if file is None:
        raise MissingError(f"the package has no file {name}")
    return file.read()


def show_library(text: str) -> Contents:
    """What is in an AAR, a JAR, a .so or a release's library; raises device_runner's errors for what is none.

    Of a release whose wheels were fetched for several ABIs, that is the library of each.
    """
    from device_runner.android_host import build as android_host_build

    resolved = ort_library.resolve_all(text)
    libraries = tuple(library.facts for library in resolved)
    unknown = [
        name
        for facts in libraries
        if (facts.abi, facts.system) == ("x86_64", "android")
        for name in android_host_build.unknown_imports(facts.imports)
    ]
    archives = dict.fromkeys(str(library.archive) for library in resolved)
    return Contents(
        archive=", ".join(archives),
        libraries=libraries,
        unknown_imports=tuple(unknown),
        arm_code=tuple(
            read_arm_code(Path(facts.path).read_bytes()) for facts in libraries if facts.abi == core_abis.ARM64
        ),
    )
