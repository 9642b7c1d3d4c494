"""A build of ONNX Runtime for apps: an AAR with Java classes, JNI library and library of one build for each ABI.

The JNI library needs symbols with the release of the very library that it was built with.
"""

import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from device_runner import library as ort_library
from device_runner import untrusted_files
from device_runner.probe import elf as elf_file
from device_runner.probe.elf import NotElf
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.library import java_class as library_java_class
from pipeline.library import jni as library_jni
from pipeline.library.java_class import NotJava

KEEP_RULES = """\
# ONNX Runtime's native code looks these classes and their members up by name.
-keep class ai.onnxruntime.** { *; }
"""
METADATA = "META-INF/com/android/build/gradle/aar-metadata.properties"
METADATA_LINES = b"aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk=1\n"
JNI_LIBRARY = "libonnxruntime4j_jni.so"
CLASSES = "classes.jar"
MANIFEST = "AndroidManifest.xml"
TEMPLATES = "pipeline.features.android"
FOLDER = re.compile(r"jni/([\w-]+)/[\w.-]+\.so")
RELEASE_SYMBOL = re.compile(rb"\0VERS_(\d+\.\d+\.\d+)\0")
MOST_BYTES = 64 << 20
"""No member of such an AAR beside the library itself is larger (1.29.0: 141 kB)."""

AAR_REMEDY = (
    "give the AAR that the build made (ort-mobile build run, or ONNX Runtime's tools/ci_build/github/android), or a "
    "release of which the published AAR is available"
)


def runtime_libraries(
    text: str, releases: Sequence[str], needed: Collection[str] = ()
) -> tuple[ort_library.Library, ...]:
    """The libraries, in the order of their ABIs, of the AAR that a path or a release's name stands for.

    They can replace the published runtime. `releases` are those, exact or lines, that models were released for,
    `needed` the target's ABIs. Raises ConfigError for what is no such AAR or lacks a part for an ABI, CheckFailed for
    parts or models of different releases, and as `find_archive`.
    """
    archive = ort_library.find_archive(text)
    members = _members(archive)
    abis = sorted({match[1] for name in members if (match := FOLDER.fullmatch(name))})
    if not abis or CLASSES not in members or MANIFEST not in members:
        lacks = [name for name in (CLASSES, MANIFEST) if name not in members]
        raise _no_runtime(archive, f"it has no {', no '.join(lacks) or 'library for any ABI'}")
    for abi in abis:
        for name in (ort_library.LIBRARY, JNI_LIBRARY):
            if f"jni/{abi}/{name}" not in members:
                raise _no_runtime(archive, f"it has no {name} for {abi}")
    if missing := sorted(set(needed) - set(abis)):
        raise _no_runtime(archive, f"it has nothing for {', '.join(missing)}, for which the models were released")
    libraries = tuple(ort_library.resolve(text, abi) for abi in abis)
    release = _one_release(archive, libraries)
    _check_classes(archive, libraries)

    def patch(text: str) -> int:
        return int(text.split(".")[2]) if text.count(".") == 2 else 0

    # Models may have been released for the same line, and no newer patch of it.
    if mixed := [
        of_models
        for of_models in releases
        if ort_releases.line_of(release) != ort_releases.line_of(of_models) or patch(release) < patch(of_models)
    ]:
        raise CheckFailed(
            f"the runtime is ONNX Runtime {release}, and models were released for {', '.join(sorted(set(mixed)))}",
            where=str(archive),
            why="the session options and the outputs of a bundle are those of the release that it was made for",
            remedy="make the bundle for this release (`library` or `ort_release` of the target), or build that one",
        )
    return libraries


def runtime_warnings(libraries: Sequence[ort_library.Library]) -> Iterator[str]:
    """What keeps the AAR that has these libraries from some phones; raises as `small_pages`."""
    if small := ort_library.small_pages(libraries[0].archive):
        yield f"{', '.join(small)} cannot be loaded on phones with 16 KB pages: segments are aligned to less"
    abis = [library.abi for library in libraries]
    if not {*abis} & {"arm64-v8a", "armeabi-v7a"}:
        yield f"there is no library for phones in it: it has {', '.join(abis)}"


