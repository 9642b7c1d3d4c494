"""What an app team gets: the example's bundle, made by the commands of the README, and its repository."""

import os
from collections.abc import Callable
from pathlib import Path

from tests.command import ort_mobile
from tests.own_home import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "build_configs/examples/mnist"
RELEASE = "1.28.0"
"""A release of ONNX Runtime whose JVM library is on Maven Central."""

NOTATION = ("com.example", "mnist-models", "1.0")
CONFIG = f"""\
name = "mnist"

[[models]]
path = "{EXAMPLE}/mnist.onnx"
test_data = "{EXAMPLE}"

[[targets]]
name = "android-arm64"
platform = "android"
abis = ["arm64-v8a"]
ort_release = "{RELEASE}"
"""


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder for all tests of this run, made by the first that needs it, in whatever process."""
    place = Path(os.environ[FOLDER_VARIABLE]) / "consumers" / name
    if not place.is_dir():
        place.parent.mkdir(exist_ok=True)
        work = place.with_name(f"{name} {os.getpid()}")
        work.mkdir()
        make(work)
        try:
            work.rename(place)
        except OSError:
            if not place.is_dir():
                raise
    return place


def bundle() -> Path:
    """The example's bundle, with reference inputs and outputs of its model."""
    return made_once("bundle", _make_bundle) / "output/mnist/bundle"


def _make_bundle(folder: Path) -> None:
    (folder / "mnist.toml").write_text(CONFIG)
    ort_mobile("run", "mnist.toml", "--convert-only", cwd=folder)


def repository() -> Path:
    """The Maven repository with the bundle's package."""
    return made_once("repository", _make_repository)


def _make_repository(folder: Path) -> None:
    group, _, version = NOTATION
    words = ("--output", folder, "--group", group, "--version", version)
    ort_mobile("release", "android", bundle(), *words, cwd=folder)
