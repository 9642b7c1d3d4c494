"""How far a campaign is and how long it takes, and what was run on a device, from results in SQLite and PostgreSQL."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from device_runner.device import DeviceFacts
from device_runner.result import Conditions, Failure, FailureKind, Status
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store, open_store
from pipeline.core.errors import ConfigError
from pipeline.features.lab.history import DeviceHistory, device_history, history_lines
from pipeline.features.lab.progress import RunsLeft, progress_by_device
from tests.campaign.store.samples import run_record
from tests.command import ort_mobile
from tests.features.lab.farm import entered, rigs

BEGAN = datetime(2026, 11, 1, tzinfo=UTC)


def add(
    store: Store, campaign: CampaignRecord, device: str, number: int, place: int, *, seconds: float = 10.0,
    at: float | None = None, latency_ns: int = 1000, failure: FailureKind | None = None, celsius: float | None = None,
) -> None:  # fmt: skip
    """A run of the plan, by its place among those of its device, that began `at` seconds."""
    planned = [run for run in campaign.job().planned if run.device == device and not run.same_as][place]
    failed = Failure(code=failure, what="it broke") if failure else None
    run = run_record(f"{planned.id}#{number}", number, (latency_ns,) * 3 if not failure else (), failed)
    begun = BEGAN + timedelta(seconds=at if at is not None else 100 * number + 20 * place)
    started = begun.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    result = msgspec.structs.replace(
        run.result, device=device, host="h1", started_at=started, elapsed_ns=int(seconds * 1e9),
        before=Conditions(battery_celsius=celsius), after=Conditions(battery_percent=80),
        status=Status.FAILED if failure else Status.OK,
    )  # fmt: skip
    store.add_run(
        msgspec.structs.replace(
            run, campaign=campaign.id, planned=planned.id, model=planned.model, variant=planned.variant, result=result
        )
    )


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.sqlite'}"


def progress(store: Store, campaign: CampaignRecord, device: str = "rig:0", again: Sequence[str] = ()) -> RunsLeft:
    return progress_by_device(store, campaign, again)[device]


def test_time_left_is_unknown_before_a_run_has_ended_and_then_what_those_took(database: str) -> None:
    with open_store(database) as store:
        campaign = entered(store, rigs(2), 4)
        nothing = RunsLeft(stored=0, failed=0, at_most=8, seconds_left=None)
        assert progress_by_device(store, campaign) == {"rig:0": nothing, "rig:1": nothing}
        add(store, campaign, "rig:0", 0, 0, seconds=10, at=0)
        assert progress(store, campaign) == RunsLeft(stored=1, failed=0, at_most=8, seconds_left=70.0)
        assert progress(store, campaign, "rig:1") == nothing
        add(store, campaign, "rig:0", 0, 1, seconds=30, at=12)
        add(store, campaign, "rig:0", 1, 1, seconds=30, at=44)
        # 3 of 10 s and 2 of 30 s, each after a pause of 2 s
        assert progress(store, campaign) == RunsLeft(stored=3, failed=0, at_most=8, seconds_left=100.0)


def test_a_pause_for_another_campaign_does_not_make_a_device_slow(database: str) -> None:
    with open_store(database) as store:
        campaign = entered(store, rigs(1), 10)
        for number in range(4):
            for variant in range(2):
                at = 40.0 * number + 20 * variant + (7200 if number > 1 else 0)
                add(store, campaign, "rig:0", number, variant, seconds=18, at=at)
        assert progress(store, campaign).seconds_left == 12 * 20


def test_what_failed_is_not_waited_for_and_fresh_rounds_are(database: str) -> None:
    with open_store(database) as store:
        campaign = entered(store, rigs(1), 3)
        add(store, campaign, "rig:0", 0, 0, failure=FailureKind.CRASH)
        add(store, campaign, "rig:0", 0, 1, failure=FailureKind.LOST_DEVICE)
        assert progress(store, campaign) == RunsLeft(stored=1, failed=1, at_most=6, seconds_left=30.0)
        for number in range(3):
            add(store, campaign, "rig:0", number, 1)
        assert progress(store, campaign).seconds_left == 0
        again = [run.id for run in campaign.job().planned if not run.same_as][1:]
        left = progress(store, campaign, again=again)
        assert (left.at_most, left.seconds_left) == (11, 5 * (10 + 90))


# --- history ----------------------------------------------------------------------------------------------------------


def drifting(store: Store, levels: Sequence[float], device: str = "rig:0") -> None:
    """Campaigns one after the other, each so much slower than the first on one of two devices."""
    for place, level in enumerate(levels):
        campaign = entered(store, rigs(2), 3, f"c{place}")
        for number in range(3):
            for lane, name in ((0, "rig:0"), (1, "rig:0"), (0, "rig:1"), (1, "rig:1")):
                latency_ns = int((1_000_000 + 500_000 * lane) * (level if name == device else 1))
                add(store, campaign, name, number, lane, latency_ns=latency_ns, celsius=25 + place)


def levels(history: DeviceHistory) -> list[float | None]:
    return [None if row.level is None else round(row.level, 3) for row in history.campaigns]


def test_a_phone_that_drifts_is_seen_and_another_is_not(database: str) -> None:
    with open_store(database) as store:
        drifting(store, (1, 1, 1, 1.04, 1.1))
    drifts = device_history(database, "rig:0", 20)
    assert levels(drifts) == [1.0, 1.0, 1.0, 1.04, 1.1]
    assert levels(device_history(database, "rig:1", 20)) == [1.0] * 5
    last = drifts.campaigns[-1]
    assert (last.runs, last.outcomes, last.hosts, last.compared) == (6, {"ok": 6}, ("h1",), 2)
    assert (last.before.battery_celsius, last.after.battery_percent, last.busy_seconds) == (29, 80, 60.0)
    assert last.first_ms == BEGAN.timestamp() * 1000
    text = "\n".join(history_lines(drifts))
    assert "2026-11-01 00:00 c4 lab; level 1.100 of 2; 6 ok; 60 s at h1; 29 °C to 80 %" in text
    assert "10.0% slower than usual on this device" in text
    assert "slower than usual" not in "\n".join(history_lines(device_history(database, "rig:1", 20)))


def test_only_the_same_file_is_compared_and_the_newest_are_shown(database: str) -> None:
    with open_store(database) as store:
        drifting(store, (1, 1.2))
        other = entered(store, rigs(1), 1, "c2")
        store.write(
            lambda connection: connection.exec_driver_sql(
                "UPDATE artifacts SET sha256 = 'other' WHERE campaign_id = 'c2'"
            )
        )
        add(store, other, "rig:0", 0, 0, latency_ns=9, failure=None)
        add(store, other, "rig:0", 0, 1, failure=FailureKind.LOST_DEVICE)
    history = device_history(database, "rig:0", 2)
    assert [row.campaign for row in history.campaigns] == ["c1", "c2"]
    assert levels(history) == [None, None], "none of these two has what another has"
    assert history.campaigns[-1].outcomes == {"ok": 1, "lost_device": 1}
    assert levels(device_history(database, "rig:0", 3)) == [
        pytest.approx(1 / 1.1, abs=1e-3),
        pytest.approx(1.2 / 1.1, abs=1e-3),
        None,
    ]


def test_a_device_that_no_campaign_has_is_an_error_that_names_a_few(database: str) -> None:
    with open_store(database) as store:
        entered(store, rigs(40), 1)
    with pytest.raises(ConfigError, match="no campaign here has a device 'rig:99'") as refused:
        device_history(database, "rig:99", 20)
    assert "and 35 more" in refused.value.why


def test_the_command_reads_results_of_run_and_nothing_in_them_steers_a_terminal(database: str, tmp_path: Path) -> None:
    with open_store(database) as store:
        drifting(store, (1, 1))
        name = "rig:0\x1b[31m"
        facts = DeviceFacts(name=name, platform="linux", fingerprint="\x1b[2J")
        store.start(CampaignRecord(id="x", name="\x1b]0;x\x07", created_at="", document=None), [facts])
    out = ort_mobile("lab", "history", "rig:0", "--database", database, "--json", tmp_path / "history.json").out
    assert "level 1.000 of 2" in out
    document = msgspec.json.decode((tmp_path / "history.json").read_bytes())
    assert (document["version"], [row["campaign"] for row in document["campaigns"]]) == (1, ["c0", "c1"])
    assert "\x1b" not in ort_mobile("lab", "history", name, "--database", database).out
    assert "\x1b" not in ort_mobile("lab", "history", "\x1b[31m", "--database", database, code=2).err
