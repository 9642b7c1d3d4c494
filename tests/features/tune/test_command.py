"""`ort-mobile tune` as a user runs it: with the real probe on this computer, killed, resumed, released."""

import json
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.store import open_store
from pipeline.campaign.tuned import TUNE_VERSION, TuneReport
from pipeline.features.tune.space import SOFTWARE_GPU
from pipeline.job.choices import NO_ANSWERS
from pipeline.job.stored import stored as assembled_of
from pipeline.release.manifest import read_manifest
from pipeline.report import formats
from tests.command import ort_mobile, stored_runs
from tests.configs import DESK, MNIST, PHONE
from tests.job.test_job import write_config

CONFIG = f"""
name = "demo"
{MNIST}{DESK}{PHONE}
[variants]
levels = ["basic", "all"]
styles = ["fixed"]
[[runs]]
provider = "cpu"
[tune]
goals = ["latency", "memory"]
threads = [1, 2]
minutes = 5
[measure]
min_runs = 3
min_seconds = 0.001
"""


def campaigns(folder: Path) -> list[tuple[CampaignRecord, tuple[RunRecord, ...]]]:
    with open_store(f"sqlite:///{folder / 'out/results.sqlite'}") as store:
        return [(one, store.runs(one.id)) for one in store.campaigns()]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder after a search that was killed with -9 and resumed with less time; how many runs the first had."""
    folder = tmp_path_factory.mktemp("tune")
    config = write_config(folder, CONFIG)
    job = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "tune", str(config), "--output", str(folder / "out")],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while stored_runs(folder) < 5 and job.poll() is None:
        time.sleep(0.02)
    job.kill()
    _, said = job.communicate()
    assert job.returncode < 0, said
    kept = stored_runs(folder)
    early = ort_mobile("report", folder / "out", code=2)
    assert "the search here has not ended" in early.err
    ended = ort_mobile("tune", config, "--output", folder / "out", "--minutes", "0.05", "--resume")
    assert "Best configuration" in ended.out
    assert "Pareto front" in ended.out
    return folder, kept


def test_the_last_candidates_run_for_minutes_where_that_is_the_goal(tmp_path: Path) -> None:
    config = write_config(tmp_path, CONFIG.replace('goals = ["latency", "memory"]', 'goals = "sustained"'))
    line = ("tune", config, "--output", tmp_path / "out", "--minutes", "1.2", "--sustained-seconds", "1")
    done = ort_mobile(*line)
    assert "Sustained load: mnist on local" in done.out
    (_, _), (confirmed, runs) = campaigns(tmp_path)
    (found,) = confirmed.job().tuned
    ends = [run for run in runs if run.planned.endswith("@sustained")]
    assert len(found.front) == 2
    assert {run.planned.removesuffix("@sustained") for run in ends} == set(found.front)
    assert sorted(run.round for run in ends) == sorted([*range(4), *range(4)])
    answer = msgspec.json.decode((tmp_path / "out/tune.json").read_bytes(), type=TuneReport).answers[0]
    assert "after 1 s" in answer.search.reason
    assert answer.values.sustained_ns
    short = ort_mobile(*line, "--minutes", "0.5", code=2)
    assert "the time is too short for the goal sustained" in short.err


def test_a_killed_search_goes_on_in_its_campaign_and_is_confirmed_in_another(tuned: tuple[Path, int]) -> None:
    folder, kept = tuned
    (search, runs), (confirmed, rounds) = campaigns(folder)
    assert search.job().searching
    assert len(runs) >= kept
    assert len({(run.planned, run.round) for run in runs}) == len(runs)
    assert all(run.result.elapsed_ns > 0 for run in runs)
    (found,) = confirmed.job().tuned
    assert found.winner in {one.id for one in confirmed.job().planned}
    assert found.processes == len(runs)
    assert {run.round for run in rounds} == set(range(8))
    assert found.winner in {run.planned for run in runs}, "never a winner that was not measured"


def test_it_leaves_a_document_with_every_candidate_and_its_fate(tuned: tuple[Path, int]) -> None:
    folder, _ = tuned
    report = msgspec.json.decode((folder / "out/tune.json").read_bytes(), type=TuneReport)
    assert report.version == TUNE_VERSION
    (answer,) = report.answers
    assert answer.confirmed_rounds == 8
    assert answer.front
    assert [one for one in answer.search.candidates if not one.dropped] == [
        one for one in answer.search.candidates if one.id == answer.search.winner
    ]
    results = json.loads((folder / "out/results.json").read_text())
    assert results["tuned"]["answers"][0]["variant"] == answer.variant
    for file in ("report.md", "report.html"):
        assert "Best configuration" in (folder / "out" / file).read_text()


def test_what_was_found_ships_with_the_table_by_which_an_app_picks(tuned: tuple[Path, int]) -> None:
    folder, _ = tuned
    report = json.loads((folder / "out/tune.json").read_text())
    ort_mobile("bundle", "rebuild", folder / "out")
    content = read_manifest(folder / "out/bundle").content
    (choice,) = report["choices"]
    rows = content.selection or ()
    assert [row.target for row in rows] == ["desk", "desk"], "nothing was searched on a phone"
    assert rows[0].abi
    assert (rows[1].soc, rows[1].abi, rows[1].min_api_level) == ("", "", 0)
    shipped = content.ships[rows[0].ships]
    assert (shipped.variant.name, shipped.basis) == (choice["variant"], "measured")
    assert shipped.runs[0].intra_op_threads == choice["options"].get("intra_op_threads", 0)
    ort_mobile("bundle", "verify", folder / "out/bundle")


def test_without_the_feature_a_search_ships_nothing_and_says_why(
    tuned: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = tuned
    monkeypatch.setattr("pipeline.features.OFFERS", {})
    assembled = assembled_of(folder / "out", None, None)
    assert assembled.choices == ()
    assert {row.what for row in assembled.report.withheld} == {NO_ANSWERS}
    assert NO_ANSWERS in {finding.what for finding in assembled.report.warnings}
    assert "Best configuration" not in formats.markdown_page(assembled.report)


@pytest.mark.skipif(any(Path("/dev/dri").glob("renderD*")), reason="this computer has a GPU")
def test_a_gpu_in_software_is_left_out_by_name_before_anything_runs(tmp_path: Path) -> None:
    config = write_config(tmp_path, CONFIG.replace('provider = "cpu"', 'provider = "webgpu"'))
    ort_mobile("tune", config, "--output", tmp_path / "out", code=4)
    (answer,) = json.loads((tmp_path / "out/tune.json").read_text())["answers"]
    assert SOFTWARE_GPU in answer["search"]["reason"]
    assert not any(runs for _, runs in campaigns(tmp_path))


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--max-size-mb", "0.001"), 4, "no candidate is possible"),
        (("--goal", "speed"), 2, "is not one of latency"),
    ],
)
def test_what_cannot_be_answered_is_said(tmp_path: Path, options: tuple[str, ...], code: int, said: str) -> None:
    ended = ort_mobile("tune", write_config(tmp_path, CONFIG), "--output", tmp_path / "out", *options, code=code)
    assert said in " ".join((ended.out + ended.err).split())
    if (tmp_path / "out/tune.json").exists():
        (answer,) = json.loads((tmp_path / "out/tune.json").read_text())["answers"]
        assert "variant" not in answer or not answer["variant"]


def test_a_constraint_that_nothing_keeps_is_the_headline_everywhere(tmp_path: Path) -> None:
    line = ("--max-size-mb", "0.001", "--junit", tmp_path / "j.xml", "--sarif", tmp_path / "s.json")
    config, out = write_config(tmp_path, CONFIG), tmp_path / "out"
    ended = ort_mobile("tune", config, "--output", out, *line, "--markdown", tmp_path / "c.md", code=4)
    said = "Do not ship: no candidate is possible for mnist on local: "
    again = ort_mobile("report", out, code=4)
    for text in (ended.out, again.out, (out / "report.md").read_text(), (out / "report.html").read_text()):
        assert said in " ".join(text.split())
        assert "Ready to ship" not in text
    assert said in (tmp_path / "c.md").read_text().partition("\n")[0]
    assert not (out / "bundle").exists()
    assert ET.fromstring((tmp_path / "j.xml").read_bytes())[0].get("failures") == "1"
    finding, *_ = json.loads((tmp_path / "s.json").read_text())["runs"][0]["results"]
    assert finding["ruleId"] == "search"
