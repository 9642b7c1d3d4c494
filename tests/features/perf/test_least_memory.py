"""The least private memory of a file, against runs within it and within less."""

import re
import sys
from pathlib import Path

import msgspec
import onnx
import pytest

from device_runner.build import build_probe
from device_runner.local import LocalDevice
from device_runner.result import Failure, FailureKind, RunResult, Status
from device_runner.spec import RunOptions, RunSpec
from pipeline.features.perf import least_memory
from pipeline.features.perf.least_memory import LeastMemoryRow
from tests.command import ort_mobile
from tests.ort_models import MODELS, convert

OUT_OF_BOUNDS = """<ir_version: 9, opset_import: ["": 17]> m (float[3] x) => (float[1] y)
<int64[1] place = {7}> { y = Gather(x, place) }"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS limits no process's private memory")
def test_a_file_runs_within_its_least_memory_and_not_within_less(tmp_path: Path) -> None:
    file = convert(MODELS["conv_relu"], tmp_path / "m.ort")
    ended = ort_mobile("perf", file, "--quick", "--threads", "1", "--least-memory", "--json", "-", cwd=tmp_path)
    ((name, least),) = [(row["file"], row) for row in ended.document()["least_memory"]]
    assert name == "m.ort"
    assert least["too_few_bytes"] < least["fits_bytes"] < 1.04 * least["too_few_bytes"]
    spec = RunSpec(id="m", model=str(file), options=RunOptions(intra_op_threads=1), min_runs=1, min_seconds=0.0)
    for share, status in ((1.03, Status.OK), (0.9, Status.FAILED)):
        limited = msgspec.structs.replace(spec, data_limit_bytes=round(share * least["fits_bytes"]))
        assert LocalDevice(build_probe()).run(limited).status is status


def test_a_file_that_does_not_run_has_no_least_memory(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(OUT_OF_BOUNDS), tmp_path / "m.onnx")
    ended = ort_mobile("perf", "m.onnx", "--quick", "--least-memory", cwd=tmp_path, code=1)
    assert "out of data bounds" in ended.out
    assert re.search(r"^m\.onnx +cpu +- +- +-$", ended.out, re.MULTILINE)


def test_only_the_probe_limits_memory(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").touch()
    ended = ort_mobile("perf", "m.onnx", "--least-memory", "--perf-test", "m.onnx", cwd=tmp_path, code=2)
    assert "leave out --perf-test" in ended.err


class Limited:
    """A device on which a file needs 300 MB, and hangs within less than 250."""

    def run(self, spec: RunSpec) -> RunResult:
        limit = spec.data_limit_bytes or 10**12
        passed = RunResult(spec_id="m", device="d", status=Status.OK, elapsed_ns=10**9, memory_peak_bytes=200 * 10**6)
        code = FailureKind.TIMEOUT if limit < 250 * 10**6 else FailureKind.OUT_OF_MEMORY
        failed = RunResult(spec_id="m", device="d", status=Status.FAILED, failure=Failure(code=code, what="no"))
        return passed if limit >= 300 * 10**6 else failed


def test_a_session_that_hangs_within_a_limit_has_too_little() -> None:
    row = LeastMemoryRow(file="m", run="cpu")
    least = least_memory.measured(row, Limited(), RunSpec(id="m", model="m"))  # type: ignore[arg-type]
    assert not least.failure
    assert least.too_few_bytes < 300 * 10**6 <= least.fits_bytes < 1.04 * least.too_few_bytes
