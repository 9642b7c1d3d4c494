"""`perf --concurrent` and `--batch`: throughput of real sessions, and what is asked wrongly."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from device_runner.result import Caller
from pipeline.campaign.record import FailureRow
from pipeline.features.perf.job import CallersRow, _paying, _rates, callers_parts, failed_notes
from pipeline.report.wording import Listing
from tests import onnx_samples
from tests.command import ROOT, ort_mobile
from tests.report_samples import make_report

SHORT = ("--rounds", "1", "--min-runs", "2", "--min-seconds", "0.01", "--json", "-")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with an open batch, and one without, as `convert` and exporters give them."""
    folder = tmp_path_factory.mktemp("callers")
    onnx_samples.save(onnx_samples.linear(64), folder / "a.onnx")
    onnx_samples.save(onnx_samples.linear(64, seed=5), folder / "b.onnx")
    onnx_samples.save(onnx_samples.conv_bn(4), folder / "fixed.onnx")
    ort_mobile("convert", folder / "a.onnx", "--output", folder, "--level", "all", "--style", "fixed", "--no-config")
    return [folder / "a.all-fixed.ort", folder / "b.onnx", folder / "fixed.onnx"]


def callers(*words: object) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ort_mobile("perf", *words, *SHORT).document()["callers"]
    return rows


@pytest.mark.long
def test_callers_of_one_session_and_of_one_each(files: list[Path]) -> None:
    model = (files[2], "--concurrent")
    rows = callers(*model, "1,2") + callers(*model, "2:own:arena:pool")
    assert [(row["callers"], row["own_sessions"], row["shared"]) for row in rows] == [
        (1, False, []), (2, False, []), (2, True, ["arena", "pool"])
    ]  # fmt: skip
    for row in rows:
        assert 0 < row["low"] <= row["throughput"] <= row["high"]
        assert 0 < row["median_ns"] <= row["high_ns"]
        assert row["memory_bytes"] > 1 << 20
        assert row["failure"] == ""


def test_models_beside_each_other(files: list[Path]) -> None:
    (row,) = callers(*files[:2], "--dimension", "batch=2", "--concurrent", "1:together")
    assert row["file"] == "a.all-fixed.ort"
    assert list(row["beside"]) == ["b.onnx"]
    assert row["beside"]["b.onnx"] > 0


def test_models_that_take_more_memory_together_than_the_app_has_fail(files: list[Path]) -> None:
    model = (*files[:2], "--dimension", "batch=2", "--concurrent", "1:together", *SHORT)
    over = ort_mobile("perf", *model, "--fail-on", "memory>1MB", code=4)
    assert "--fail-on memory>1MB: a.all-fixed.ort beside b.onnx: memory is" in over.err
    ort_mobile("perf", *model, "--fail-on", "memory>4000MB")


def test_what_another_run_said_too_is_not_left_out() -> None:
    """The report has the failure of m.onnx; that of n.onnx with the same words is its own."""
    failure = FailureRow(device="local", model="", variant="m.onnx", run="cpu", kind="timeout", message="took 300 s")
    report = msgspec.structs.replace(make_report(), failures=(failure,))
    rows = [
        CallersRow(file=name, run="cpu", callers=2, failure="took 300 s; it is slow") for name in ("m.onnx", "n.onnx")
    ]
    assert [note.title for note in failed_notes(rows, report)] == ["n.onnx"]


@pytest.mark.long
def test_more_callers_than_memory_are_refused_before_their_sessions_are_made(tmp_path: Path) -> None:
    """An address space of 2 GB stands in for a phone's memory: 64 sessions of 36 MB have no room in it."""
    model = onnx_samples.save(onnx_samples.linear(3000), tmp_path / "m.onnx")
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)); "
    limited += "from pipeline.__main__ import main; main()"
    words = ["perf", model, "--dimension", "batch=1", "--concurrent", "2,64:own", *SHORT]
    done = subprocess.run(
        [sys.executable, "-c", limited, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    two, many = json.loads(done.stdout)["callers"]
    assert two["throughput"] > 0
    assert re.search(r"^64 more callers need about \d{4} MB of memory, \d+ MB each", many["failure"])
    assert "ask for fewer" in many["remedy"]
    assert done.stderr.count("error:") == 1


def test_a_batch_counts_all_of_its_samples(files: list[Path]) -> None:
    rows = callers(files[0], "--dimension", "batch=1", "--batch", "1,64")
    assert [row["batch"] for row in rows] == [1, 64]
    assert rows[1]["throughput"] > rows[0]["throughput"]
    assert sum(row["pays"] for row in rows) == 1


def test_the_largest_batch_that_gains_is_the_one_that_pays() -> None:
    def row(batch: int, throughput: float, **values: Any) -> CallersRow:
        return CallersRow(
            file="a", run="cpu", callers=1, batch=batch, throughput=throughput, low=throughput * 0.99, **values
        )

    rows = [row(1, 100), row(2, 150), row(4, 152), row(8, 0, failure="no memory")]
    assert [each.pays for each in _paying(rows)] == [False, True, False, False]
    (table,) = callers_parts(_paying(rows))
    assert isinstance(table, Listing)
    assert table.rows[1][3] == "2 (pays)"
    assert "failed" in table.rows[3]


def test_inferences_too_long_for_the_slices_count_by_their_time() -> None:
    caller = Caller(inferences=1, median_ns=2_000_000_000, high_ns=2_000_000_000, slices=(0,) * 100)
    assert list(_rates([caller, caller], 500_000_000)) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--concurrent", "0"), "numbers from 1 to 64"),
        (("--concurrent", "2,x"), "numbers from 1 to 64"),
        (("--concurrent", "65"), "numbers from 1 to 64"),
        (("--concurrent", "2:owned"), "any of :own"),
        (("--concurrent", "2:together"), "name two files"),
        (("--batch", "1,0"), "no list of whole numbers"),
        (("--batch", "2"), "the batch has a fixed size"),
    ],
)
def test_what_is_asked_wrongly_is_one_error_before_anything_runs(
    words: tuple[str, ...], why: str, files: list[Path]
) -> None:
    done = ort_mobile("perf", files[2], *words, code=2)
    assert why in done.err
    assert "measure:" not in done.err
