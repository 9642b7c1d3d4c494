"""Small campaigns on real phones, killed and broken again and again: nothing lost, doubled or mixed up, and an end."""

import contextlib
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from device_runner.adb.device import Tools
from tests.device.adb_farm import farm_in
from tests.device.conftest import Count
from tests.device.schedules import Lab, Outcome, follow, judge, missing, stored_runs

LABS = 2
"""Schedules that are followed at the same time, each with a server and phones of its own."""


def lab_in(folder: Path, phones: int, tools: Tools) -> Iterator[Lab]:
    assert tools[1]
    folder.mkdir()
    with farm_in(folder) as farm:
        lab = Lab(farm, phones, tools[0], tools[1])
        try:
            yield lab
        finally:
            lab.close()


@pytest.fixture
def lab(tmp_path: Path, tools: Tools) -> Iterator[Lab]:
    yield from lab_in(tmp_path / "lab", 4, tools)


@pytest.mark.parametrize(("kills", "rounds"), [(4, 5), pytest.param(20, 16, marks=pytest.mark.nightly)])
def test_kill_9_at_many_points_of_a_campaign(
    lab: Lab, tmp_path: Path, record_property: Count, kills: int, rounds: int
) -> None:
    """A killed process costs at most the run that each phone was in."""
    chance = random.Random(9)
    ground = lab.ground(tmp_path / "campaign", lanes=4, rounds=rounds, values=2_000, seed=9)
    killed = 0
    while killed < kills:
        with lab.living(ground) as process:
            until = stored_runs(ground) + chance.randint(0, 12)
            while stored_runs(ground) < until and process.is_alive():
                time.sleep(0.01)
            process.join(chance.uniform(0, 0.3))
            assert process.is_alive(), "the campaign was over before it was killed so often"
            process.kill()
            killed += 1
    with lab.living(ground) as process:
        process.join(600)
        assert process.exitcode == 0
    outcome = judge(ground, lab.phones, killed + 1, Counter(killed=killed))
    record_property(f"{kills} kills of our process", str(outcome))
    assert missing(ground) == set()
    assert outcome.runs == 4 * 4 * rounds
    assert outcome.wrong == 0, outcome


def test_schedules_of_faults(tmp_path: Path, tools: Tools, pytestconfig: pytest.Config, record_property: Count) -> None:
    """Seeds from 0 on, as many as are asked for or fit into the time."""
    count, seconds = pytestconfig.getoption("schedules"), pytestconfig.getoption("schedule_seconds")
    end = time.monotonic() + (seconds or float("inf"))
    wrong: list[str] = []

    def follow_some(number: int) -> list[Outcome]:
        found = []
        with contextlib.contextmanager(lab_in)(tmp_path / f"lab-{number}", 2, tools) as lab:
            for seed in range(number, count, LABS):
                if time.monotonic() > end or wrong:
                    break
                folder = tmp_path / f"schedule-{seed}"
                found.append(follow(lab, folder, seed))
                if found[-1].wrong:
                    wrong.append(f"seed {seed}: {found[-1]}; {folder}")
                else:
                    shutil.rmtree(folder)
        return found

    with ThreadPoolExecutor(LABS) as pool:
        outcomes = [outcome for found in pool.map(follow_some, range(LABS)) for outcome in found]
    total = sum(outcomes, Outcome(runs=0, lives=0))
    faults = ", ".join(f"{number} {name}" for name, number in sorted(total.faults.items()))
    record_property(f"{len(outcomes)} schedules of {total.faults.total()} faults", f"{total} ({faults})")
    assert not wrong
    assert outcomes
