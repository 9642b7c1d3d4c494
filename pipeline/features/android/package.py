"""The AAR of a bundle's models for one Android target: compiled classes, models as assets, rules for the app's build.

What an AAR holds and what R8 must keep: docs/facts/release_consumers.md, R.1 and R.3.
"""

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_runner.files import scratch_folder
from device_runner.library import release_of
from device_runner.local import run_group, tail
from pipeline.core.errors import CheckFailed, MissingError, PipelineError
from pipeline.core.files import storage_errors, write_text, write_zip
from pipeline.features.android.facade import asset_path, java_sources
from pipeline.release.app_models import target_of
from pipeline.release.manifest import Manifest, Shipped
from pipeline.release.selection import rows_of

SIGNATURES = Path(__file__).parent / "java"
"""The classes of Android and ONNX Runtime that our sources use, without their bodies."""

JAVA = "8"
"""The Java release of the classes: what every toolchain for Android reads."""

JAVAC_SECONDS = 300
STORE_BYTES = 200_000_000
"""What Google Play lets the base of an app have, compressed; models hardly compress."""

LOWEST_API = 21
"""The lowest API level that the sources need (Context.getNoBackupFilesDir)."""

KEEP_RULES = """\
# ONNX Runtime's native code looks these classes and their members up by name.
-keep class ai.onnxruntime.** { *; }
"""
METADATA = "META-INF/com/android/build/gradle/aar-metadata.properties"
METADATA_LINES = b"aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk=1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidPackage:
    """What goes into the AAR: the files of the sources and what ships; `package` is the Java package and namespace.

    Without `telemetry` the classes switch it off. Without `assets` the models come to the app another way.
    """

    package: str
    sources: Mapping[str, str]
    ships: tuple[Shipped, ...]
    bundle: Path
    target: str
    telemetry: bool = True
    assets: bool = True

    @property
    def models(self) -> tuple[str, ...]:
        """The models by name; a model may ship as several files."""
        return tuple(dict.fromkeys(shipped.model for shipped in self.ships))

    @property
    def min_api_level(self) -> int:
        """The lowest API level of an app that may have it."""
        return max(LOWEST_API, *(shipped.min_api_level or 0 for shipped in self.ships))

    @property
    def release(self) -> str:
        """ONNX Runtime's release, exact or a line; "" where the app brings a library of its own."""
        releases = {
            shipped.ort_release if not shipped.library else release_of(shipped.library) or "" for shipped in self.ships
        }
        reduced = any(shipped.library_kind not in ("", "full") for shipped in self.ships)
        return "" if reduced or len(releases) != 1 else releases.pop()


def android_package(
    bundle: Path, manifest: Manifest, package: str, target: str | None, *, telemetry: bool = True, assets: bool = True
) -> AndroidPackage:
    """The package of a verified bundle's models for a target, the only one for Android where none is named.

    Raises ConfigError for a target that the bundle does not have, CheckFailed for models larger than a store allows,
    MissingError without a Java compiler.
    """
    java_compiler()
    name = target_of(bundle, manifest, ("android",), "Android", target)
    rows = [row for selected in rows_of(manifest.content, name).values() for row in selected]
    ships = tuple(manifest.content.ships[number] for number in dict.fromkeys(row.ships for row in rows))
    size = sum((bundle / file).stat().st_size for file in {shipped.file for shipped in ships})
    if assets and size > STORE_BYTES:
        raise CheckFailed(
            f"the models have {size:,} bytes",
            where=str(bundle),
            why=f"Google Play allows {STORE_BYTES:,} bytes for the base of an app",
            remedy="ship smaller variants (quantized ones) or fewer models, or put them into a pack with --ai-pack",
        )
    sources = java_sources(manifest, name, package, telemetry=telemetry)
    return AndroidPackage(
        package=package, sources=sources, ships=ships, bundle=bundle, target=name, telemetry=telemetry, assets=assets
    )


def write_aar(package: AndroidPackage, path: Path) -> None:
    """Write the AAR. Raises MissingError without a Java compiler."""
    with scratch_folder("ort-mobile-java-") as work:
        jar = work / "classes.jar"
        write_zip(jar, _compiled(package, work))
        members: dict[str, Path | bytes] = {
            "AndroidManifest.xml": _manifest(package).encode(),
            "R.txt": b"",
            "classes.jar": jar,
            "proguard.txt": KEEP_RULES.encode(),
            METADATA: METADATA_LINES,
        }
        if package.assets:
            members |= {f"assets/{asset_path(shipped)}": package.bundle / shipped.file for shipped in package.ships}
        write_zip(path, members)


def write_sources(package: AndroidPackage, path: Path) -> None:
    """Write the JAR of the sources, which IDEs show."""
    folder = package.package.replace(".", "/")
    write_zip(path, {f"{folder}/{name}": text.encode() for name, text in package.sources.items()})


def _manifest(package: AndroidPackage) -> str:
    return f"""\
<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{package.package}">
    <uses-sdk android:minSdkVersion="{package.min_api_level}" />
</manifest>
"""


def _compiled(package: AndroidPackage, work: Path) -> dict[str, Path | bytes]:
    """The package's own classes by their path; what they are compiled against is not among them."""
    folder = work / "sources" / package.package.replace(".", "/")
    classes = work / "classes"
    with storage_errors(work):
        classes.mkdir()
    for name, text in package.sources.items():
        write_text(folder / name, text)
    arguments = ["--release", JAVA, "-Xlint:-options", "-encoding", "UTF-8", "-proc:none", "-implicit:none"]
    files = [str(folder / name) for name in sorted(package.sources)]
    _javac([*arguments, "-d", str(classes), "-sourcepath", str(SIGNATURES), *files], work)
    compiled = classes / package.package.replace(".", "/")
    return {file.relative_to(classes).as_posix(): file for file in sorted(compiled.glob("*.class"))}


def _javac(arguments: Sequence[str], work: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("JAVA_TOOL_OPTIONS", None)
    code = run_group([java_compiler(), *arguments], work, JAVAC_SECONDS, environment)
    if code != 0:
        raise PipelineError(
            "the Java classes could not be compiled",
            where="javac",
            why=tail(work / "stderr") or ("it did not end in time" if code is None else f"exit code {code}"),
            remedy="try another JDK (17 is tested); `ort-mobile --debug` shows more",
        )


def java_compiler() -> str:
    """The path of javac: of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    places: Iterable[str | None] = (
        shutil.which("javac", path=str(Path(home) / "bin")) if home else None,
        shutil.which("javac"),
    )
    for place in places:
        if place:
            return place
    raise MissingError(
        "there is no Java compiler",
        why="javac is neither in JAVA_HOME nor on PATH",
        remedy="install a JDK, 11 or newer (Debian: openjdk-17-jdk-headless)",
    )
