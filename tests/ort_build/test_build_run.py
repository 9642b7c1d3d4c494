"""Running plans: a small tree whose build.py writes a small file; processes, logs and the cache are real."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from device_runner.errors import pip_install
from pipeline.config import Platform
from pipeline.config.tables import BuildKind
from pipeline.core.errors import PipelineError
from pipeline.ort_build.plan import BuildStep
from pipeline.ort_build.run import builds_in, read_record, run_build, run_step
from pipeline.required_ops import parse
from tests.command import ROOT
from tests.ort_build.build_requests import request

BUILD_PY = """
import argparse, pathlib, sys
p = argparse.ArgumentParser(allow_abbrev=False)
p.add_argument("--build_dir"); p.add_argument("--config"); p.add_argument("--include_ops_by_config")
a, _ = p.parse_known_args()
out = pathlib.Path(a.build_dir, a.config); out.mkdir(parents=True, exist_ok=True)
runs = out / "runs"; runs.write_text((runs.read_text() if runs.exists() else "") + "x")
print("[1/2] compiling", flush=True)
print("[2/2] linking", file=sys.stderr, flush=True)
pathlib.Path(out, "libonnxruntime.so.1.23.2").write_bytes(pathlib.Path(a.include_ops_by_config).read_bytes())
"""
NO_CHANGE = parse("ai.onnx;13;Relu\n", "c")


def source(folder: Path, script: str) -> Path:
    (folder / "tools/ci_build").mkdir(parents=True, exist_ok=True)
    (folder / "tools/ci_build/build.py").write_text(script)
    return folder


def quiet(line: str, seconds: float) -> None:
    assert seconds >= 0


def test_a_build_is_kept_and_not_made_twice(tmp_path: Path) -> None:
    tree = source(tmp_path / "src", BUILD_PY)
    asked, cache = request(Platform.LINUX, kind=BuildKind.MINIMAL), tmp_path / "cache"
    build = run_build(asked, tree, cache, quiet)
    folder, record = build.folder, build.record
    assert build.fresh
    assert run_build(asked, tree, cache, quiet) == replace(build, fresh=False)
    (file,) = record.files
    assert (file.file, file.abi) == ("x86_64/libonnxruntime.so", "x86_64")
    assert (folder / file.file).stat().st_size == file.size_bytes
    assert [record for _, record in builds_in(cache)] == [record]


def test_other_operators_use_the_same_tree_and_other_sources_do_not(tmp_path: Path) -> None:
    tree, cache = source(tmp_path / "src", BUILD_PY), tmp_path / "cache"
    run_build(request(Platform.LINUX), tree, cache, quiet)
    run_build(request(Platform.LINUX, operators=NO_CHANGE), tree, cache, quiet)
    assert [path.read_text() for path in cache.glob("trees/*/linux/MinSizeRel/runs")] == ["xx"]
    run_build(request(Platform.LINUX), source(tmp_path / "src", BUILD_PY + "# mended\n"), cache, quiet)
    assert len(list(cache.glob("trees/*"))) == 2
    assert len(builds_in(cache)) == 3


def test_a_damaged_build_is_made_again(tmp_path: Path) -> None:
    tree, cache = source(tmp_path / "src", BUILD_PY), tmp_path / "cache"
    build = run_build(request(Platform.LINUX), tree, cache, quiet)
    folder, record = build.folder, build.record
    library = folder / record.files[0].file
    library.write_bytes(library.read_bytes()[:-1])
    assert read_record(folder) is None
    assert run_build(request(Platform.LINUX), tree, cache, quiet).fresh


@pytest.mark.parametrize("text", ["", "{", '{"format": 1}', "[]", "\ufeff", "null"])
def test_a_record_that_is_none_is_no_build(text: str, tmp_path: Path) -> None:
    (tmp_path / "build.json").write_text(text)
    assert read_record(tmp_path) is None


def test_a_failure_tells_cause_log_and_first_error(tmp_path: Path) -> None:
    script = "print('ModuleNotFoundError: No module named \\'flatbuffers\\'', flush=True)\nraise SystemExit(7)\n"
    cache = tmp_path / "cache"
    with pytest.raises(PipelineError) as raised:
        run_build(request(Platform.LINUX), source(tmp_path / "src", script), cache, quiet)
    error = raised.value
    assert "exit code 7" in error.what
    assert error.why.startswith("the build's Python lacks flatbuffers")
    assert error.remedy == pip_install("flatbuffers")
    assert Path(error.where).read_text().startswith("ModuleNotFoundError")
    assert builds_in(cache) == []


def test_a_build_that_leaves_nothing_is_a_failure(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(PipelineError, match="without what it was for"):
        run_build(request(Platform.LINUX), source(tmp_path / "src", "print('done')\n"), cache, quiet)
    assert builds_in(cache) == []
    assert not list(cache.glob(".build-*"))


def test_two_builds_never_share_a_tree_at_once(tmp_path: Path) -> None:
    wait = f"import time\nwhile not pathlib.Path({str(tmp_path / 'met')!r}).exists(): time.sleep(0.05)\n"
    tree, cache = source(tmp_path / "src", BUILD_PY + wait), tmp_path / "cache"
    met: list[PipelineError] = []

    def second(line: str, seconds: float) -> None:
        if not met:
            with pytest.raises(PipelineError, match="running already") as raised:
                run_build(request(Platform.LINUX, operators=NO_CHANGE), tree, cache, quiet)
            met.append(raised.value)
            (tmp_path / "met").touch()

    run_build(request(Platform.LINUX), tree, cache, second)
    assert len(met) == 1


def test_progress_is_the_last_line_of_the_log(tmp_path: Path) -> None:
    log, lines = tmp_path / "log", []
    script = "import time; print('[1/9] first', flush=True); time.sleep(1.2); print('end')"
    step = BuildStep(name="s", arguments=(sys.executable, "-c", script), folder=str(tmp_path))
    assert run_step(step, log, os.environ, lambda line, _: lines.append(line)) == 0
    assert "[1/9] first" in lines
    assert log.read_text().endswith("end\n")


PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(asks_for_{name} LANGUAGES NONE)
include(FetchContent)
FetchContent_Declare({name} URL https://example.invalid/never-downloaded.zip)
FetchContent_MakeAvailable({name})
"""


@pytest.mark.parametrize(
    ("name", "package"), [("flatbuffers", "libflatbuffers-dev"), ("GSL", "libmsgsl-dev"), ("kleidiai", "kleidiai")]
)
def test_cmake_names_the_package_that_a_system_lacks(name: str, package: str, tmp_path: Path) -> None:
    """The real CMake with the real provider file; nothing of the system is found below an empty root."""
    from pipeline.ort_build.run import cause_of

    version = (
        ["cmake"]
        if shutil.which("cmake") is None
        else subprocess.run(["cmake", "--version"], capture_output=True, text=True, check=False).stdout.split()
    )
    if len(version) < 3 or tuple(map(int, version[2].split(".")[:2])) < (3, 24):
        pytest.skip("no CMake of 3.24 or newer: dependency providers cannot be tried")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(name=name))
    (tmp_path / "provider.cmake").write_text((ROOT / "pipeline/ort_build/system_dependencies.cmake").read_text())
    done = subprocess.run(
        [
            "cmake", "-S", ".", "-B", "build", "-DCMAKE_PROJECT_TOP_LEVEL_INCLUDES=provider.cmake",
            f"-DCMAKE_FIND_ROOT_PATH={tmp_path / 'empty'}", "-DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY",
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    cause = cause_of(done.stderr)
    assert cause is not None
    assert package in cause.what
