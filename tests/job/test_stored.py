"""Whose campaign a report is of: many folders in one database, and what a folder keeps of its own."""

import json
from pathlib import Path

import msgspec
import pytest

from pipeline.campaign.store import open_store
from pipeline.core.errors import ConfigError
from pipeline.core.files import DATABASE, KEPT
from pipeline.features.pairs.comparison import read_side
from pipeline.job.bench import resume, stored_config
from pipeline.job.stored import keep_campaign, kept_campaigns, list_campaigns, stored
from tests.campaign.store.samples import ARTIFACT, CAMPAIGN
from tests.command import ort_mobile
from tests.configs import BASIC
from tests.onnx_samples import linear, save

CONFIG = (
    """
name = "{name}"
[[models]]
path = "my.onnx"
dimensions = {{ batch = 1 }}
"""
    + BASIC
)


@pytest.fixture
def lab(tmp_path: Path) -> str:
    """A database of two campaigns; the folder `a` has the older, `b` the newer, `c` none."""
    url = f"sqlite:///{tmp_path / 'lab.sqlite'}"
    with open_store(url) as store:
        for name in "ab":
            store.start(msgspec.structs.replace(CAMPAIGN, id=name, name=f"of {name}"), new_artifacts=[ARTIFACT])
    for name in "abc":
        (tmp_path / name).mkdir()
    for name in "ab":
        keep_campaign(tmp_path / name, name, url)
    return url


@pytest.mark.parametrize("told", [True, False], ids=["told again", "kept"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_folder_has_its_own_campaign_of_a_database(name: str, told: bool, lab: str, tmp_path: Path) -> None:
    assert stored(tmp_path / name, lab if told else None, None).report.campaign == name
    assert stored(tmp_path / name, lab if told else None, "b").report.campaign == "b", "named by its id"


def test_a_folder_that_knows_of_no_campaign_gets_none_of_several(lab: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not say which campaign is its own") as caught:
        stored(tmp_path / "c", lab, None)
    assert "--campaign" in caught.value.remedy
    assert "a, b" in caught.value.why
    keep_campaign(tmp_path / "c", "gone", lab)
    with pytest.raises(ConfigError, match="no campaign of this folder") as caught:
        stored(tmp_path / "c", None, None)
    assert "gone" in caught.value.why


def test_the_only_campaign_of_a_database_needs_no_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'one.sqlite'}"
    with open_store(url) as store:
        store.start(CAMPAIGN, new_artifacts=[ARTIFACT])
    assert stored(tmp_path, url, None).report.campaign == CAMPAIGN.id


def test_in_its_own_file_a_folder_has_the_newest_that_it_worked_on(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path / DATABASE}") as store:
        for name in "ab":
            store.start(msgspec.structs.replace(CAMPAIGN, id=name), new_artifacts=[ARTIFACT])
    assert stored(tmp_path, None, None).report.campaign == "b"
    keep_campaign(tmp_path, "a", None)
    assert stored(tmp_path, None, None).report.campaign == "a", "it was resumed"
    assert list(list_campaigns(tmp_path, None)) == ["a", "b"]


def test_a_database_alone_has_its_newest_campaign(lab: str, tmp_path: Path) -> None:
    assert read_side(lab).campaign == "b"
    assert read_side(str(tmp_path / "lab.sqlite")).campaign == "b"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("postgresql://u:secret@h:5/d", "postgresql+psycopg://u@h:5/d"),
        ("postgresql://u@h/d?password=secret&sslmode=verify-full", "postgresql+psycopg://u@h/d?sslmode=verify-full"),
        ("postgresql://h/d?sslpassword=secret", "postgresql+psycopg://h/d"),
    ],
)
def test_what_a_folder_keeps_has_no_password(given: str, kept: str, tmp_path: Path) -> None:
    keep_campaign(tmp_path, "a", given)
    keep_campaign(tmp_path, "b", given)
    assert json.loads((tmp_path / KEPT).read_text()) == {"database": kept, "campaigns": ["a", "b"]}
    keep_campaign(tmp_path, "c", None)
    assert kept_campaigns(tmp_path).campaigns == ("c",), "those of another database are not of this one"


def test_a_damaged_note_is_an_error_with_a_remedy(lab: str, tmp_path: Path) -> None:
    (tmp_path / "a" / KEPT).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        stored(tmp_path / "a", lab, None)
    assert "--campaign" in caught.value.remedy


def test_two_jobs_with_one_database_report_and_release_their_own(tmp_path: Path) -> None:
    save(linear(8), tmp_path / "my.onnx")
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(CONFIG.format(name=name))
        run = ("run", f"{name}.toml", "--convert-only", "--database", "sqlite:///lab.sqlite")
        ort_mobile(*run, cwd=tmp_path)
    one = tmp_path / "output" / "one"
    assert not (one / DATABASE).exists()
    before = (one / "results.json").read_bytes()
    for told in ((), ("--database", "sqlite:///lab.sqlite")):
        done = ort_mobile("report", one, *told, cwd=tmp_path)
        assert (done.code, (one / "results.json").read_bytes()) == (0, before), done.err
        ort_mobile("bundle", "rebuild", one, *told, cwd=tmp_path)
    ort_mobile("run", "one.toml", "--convert-only", "--resume", cwd=tmp_path)
    assert not (one / DATABASE).exists(), "the folder keeps where its campaigns are"
    with open_store(f"sqlite:///{tmp_path}/lab.sqlite") as store:
        assert [record.job().config.output.database for record in store.campaigns()] == [None] * len(store.names())


def test_a_campaign_goes_on_under_another_address_of_its_database(tmp_path: Path) -> None:
    """The URL is no part of a plan, so a new password or a proxy in between is no new campaign."""
    before = CAMPAIGN.job()
    output = msgspec.structs.replace(before.config.output, database="postgresql://u:new@proxy/d")
    config = stored_config(msgspec.structs.replace(before.config, output=output))
    with open_store(f"sqlite:///{tmp_path / DATABASE}") as store:
        store.start(CAMPAIGN)
        known = resume(store, msgspec.structs.replace(before, config=config), [], {})
        assert known is not None
        assert known.id == CAMPAIGN.id
