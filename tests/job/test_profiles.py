"""Profile runs of a campaign: after the timed rounds, in no statistics, read, reported and never done twice."""

import gzip
import json
from pathlib import Path

import pytest

from pipeline.campaign.record import RunRecord
from pipeline.campaign.store import open_store
from tests.command import ort_mobile
from tests.configs import BASIC, EVERY, MNIST, short

CONFIG = f"""
name = "profiled"
{MNIST}{BASIC}{EVERY}
threads = [1, 2]
{short()}
profile = true
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiled")
    (folder / "p.toml").write_text(CONFIG)
    ended = ort_mobile("run", folder / "p.toml", "--output", folder / "out")
    assert "Profiles" in ended.out
    return folder


def stored(folder: Path) -> list[RunRecord]:
    with open_store(f"sqlite:///{folder / 'out' / 'results.sqlite'}") as store:
        (campaign,) = store.campaigns()
        return list(store.runs(campaign.id))


@pytest.mark.long
def test_profiles_are_in_the_report_and_not_in_the_times(done: Path) -> None:
    report = json.loads((done / "out" / "results.json").read_text())
    assert [(row["rounds"], row["failed_rounds"]) for row in report["rows"]] == [(1, 0)] * 2
    timed = [run for run in stored(done) if not run.spec.profile]
    assert [row["statistics"]["samples"] for row in report["rows"]] == [len(run.result.latencies_ns) for run in timed]
    profiles = report["profiles"]
    assert [(one["name"], one["run"]) for one in profiles] == [
        ("mnist / basic-fixed", "cpu+threads=1"),
        ("mnist / basic-fixed", "cpu+threads=2"),
    ]
    for one in profiles:
        operators = {row["operator"]: row["nodes"] for row in one["profile"]["operators"]}
        assert operators == {"Conv": 2, "MaxPool": 2, "Relu": 2, "Gemm": 1, "Reshape": 1}
        assert Path(one["file"]).parent == done / "out" / "profiles"
        trace = json.loads(gzip.decompress(Path(one["file"]).read_bytes()))
        assert {"cat", "name", "ph", "ts", "dur", "pid", "tid"} <= set(trace[-1])  # what Perfetto reads
    for name, title in (("report.md", "mnist / basic-fixed, cpu"), ("report.html", "mnist on local")):
        text = (done / "out" / name).read_text()
        assert f"Operators of {title}" in text.replace("&#43;", "+")
        assert "MaxPool" in text


def test_a_profile_stands_beside_another(done: Path) -> None:
    report = json.loads((done / "out" / "results.json").read_text())
    (view,) = report["profile_views"]
    assert (view["before"], view["after"]) == ("basic-fixed/cpu+threads=1", "basic-fixed/cpu+threads=2")
    assert {row["operator"]: (row["nodes_before"], row["nodes_after"]) for row in view["operators"]} == {
        "Conv": (2, 2), "MaxPool": (2, 2), "Relu": (2, 2), "Gemm": (1, 1), "Reshape": (1, 1),
    }  # fmt: skip
    assert (view["vanished"], view["fusions"], view["fallen_back"]) == ({}, [], [])
    assert view["profiler_cost_after"] > -1
    assert "then basic-fixed/cpu" in (done / "out" / "report.html").read_text()
    assert all(one["profile"]["nodes"] == [] for one in report["profiles"])
    assert all(len(run.result.profile.nodes) == 8 for run in stored(done) if run.result.profile)


def test_they_run_last_and_only_once(done: Path) -> None:
    before = stored(done)
    assert [run.spec.profile for run in before] == [False, False, True, True]
    assert [run.round for run in before] == [0, 0, 1, 1]
    again = ort_mobile("run", done / "p.toml", "--output", done / "out", "--resume")
    assert "a new campaign begins" not in again.err
    assert [run.result.started_at for run in stored(done)] == [run.result.started_at for run in before]


def test_the_report_is_written_again_with_them(done: Path) -> None:
    (done / "out" / "report.md").unlink()
    ort_mobile("report", done / "out")
    assert "## Profiles" in (done / "out" / "report.md").read_text()
