"""The released Java classes on the genuine Android library: its own classes and libraries in a JVM here."""

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from device_runner.android_host.build import build_host
from device_runner.library_facts import LibraryFacts
from device_runner.library_source import find_archive
from tests.android_host.bundles import bundle_of, nnapi
from tests.release.android.jvm import check_reference
from tests.release.android.samples import needs_java

pytestmark = pytest.mark.android_host


def test_the_classes_run_in_the_android_library(
    library: LibraryFacts, release: str, mnist: Path, tmp_path: Path
) -> None:
    needs_java()
    natives = tmp_path / "natives"
    shutil.copytree(build_host(), natives)
    with zipfile.ZipFile(find_archive(f"android:{release}")) as aar:
        aar.extract("classes.jar", tmp_path)
        for name in ("libonnxruntime.so", "libonnxruntime4j_jni.so"):
            (natives / name).write_bytes(aar.read(f"jni/{library.abi}/{name}"))
    ways = check_reference(
        bundle_of(tmp_path / "demo", mnist, (nnapi(),)),
        tmp_path / "classes.jar",
        options=(f"-Donnxruntime.native.path={natives}",),
        environment={**os.environ, "LD_LIBRARY_PATH": str(natives)},
    )
    assert ways == ["nnapi"] * 2
