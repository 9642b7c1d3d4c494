"""A real PostgreSQL with a database for each test, and devices that only sleep."""

from collections.abc import Iterator

import pytest

from device_runner import device
from pipeline.campaign.store import Store, open_store
from pipeline.features.lab import agent as lab_agent
from tests.features.lab.farm import SCHEME, shared_identity
from tests.postgres import PostgresServer, own_server

ALIVE = """
CREATE OR REPLACE FUNCTION lab_alive(seen timestamptz) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT greatest(seen, pg_postmaster_start_time()) > now() - interval '15 seconds'
$$
"""


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with own_server() as found:
        yield found


@pytest.fixture
def url(server: PostgresServer) -> str:
    """A database in which a host that a test plays is alive for longer than 8 s: computers may be slow."""
    import psycopg

    made = server.database_with_tables()
    with psycopg.connect(made, autocommit=True) as owner:
        owner.execute(ALIVE)
    return made


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device.OPENERS, SCHEME, "tests.features.lab.farm:open_rig")
    monkeypatch.setattr("device_runner.device.identity", shared_identity)
    monkeypatch.setattr(lab_agent, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(lab_agent, "REST_SECONDS", 0.1)
    monkeypatch.setattr(lab_agent, "PAUSE_SECONDS", 0.05)
