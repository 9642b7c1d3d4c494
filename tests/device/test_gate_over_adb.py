"""`gate` and `gate --bisect` on a real adbd program: base and candidate alternate there, and nothing is measured twice.

Times of a program that plays a phone rank nothing: both measure all rounds, and give no verdict.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from device_runner.result import Status
from pipeline.campaign.store import open_store
from tests.device.adb_farm import Farm, farm_in
from tests.device.test_campaign_over_adb import EXAMPLE, ROOT

ROUNDS = 8


def ort_mobile(farm: Farm, folder: Path, *words: str) -> tuple[int, Any, str]:
    """Exit code, JSON document and standard error of a command with the farm's phones."""
    roots = {phone.serial: phone.root for phone in farm.phones}
    command = [sys.executable, str(Path(__file__).with_name("farm_cli.py")), json.dumps(roots)]
    done = subprocess.run(
        [*command, *words, "--rounds", str(ROUNDS), "--min-runs", "2", "--min-seconds", "0.001", "--json", "-"],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ANDROID_ADB_SERVER_PORT": str(farm.port)},
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout), done.stderr


def test_pairs_are_measured_on_the_device_in_turns_and_once(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = str(EXAMPLE / "mnist.onnx")
    changed = tmp_path / "changed.onnx"
    changed.write_bytes(
        Path(model).read_bytes() + bytes([0x0A, 0x00])
    )  # an empty producer name: other bytes, the same model
    with farm_in(tmp_path_factory.mktemp("farm")) as farm:
        device = f"adb:{farm.phone().serial}"
        code, report, said = ort_mobile(farm, tmp_path, "gate", model, str(changed), "--device", device)
        (row,) = report["rows"]
        assert (row["device"], row["outcome"]) == (device, "not compared"), said
        assert "rank nothing" in row["note"]
        assert code == 1
        assert row["base_median_ns"] > 0 < row["candidate_median_ns"]
        assert [change["what"] for change in row["changes"]] == ["artifact"]
        with open_store(f"sqlite:///{tmp_path / 'output/gate/results.sqlite'}") as store:
            (campaign,) = store.campaigns()
            runs = store.runs(campaign.id)
        assert [run.result.status for run in runs] == [Status.OK] * 2 * ROUNDS
        assert {run.result.device for run in runs} == {device}
        turns = [run.variant.partition(":")[0] for run in runs]
        assert turns == ["base", "candidate", "candidate", "base"] * (ROUNDS // 2)
        _, again, said = ort_mobile(farm, tmp_path, "gate", model, str(changed), "--device", device)
        assert again == report
        assert "measure: nothing to do" in said
        code, found, _ = ort_mobile(farm, tmp_path, "gate", "--bisect", model, str(changed), "--device", device)
        assert code in (0, 1)
        assert found["end"] != "found"
