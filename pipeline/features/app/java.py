"""The Java classes of ONNX Runtime in a package, beside the native libraries that have their functions.

A class that two modules have stops Gradle ("Duplicate class", AGP's CheckDuplicateClasses).
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from device_runner.probe import elf as elf_file
from pipeline.core import groups as counting
from pipeline.core.errors import Finding, Severity
from pipeline.features.app.document import PHONE_ABIS, NativeLibrary, finding
from pipeline.features.app.members import Member
from pipeline.library import dex
from pipeline.library import java_class as library_java_class
from pipeline.library import jni as library_jni
from pipeline.library.java_class import NotJava

JNI_LIBRARIES: Final = {
    library_jni.PACKAGE: "libonnxruntime4j_jni.so",
    f"{library_jni.PACKAGE}/genai": "libonnxruntime-genai-jni.so",
}
"""By Java package: the library that its classes load when they are used first."""
DEX = re.compile(r"(^|/)(?<!assets/)classes\d*\.dex$")
"""Those that Android loads; what an app has under other names may be encrypted."""
ONE_RELEASE = "take classes and native libraries of one release, out of one AAR, and no second one beside it"
KEEP = "add `-keep class ai.onnxruntime.** { *; }` to the rules of R8 (proguardFiles); the published AAR has none"


class PackagedClass(NamedTuple):
    """A Java class and where it is: the JAR or "" for a class file, the dex for what was compiled for Android."""

    java_class: library_java_class.JavaClass
    place: str


class JavaParts:
    """What a package has of Java: class files, classes of dex files, and what native libraries have for them.

    `seen` says whether there was any class at all: a folder of native libraries gets its classes from elsewhere.
    """

    def __init__(self) -> None:
        self.compiled: list[PackagedClass] = []
        self.dexed: list[PackagedClass] = []
        self.libraries: dict[str, library_jni.JniLibrary] = {}
        self.seen = False
        self._budget = library_java_class.Budget()

    def takes(self, member: Member) -> bool:
        """Whether a file has Java classes; others than ONNX Runtime's are not read."""
        is_class = member.name.endswith(".class")
        self.seen = self.seen or is_class
        ours = is_class and f"{library_jni.PACKAGE}/" in member.name and not member.name.startswith("META-INF/")
        return ours or bool(DEX.search(member.name))

    def add_library(self, path: str, content: elf_file.Buffer, elf: elf_file.Elf) -> None:
        """Keep what a native library has for Java."""
        if library := library_jni.read_jni(content, {name for name, section in elf.symbols if section}):
            self.libraries[path] = library

    def read(self, member: Member) -> None:
        """Keep the classes of such a file; raises NotJava."""
        self.seen = True
        if member.name.endswith(".class"):
            if member.size_bytes > library_java_class.CLASS_BYTES:
                raise NotJava(f"a class file of {member.size_bytes:,} bytes")
            with member.open() as file:
                self.compiled.append(
                    PackagedClass(library_java_class.read_class(file.read(), self._budget), member.archive)
                )
            return
        with member.content() as content:
            rows = [
                PackagedClass(java_class, member.path)
                for java_class in dex.read_dex(content, library_jni.PACKAGE, self._budget)
            ]
        self.dexed += rows

    def findings(
        self, scopes: Mapping[tuple[str, str], Sequence[NativeLibrary]], kind: str, whole: bool
    ) -> Iterator[Finding]:
        """What does not fit: `scopes` are the libraries of each process, `whole` is a package that runs as it is."""
        doubled = list(self._doubled())
        yield from doubled
        for classes in (() if doubled else self.compiled, self.dexed):
            yield from self._misfits(classes, scopes)
        for package, library in JNI_LIBRARIES.items():
            classes = [
                packaged for packaged in (*self.compiled, *self.dexed) if _is_native(packaged.java_class, package)
            ]
            if classes:
                yield from self._without_library(package, library, classes[0].place, scopes, whole)
            elif self.seen or kind == "AAR":
                yield from self._without_classes(package)

    def _doubled(self) -> Iterator[Finding]:
        places = counting.grouped(
            (packaged.java_class.name, packaged.place) for packaged in self.compiled if packaged.place
        )
        modules = counting.grouped(
            (tuple(sorted(set(paths))), name) for name, paths in places.items() if len(set(paths)) > 1
        )
        for archives, names in modules.items():
            yield finding(
                "duplicate-class",
                Severity.ERROR,
                f"{len(archives)} modules have the same {len(names)} Java classes",
                ", ".join(archives),
                f"Gradle stops: Duplicate class {min(names).replace('/', '.')}",
                "leave one of them out; an app takes onnxruntime-android: the JAR named onnxruntime is for desktops",
            )

    def _misfits(
        self, classes: Sequence[PackagedClass], scopes: Mapping[tuple[str, str], Sequence[NativeLibrary]]
    ) -> Iterator[Finding]:
        """One finding for what is alike in all ABIs."""
        misfits: list[tuple[library_jni.Misfit, str]] = []
        for rows in scopes.values():
            libraries = {row.path: self.libraries[row.path] for row in rows if row.path in self.libraries}
            if lacking := library_jni.misfit([packaged.java_class for packaged in classes], libraries.values()):
                misfits.append((lacking, max(libraries, key=lambda path: len(libraries[path].functions))))
        shrunk = classes is self.dexed
        for lacking, paths in counting.grouped(misfits).items():
            if shrunk and not lacking.unlinked:
                what = "R8 took or renamed Java classes that native code looks up by name"
                yield finding("shrunk-classes", Severity.ERROR, what, ", ".join(paths), lacking.text, KEEP)
            else:
                what = "Java classes and native library of ONNX Runtime are not of one release"
                yield finding("java-classes", Severity.ERROR, what, ", ".join(paths), lacking.text, ONE_RELEASE)

    def _without_library(
        self,
        package: str,
        library: str,
        where: str,
        scopes: Mapping[tuple[str, str], Sequence[NativeLibrary]],
        whole: bool,
    ) -> Iterator[Finding]:
        """Classes without their functions, in the ABIs that have an ONNX Runtime; where none has one, in all."""
        android = {abi: rows for (system, abi), rows in scopes.items() if system == "android"}
        with_runtime = {abi: rows for abi, rows in android.items() if any(row.kind for row in rows)}
        judged = with_runtime or android
        linked = [abi for abi, rows in judged.items() if package in self._packages(rows)]
        desktop = [
            rows for (system, _), rows in scopes.items() if system == "linux" and package in self._packages(rows)
        ]
        lacking = sorted(judged.keys() - set(linked))
        if linked and lacking:
            yield finding(
                "abi-gap",
                Severity.ERROR if whole and {*lacking} & {*PHONE_ABIS} else Severity.WARNING,
                f"devices that take the libraries for {', '.join(lacking)} get no {library}",
                where or "class files",
                f"it is there for {', '.join(sorted(linked))} only: elsewhere the first use of "
                f"{package.replace('/', '.')} throws UnsatisfiedLinkError",
                f"add it, or leave {', '.join(lacking)} out of the app (ndk {{ abiFilters }})",
            )
        elif lacking or not (judged or desktop):
            yield finding(
                "java-classes",
                Severity.ERROR if lacking and (whole or with_runtime) else Severity.WARNING,
                f"the Java classes of {package.replace('/', '.')} are here without {library}",
                where or "class files",
                "their first use throws UnsatisfiedLinkError: no library has their functions",
                f"ship {library} of the same build: its AAR has the classes and all native libraries",
            )

    def _without_classes(self, package: str) -> Iterator[Finding]:
        paths = [
            path for path, library in self.libraries.items() if library_jni.function_of(package) in library.packages
        ]
        if paths:
            name = package.replace("/", ".")
            yield finding(
                "java-classes",
                Severity.WARNING,
                f"the Java classes of {name} are not in this package",
                ", ".join(paths),
                "the native methods of this library's classes are missing or have other names, so "
                "that no Java code can call it",
                "add the classes of the same release, keep them from R8 (-keep class ai.onnxruntime.** { *; }), or "
                "leave the library out where native code alone calls ONNX Runtime",
            )

    def _packages(self, rows: Collection[NativeLibrary]) -> set[str]:
        """The Java packages, of those of the table, that libraries have functions for."""
        functions = {name for row in rows if row.path in self.libraries for name in self.libraries[row.path].packages}
        return {package for package in JNI_LIBRARIES if library_jni.function_of(package) in functions}


def _is_native(java_class: library_java_class.JavaClass, package: str) -> bool:
    return java_class.package == package and bool(java_class.natives)
