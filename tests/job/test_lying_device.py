"""A campaign with a device that answers what cannot be: its runs fail, the other device's count, all is reported."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runner.result import FailureKind
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.store import open_store
from pipeline.config.read import read_config
from pipeline.core.errors import ExitCode
from pipeline.core.progress import progress_for
from pipeline.job.run import JobOptions, run_job
from pipeline.release.manifest import verify_bundle
from tests.configs import BASIC, DESK, EVERY, MNIST, short
from tests.lying_adb import Document, Lie, LyingAdb, document

CONFIG = f"""
name = "one"
{MNIST}{DESK}{BASIC}{EVERY}{short()}
"""

LIES: dict[str, Callable[[Document], object]] = {
    "a shape of 4 TiB": lambda answer: answer["outputs"][0].update(shape=[1 << 40]),
    "a shape beyond a float": lambda answer: answer["outputs"][0].update(shape=[10**9] * 40),
    "a latency of 2**63": lambda answer: answer.update(latencies_ns=[2**63]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LIES)
def test_a_device_that_lies_costs_its_own_runs_and_no_other(
    name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = functools.partial(CampaignPlan, pauses_seconds=(), quarantine_seconds=())
    monkeypatch.setattr("pipeline.campaign.measure.CampaignPlan", at_once)
    monkeypatch.setattr("device_runner.adb.device.REMOTE_ROOT", str(tmp_path / "phone"))
    (tmp_path / "one.toml").write_text(CONFIG)
    folder = tmp_path / "out"
    with LyingAdb(Lie(run=document(LIES[name]))) as adb:
        devices = ("local", f"adb:fake1@127.0.0.1:{adb.port}")
        result = run_job(
            read_config(tmp_path / "one.toml"), JobOptions(output=folder, devices=devices), progress_for(quiet=True)
        )
    assert result.exit_code is ExitCode.SOME_FAILED
    with open_store(f"sqlite:///{folder / 'results.sqlite'}") as store:
        (campaign,) = store.campaigns()
        failures = {stored.result.device: stored.result.failure for stored in store.runs(campaign.id)}
    assert failures.pop("local") is None
    ((_, failure),) = failures.items()
    assert failure is not None
    assert failure.code is FailureKind.GARBAGE
    assert {row["status"] for row in json.loads((folder / "results.json").read_text())["rows"]} == {"ok", "failed"}
    assert (folder / "report.html").is_file()
    verify_bundle(folder / "bundle")
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 10 << 20
