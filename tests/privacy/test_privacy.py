"""Nothing leaves the machine unasked: every command traced, and telemetry of ONNX Runtime off wherever it is loaded."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from device_runner import NO_TELEMETRY, TELEMETRY_VARIABLE
from device_runner.adb.device import PERF_TEST_RUN, RUN
from tests.configs import DESK, short
from tests.privacy.tracing import ROOT, compile_tracer, own_folders, trace

MNIST = ROOT / "build_configs" / "examples" / "mnist" / "mnist.onnx"
TELEMETRY_SINCE = (1, 29)
CONFIG = f"""
name = "mnist"
[[models]]
path = "{MNIST}"
{DESK}
[variants]
levels = ["basic", "extended"]
{short(min_runs=2)}
"""
LIBRARY_USE = f"""
import {{package}}
import onnxruntime
onnxruntime.InferenceSession({str(MNIST)!r}, providers=["CPUExecutionProvider"])
"""


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_tracer(tmp_path_factory.mktemp("tracer"))


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of somebody who gives one command after the other: the probe is built once."""
    home = tmp_path_factory.mktemp("user")
    (home / "work").mkdir()
    (home / "work" / "mnist.toml").write_text(CONFIG)
    return home


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", MNIST, "--output", "converted", "--level", "none,basic,extended,all", "--check"),
        ("partition", MNIST, "--ep", "nnapi", "--optimize", "basic", "--advise"),
        ("run", "mnist.toml", "--output", "out"),
        ("perf", MNIST, "--device", "local", "--rounds", "2", "--min-seconds", "0.01"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_commands_contact_nobody_and_write_to_their_folders_only(
    tracer: Path, user: Path, arguments: tuple[str | Path, ...]
) -> None:
    traced = trace(tracer, [sys.executable, "-m", "pipeline", *arguments], user)
    assert traced.code == 0, traced.output
    assert traced.contacted == ()
    assert traced.outside(*own_folders(user)) == []
    assert traced.written, "the trace shows nothing at all"


@pytest.mark.parametrize("package", ["pipeline", "device_runner"])
def test_packages_used_from_python_contact_nobody(tracer: Path, tmp_path: Path, package: str) -> None:
    traced = trace(tracer, [sys.executable, "-c", LIBRARY_USE.format(package=package)], tmp_path)
    assert traced.code == 0, traced.output
    assert (traced.contacted, traced.written) == ((), ())


@pytest.mark.skipif(
    tuple(map(int, importlib.metadata.version("onnxruntime").split(".")[:2])) < TELEMETRY_SINCE,
    reason="the installed onnxruntime has no telemetry",
)
def test_the_trace_shows_the_telemetry_of_a_wheel_without_the_variable(tracer: Path, tmp_path: Path) -> None:
    """It ends at once, before anything is sent."""
    traced = trace(tracer, [sys.executable, "-c", "import onnxruntime, os; os._exit(0)"], tmp_path)
    assert any("Microsoft" in path.parts for path in traced.outside(*own_folders(tmp_path)))


def test_the_trace_shows_what_threads_and_children_do(tracer: Path, tmp_path: Path) -> None:
    code = """
import pathlib, socket, subprocess, sys, threading
def reach():
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))
    with socket.socket() as stream:
        stream.connect_ex(("127.0.0.1", 9))
thread = threading.Thread(target=reach)
thread.start()
thread.join()
subprocess.run(["sh", "-c", "echo x > ../elsewhere"])
pathlib.Path("../folder").mkdir()
"""
    traced = trace(tracer, [sys.executable, "-c", code], tmp_path)
    assert traced.contacted == ("127.0.0.1:9", "127.0.0.1:9")
    assert traced.outside(*own_folders(tmp_path)) == [tmp_path / "elsewhere", tmp_path / "folder"]


@pytest.mark.parametrize("package", ["pipeline", "device_runner", "tests", "benchmarks"])
def test_importing_a_package_switches_telemetry_off_whatever_was_set(package: str) -> None:
    code = f"import {package}, os; print(os.environ[{TELEMETRY_VARIABLE!r}])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), TELEMETRY_VARIABLE: "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_programs_on_a_phone_start_with_telemetry_off(tmp_path: Path) -> None:
    """Both scripts, run by this computer's shell with a program that prints its environment."""
    (tmp_path / "env").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "env").chmod(0o755)
    program, folder = str(tmp_path / "env"), str(tmp_path / "run")
    for script, arguments in ((RUN, [folder, "1", program, "/"]), (PERF_TEST_RUN, [folder, "--", program])):
        environment = {"PATH": os.defpath}
        command = ["sh", "-c", script, "sh", *arguments]
        stdin, stays_open = os.pipe()  # its end would end the program
        os.write(stays_open, b"x")
        done = subprocess.run(command, env=environment, stdin=stdin, capture_output=True, text=True, check=True)
        os.close(stdin)
        os.close(stays_open)
        assert NO_TELEMETRY in done.stdout.splitlines()
