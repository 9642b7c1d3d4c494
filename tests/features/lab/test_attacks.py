"""The roles of build_configs/lab/roles.sql: each does its work, and SQL with its login no more; why is said."""

import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from pipeline.campaign.store import Store, open_store
from pipeline.campaign.store.digests import row_digest
from pipeline.campaign.store.tables import latencies, runs
from pipeline.core.errors import ConfigError, PipelineError
from pipeline.core.files import REVISION
from pipeline.core.progress import NoProgress
from pipeline.features.lab.campaigns import close, most_runs
from pipeline.features.lab.content import keep_files, remove_old_files
from pipeline.features.lab.queue import DONE, Allowed, LabSession, SessionLost, cancel_jobs, submit_jobs
from pipeline.features.lab.status import lab_status, status_lines
from pipeline.job.assemble import assemble
from tests.campaign.store.samples import add_second_migration, run_record
from tests.features.lab.farm import agent, all_in, check_stored, entered, host_session, rigs, submitted, until
from tests.postgres import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

pytestmark = pytest.mark.postgresql

COMMON = {
    "DROP TABLE runs": "must be owner",
    "TRUNCATE runs": "permission denied",
    "CREATE TABLE mine (n int)": "permission denied for schema",
    "CREATE TEMPORARY TABLE mine (n int)": "permission denied to create temporary tables",
    "SELECT lo_create(0)": "permission denied for function lo_create",
    "SELECT rolpassword FROM pg_authid": "permission denied",
    "UPDATE campaigns SET document = '{}'": "permission denied",
    "UPDATE campaigns SET id = id": "permission denied",
    "DELETE FROM campaigns": "permission denied",
    "UPDATE runs SET median_ns = 1": "permission denied",
    "UPDATE lab_jobs SET state = 'done'": "permission denied",
    "UPDATE lab_jobs SET changed = now() - interval '40 days'": "permission denied",
    "UPDATE lab_leases SET host = 'h2'": "permission denied",
    "INSERT INTO lab_leases VALUES ('rig:0', 'h1', now())": "denied",
    "DELETE FROM lab_leases": "permission denied",
    "INSERT INTO lab_hosts (name, seen, versions) VALUES ('h9', now(), '')": "permission denied",
    "UPDATE lab_hosts SET login = session_user": "permission denied",
    "DELETE FROM lab_devices": "permission denied",
    "INSERT INTO lab_jobs (campaign_id, device, state, stage, changed) VALUES ('c1', 'd', 'waiting', 'rounds', now())":
        "permission denied",
    "INSERT INTO lab_files VALUES ('c1', '/etc/passwd', repeat('a', 64), 1)": "permission denied",
    "UPDATE lab_files SET size_bytes = 4611686018427387904": "permission denied",
    "UPDATE lab_blobs SET content = 'x'": "permission denied",
    "DELETE FROM lab_blobs": "permission denied",
    "DO $$ BEGIN LOCK TABLE lab_blobs IN EXCLUSIVE MODE; END $$": "permission denied",
    "INSERT INTO lab_quarantines (device, reason, placed, after_run) VALUES ('rig:0', 'x', now(), 0)":
        "permission denied",
    "UPDATE lab_quarantines SET sound = true": "permission denied",
    "INSERT INTO lab_checks (device, host, at, golden, moment, setting, good, last_run) VALUES ('rig:0', 'h1', now(), "
    "'', 'before', '', true, 0)": "permission denied",
    "DELETE FROM lab_checks": "permission denied",
    "UPDATE lab_golden SET campaign_id = 'c1'": "permission denied",
    "UPDATE lab_jobs SET needs = 'v9999'": "permission denied",
    "SELECT lab_lease_of('h1', 'key of h1', 'rig:0')": "permission denied",
    "SELECT lab_set_golden('c1', '[]')": "permission denied",
    "SELECT lab_release('rig:0', true)": "permission denied",
    "SET SESSION AUTHORIZATION tester": "permission denied",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tester'": "",
}  # fmt: skip
"""Statements to what PostgreSQL says."""

