"""An agent beside others: of its own name, when it stops, and what counts as attached to its host."""

import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from pipeline.campaign.store import Store, StoreError
from pipeline.features.lab import agent as lab_agent
from pipeline.features.lab import agent as lab_work
from pipeline.features.lab.campaigns import lab_status, status_lines
from pipeline.features.lab.queue import DONE, FAILED, WAITING, attached, attached_devices, jobs_of, lab_hosts
from tests.features.lab.farm import (
    JOURNAL,
    SECONDS,
    agent,
    all_in,
    check_stored,
    host_session,
    in_lab,
    rigs,
    submitted,
    until,
)

pytestmark = pytest.mark.postgresql


def test_second_agent_of_a_host_is_refused(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `lab work` twice, or two computers of one name: each would withdraw what the other has attached."""
    names, rounds = rigs(2), 6
    campaign = submitted(store, tmp_path, names, rounds)
    monkeypatch.setattr(lab_agent, "NAME_SECONDS", 0.3)
    with agent(url, "h1", names):
        until(lambda: len(store.finished(campaign.id)) >= 2)
        with pytest.raises(lab_agent.HostTakenError, match="another agent of this host's name") as refused:
            lab_work.work(url, rigs(3), threading.Event(), host="h1")
        assert "name of its own" in refused.value.remedy
        assert set(attached_devices(store)) == set(in_lab(names))
        until(all_in(store, DONE))
    check_stored(store, campaign, rounds)


def test_agent_waits_for_the_session_of_the_one_before(url: str, store: Store, tmp_path: Path) -> None:
    """A session may outlive its agent by some seconds, as when a cable was pulled."""
    names = rigs(1)
    submitted(store, tmp_path, names, 1)
    before = host_session(store, "h1", names)
    with agent(url, "h1", names):
        time.sleep(0.3)
        assert jobs_of(store)[0].state == WAITING
        before.end()
        until(all_in(store, DONE))


def test_agent_that_stops_ends_its_run_before_others_may_have_its_devices(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    monkeypatch.setenv(JOURNAL, str(journal))
    monkeypatch.setenv(SECONDS, "1.0")
    (device,) = in_lab(rigs(1))
    campaign, other = submitted(store, tmp_path, rigs(1), 9), host_session(store, "other", rigs(1))
    with agent(url, "h1", rigs(1)) as stop:
        until(journal.is_file)
        stop.set()
        until(lambda: other.take(device))
        assert len(store.finished(campaign.id)) == len(journal.read_text().splitlines()) > 0
    other.end()
    (job,) = jobs_of(store)
    assert (job.state, job.reason, job.attempts) == (WAITING, "", 0)
    assert attached_devices(store) == {}
    assert [(host["devices"], host["note"]) for host in lab_hosts(store)] == 2 * [(0, "the agent was stopped")]


def test_defect_of_ours_ends_a_device_with_its_reason(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken again for ever; and PostgreSQL has no place for a NUL that a device brought into a reason."""

    def odd(*_: object) -> None:
        raise ValueError("odd \0 thing")

    monkeypatch.setattr(lab_work, "planned_here", odd)
    submitted(store, tmp_path, rigs(1), 1)
    with agent(url, "h1", rigs(1)):
        until(all_in(store, FAILED))
    assert jobs_of(store)[0].reason == r"h1: internal error: ValueError: odd \x00 thing"


def test_choice_that_fails_ends_the_campaign_with_its_reason(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a row that was changed in the database: every agent would try again, each second."""

    def damaged(*_: object) -> None:
        raise StoreError("the database is damaged")

    monkeypatch.setattr(lab_work, "to_confirm", damaged)
    campaign = submitted(store, tmp_path, rigs(1), 1)
    with agent(url, "h1", rigs(1)):
        until(all_in(store, FAILED))
    assert jobs_of(store)[0].reason.endswith("for fresh rounds: StoreError: the database is damaged")
    check_stored(store, campaign, 1)


def test_devices_of_a_host_that_is_long_silent_are_not_attached(url: str, store: Store) -> None:
    """A campaign that was submitted for them would wait for ever."""
    session = host_session(store, "h1", [])
    session.sign_of_life("{}", "a note with \0 in it", {"adb:A": '{"name":"adb:A","platform":"android"}'})
    assert list(attached_devices(store)) == ["adb:A"]
    session.close()
    past = sa.func.now() - sa.func.make_interval(0, 0, 0, 0, 1)
    store.write(lambda connection: connection.execute(attached.update().values(seen=past)))
    assert attached_devices(store) == {}
    assert "  h1: working, 1 device; a note with \\x00 in it" in status_lines(lab_status(url))
