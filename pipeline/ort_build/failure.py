"""From the log of a failed build to the lines that matter and the cause that they have most often."""

import re
from typing import NamedTuple

TAIL_LINES = 20
EXCERPT_LINES = 12


class Cause(NamedTuple):
    """Why a build failed, and what to do."""

    why: str
    remedy: str


_CAUSES: tuple[tuple[str, Cause], ...] = (
    (
        r"ort-mobile: missing system dependency: (?P<what>[^\n]+)",
        Cause("a library of this system is missing: {what}", "install it with your package manager"),
    ),
    (
        r"CMake (?P<what>[\d.]+) or higher is required",
        Cause("CMake is older than {what}", "pip install --upgrade cmake"),
    ),
    (
        r"x-block-origin|vcpkg\.storage\.devpackages",
        Cause(
            "vcpkg may download from Microsoft's own mirror only",
            "remove --use_vcpkg_ms_internal_asset_cache from build_aar_package.py in the source tree",
        ),
    ),
    (r"No space left on device", Cause("the disk is full", "free some space, or choose another --work")),
    (
        r"Killed signal terminated program|internal compiler error: Killed|c\+\+: fatal error: Killed",
        Cause("the compiler ran out of memory", "build with fewer jobs: `jobs = 1` in [build]"),
    ),
    (
        r"Could not resolve host|Failed to connect to|Couldn't connect to server|status_code: [67]\b|name resolution",
        Cause(
            "a dependency could not be downloaded",
            'check the network, or build against this system\'s libraries (dependencies = "system" in [build])',
        ),
    ),
    (
        r"error: unrecognized arguments: (?P<what>[^\n]+)",
        Cause("this release's script does not know {what}", "give the release's own source tree with --source"),
    ),
    (
        r"error: argument (?P<what>[^\n]+)",
        Cause("this release's script refuses {what}", "give the release's own source tree with --source"),
    ),
    (
        r"ModuleNotFoundError: No module named '(?P<what>[^'\n]+)'",
        Cause("the build's Python lacks {what}", "python3 -m pip install {what}"),
    ),
    (
        r"Running as root is not allowed",
        Cause("ONNX Runtime's script does not run as root by itself", "build as another user"),
    ),
    (
        r"Failed to resolve executable path for '(?P<what>[^'\n]+)'",
        Cause("{what} is not installed", "pip install {what}"),
    ),
    (
        r"android_[sn]dk_path is required|SDK location not found",
        Cause("the Android SDK or NDK was not found", "set ANDROID_HOME and ANDROID_NDK_HOME"),
    ),
    (
        r"Unable to access jarfile|GradleWrapperMain",
        Cause("gradle-wrapper.jar is missing in java/gradle/wrapper", "take a git checkout, or run `gradle wrapper`"),
    ),
    (
        r"xcodebuild: error: (?P<what>[^\n]+)",
        Cause("Xcode says: {what}", "open Xcode once, accept its licence, install the platform's SDK"),
    ),
    (
        r"Each download failed|HASH mismatch",
        Cause("a download came damaged", "run it again; a mirror may serve another file under that name"),
    ),
    (
        r"FLATBUFFERS_VERSION_MAJOR",
        Cause(
            "the FlatBuffers of this system is not the one that ONNX Runtime's generated code wants",
            "install the version that cmake/deps.txt of the tree names",
        ),
    ),
)
"""Patterns over the end of a log, the most telling first."""

_TELLING = re.compile(r"(?i)\berror\b[: ]|^FAILED:|fatal error|Error:|undefined reference|CalledProcessError|\*\*\*")


def cause_of(log: str) -> Cause | None:
    """The known cause that a log tells of, or None."""
    for pattern, cause in _CAUSES:
        found = re.search(pattern, log)
        if found:
            what = found.groupdict().get("what") or ""
            return Cause(cause.why.format(what=what.strip()), cause.remedy.format(what=what.strip()))
    return None


def excerpt(log: str) -> str:
    """The first lines that speak of an error, with what follows each; the last lines when none does."""
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    first = next((number for number, line in enumerate(lines) if _TELLING.search(line)), None)
    return "\n".join(lines[-TAIL_LINES:] if first is None else lines[first : first + EXCERPT_LINES])