AGENT = {
    "SELECT lab_quarantine('h1', 'key of h1', 'rig:0', 'x')": "the host h1 is not of this session",
    "SELECT lab_checked('h1', 'key of h1', 'rig:0', 'c1', 'before', '', 1, true, '', '{}')":
        "the host h1 is not of this session",
    "SELECT lab_quarantine('evil', 'k', 'rig:0', 'x')": "the host evil has no lease of rig:0",
    "SELECT lab_checked('evil', 'k', 'rig:0', 'c1', 'before', '', 1, true, '', '{}')": "no lease of rig:0",
    "SELECT lab_needs('c1', 'v9999')": "permission denied",
    "SELECT lab_submit('c1', '{}', '{}', '{}', '{}')": "permission denied",
    "SELECT lab_put('x')": "permission denied",
    "DELETE FROM runs": "permission denied",
    "DELETE FROM latencies": "permission denied",
    "SELECT nextval('runs_id_seq')": "permission denied",
    "DO $$ BEGIN LOCK TABLE runs IN ACCESS EXCLUSIVE MODE; END $$": "permission denied",
    "DO $$ BEGIN LOCK TABLE latencies IN SHARE MODE; END $$": "permission denied",
    f"SELECT count(lab_begin('evil' || n, 'k', '{REVISION}')) FROM generate_series(1, 300) n": "has 256 hosts",
    "SELECT lab_begin('evil', 'k', 'v0001')": "an agent of the schema v0001: update",
    "SELECT lab_begin('evil', 'k')": "the database was upgraded: update ort-mobile",
    "SELECT lab_cancel('c1')": "permission denied",
    "SELECT lab_remove_old_files()": "permission denied",
    "INSERT INTO lab_blobs (sha256, content) VALUES (repeat('a', 64), 'x')": "permission denied",
    "INSERT INTO runs (id) OVERRIDING SYSTEM VALUE VALUES (2147483647)": "permission denied",
    "INSERT INTO latencies VALUES (1, 0, '')": "row-level security",
    "SELECT setval('runs_id_seq', 2147483647)": "permission denied",
    f"SELECT lab_begin('h1', 'mine', '{REVISION}')": "the host h1 belongs to the login",
    "SELECT lab_take('h1', 'key of h1', 'rig:0')": "the host h1 is not of this session",
    "SELECT lab_live('h1', 'key of h1', '{}', '', '{}', '{}')": "the host h1 is not of this session",
    "SELECT lab_change('h1', 'key of h1', 'c1', 'rig:0', 'failed', 0, '')": "the host h1 is not of this session",
    "SELECT lab_change('evil', 'k', 'c1', 'rig:0', 'failed', 0, '')": "the host evil has no lease of rig:0",
    "SELECT lab_end_stage('evil', 'k', 'c1', '{}', '')": "no lease of the choice of c1",
    "SELECT lab_live('evil', 'k', '{}', '', '{local@h1}', '{x}')": "local@h1 is not of the host evil",
}  # fmt: skip


def submitting(name: str, size_bytes: int = 0) -> str:
    """A submit of the login's own campaign with one file."""
    file = f'{{"name": "{name}", "sha256": "{"a" * 64}", "size_bytes": {size_bytes}, "parts": []}}'
    return f"lab_submit('own', '{{d}}', '{{1}}', '{{1}}', '[{file}]', 0, '')"


