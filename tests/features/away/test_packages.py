"""Packages with real processes: exported, run without Python, collected; cut anywhere, completed, run by two phones."""

import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
import uuid
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from device_runner import files as runner_files
from device_runner.result import FailureKind, Mark
from pipeline.campaign.record import FRESH_FROM, FRESH_ROUNDS, CampaignRecord
from pipeline.campaign.store import Store
from pipeline.config import MeasureMode
from tests.children import ends_soon
from tests.command import ort_mobile
from tests.configs import MNIST
from tests.features.away.conftest import CONFIG, TURNS, Job
from tests.probe_models import FLOAT, save_model

pytestmark = pytest.mark.long


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def other_phone(session: Path, folder: Path) -> Path:
    """A session under another id: as of a second phone that ran the same package."""
    shutil.copytree(session, folder)
    (folder / "session").write_text(str(uuid.uuid4()))
    return folder


def test_equal_configs_make_equal_packages(done: Job, tmp_path: Path) -> None:
    (tmp_path / "away.toml").write_text(CONFIG)
    ort_mobile("export", "away.toml", "--to", "pack", cwd=tmp_path)
    brought = {name for name in files_in(done.package) if name.startswith(("session/", "lock"))}
    assert {k: v for k, v in files_in(done.package).items() if k not in brought} == files_in(tmp_path / "pack")
    assert str(tmp_path).encode() not in b"".join(files_in(tmp_path / "pack").values())


