"""An agent beside others, what campaigns leave on hosts and in the database, and what a host does without its lease."""

import random
import threading
import time
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from device_runner.files import cache_folder
from pipeline.campaign.store import Store, StoreError
from pipeline.features.lab import agent as lab_agent
from pipeline.features.lab.content import fetch_file, files_of, keep_files, remove_old_files
from pipeline.features.lab.queue import (
    DONE,
    FAILED,
    WAITING,
    Allowed,
    attached_devices,
    cancel_jobs,
    jobs_of,
    lab_hosts,
    submit_jobs,
)
from pipeline.features.lab.status import lab_status, status_lines
from pipeline.features.lab.tables import attached, blobs, jobs
from tests.features.lab.farm import (
    FILE,
    JOURNAL,
    SECONDS,
    agent,
    all_in,
    check_stored,
    host_session,
    rigs,
    settled,
    silent,
    submitted,
    until,
)

pytestmark = pytest.mark.postgresql


def parts(store: Store) -> int:
    return int(store.read(lambda connection: connection.scalar(sa.select(sa.func.count()).select_from(blobs))) or 0)


def aged(store: Store, days: int) -> None:
    """As if all jobs had last changed so long ago."""
    past = sa.func.now() - sa.func.make_interval(0, 0, 0, days)

    def work(connection: sa.Connection) -> None:
        connection.execute(jobs.update().values(changed=past))
        connection.execute(blobs.update().values(stored=past))

    store.write(work)


def test_host_removes_files_of_campaigns_that_have_ended(
    url: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of one that was cancelled, and of one that an agent before had fetched; never of one that goes on."""
    monkeypatch.setattr(lab_agent, "TIDY_SECONDS", 0.1)
    folder, names = cache_folder() / "lab", rigs(2)
    submitted(store, tmp_path, names[:1], 1000, "c:1")
    submitted(store, tmp_path, names[1:], 1, "c:2")
    (folder / "c=9").mkdir(parents=True)
    submitted(store, tmp_path, ("rig:9",), 1, "c:9")
    cancel_jobs(store, "c:9")
    (folder / "of-another-database").mkdir()
    with agent(url, "h1", names):
        until(lambda: len(store.finished("c:1")) > 2 and len(store.finished("c:2")) > 1)
        until(lambda: {path.name for path in folder.iterdir()} == {"c=1", "of-another-database"})
        assert (folder / "c=1/artifacts/m.ort").read_bytes() == FILE
        assert cancel_jobs(store, "c:1") == 1
        until(lambda: {path.name for path in folder.iterdir()} == {"of-another-database"})


def test_files_of_campaigns_that_ended_long_ago_leave_the_database(store: Store, tmp_path: Path) -> None:
    submitted(store, tmp_path, rigs(1), 1, "c1")
    stored = parts(store)
    aged(store, 100)
    assert (remove_old_files(store), parts(store)) == (0, stored), "the campaign has not ended"
    cancel_jobs(store, "c1")
    assert remove_old_files(store) == 0, "it ended now"
    submitted(store, tmp_path, rigs(2)[1:], 1, "c2")
    aged(store, 100)
    assert remove_old_files(store) == 0, "another uses the same file"
    cancel_jobs(store, "c2")
    aged(store, 31)
    assert (remove_old_files(store), parts(store)) == (stored, 0)
    with pytest.raises(StoreError, match="30 days after a campaign's end they are removed"):
        fetch_file(store, files_of(store, "c1")[0], tmp_path / "copy")


def test_files_that_are_removed_while_they_are_submitted_again_are_missed(
    store: Store,
    tmp_path: Path,
) -> None:
    campaign = submitted(store, tmp_path, rigs(1), 1, "c1")
    cancel_jobs(store, "c1")
    aged(store, 31)
    store.start(msgspec.structs.replace(campaign, id="c2"))
    file = tmp_path / "m.ort"
    file.write_bytes(FILE)
    kept = keep_files(store, {"artifacts/m.ort": file})
    assert remove_old_files(store) > 0
    with pytest.raises(StoreError, match="files of the campaign are gone"):
        submit_jobs(store, "c2", dict.fromkeys(rigs(1), Allowed(9, 1 << 20)), kept)


def test_host_that_lost_its_lease_begins_nothing_until_it_has_it_again(
    url: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then it goes on with what is not stored: at most the run that it was in when it lost the lease is done twice."""
    journal = tmp_path / "journal"
    monkeypatch.setenv(JOURNAL, str(journal))
    monkeypatch.setenv(SECONDS, "0.3")
    (name,), rounds = rigs(1), 8
    campaign = submitted(store, tmp_path, (name,), rounds)
    other = host_session(store, "other", (name,))

    def taken() -> bool:
        silent(store, "h1")
        return other.take(name)

    def begun() -> int:
        return len(journal.read_text().splitlines())

    with agent(url, "h1", (name,)):
        until(lambda: len(store.finished(campaign.id)) >= 2)
        until(taken)
        before = settled(begun)  # the run that it was in ends
        time.sleep(1.0)
        assert begun() == before
        assert 0 <= before - len(store.finished(campaign.id)) <= 1, "a result needs its lease"
        other.end()
        until(all_in(store, DONE))
    check_stored(store, campaign, rounds)
    assert 2 * rounds <= begun() <= 2 * rounds + 1


def test_files_of_a_submit_that_was_broken_off_are_removed_after_a_day(store: Store, tmp_path: Path) -> None:
    """Not before: another may be uploading them."""
    submitted(store, tmp_path, rigs(1), 1, "c1")
    stored = parts(store)
    file = tmp_path / "other.ort"
    file.write_bytes(random.randbytes(3 << 20))
    keep_files(store, {"artifacts/other.ort": file})
    assert (remove_old_files(store), parts(store)) == (0, stored + 3)
    aged(store, 2)
    assert (remove_old_files(store), parts(store)) == (3, stored)


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
            lab_agent.work(url, rigs(3), threading.Event(), host="h1")
        assert "name of its own" in refused.value.remedy
        assert set(attached_devices(store)) == set(names)
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
    (device,) = rigs(1)
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

    monkeypatch.setattr("pipeline.job.carrying.planned_here", odd)
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

    monkeypatch.setattr("pipeline.job.run.to_confirm", damaged)
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
