"""A whole campaign on four real adbd programs: killed, one taken, one late, completed; each run its own device's."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from device_runner.adb.device import AdbDevice, Tools
from device_runner.adb.link import Link, server_at
from pipeline.campaign.record import RunRecord
from pipeline.campaign.store import open_store
from tests.command import stored_runs
from tests.configs import EVERY, MNIST, short
from tests.device.adb_farm import BATTERY, Farm, farm_in

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "build_configs" / "examples" / "mnist"
CONFIG = f"""
name = "lab"
devices = ["adb:*"]
{MNIST}
labels = "{EXAMPLE / "evaluation.npz"}"
[[targets]]
name = "box"
platform = "linux"
[variants]
levels = ["basic"]
styles = ["fixed"]
{EVERY}{EVERY}
threads = 1
{short(3)}
"""
RUNS_OF_A_DEVICE = 2 * 3


def start(farm: Farm, folder: Path, name: str, *more: str) -> subprocess.Popen[str]:
    """`ort-mobile NAME lab.toml` in a folder, with the phones of a farm."""
    roots = {phone.serial: phone.root for phone in farm.phones}
    command = [sys.executable, str(Path(__file__).with_name("farm_cli.py")), json.dumps(roots), name]
    return subprocess.Popen(
        [*command, str(folder / "lab.toml"), "--output", str(folder / "out"), *more],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ANDROID_ADB_SERVER_PORT": str(farm.port), "COLUMNS": "160"},
    )  # fmt: skip


def runs_of(folder: Path) -> list[RunRecord]:
    with open_store(f"sqlite:///{folder / 'out/results.sqlite'}") as store:
        (campaign,) = store.campaigns()
        return list(store.runs(campaign.id))


def test_four_phones_killed_resumed_shared_and_late(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, tools: Tools
) -> None:
    (tmp_path / "lab.toml").write_text(CONFIG)
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        levels = {}
        for level in (51, 52, 53, 54):
            phone = farm.phone()
            phone.write("dumpsys/battery", BATTERY.replace("level: 84", f"level: {level}"))
            levels[f"adb:{phone.serial}"] = level
        late = farm.phones[3]
        late.stop()
        job = start(farm, tmp_path, "run")
        while stored_runs(tmp_path) < 4 and job.poll() is None:
            time.sleep(0.02)
        job.kill()
        said, _ = job.communicate()
        assert job.returncode < 0, said
        assert 4 <= stored_runs(tmp_path) < 3 * RUNS_OF_A_DEVICE

        taken = farm.phones[2]
        with AdbDevice(Link(server_at(f"127.0.0.1:{farm.port}"), taken.serial), root=taken.root, tools=tools):
            ended = start(farm, tmp_path, "run", "--resume")
            said, _ = ended.communicate(timeout=600)
        assert ended.returncode == 1
        assert f"process {os.getpid()} of this computer runs on it" in " ".join(said.split())
        counts = Counter(run.result.device for run in runs_of(tmp_path))
        assert [counts[name] for name in levels][:2] == [RUNS_OF_A_DEVICE] * 2, said
        assert counts[f"adb:{taken.serial}"] < RUNS_OF_A_DEVICE
        assert f"adb:{late.serial}" not in counts

        late.start()
        ended = start(farm, tmp_path, "run", "--resume")
        said, _ = ended.communicate(timeout=600)
        assert ended.returncode == 0, said
        runs = runs_of(tmp_path)
        assert f"{late.serial} was left" not in said
    assert Counter(run.result.device for run in runs) == dict.fromkeys(levels, RUNS_OF_A_DEVICE), said
    assert max(Counter((run.spec.id, run.round) for run in runs).values()) == 1
    for run in runs:
        assert run.result.failure is None
        assert run.spec.id.startswith(f"{run.result.device}/")
        assert run.result.before.battery_percent == levels[run.result.device]
        assert all(check.passed for check in run.checks)
