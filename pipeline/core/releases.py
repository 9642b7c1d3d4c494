"""Releases of ONNX Runtime: the one type, which are known, and how a user's words are read."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeVar

from pipeline.core.errors import ConfigError

log = logging.getLogger(__name__)


class Release(NamedTuple):
    """A release line, as 1.29; patch releases change no rule."""

    major: int
    minor: int

    def __str__(self) -> str:
        """As configs and the command line write it."""
        return f"{self.major}.{self.minor}"


NEWEST_KNOWN = Release(1, 32)
"""The newest line whose packages were examined: formats, opsets, session options, libraries."""

OLDEST_RULES, NEWEST_RULES = Release(1, 19), Release(1, 29)
"""The lines whose claims were checked against real builds and libraries; later ones are judged by the newest's rules"""

LABELLED = (Release(1, 21), Release(1, 23), Release(1, 26), Release(1, 28), Release(1, 29))
"""Those of them with labels or a library of their own (tests/ground_truth; 1.26: the Android library); between two that
agree a release is judged as both are."""

DEFAULT_RELEASE = Release(1, 23)
"""What stands in where no package named onnxruntime is installed (nightly builds have other names)."""


SWIFT_REPOSITORY = "https://github.com/microsoft/onnxruntime-swift-package-manager"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftPackageVersion:
    """The newest version of ONNX Runtime's Swift package in a line, and the lowest systems that it allows.

    A package takes what is `exact` alone, else from it to the end of its line.
    """

    version: str
    ios: str
    macos: str
    exact: bool = False

    @property
    def swift(self) -> str:
        """As Package.swift writes it."""
        return f'exact: "{self.version}"' if self.exact else f'.upToNextMinor(from: "{self.version}")'

    @property
    def pod(self) -> str:
        """As CocoaPods writes it."""
        return self.version if self.exact else f"~> {self.version}"


SWIFT_PACKAGES: dict[Release, SwiftPackageVersion] = {
    Release(1, 16): SwiftPackageVersion(version="1.16.0", ios="12", macos="10.13"),
    Release(1, 17): SwiftPackageVersion(version="1.17.0", ios="12", macos="11"),
    Release(1, 18): SwiftPackageVersion(version="1.18.0", ios="12", macos="11"),
    Release(1, 19): SwiftPackageVersion(version="1.19.2", ios="13", macos="11"),
    Release(1, 20): SwiftPackageVersion(version="1.20.0", ios="13", macos="11"),
    Release(1, 24): SwiftPackageVersion(version="1.24.2", ios="15", macos="14"),
}
"""By release line, as the repository's tags and its Package.swift say; there are none of 1.21 to 1.23
(docs/facts/release_consumers.md, R.9)."""

LINE = re.compile(r"(\d{1,4})\.(\d{1,4})(?=\.|$|[-+]|rc|\.dev)")
WORDS = re.compile(r"(\d{1,2})\.(\d{1,3})(\.\d{1,3})?")


def line_of(version: str) -> Release:
    """The release line of a version that exists, as a wheel, a library or a source tree gives it.

    ConfigError when it is none. Lines that are not known pass: the file is there.
    """
    match = LINE.match(version)
    if match is None:
        raise ConfigError(f"{version!r} is not a version of ONNX Runtime", remedy="write it as 1.29 or 1.29.0")
    return Release(int(match[1]), int(match[2]))


def numbers_of(version: str) -> tuple[int, ...]:
    """A release as numbers, for comparison: 1.29 is 1.29.0; what is no number does not count."""
    parts = [int(part) for part in re.findall("[0-9]+", version)]
    return (*parts, *[0] * (3 - len(parts)))


def range_of(version: str) -> tuple[str, str]:
    """The versions that fit one, as 1.29.0 or 1.29: from it on, and below the next line."""
    line = line_of(version)
    return version, str(Release(line.major, line.minor + 1))


def installed_release() -> Release:
    """The line of the installed onnxruntime; DEFAULT_RELEASE when it has another name."""
    from importlib import metadata  # 15 ms that workers do not need

    try:
        return line_of(metadata.version("onnxruntime"))
    except metadata.PackageNotFoundError:
        return DEFAULT_RELEASE


def newest_release() -> Release:
    """The newest line that exists as far as this computer knows."""
    return max(NEWEST_KNOWN, installed_release())


def read_release(value: object, name: str, where: str = "") -> Release:
    """The release line that a user gives to an option or key of this name, in the file and line `where`.

    ConfigError, with how to write it, for what is no release. A line that is newer than all known ones costs a warning:
    a new one comes each month, and apps move to it before this project has examined it.
    """
    match = WORDS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        if isinstance(value, str):
            inside = re.search(r"(?<![\d.])1\.\d{1,2}(\.\d{1,2})?(?![\d.])", value)
            remedy = f"write {inside[0]}" if inside else f"write it as {NEWEST_RULES} or {NEWEST_RULES}.0"
        else:  # how a number should have been written; 1.3 may have been 1.30, which a number cannot keep
            text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(NEWEST_RULES)
            both = f' or "{text}0"' if re.fullmatch(r"1\.[123]", text) else ""
            remedy = f'write it in quotes, as "{text}"{both}'
        raise ConfigError(f"{name}: {value!r} is not a release of ONNX Runtime", where=where, remedy=remedy)
    release = Release(int(match[1]), int(match[2]))
    if release < Release(1, 0):
        raise ConfigError(
            f"{name}: there is no ONNX Runtime {value}",
            where=where,
            why="the oldest release is 1.0",
            remedy="name the release that your app contains",
        )
    if release > newest_release():
        _warn_of_newer(release)
    return release


@cache  # a config may name it for every target: one warning for each line is enough
def _warn_of_newer(release: Release) -> None:
    log.warning(
        "ONNX Runtime %s is newer than the newest known release, %s: judged by the newest rules (formats and options "
        "of %s, claims of providers of %s); if there is no such release, correct it, and else update ort-mobile",
        release,
        newest_release(),
        NEWEST_KNOWN,
        NEWEST_RULES,
    )


def has_rules(release: tuple[int, int]) -> bool:
    """Whether the claims of a line were checked against its own builds."""
    return OLDEST_RULES <= release <= NEWEST_RULES


def rules_of(release: tuple[int, int]) -> Release:
    """The line whose rules judge a release: its own, the newest with rules for later ones, the oldest for earlier."""
    return Release(*min(max(release, OLDEST_RULES), NEWEST_RULES))


def by_rules(release: tuple[int, int]) -> str:
    """How to name a release in an answer: `1.31 (by the rules of 1.29)` where it has none of its own, and
    `1.25 (by rules checked with 1.23 and 1.26)` where it was not compared itself.
    """
    named = Release(*release)
    if not has_rules(named):
        return f"{named} (by the rules of {rules_of(named)})"
    older, newer = (
        [release for release in LABELLED if release < named],
        [release for release in LABELLED if release > named],
    )
    return (
        str(named)
        if named in LABELLED
        else (f"{named} (by rules checked with {' and '.join(map(str, [*older[-1:], *newer[:1]]))})")
    )


T = TypeVar("T")


def at_release(steps: Sequence[tuple[tuple[int, int], T]], release: tuple[int, int]) -> T:
    """The last row that holds at a release; `steps` ascend and the first holds always."""
    for since, value in reversed(steps):
        if since <= release:
            return value
    return steps[0][1]
