"""A search on two real adbd programs of different chips: killed, resumed, and an answer for each class of devices.

The goal is memory: times of a program that plays a phone rank nothing, and are refused.
"""

import json
import time
from pathlib import Path

import pytest

from pipeline.release.manifest import read_manifest
from tests.command import stored_runs
from tests.configs import EVERY, MNIST
from tests.device.adb_farm import farm_in
from tests.device.test_campaign_over_adb import start

CONFIG = f"""
name = "lab"
devices = ["adb:*"]
{MNIST}
[[targets]]
name = "boxes"
platform = "linux"
abis = ["x86_64"]
[variants]
levels = ["basic", "all"]
styles = ["fixed"]
{EVERY}
[tune]
goals = "memory"
threads = [1, 2]
share_percent = 0.01
[measure]
min_runs = 3
min_seconds = 0.001
"""


def test_two_chips_are_searched_killed_resumed_and_answered(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "lab.toml").write_text(CONFIG)
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        for chip in ("SM8450", "SM8550"):
            farm.phone().write("prop/ro.soc.model", chip)
        job = start(farm, tmp_path, "tune", "--minutes", "5")
        while stored_runs(tmp_path) < 6 and job.poll() is None:
            time.sleep(0.02)
        job.kill()
        said, _ = job.communicate()
        assert job.returncode < 0, said
        kept = stored_runs(tmp_path)
        ended = start(farm, tmp_path, "tune", "--minutes", "0.08", "--resume")
        said, _ = ended.communicate(timeout=900)
    assert ended.returncode == 0, said
    report = json.loads((tmp_path / "out/tune.json").read_text())
    answers = {one["search"]["device"]: one for one in report["answers"]}
    assert len(answers) == 2
    assert all(one["variant"] and one["confirmed_rounds"] == 8 for one in answers.values())
    assert sum(one["search"]["processes"] for one in answers.values()) >= kept
    classes = [each for one in report["choices"] for each in one["classes"]]
    assert sorted(one["chip"] for one in classes) == ["SM8450", "SM8550"]
    content = read_manifest(tmp_path / "out/bundle").content
    rows = content.selection or ()
    assert [row.soc for row in rows] == ["SM8450", "SM8550", ""]
    for row in rows[:2]:
        assert content.ships[row.ships].basis == "measured"
