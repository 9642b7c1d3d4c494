"""A real onnxruntime_perf_test where one is named, and a stand-in for what is around it."""

import os
import subprocess
from pathlib import Path

import pytest

from device_runner.build import host_compiler

VARIABLE = "ORT_MOBILE_PERF_TEST"


def real_perf_test() -> Path:
    """The real program; skips by name where there is none: it is in no package."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} names no onnxruntime_perf_test: a build of ONNX Runtime with its unit tests makes one")
    return Path(named)


def stand_in(folder: Path, behaviour: int) -> Path:
    """The program of stand_in_perf_test.c, compiled to behave so."""
    program = folder / f"onnxruntime_perf_test_{behaviour}"
    source = Path(__file__).with_name("stand_in_perf_test.c")
    command = [*host_compiler()[0], f"-DBEHAVIOUR={behaviour}", "-O1", "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=60, capture_output=True)
    return program
