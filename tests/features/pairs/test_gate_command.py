"""Gates and bisections on this computer: a real regression, a real step, histories out of real stores, bad input.

The slower models have eight times the work, so that no load of the machine hides it; nothing is judged by the clock.
"""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import numpy as np
import pytest
from onnx import helper

from device_runner.result import Conditions, LatencyBin, RunResult, Status, SustainedRun
from device_runner.spec import RunSpec
from pipeline.campaign.record import RunRecord
from pipeline.campaign.store import open_store
from pipeline.config import MeasureMode
from pipeline.features.pairs.report import GatedRun, GateOutcome
from pipeline.features.pairs.rounds import with_verdict
from tests.command import Done, ort_mobile
from tests.configs import BASIC, DESK, short
from tests.probe_models import FLOAT, save_model

DOCS = Path(__file__).resolve().parents[3] / "docs"
SHORT = ("--rounds", "8", "--min-runs", "25", "--min-seconds", "0.01", "--threads", "1")
CONFIG = f"""
name = "my"
[[models]]
path = "m.onnx"
{DESK}{BASIC}
[[runs]]
threads = 1
{short(4, 2)}
"""


def chain(path: Path, length: int) -> Path:
    """So many equal products of matrices: work that grows by as much, and that no optimization removes."""
    names = ["x", *(f"x{n}" for n in range(1, length)), "y"]
    nodes = [helper.make_node("MatMul", [names[n], "w"], [names[n + 1]]) for n in range(length)]
    weight = np.eye(96, dtype=np.float32)[::-1].copy()
    return save_model(path, nodes, {"x": (FLOAT, [96, 96])}, {"y": (FLOAT, [96, 96])}, {"w": weight})


def valid(done: Done, schema: str) -> Any:
    document = done.document()
    jsonschema.validate(document, json.loads((DOCS / schema).read_text(encoding="utf-8")))
    return document


def test_a_real_regression_is_found_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    chain(tmp_path / "before.onnx", 6)
    chain(tmp_path / "after.onnx", 48)
    line = ("gate", "before.onnx", "after.onnx", *SHORT, "--junit", "g.xml", "--markdown", "g.md", "--json", "-")
    first = ort_mobile(*line, cwd=tmp_path, code=4)
    document = valid(first, "gate.schema.json")
    (found,) = document["rows"]
    assert found["outcome"] == "regression"
    assert found["low"] > 1.01
    assert [change["what"] for change in found["changes"]] == ["artifact"]
    assert ET.fromstring((tmp_path / "g.xml").read_bytes())[0].get("failures") == "1"
    assert (tmp_path / "g.md").read_text().startswith("# Regression: 1 of 1 slower")
    again = ort_mobile(*line, cwd=tmp_path, code=4)
    assert again.document() == document
    assert "measure: nothing to do" in again.err
    compared = ort_mobile("compare", "output/gate", "output/gate", cwd=tmp_path, code=2)
    assert "these are runs of `gate` or `doctor`" in compared.err


def test_the_end_of_runs_of_minutes_is_compared_too(tmp_path: Path) -> None:
    chain(tmp_path / "before.onnx", 2)
    chain(tmp_path / "after.onnx", 64)
    line = ("gate", "before.onnx", "after.onnx", *SHORT, "--sustained-seconds", "1", "--json", "g.json")
    done = ort_mobile(*line, cwd=tmp_path, code=4)
    rows = json.loads((tmp_path / "g.json").read_text())["rows"]
    assert [(row["mode"], row["outcome"]) for row in rows] == [("steady", "regression"), ("sustained", "regression")]
    assert rows[1]["rounds"] == 4
    assert rows[1]["low"] > 1.01
    assert "(sustained)" in done.out
    refused = ort_mobile(*line, "--sustained-rounds", "3", cwd=tmp_path, code=2)
    assert "4" in refused.err


def runs_of_minutes(late: float, *celsius: float | None) -> list[RunRecord]:
    """Runs whose inferences take so long at the end, each with what its battery had at the start."""
    records = []
    for number, degrees in enumerate(celsius):
        median = int(late * (1 + 0.02 * (number % 2)))
        bins = tuple(
            LatencyBin(
                start_ns=step, inferences=1, total_ns=1, min_ns=median, median_ns=median, max_ns=median
            )
            for step in range(20)
        )  # fmt: skip
        result = RunResult(
            spec_id="s", device="phone", status=Status.OK, sustained=SustainedRun(bins=bins), latencies_ns=(1,),
            before=Conditions(battery_celsius=degrees),
        )  # fmt: skip
        spec = RunSpec(id="s", model="m.ort")
        records.append(
            RunRecord(campaign="c", planned="p", round=number, model="m", variant="v", spec=spec, result=result)
        )
    return records


