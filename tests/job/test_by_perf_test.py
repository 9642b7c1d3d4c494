"""A campaign that is measured by onnxruntime_perf_test: times in the report, and no word on outputs that it has not."""

import json
from pathlib import Path

import pytest

from tests.command import ort_mobile
from tests.configs import BASIC, MNIST
from tests.job.test_job import EXAMPLE
from tests.perf_tests import stand_in

CONFIG = f"""
name = "tool"
{MNIST}
labels = "{EXAMPLE / "evaluation.npz"}"
{BASIC}
[[runs]]
provider = ["cpu", "hypothetical"]
variants = ["*"]
[measure]
perf_test = "onnxruntime_perf_test_0"
rounds = 2
warmup = 3
min_runs = 4
min_seconds = 0.00001
"""


@pytest.mark.long
def test_times_without_outputs(tmp_path: Path) -> None:
    stand_in(tmp_path, 0)
    (tmp_path / "tool.toml").write_text(CONFIG)
    ort_mobile("run", tmp_path / "tool.toml", "--output", tmp_path / "out", code=1)
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    cpu, none = report["rows"]
    assert cpu["statistics"]["samples"] == 2 * 4
    assert cpu["statistics"]["median_ns"] == 24677
    assert cpu["checks"] == []
    assert none["status"] == "failed"
    (failure,) = report["failures"]
    assert failure["message"] == "onnxruntime_perf_test has no such provider"
    assert any("no outputs were compared in 2 of 2 rounds" in caution["reason"] for caution in cpu["cautions"])
    assert (tmp_path / "out" / "bundle" / "manifest.json").is_file()
