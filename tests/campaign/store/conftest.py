"""Stores on both databases: SQLite in a file, and a real PostgreSQL of the test run's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.campaign.store import Store, open_store
from tests.campaign.store.samples import CAMPAIGN
from tests.postgres import PostgresServer, own_server

BOTH = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test run's own."""
    with own_server() as server:
        yield server


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest, file_url: str) -> str:
    """A new, empty database."""
    if request.param == "sqlite":
        return file_url
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture(params=BOTH)
def store(request: pytest.FixtureRequest, file_url: str) -> Iterator[Store]:
    """A store with a campaign, in a database of its own."""
    url = file_url
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.database_with_tables()
    with open_store(url) as opened:
        opened.start(CAMPAIGN)
        yield opened


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.sqlite'}"
