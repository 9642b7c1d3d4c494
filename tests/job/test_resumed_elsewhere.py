"""Hosts that resume one campaign of one database: whose device is whose, and whose concern is one that is not there."""

from pathlib import Path

import msgspec
import pytest

from device_runner.device import DeviceFacts
from pipeline.campaign import measure
from pipeline.campaign.plan import in_modes, plan_runs, recorded
from pipeline.campaign.record import CampaignRecord, Host, JobRecord, ModelFacts
from pipeline.campaign.store import open_store
from pipeline.config import Config, ModelConfig, RunConfig
from pipeline.core.progress import NoProgress
from pipeline.job.bench import resume, strangers
from tests.campaign.store.samples import ARTIFACT

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
    monkeypatch.setattr(measure, "host_name", lambda: "h2")
    stored = [*facts_at("h1", "adb:A").values(), *facts_at("h2", "adb:B").values(), *facts_at("", "adb:C").values()]
    record = record_for({facts.name: facts for facts in stored})
    campaign = CampaignRecord(id="c1", name="joint", created_at="2026-01-01T00:00:00.000Z", document=record)
    with open_store(f"sqlite:///{tmp_path / 'results.sqlite'}") as store:
        store.start(campaign, stored, [ARTIFACT])
        empty = measure.Bench(devices={}, facts={}, unusable=(), store=store, work=tmp_path, progress=NoProgress())
        assert empty.away(campaign) == {"adb:B": SKIPPED, "adb:C": SKIPPED}
