"""`perf --stream`, `--concurrent` and `--batch` in real sessions: steps beside the original, throughput, bad input."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from device_runner.result import Caller
from pipeline.campaign.record import FailureRow
from pipeline.features.perf.callers import CallersRow, _paying, _rates, callers_parts
from pipeline.features.perf.job import failed_notes
from pipeline.report.wording import Listing
from tests import onnx_samples
from tests.command import ROOT, Done, ort_mobile
from tests.onnx_samples import parsed_nodes
from tests.ort_models import parsed
from tests.report_samples import make_report

SHORT = ("--rounds", "1", "--min-runs", "2", "--min-seconds", "0.01", "--json", "-")
STATES = ("--state", "h1=h0", "--state", "c1=c0")


def lstm(scale: float = 1.0) -> onnx.ModelProto:
    """One step of an LSTM of 8 numbers with its two states, and a projection of what it gives."""
    weights = [onnx_samples.weight("w", 1, 32, 4), onnx_samples.weight("r", 1, 32, 8, seed=1)]
    numbers = onnx.numpy_helper.to_array(onnx_samples.weight("p", 8, 3, seed=2)) * scale
    projection = onnx.numpy_helper.from_array(numbers.astype("float32"), "p")
    nodes = parsed_nodes(""""", h1, c1 = LSTM <hidden_size = 8> (x, w, r, "", "", h0, c0)  y = MatMul (h1, p)""")
    takes = [onnx_samples.value("x", [1, 1, 4]), *(onnx_samples.value(name, [1, 1, 8]) for name in ("h0", "c0"))]
    gives = [onnx_samples.value("y", [1, 1, 3]), *(onnx_samples.value(name, [1, 1, 8]) for name in ("h1", "c1"))]
    return onnx_samples.make(nodes, takes, gives, [*weights, projection])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_samples.save(lstm(), tmp_path_factory.mktemp("stream") / "lstm.onnx")


def streamed(model: Path, *words: object, code: int = 0) -> Done:
    return ort_mobile("perf", model, *words, *SHORT, code=code)


def row_of(done: Done) -> dict[str, Any]:
    (row,) = done.document()["streams"]
    assert isinstance(row, dict)
    return row


def test_a_quick_look_takes_three_short_rounds(model: Path) -> None:
    (row,) = ort_mobile("perf", model, "--quick", "--json", "-").document()["rows"]
    assert row["rounds"] == 3


def in_both_forms(folder: Path, model: Path, *words: object, code: int = 0) -> tuple[Done, dict[str, Any]]:
    """What a command shows people, and the row that it writes into a document."""
    done = ort_mobile("perf", model, *words, *SHORT[:-1], folder / "perf.json", code=code)
    (row,) = json.loads((folder / "perf.json").read_text())["streams"]
    return done, row


@pytest.mark.long
def test_a_thousand_steps_end_where_those_of_the_original_do(model: Path) -> None:
    row = row_of(streamed(model, "--stream", "1000", *STATES))
    assert (row["steps"], sorted(row["tracked"])) == (1000, ["c1", "h1", "y"])
    assert 0 < row["median_ns"] <= row["high_ns"]
    assert [(check["output"], check["passed"]) for check in row["checks"]] == [("y", True), ("h1", True), ("c1", True)]


def test_a_stream_that_carries_no_state_ends_elsewhere(model: Path, tmp_path: Path) -> None:
    """The check would find a state that gets lost: of the original's stream, here without its second state."""
    whole = row_of(streamed(model, "--stream", "3", *STATES))
    other = onnx_samples.save(lstm(1.5), tmp_path / "other.onnx")
    row = row_of(streamed(model, "--stream", "3", *STATES, "--original", other, code=4))
    assert [check["passed"] for check in row["checks"]] == [False, True, True]
    half = row_of(streamed(model, "--stream", "3", "--state", "h1=h0"))
    assert [check["passed"] for check in half["checks"]] == [True] * 3
    assert whole["checks"][2]["limit"] != half["checks"][2]["limit"]


def test_a_file_in_another_precision_is_judged_by_its_noise(tmp_path: Path) -> None:
    """Weights of 8 bits are off by more than 32 bits allow, and right; a dead one is 0 dB from the original."""
    text = """g (float[1, 2] x, float[1, 2] s) => (float[1, 2] y, float[1, 2] t)
        <float[2, 2] w = {0.5, -0.25, 0.125, 0.75}> { y = MatMul (x, w)  t = Add (s, y) }"""
    packed = text.replace(
        "<float[2, 2] w = {0.5, -0.25, 0.125, 0.75}> {",
        "<int8[2, 2] q = {@NUMBERS@}, float step = {0.0060}> { w = DequantizeLinear (q, step)",
    )
    original = onnx_samples.save(parsed(text), tmp_path / "float.onnx")
    good, dead = (
        onnx_samples.save(parsed(packed.replace("@NUMBERS@", numbers)), tmp_path / f"{name}.onnx")
        for name, numbers in (("good", "83, -42, 21, 125"), ("dead", "0, 0, 0, 0"))
    )
    words = ("--stream", "6", "--state", "t=s", "--original", original)
    assert all(check["passed"] and check["sqnr_db"] > 30 for check in row_of(streamed(good, *words))["checks"])
    row = row_of(streamed(dead, *words, code=4))
    assert [check["passed"] for check in row["checks"]] == [False, False]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--stream", "3", "--state", "h1"), "not a state"),
        (("--stream", "3", "--state", "h1=h0", "--state", "c1=h0"), "not a state"),
        (("--stream", "3", "--state", "h1=x0"), "no input 'x0'"),
        (("--stream", "3", "--state", "h9=h0"), "no output 'h9'"),
        (("--stream", "3", "--state", "y=h0"), "changes its shape"),
        (("--state", "h1=h0"), "--state is for --stream"),
    ],
)
def test_a_state_that_cannot_be_is_one_error(words: tuple[str, ...], why: str, model: Path) -> None:
    assert why in streamed(model, *words, code=2).err