SUBMITTER = {
    "SELECT lab_quarantine('h1', 'key of h1', 'rig:0', 'x')": "permission denied",
    "SELECT lab_checked('h1', 'key of h1', 'rig:0', 'c1', 'before', '', 1, true, '', '{}')": "permission denied",
    "INSERT INTO runs (campaign_id) VALUES ('c1')": "permission denied",
    f"SELECT lab_begin('evil', 'k', '{REVISION}')": "permission denied",
    "SELECT lab_take('h1', 'key of h1', 'rig:0')": "permission denied",
    "INSERT INTO artifacts (campaign_id, model, variant, sha256, document) VALUES ('c1', 'a', 'b', '', '')":
        "row-level security",
    "INSERT INTO devices (campaign_id, name, document) VALUES ('c1', 'a', '')": "row-level security",
    "INSERT INTO campaigns (id, name, created_at, document, digest, sequence) VALUES ('c', '', '', '', '', 2147483647)":
        "row-level security",
    "INSERT INTO campaigns (id, name, created_at, document, digest, sequence) VALUES ('../c', '', '', '', '', 2)": (
        "violates check"
    ),
    "INSERT INTO lab_blobs (sha256, content) VALUES (repeat('a', 64), 'x')": "permission denied",
    "SELECT lab_put(repeat('x', 9999999)::bytea)": "check constraint",
    "SELECT lab_submit('c2', '{d}', '{1}', '{}', '{}', '{}')": "the database was upgraded: update ort-mobile",
    "SELECT lab_submit('c2', '{d}', '{1}', '{1}', '[]')": "permission denied",
    "SELECT lab_submit('c2', '{d}', '{1}', '{1}', '[]', 0, '')": "the campaign c2 belongs to another login",
    **{
        f"SELECT {submitting(name)}": "check constraint"
        for name in ("/tmp/x", "artifacts/../x", "../x", r"artifacts/\u001b", "artifacts/a/b", "")
    },
    f"SELECT {submitting('artifacts/m', -1)}": "check constraint",
    f"SELECT {submitting('artifacts/m', 1)}": "other parts than its size says",
    f"SELECT {submitting('artifacts/m', 4611686018427387904)}": "files of more than a campaign may have",
}  # fmt: skip

READER = {
    "SELECT lab_quarantine('h1', 'key of h1', 'rig:0', 'x')": "permission denied",
    "SELECT lab_checked('h1', 'key of h1', 'rig:0', 'c1', 'before', '', 1, true, '', '{}')": "permission denied",
    "SELECT lab_needs('c1', 'v9999')": "permission denied",
    "SELECT content FROM lab_blobs": "permission denied",
    "INSERT INTO runs (campaign_id) VALUES ('c1')": "permission denied",
    "INSERT INTO campaigns (id, name, created_at, document) VALUES ('c9', '', '', '')": "permission denied",
    "INSERT INTO lab_blobs (sha256, content) VALUES (repeat('a', 64), 'x')": "permission denied",
    f"SELECT lab_begin('evil', 'k', '{REVISION}')": "permission denied",
    "SELECT lab_cancel('c1')": "permission denied",
    "SELECT lab_remove_old_files()": "permission denied",
}  # fmt: skip


@pytest.fixture
def lab(url: str, store: Store, tmp_path: Path) -> Iterator[Store]:
    """A host h1 of the owner's login has rig:0 and its job; c2 is entered and not submitted."""
    submitted(store, tmp_path, ["rig:0", "rig:1"], 2)
    entered(store, ["rig:0"], 1, "c2")
    session = host_session(store, "h1", ["rig:0"])
    assert session.next_job("rig:0", ()) == "c1"
    with psycopg.connect(url, autocommit=True) as superuser:
        superuser.execute(
            "REVOKE EXECUTE ON FUNCTION lo_creat(int), lo_create(oid), lo_from_bytea(oid, bytea) FROM PUBLIC"
        )
    yield store
    session.end()


