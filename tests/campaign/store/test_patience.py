"""A server that goes away and comes back costs no measured run; one that stays away leaves them in files."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_runner.files import state_folder
from pipeline.campaign.measure import measure
from pipeline.campaign.store import open_store
from pipeline.campaign.store.spool import keep_waiting, spool_of, waiting_runs
from pipeline.core.errors import MissingError
from tests.campaign.store.samples import CAMPAIGN, run_record
from tests.postgres import PostgresServer, own_server
from tests.scripted_devices import CAMPAIGN as SCRIPTED
from tests.scripted_devices import ScriptedDevice, check_attribution, lanes_of, plan_of
from tests.values import present

pytestmark = pytest.mark.postgresql


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Not the session's: it is stopped here."""
    with own_server() as found:
        yield found


def restart_twice(server: PostgresServer) -> None:
    for pause in (0.2, 0.5):
        time.sleep(pause)
        server.restart(0.3)


def test_restart_in_the_middle_costs_nothing(server: PostgresServer, tmp_path: Path) -> None:
    devices = {name: ScriptedDevice(name, seconds=0.02, journal=tmp_path / name) for name in ("a", "b", "c")}
    lanes = lanes_of(devices, 4)
    with open_store(server.url) as store:
        store.start(SCRIPTED)
        restarts = threading.Thread(target=restart_twice, args=(server,))
        restarts.start()
        left = measure(plan_of(lanes, 20), devices, store, tmp_path)
        restarts.join()
        assert left == {}
        check_attribution(store)
        assert len(store.runs(SCRIPTED.id)) == len(lanes) * 20
    started = sum(len((tmp_path / name).read_text().splitlines()) for name in devices)
    assert started == len(lanes) * 20, "nothing was measured twice"
    assert not any(spool_of(store.where).iterdir())


def test_server_that_stays_away_leaves_the_run_in_a_file(server: PostgresServer) -> None:
    with open_store(server.url) as store:
        store.start(CAMPAIGN)
        server.stop()
        stop = threading.Event()
        stop.set()
        with pytest.raises(MissingError, match="cannot be reached") as caught:
            store.add_run(run_record(), stop)
        server.start()
        assert str(state_folder()) in caught.value.remedy
    with open_store(server.url) as store:
        assert store.runs("c1")[-1] == run_record()
    assert not any(spool_of(store.where).iterdir())


def test_run_of_a_campaign_that_was_deleted_stays(server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    with open_store(server.url) as store:
        kept = keep_waiting(run_record("nobody's").__replace__(campaign="gone"), spool_of(store.where))
        assert store.bring_spooled() == 0
    assert kept is not None
    assert kept.exists()
    assert "stays there" in caplog.text
    kept.unlink()


def test_spool_without_room_says_so_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.ERROR):
        assert keep_waiting(run_record(), tmp_path / "file" / "below") is None
    assert "in memory only" in caplog.text


def test_spooled_file_that_was_changed_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = present(keep_waiting(run_record(), tmp_path))
    assert [run for _, run in waiting_runs(tmp_path)] == [run_record()]
    path.write_bytes(path.read_bytes().replace(b"[5,7,6]", b"[5,7,1]"))
    (tmp_path / "half.json").write_text("{")
    assert list(waiting_runs(tmp_path)) == []
    assert caplog.text.count("left out") == 2
