"""The helper: what is in a library beside the classes, and what `ort-mobile app` says of it."""

import zipfile
from pathlib import Path

import pytest

from device_runner import build as runner_build
from device_runner.errors import UnavailableError
from device_runner.probe import elf as elf_file
from pipeline.features.guard import helper
from tests.command import ort_mobile
from tests.features.android.samples import CPU, NNAPI, bundle, needs_java, shipped
from tests.features.app.test_app import MANIFEST, inspected, package

NAME = "libort_mobile_trial_com_example_demo.so"


def released(folder: Path, *more: str) -> tuple[Path, str]:
    """The AAR of a bundle, and what was said."""
    needs_java()
    bundle(folder, [shipped(runs=(NNAPI, CPU), abis=("arm64-v8a", "armeabi-v7a"))])
    named = ("--output", str(folder / "maven"), "--group", "com.example", "--artifact", "demo", "--version", "1.0")
    said = ort_mobile("release", "android", folder / "bundle", *named, *more)
    return folder / "maven/com/example/demo/1.0/demo-1.0.aar", said.err


def test_each_abi_of_64_bits_has_one_that_phones_with_large_pages_load(tmp_path: Path) -> None:
    file, errors = released(tmp_path)
    with zipfile.ZipFile(file) as archive:
        natives = [name for name in archive.namelist() if name.endswith(".so")]
        content = archive.read(f"jni/arm64-v8a/{NAME}")
    assert natives == [f"jni/arm64-v8a/{NAME}"]
    assert "no program for trials on armeabi-v7a, where the app itself makes them: no compiler" in errors
    found = elf_file.parse_elf(content)
    assert (found.abi, found.page_bytes) == ("arm64-v8a", 0x4000)
    assert len(content) <= helper.MOST_BYTES
    assert len(runner_build.build_trial("x86_64").read_bytes()) <= helper.MOST_BYTES
    (row,) = [row for row in inspected(file)["libraries"] if row["path"].endswith(NAME)]
    assert row["abi"] == "arm64-v8a"
    assert "tries models in a process of its own" in ort_mobile("app", file).out


def test_without_the_guard_there_is_none(tmp_path: Path) -> None:
    file, errors = released(tmp_path, "--no-guard")
    with zipfile.ZipFile(file) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    assert "trials" not in errors


def test_without_a_compiler_the_classes_do_not_look_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(target: str) -> Path:
        raise UnavailableError(f"no compiler for {target}", why="none", remedy="install one")

    monkeypatch.setattr(runner_build, "build_trial", refuse)
    file, errors = released(tmp_path)
    assert "no program for trials on arm64-v8a" in errors
    with zipfile.ZipFile(file) as archive:
        (tmp_path / "classes.jar").write_bytes(archive.read("classes.jar"))
    with zipfile.ZipFile(tmp_path / "classes.jar") as classes:
        assert not [name for name in classes.namelist() if name.endswith("GuardChild.class")]


def test_one_of_another_abi_is_told(tmp_path: Path) -> None:
    program = runner_build.build_trial("x86_64").read_bytes()
    members = {"AndroidManifest.xml": MANIFEST, "classes.dex": b""}
    for folder, wanted in (("x86_64", []), ("arm64-v8a", ["trial-program"])):
        found = inspected(package(tmp_path / f"{folder}.apk", {**members, f"lib/{folder}/{NAME}": program}))["findings"]
        assert [row["rule"] for row in found] == wanted
