"""What the fake driver does wrong where its profile says so, each in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_runner.android_host.device import (
    Driver,
    DriverProfile,
    DriverStage,
    Fault,
    FaultKind,
    encode_profile,
)
from tests.android_host.fake_nnapi import FakeModel
from tests.command import ROOT

VALUES = np.linspace(1, 8, 16, dtype=np.float32).reshape(1, 16)


def answers() -> None:
    """Run the identity three times; their outputs to stdout."""
    for _ in range(3):
        with FakeModel() as model:
            out, result = model.operand("TENSOR_FLOAT32", VALUES.shape), np.empty_like(VALUES)
            model.operation("RELU", [model.input(VALUES)], [out])
            code = model.run({out: result})
        sys.stdout.buffer.write(result.tobytes() if not code else b"")
        sys.stdout.flush()


def met(folder: Path, fault: Fault) -> tuple[int, "list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]"]:
    """The end of a process with a driver that has this fault, and what it gave."""
    driver = Driver(name="npu", feature_level=31)
    (folder / "driver").write_text(encode_profile(DriverProfile(devices=(driver,), faults=(fault,)), 31))
    code = "from tests.android_host import test_faults; test_faults.answers()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False,
        env={**os.environ, "ORT_MOBILE_NNAPI_PROFILE": str(folder / "driver")},
    )  # fmt: skip
    return done.returncode, list(np.frombuffer(done.stdout, np.float32).reshape(-1, VALUES.size))


@pytest.mark.parametrize(
    ("kind", "number"),
    [(FaultKind.CRASH, signal.SIGSEGV), (FaultKind.ABORT, signal.SIGABRT), (FaultKind.ILLEGAL, signal.SIGILL)],
)
def test_a_process_ends_by_the_signal_of_the_fault(kind: FaultKind, number: signal.Signals, tmp_path: Path) -> None:
    code, outputs = met(tmp_path, Fault(stage=DriverStage.RUN, kind=kind, first=2))
    assert (code, len(outputs)) == (-number, 1)


@pytest.mark.parametrize("kind", [FaultKind.NAN, FaultKind.ZEROS, FaultKind.NOISE, FaultKind.PERMUTED])
def test_outputs_are_wrong_from_a_call_on(kind: FaultKind, tmp_path: Path) -> None:
    code, outputs = met(tmp_path, Fault(stage=DriverStage.RUN, kind=kind, first=2, count=1))
    expected = VALUES.reshape(-1)
    assert code == 0
    assert np.array_equal(outputs[0], expected)
    assert np.array_equal(outputs[2], expected)
    spoiled = outputs[1]
    if kind is FaultKind.NAN:
        assert np.isnan(spoiled).sum() == 1
    elif kind is FaultKind.ZEROS:
        assert not spoiled.any()
    elif kind is FaultKind.PERMUTED:
        assert np.array_equal(spoiled, np.roll(expected, -1))
    else:
        off = np.abs(spoiled - expected)
        assert 0 < off.mean() < off.max() <= 0.25 * expected.max()


def test_a_slow_call_gives_what_the_others_give(tmp_path: Path) -> None:
    code, outputs = met(tmp_path, Fault(stage=DriverStage.RUN, kind=FaultKind.SLOW, first=2, delay_ns=1_000_000))
    assert code == 0
    assert all(np.array_equal(output, VALUES.reshape(-1)) for output in outputs)
