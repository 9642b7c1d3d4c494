"""What a login of a lab cannot take from others: rows, keys, locks, parts of files, campaigns, devices and space."""

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa

from device_runner.result import Failure, FailureKind, Status
from pipeline.campaign.store import REPEATED, Store, StoreError, migrations, open_reading, open_store
from pipeline.core.errors import PipelineError
from pipeline.features.lab.agent import work
from pipeline.features.lab.content import fetch_file, files_of, keep_files
from pipeline.features.lab.queue import Allowed, LabSession, attached_devices, jobs_of, submit_jobs
from pipeline.features.lab.status import state_of
from pipeline.features.lab.tables import blobs
from tests.campaign.store.samples import run_record
from tests.features.lab.farm import FILE, LONG_SECONDS, entered, host_session, rigs, silent, submitted, until
from tests.features.lab.test_attacks import with_roles
from tests.postgres import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

pytestmark = pytest.mark.postgresql

LONG = "a" * 64
"""The id of a planned run whose key is too long to be one."""


@contextlib.contextmanager
def opened(url: str, login: str, role: str = "ort_mobile_agent") -> Iterator[Store]:
    with open_store(with_roles(url, login, role)) as found:
        yield found


@contextlib.contextmanager
def at_work(url: str, login: str, host: str, *devices: str) -> Iterator[tuple[Store, LabSession]]:
    """An agent's login with its host, and the leases of these devices."""
    with opened(url, login) as found:
        session = host_session(found, host, devices)
        for device in devices:
            assert session.next_job(device, ())
        yield found, session
        session.close()


def add(store: Store, planned: str, device: str, host: str, *, number: int = 0, failure: FailureKind | None = None,
        log: str = "", spec: str = "", campaign: str = "c1") -> bool:  # fmt: skip
    run = run_record(spec or f"{planned}#{number}", number)
    result = msgspec.structs.replace(run.result, device=device, host=host, log=(log,) if log else ())
    if failure:
        failed = Failure(code=failure, what="it broke")
        result = msgspec.structs.replace(result, status=Status.FAILED, failure=failed, latencies_ns=())
    return store.add_run(msgspec.structs.replace(run, campaign=campaign, planned=planned, result=result))


def with_long_id(store: Store, folder: Path, devices: tuple[str, ...]) -> None:
    """A campaign in the queue whose first device has a planned run with a digest for its id."""
    campaign = entered(store, devices, 2, "plan")
    record = campaign.job()
    first = msgspec.structs.replace(record.planned[0], id=LONG)
    document = msgspec.structs.replace(record, planned=(first, *record.planned[1:]))
    store.start(msgspec.structs.replace(campaign, id="c1", document=document))
    (folder / "x").write_bytes(b"x")
    allowed = dict.fromkeys(devices, Allowed(100, 1 << 20))
    submit_jobs(store, "c1", allowed, keep_files(store, {"artifacts/x": folder / "x"}))


def test_a_login_cannot_enter_rows_under_the_ids_of_another_device(url: str, store: Store, tmp_path: Path) -> None:
    longer = "rig:1/nested"
    with_long_id(store, tmp_path, ("rig:0", "rig:1", longer))
    with at_work(url, "squatter", "evil", "rig:1") as (mine, _):
        for planned in ("rig:0/m/cpu", "rig:10/m", "rig:1", "s1", LONG, f"{longer}/m", LONG[:-1] + "b"):
            with pytest.raises(PipelineError, match=r"round 0 of .* is no run of rig:1"):
                add(mine, planned, "rig:1", "evil")
        with pytest.raises(PipelineError, match="is no run of rig:1"):
            add(mine, "rig:1/m", "rig:1", "evil", spec="rig:0/m#0")
        assert add(mine, "rig:1/m", "rig:1", "evil")
    with at_work(url, "honest", "h0", "rig:0", longer) as (mine, _):
        assert add(mine, LONG, "rig:0", "h0")
        assert add(mine, f"{longer}/m", longer, "h0")


def test_a_row_of_another_device_in_the_way_is_said(url: str, store: Store, tmp_path: Path) -> None:
    """As one that the owner entered, or a database of before has."""
    submitted(store, tmp_path, rigs(2), 1)
    with at_work(url, "late", "h0", "rig:0") as (mine, _):
        assert add(mine, "rig:0/m", "rig:0", "h0")
        store.write(lambda connection: connection.exec_driver_sql("UPDATE runs SET device = 'rig:1', host = 'evil'"))
        with pytest.raises(StoreError, match="a run of rig:0 cannot be stored: a row of rig:1 is in its place") as said:
            add(mine, "rig:0/m", "rig:0", "h0")
        assert "the host evil entered it as round 0 of the run rig:0/m#0" in said.value.why


