"""Models with state as streams in Android's libraries: equal to the original in each of 1,000 steps."""

import zipfile
from pathlib import Path

import pytest

from tests import onnx_samples
from tests.command import ort_mobile
from tests.features.perf.test_stream import SHORT, STATES, lstm, row_of
from tests.python_packages import download

pytestmark = pytest.mark.android_host

VAD = "silero_vad_op18_ifless.onnx"


@pytest.mark.parametrize("abi", ["x86_64", "arm64-v8a"])
def test_a_thousand_steps_of_an_lstm(abi: str, release: str, tmp_path: Path) -> None:
    model = onnx_samples.save(lstm(), tmp_path / "lstm.onnx")
    device = f"android-host:android:{release}?abi={abi}"
    row = row_of(ort_mobile("perf", model, "--device", device, "--stream", "1000", *STATES, *SHORT))
    assert [(check["output"], check["passed"]) for check in row["checks"]] == [("y", True), ("h1", True), ("c1", True)]
    assert sorted(row["tracked"]) == ["c1", "h1", "y"]
    assert (row["median_ns"] > 0) is (abi == "x86_64")  # an emulator's times say nothing


@pytest.mark.parametrize("device", [pytest.param("local", marks=pytest.mark.nightly), "android-host:android:{}"])
def test_a_real_detector_of_voices(release: str, device: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(download("silero-vad==6.2.3", tmp_path)) as wheel:
        (tmp_path / VAD).write_bytes(wheel.read(f"silero_vad/data/{VAD}"))
    ort_mobile("convert", tmp_path / VAD, "--output", tmp_path / "out", "--level", "extended", "--style", "fixed")
    (file,) = (tmp_path / "out").glob("*.ort")
    words = ("--stream", "1000", "--state", "stateN=state", "--original", tmp_path / VAD, "--input", "sr=16000",
             "--dimension", "batch=1", "--dimension", "sequence=576", *SHORT)  # fmt: skip
    row = row_of(ort_mobile("perf", file, "--device", device.format(release), *words))
    assert (row["steps"], row["failure"], sorted(row["tracked"])) == (1000, "", ["output", "stateN"])
    assert [(check["output"], check["passed"]) for check in row["checks"]] == [("output", True), ("stateN", True)]
