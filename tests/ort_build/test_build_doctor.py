"""What is missing on a machine, and what a failed build's log tells."""

import os
from pathlib import Path

import pytest

from pipeline.config import Platform
from pipeline.config.tables import Dependencies
from pipeline.core.errors import MissingError
from pipeline.ort_build.doctor import Check, android_folders, examine, look, require
from pipeline.ort_build.run import cause_of, excerpt
from tests.ort_build.build_requests import request


def tool(folder: Path, name: str, says: str) -> None:
    """A program that prints what a tool of some version prints."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)


def checks_by_name(checks: tuple[Check, ...]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole search path, with a shell and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("sys.executable", str(folder / "python3"))
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree of release 1.23.2, whose CMake file demands CMake 3.28."""
    folder = tmp_path / "src"
    (folder / "cmake").mkdir(parents=True)
    (folder / "VERSION_NUMBER").write_text("1.23.2\n")
    (folder / "cmake/CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.28)\n")
    return folder


def test_versions_are_read_as_the_tools_print_them(programs: Path) -> None:
    for name, says in (("cmake", "cmake version 3.31.6"), ("javac", "javac 17.0.15"), ("ninja", "1.12.1")):
        tool(programs, name, says)
    found = [look((name, "--version")) for name in ("cmake", "javac", "ninja", "nothing")]
    assert found == ["3.31.6", "17.0.15", "1.12.1", None]


def test_a_cmake_that_is_too_old_for_the_tree_is_missing(programs: Path, tree: Path, tmp_path: Path) -> None:
    for name, says in (("cmake", "cmake version 3.25.1"), ("ninja", "1.12.1"), ("c++", "g++ (Debian) 14.2.0")):
        tool(programs, name, says)
    found = checks_by_name(examine(request(Platform.LINUX), tree, tmp_path, {}))
    assert not found["cmake"].good
    assert "3.28 or newer" in found["cmake"].why
    assert [found[name].good for name in ("source tree", "ninja", "c++", "disk")] == [True] * 4
    tool(programs, "cmake", "cmake version 3.28.0")
    assert checks_by_name(examine(request(Platform.LINUX), tree, tmp_path, {}))["cmake"].good


def test_everything_that_is_missing_is_named_with_its_remedy(programs: Path, tmp_path: Path) -> None:
    checks = examine(request(Platform.IOS), None, tmp_path, {})
    with pytest.raises(MissingError) as raised:
        require(checks)
    assert raised.value.exit_code == 3
    assert all(name in raised.value.what for name in ("source tree", "cmake", "xcodebuild"))
    assert "a Mac with Xcode" in raised.value.remedy
    require(tuple(check for check in checks if check.good))


def test_the_newest_ndk_inside_the_sdk_is_found(programs: Path, tmp_path: Path) -> None:
    for version in ("9.0.1", "27.2.12479018"):
        (tmp_path / "ndk" / version).mkdir(parents=True)
        (tmp_path / "ndk" / version / "source.properties").write_text(f"Pkg.Revision = {version}\n")
    (tmp_path / "ndk/28.0.0").mkdir()  # an empty folder is no NDK
    (tmp_path / "platforms/android-34").mkdir(parents=True)
    assert android_folders({"ANDROID_HOME": str(tmp_path)}) == (tmp_path, tmp_path / "ndk/27.2.12479018")
    assert android_folders({"ANDROID_NDK_HOME": "/nowhere"}) == (None, None)
    found = checks_by_name(examine(request(), None, tmp_path, {"ANDROID_HOME": str(tmp_path)}))
    assert found["Android SDK"].good
    assert found["Android NDK"].present.endswith("27.2.12479018")


@pytest.mark.parametrize(("flag", "good"), [("--use_vcpkg_ms_internal_asset_cache", False), ("--use_vcpkg", True)])
def test_a_script_that_blocks_downloads_is_found_before_the_build(
    flag: str, good: bool, programs: Path, tree: Path, tmp_path: Path
) -> None:
    script = tree / "tools/ci_build/github/android/build_aar_package.py"
    script.parent.mkdir(parents=True)
    script.write_text(f"command += ['{flag}']\n")
    checks = checks_by_name(examine(request(), tree, tmp_path, {}))
    assert checks["downloads by vcpkg"].good is good
    assert not checks["gradle-wrapper.jar"].good


def test_system_dependencies_are_checked_before_cmake_is_asked(programs: Path, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    asked = request(Platform.LINUX, dependencies=Dependencies.SYSTEM, onnx_source=str(tmp_path))
    name = "source of ONNX"
    assert not checks_by_name(examine(asked, tree, tmp_path, os.environ))[name].good
    (tmp_path / "onnx/onnx-ml.proto").write_text("")
    assert checks_by_name(examine(asked, tree, tmp_path, os.environ))[name].good


LOGS = [
    ("CMake Error: CMake 3.28 or higher is required.  You are running version 3.25.1", "CMake is older than 3.28"),
    ("ort-mobile: missing system dependency: libre2-dev (no CMake target re2::re2)", "libre2-dev (no CMake target"),
    ("c++: fatal error: Killed signal terminated program cc1plus", "ran out of memory"),
    ("/tmp/x.s: Fatal error: can't write: No space left on device", "the disk is full"),
    ("build.py: error: unrecognized arguments: --use_qmx", "does not know --use_qmx"),
    ("build.py: error: argument --config: invalid choice: 'x'", "refuses --config: invalid choice"),
    ("ModuleNotFoundError: No module named 'flatbuffers'", "lacks flatbuffers"),
    ("curl: (6) Could not resolve host: github.com", "could not be downloaded"),
    ("error: x-azurl,...;x-block-origin", "Microsoft's own mirror only"),
    ("Error: Could not find or load main class org.gradle.wrapper.GradleWrapperMain", "gradle-wrapper.jar is missing"),
    ('xcodebuild: error: SDK "iphoneos" cannot be located.', 'SDK "iphoneos" cannot be located.'),
]


@pytest.mark.parametrize(("line", "why"), LOGS)
def test_known_causes(line: str, why: str) -> None:
    cause = cause_of(f"[1/468] Building x.o\n{line}\n[2/468] Building y.o\n")
    assert cause is not None
    assert why in cause.what
    assert cause.remedy


def test_an_unknown_failure_shows_its_first_error() -> None:
    log = "\n".join(
        [*(f"[{n}/9] Building {n}.o" for n in range(9)), "FAILED: a.o", "a.cc:1: error: what", "ninja: stopped"]
    )
    assert cause_of(log) is None
    assert excerpt(log).splitlines() == ["FAILED: a.o", "a.cc:1: error: what", "ninja: stopped"]
    assert excerpt("only\nprogress\n").splitlines() == ["only", "progress"]
    assert excerpt("") == ""
