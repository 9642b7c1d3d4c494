"""What was chosen runs again beside the baseline in rounds that choose nothing, once."""

import json
import platform
from pathlib import Path

import pytest

from pipeline.campaign.record import FRESH_FROM, FRESH_ROUNDS
from pipeline.campaign.store import open_store
from tests.command import ort_mobile
from tests.configs import EVERY, MNIST, short

CONFIG = f"""
name = "fresh"
{MNIST}
[[targets]]
name = "here"
platform = "linux"
abis = ["{platform.machine()}"]
[variants]
levels = ["none", "all"]
styles = ["fixed"]
{EVERY}{short(5)}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh")
    (folder / "f.toml").write_text(CONFIG)
    ended = ort_mobile("run", folder / "f.toml", "--output", folder / "out")
    assert "fresh rounds" in ended.out
    assert "measure: nothing to do" not in ended.err
    return folder


@pytest.mark.long
def test_the_choice_runs_again_and_no_row_knows_of_it(done: Path) -> None:
    found = json.loads((done / "out/results.json").read_text())
    (choice,) = found["choices"]
    rows = {f"{row['variant']}/{row['run']}": row for row in found["rows"]}
    assert choice["fresh"]["rounds"] == FRESH_ROUNDS
    assert choice["fresh"]["low"] < choice["fresh"]["ratio"] < choice["fresh"]["high"]
    assert choice["fresh"]["baseline"] in set(rows) - {f"{choice['variant']}/{choice['run']}"}
    assert [row["rounds"] for row in rows.values()] == [5, 5]
    said = {"report.md": "in 5 fresh rounds", "report.html": "5 rounds that did not choose it"}
    for page, text in said.items():
        assert text in (done / "out" / page).read_text(encoding="utf-8")


@pytest.mark.long
def test_fresh_rounds_are_not_run_twice(done: Path) -> None:
    def stored() -> list[tuple[str, int]]:
        with open_store(f"sqlite:///{done / 'out/results.sqlite'}") as store:
            (campaign,) = store.campaigns()
            return [(run.planned, run.round) for run in store.runs(campaign.id)]

    before = stored()
    assert sum(number >= FRESH_FROM for _, number in before) == 2 * FRESH_ROUNDS
    ort_mobile("run", done / "f.toml", "--output", done / "out", "--resume")
    assert stored() == before