def test_advisory_locks_of_a_reader_stop_nothing(url: str, lab: Store, tmp_path: Path) -> None:
    """No user can be forbidden to take them."""
    login = with_roles(url, "locker", "ort_mobile_reader")
    with psycopg.connect(login) as connection:
        for key in (0x6F72_746D_6669_6C65, 0x6F72_746D_7570_6C64, 0x6F72_746D_6F62_696C, 1):
            connection.execute("SELECT pg_advisory_lock(%s)", (key,))
        connection.execute("SELECT * FROM lab_jobs, lab_leases, lab_hosts")
        with open_store(url) as other:
            session = host_session(other, "h2", ["rig:1"])
            assert session.take("rig:1")
            session.end()
            submitted(other, tmp_path, ["rig:2"], 1, "c3")
            assert cancel_jobs(other, "c3") == 1


def test_a_submitter_submits_and_cancels(url: str, store: Store, tmp_path: Path) -> None:
    login = with_roles(url, "submits", "ort_mobile_submitter")
    with open_store(login) as mine:
        campaign = submitted(mine, tmp_path, ["rig:0"], 1)
        assert remove_old_files(mine) == 0
        assert mine.campaign("c1") == campaign
        assert cancel_jobs(mine, "c1") == 1


RUN = run_record()


def lie(store: Store, **values: Any) -> None:
    result = {name: value for name, value in values.items() if name in RUN.result.__struct_fields__}
    record = {name: value for name, value in values.items() if name in RUN.__struct_fields__}
    told = msgspec.structs.replace(RUN.result, **{"device": "rig:0", "host": "evil", **result})
    run = msgspec.structs.replace(RUN, **{"campaign": "c1", "planned": f"{told.device}/s1", "result": told, **record})
    spec = msgspec.structs.replace(run.spec, id=values.get("spec_id", f"{run.planned}#{run.round}"))
    store.add_run(msgspec.structs.replace(run, spec=spec))


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "without a lease": ({"device": "rig:1"}, "no lease of rig:1"),
    "of another host's device": ({"device": "rig:9"}, "has no device rig:9 in the queue"),
    "in the name of another host": ({"host": "h1"}, "no lease of rig:0 at the host h1"),
    "into another campaign": ({"campaign": "c2"}, "row-level security"),
    "negative latencies": ({"latencies_ns": (-5, -5, -5)}, "check constraint"),
    "in the future": ({"started_at": "2999-01-01T00:00:00.000Z"}, "begins in more than a day"),
    "a round that nobody has": ({"round": 1 << 30}, "check constraint"),
    "a negative round": ({"round": -1}, "check constraint"),
    "an oversized document": ({"log": ("x" * (17 << 20),)}, "check constraint"),
}


@pytest.fixture
def evil(url: str, store: Store, tmp_path: Path) -> Iterator[tuple[Store, LabSession]]:
    """An agent that has rig:0; rig:1 is in the queue, too."""
    submitted(store, tmp_path, ["rig:0", "rig:1"], 2)
    entered(store, ["rig:0"], 1, "c2")
    with open_store(with_roles(url, "evil_host", "ort_mobile_agent")) as opened:
        session = host_session(opened, "evil", ["rig:0"])
        assert session.next_job("rig:0", ()) == "c1"
        yield opened, session
        session.close()


def test_lies_of_an_agent_are_refused_with_their_reason(evil: tuple[Store, LabSession]) -> None:
    """One after another, in one database: what is refused leaves nothing behind."""
    for name, (values, reason) in LIES.items():
        with pytest.raises(PipelineError) as refused:
            lie(evil[0], **values)
        assert re.search(reason, str(refused.value)), name
        assert evil[0].runs("c1") == (), name


def test_a_result_counts_once_and_while_its_job_is_open(evil: tuple[Store, LabSession], store: Store) -> None:
    mine, session = evil
    lie(mine)
    lie(mine, latencies_ns=(1, 2, 3))
    (kept,) = store.runs("c1")
    assert kept.result.latencies_ns == RUN.result.latencies_ns
    session.call("lab_change", "c1", "rig:0", "measured", 0, "")
    with pytest.raises(PipelineError, match="the job of rig:0 is measured"):
        lie(mine, round=1)
    with pytest.raises(SessionLost, match="rig:1"):
        session.call("lab_change", "c1", "rig:1", "failed", 0, "")


