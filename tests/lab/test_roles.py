"""The roles of build_configs/lab/roles.sql: an agent does its work with them, and nothing else."""

from pathlib import Path

import pytest

from pipeline.campaign.lab.queue import DONE
from pipeline.campaign.store import Store
from tests.lab.farm import agent, check_stored, rigs, submitted
from tests.lab.test_lab import all_in, scripted, server, store, until, url  # noqa: F401 # fixtures

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


def test_agent_works_and_can_do_nothing_else(url: str, store: Store, tmp_path: Path) -> None:  # noqa: F811
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
