"""What depends on ONNX Runtime's release when it is built: tables with the release from which a row holds.

Sources: the scripts and default settings of the trees 1.21.0 and main of 2026, the history of the settings files
(facts of the project: custom builds), pull requests by number.
"""

from typing import NamedTuple

from pipeline.config import Platform
from pipeline.core.releases import Release, at_release

FIRST_PLANNED: dict[Platform, Release] = {
    Platform.ANDROID: Release(1, 8),
    Platform.IOS: Release(1, 17),
    Platform.MACOS: Release(1, 17),
    Platform.LINUX: Release(1, 8),
}
"""From here the scripts have the names and settings that plans use (Apple's script was renamed for 1.17)."""

REDUCED_IN_BUILD_TREE_SINCE = Release(1, 11)
PAGE_16K_SINCE = Release(1, 20)
PAGE_16K_JNI_SINCE = Release(1, 23)
ASSET_CACHE_SINCE = Release(1, 21)
BUILD_ARGS_FILE_SINCE = Release(1, 22)


class Minimum(NamedTuple):
    """The lowest API level or OS version that a release's own packages support."""

    since: Release
    version: str


MINIMUMS: dict[Platform, tuple[Minimum, ...]] = {
    Platform.ANDROID: (Minimum(Release(1, 0), "21"), Minimum(Release(1, 21), "24")),
    Platform.IOS: (
        Minimum(Release(1, 0), "11.0"),
        Minimum(Release(1, 16), "12.0"),
        Minimum(Release(1, 19), "13.0"),
        Minimum(Release(1, 21), "15.1"),
    ),
    Platform.MACOS: (
        Minimum(Release(1, 0), "11.0"),
        Minimum(Release(1, 20), "13.3"),
        Minimum(Release(1, 23), "13.4"),
        Minimum(Release(1, 24), "14.0"),
    ),
}
"""Lowest versions of the settings files by release."""

ANDROID_TARGET_SDK: tuple[tuple[Release, int], ...] = ((Release(1, 0), 24), (Release(1, 21), 34))
"""`android_target_sdk_version` of the default settings."""


ABIS: dict[Platform, tuple[str, ...]] = {
    Platform.ANDROID: ("armeabi-v7a", "arm64-v8a", "x86", "x86_64"),
    Platform.IOS: ("arm64",),
    Platform.MACOS: ("arm64", "x86_64"),
    Platform.LINUX: ("x86_64", "aarch64", "arm64"),
}
"""ABIs that the scripts build, by platform."""

DEFAULT_ABIS: dict[Platform, tuple[str, ...]] = {
    Platform.ANDROID: ("arm64-v8a",),
    Platform.IOS: ("arm64",),
    Platform.MACOS: ("arm64", "x86_64"),
    Platform.LINUX: ("x86_64",),
}


def minimum_version(platform: Platform, release: Release) -> str | None:
    """The lowest API level or OS version that a release supports on a platform; None on Linux."""
    rows = MINIMUMS.get(platform)
    return at_release(rows, release) if rows else None


def version_key(version: str) -> tuple[int, ...]:
    """A dotted version as numbers that compare, without zeros at the end: 15.0 is 15."""
    parts = [int(part) for part in version.split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
