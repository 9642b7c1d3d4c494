"""The tree of ONNX Runtime's sources: which release it is."""

import re
from pathlib import Path

from pipeline.core.errors import ConfigError

VERSION_FILE = "VERSION_NUMBER"


def tree_release(source: Path) -> str:
    """The release of a source tree, as 1.23.2; raises ConfigError when this is none of ONNX Runtime."""
    version = text_of(source / VERSION_FILE).strip()
    if not re.fullmatch(r"\d{1,3}\.\d{1,3}\.\d{1,3}", version):
        raise ConfigError(
            "this is no source tree of ONNX Runtime",
            where=str(source),
            why=f"{VERSION_FILE} is missing or holds no release",
            remedy="unpack or clone the source of the release, and give its folder with --source",
        )
    return version


def check_release(source: Path, version: str) -> None:
    """Raise ConfigError when a tree is not of the release that a target names (`1.23` takes any patch of it)."""
    parts, release = version.split("."), tree_release(source)
    if release.split(".")[: len(parts)] != parts:
        raise ConfigError(
            f"this source tree is ONNX Runtime {release}, the target wants {version}",
            where=str(source),
            why="operators, format versions and options differ between releases",
            remedy=f'check out {version} there, or write ort_release = "{release}" in the target',
        )


def text_of(path: Path) -> str:
    """The text of a file, "" where there is none or it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
