"""Whose turn a device is: campaigns of a higher priority begin at once, those of one priority share its time."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa

from pipeline.campaign.record import RunRecord
from pipeline.campaign.store import Store, migrations, open_store
from pipeline.core.errors import PipelineError
from pipeline.features.lab.queue import (
    DONE,
    WAITING,
    SessionLost,
    cancel_jobs,
    jobs_of,
    prefer,
)
from tests.features.lab.farm import (
    SECONDS,
    agent,
    all_in,
    check_stored,
    host_session,
    rigs,
    silent,
    submitted,
    until,
)
from tests.features.lab.test_attacks import with_roles
from tests.postgres import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

pytestmark = pytest.mark.postgresql

DEVICE = "rig:0"


def statement(store: Store, text: str, **values: object) -> None:
    store.write(lambda connection: connection.execute(sa.text(text), values))


def with_turns_of(store: Store, seconds: int) -> None:
    """A change of campaigns costs nothing here."""
    function = "CREATE OR REPLACE FUNCTION lab_turn_seconds() RETURNS integer LANGUAGE sql IMMUTABLE"
    statement(store, f"{function} AS 'SELECT {seconds}'")


def in_order(store: Store, device: str, *campaigns: str) -> list[RunRecord]:
    """Runs of a device in the order in which they began."""
    runs = [run for campaign in campaigns for run in store.runs(campaign) if run.result.device == device]
    return sorted(runs, key=lambda run: run.result.started_at)


@contextmanager
def as_login(url: str, login: str, role: str = "ort_mobile_submitter") -> Iterator[Store]:
    with open_store(with_roles(url, login, role)) as opened:
        yield opened


# --- real agents ------------------------------------------------------------------------------------------------------


def test_a_small_campaign_of_higher_priority_begins_within_one_run_of_each_device(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large one goes on afterwards, where it was, and each run of both is stored once."""
    monkeypatch.setenv(SECONDS, "0.4")
    names = rigs(4)
    large = submitted(store, tmp_path, names, 12, "c1")
    with agent(url, "h1", names[:2]), agent(url, "h2", names[2:]):
        until(lambda: len(store.finished("c1")) >= 10)
        small = submitted(store, tmp_path, names, 2, "c2", priority=1)
        now = store.read(lambda connection: connection.scalar(sa.text("SELECT clock_timestamp()")))
        until(lambda: all(job.state == DONE for job in jobs_of(store, "c2")))
        behind = {job.device: job.state for job in jobs_of(store, "c1")}
        until(all_in(store, DONE))
    assert set(behind.values()) & {WAITING, "running"}, "the large one was not done before"
    check_stored(store, large, 12)
    check_stored(store, small, 2)
    for name in names:
        runs = in_order(store, name, "c1", "c2")
        first = next(number for number, run in enumerate(runs) if run.campaign == "c2")
        begun = [run for run in runs[:first] if datetime.fromisoformat(run.result.started_at) > now]
        assert len(begun) <= 1, name
        for number in range(12):
            first, second = (place for place, run in enumerate(runs) if (run.campaign, run.round) == ("c1", number))
            is_cut = runs[first].stretch != runs[second].stretch
            assert is_cut == any(run.campaign == "c2" for run in runs[first:second]), (name, number)
        rounds = [run.campaign for run in runs if run.round < 12]
        assert len(list(pairwise_changes(rounds))) == 2, "it is not left again before it is done"


def pairwise_changes(values: Sequence[object]) -> Iterator[tuple[object, object]]:
    return (pair for pair in pairwise(values) if pair[0] != pair[1])


