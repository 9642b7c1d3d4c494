"""`python -m device_runner`: one spec in, one result out, with nothing else installed in between."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from device_runner.result import FailureKind, RunResult
from device_runner.spec import RunSpec, encode
from device_runner.untrusted_files import decode_json


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "device_runner", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def spec(models: Path, tmp_path: Path) -> Path:
    path = tmp_path / "spec.json"
    path.write_bytes(encode(RunSpec(id="one", model=str(models / "null.onnx"), min_runs=2, min_seconds=0.0)))
    return path


def test_a_spec_gives_a_result(spec: Path, tmp_path: Path) -> None:
    done = run(str(spec), "--device", "local", "--output", str(tmp_path / "result.json"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    result = decode_json((tmp_path / "result.json").read_bytes(), RunResult)
    assert (result.spec_id, len(result.latencies_ns)) == ("one", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result.json", "spec.json"]


def test_a_failed_run_is_a_result_and_exit_code_1(spec: Path, tmp_path: Path) -> None:
    spec.write_text(spec.read_text().replace("null.onnx", "noise.ort"))
    done = run(str(spec))
    assert done.returncode == 1
    failure = decode_json(done.stdout, RunResult).failure
    assert failure
    assert failure.code is FailureKind.MODEL_LOAD


@pytest.mark.parametrize(
    ("content", "arguments", "code", "said"),
    [
        ("{", (), 2, "truncated"),
        ('{"id": "x"}', (), 2, "model"),
        (None, ("--device", "usb"), 2, "begins with"),
        (None, ("--device", "local:x"), 2, "write `local`"),
        (None, ("--output", "/no/such/folder/result.json"), 2, "cannot be written"),
    ],
)
def test_wrong_use_is_a_clear_error(
    spec: Path, content: str | None, arguments: tuple[str, ...], code: int, said: str
) -> None:
    if content:
        spec.write_text(content)
    done = run(str(spec), *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_no_adb_is_a_clear_error(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")
    done = run(str(spec), "--device", "adb:nobody")
    assert done.returncode == 3
    assert "no adb server" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_runner_imports_nothing_of_the_pipeline() -> None:
    code = "import sys, device_runner.__main__, device_runner.local, device_runner.adb.device; print(list(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout.replace("'", '"')))
    assert not {
        name for name in modules if name.split(".")[0] in ("pipeline", "onnx", "onnxruntime", "numpy", "adbutils")
    }