def test_more_results_than_planned_are_refused(evil: tuple[Store, LabSession], store: Store, tmp_path: Path) -> None:
    campaign = entered(store, ["rig:0"], 1, "c3")
    file = tmp_path / "x"
    file.write_bytes(secrets.token_bytes(10))
    submit_jobs(store, "c3", {"rig:0": Allowed(2, 1 << 20)}, keep_files(store, {"artifacts/x": file}))
    with pytest.raises(PipelineError, match="no lease of rig:0 at the host evil for the campaign c3"):
        lie(evil[0], campaign="c3", round=0)
    cancel_jobs(store, "c1")
    assert evil[1].next_job("rig:0", ()) == "c3"
    lie(evil[0], campaign="c3", round=0)
    lie(evil[0], campaign="c3", round=1)
    with pytest.raises(PipelineError, match="more runs than were planned"):
        lie(evil[0], campaign="c3", round=2)
    runs_of_plan = sum(run.device == "rig:0" for run in campaign.job().planned)
    assert 3 * runs_of_plan <= most_runs(campaign.job(), ["rig:0"])["rig:0"].runs < 200


IMPOSSIBLE: dict[str, tuple[str, str]] = {
    "a wrong digest": ("UPDATE runs SET digest = 'x'", "its digest is another"),
    "a result that is none": ("UPDATE runs SET result = '[]'", "Expected"),
    "a text that is no JSON": ("UPDATE runs SET spec = '{'", "truncated"),
    "another device in its document": ("UPDATE runs SET device = 'rig:1'", "its column device is not that"),
    "another status": ("UPDATE runs SET status = 'failed'", "its column status is not that"),
    "another median": ("UPDATE runs SET median_ns = 1", "its column median_ns is not that of its document"),
    "a negative latency": (
        "UPDATE latencies SET nanoseconds = nanoseconds || decode(repeat('ff', 8), 'hex'), samples = samples + 1",
        "a latency is negative",
    ),
    "a failure that went well": (
        """UPDATE runs SET result = replace(result, '"status":"ok"', '"status":"failed"'), status = 'failed'""",
        "its status is failed without a failure",
    ),
    "a planned run of another device": ("UPDATE runs SET planned = 'OTHER'", "it was planned for rig:1"),
}
"""What an agent may enter with SQL of its own, here made by changes of a sound row, to why the row is left out."""


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_run_that_cannot_be_is_left_out_with_its_reason(
    url: str, evil: tuple[Store, LabSession], store: Store, tmp_path: Path, name: str
) -> None:
    mine, _ = evil
    statement, reason = IMPOSSIBLE[name]
    campaign = store.campaign("c1")
    planned = {run.device: run for run in reversed(campaign.job().planned)}
    here = planned["rig:0"]
    sound = {"planned": here.id, "model": here.model, "variant": here.variant}
    lie(mine, **sound, round=0)
    store.write(lambda connection: connection.exec_driver_sql(statement.replace("OTHER", planned["rig:1"].id)))
    if name != "a wrong digest":
        sign(store)
    lie(mine, **sound, round=1)
    report = assemble(store, campaign).report
    (warned,) = [warning for warning in report.warnings if "was left out" in warning.what]
    assert warned.where.startswith("rig:0 at the host evil" if name != "another device in its document" else "rig:1 at")
    assert "round 0 of the run" in warned.what
    assert reason in warned.what
    (row,) = [row for row in report.rows if (row.device, row.run) == (here.device, here.run) and not row.same_as]
    assert row.statistics
    assert len(row.statistics.round_medians_ns) == 1
    assert [run.round for medians in store.run_medians(["c1"]) for run, _ in medians][-1] == 1
    assert cancel_jobs(store, "c1")
    closed = close(url, "c1", tmp_path / "closed", NoProgress())
    assert warned in closed.report.warnings
    assert reason in (tmp_path / "closed" / "report.md").read_text()


