"""The roles of build_configs/lab/roles.sql: an agent does its work with them, and nothing else."""

from pathlib import Path

import msgspec
import pytest

from pipeline.campaign.lab.queue import DONE
from pipeline.campaign.store import Store, open_store
from pipeline.core.errors import ConfigError
from tests.lab.farm import agent, all_in, check_stored, rigs, submitted, until

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

pytestmark = pytest.mark.postgresql

ROLES = Path(__file__).parents[2] / "build_configs/lab/roles.sql"

FORBIDDEN = (
    "DROP TABLE runs",
    "CREATE TABLE mine (n int)",
    "TRUNCATE runs",
    "SELECT rolpassword FROM pg_authid",
    "INSERT INTO lab_blobs VALUES ('a', 0, 'x')",
    "UPDATE lab_blobs SET content = 'x'",
    "UPDATE campaigns SET document = '{}'",
    "DELETE FROM campaigns",
    "UPDATE runs SET status = 'ok'",
    "INSERT INTO lab_jobs (campaign_id, device, state, stage, changed) VALUES ('c1', 'd', 'waiting', 'rounds', now())",
    "DELETE FROM lab_jobs",
    "UPDATE lab_files SET sha256 = 'a'",
)


def test_agent_works_and_can_do_nothing_else(url: str, store: Store, tmp_path: Path) -> None:
    names = rigs(2)
    campaign = submitted(store, tmp_path, names, 2)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(ROLES.read_text())
        owner.execute(ROLES.read_text())  # a second time changes nothing
        owner.execute("CREATE ROLE hosts LOGIN IN ROLE ort_mobile_agent")
    as_agent = url.replace("tester@", "hosts@")
    with agent(as_agent, "h1", names):
        until(all_in(store, DONE))
    check_stored(store, campaign, 2)
    with psycopg.connect(as_agent, autocommit=True) as connection:
        for statement in FORBIDDEN:
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.WrongObjectType)):
                connection.execute(statement)
        connection.execute("DELETE FROM runs")
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (len(names) * 2 * 2,), "results stay"


def with_roles(url: str, login: str, role: str) -> str:
    """The roles are made by the owner; the URL of a user in one of them."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(ROLES.read_text())
        owner.execute(f"DROP ROLE IF EXISTS {login}; CREATE ROLE {login} LOGIN IN ROLE {role}")
    return url.replace("tester@", f"{login}@")


def test_agent_is_refused_a_database_that_it_may_not_upgrade(url: str, store: Store) -> None:
    as_agent = with_roles(url, "early", "ort_mobile_agent")
    with psycopg.connect(url, autocommit=True) as owner:
        for view in ("queue", "device_health", "run_summary"):
            owner.execute(f"DROP VIEW {view}")
        owner.execute("UPDATE alembic_version SET version_num = '0006'")
    with pytest.raises(ConfigError, match="has the schema 0006, and this user may not upgrade it") as refused:
        open_store(as_agent)
    assert "as the owner of the tables, then roles.sql again" in refused.value.text
    open_store(url).close()
    with pytest.raises(psycopg.errors.InsufficientPrivilege), psycopg.connect(as_agent) as connection:
        connection.execute("SELECT * FROM queue")
    open_store(as_agent).close()


def test_agent_is_refused_an_empty_database(url: str) -> None:
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
    serving = pytest.importorskip("tests.lab.test_serve", reason="starlette is not installed")
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
