"""A build of ONNX Runtime as an AAR of its own: Java classes, JNI library and library, of one build for each ABI.

The JNI library needs symbols that carry the release of the very library that it was built with, and Gradle chooses
between two AARs with the same libraries by their capabilities alone (docs/facts/release_consumers.md, R.2, R.6).
"""

import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_runner.files import ZIP_ERRORS
from device_runner.library import LIBRARY, Library, find_archive, is_archive, resolve, small_pages
from device_runner.probe.elf import NotElf, parse_header
from device_runner.reading import check_unpacked
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.files import write_zip
from pipeline.core.releases import line_of
from pipeline.features.android.package import KEEP_RULES, METADATA, METADATA_LINES

JNI_LIBRARY = "libonnxruntime4j_jni.so"
CLASSES = "classes.jar"
ANDROID_MANIFEST = "AndroidManifest.xml"
FOLDER = re.compile(r"jni/([\w-]+)/[\w.-]+\.so")
RELEASE_SYMBOL = re.compile(rb"\0VERS_(\d+\.\d+\.\d+)\0")
MOST_BYTES = 64 << 20
"""No member of such an AAR beside the library itself is larger (1.29.0: 141 kB)."""

AAR_REMEDY = (
    "give the AAR that the build made (ort-mobile build run, or ONNX Runtime's tools/ci_build/github/android), or a "
    "release of which the published AAR is available"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimePackage:
    """A runtime that was checked; `warnings` say what keeps it from some phones."""

    archive: Path
    release: str
    libraries: tuple[Library, ...]
    warnings: tuple[str, ...]

    @property
    def abis(self) -> tuple[str, ...]:
        """The ABIs that it has, sorted."""
        return tuple(library.abi for library in self.libraries)


def runtime_package(text: str, wanted: Sequence[str], needed: Collection[str] = ()) -> RuntimePackage:
    """The AAR that a path or a release's name stands for, as far as it can replace the published one.

    `wanted` are the releases, exact or lines, that models were released for, `needed` the target's ABIs. Raises
    ConfigError for what is no such AAR or lacks a part for an ABI, CheckFailed for parts or models of different
    releases, and as `find_archive`.
    """
    archive = find_archive(text)
    members = _members(archive)
    abis = sorted({match[1] for name in members if (match := FOLDER.fullmatch(name))})
    if not abis or CLASSES not in members or ANDROID_MANIFEST not in members:
        lacks = [name for name in (CLASSES, ANDROID_MANIFEST) if name not in members]
        raise _no_runtime(archive, f"it has no {', no '.join(lacks) or 'library for any ABI'}")
    for abi in abis:
        for name in (LIBRARY, JNI_LIBRARY):
            if f"jni/{abi}/{name}" not in members:
                raise _no_runtime(archive, f"it has no {name} for {abi}")
    if missing := sorted(set(needed) - set(abis)):
        raise _no_runtime(archive, f"it has nothing for {', '.join(missing)}, for which the models were released")
    libraries = tuple(resolve(text, abi) for abi in abis)
    release = _one_release(archive, libraries)
    if mixed := [row for row in wanted if not _fits(release, row)]:
        raise CheckFailed(
            f"the runtime is ONNX Runtime {release}, and models were released for {', '.join(sorted(set(mixed)))}",
            where=str(archive),
            why="the session options and the outputs of a bundle are those of the release that it was made for",
            remedy="make the bundle for this release (`library` or `ort_release` of the target), or build that one",
        )
    return RuntimePackage(
        archive=archive, release=release, libraries=libraries, warnings=tuple(_warnings(archive, libraries))
    )


def _members(archive: Path) -> frozenset[str]:
    if not is_archive(archive):
        raise _no_runtime(archive, f"it is no AAR; {LIBRARY} alone lacks the Java classes and {JNI_LIBRARY}")
    try:
        with zipfile.ZipFile(archive) as opened:
            return frozenset(opened.namelist())
    except ZIP_ERRORS as error:
        raise _no_runtime(archive, str(error)) from error


def _no_runtime(archive: Path, why: str) -> ConfigError:
    return ConfigError("this cannot replace the published runtime", where=str(archive), why=why, remedy=AAR_REMEDY)


def _one_release(archive: Path, libraries: Sequence[Library]) -> str:
    """The release of all libraries and of the JNI libraries beside them."""
    releases: dict[str, str] = {}
    for library in libraries:
        facts = library.android()
        releases[f"jni/{library.abi}/{LIBRARY}"] = facts.release
        releases[f"jni/{library.abi}/{JNI_LIBRARY}"] = _jni_release(archive, library.abi)
    if len(set(releases.values())) == 1 and (release := next(iter(releases.values()))):
        return release
    listed = ", ".join(f"{name} {release or 'of unknown release'}" for name, release in sorted(releases.items()))
    raise CheckFailed(
        "the parts of this runtime are not of one build",
        where=str(archive),
        why=f"{listed}; the JNI library loads only with the library of its own release",
        remedy=AAR_REMEDY,
    )


def _jni_release(archive: Path, abi: str) -> str:
    """The release whose symbols the JNI library needs, "" where it does not tell."""
    content = _content(archive, f"jni/{abi}/{JNI_LIBRARY}")
    try:
        built_for = parse_header(content).abi
    except NotElf as error:
        raise _no_runtime(archive, f"jni/{abi}/{JNI_LIBRARY}: {error}") from error
    if built_for != abi:
        raise _no_runtime(archive, f"jni/{abi}/{JNI_LIBRARY} is for {built_for}")
    match = RELEASE_SYMBOL.search(content)
    return match[1].decode("ascii") if match else ""


def _content(archive: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(archive) as opened:
            check_unpacked(opened.getinfo(member), MOST_BYTES)
            return opened.read(member)
    except ZIP_ERRORS as error:
        raise _no_runtime(archive, f"{member}: {error}") from error


def _fits(release: str, wanted: str) -> bool:
    """Whether a release is of the wanted line, and no older patch of it."""
    patch = [int(text.split(".")[2]) if text.count(".") == 2 else 0 for text in (release, wanted)]
    return line_of(release) == line_of(wanted) and patch[0] >= patch[1]


def _warnings(archive: Path, libraries: Sequence[Library]) -> Iterator[str]:
    if small := small_pages(archive):
        yield f"{', '.join(small)} cannot be loaded on phones with 16 KB pages: segments are aligned to less"
    if not {library.abi for library in libraries} & {"arm64-v8a", "armeabi-v7a"}:
        yield f"there is no library for phones in it: it has {', '.join(library.abi for library in libraries)}"


def write_runtime(runtime: RuntimePackage, path: Path) -> None:
    """Write the AAR: what an app needs of the given one, with the rule that R8 needs."""
    present = _members(runtime.archive)
    rules = _content(runtime.archive, "proguard.txt").rstrip() + b"\n" if "proguard.txt" in present else b""
    members: dict[str, Path | bytes] = {
        ANDROID_MANIFEST: _content(runtime.archive, ANDROID_MANIFEST),
        CLASSES: _content(runtime.archive, CLASSES),
        "R.txt": b"",
        "proguard.txt": rules.lstrip() + KEEP_RULES.encode(),
        METADATA: _content(runtime.archive, METADATA) if METADATA in present else METADATA_LINES,
    }
    for library in runtime.libraries:
        members[f"jni/{library.abi}/{LIBRARY}"] = library.path
        members[f"jni/{library.abi}/{JNI_LIBRARY}"] = _content(runtime.archive, f"jni/{library.abi}/{JNI_LIBRARY}")
    write_zip(path, members)