def sign(store: Store) -> None:
    """Give the row of runs the digest of what it holds, as its writer could."""
    query = sa.select(runs, latencies.c.samples, latencies.c.nanoseconds).join_from(runs, latencies)

    def work(connection: sa.Connection) -> None:
        row = connection.execute(query).mappings().one()
        connection.execute(runs.update().values(digest=row_digest("runs", row)))

    store.write(work)


@pytest.mark.parametrize("state", ["done", "cancelled", "anything"])
def test_states_go_forward(evil: tuple[Store, LabSession], state: str) -> None:
    with pytest.raises(SessionLost, match="a job in rounds does not become"):
        evil[1].call("lab_change", "c1", "rig:0", state, 0, "")


ROLES = Path(__file__).parents[3] / "build_configs/lab/roles.sql"


def test_agent_works_with_its_role_and_cannot_remove_results(url: str, store: Store, tmp_path: Path) -> None:
    names = rigs(2)
    campaign = submitted(store, tmp_path, names, 2)
    with_roles(url, "hosts", "ort_mobile_agent")
    as_agent = with_roles(url, "hosts", "ort_mobile_agent")  # a second time changes nothing
    with agent(as_agent, "h1", names):
        until(all_in(store, DONE))
    check_stored(store, campaign, 2)
    with psycopg.connect(as_agent, autocommit=True) as connection:
        connection.execute("SELECT lab_repeat(array_agg(id)) FROM runs")
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (len(names) * 2 * 2,), "results stay"


