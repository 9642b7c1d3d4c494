"""What whoever builds must know, by release: a table of notes with their sources."""

from collections.abc import Callable

import msgspec

from pipeline.config import Platform
from pipeline.config.build import Dependencies
from pipeline.ort_build.releases import (
    ASSET_CACHE_SINCE,
    PAGE_16K_JNI_SINCE,
    PAGE_16K_SINCE,
    REDUCED_IN_BUILD_TREE_SINCE,
)
from pipeline.ort_build.request import Request

ASSET_CACHE_FLAG = "--use_vcpkg_ms_internal_asset_cache"


class BuildNote(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no option settles, and where it comes from."""

    text: str
    source: str


def _on(platform: Platform) -> Callable[[Request], bool]:
    return lambda request: request.target.platform is platform


_NOTES: tuple[tuple[Callable[[Request], bool], BuildNote], ...] = (
    (
        lambda r: r.release < REDUCED_IN_BUILD_TREE_SINCE and r.operators is not None,
        BuildNote(
            text="the reduction edits the source tree in place: run `git reset --hard` in it before another config",
            source="1.10 and older",
        ),
    ),
    (
        lambda r: _on(Platform.ANDROID)(r) and r.release >= ASSET_CACHE_SINCE,
        BuildNote(
            text=f"build_aar_package.py passes {ASSET_CACHE_FLAG}, which blocks all downloads outside Microsoft and "
            "which no setting turns off: remove it from that file in your source tree",
            source="1.21.0 and newer",
        ),
    ),
    (
        lambda r: _on(Platform.ANDROID)(r) and r.release < PAGE_16K_SINCE,
        BuildNote(
            text="16 KB pages by a linker flag of the plan: the release has none of its own", source="pull 22076"
        ),
    ),
    (
        lambda r: _on(Platform.ANDROID)(r) and PAGE_16K_SINCE <= r.release < PAGE_16K_JNI_SINCE,
        BuildNote(text="16 KB pages of libonnxruntime4j_jni.so by a linker flag of the plan", source="pull 24947"),
    ),
    (
        lambda r: r.settings.wheel,
        BuildNote(text="the wheel converts models on this computer: it is full, with all operators", source="build.py"),
    ),
    (
        lambda r: _on(Platform.LINUX)(r) and bool({"arm64", "aarch64"} & set(r.abis)),
        BuildNote(
            text="build.py compiles for the computer it runs on: run this on an arm64 machine, or give a toolchain in "
            "[build] defines (CMAKE_TOOLCHAIN_FILE)",
            source="build.py: --arm64 is for Windows",
        ),
    ),
    (
        lambda r: r.settings.dependencies is Dependencies.SYSTEM,
        BuildNote(
            text="libraries of this system are linked in: the library runs where they are installed",
            source="system_dependencies.cmake",
        ),
    ),
)


def notes_for(request: Request) -> tuple[BuildNote, ...]:
    """The notes that apply to a request, in the order of the table."""
    return tuple(note for applies, note in _NOTES if applies(request))
