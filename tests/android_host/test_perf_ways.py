"""Streams, callers and batches of `perf` in the genuine Android library, as on this computer."""

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from device_runner.device import open_device
from device_runner.result import Status
from device_runner.spec import RunOptions, RunSpec
from tests import onnx_samples
from tests.android_host.conftest import fetch
from tests.command import ort_mobile
from tests.python_packages import download
from tests.threads import places_during

pytestmark = pytest.mark.android_host
SHORT = ("--rounds", "1", "--min-runs", "2", "--min-seconds", "0.01", "--json", "-")
DEVICE = ("--device", "android-host:android:1.29.0")
VAD = (
    "--dimension", "input[0]=1", "--dimension", "input[1]=576", "--dimension", "state[1]=1", "--input", "sr=16000",
    "--stream", "1000", "--state", "stateN=state",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def the_library() -> None:
    fetch("1.29.0")


def measured(name: str, *words: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ort_mobile("perf", *words, *SHORT).document()[name]
    return rows


@pytest.mark.network
@pytest.mark.parametrize("device", [pytest.param((), marks=pytest.mark.nightly), DEVICE], ids=["local", "android-host"])
def test_a_voice_detector_is_the_original_after_a_thousand_steps(device: tuple[str, ...], tmp_path: Path) -> None:
    wheel = download("silero-vad==6.2.3", tmp_path)
    model = zipfile.ZipFile(wheel).extract("silero_vad/data/silero_vad.onnx", tmp_path)
    (row,) = measured("streams", model, *VAD, *device)
    assert row["steps"] == 1000
    assert [(check["output"], check["passed"]) for check in row["checks"]] == [("output", True), ("stateN", True)]


def test_callers_share_arena_and_threads(mnist: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(mnist.read_bytes())
    (row,) = measured("callers", mnist, other, *DEVICE, "--concurrent", "2:own:together:arena:pool")
    assert (row["callers"], row["own_sessions"], row["shared"]) == (2, True, ["arena", "pool"])
    assert row["throughput"] > 0
    assert row["beside"]["other.onnx"] > 0


def test_threads_of_the_pool_have_their_cores_and_nice_value(mnist: Path) -> None:
    core = max(os.sched_getaffinity(0))
    options = RunOptions(intra_op_threads=3, thread_cores=str(core + 1), thread_nice=7)
    spec = RunSpec(id="mnist", model=str(mnist), options=options, min_seconds=0.5, warmup=1)
    with open_device("android-host:android:1.29.0") as device:
        result, places = places_during(lambda: device.run(spec))
    assert result.status is Status.OK, result.failure
    assert (str(core), 7) in places


def test_batches(tmp_path: Path) -> None:
    model = onnx_samples.save(onnx_samples.linear(64), tmp_path / "a.onnx")
    rows = measured("callers", model, *DEVICE, "--dimension", "batch=1", "--batch", "1,64")
    assert rows[1]["throughput"] > rows[0]["throughput"] > 0
