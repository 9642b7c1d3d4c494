"""`ort-mobile build` as a user meets it: exit codes, what is shown, what is written."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.ort_build.request import read_build_file
from tests.children import ends_soon
from tests.command import Done, ort_mobile
from tests.ort_build.test_build_run import BUILD_PY

ROOT = Path(__file__).resolve().parents[2]
BUILDS = sorted((ROOT / "build_configs/builds").glob("*.toml"))
OPERATORS = "ai.onnx;13;Relu\ncom.microsoft;1;FusedConv\n"


def build(*arguments: object, code: int = 0) -> Done:
    return ort_mobile("build", *arguments, code=code)


@pytest.fixture
def operators(tmp_path: Path) -> Path:
    path = tmp_path / "required_operators.config"
    path.write_text(OPERATORS)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "src", BUILD_PY)


def write_source(folder: Path, script: str) -> Path:
    """A tree with a build.py that takes what plans pass; `script` is what it does then."""
    options = (
        "update build skip_tests skip_submodule_sync build_shared_lib compile_no_warning_as_error enable_lto "
        "enable_reduced_operator_type_support disable_ml_ops allow_running_as_root"
    )
    declared = "".join(f"p.add_argument('--{name}', action='store_true')\n" for name in options.split())
    for name in ("parallel", "minimal_build", "cmake_generator"):
        declared += f"p.add_argument('--{name}', nargs='?')\n"
    declared += "p.add_argument('--cmake_extra_defines', action='append')\n"
    for name in ("build.py", "github/android/build_aar_package.py", "github/apple/build_apple_framework.py"):
        (folder / "tools/ci_build" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tools/ci_build" / name).write_text("")
    script = script.replace("a, _ = p.parse_known_args()", f"{declared}a = p.parse_args()")
    (folder / "tools/ci_build/build.py").write_text(script)
    (folder / "VERSION_NUMBER").write_text("1.23.2\n")
    return folder


@pytest.mark.parametrize("path", BUILDS, ids=lambda path: path.stem)
def test_committed_builds_plan_without_a_word_against_them(path: Path, operators: Path, tmp_path: Path) -> None:
    assert read_build_file(path).target.name == path.stem
    result = build("plan", path, "--op-config", operators, "--output", tmp_path / "out", "--json", "-")
    document = json.loads(result.out)
    assert [finding for finding in document["findings"] if finding["severity"] == "error"] == []
    plan = document["plans"][0]
    assert json.loads((tmp_path / "out" / path.stem / "plan.json").read_text()) == plan
    assert all(Path(file["path"]).read_text() == file["content"] for file in plan["files"])


def test_a_campaign_has_a_plan_for_each_target() -> None:
    result = build("plan", ROOT / "build_configs/mnist.toml")
    heads = [line.split() for line in result.out.splitlines() if not line.startswith(" ")]
    assert [(head[0], head[-1]) for head in heads] == [
        ("android-arm64:", "extended"), ("ios:", "extended"), ("linux-x86_64:", "extended"),
    ]  # fmt: skip


def test_a_contradiction_is_exit_code_4(tmp_path: Path, operators: Path) -> None:
    (tmp_path / "b.toml").write_text(
        '[target]\nname = "t"\nplatform = "android"\n[build]\nkind = "minimal"\nproviders = ["nnapi"]\n'
    )
    result = build("plan", tmp_path / "b.toml", "--op-config", operators, code=4)
    assert "a minimal build cannot contain nnapi" in result.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "the build file cannot be read"),
        ("[target]\n", "this is no build file"),
        ("x = 1\n", "this is no build file"),
        ("[target", "this is not valid TOML"),
        ('[target]\nname="t"\nplatform="android"\n[build]\nkin="x"', "this is no build file"),
    ],
)
def test_a_wrong_build_file_is_a_usage_error(text: str | None, why: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "b.toml").write_text(text)
    assert why in build("plan", tmp_path / "b.toml", code=2).err


def test_doctor_alone_looks_for_android_and_for_this_computer() -> None:
    result = build("doctor", code=3)
    assert "Android NDK" in result.err
    assert "c++" in result.err or "xcodebuild" in result.err


def test_doctor_names_what_is_missing(source: Path) -> None:
    result = build("doctor", "--target", "android-arm64-v8a", "--source", source, code=3)
    assert "gradle-wrapper.jar" in result.err


def test_a_tree_of_another_release_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('[target]\nname = "t"\nplatform = "linux"\nort_release = "1.22"\n')
    result = build("plan", tmp_path / "b.toml", "--source", source, code=2)
    assert "the target wants 1.22" in result.err


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that doctor looks for, in a version that is new enough for any tree."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("cmake", "ninja", "c++"):
        (folder / name).write_text("#!/bin/sh\necho 99.1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin")


@pytest.mark.usefixtures("tools")
def test_a_cancelled_job_ends_what_the_build_started(operators: Path, tmp_path: Path) -> None:
    """A child of the build writes its id and sleeps."""
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    waits = f"import subprocess; subprocess.run([sys.executable, '-c', {child!r}, a.build_dir + '/child'])\n"
    source = write_source(tmp_path / "src", BUILD_PY + waits)
    command = ["build", "run", "--target", "linux-x86_64", "--source", source, "--op-config", operators]
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *map(str, command), "--cache", str(tmp_path / "cache")],
        cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    pids: list[Path] = []
    for _ in range(600):
        pids = [path for path in tmp_path.glob("cache/trees/*/linux/child") if path.read_text()]
        if pids or process.poll() is not None:
            break
        time.sleep(0.1)
    process.terminate()
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert ends_soon(int(pids[0].read_text()))


@pytest.mark.usefixtures("tools")
def test_run_builds_once_and_holds_the_budget(source: Path, operators: Path, tmp_path: Path) -> None:
    config = tmp_path / "b.toml"
    text = '[target]\nname = "t"\nplatform = "linux"\n[build]\nmax_library_bytes = {{ x86_64 = {} }}\n'
    config.write_text(text.format(100_000))
    common = [config, "--source", source, "--op-config", operators, "--cache", tmp_path / "cache"]
    build("run", *common, "--output", tmp_path / "out")
    assert (tmp_path / "out/t/x86_64/libonnxruntime.so").read_text().endswith("com.microsoft;1;FusedConv\n")
    assert "taken from the cache" in build("run", *common).out
    config.write_text(text.format(10))
    over = build("run", *common, code=4)
    assert "over budget" in over.err
    config.write_text(text.format(100_000))
    operators.write_text("ai.onnx;13;Relu\n")
    smaller = build("run", *common)
    assert f"({len('com.microsoft;1;FusedConv') * -1 - 1:+,} bytes)" in smaller.out, "since the last build"
    sizes = build("size", "--cache", tmp_path / "cache")
    assert "x86_64/libonnxruntime.so" in sizes.out


def test_a_dry_run_builds_nothing(source: Path, operators: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    build(
        "run", "--target", "linux-x86_64", "--source", source, "--op-config", operators, "--cache", cache, "--dry-run"
    )
    assert not cache.exists()
