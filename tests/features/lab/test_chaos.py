"""Four hosts with devices that all of them reach and that only sleep, and what happens to a lab at random.

`nox -s lab_tests` runs it; LAB_EVENTS is how often each kind of event happens (2; 50 in the full session).
"""

from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from pipeline.campaign.store import open_store
from pipeline.features.lab.queue import DONE
from tests.features.lab.farm import (
    JOURNAL,
    SECONDS,
    Faults,
    all_in,
    check_stored,
    faults,
    rigs,
    submitted,
    until,
)
from tests.features.lab.hosts import EVENTS, HOSTS, Tally, agents, busy_share, lab, stored_in

pytestmark = pytest.mark.lab


def settings(tmp_path: Path, seconds: float) -> dict[str, str]:
    """Of devices whose runs take so many seconds."""
    return {SECONDS: str(seconds), JOURNAL: str(tmp_path / "journal")}


def test_events_at_random_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that was stored is lost, nothing is stored twice or on a wrong device, and every campaign ends."""
    names, tally, rounds = rigs(64), Tally(), 20
    with (
        lab(tmp_path) as found,
        agents(found, ["64"] * HOSTS, settings(tmp_path, 4.0)),
        open_store(found.server.url) as store,
    ):
        campaigns = tally.events(
            found, store, lambda number: submitted(store, tmp_path, names, rounds, f"c{number:03}")
        )
        counted = {faults(store, campaign, rounds) for campaign in campaigns}
        begun = len((tmp_path / "journal").read_text().splitlines())
        stored = len(stored_in(store))
    with capsys.disabled():
        print(f"\nlab: {EVENTS} of each event: {stored} of {len(campaigns) * len(names) * 2 * rounds} runs stored")
        print(f"lab: {len(campaigns)} campaigns ended, {tally.lost} lost, {counted}, {begun - stored} begun in vain")
        print("\n".join(tally.lines()))
    assert (tally.lost, counted) == (0, {Faults(missing=0, twice=0, wrong_device=0)})


def test_a_thousand_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count, rounds = 1000, 4
    parts = [f"{number * count // HOSTS}-{(number + 1) * count // HOSTS}" for number in range(HOSTS)]
    with (
        lab(tmp_path) as found,
        agents(found, parts, settings(tmp_path, 20.0)),
        open_store(found.server.url) as store,
    ):
        campaign = submitted(store, tmp_path, rigs(count), rounds)
        until(lambda: len(store.finished(campaign.id)) > 100, 600)
        found.killed(0)
        until(all_in(store, DONE), 3600)
        check_stored(store, campaign, rounds)
        runs = store.runs(campaign.id)
        killed = set(rigs(count // HOSTS))
        share, others = busy_share(runs), busy_share([run for run in runs if run.result.device not in killed])
    with capsys.disabled():
        print(f"\nlab: {count} devices, {count * 2 * rounds} runs stored once, {share:.1%} of device time in runs")
        print(f"lab: {others:.1%} on the hosts whose agent was not killed")
    assert len({run.result.device for run in runs} & killed) == count // HOSTS


def test_a_campaign_of_higher_priority_on_hosts_of_which_one_dies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It begins within a run of each device, and the large one goes on: nothing is lost, nothing is stored twice."""
    names, rounds = rigs(16), 6
    with (
        lab(tmp_path) as found,
        agents(found, ["16"] * HOSTS, settings(tmp_path, 3.0)),
        open_store(found.server.url) as store,
    ):
        large = submitted(store, tmp_path, names, rounds, "c000")
        until(lambda: len(store.finished(large.id)) > 32, 600)
        small = submitted(store, tmp_path, names, 1, "c001", priority=1)
        now = store.read(lambda connection: connection.scalar(sa.text("SELECT clock_timestamp()")))
        until(lambda: len(store.finished(small.id)) > 4, 600)
        found.killed(0)
        until(all_in(store, DONE), 1800)
        counted = {faults(store, campaign, number) for campaign, number in ((large, rounds), (small, 1))}
        begun: list[int] = []
        waited: list[float] = []
        for name in names:
            runs = [(run.campaign, datetime.fromisoformat(run.result.started_at)) for run in store.runs(large.id)
                    + store.runs(small.id) if run.result.device == name]  # fmt: skip
            first = min(at for campaign, at in runs if campaign == small.id)
            begun.append(sum(campaign == large.id and now < at < first for campaign, at in runs))
            waited.append((first - now).total_seconds())
    with capsys.disabled():
        print(f"\nlab: {len(names)} devices: begun after {max(begun)} runs of the large campaign at most, "
              f"{min(waited):.1f} to {max(waited):.1f} s after it was submitted; {counted}")  # fmt: skip
    assert max(begun) <= 1
    assert counted == {Faults(missing=0, twice=0, wrong_device=0)}