def test_a_login_can_use_up_no_keys(url: str, store: Store, tmp_path: Path) -> None:
    """They have 64 bits, and are the database's: also an insert that is refused takes no more than one."""
    submitted(store, tmp_path, rigs(1), 1)
    store.write(lambda connection: connection.exec_driver_sql("SELECT setval('runs_id_seq', 2147483647)"))
    with at_work(url, "keys", "h0", "rig:0") as (mine, _):
        assert add(mine, "rig:0/m", "rig:0", "h0")
        with psycopg.connect(mine.where, autocommit=True) as connection:
            for statement in ("nextval('runs_id_seq')", "setval('runs_id_seq', 9223372036854775807)"):
                with pytest.raises(psycopg.Error, match="permission denied"):
                    connection.execute(f"SELECT {statement}")
    assert store.read(lambda connection: connection.scalar(sa.text("SELECT max(id) FROM runs"))) == 2147483648


@pytest.mark.parametrize("kind", REPEATED)
def test_an_agent_repeats_what_failed_for_a_passing_reason(
    url: str, store: Store, tmp_path: Path, kind: FailureKind
) -> None:
    submitted(store, tmp_path, rigs(1), 1)
    with at_work(url, "repeats", "h0", "rig:0") as (mine, _):
        assert add(mine, "rig:0/m", "rig:0", "h0", failure=kind)
        assert add(mine, "rig:0/m", "rig:0", "h0")
        assert not add(mine, "rig:0/m", "rig:0", "h0", failure=kind)
    assert [run.result.status for run in store.runs("c1")] == [Status.OK]


def test_an_agent_repeats_no_run_of_another(url: str, store: Store, tmp_path: Path) -> None:
    submitted(store, tmp_path, rigs(1), 1)
    with at_work(url, "victim", "h0", "rig:0") as (mine, _), opened(url, "remover") as other:
        assert add(mine, "rig:0/m", "rig:0", "h0", failure=FailureKind.LOST_DEVICE)
        with psycopg.connect(other.where) as connection, pytest.raises(psycopg.Error, match="has no lease of rig:0"):
            connection.execute("SELECT lab_repeat(array_agg(id)) FROM runs")
    assert len(store.runs("c1")) == 1


def test_who_waits_for_a_lock_is_told_so(url: str, store: Store) -> None:
    """An owner's session holds the tables, as no other role may: readers end with the reason and hang no server."""
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE lab_jobs IN ACCESS EXCLUSIVE MODE")
        with open_reading(url) as reader:
            bounds = reader.read(lambda connection: connection.exec_driver_sql("SHOW lock_timeout").scalar())
            reader.engine.dispose()
        assert bounds == "5s"
        with open_reading(f"{url}?options=-c%20lock_timeout%3D100ms") as reader:
            with pytest.raises(PipelineError, match="another session holds what is needed of the database") as said:
                state_of(reader)
            assert "pg_locks" in said.value.remedy


def test_a_result_waits_for_a_lock_of_another(url: str, store: Store, tmp_path: Path) -> None:
    submitted(store, tmp_path, rigs(1), 1)
    with at_work(url, "waits", "h0", "rig:0") as (mine, _), psycopg.connect(url) as holder:
        holder.execute("SELECT FROM lab_jobs FOR UPDATE")
        with open_store(f"{mine.where}?options=-c%20lock_timeout%3D100ms") as quick:
            adding = threading.Thread(target=add, args=(quick, "rig:0/m", "rig:0", "h0"))
            adding.start()
            time.sleep(0.5)
            holder.rollback()
            adding.join(LONG_SECONDS)
    assert len(store.runs("c1")) == 1


def test_a_lease_that_another_is_about_to_take_costs_no_session(url: str, store: Store, tmp_path: Path) -> None:
    submitted(store, tmp_path, rigs(1), 1)
    session = host_session(store, "h0", rigs(1))
    with psycopg.connect(url) as holder:
        holder.execute("INSERT INTO lab_leases VALUES ('rig:0', 'h0', now())")
        assert not session.take("rig:0")
        holder.rollback()
    assert session.take("rig:0")
    session.end()


