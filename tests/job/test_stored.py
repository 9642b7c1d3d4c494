"""Whose campaign a report is of, what a folder keeps of its own, and whose device is whose where hosts share one."""

import json
from pathlib import Path

import msgspec
import pytest

from device_runner.device import DeviceFacts
from pipeline.campaign import measure
from pipeline.campaign.plan import in_modes, plan_runs, recorded
from pipeline.campaign.record import CampaignRecord, Host, JobRecord, ModelFacts
from pipeline.campaign.store import open_store
from pipeline.config import Config, ModelConfig, RunConfig
from pipeline.core.errors import ConfigError
from pipeline.core.files import DATABASE, KEPT
from pipeline.core.progress import NoProgress
from pipeline.features.pairs.comparison import read_side
from pipeline.job.campaigns import resume, stored_config, strangers
from pipeline.job.stored import keep_campaign, kept_campaigns, list_campaigns, stored
from tests.campaign.store.samples import ARTIFACT, CAMPAIGN
from tests.command import ort_mobile
from tests.configs import BASIC
from tests.onnx_samples import linear, save
from tests.values import present

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


def test_a_folder_that_knows_none_of_its_own_file_gets_none_of_another(tmp_path: Path) -> None:
    """As after a copy of one of the two files from another folder."""
    with open_store(f"sqlite:///{tmp_path / DATABASE}") as store:
        store.start(msgspec.structs.replace(CAMPAIGN, id="a"), new_artifacts=[ARTIFACT])
    keep_campaign(tmp_path, "b", None)
    with pytest.raises(ConfigError, match="has no campaign of this folder") as caught:
        stored(tmp_path, None, None)
    assert "the folder's are: b" in caught.value.why
    assert stored(tmp_path, None, "a").report.campaign == "a"
    keep_campaign(tmp_path, "a", None)
    assert stored(tmp_path, None, None).report.campaign == "a"


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
        known = present(resume(store, msgspec.structs.replace(before, config=config), [], {}))
        assert known.id == CAMPAIGN.id


SKIPPED = "it is not connected"


def facts_at(host: str, name: str = "local", serial: str = "") -> dict[str, DeviceFacts]:
    return {name: DeviceFacts(name=name, platform="linux", abis=("x86_64",), host=host, serial=serial)}


def record_for(facts: dict[str, DeviceFacts]) -> JobRecord:
    config = Config(
        name="joint", models=(ModelConfig(path="m.onnx"),), devices=tuple(facts), runs=(RunConfig(threads=(1,)),)
    )
    legal, _ = plan_runs(config.runs, [ARTIFACT], list(facts.values()))
    assert legal
    return JobRecord(
        config=config, host=Host(), versions={}, models=(ModelFacts(name="m", file="m.onnx"),),
        planned=tuple(recorded(in_modes(legal, config.measure), None)), skipped=(), failures=(), warnings=(), checks={},
        references={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "serial", "same"),
    [
        ("local", "", False),
        ("adb:emulator-5554", "", False),
        ("adb:10.0.0.7:5555", "R58M1", True),
        ("adb:R58M1", "", True),
    ],
)
def test_local_of_another_host_is_another_device(
    tmp_path: Path, name: str, serial: str, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A second host's `local` would measure nothing, and ship the first one's numbers."""
    caplog.set_level("WARNING")
    first, second = facts_at("h1", name, serial), facts_at("h2", name, serial)
    record = record_for(first)
    with open_store(f"sqlite:///{tmp_path / 'results.sqlite'}") as store:
        campaign = CampaignRecord(id="c1", name="joint", created_at="2026-01-01T00:00:00.000Z", document=record)
        store.start(campaign, first.values(), [ARTIFACT])
        assert strangers(store.devices("c1"), first) == []
        assert getattr(resume(store, record, [ARTIFACT], first), "id", None) == "c1"
        assert (resume(store, record, [ARTIFACT], second) is not None) == same
        assert (f"{name} is now another device" in caplog.text) == (not same)
        earlier = [msgspec.structs.replace(one, host="") for one in first.values()]
        assert strangers(earlier, second) == [], "nobody knows where it was"


def test_a_campaign_of_other_files_is_not_resumed_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    facts = facts_at("h1", "local", "")
    record = record_for(facts)
    with open_store(f"sqlite:///{tmp_path / 'results.sqlite'}") as store:
        campaign = CampaignRecord(id="c1", name="joint", created_at="2026-01-01T00:00:00.000Z", document=record)
        store.start(campaign, facts.values(), [ARTIFACT])
        assert resume(store, record, [msgspec.structs.replace(ARTIFACT, sha256="f" * 64)], facts) is None
    assert f"it has other files of {ARTIFACT.model}/{ARTIFACT.variant.name}" in caplog.text


def test_device_of_another_host_is_not_reported_as_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("device_runner.result.host_name", lambda: "h2")
    stored = [*facts_at("h1", "adb:A").values(), *facts_at("h2", "adb:B").values(), *facts_at("", "adb:C").values()]
    record = record_for({facts.name: facts for facts in stored})
    campaign = CampaignRecord(id="c1", name="joint", created_at="2026-01-01T00:00:00.000Z", document=record)
    with open_store(f"sqlite:///{tmp_path / 'results.sqlite'}") as store:
        store.start(campaign, stored, [ARTIFACT])
        empty = measure.Bench(devices={}, facts={}, unusable=(), store=store, work=tmp_path, progress=NoProgress())
        assert empty.away(campaign) == {"adb:B": SKIPPED, "adb:C": SKIPPED}
