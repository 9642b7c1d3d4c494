"""onnxruntime_perf_test on a real adbd: its files in place, its results the same, nothing left running."""

import subprocess
import threading
import time
from pathlib import Path

import pytest

from device_runner.local import wheel_library
from device_runner.result import FailureKind, Mark, Status
from device_runner.spec import RunSpec
from tests.device.adb_farm import Farm, Open, Phone
from tests.device_runner.test_perf_test import EXAMPLE, tensor_file
from tests.perf_tests import real_perf_test, stand_in


def spec_with(program: Path, folder: Path, **more: object) -> RunSpec:
    quick = {"id": "x", "model": str(EXAMPLE), "perf_test": str(program), "min_runs": 4, "min_seconds": 0.0, **more}
    return RunSpec(inputs=(tensor_file(folder),), **quick)  # type: ignore[arg-type] # the tests name real fields


def running(program: Path) -> bool:
    """Whether a program of that content runs; on the device it has its digest for a name."""
    from device_runner.files import sha256

    return subprocess.run(["pgrep", "-f", sha256(program)], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("behaviour", "kind"), [(0, None), (1, FailureKind.CRASH), (3, FailureKind.GARBAGE)])
def test_its_results_are_those_of_any_run(
    opened: Open, phone: Phone, tmp_path: Path, behaviour: int, kind: FailureKind | None
) -> None:
    record = f"*** *** ***\nCmdline: {phone.root}/store/x\nsignal 11 (SIGSEGV), code 1"
    phone.write("log", record)
    result = opened(phone).run(spec_with(stand_in(tmp_path, behaviour), tmp_path))
    assert (result.failure and result.failure.code) == kind, result.failure
    if kind is None:
        assert len(result.latencies_ns) == 4
        assert {Mark.PERF_TEST, Mark.NOT_A_PHONE} <= set(result.marks)
        assert result.before.battery_percent == 84
    else:
        assert result.latencies_ns == ()
        assert any("signal 11" in line for line in result.log) is (kind is FailureKind.CRASH)


def test_at_the_time_limit_it_is_killed(opened: Open, phone: Phone, tmp_path: Path) -> None:
    program = stand_in(tmp_path, 2)
    device = opened(phone)
    result = device.run(spec_with(program, tmp_path, timeout_seconds=2.0))
    assert result.failure
    assert result.failure.code is FailureKind.TIMEOUT
    assert not running(program)
    assert device.run(spec_with(stand_in(tmp_path, 0), tmp_path)).status is Status.OK


def test_it_dies_with_the_connection(opened: Open, farm: Farm, tmp_path: Path) -> None:
    phone = farm.phone()
    program = stand_in(tmp_path, 2)
    device = opened(phone)
    waiting = threading.Thread(target=device.run, args=(spec_with(program, tmp_path, timeout_seconds=600.0),))
    waiting.start()
    end = time.monotonic() + 300
    while not running(program):
        assert time.monotonic() < end
        time.sleep(0.05)
    phone.stop()
    waiting.join(300)
    while running(program):
        assert time.monotonic() < end + 20
        time.sleep(0.05)


def test_a_program_for_another_processor_is_not_pushed(opened: Open, phone: Phone, tmp_path: Path) -> None:
    program = tmp_path / "arm"
    data = bytearray(stand_in(tmp_path, 0).read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    program.write_bytes(data)
    result = opened(phone).run(spec_with(program, tmp_path))
    assert result.failure
    assert result.failure.code is FailureKind.WRONG_LIBRARY
    assert "arm64-v8a" in result.failure.what


def test_the_real_one(opened: Open, phone: Phone, tmp_path: Path) -> None:
    program = real_perf_test()
    library, outputs = str(wheel_library()), str(tmp_path / "o")
    result = opened(phone).run(spec_with(program, tmp_path, library=library, profile=True, outputs_folder=outputs))
    assert result.failure is None, result.failure
    assert len(result.latencies_ns) == 4
    assert Path(str(result.profile_file)).is_file()