def test_a_part_is_stored_under_its_own_digest_and_damage_is_mended_by_the_next_submit(
    url: str, store: Store, tmp_path: Path
) -> None:
    submitted(store, tmp_path, rigs(1), 1)
    (file,) = files_of(store, "c1")
    with opened(url, "poisons", "ort_mobile_submitter") as other:
        poison = f"INSERT INTO lab_blobs (sha256, content) VALUES ('{hashlib.sha256(b'x').hexdigest()}', 'poison')"
        with psycopg.connect(other.where) as connection, pytest.raises(psycopg.Error, match="permission denied"):
            connection.execute(poison)
        damage = blobs.update().where(blobs.c.sha256 == file.parts[1]).values(content=b"damaged")
        store.write(lambda connection: connection.execute(damage))
        with pytest.raises(StoreError, match="not as it was submitted") as refused:
            fetch_file(store, file, tmp_path / "copy")
        assert refused.value.remedy == "submit the campaign again"
        (tmp_path / "m.ort").write_bytes(FILE)
        assert keep_files(other, {"artifacts/m.ort": tmp_path / "m.ort"}) == [file]
        fetch_file(other, file, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == FILE


def test_a_campaign_is_its_logins_until_it_is_submitted(url: str, store: Store, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    allowed = {"rig:0": Allowed(9, 1 << 20)}
    with opened(url, "victim_s", "ort_mobile_submitter") as mine, opened(url, "thief", "ort_mobile_submitter") as other:
        entered(mine, rigs(1), 1)
        kept = keep_files(mine, {"artifacts/x": tmp_path / "x"})
        with pytest.raises(PipelineError, match="the campaign c1 belongs to another login"):
            submit_jobs(other, "c1", allowed, [])
        assert jobs_of(store) == []
        for _ in range(2):  # as after a commit whose answer was lost
            submit_jobs(mine, "c1", allowed, kept)
        for devices, files in (({**allowed, "rig:1": allowed["rig:0"]}, kept), ({}, kept), (allowed, [])):
            with pytest.raises(PipelineError, match="c1 was submitted with other devices or files"):
                submit_jobs(mine, "c1", devices, files)
        assert files_of(store, "c1") == kept


def test_a_device_of_a_living_host_is_its_logins_alone(url: str, store: Store, tmp_path: Path) -> None:
    """A phone on the network goes on at a host of another login when the one that has it is silent."""
    names = ("adb:PIXEL1", "adb:OTHER")
    submitted(store, tmp_path, names[:1], 1)
    document = '{"name":"adb:PIXEL1","platform":"android"}'
    with at_work(url, "owns", "h0", "adb:PIXEL1") as (mine, session), opened(url, "claims") as other:
        evil = LabSession(other.engine, "evil", "k")
        assert evil.sign_of_life("{}", "", dict.fromkeys(names, document)) == ("adb:PIXEL1",)
        assert not evil.take("adb:PIXEL1")
        assert set(attached_devices(store)) == set(names)
        second = LabSession(mine.engine, "h1", "k")  # of the same login
        assert second.sign_of_life("{}", "", {"adb:PIXEL1": document}) == ()
        for host in ("h0", "h1"):
            silent(store, host)
        # just after a start of the server every host has time to come back
        until(lambda: evil.sign_of_life("{}", "", dict.fromkeys(names, document)) == ())
        assert evil.take("adb:PIXEL1")
        assert session.sign_of_life("{}", "", {"adb:PIXEL1": document}) == ("adb:PIXEL1",)
        evil.close()
        second.close()


def test_an_agent_says_what_hosts_of_other_logins_have(url: str, store: Store, tmp_path: Path) -> None:
    said: list[str] = []
    submitted(store, tmp_path, rigs(1), 1)
    with at_work(url, "first", "h0", "rig:0"), opened(url, "second"):
        stop = threading.Event()
        as_second = url.replace("tester@", "second@")
        thread = threading.Thread(
            target=work, args=(as_second, rigs(2), stop), kwargs={"host": "h1", "say": said.append}
        )
        thread.start()
        until(lambda: "at hosts of other logins, which are alive: rig:0" in said)
        stop.set()
        thread.join(LONG_SECONDS)


def test_results_of_a_device_are_bounded_together(url: str, store: Store, tmp_path: Path) -> None:
    entered(store, rigs(1), 1)
    (tmp_path / "x").write_bytes(b"x")
    submit_jobs(store, "c1", {"rig:0": Allowed(9, 100_000)}, keep_files(store, {"artifacts/x": tmp_path / "x"}))
    with at_work(url, "large", "h0", "rig:0") as (mine, _):
        assert add(mine, "rig:0/m", "rig:0", "h0", log="x" * 60_000)
        with pytest.raises(PipelineError, match="results of rig:0 have more bytes than were planned"):
            add(mine, "rig:0/m", "rig:0", "h0", number=1, log="x" * 60_000)
        many = run_record("rig:0/m#1", 1, latencies_ns=(5,) * 10_000)
        result = msgspec.structs.replace(many.result, device="rig:0", host="h0")
        with pytest.raises(PipelineError, match="results of rig:0 have more bytes than were planned"):
            mine.add_run(msgspec.structs.replace(many, planned="rig:0/m", result=result))
        assert add(mine, "rig:0/m", "rig:0", "h0", number=1)


# --- a database of the release before ---------------------------------------------------------------------------------

BEFORE = """
INSERT INTO campaigns (id, name, created_at, document, sequence, digest) VALUES ('old', 'lab', '', 'null', 1, '');
INSERT INTO runs (campaign_id, spec_id, planned, round, model, variant, device, provider, status, started_at, spec,
    result, checks, host, digest) SELECT 'old', 'rig:0/m#' || n, 'rig:0/m', n, 'm', 'v', 'rig:0', 'cpu', 'ok', '', '{}',
    '{}', '[]', 'h0', '' FROM generate_series(0, 2) n;
INSERT INTO latencies SELECT id, 1, decode('0500000000000000', 'hex') FROM runs;
INSERT INTO lab_hosts (name, seen, versions, session) VALUES ('h0', now(), '{}', 'k');
INSERT INTO lab_jobs (campaign_id, device, state, stage, changed, runs_left)
    VALUES ('old', 'rig:0', 'running', 'rounds', now(), 9);
CREATE POLICY agents_add ON latencies FOR INSERT WITH CHECK (EXISTS (SELECT FROM runs WHERE runs.id = run_id));
CREATE POLICY agents_repeat ON latencies FOR DELETE USING (EXISTS (SELECT FROM runs WHERE runs.id = run_id));
"""


@pytest.fixture
def before(server: PostgresServer) -> str:
    """A database of the first schema with runs, policies of its roles, and a file in three parts, two of them equal."""
    from alembic import command

    url = server.database()
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    parts = [bytes(1 << 20), bytes(1 << 20), b"end"]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    with engine.begin() as connection:
        config = migrations._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "v0001")
        for statement in filter(str.strip, BEFORE.split(";")):
            connection.exec_driver_sql(statement)
        rows = [{"digest": digest, "part": number, "content": part} for number, part in enumerate(parts)]
        connection.execute(sa.text("INSERT INTO lab_blobs VALUES (:digest, :part, :content)"), rows)
        file = {"digest": digest, "size": sum(map(len, parts))}
        connection.execute(sa.text("INSERT INTO lab_files VALUES ('old', 'artifacts/m', :digest, :size)"), file)
    engine.dispose()
    return url


def test_a_lab_of_the_release_before_is_upgraded_with_all_that_it_has(before: str, tmp_path: Path) -> None:
    with open_store(before) as store:
        (file,) = files_of(store, "old")
        fetch_file(store, file, tmp_path / "m")
        assert hashlib.sha256((tmp_path / "m").read_bytes()).hexdigest() == file.sha256
        assert (len(file.parts), len(set(file.parts))) == (3, 2)
        assert len(store.finished("old")) == 3
        (job,) = jobs_of(store)
        assert (job.device, job.state) == ("rig:0", "running")
        store.write(lambda connection: connection.exec_driver_sql("UPDATE lab_hosts SET login = session_user"))
        session = host_session(store, "h0", rigs(1))
        assert session.next_job("rig:0", ()) == "old"
        assert add(store, "rig:0/m", "rig:0", "h0", number=3, campaign="old")
        query = sa.text("SELECT r.id, l.run_id FROM runs r JOIN latencies l ON l.run_id = r.id ORDER BY r.id")
        assert store.read(lambda connection: [tuple(row) for row in connection.execute(query)])[-1] == (4, 4)
        session.end()


def test_an_agent_that_was_at_work_before_the_upgrade_is_told_to_be_updated(before: str) -> None:
    with psycopg.connect(before, autocommit=True) as earlier:
        assert earlier.execute("SELECT lab_begin('h9', 'k9')").fetchone() == (True,)
        open_store(before).close()
        with pytest.raises(psycopg.Error, match="the host h9 is not of this session"):
            earlier.execute("SELECT lab_live('h9', 'k9', '{}', '', '{}', '{}')")
        with pytest.raises(psycopg.Error, match="the database was upgraded: update ort-mobile on this computer"):
            earlier.execute("SELECT lab_begin('h9', 'k9')")
        with pytest.raises(psycopg.Error, match="the database was upgraded: update ort-mobile on this computer"):
            earlier.execute("SELECT lab_submit('old', '{d}', '{1}', '{}', '{}', '{}')")
