"""Models with `state` through `run`: checked and measured as a stream, on this computer and in what was converted."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import onnx_samples
from tests.command import Done, ort_mobile
from tests.configs import BASIC, short
from tests.features.perf.test_stream import lstm

CONFIG = f"""
name = "stream"
[[models]]
path = "lstm.onnx"
state = {{ h1 = "h0", c1 = "c0" }}
stream_steps = 40
{BASIC}{short(min_runs=2)}
mode = ["steady", "cold"]
"""


def run(folder: Path, change: tuple[str, str] = ("", ""), code: int = 0) -> Done:
    onnx_samples.save(lstm(), folder / "lstm.onnx")
    (folder / "stream.toml").write_text(CONFIG.replace(*change))
    return ort_mobile("run", folder / "stream.toml", "--output", folder / "out", code=code)


@pytest.mark.long
def test_steps_are_measured_and_the_outputs_of_each_compared(tmp_path: Path) -> None:
    run(tmp_path)
    report: dict[str, Any] = json.loads((tmp_path / "out" / "results.json").read_text())
    (row,) = report["rows"]
    assert row["statistics"]["samples"] == 40
    assert [(check["output"], check["passed"]) for check in row["checks"]] == [("y", True), ("h1", True), ("c1", True)]
    (cold,) = report["modes"]
    assert cold["cold"]["rounds"] == 1
    assert [check["output"] for check in report["checks"][0]["checks"]][3:] == [
        "y in 40 steps", "h1 in 40 steps", "c1 in 40 steps"
    ]  # fmt: skip
    assert "a stream of 40 steps" in (tmp_path / "out" / "report.md").read_text()
    assert "| `h1` | `h0` | zeros |" in (tmp_path / "out" / "bundle" / "README.md").read_text()


@pytest.mark.parametrize("change", [('h1 = "h0"', 'h1 = "x0"'), ("h1 =", "h9 =")])
def test_a_state_that_the_model_lacks_is_found_before_anything_is_converted(
    change: tuple[str, str], tmp_path: Path
) -> None:
    run(tmp_path, change, code=2)
    assert not list((tmp_path / "out").rglob("*.ort"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (('h1 = "h0"', 'h1 = "x0"'), "no input 'x0'"),
        (("h1 =", "h9 ="), "no output 'h9'"),
        (('h1 = "h0"', 'y = "h0"'), "changes its shape"),
        (('c1 = "c0"', 'c1 = "h0"'), "two outputs cannot become one input"),
    ],
)
def test_a_state_that_cannot_be_is_one_error(change: tuple[str, str], why: str, tmp_path: Path) -> None:
    done = run(tmp_path, change, code=2)
    assert done.err.count("error:") == 1
    assert why in done.err
