"""What the store refuses, and what it says: databases that cannot be opened, written or believed."""

import contextlib
import os
import socket
import sqlite3
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from pipeline.campaign.store import Store, open_store
from pipeline.campaign.store import store as store_module
from pipeline.campaign.store.refusals import hidden, store_errors
from pipeline.core.errors import ConfigError, DiskError, MissingError, PipelineError
from tests.campaign.store.samples import CAMPAIGN, run_record
from tests.postgres import PostgresServer


@pytest.mark.parametrize(
    ("bad", "error", "part"),
    [
        ("results.sqlite", ConfigError, "not a database URL"),
        ("nosuch://host/db", ConfigError, "unknown kind of database 'nosuch'"),
        ("oracle+cx_oracle://host/db", MissingError, "driver 'cx_Oracle'"),
        ("postgresql://u:secret@host:port/db", ConfigError, "database URL"),
        ("sqlite://", ConfigError, "in memory"),
        ("sqlite:///:memory:", ConfigError, "in memory"),
        ("sqlite:////nosuch/folder/results.sqlite", MissingError, "cannot be opened"),
        ("sqlite:////dev/null/results.sqlite", MissingError, "cannot be opened"),
    ],
)
def test_urls_that_lead_nowhere(bad: str, error: type[PipelineError], part: str) -> None:
    with pytest.raises(error, match=part) as caught:
        open_store(bad)
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


@pytest.mark.postgresql
def test_server_that_is_not_there() -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"postgresql://u:secret@127.0.0.1:{free.getsockname()[1]}/db"
        with pytest.raises(MissingError, match="cannot be reached") as caught:
            open_store(url)
    assert "u:***@127.0.0.1" in caught.value.where
    assert "secret" not in str(caught.value)


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("bad", "error", "part"),
    [
        ("nohost.invalid/db", MissingError, "cannot be reached"),
        ("127.0.0.1/db?sslmod=require", ConfigError, "has an option that libpq does not know"),
        ("127.0.0.1/db?sslmode=verify-ful", ConfigError, "has an option that libpq does not know"),
    ],
)
def test_urls_of_servers_with_a_typing_error(bad: str, error: type[PipelineError], part: str) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(error, match=part):
        open_store(f"postgresql://u@{bad}")


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("fe_sendauth: no password supplied", "wants a password"),
        ('FATAL: password authentication failed for user "hosts"', "refuses the user or the password"),
        ('FATAL: no pg_hba.conf entry for host "10.0.0.2", user "u", no encryption', "does not let this host"),
        ('root certificate file "/nope.pem" does not exist', "certificate cannot be checked"),
        ("SSL error: certificate verify failed", "certificate cannot be checked"),
        ('server certificate for "a" does not match host name "b"', "certificate cannot be checked"),
        ("server does not support SSL, but SSL was required", "has no TLS"),
        ("FATAL: sorry, too many clients already", "no place for another connection"),
    ],
)
def test_a_connection_that_the_server_refuses_has_its_own_remedy(said: str, part: str) -> None:
    """As libpq says it behind `connection failed`."""
    cause = Exception(f'connection failed: connection to server at "127.0.0.1", port 5432 failed: {said}')
    with pytest.raises(MissingError, match=part) as caught, store_errors("postgresql://u@h/db"):
        raise sa.exc.OperationalError("", None, cause)
    assert caught.value.remedy


@pytest.mark.postgresql
def test_server_without_that_database(postgres: PostgresServer) -> None:
    with pytest.raises(MissingError, match="does not know"):
        open_store(postgres.url.removesuffix("postgres") + "nosuch")


def test_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database at all\n" * 100)
    with pytest.raises(PipelineError, match="no SQLite database") as caught:
        open_store(f"sqlite:///{tmp_path / 'notes.txt'}")
    assert caught.value.remedy


def test_damaged_database(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with open_store(f"sqlite:///{path}") as store:
        store.start(CAMPAIGN)
        for number in range(50):
            store.add_run(run_record(number=number, latencies_ns=tuple(range(1000))))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(PipelineError, match="damaged"), open_store(f"sqlite:///{path}") as store:
        store.runs("c1")


def test_another_process_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    with open_store(f"sqlite:///{path}", busy_seconds=0.1) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PipelineError, match="another process holds"):
            store.start(CAMPAIGN)
        other.execute("ROLLBACK")
        other.close()
        assert store.start(CAMPAIGN)


