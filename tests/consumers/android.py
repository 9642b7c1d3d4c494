"""The package of the example as an app's build sees it, with the real classes of Android and ONNX Runtime."""

import re
import zipfile
from pathlib import Path

import msgspec
import numpy as np

from pipeline.release.manifest import read_manifest
from tests.consumers.jars import jars
from tests.consumers.releases import RELEASE, ROOT, bundle, made_once, repository
from tests.debian_packages import unpacked
from tests.features.android.jvm import fetched

FRAMEWORK = "org.robolectric:android-all-instrumented:15-robolectric-13954326-i7"
"""Android 15's framework with its resources, as Robolectric runs it."""

ANNOTATIONS = "androidx.annotation:annotation-jvm:1.9.1"
SANDBOX = "org.robolectric:sandbox:4.16"
"""What the classes of this framework implement."""


def framework_of_aapt2() -> Path:
    """The names of Android 6's resources: Debian's aapt2 does not read those of Android 15."""
    (framework,) = jars("org.robolectric:android-all:6.0.1_r3-robolectric-r1", alone=True)
    return framework


def aapt2(folder: Path) -> Path:
    """Debian's aapt2 with its own libraries, as one program."""
    tree = unpacked("aapt")
    libraries = tree / "usr/lib/x86_64-linux-gnu"
    places = f"{libraries}:{libraries}/android:{tree}/usr/lib/7zip"
    program = tree / "usr/lib/android-sdk/build-tools/debian/aapt2"
    script = folder / "aapt2"
    script.write_text(
        f'#!/bin/sh\nexec "{libraries}/ld-linux-x86-64.so.2" --library-path "{places}" "{program}" "$@"\n'
    )
    script.chmod(0o755)
    return script


def libraries() -> list[Path]:
    """What an app compiles against: ONNX Runtime for the JVM, Android's framework and its annotations."""
    return [fetched(f"jvm:{RELEASE}"), *jars(FRAMEWORK, alone=True), *jars(ANNOTATIONS, SANDBOX, alone=True)]


def aar() -> Path:
    """The published file."""
    return next(repository().rglob("*.aar"))


def unpacked_aar() -> Path:
    """A folder with the parts of the AAR: classes.jar, proguard.txt, assets and what else there is."""
    return made_once("aar", lambda folder: zipfile.ZipFile(aar()).extractall(folder))


def model_file() -> Path:
    """The model as it is among the bundle's files."""
    return next((bundle() / "models").iterdir())


class Reference(msgspec.Struct, kw_only=True):
    """Real inputs and the outputs that were recorded for them, as files of the bundle."""

    image: Path
    logits: Path


def reference() -> Reference:
    """The recorded input and output of the example."""
    folder = bundle() / "evidence/reference/mnist"
    return Reference(image=folder / "input_0.bin", logits=folder / "output_0.bin")


def guide_code(language: str) -> str:
    """The example of the guide's section on Gradle in Java or Kotlin."""
    guide = (ROOT / "docs/guide.md").read_text("utf-8")
    section = guide.split("\n### In your app: Gradle\n")[1].split("\n### ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


def check_logits(said: str) -> None:
    """A program's two lines: the session options, and logits as close to the recorded ones as the bundle allows."""
    way, logits = said.splitlines()
    assert way == "cpu"
    expected = np.fromfile(reference().logits, np.float32)
    found = np.array(logits.split(), np.float32)
    allowed = read_manifest(bundle()).references[0].tolerance.max_relative_error
    assert np.abs(found - expected).max() <= allowed * np.abs(expected).max()