def _members(archive: Path) -> frozenset[str]:
    if not ort_library.is_archive(archive):
        raise _no_runtime(
            archive, f"it is no AAR; {ort_library.LIBRARY} alone lacks the Java classes and {JNI_LIBRARY}"
        )
    try:
        with zipfile.ZipFile(archive) as opened:
            return frozenset(opened.namelist())
    except untrusted_files.ZIP_ERRORS as error:
        raise _no_runtime(archive, str(error)) from error


def _no_runtime(archive: Path, why: str) -> ConfigError:
    return ConfigError("this cannot replace the published runtime", where=str(archive), why=why, remedy=AAR_REMEDY)


def _one_release(archive: Path, libraries: Sequence[ort_library.Library]) -> str:
    """The release of all libraries and of the JNI libraries beside them, which need symbols with that release."""
    parts: dict[str, str] = {}
    for library in libraries:
        jni = f"jni/{library.abi}/{JNI_LIBRARY}"
        parts[f"jni/{library.abi}/{ort_library.LIBRARY}"] = library.android().release
        content = _content(archive, jni)
        try:
            built_for = elf_file.parse_header(content).abi
        except NotElf as error:
            raise _no_runtime(archive, f"{jni}: {error}") from error
        if built_for != library.abi:
            raise _no_runtime(archive, f"{jni} is for {built_for}")
        match = RELEASE_SYMBOL.search(content)
        parts[jni] = match[1].decode("ascii") if match else ""
    release = next(iter(parts.values()))
    if len(set(parts.values())) > 1 or not release:
        listed = ", ".join(f"{name} {part or 'of unknown release'}" for name, part in sorted(parts.items()))
        raise CheckFailed(
            "the parts of this runtime are not of one build",
            where=str(archive),
            why=f"{listed}; the JNI library loads only with the library of its own release",
            remedy=AAR_REMEDY,
        )
    return release


def _check_classes(archive: Path, libraries: Sequence[ort_library.Library]) -> None:
    """Raise for Java classes that the JNI libraries do not belong to: an app that opens a model with them crashes."""
    try:
        classes = list(library_java_class.read_jar(_content(archive, CLASSES), library_jni.PACKAGE))
    except NotJava as error:
        raise _no_runtime(archive, f"{CLASSES}: {error}") from error
    if not any(java_class.natives for java_class in classes if java_class.package == library_jni.PACKAGE):
        raise _no_runtime(archive, f"its {CLASSES} has no classes of ONNX Runtime")
    for library in libraries:
        member = f"jni/{library.abi}/{JNI_LIBRARY}"
        content = _content(archive, member)
        try:
            jni = library_jni.read_jni(
                content, {name for name, section in elf_file.parse_elf(content).symbols if section}
            )
        except NotElf as error:
            raise _no_runtime(archive, f"{member}: {error}") from error
        if not jni:
            raise _no_runtime(archive, f"{member} has no function for its Java classes")
        if lacking := library_jni.misfit(classes, [jni]):
            raise CheckFailed(
                "the parts of this runtime are not of one build",
                where=str(archive),
                why=f"{CLASSES} does not belong to {member}: {lacking.text}",
                remedy=AAR_REMEDY,
            )


def _content(archive: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(archive) as opened:
            untrusted_files.check_unpacked(opened.getinfo(member), MOST_BYTES)
            return opened.read(member)
    except untrusted_files.ZIP_ERRORS as error:
        raise _no_runtime(archive, f"{member}: {error}") from error


def write_runtime(libraries: Sequence[ort_library.Library], path: Path) -> None:
    """Write the AAR: what an app needs of the one that has these libraries, with the rule that R8 needs."""
    archive = libraries[0].archive
    present = _members(archive)
    rules = _content(archive, "proguard.txt").rstrip() + b"\n" if "proguard.txt" in present else b""
    members: dict[str, Path | bytes] = {
        MANIFEST: _content(archive, MANIFEST),
        CLASSES: _content(archive, CLASSES),
        "R.txt": b"",
        "proguard.txt": rules.lstrip() + KEEP_RULES.encode(),
        METADATA: _content(archive, METADATA) if METADATA in present else METADATA_LINES,
    }
    for library in libraries:
        members[f"jni/{library.abi}/{ort_library.LIBRARY}"] = library.path
        members[f"jni/{library.abi}/{JNI_LIBRARY}"] = _content(archive, f"jni/{library.abi}/{JNI_LIBRARY}")
    storage.write_zip(path, members)