def test_a_state_that_another_file_lacks_is_found_before_a_device_is_opened(model: Path, tmp_path: Path) -> None:
    """The device's library does not exist, which would be the error once it is opened."""
    other = lstm()
    other.graph.input[1].name = other.graph.node[0].input[5] = "hidden"
    renamed = onnx_samples.save(other, tmp_path / "renamed.onnx")
    nowhere = ("--device", "android-host:/nowhere.aar", "--original", model, "--stream", "3")
    done = streamed(renamed, *nowhere, "--state", "h1=h0", code=2)
    assert "renamed.onnx" in done.err
    assert "its inputs are x, hidden, c0" in done.err
    assert "nowhere.aar" in streamed(model, *nowhere, "--state", "h1=h0", code=2).err


LATE = """g (float[1] x, float[1] s, int64[1] i) => (float[1] y, float[1] t, int64[1] j)
    <int64[1] one = {1}, int64[1] fourth = {3}, float[1] more = {@MORE@}> {
    j = Add (i, one)  late = Equal (i, fourth)  flag = Cast <to = 1> (late)  extra = Mul (flag, more)
    y = Add (x, extra)  t = Add (s, x) }"""


def test_a_step_that_differs_is_named_though_the_last_ones_are_equal(tmp_path: Path) -> None:
    """The fourth of seven steps gives another y, and no state is another: the last step alone would show nothing."""
    same, other = (
        onnx_samples.save(parsed(LATE.replace("@MORE@", more)), tmp_path / f"{more}.onnx") for more in ("0", "5")
    )
    words = ("--stream", "7", "--state", "t=s", "--state", "j=i", "--input", "i=0")
    done, row = in_both_forms(tmp_path, other, *words, "--original", same, code=4)
    wrong = [check for check in row["checks"] if not check["passed"]]
    assert [check["output"] for check in wrong] == ["y"]
    assert wrong[0]["reason"].startswith("step 4 of 7 is the first that differs; relative error")
    assert "step 4 of 7 is the first that differs" in done.text


def test_outputs_too_large_for_every_step_are_compared_in_the_last(tmp_path: Path) -> None:
    x, s, t, y = (onnx_samples.value(name, [1, size]) for name, size in (("x", 2), ("s", 2), ("t", 2), ("y", 1 << 22)))
    shape = onnx.numpy_helper.from_array(np.array([1, 1 << 21, 2]), "shape")
    flat = onnx.numpy_helper.from_array(np.array([1, 1 << 22]), "flat")
    nodes = parsed_nodes("t = Add (x, s)  wide = Expand (t, shape)  y = Reshape (wide, flat)")
    model = onnx_samples.save(onnx_samples.make(nodes, [x, s], [y, t], [shape, flat]), tmp_path / "wide.onnx")
    done, row = in_both_forms(tmp_path, model, "--stream", "5", "--state", "t=s")
    assert (row["tracked"], [check["passed"] for check in row["checks"]]) == (["t"], [True, True])
    assert "in each step, y in the last" in done.out


def test_a_state_that_shrinks_after_some_steps_is_one_error(tmp_path: Path) -> None:
    """The original keeps its state's size; with the file for its own original the steps here find it first."""
    ends = "g (float[n] a, int64[1] i) => (float[m] s, int64[1] j)"
    kept = parsed(f"{ends} <int64[1] one = {{1}}> {{ j = Add (i, one)  s = Relu (a) }}")
    numbers = "<int64[1] one = {1}, int64[1] zero = {0}, int64[1] four = {4}, int64[1] six = {6}>"
    nodes = "j = Add (i, one)  left = Sub (six, i)  end = Min (left, four)  b = Relu (a)  s = Slice (b, zero, end)"
    shrinking = onnx_samples.save(parsed(f"{ends} {numbers} {{ {nodes} }}"), tmp_path / "shrinking.onnx")
    words = ("--stream", "6", "--state", "s=a", "--state", "j=i", "--input", "i=0", "--dimension", "n=4")
    assert "'s' goes from [4] to [3]" in streamed(shrinking, *words, code=2).err
    original = onnx_samples.save(kept, tmp_path / "kept.onnx")
    row = row_of(streamed(shrinking, *words, "--original", original, code=1))
    assert "the output s changes its shape from one inference to the next" in row["failure"]
    assert "states of one size" in row["remedy"]


def test_more_steps_than_files_may_hold_are_refused_with_the_number_that_is_possible(tmp_path: Path) -> None:
    x, s, y = (onnx_samples.value(name, [1, 4096]) for name in "xsy")
    adder = onnx_samples.make([onnx.helper.make_node("Add", ["x", "s"], ["y"])], [x, s], [y], [])
    model = onnx_samples.save(adder, tmp_path / "a.onnx")
    done = streamed(model, "--stream", "1000000", "--state", "y=s", code=2)
    assert "at most 131072 steps" in done.err


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
        assert 0 <= row["low"] <= row["throughput"] <= row["high"]  # two rounds of a busy machine may differ by all
        assert row["throughput"] > 0
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
    failure = FailureRow(device="local", model="", variant="m.onnx", run="cpu", code="timeout", what="took 300 s")
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
    limited += "from pipeline.cli.main import main; main()"
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
