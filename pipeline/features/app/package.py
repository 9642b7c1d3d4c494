"""A package as rules look at it: its kind, and its libraries by the process that they may share."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from device_runner import library as ort_library
from pipeline.core import groups as counting
from pipeline.features.app.document import NativeLibrary
from pipeline.features.app.inspection import Inspector

WHOLE = frozenset({"APK", "APK set", "AAB", "IPA"})
"""Packages to which nothing is added before they run."""

BY_NAME = {".apk": "APK", ".aab": "AAB", ".aar": "AAR", ".ipa": "IPA"}
"""What a package is that lacks the files of its kind, such as a manifest."""


def kind_of(path: Path, names: set[str]) -> str:
    """What a package is, by the files that only one kind has, else by its name; "" for a plain folder or ZIP."""
    heads = {name.partition("/")[0] for name in names}
    rows = (
        ("AAB", "BundleConfig.pb" in names),
        ("APK", "AndroidManifest.xml" in names and ("classes.dex" in names or "resources.arsc" in names)),
        ("AAR", "AndroidManifest.xml" in names and ("classes.jar" in names or "jni" in heads)),
        ("IPA", "Payload" in heads),
        ("xcframework", "Info.plist" in names and path.name.endswith(".xcframework")),
        ("xcframework", len(heads) == 1 and all(head.endswith(".xcframework") for head in heads)),
        ("wheel", any(head.endswith(".dist-info") for head in heads)),
        ("APK set", "toc.pb" in names or ("manifest.json" in names and any(head.endswith(".apk") for head in heads))),
    )
    return next((kind for kind, matches in rows if matches), BY_NAME.get(path.suffix.lower(), ""))


class Package:
    """What rules look at: the libraries by the process that they may share, and who is served by which ONNX Runtime."""

    def __init__(self, kind: str, inspector: Inspector) -> None:
        self.kind = kind
        self.inspector = inspector
        self.libraries: Sequence[NativeLibrary] = inspector.libraries
        self.scopes: Mapping[tuple[str, str], list[NativeLibrary]] = counting.grouped(
            (library.scope, library) for library in self.libraries
        )
        self.served = [(library, self._runtime(library)) for library in self.libraries if library.uses]

    def runtimes(self, scope: tuple[str, str]) -> list[NativeLibrary]:
        """Different builds of ONNX Runtime in one scope: copies of a file count once."""
        return list(
            {(library.release, library.size_bytes): library for library in self.scopes[scope] if library.kind}.values()
        )

    def names(self, abi: str) -> dict[str, str]:
        """Paths of libraries for an ABI of Android, and for the DSP beside it, by file name."""
        rows = (*self.scopes.get(("android", abi), ()), *self.scopes.get(("dsp", "hexagon"), ()))
        return {row.name: row.path for row in rows}

    def _runtime(self, library: NativeLibrary) -> NativeLibrary | None:
        """The first library that has OrtGetApiBase in the linker's order: what it needs, then what those need."""
        libraries = {
            name: candidate
            for candidate in reversed(self.scopes[library.scope])
            for name in (candidate.name, candidate.soname)
            if name
        }
        waiting, seen = [*library.needed, *([ort_library.LIBRARY] if library.opens else [])], set()
        while waiting:
            name = waiting.pop(0)
            needed = libraries.get(name)
            if needed is None or name in seen or needed is library:
                continue
            if needed.exports:
                return needed
            seen.add(name)
            waiting += needed.needed
        return None