def test_campaigns_of_one_priority_share_each_device_between_rounds(
    url: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two logins, one with two campaigns: half of the time for each login; no round is cut in two."""
    monkeypatch.setenv(SECONDS, "0.1")
    with_turns_of(store, 0)
    names = rigs(2)
    with as_login(url, "share_a") as a, as_login(url, "share_b") as b:
        submitted(a, tmp_path, names, 400, "a1")
        submitted(a, tmp_path, names, 400, "a2")
        submitted(b, tmp_path, names, 400, "b1")
    with agent(url, "h1", names):
        until(lambda: len(store.finished("b1")) >= 60)
        for campaign in ("a1", "a2", "b1"):
            cancel_jobs(store, campaign)
    for name in names:
        runs = in_order(store, name, "a1", "a2", "b1")
        turns = [(run.campaign, run.round) for run in runs]
        cut = [pair for pair in Counter(dict.fromkeys(turns)).items() if turns.count(pair[0]) != 2]
        assert len(cut) <= 1, "the round in which it was cancelled"
        changes = list(pairwise_changes([campaign for campaign, _ in turns]))
        assert len(changes) > 10
        counted = Counter(campaign for campaign, _ in turns)
        # Shares are of time, and other work makes some runs longer: how exact they are, the schedule below shows
        assert 0.3 < counted["b1"] / len(turns) < 0.7
        assert 0.1 < counted["a1"] / len(turns) < 0.4


# --- a longer schedule: the same functions of the database, by a clock that is moved ----------------------------------


class Device:
    """A device whose runs take no time here: leases are moved into the past by what they would have taken."""

    def __init__(self, store: Store, url: str, devices: Sequence[str] = (DEVICE,)) -> None:
        self.session = host_session(store, "h0", devices)
        self.had: dict[str, float] = defaultdict(float)
        self.order: list[str] = []
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("SET session_replication_role = replica")  # no trigger fires

    def pass_(self, seconds: float) -> None:
        """As if it were later, and the host alive."""
        columns = {"lab_leases": "since", "lab_times": "ended", "lab_jobs": "changed"}
        changes = [f"UPDATE {table} SET {name} = {name} - interval '{seconds} s'" for table, name in columns.items()]
        self.connection.execute("; ".join((*changes, "UPDATE lab_hosts SET seen = now() WHERE name = 'h0'")))

    def take(self, refused: Sequence[str] = ()) -> str:
        self.session.keep([])
        return self.session.next_job(DEVICE, refused)

    def round(self, store: Store, campaign: str, seconds: Sequence[float], first: bool) -> str:
        """The runs of a round; the campaign that it gives way to, before a run of it or at its end."""
        job = next(job for job in jobs_of(store, campaign) if job.device == DEVICE)
        for number, length in enumerate(seconds):
            turn = self.session.turn(job, (), between_rounds=not first and number == 0)
            if turn.gives_way_to:
                return turn.gives_way_to
            self.pass_(length)
            self.had[campaign] += length
            self.order.append(campaign)
        return ""

    def work(self, store: Store, lengths: dict[str, Sequence[float]], until_seconds: float) -> None:
        """Runs of rounds, of which each campaign's take so many seconds, until so much time has passed."""
        while sum(self.had.values()) < until_seconds:
            campaign, first = self.take(), True
            while not self.round(store, campaign, lengths[campaign], first) and sum(self.had.values()) < until_seconds:
                first = False

    def close(self) -> None:
        self.connection.close()
        self.session.end()


@pytest.fixture
def device(url: str, store: Store) -> Iterator[Device]:
    made = Device(store, url)
    yield made
    made.close()


def test_shares_of_a_long_schedule_are_within_a_tenth(
    url: str, store: Store, tmp_path: Path, device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounds of 20 s to 6 min, turns of a minute at least, three logins with one to three campaigns, for 16 hours."""
    campaigns = {"la": ("a1",), "lb": ("b1", "b2"), "lc": ("c1", "c2", "c3")}
    for login, names in campaigns.items():
        with as_login(url, login) as mine:
            for name in names:
                submitted(mine, tmp_path, [DEVICE], 9, name)
    lengths: dict[str, Sequence[float]] = {
        "a1": (20, 20), "b1": (20,) * 4, "b2": (60, 120), "c1": (90,) * 4, "c2": (10, 20, 30), "c3": (33, 7)
    }  # fmt: skip
    device.work(store, lengths, 16 * 3600)
    total = sum(device.had.values())
    shares = {name: device.had[name] / total * 3 * len(names) for names in campaigns.values() for name in names}
    with capsys.disabled():
        print(f"\nlab: shares of what is fair, of {len(device.order)} runs: "
              + ", ".join(f"{name} {share:.3f}" for name, share in shares.items()))  # fmt: skip
    assert all(abs(share - 1) < 0.1 for share in shares.values())


def test_who_comes_later_gets_a_share_and_nothing_for_the_time_before(
    url: str, store: Store, tmp_path: Path, device: Device
) -> None:
    """Also in place of a campaign that waited without being possible here, and for who was away for hours."""
    lengths: dict[str, Sequence[float]] = {"a1": (60, 60), "b1": (50, 50), "b2": (50, 50), "s1": (1,)}
    with as_login(url, "sooner") as a, as_login(url, "late") as b, as_login(url, "stuck") as stuck:
        submitted(stuck, tmp_path, [DEVICE], 9, "s1")
        cancel_jobs(stuck, "s1")
        submitted(a, tmp_path, [DEVICE], 9, "a1")
        device.work(store, lengths, 4 * 3600)
        for late in ("b1", "b2"):
            submitted(b, tmp_path, [DEVICE], 9, late)
            before = device.had.copy()
            device.work(store, lengths, sum(device.had.values()) + 4 * 3600)
            assert abs((device.had[late] - before[late]) / (4 * 3600) - 0.5) < 0.05
            cancel_jobs(b, late)
            device.work(store, lengths, sum(device.had.values()) + 4 * 3600)


def test_a_higher_priority_goes_before_the_next_run_and_lower_ones_have_a_round_an_hour(
    url: str, store: Store, tmp_path: Path, device: Device
) -> None:
    lengths: dict[str, Sequence[float]] = {"low": (60,) * 4, "high": (100,) * 6, "idle": (30,) * 2}
    submitted(store, tmp_path, [DEVICE], 9, "low")
    submitted(store, tmp_path, [DEVICE], 9, "idle", priority=-1)
    assert device.take() == "low"
    assert device.round(store, "low", (60,), True) == ""
    submitted(store, tmp_path, [DEVICE], 9, "high", priority=1)
    assert device.round(store, "low", (60,), True) == "high", "not between rounds"
    assert device.take() == "high"
    device.order.clear()
    device.had.clear()
    device.work(store, lengths, 86400)
    begins = [place for place, (before, after) in enumerate(pairwise(device.order), 1) if before != "low" == after]
    assert 18 <= len(begins) <= 24, "about one in an hour"
    assert all(device.order[place : place + 5].count("low") == 4 for place in begins[:-1]), "one whole round"
    assert device.had["high"] / sum(device.had.values()) > 0.85
    assert device.had["idle"] > 0


def test_the_owner_goes_before_everything_and_nobody_catches_up(
    url: str, store: Store, tmp_path: Path, device: Device
) -> None:
    lengths: dict[str, Sequence[float]] = {"first": (100,) * 6, "urgent": (100,) * 6}
    submitted(store, tmp_path, [DEVICE], 9, "first", priority=1)
    submitted(store, tmp_path, [DEVICE], 9, "urgent", priority=2)
    device.work(store, lengths, 86400)
    assert device.had["first"] == 0


def test_a_campaign_that_the_host_cannot_measure_holds_nobody_up(store: Store, tmp_path: Path, device: Device) -> None:
    submitted(store, tmp_path, [DEVICE], 9, "c1", priority=1)
    submitted(store, tmp_path, [DEVICE], 9, "c2")
    assert device.take(["c1"]) == "c2"
    job = next(job for job in jobs_of(store, "c2"))
    for between in (False, True):
        assert device.session.turn(job, ["c1"], between_rounds=between).gives_way_to == ""
        assert device.session.turn(job, [], between_rounds=between).gives_way_to == "c1"


def test_time_counts_however_a_lease_ends(url: str, store: Store, tmp_path: Path, device: Device) -> None:
    """Given back, taken by another host, lost with its host: what a silent host had counts until it was given up."""
    used = sa.text("SELECT round(sum(used_ms) / 1000) FROM lab_times WHERE campaign_id = 'c1'")

    def had() -> int:
        return int(store.read(lambda connection: connection.scalar(used)) or 0)

    submitted(store, tmp_path, [DEVICE], 9, "c1")
    assert device.take() == "c1"
    device.pass_(100)
    device.session.keep([])
    assert had() == 100
    assert device.take() == "c1"
    device.pass_(50)
    assert device.session.take(DEVICE), "the device, without its job"
    assert had() == 150
    assert device.take() == "c1"
    device.pass_(3600 + 200)
    silent(store, "h0")  # for the last hour
    other = host_session(store, "other", [DEVICE])
    until(lambda: other.next_job(DEVICE, ()) == "c1")
    assert 150 + 200 <= had() <= 150 + 210
    other.end()


# --- what a login cannot do -------------------------------------------------------------------------------------------


def priorities(store: Store) -> dict[str, int]:
    return {job.campaign_id: job.priority for job in jobs_of(store)}


def test_a_login_changes_the_priority_of_its_own_campaigns_alone(url: str, store: Store, tmp_path: Path) -> None:
    with as_login(url, "mine_s") as mine, as_login(url, "other_s") as other:
        submitted(mine, tmp_path, [DEVICE], 1, "m")
        submitted(other, tmp_path, [DEVICE], 1, "o", priority=1)
        for value in (-1, 1, 0):
            assert prefer(mine, "m", value) == 1
            assert priorities(store) == {"m": value, "o": 1}
        for campaign, value, why in (
            ("o", -1, "the campaign o belongs to another login"), ("m", 2, "a priority is -1, 0 or 1, or 2"),
            ("m", -2, "a priority is -1, 0 or 1"), ("m", 99, "a priority is -1, 0 or 1"),
        ):  # fmt: skip
            with pytest.raises(PipelineError, match=why):
                prefer(mine, campaign, value)
        with pytest.raises(PipelineError, match="the campaign o belongs to another login"):
            cancel_jobs(mine, "o")
        with pytest.raises(PipelineError, match="a priority is -1, 0 or 1, or 2"):
            submitted(mine, tmp_path, [DEVICE], 1, "m2", priority=2)
        assert priorities(store) == {"m": 0, "o": 1}
        assert prefer(store, "o", 2) == 1, "the owner"
        assert cancel_jobs(store, "o") == 1
        assert prefer(mine, "m", 1) == 1
        assert cancel_jobs(mine, "m") == 1
        assert prefer(mine, "m", 0) == 0, "nothing is left of it"


HANDED = "the host evil has no lease of rig:0 for the campaign c2"


def test_an_agent_works_on_what_it_was_handed_alone(url: str, store: Store, tmp_path: Path) -> None:
    from tests.features.lab.test_logins import add

    submitted(store, tmp_path, [DEVICE], 2, "c1")
    submitted(store, tmp_path, [DEVICE], 2, "c2")
    with as_login(url, "evil_a", "ort_mobile_agent") as mine:
        session = host_session(mine, "evil", [DEVICE])
        assert session.next_job(DEVICE, ()) == "c1"
        with pytest.raises(PipelineError, match="no lease of rig:0 at the host evil for the campaign c2"):
            add(mine, "rig:0/m", DEVICE, "evil", campaign="c2")
        assert session.take(DEVICE), "a device without a job"
        for campaign in ("c1", "c2"):
            with pytest.raises(PipelineError, match=f"at the host evil for the campaign {campaign}"):
                add(mine, "rig:0/m", DEVICE, "evil", campaign=campaign)
        assert session.next_job(DEVICE, ["c2"]) == "c1"
        assert add(mine, "rig:0/m", DEVICE, "evil", campaign="c1")
        with pytest.raises(SessionLost, match=HANDED):
            session.call("lab_change", "c2", DEVICE, "failed", 1, "")
        session.close()


CHEATS = (
    "UPDATE lab_times SET used_ms = 0", "DELETE FROM lab_times", "INSERT INTO lab_times VALUES ('d', '', '*', 0, 9)",
    "UPDATE lab_jobs SET priority = 2", "UPDATE lab_leases SET campaign_id = 'c2'",
    "UPDATE lab_leases SET since = now() + interval '1 day'", "SELECT lab_choose('rig:0', '{}', '')",
    "SELECT lab_waiting('rig:0', '{}', '')", "SELECT lab_own_campaign('c1', 0)",
    "SELECT lab_count_time()", "SELECT lab_keep_lost()", "DELETE FROM lab_lost",
    "INSERT INTO lab_lost VALUES ('a', 'b', now())",
    "SELECT * FROM lab_notices", "SELECT address FROM lab_notices", "UPDATE lab_notices SET address = 'http://evil'",
    "CREATE OR REPLACE FUNCTION lab_turn_seconds() RETURNS integer LANGUAGE sql AS 'SELECT 0'",
    "ALTER TABLE lab_leases DISABLE TRIGGER lab_count_time", "SET session_replication_role = replica",
    "INSERT INTO lab_notices (campaign_id, kind, address) VALUES ('c1', 'url', 'http://evil')",
)  # fmt: skip

OF_HOSTS = (
    "SELECT lab_next('h0', 'key of h0', 'rig:0', '{}')", "SELECT lab_notice('h0', 'key of h0', '{url}')",
    "SELECT lab_turn('h0', 'key of h0', 'c1', 'rig:0', '{}', true)",
    "SELECT lab_noticed('h0', 'key of h0', 'c1', 'url', '')",
)  # fmt: skip
OF_SUBMITTERS = (
    "SELECT lab_prefer('c1', 1)", "SELECT lab_prefer('c1', NULL)", "SELECT lab_cancel('c1')",
    "SELECT lab_submit('c1', '{rig:0}', '{9}', '{9}', '[]', 1, 'http://evil')",
)  # fmt: skip


def test_addresses_are_nobodys_right_after_an_upgrade(server: PostgresServer) -> None:
    """Before roles.sql was run again: roles have what later tables get by themselves, but this one."""
    from alembic import command

    url = server.database()
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    roles = ("ort_mobile_reader", "ort_mobile_submitter", "ort_mobile_agent")
    with engine.begin() as connection:
        config = migrations._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "v0002")
        for role in roles:
            missing = f"IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN CREATE ROLE {role}; END IF;"
            connection.exec_driver_sql(f"DO $$ BEGIN {missing} END $$")
            connection.exec_driver_sql(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {role}")
    engine.dispose()
    open_store(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        for role in roles:
            for table, readable in (("lab_times", True), ("lab_notices", False)):
                asked = "SELECT has_table_privilege(%s, %s, 'SELECT')"
                assert connection.execute(asked, (role, table)).fetchone() == (readable,)
            may_call = "SELECT bool_or(has_function_privilege(%s, oid, 'EXECUTE')) FROM pg_proc"
            called = connection.execute(may_call + r" WHERE proname LIKE 'lab\_%%'", (role,)).fetchone()
            assert called == (False,)


@pytest.mark.parametrize("role", ["reader", "agent", "submitter"])
def test_no_role_changes_whose_turn_it_is(url: str, store: Store, tmp_path: Path, role: str) -> None:
    submitted(store, tmp_path, [DEVICE], 2, "c1", address="http://lab.example/secret")
    session = host_session(store, "h0", [DEVICE])
    assert session.next_job(DEVICE, ()) == "c1"
    login = with_roles(url, f"cheat_{role}", f"ort_mobile_{role}")
    with psycopg.connect(login, autocommit=True) as connection:
        for cheat in (*CHEATS, *OF_HOSTS, *OF_SUBMITTERS):
            with pytest.raises(psycopg.Error, match=r"permission denied|must be owner|the lab refuses"):
                connection.execute(cheat)
    assert priorities(store) == {"c1": 0}
    session.end()
