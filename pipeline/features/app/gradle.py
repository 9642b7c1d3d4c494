"""Files of several packages for one place in an app, as Gradle's Android plugin merges them.

Sources: AGP's MergeNativeLibsTask (libraries of one path stop the build; newer releases of AGP take equal ones once,
and an app's own before those of its dependencies), its AssetMerger (of assets of one path one is taken, silently; run
with AGP's own sdk-common 25.3.0), and libziparchive of Android (an entry twice: the package is not opened).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pipeline.core import groups as counting
from pipeline.core.errors import Finding, Severity
from pipeline.features.app.document import NativeLibrary, finding
from pipeline.features.app.members import Member

LIBRARIES = re.compile(
    r"(?:.*/)?(?:jni|jniLibs|libs?)/(?P<place>(?:arm64-v8a|armeabi-v7a|armeabi|x86|x86_64|riscv64)/[^/]+\.so)"
)
"""Where modules have native libraries: in AARs, source folders, APKs."""
ASSETS = "assets/"
SHOWN = 5


class PlacedFile(NamedTuple):
    """A file of a package, and its place in the app: lib/ABI/NAME or assets/NAME."""

    place: str
    member: Member


class Places:
    """Where Gradle puts the native libraries and assets of a package."""

    def __init__(self) -> None:
        self.files: list[PlacedFile] = []

    def add(self, member: Member, libraries: Sequence[NativeLibrary]) -> None:
        """Keep a file that has a place; `libraries` are what it holds: an ONNX Runtime counts wherever it lies."""
        runtime = next((library for library in libraries if library.kind and library.system == "android"), None)
        if match := LIBRARIES.fullmatch(member.path):
            self.files.append(PlacedFile(f"lib/{match['place']}", member))
        elif runtime:
            self.files.append(PlacedFile(f"lib/{runtime.abi}/{runtime.name}", member))
        elif member.name.startswith(ASSETS) and (not member.archive or member.archive.endswith(".aar")):
            self.files.append(PlacedFile(member.name, member))

    def findings(self, releases: Mapping[str, str], whole: bool) -> Iterator[Finding]:
        """What has one place: `releases` are those of ONNX Runtimes by path, and in a `whole` app all is merged."""
        for path, alike in counting.grouped((file.member.path, file) for file in self.files).items():
            if len(alike) > 1:
                yield finding(
                    "same-path",
                    Severity.ERROR,
                    f"{len(alike)} members of one archive have this name",
                    path,
                    "Android's installer refuses such a package, and readers take the first or the last of them",
                    "build the package again: its tools write a name once",
                )
        if whole:
            return
        clashes: list[tuple[Clash, SharedPlace]] = []
        for destination, copies in counting.grouped((file.place, file.member) for file in self.files).items():
            members = {member.path: member for member in copies}
            if len(members) > 1:
                differ = len({(member.size_bytes, member.checksum()) for member in members.values()}) > 1
                packages = tuple(path.removesuffix(destination.removeprefix("lib/")) for path in members)
                clash = Clash(destination.startswith(ASSETS), differ, packages)
                clashes.append((clash, SharedPlace(destination, tuple(members))))
        for clash, places in counting.grouped(clashes).items():
            yield from clash.findings(places, releases)


class SharedPlace(NamedTuple):
    """A place in the app, and the files that are meant for it."""

    place: str
    paths: tuple[str, ...]


class Clash(NamedTuple):
    """What packages have in common: assets or libraries, whether those differ, and where each has them."""

    assets: bool
    differ: bool
    packages: tuple[str, ...]

    def findings(self, places: Sequence[SharedPlace], releases: Mapping[str, str]) -> Iterator[Finding]:
        """One finding for all places of these packages; none for equal assets, of which either is right."""
        if self.assets and not self.differ:
            return
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        versions = {
            releases[path] or "an unknown release" for package in places for path in package.paths if path in releases
        }
        of = f", of {', '.join(sorted(versions))}" if len(versions) > 1 else ""
        what = f"{len(self.packages)} packages bring {', '.join(package.place for package in places[:SHOWN])}{more}{of}"
        where = ", ".join(path for package in places[:SHOWN] for path in package.paths)
        if self.assets:
            yield finding(
                "same-path",
                Severity.ERROR,
                what,
                where,
                "they differ, and Gradle takes one without a word: the code of the other package opens it, too",
                "give it another name in one of them, or a folder of the package's own below assets/",
            )
        elif self.differ:
            yield finding(
                "same-path",
                Severity.ERROR,
                what,
                where,
                "Gradle stops (2 files found with path), and with pickFirsts the first wins for all of them",
                "leave one of them out, of a release that all of them ask for",
            )
        else:
            yield finding(
                "same-path",
                Severity.WARNING,
                what,
                where,
                "they are equal: older releases of Android's Gradle plugin stop (2 files found with path), newer ones "
                "take it once",
                "leave one of them out, or name it in pickFirsts",
            )