def with_roles(url: str, login: str, role: str) -> str:
    """The roles are made by the owner; the URL of a user in one of them."""
    done = subprocess.run(["psql", "-q", url, "-f", str(ROLES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN IN ROLE {role}")
    return url.replace("tester@", f"{login}@")


def test_agent_is_refused_a_database_that_it_may_not_upgrade(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_store(url).close()
    add_second_migration(monkeypatch, tmp_path)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS early; CREATE ROLE early LOGIN")
        owner.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO early")
    as_agent = url.replace("tester@", "early@")
    with pytest.raises(ConfigError, match=f"has the schema {REVISION}, and this user may not upgrade it") as refused:
        open_store(as_agent)
    assert "as the owner of the tables, then roles.sql again" in refused.value.text
    with psycopg.connect(as_agent) as early:  # what users who may only read can lock stops no upgrade
        early.execute("SELECT pg_advisory_lock(%s), count(*) FROM alembic_version", (0x6F72_746D_6F62_696C,))
        open_store(f"{url}?options=-c%20lock_timeout%3D5s").close()
    open_store(as_agent).close()


def test_agent_is_refused_an_empty_database(server: PostgresServer) -> None:
    url = server.database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS nobody_yet; CREATE ROLE nobody_yet LOGIN")
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with pytest.raises(ConfigError, match="no tables of ort-mobile, and this user may not make them"):
        open_store(url.replace("tester@", "nobody_yet@"))


@pytest.mark.parametrize("role", ["ort_mobile_reader", "ort_mobile_submitter"])
def test_what_later_releases_add_can_be_read_at_once(url: str, store: Store, role: str) -> None:
    reader = with_roles(url, "later", role)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE TABLE of_a_later_release (n int)")
        owner.execute("CREATE OR REPLACE VIEW later_summary AS SELECT * FROM run_summary")
    with psycopg.connect(reader) as connection:
        for name in ("of_a_later_release", "later_summary", "run_summary", "device_health", "queue"):
            connection.execute(f"SELECT * FROM {name}")


def test_lab_is_served_to_a_reader_of_postgresql(url: str, store: Store, tmp_path: Path) -> None:
    serving = pytest.importorskip("tests.features.lab.test_serve", reason="tornado is not installed")
    campaign, names = submitted(store, tmp_path, rigs(1), 2), rigs(1)
    reader = with_roles(url, "looking", "ort_mobile_reader")
    with agent(url, "h1", names):
        until(all_in(store, DONE))
    with serving.process(reader) as (_, port):
        for path in ("/", "/lab", f"/campaigns/{campaign.id}", f"/campaigns/{campaign.id}/report.html"):
            assert serving.ask(port, path)[0] == 200, path
        progress = msgspec.json.decode(serving.ask(port, f"/api/campaigns/{campaign.id}/progress")[2])
        state = msgspec.json.decode(serving.ask(port, "/api/lab")[2])
    assert progress["stored"] == len(names) * 2 * 2
    assert [host["name"] for host in state["hosts"]] == ["h1"]


def test_the_page_of_a_lab_shows_quarantine_and_priority(url: str, store: Store, tmp_path: Path) -> None:
    serving = pytest.importorskip("tests.features.lab.test_serve", reason="tornado is not installed")
    submitted(store, tmp_path, rigs(1), 1, priority=1)
    session = host_session(store, "h1", rigs(1))
    assert session.next_job("rig:0", ()) == "c1"
    session.call("lab_quarantine", "rig:0", "it is 12 % slower <than> usual")
    session.close()
    with serving.process(url) as (_, port):
        page = serving.ask(port, "/lab")[2].decode()
    cells = {title: re.findall(r'<t(?:h scope="row"|d)>(.*?)</t[hd]>', table) for title, table in re.findall(
        r"<h2[^>]*>(.*?)</h2>(.*?)</table>", page, re.DOTALL
    )}  # fmt: skip
    device, _, host, reason = cells["Quarantine"]
    assert (device, host, reason) == ("rig:0", "h1", "it is 12 % slower &lt;than&gt; usual")
    assert cells["Queue"][:4] == ["rig:0", "c1", "1", "failed"]


SET_UP = """
CREATE ROLE lab CREATEROLE LOGIN;
CREATE DATABASE lab_of_docs OWNER lab;
"""


def test_the_ten_minutes_of_the_docs_work_without_a_superuser(url: str, server: PostgresServer) -> None:
    """As docs/lab.md has them: an owner who may create roles, tables, roles.sql, and a login for a host."""
    with psycopg.connect(url, autocommit=True) as superuser:
        for statement in SET_UP.split(";")[:-1]:
            superuser.execute(statement)
    owned = server.url.replace("tester@", "lab@").removesuffix("postgres") + "lab_of_docs"
    with psycopg.connect(owned.replace("lab@", "tester@"), autocommit=True) as superuser:
        superuser.execute("ALTER SCHEMA public OWNER TO lab")
        functions = "lo_creat(int), lo_create(oid), lo_from_bytea(oid, bytea)"
        superuser.execute(f"REVOKE EXECUTE ON FUNCTION {functions} FROM PUBLIC")
    assert "hosts: 0" in list(status_lines(lab_status(owned)))
    for _ in range(2):
        done = subprocess.run(["psql", owned, "-f", str(ROLES)], capture_output=True, text=True, check=False)
        assert (done.returncode, "WARNING" in done.stderr, "ERROR" in done.stderr) == (0, False, False), done.stderr
    login = "CREATE ROLE host_of_docs LOGIN PASSWORD 'x' IN ROLE ort_mobile_agent"
    subprocess.run(["psql", owned, "-c", login], check=True, capture_output=True)
    with open_store(owned.replace("lab@", "host_of_docs@")) as store:
        host_session(store, "h1", ["adb:A"]).end()


def test_roles_stop_at_their_first_error(url: str, store: Store) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("ALTER TABLE lab_blobs RENAME TO renamed")
    done = subprocess.run(["psql", url, "-f", str(ROLES)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.count("ERROR") == 1
