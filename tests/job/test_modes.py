"""The modes of [measure] through the commands, with the real probe: tables of their own, and the pilot before them; and
what measures in place of the probe.
"""

import json
from pathlib import Path

import pytest

from tests.command import ort_mobile
from tests.configs import BASIC, EVERY, MNIST, short
from tests.job.test_job import EXAMPLE
from tests.perf_tests import stand_in

CONFIG = f"""
name = "modes"
[[models]]
path = "{EXAMPLE / "mnist.onnx"}"
{BASIC}{EVERY}
threads = [1, 2]
{short(4, 12)}
mode = ["steady", "cold", "sustained"]
sustained_seconds = 1
"""


@pytest.mark.long
def test_each_mode_is_measured_and_reported_apart(tmp_path: Path) -> None:
    (tmp_path / "modes.toml").write_text(CONFIG)
    ort_mobile("run", tmp_path / "modes.toml", "--output", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["rounds"] for row in report["rows"]] == [4, 4]
    assert [next(key for key in ("cold", "sustained") if row[key]) for row in report["modes"]] == ["cold"] * 2 + [
        "sustained"
    ] * 2
    cold, other = (row["cold"] for row in report["modes"][:2])
    assert cold["rounds"] == 4
    assert other["comparison"]["rounds"] == 4
    assert [row["baseline"] for row in report["modes"]] == [True, False, True, False]
    assert all(row["sustained"]["inferences"] > 100 for row in report["modes"][2:])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "median latency over time" in page
    assert "## Cold start: mnist on local" in (tmp_path / "out" / "report.md").read_text()
    again = ort_mobile("run", tmp_path / "modes.toml", "--output", tmp_path / "out", "--resume")
    assert "measure: nothing to do" in again.err, again.err


@pytest.mark.long
def test_a_plan_says_what_rounds_find(tmp_path: Path) -> None:
    (tmp_path / "modes.toml").write_text(CONFIG)
    wanted = ("--percent", "5", "--json", tmp_path / "plan.json")
    ended = ort_mobile("run", tmp_path / "modes.toml", "--plan", *wanted)
    assert "against itself in 5 rounds" in ended.out
    (answer,) = json.loads((tmp_path / "plan.json").read_text())["answers"]
    assert (answer["rounds"], answer["runs_in_round"], answer["planned_rounds"]) == (5, 4, 4)
    assert [row["percent"] for row in answer["needed"]] == [5.0]
    assert answer["run_seconds"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {"modes.toml", "plan.json"}


PERF_TEST = f"""
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
"""A campaign that is measured by onnxruntime_perf_test: times in the report, and no word on outputs that it has not."""


@pytest.mark.long
def test_times_without_outputs(tmp_path: Path) -> None:
    stand_in(tmp_path, 0)
    (tmp_path / "tool.toml").write_text(PERF_TEST)
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
