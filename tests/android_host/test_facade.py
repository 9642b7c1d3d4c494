"""The released Java classes on the genuine Android library, published as a runtime: both run in a JVM here."""

import json
import os
import shutil
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from device_runner.android_host.build import build_host
from device_runner.library import find_archive
from pipeline.cli.main import cli
from pipeline.core.errors import CheckFailed
from tests.android_host.bundles import bundle_of, nnapi
from tests.android_host.conftest import fetch
from tests.features.android.jvm import check_reference
from tests.features.android.samples import needs_java

pytestmark = pytest.mark.android_host

WHOLE = "1.29.0"
"""The release of which a package has the whole AAR, with the Java library."""
JNI = "libonnxruntime4j_jni.so"


@pytest.fixture(scope="session")
def aar() -> Path:
    needs_java()
    fetch(WHOLE)
    return find_archive(f"android:{WHOLE}")


def test_models_and_runtime_of_one_repository_run_together(aar: Path, mnist: Path, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path / "demo", mnist, (nnapi(),))
    natives = shutil.copytree(build_host(), tmp_path / "natives")
    place = tmp_path / "demo/repo/com/example"

    def unpacked() -> Path:
        with zipfile.ZipFile(next((place / "demo-runtime/1.0").glob("*.aar"))) as runtime:
            runtime.extract("classes.jar", tmp_path)
            assert "-keep class ai.onnxruntime.** { *; }" in runtime.read("proguard.txt").decode()
            for name in ("libonnxruntime.so", JNI):
                (natives / name).write_bytes(runtime.read(f"jni/x86_64/{name}"))
        return tmp_path / "classes.jar"

    ways = check_reference(
        bundle,
        unpacked,
        "--runtime",
        str(aar),
        options=(f"-Donnxruntime.native.path={natives}",),
        environment={**os.environ, "LD_LIBRARY_PATH": str(natives)},
    )
    assert ways == ["nnapi"] * 2
    module = json.loads((place / "demo-runtime/1.0/demo-runtime-1.0.module").read_bytes())
    for variant in module["variants"]:
        assert variant["capabilities"] == [
            {"group": "com.example", "name": "demo-runtime", "version": "1.0"},
            {"group": "com.microsoft.onnxruntime", "name": "onnxruntime-android", "version": WHOLE},
        ]
    models = json.loads((place / "demo/1.0/demo-1.0.module").read_bytes())
    needs = [{"group": "com.example", "module": "demo-runtime", "version": {"strictly": "1.0"}}]
    assert [variant.get("dependencies") for variant in models["variants"]] == [needs, needs, None]
    pom = ET.parse(place / "demo/1.0/demo-1.0.pom")
    assert [one.text for one in pom.iter("{http://maven.apache.org/POM/4.0.0}artifactId")] == ["demo", "demo-runtime"]


def refused(folder: Path, aar: Path, runtime: str) -> BaseException | None:
    named = ("--output", str(folder / "repo"), "--group", "com.example", "--version", "1.0", "--runtime", runtime)
    found = CliRunner().invoke(cli, ["release", "android", str(folder / "bundle"), *named]).exception
    assert not (folder / "repo").exists()
    return found


def test_parts_of_two_builds_are_refused(aar: Path, mnist: Path, tmp_path: Path) -> None:
    bundle_of(tmp_path, mnist)
    mixed = tmp_path / "mixed.aar"
    with zipfile.ZipFile(aar) as given, zipfile.ZipFile(mixed, "w") as made:
        for name in ("AndroidManifest.xml", "classes.jar", "jni/x86_64/libonnxruntime.so"):
            made.writestr(name, given.read(name))
        made.writestr(f"jni/x86_64/{JNI}", given.read(f"jni/x86_64/{JNI}").replace(b"VERS_1.29.0", b"VERS_1.28.0"))
    error = refused(tmp_path, aar, str(mixed))
    assert isinstance(error, CheckFailed)
    assert f"jni/x86_64/libonnxruntime.so 1.29.0, jni/x86_64/{JNI} 1.28.0" in str(error.why)


def test_a_runtime_of_another_release_than_the_models_is_refused(aar: Path, mnist: Path, tmp_path: Path) -> None:
    bundle_of(tmp_path, mnist, ort_release="1.28")
    error = refused(tmp_path, aar, str(aar))
    assert isinstance(error, CheckFailed)
    assert error.what == "the runtime is ONNX Runtime 1.29.0, and models were released for 1.28"