def test_a_package_is_replaced_as_a_whole_and_keeps_its_session(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_in(job.package)
    (job.package / "turns").write_text("not whole\n")
    spoilt = files_in(job.package)
    with monkeypatch.context() as patch:
        patch.setattr(runner_files, "take_place", lambda *_: os.read(-1, 1))
        assert "cannot write" in ort_mobile("export", "away.toml", "--to", "pack", cwd=job.folder, code=1).err
    assert files_in(job.package) == spoilt
    said = ort_mobile("export", "away.toml", "--to", "pack", cwd=job.folder).out
    assert "then:    ort-mobile collect pack/session\n" in said
    assert {name: content for name, content in before.items() if name != "lock"} == files_in(job.package)
    assert [path.name for path in job.folder.glob(".*")] == []


def test_a_session_is_a_device_of_the_campaign(job: Job) -> None:
    ended = ort_mobile("collect", "pack/session", "--no-proof", "--json", "-", cwd=job.folder)
    (collected,) = ended.document()["collected"]
    assert (collected["new"], collected["failed"], collected["left"]) == (TURNS, 0, 0)
    report = json.loads((job.output / "results.json").read_bytes())
    assert [row["device"] for row in report["rows"]] == [collected["device"]] * 2
    assert all(row["rounds"] == 3 for row in report["rows"])
    assert {doubt["doubt"] for row in report["rows"] for doubt in row["cautions"]} >= {"reported"}
    assert {key for row in report["modes"] for key in ("cold", "sustained") if row[key]} == {"cold", "sustained"}
    assert report["choices"]
    assert (job.output / "bundle/manifest.json").is_file()
    with job.store() as store:
        runs = store.runs(job.plan.campaign)
    assert all(run.checks and all(check.passed for check in run.checks) for run in runs)
    assert all(Mark.REPORTED in run.result.marks and run.result.elapsed_ns > 0 for run in runs)
    assert [run.result.started_at for run in runs] == sorted(run.result.started_at for run in runs)
    again = ort_mobile("collect", "pack/session", "--no-proof", "--json", "-", cwd=job.folder).document()
    assert (again["collected"][0]["new"], again["collected"][0]["known"]) == (0, TURNS)


@pytest.mark.parametrize("turn", [0, 5, TURNS - 1])
def test_a_session_that_was_cut_is_completed_by_the_next(job: Job, turn: int) -> None:
    shutil.rmtree(job.session)
    runner = subprocess.Popen(["sh", str(job.package / "run.sh")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun = job.session / f"{turn:04d}.begun"
    while not begun.exists():
        time.sleep(0.001)
    (probe,) = map(int, Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split())
    os.kill(probe, signal.SIGKILL)
    runner.wait()
    assert ends_soon(probe)
    (first,) = job.collected()
    assert TURNS - turn - 1 <= first.left <= TURNS - turn
    assert job.run() == 0
    (second,) = job.collected()
    assert second.device == first.device
    with job.store() as store:
        failures = [run.result.failure.code for run in store.runs(job.plan.campaign) if run.result.failure]
        assert len(store.finished(job.plan.campaign)) == TURNS - len(failures)
    assert failures in ([], [FailureKind.LOST_DEVICE])
    if failures:
        rest = ort_mobile("export", "away.toml", "--rest", "--to", "rest", "--json", "-", cwd=job.folder).document()
        assert (rest["turns"], rest["package"]) == (1, job.plan.plan.digest)
        subprocess.run(["sh", str(job.folder / "rest/run.sh")], check=True, capture_output=True)
        (third,) = job.collected(job.folder / "rest/session", name=first.device)
        assert (third.new, third.left) == (1, 0)


def test_collecting_looks_as_often_as_a_cable_and_ends_where_all_is_decided(tmp_path: Path) -> None:
    """A package of rounds = "auto" has most_rounds; what is fifty times as fast with its constants folded needs few."""
    nodes = [helper.make_node("MatMul", [f"c{n}" if n else "w", "w"], [f"c{n + 1}"]) for n in range(50)]
    nodes.append(helper.make_node("MatMul", ["x", "c50"], ["y"]))
    weight = np.eye(96, dtype=np.float32)[::-1].copy()
    save_model(tmp_path / "m.onnx", nodes, {"x": (FLOAT, [1, 96])}, {"y": (FLOAT, [1, 96])}, {"w": weight})
    auto = CONFIG.replace(MNIST, '[[models]]\npath = "m.onnx"\n')
    auto = auto[: auto.index("mode =")].replace("rounds = 3", 'rounds = "auto"\nmost_rounds = 20')
    (tmp_path / "away.toml").write_text(auto)
    made = ort_mobile("export", "away.toml", "--to", "pack", "--json", "-", cwd=tmp_path).document()
    assert made["turns"] == 40
    job = Job(tmp_path)
    assert job.run() == 0
    (collected,) = job.collected()
    with job.store() as store:
        rounds = Counter(run.planned for run in store.runs(job.plan.campaign))
    assert len(set(rounds.values())) == 1
    assert collected.new == rounds.total()
    assert set(rounds.values()) < {5, 8, 12, 16}
    assert (collected.failed, collected.left) == (0, 0)
    (again,) = job.collected()
    assert (again.new, again.left) == (0, 0)


def test_two_phones_are_two_devices(job: Job) -> None:
    """In one call, one of them in an archive as farms bring it; numbers of the first given as the second's are seen."""
    copied = other_phone(job.session, job.folder / "copied")
    moved = job.session.rename(job.folder / "first")
    assert job.run() == 0
    archive = job.folder / "farm.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in job.session.iterdir():
            packed.write(path, f"artifacts/data/local/tmp/pack/session/{path.name}")
    first, second, third = job.collected(moved, archive, copied)
    assert len({first.device, second.device, third.device}) == 3
    assert (first.new, first.failed) == (second.new, second.failed) == (TURNS, 0)
    assert (third.failed, third.left) == (TURNS, TURNS)


def test_results_are_those_of_a_run_here(job: Job) -> None:
    """Both rounds measured the same files on the same computer: what is compared with a reference is equal."""
    (collected,) = job.collected()
    ort_mobile("run", "away.toml", "--resume", "--device", "local", "--no-proof", cwd=job.folder)
    report = json.loads((job.output / "results.json").read_bytes())
    by_device: dict[str, list[dict[str, object]]] = {}
    for row in report["rows"]:
        by_device.setdefault(row["device"], []).append(row)
    here, there = by_device["local"], by_device[collected.device]
    assert [row["variant"] for row in here] == [row["variant"] for row in there]
    assert [row["status"] for row in here] == [row["status"] for row in there] == ["ok", "ok"]
    with job.store() as store:
        checks = {
            (run.result.device, run.variant, run.spec.cold, run.round): run.checks
            for run in store.runs(job.plan.campaign)
        }
    for (device, variant, cold, number), found in checks.items():
        assert device == "local" or found == checks["local", variant, cold, number]


def test_a_device_that_is_not_fit_is_throttled_in_the_results(job: Job, tmp_path: Path) -> None:
    """With Android's words for heat: the runner waits, goes on in the end, and what it noted is in the result."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "dumpsys").write_text(
        '#!/bin/sh\n[ $1 = thermalservice ] && echo "Thermal Status: 3"\n'
        '[ $1 = battery ] && printf "  level: 80\\n  scale: 100\\n  temperature: 315\\n  AC powered: true\\n"\nexit 0\n'
    )
    (programs / "dumpsys").chmod(0o755)
    shutil.rmtree(job.session)
    (job.package / "turns").write_text("0000\n")
    script = (job.package / "run.sh").read_text().replace("turns . 600", "turns . 0")
    (job.package / "run.sh").write_text(script)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["sh", str(job.package / "run.sh")], check=True, capture_output=True, env=environment)
    job.collected()
    with job.store() as store:
        (run,) = store.runs(job.plan.campaign)
    assert (run.result.before.thermal_status, run.result.before.battery_celsius) == (3, 31.5)
    assert {Mark.THROTTLED, Mark.CHARGING, Mark.REPORTED} <= set(run.result.marks)


def test_a_session_goes_on_on_its_own_device_only(job: Job) -> None:
    (job.session / "device").write_bytes(b"another")
    assert job.run() == 4


def test_rest_needs_a_device_that_was_collected(job: Job) -> None:
    ended = ort_mobile("export", "away.toml", "--rest", "--to", "rest", cwd=job.folder, code=2)
    assert "no session of such a device was collected" in ended.err


def test_a_farm_gets_one_archive_and_one_command(job: Job, tmp_path: Path) -> None:
    """The archive has the package and nothing else; the command is the one that gcloud documents."""
    library = next((job.package / "lib").glob("*.so"))
    asked = ("--for", "ddp", "--platform", "android", "--abi", "x86_64", "--library", library, "--to", "phone")
    ort_mobile("export", "away.toml", *asked, cwd=job.folder)
    package = job.folder / "phone"
    with tarfile.open(package / "ddp/package.tar") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    shipped = {name: content for name, content in files_in(package).items() if not name.startswith("ddp/")}
    assert files_in(tmp_path / "unpacked") == shipped
    assert os.access(tmp_path / "unpacked/probe", os.X_OK)
    (tmp_path / "gcloud").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "${0%/*}/words"\n')
    (tmp_path / "gcloud").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", str(package / "ddp/submit.sh"), "shiba-34"], check=True, env=environment)
    words = (tmp_path / "words").read_text().split()
    assert words[:5] == ["beta", "device-run", "sessions", "submit", "android-executable"]
    assert "--device=shiba-34" in words
    given = {word.partition("=")[0].removeprefix("--") for word in words[5:]}
    assert given == {"device", "executable", "executable-timeout", "other-files-to-push", "paths-to-pull"}
    linux = ort_mobile("export", "away.toml", "--for", "ddp", "--platform", "linux", cwd=job.folder, code=2)
    assert linux.err.startswith("error: what is to run")
    assert "no library is named" in ort_mobile("export", "away.toml", "--for", "ddp", cwd=job.folder, code=2).err


def test_a_choice_is_confirmed_by_fresh_rounds(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds more of what was chosen and its baseline, on the same device, which choose nothing.

    Which choices rest on a comparison three rounds do not say: here it is every steady one.
    """

    def to_confirm(campaign: CampaignRecord, _store: Store) -> dict[str, str]:
        return {run.id: run.device for run in campaign.job().planned if run.mode is MeasureMode.STEADY}

    monkeypatch.setattr("pipeline.job.run.to_confirm", to_confirm)
    nothing = ort_mobile("export", "away.toml", "--confirm", "--to", "confirm", cwd=job.folder, code=2)
    assert "nothing was chosen" in nothing.err
    job.collected(name="farm:box")
    asked = ("--confirm", "--device", "farm:box", "--to", "confirm", "--json", "-")
    made = ort_mobile("export", "away.toml", *asked, cwd=job.folder).document()
    subprocess.run(["sh", str(job.folder / "confirm/run.sh")], check=True, capture_output=True)
    collect = ("collect", "confirm/session", "--name", "farm:box", "--no-proof", "--json", "-")
    (collected,) = ort_mobile(*collect, cwd=job.folder).document()["collected"]
    assert (collected["new"], collected["left"]) == (made["turns"], 0)
    with job.store() as store:
        fresh = [run for run in store.runs(job.plan.campaign) if run.round >= FRESH_FROM]
    assert len(fresh) == made["turns"] == 2 * FRESH_ROUNDS
    assert all(run.result.failure is None for run in fresh)
