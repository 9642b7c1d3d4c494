"""The roles of build_configs/lab/roles.sql: an agent does its work with them, and nothing else."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from pipeline.campaign.store import Store, open_store
from pipeline.core.errors import ConfigError
from pipeline.features.lab.campaigns import lab_status, status_lines
from pipeline.features.lab.queue import DONE
from tests.campaign.store.samples import add_second_migration
from tests.features.lab.farm import agent, all_in, check_stored, host_session, rigs, submitted, until
from tests.postgres import PostgresServer

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

pytestmark = pytest.mark.postgresql

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
        connection.execute("DELETE FROM runs")
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
    with pytest.raises(ConfigError, match="has the schema v0001, and this user may not upgrade it") as refused:
        open_store(as_agent)
    assert "as the owner of the tables, then roles.sql again" in refused.value.text
    with psycopg.connect(as_agent) as early:  # what users who may only read can lock stops no upgrade
        early.execute("SELECT pg_advisory_lock(%s), count(*) FROM alembic_version", (0x6F72_746D_6F62_696C,))
        open_store(f"{url}?options=-c%20lock_timeout%3D5s").close()
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
    serving = pytest.importorskip("tests.features.lab.test_serve", reason="starlette is not installed")
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