def test_full_disk_keeps_what_was_stored(file_url: str) -> None:
    with open_store(file_url) as store:
        store.start(CAMPAIGN)
        with (
            store.engine.connect() as connection
        ):  # of a file that may not grow SQLite says what it says of a full disk
            connection.exec_driver_sql("PRAGMA max_page_count=60")
        with pytest.raises(DiskError, match="disk is full") as caught:
            add_many(store)
        assert "make room" in caught.value.remedy
        assert "waits in" not in caught.value.remedy
        stored = len(store.runs("c1"))
        assert stored > 3
    with open_store(file_url) as store:
        assert store.finished("c1") == {("s1", number) for number in range(stored)}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_reader_on_a_full_disk_is_told_so(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, env={"PATH": os.defpath}, check=False).returncode:
        pytest.skip("this system does not let root mount a tmpfs")
    url = f"sqlite:///{tmp_path / 'results.sqlite'}"
    try:
        open_store(url).close()
        with contextlib.suppress(OSError), (tmp_path / "rest").open("wb", buffering=0) as rest:
            while True:
                rest.write(bytes(4096))
        with pytest.raises(DiskError, match="the disk is full") as caught:
            open_store(url)
        (tmp_path / "rest").unlink()
        with open_store(url) as store:
            assert store.names() == {}
    finally:
        subprocess.run(["umount", str(tmp_path)], env={"PATH": os.defpath}, check=True)
    assert "make room" in caught.value.remedy


def add_many(store: Store) -> None:
    for number in range(200):
        store.add_run(run_record(number=number, latencies_ns=tuple(range(1000))))


def test_read_only_file(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    open_store(f"sqlite:///{path}").close()
    with open_store(f"sqlite:///file:{path}?mode=ro&uri=true") as store:
        assert store.campaigns() == ()
        with pytest.raises(MissingError, match="cannot be written to"):
            store.start(CAMPAIGN)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@w@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h:1/d", "postgresql://u@h:1/d"),
        ("sqlite:////a/b.sqlite", "sqlite:////a/b.sqlite"),
        (
            "postgresql://h/d?user=u&password=p&sslPassword=q&sslmode=require",
            "postgresql://h/d?user=u&password=***&sslPassword=***&sslmode=require",
        ),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert hidden(url) == shown


@pytest.fixture
def many_pages(file_url: str) -> list[bytes]:
    """The pages of a database whose index of runs has several of them."""
    with open_store(file_url) as store:
        store.start(CAMPAIGN)
        names = [f"{'long' * 40}{number:03}" for number in range(30)]
        with ThreadPoolExecutor(20) as threads:
            list(threads.map(lambda name: store.add_run(run_record(name)), names))
    path = Path(file_url.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    whole = path.read_bytes()
    return [whole[start : start + size] for start in range(0, len(whole), size)]


def runs_of_pages(pages: list[bytes], path: Path) -> int | None:
    """How many runs are read; None where damage is reported."""
    path.write_bytes(b"".join(pages))
    try:
        with open_store(f"sqlite:///{path}") as store:
            return len(store.runs("c1"))
    except PipelineError:
        return None


def test_lost_pages_of_files_too_large_for_a_check_are_found_where_they_are_read(
    many_pages: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "CHECKED_BYTES", 0)
    path = tmp_path / "broken.sqlite"
    kinds = Counter(
        runs_of_pages([*many_pages[:n], bytes(len(page)), *many_pages[n + 1 :]], path)
        for n, page in enumerate(many_pages)
    )
    assert kinds[None] > 5
    assert set(kinds) <= {None, 30}, "runs are missing, and nothing is said"


def test_a_large_file_is_not_read_as_a_whole(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(file_url) as store:
        statements: list[str] = []
        sa.event.listen(store.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        size = Path(file_url.removeprefix("sqlite:///")).stat().st_size
        for limit, checked in ((1 << 30, True), (size + (1 << 20), True), (1, False)):
            monkeypatch.setattr(store_module, "CHECKED_BYTES", limit)
            statements.clear()
            store.runs("c1")
            assert ("PRAGMA quick_check(1)" in statements) == checked
            statements.clear()
            assert len(list(store.run_medians(["c1", "c2", "c1"]))) == 3
            assert statements.count("PRAGMA quick_check(1)") == checked  # once for a whole history
