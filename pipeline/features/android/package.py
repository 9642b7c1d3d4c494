"""The AAR of a bundle's models for one Android target: compiled classes, models as assets, rules for the app's build.

What an AAR holds and what R8 must keep: docs/facts/release_consumers.md, R.1 and R.3. A Play AI pack may have the
models in its place, each device getting those of its class: what Google Play and the Android Gradle plugin read of it
is in R.7.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from device_runner.files import scratch_folder, staging_folder, take_place
from device_runner.library import release_of
from device_runner.local import run_group, tail
from pipeline.core.errors import CheckFailed, ConfigError, MissingError, PipelineError
from pipeline.core.files import copy_file, make_folder, storage_errors, write_text, write_zip
from pipeline.features.android.facade import ASSETS, asset_path, java_sources
from pipeline.release.app_code import rows_of, target_of
from pipeline.release.manifest import CUSTOM_OPS, Content, Manifest, SelectionRow, Shipped, ShippedContext
from pipeline.release.shipped import SOC_MANUFACTURER

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
    contexts: tuple[ShippedContext, ...] = ()
    telemetry: bool = True
    assets: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the bundle that devices open, each once."""
        by_chip = (file for context in self.contexts for file in (context.file, context.binary))
        return tuple(dict.fromkeys((*(file for shipped in self.ships for file in shipped.files), *by_chip)))

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
    contexts = tuple(context for context in manifest.content.contexts if context.target == name)
    by_chip = (file for context in contexts for file in (context.file, context.binary))
    files = {*(file for shipped in ships for file in shipped.files), *by_chip}
    size = sum((bundle / file).stat().st_size for file in files)
    if assets and size > STORE_BYTES:
        raise CheckFailed(
            f"the models have {size:,} bytes",
            where=str(bundle),
            why=f"Google Play allows {STORE_BYTES:,} bytes for the base of an app",
            remedy="ship smaller variants (quantized ones) or fewer models, or put them into a pack with --ai-pack",
        )
    sources = java_sources(manifest, name, package, telemetry=telemetry)
    return AndroidPackage(
        package=package, sources=sources, ships=ships, bundle=bundle, target=name, contexts=contexts,
        telemetry=telemetry, assets=assets,
    )  # fmt: skip


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
            members |= {f"assets/{asset_path(file)}": package.bundle / file for file in package.files}
        folder = package.bundle / CUSTOM_OPS / "android"
        members |= {f"jni/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.glob("*/*"))}
        write_zip(path, members)


def write_sources(package: AndroidPackage, path: Path) -> None:
    """Write the JAR of the sources, which IDEs show."""
    folder = package.package.replace(".", "/")
    write_zip(path, {f"{folder}/{name}": text.encode() for name, text in package.sources.items()})


NPU_LIBRARY = """\
    <application>
        <!-- The driver of a Snapdragon's NPU; without this line Android hides it from the app. -->
        <uses-native-library android:name="libcdsprpc.so" android:required="false" />
    </application>
"""


def _manifest(package: AndroidPackage) -> str:
    return f"""\
<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="{package.package}">
    <uses-sdk android:minSdkVersion="{package.min_api_level}" />
{NPU_LIBRARY if package.contexts else ""}</manifest>
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


QUICK_JVM = ("-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC")
"""A compiler of a few classes ends before the JVM's second compiler pays: two thirds of the processor time."""


def _javac(arguments: Sequence[str], work: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("JAVA_TOOL_OPTIONS", None)
    code = run_group([java_compiler(), *QUICK_JVM, *arguments], work, JAVAC_SECONDS, environment)
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


PACK_BYTES = 1_500_000_000
"""What Google Play lets one device download of one AI pack; models hardly compress."""
ALL_BYTES = 4_000_000_000
"""What Google Play allows for all packs of an app together; here with what every group of devices gets."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
CHIP_API_LEVEL = 31
"""From here on Android names the chip as Google Play does."""
MOST_SELECTORS = 5
"""Of one group of devices."""
OTHER = "other"
"""The group of the devices that no other group has."""

BUILD_FILE = "build.gradle.kts"
TARGETING_FILE = "device_targeting_config.xml"
MARK = "// Written by ort-mobile; the folder is replaced when it is written again."
BUILD = """\
{mark}
plugins {{
    id("com.android.ai-pack")
}}

aiPack {{
    packName = "{name}"
    dynamicDelivery {{
        deliveryType = "install-time"
    }}
}}
"""

HOW = """\
# AI pack {name}

Models of the bundle {bundle}, for the classes of `{package}`. Needs the Android Gradle plugin 8.10 or newer.

settings.gradle.kts:

```kotlin
include(":{name}")
```

build.gradle.kts of the app:

```kotlin
android {{
    assetPacks += ":{name}"
{targeting}}}
```
{property}
Delivery is at install time: `open(context)` finds the models among the assets. With `fast-follow` or `on-demand` they
are files: `open(new File(packLocation.assetsPath(), …))` with the path that the class names as its asset.

Limits of Google Play: {pack:,} bytes of one pack on a device, {all:,} bytes of all packs of an app. This pack: {sizes}.
"""
TARGETING = """\
    bundle {{
        deviceTargetingConfig = file("../{name}/{file}")
        deviceGroup {{
            enableSplit = true
            defaultGroup = "{other}"
        }}
    }}
"""
PROPERTY = """
gradle.properties:

```
android.experimental.enableDeviceTargetingConfigApi=true
```

Which devices get what is in `{file}`. Groups are by chip, of devices with API level {level} or newer; rows of the
bundle's table for older devices, and for an ABI or an API level, are decided on the device among what it got.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Devices by their chips (manufacturer and model; () for all others) and the files of the bundle that they get."""

    name: str
    chips: tuple[tuple[str, str], ...]
    files: tuple[str, ...]


AiPack = tuple[tuple[DeviceGroup, ...], Mapping[str, str]]
"""The groups of a pack that was checked, the others last, and the texts beside the models."""


def ai_pack(folder: Path, bundle: Path, content: Content, target: str, package: str) -> AiPack:
    """The pack of a target's models, called as the folder that it will be in; `package` is that of the Java classes.

    Raises ConfigError for a name that Gradle refuses and a folder with anything else in it, CheckFailed for models
    larger than a store allows.
    """
    name = pack_name(folder)
    groups = device_groups(content, target)
    sizes = {group.name: sum((bundle / file).stat().st_size for file in group.files) for group in groups}
    _refuse_large(sizes, bundle)
    return groups, _texts(name, content.name, package, groups, sizes)


def pack_name(folder: Path) -> str:
    """The name of the pack in a folder; ConfigError for one that Gradle refuses, and a folder with anything else."""
    name = folder.absolute().name
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name for an AI pack",
            where="--ai-pack",
            why="it begins with a letter, then letters, digits and `_` are allowed; the folder's name is the pack's",
            remedy="write it as in models_pack",
        )
    _refuse_foreign(folder)
    return name


def device_groups(content: Content, target: str) -> tuple[DeviceGroup, ...]:
    """Groups by chip, those that get the same together; the last one has what all other devices may open."""
    tables = rows_of(content, target).values()
    contexts = [context for context in content.contexts if context.target == target]
    chips = sorted(
        {chip for rows in tables for row in rows if (chip := _chip(row))}
        | {(SOC_MANUFACTURER, context.chip) for context in contexts}
    )
    others = _files(content, [row for rows in tables for row in rows if not _chip(row)])
    by_files: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for chip in chips:
        rows_here = [row for rows in tables for row in rows if _chip(row) == chip or not row.soc]
        own_npu = [context for context in contexts if (SOC_MANUFACTURER, context.chip) == chip]
        by_chip = (name for row in own_npu for name in (row.file, row.binary))
        files = tuple(dict.fromkeys((*_files(content, rows_here), *by_chip)))
        if files != others:
            by_files.setdefault(files, []).append(chip)
    groups = [
        DeviceGroup(name=_group_name(some), chips=some, files=files)
        for files, alike in by_files.items()
        for some in (tuple(alike[first : first + MOST_SELECTORS]) for first in range(0, len(alike), MOST_SELECTORS))
    ]
    return (*groups, DeviceGroup(name=OTHER, chips=(), files=others))


def _chip(row: SelectionRow) -> tuple[str, str] | None:
    """Manufacturer and model, where Google Play knows them: a board's name, of older devices, has no blank."""
    maker, _, model = row.soc.partition(" ")
    return (maker, model) if model and row.min_api_level >= CHIP_API_LEVEL else None


def _files(content: Content, rows: Sequence[SelectionRow]) -> tuple[str, ...]:
    return tuple(sorted({file for row in rows for file in content.ships[row.ships].files}))


def _group_name(chips: Sequence[tuple[str, str]]) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", "_".join(chips[0]).lower()).strip("_")
    return plain if NAME.fullmatch(plain) and plain != OTHER else f"chip_{plain}"


def _refuse_large(sizes: Mapping[str, int], bundle: Path) -> None:
    name, largest = max(sizes.items(), key=lambda row: row[1])
    for size, most, what in (
        (largest, PACK_BYTES, f"the models of devices in the group {name} have"),
        (sum(sizes.values()), ALL_BYTES, "the models of all groups of devices together have"),
    ):
        if size > most:
            raise CheckFailed(
                f"{what} {size:,} bytes",
                where=str(bundle),
                why=f"Google Play allows {most:,} bytes",
                remedy="ship smaller variants (quantized ones), fewer models, or let the app download the bundle",
            )


def _texts(
    name: str, bundle: str, package: str, groups: Sequence[DeviceGroup], sizes: Mapping[str, int]
) -> dict[str, str]:
    targeted = len(groups) > 1
    listed = ", ".join(
        f"{size:,} bytes for {group}" if targeted else f"{size:,} bytes" for group, size in sizes.items()
    )
    how = HOW.format(
        name=name,
        bundle=re.sub(r"[^\w .-]", "_", bundle),
        package=package,
        targeting=TARGETING.format(name=name, file=TARGETING_FILE, other=OTHER) if targeted else "",
        property=PROPERTY.format(file=TARGETING_FILE, level=CHIP_API_LEVEL) if targeted else "",
        pack=PACK_BYTES,
        all=ALL_BYTES,
        sizes=listed,
    )
    texts = {BUILD_FILE: BUILD.format(mark=MARK, name=name), "README.md": how}
    return texts | ({TARGETING_FILE: "".join(_targeting(groups))} if targeted else {})


def _targeting(groups: Sequence[DeviceGroup]) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="utf-8"?>\n'
    yield '<config:device-targeting-config xmlns:config="http://schemas.android.com/apk/config">\n'
    for group in groups:
        if not group.chips:
            continue
        yield f"    <config:device-group name={quoteattr(group.name)}>\n"
        for maker, model in group.chips:
            chip = f"manufacturer={quoteattr(maker)} model={quoteattr(model)}"
            yield "        <config:device-selector>\n"
            yield f"            <config:system-on-chip {chip}/>\n"
            yield "        </config:device-selector>\n"
        yield "    </config:device-group>\n"
    yield "</config:device-targeting-config>\n"


def write_pack(pack: AiPack, bundle: Path, folder: Path) -> None:
    """Write the module to `folder`, whole or not at all; an older one there is replaced."""
    groups, texts = pack
    make_folder(folder.parent)
    with storage_errors(folder), staging_folder(folder) as new:
        for name, text in texts.items():
            write_text(new / name, text)
        for group in groups:
            suffix = f"#group_{group.name}" if len(groups) > 1 else ""
            for file in group.files:
                copy_file(bundle / file, new / "src/main/assets" / f"{ASSETS}{suffix}" / Path(file).name)
        take_place(new, folder)


def _refuse_foreign(folder: Path) -> None:
    with storage_errors(folder):
        names = [] if not folder.exists() else list(folder.iterdir()) if folder.is_dir() else [folder]
        build = folder / BUILD_FILE
        generated = build.is_file() and build.read_text("utf-8", "replace").startswith(MARK)
    if names and not generated:
        raise ConfigError(
            "this folder is no AI pack of ours",
            where=str(folder),
            why="it holds something else, which would be lost",
            remedy="name another folder with --ai-pack",
        )
