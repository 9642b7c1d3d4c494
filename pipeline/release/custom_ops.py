"""Libraries of custom operators that ship."""

import re
from collections.abc import Iterator

from device_runner import custom_ops as runner_custom_ops
from device_runner import library as ort_library
from device_runner.probe import elf as elf_file
from pipeline import config as configs
from pipeline.config import Config
from pipeline.core import abis as core_abis
from pipeline.core import documents
from pipeline.core.errors import ConfigError, Finding, Severity
from pipeline.library import xcframework

WIDE_ABIS = frozenset({"arm64-v8a", "x86_64"})

ALL_ABIS = "all"
"""What stands for the ABIs of an xcframework."""


def custom_libraries(config: Config, target: configs.Target) -> tuple[runner_custom_ops.CustomLibrary, ...]:
    """Libraries of custom operators that ship to a target; UnavailableError where one for an ABI of it is missing.

    Apps of Apple's systems link one for all ABIs: ConfigError for more, CheckFailed for one that they cannot link.
    ConfigError for a name that no bundle has.
    """
    platform, linked = target.platform.value, target.platform in configs.APPLE
    abis = core_abis.abis_of_target(platform, target.abis)
    rows = tuple(
        library
        for abi in abis
        for library in runner_custom_ops.fitting(config.custom_ops, platform, abi, linked=linked)
    )
    if odd := next((row.path.name for row in rows if not re.match(documents.FILE_PATH, row.path.name)), ""):
        raise ConfigError(
            f"a bundle cannot have a file named {odd!r}",
            where=f"target {target.name}: custom_ops",
            why="the name has characters that shells and languages read as their own",
            remedy="give the library a name of letters, digits, dots and dashes",
        )
    if not linked:
        return rows
    if len(files := {row.path for row in rows}) > 1:
        raise ConfigError(
            f"an app for {platform} can link one library of custom operators, and {len(files)} fit",
            where=f"target {target.name}: custom_ops",
            why=f"each defines the function {runner_custom_ops.SYMBOL}",
            remedy=f"link them into one, which has a {runner_custom_ops.SYMBOL} that calls those of all",
        )
    return tuple(row._replace(abi=ALL_ABIS) for row in rows[:1])


def custom_findings(config: Config, target: configs.Target) -> Iterator[Finding]:
    """What speaks against those libraries: pages of 16 KB of phones, and app stores; raises as above."""
    for library in custom_libraries(config, target):
        where = f"target {target.name}: custom_ops"
        if (
            target.platform is configs.Platform.ANDROID
            and library.abi in WIDE_ABIS
            and elf_file.read_elf(library.path).page_bytes < ort_library.PAGE_BYTES
        ):
            yield Finding(
                severity=Severity.WARNING,
                what=f"{library.path.name} for {library.abi} cannot be loaded on phones with 16 KB pages",
                where=where,
                why=f"its segments are aligned to less than {ort_library.PAGE_BYTES} bytes; Google Play refuses such "
                "apps",
                remedy="build it with NDK r28 or later, or with -Wl,-z,max-page-size=16384; or take a newer release",
            )
        if target.platform in configs.APPLE:
            with xcframework.opened(library.path, runner_custom_ops.SYMBOL, target.platform.value) as framework:
                embedded = framework.static and any(part.path.endswith(".framework") for part in framework.slices)
            if embedded:
                yield Finding(
                    severity=Severity.WARNING,
                    what=f"{library.path.name} has its static code in .framework folders",
                    where=where,
                    why="Xcode puts such a folder into the app, and the App Store refuses apps with one "
                    "that has no MinimumOSVersion (onnxruntime issue 27396)",
                    remedy="make an xcframework of the libraries alone: xcodebuild -create-xcframework -library",
                )