@pytest.mark.parametrize(
    ("late", "celsius", "outcome", "note"),
    [
        (1.5e6, (25, 25, 26, 25), GateOutcome.REGRESSION, ""),
        (0.5e6, (25, 25, 26, 25), GateOutcome.FASTER, ""),
        (1.0e6, (25, 25, 26, 25), GateOutcome.NOT_SHOWN, "at most"),
        (1.5e6, (25, 25, 26, 35), GateOutcome.NOT_COMPARED, "3 rounds from equal starts are too few"),
        (1.5e6, (25, 25, 26), GateOutcome.NOT_COMPARED, "3 rounds from equal starts are too few"),
    ],
)  # fmt: skip
def test_ends_have_a_verdict_from_four_equal_starts_on(
    late: float, celsius: tuple[float, ...], outcome: GateOutcome, note: str
) -> None:
    row = GatedRun(
        device="phone", model="m", base="v", candidate="v", outcome=GateOutcome.NOT_COMPARED,
        mode=MeasureMode.SUSTAINED,
    )  # fmt: skip
    base, candidate = runs_of_minutes(1e6, *celsius), runs_of_minutes(late, *celsius)
    verdict = with_verdict(row, base, candidate, 0.01, 0.99)
    assert verdict.outcome is outcome
    assert note in verdict.note


def test_ends_that_leave_room_for_a_regression_have_no_verdict() -> None:
    row = GatedRun(
        device="phone", model="m", base="v", candidate="v", outcome=GateOutcome.NOT_COMPARED,
        mode=MeasureMode.SUSTAINED,
    )  # fmt: skip
    base, candidate = runs_of_minutes(1e6, *(25,) * 4), runs_of_minutes(1e6, *(25,) * 5)[1:]
    shifted = [msgspec.structs.replace(record, round=record.round - 1) for record in candidate]
    verdict = with_verdict(row, base, shifted, 0.01, 0.99)
    assert verdict.outcome is GateOutcome.NOT_COMPARED
    assert "cannot tell: at most" in verdict.note


