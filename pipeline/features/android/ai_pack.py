"""A Play AI pack: a Gradle module with the models of a target as assets, each device getting those of its class.

What Google Play and the Android Gradle plugin read of it: docs/facts/release_consumers.md, R.7.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from device_runner.files import staging_folder, take_place
from pipeline.core.errors import CheckFailed, ConfigError
from pipeline.core.files import copy_file, make_folder, storage_errors, write_text
from pipeline.features.android.facade import ASSETS
from pipeline.release.manifest import Content, SelectionRow
from pipeline.release.selection import rows_of

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AiPack:
    """A pack that was checked: its groups, the others last, and the texts beside the models."""

    name: str
    bundle: Path
    groups: tuple[DeviceGroup, ...]
    texts: Mapping[str, str]


def ai_pack(folder: Path, bundle: Path, content: Content, target: str, package: str) -> AiPack:
    """The pack of a target's models, called as the folder that it will be in; `package` is that of the Java classes.

    Raises ConfigError for a name that Gradle refuses and a folder with anything else in it, CheckFailed for models
    larger than a store allows.
    """
    name = pack_name(folder)
    groups = device_groups(content, target)
    sizes = {group.name: sum((bundle / file).stat().st_size for file in group.files) for group in groups}
    _refuse_large(sizes, bundle)
    return AiPack(name=name, bundle=bundle, groups=groups, texts=_texts(name, content.name, package, groups, sizes))


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
    chips = sorted({chip for rows in tables for row in rows if (chip := _chip(row))})
    others = _files(content, [row for rows in tables for row in rows if not _chip(row)])
    by_files: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for chip in chips:
        files = _files(content, [row for rows in tables for row in rows if _chip(row) == chip or not row.soc])
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
    return tuple(sorted({content.ships[row.ships].file for row in rows}))


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


def write_pack(pack: AiPack, folder: Path) -> None:
    """Write the module to `folder`, whole or not at all; an older one there is replaced."""
    make_folder(folder.parent)
    with storage_errors(folder), staging_folder(folder) as new:
        for name, text in pack.texts.items():
            write_text(new / name, text)
        for group in pack.groups:
            suffix = f"#group_{group.name}" if len(pack.groups) > 1 else ""
            for file in group.files:
                copy_file(pack.bundle / file, new / "src/main/assets" / f"{ASSETS}{suffix}" / Path(file).name)
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