@pytest.mark.parametrize(
    "line",
    [
        ("gate", "m.onnx", "m.onnx", "--base-library", "wheel:1.2.3"),
        ("gate", "--bisect", "m.onnx", "n.onnx", "m.onnx", "--library", "jvm:1.2.3"),
        ("gate", "--bisect", "m.onnx", "--library", "android:1.2.3", "--library", "wheel:1.2.3"),
        ("perf", "m.onnx", "--library", "wheel:1.2.3"),
        ("doctor", "m.onnx", "--library", "wheel:1.2.3"),
        ("run", "--model", "m.onnx", "--library", "wheel:1.2.3"),
        ("run", "my.toml", "--plan", "--library", "wheel:1.2.3"),
        ("run", "my.toml", "--device", "adb:none@127.0.0.1:1"),
        ("run", "my.toml", "--device", "adb:none@127.0.0.1:1", "--wait", "60"),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_converted_or_measured(
    tmp_path: Path, line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADBUTILS_ADB_PATH", "/bin/false")  # else a server is started at the port, and stays
    chain(tmp_path / "m.onnx", 2)
    chain(tmp_path / "n.onnx", 3)
    (tmp_path / "my.toml").write_text(CONFIG)
    done = ort_mobile(*line, cwd=tmp_path, code=3)
    assert "to do" not in done.err
    library = next((word for word in reversed(line) if word.endswith(":1.2.3")), None)
    remedy = "ort-mobile library get" if library else "`ort-mobile devices` says what each one needs"
    assert remedy in done.err


def test_more_rounds_go_on_with_those_that_are_stored(tmp_path: Path) -> None:
    chain(tmp_path / "before.onnx", 6)
    chain(tmp_path / "after.onnx", 48)
    ort_mobile("gate", "before.onnx", "after.onnx", *SHORT, cwd=tmp_path, code=4)
    done = ort_mobile("gate", "before.onnx", "after.onnx", *SHORT, "--rounds", "9", "--json", "-", cwd=tmp_path, code=4)
    assert "measure: 2 to do" in done.err
    assert done.document()["rows"][0]["rounds"] == 9


def test_the_same_file_is_unchanged_and_a_candidate_that_fails_has_no_verdict(tmp_path: Path) -> None:
    chain(tmp_path / "m.onnx", 2)
    same = ort_mobile("gate", "m.onnx", "m.onnx", *SHORT, "--json", "-", cwd=tmp_path)
    assert same.document()["rows"][0]["outcome"] == "unchanged"
    (tmp_path / "broken.onnx").write_bytes(b"nothing of a model")
    failed = ort_mobile("gate", "m.onnx", "broken.onnx", *SHORT, "--json", "-", cwd=tmp_path, code=1)
    assert failed.document()["rows"][0]["outcome"] == "failed"
    assert failed.document()["rows"][0]["note"].startswith("candidate: model_load")


@pytest.mark.long
def test_bisect_finds_the_step_and_skips_what_does_not_run(tmp_path: Path) -> None:
    names = ["a.onnx", "b.onnx", "broken.onnx", "c.onnx", "d.onnx", "e.onnx"]
    for name, length in zip(names, (6, 6, 6, 6, 48, 48), strict=True):
        chain(tmp_path / name, length)
    (tmp_path / "broken.onnx").write_bytes(b"nothing of a model")
    done = ort_mobile("gate", "--bisect", *names, *SHORT, "--json", "-", cwd=tmp_path)
    document = valid(done, "bisection.schema.json")
    assert (document["end"], document["good"], document["slower"]) == ("found", "c.onnx", "d.onnx")
    assert [row["standing"] for row in document["rows"]][-1] == "slower"
    none = ort_mobile("gate", "--bisect", "a.onnx", "c.onnx", *SHORT, cwd=tmp_path)
    assert "No difference: c.onnx is not slower than a.onnx" in none.out
    skipped = ort_mobile("gate", "--bisect", "a.onnx", "broken.onnx", "d.onnx", *SHORT, cwd=tmp_path, code=None)
    assert "The first slower one is after a.onnx, at the latest d.onnx" in skipped.out


@pytest.mark.long
def test_a_bisection_knows_what_earlier_ones_stored(tmp_path: Path) -> None:
    """The third is slower than the first, which the one after it is not: what made it slower cannot be one step."""
    for name, length in {"a.onnx": 4, "b.onnx": 120, "c.onnx": 3, "d.onnx": 121}.items():
        chain(tmp_path / name, length)
    for name in ("b.onnx", "c.onnx"):
        ort_mobile("gate", "--bisect", "a.onnx", name, *SHORT, cwd=tmp_path, code=None)
    done = ort_mobile(
        "gate", "--bisect", "a.onnx", "b.onnx", "c.onnx", "d.onnx", *SHORT, "--json", "-", cwd=tmp_path, code=1
    )
    assert done.document()["end"] == "not monotone"
    assert done.err.count("measure: 16 to do") == 1


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two output folders, the second of a model with eight times the work."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "my.toml").write_text(CONFIG)
    for name, length in (("before", 6), ("after", 48)):
        chain(folder / "m.onnx", length)
        ort_mobile("run", "my.toml", "--output", name, cwd=folder)
    return folder


def with_history(source: Path, target: Path, factors: list[float]) -> None:
    """A store with a campaign for each factor: the runs of the first, with their latencies times that."""
    with open_store(f"sqlite:///{source}") as store:
        (campaign,) = store.campaigns()
        runs, artifacts, devices = store.runs(campaign.id), store.artifacts(campaign.id), store.devices(campaign.id)
    with open_store(f"sqlite:///{target}") as store:
        for number, factor in enumerate(factors):
            made = msgspec.structs.replace(campaign, id=f"day-{number:02}")
            store.start(made, devices, artifacts)
            for run in runs:
                result = run.result
                if result.status is Status.OK:
                    scaled = tuple(int(1_000_000 * factor) for _ in result.latencies_ns)
                    result = msgspec.structs.replace(result, latencies_ns=scaled)
                store.add_run(msgspec.structs.replace(run, campaign=made.id, result=result))


@pytest.mark.long
def test_history_decides_what_is_measured_in_pairs(jobs: Path, tmp_path: Path) -> None:
    quiet, slow = tmp_path / "quiet.sqlite", tmp_path / "slow.sqlite"
    with_history(jobs / "before/results.sqlite", quiet, [1.0] * 12)
    with_history(jobs / "before/results.sqlite", slow, [1.0] * 12 + [1.05] * 3)
    line = ("gate", jobs / "before", jobs / "after", *SHORT, "--json", "-")
    passed = ort_mobile(*line, "--history", quiet, cwd=tmp_path)
    assert (passed.code, [row["outcome"] for row in passed.document()["rows"]]) == (0, ["not suspected"])
    found = ort_mobile(*line, "--history", slow, cwd=tmp_path, code=4)
    document = valid(found, "gate.schema.json")
    assert [row["outcome"] for row in document["rows"]] == ["regression"]
    assert document["histories"][0]["suspicion"]["before"] == "day-11"
    alone = ort_mobile("gate", "--history", slow, cwd=tmp_path, code=1)
    assert "1 of 1 histories look slower: measure base and candidate in pairs" in alone.out


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (("m.onnx", "n.onnx"), "m.onnx is a model file, which no history names"),
        (("other", "n.onnx"), "the base has no such run (it has m / basic-fixed/cpu+threads=2)"),
        ((), "no BASE and CANDIDATE are named to measure"),
    ],
)
def test_a_suspicion_that_nothing_was_measured_for_is_no_pass(
    jobs: Path, tmp_path: Path, paths: tuple[str, ...], why: str
) -> None:
    with_history(jobs / "before/results.sqlite", tmp_path / "slow.sqlite", [1.0] * 12 + [1.05] * 3)
    chain(tmp_path / "m.onnx", 1)
    chain(tmp_path / "n.onnx", 2)
    (tmp_path / "my.toml").write_text(CONFIG.replace("threads = 1", "threads = 2"))
    if "other" in paths:
        ort_mobile("run", "my.toml", "--output", "other", cwd=tmp_path)
    line = ("gate", *paths, "--history", "slow.sqlite", "--junit", "g.xml", "--json", "-")
    document = valid(ort_mobile(*line, cwd=tmp_path, code=1), "gate.schema.json")
    (found,) = document["rows"]
    assert (found["outcome"], document["only_base"], document["only_candidate"]) == ("not compared", [], [])
    assert why in found["note"]
    assert ET.fromstring((tmp_path / "g.xml").read_bytes())[0].get("errors") == "1"


def test_bundles_are_gated_without_a_database(jobs: Path, tmp_path: Path) -> None:
    done = ort_mobile(
        "gate", jobs / "before/bundle", jobs / "after/bundle", *SHORT, "--json", "-", cwd=tmp_path, code=4
    )
    assert done.document()["rows"][0]["model"] == "m"


def test_gaps_are_told(jobs: Path, tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with_history(jobs / "before/results.sqlite", path, [1.0] * 3)
    with open_store(f"sqlite:///{path}") as store:
        first = store.campaigns()[0]
        store.start(msgspec.structs.replace(first, id="day-50"), store.devices(first.id), store.artifacts(first.id))
        store.start(msgspec.structs.replace(first, id="day-51", document=None))
    done = ort_mobile("gate", "--history", path, cwd=tmp_path)
    assert "no round of it was run" in done.out
    assert "stored by another release" in done.out
    assert "3 of at least 11 campaigns" in done.out


def test_a_changed_artifact_is_not_measured(jobs: Path, tmp_path: Path) -> None:
    changed = tmp_path / "after"
    shutil.copytree(jobs / "after", changed)
    shutil.rmtree(changed / "bundle")
    for artifact in (changed / "artifacts").iterdir():
        artifact.write_bytes(artifact.read_bytes() + b"x")
    done = ort_mobile("gate", jobs / "before", changed, *SHORT, cwd=tmp_path, code=4)
    assert "an artifact is not what was recorded" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "name BASE and CANDIDATE"),
        (("m.onnx",), 2, "name BASE and CANDIDATE"),
        (("m.onnx", "nope.onnx"), 2, "there is nothing to measure"),
        (("m.onnx", "text.txt"), 2, "there is nothing to measure"),
        (("m.onnx", "m.onnx", "--history", "nope.sqlite"), 2, "there is no history here"),
        (("--history", "text.txt"), 1, "no SQLite database"),
        (("--history", "empty.sqlite"), 2, "no campaign is stored here"),
        (("m.onnx", "m.onnx", "--device", "nonsense"), 2, "unknown device"),
        (("m.onnx", "m.onnx", "--rounds", "3"), 2, "--rounds"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[str, ...], code: int, text: str, tmp_path: Path) -> None:
    chain(tmp_path / "m.onnx", 1)
    (tmp_path / "text.txt").write_text("nothing that can be measured" * 100)
    open_store(f"sqlite:///{tmp_path}/empty.sqlite").close()
    done = ort_mobile("gate", *arguments, cwd=tmp_path, code=code)
    assert text in done.err


def test_a_damaged_history_names_its_place(jobs: Path, tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    with_history(jobs / "before/results.sqlite", path, [1.0] * 2)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runs SET result = replace(result, 'ok', 'no')")
    connection.close()
    done = ort_mobile("gate", "--history", path, cwd=tmp_path, code=1)
    assert "damaged" in done.err


@pytest.mark.parametrize(
    ("arguments", "text"), [(("m.onnx",), "nothing to bisect"), (("m.onnx", "m.onnx", "--model", "x"), "no model 'x'")]
)
def test_bisections_of_nothing_are_refused(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    chain(tmp_path / "m.onnx", 1)
    done = ort_mobile("gate", "--bisect", *arguments, cwd=tmp_path, code=2)
    assert text in done.err
