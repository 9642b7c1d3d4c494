"""Opening a database: its URL, its driver, SQLite's settings, and its tables in the form of this release."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine

from device_runner import errors as runner_errors
from pipeline.campaign.store.refusals import hidden, store_errors
from pipeline.campaign.store.store import Store
from pipeline.core import errors as core_errors
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError, MissingError

BUSY_SECONDS = 30.0
RETRY_SECONDS = 0.01
READING_SECONDS = 5.0
"""How long a reader waits for SQLite's lock."""

SERVER_TIMEOUTS = {
    "connect_timeout": 5,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 8000,
}
"""Options of libpq, in seconds, the last in milliseconds; what the URL has of them counts before these."""

WAITING = {"lock_timeout": 10, "statement_timeout": 300}
READING = {"lock_timeout": 5, "statement_timeout": 60}
"""How long PostgreSQL lets a statement wait for another session's lock, and run, in seconds: of those who store, and of
those who only read. What the URL has in `options` counts instead."""

UPGRADING = "SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = 0"
"""An upgrade may take long, and another process may be at it."""

LIBPQ = ("psycopg", "psycopg2")
"""Drivers that take these options."""

MAY_NOT = "42501"
"""PostgreSQL's code for a user without the privilege."""

DEADLOCK = "40P01"
"""PostgreSQL's code for a transaction that it ended because another one and it waited for each other."""

UPGRADE_ATTEMPTS = 10
"""Whoever is at work locks tables in another order than an upgrade, which may be the one that is ended."""

READ_ONLY = {
    "sqlite": "PRAGMA query_only=ON",
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
}
"""Kind of database to what makes it refuse every write of a connection."""

DRIVERS = {"postgresql": "postgresql"}
"""Kind of database to the extra that brings its driver; those of others are packages of their module's name."""


def open_store(url: str, busy_seconds: float = BUSY_SECONDS) -> Store:
    """Open the database at an SQLAlchemy URL; make its tables where it is new, upgrade those of an earlier release, and
    take those of a later one that serves this.

    `busy_seconds` is how long SQLite waits for another process's transaction. Raises ConfigError for a URL that is
    none, or a later release's tables, MissingError for a missing driver or a database that cannot be reached.
    """
    parsed = _parse(url)
    where = hidden(url)
    engine = _engine(parsed, where, busy_seconds)
    store = Store(engine, where)
    try:
        with store_errors(where):
            _prepare(engine, where)
        store.bring_spooled()
    except BaseException:
        store.close()
        raise
    return store


def open_reading(url: str) -> Store:
    """Open a database only to read it: nothing is made, upgraded or stored, and the database itself refuses writes.

    A server that is away is not waited for. Raises ConfigError for what is neither SQLite nor PostgreSQL, or has the
    tables of another release; MissingError where no database is.
    """
    parsed = _parse(url)
    where, kind = hidden(url), parsed.get_backend_name()
    if kind not in READ_ONLY:
        raise ConfigError(
            f"a database of the kind {kind!r} cannot be opened for reading only",
            where=where,
            remedy="use SQLite or PostgreSQL",
        )
    if kind == "sqlite" and not str(parsed.database).startswith("file:") and not Path(str(parsed.database)).is_file():
        raise MissingError("there is no such database file", where=where, remedy="name the file that has results")
    engine = _engine(parsed, where, READING_SECONDS, READ_ONLY[kind])
    try:
        with store_errors(where), engine.begin() as connection:
            revision = _revision(connection)
            served = _serves(connection)
    except BaseException:
        engine.dispose()
        raise
    if revision != storage.REVISION and not served:
        engine.dispose()
        raise ConfigError(
            f"the database has the schema {revision}" if revision else "the database has no tables of ort-mobile",
            where=where,
            why=f"this release reads {storage.REVISION}, and a reader upgrades nothing",
            remedy="update ort-mobile, or upgrade the database with `ort-mobile report FOLDER --list`",
        )
    return Store(engine, where, patience_seconds=0.0)


def lasting(url: str) -> str:
    """The URL as a file may keep it: without passwords, and an SQLite file by its whole path.

    PostgreSQL's own library finds a password in PGPASSWORD or ~/.pgpass. Raises ConfigError for a URL that is none.
    """
    parsed = _parse(url)
    database = parsed.database
    if parsed.get_backend_name() == "sqlite" and database and not database.startswith("file:"):
        database = str(Path(database).absolute())
    public = {key: value for key, value in parsed.query.items() if "password" not in key.lower()}
    where = parsed.username, None, parsed.host, parsed.port
    return URL.create(parsed.drivername, *where, database, public).render_as_string(hide_password=False)


def _parse(url: str) -> URL:
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise ConfigError(
            "this is not a database URL",
            where=hidden(url),
            remedy="write sqlite:///FILE, or postgresql://USER@HOST/DATABASE, or any other URL of SQLAlchemy",
        ) from error
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(
            "a database in memory is gone when the command ends",
            where=url,
            remedy="name a file: sqlite:///results.sqlite",
        )
    # SQLAlchemy 2.0's own default is psycopg2; the extra `postgresql` brings psycopg.
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def _engine(url: URL, where: str, busy_seconds: float, read_only: str = "") -> Engine:
    options: dict[str, Any] = {}
    try:
        if url.get_backend_name() != "sqlite":
            # Connections are tried before use, and those through a cable that was pulled fail within seconds.
            quick = SERVER_TIMEOUTS if url.get_driver_name() in LIBPQ else {}
            given = {name: value for name, value in quick.items() if name not in url.query}
            options = {"pool_pre_ping": True, "connect_args": given}
        engine = sa.create_engine(url, **options)
    except sa.exc.NoSuchModuleError as error:
        raise ConfigError(
            f"unknown kind of database {url.drivername!r}",
            where=where,
            remedy="write sqlite:///FILE or postgresql://USER@HOST/DATABASE, or install SQLAlchemy's dialect for it",
        ) from error
    except ModuleNotFoundError as error:
        kind = url.get_backend_name()
        raise MissingError(
            f"the driver {error.name!r} for {kind} is not installed",
            where=where,
            remedy=core_errors.install_extra(DRIVERS[kind])
            if kind in DRIVERS
            else runner_errors.pip_install(str(error.name)),
        ) from error
    except (sa.exc.ArgumentError, TypeError, ValueError) as error:
        raise ConfigError("the database URL has a wrong part", where=where, why=str(error)) from error
    if url.get_backend_name() == "sqlite":
        _arrange_sqlite(engine, busy_seconds, write_ahead=not read_only)
    statements = [read_only] if read_only else []
    if url.get_backend_name() == "postgresql" and "options" not in url.query:
        bounds = READING if read_only else WAITING
        statements += [f"SET {name} = '{seconds}s'" for name, seconds in bounds.items()]

    def set_up(connection: Any, _record: object) -> None:
        for statement in statements:
            connection.cursor().execute(statement)
        connection.commit()

    if statements:
        event.listen(engine, "connect", set_up)
    return engine


def _arrange_sqlite(engine: Engine, busy_seconds: float, *, write_ahead: bool) -> None:
    """Write-ahead log, foreign keys, and transactions that really begin where SQLAlchemy begins them.

    A writer takes the lock at once, so that what it reads stays true until it writes.
    """

    def connect(connection: Any, _record: object) -> None:
        deadline = time.monotonic() + busy_seconds
        connection.isolation_level = None
        for pragma in (f"busy_timeout={int(busy_seconds * 1000)}", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()
        # SQLite's busy timeout does not count for the log: with its read lock taken already, it refuses at once to wait
        # for the write lock, since two that do so would wait for each other.
        waits = write_ahead
        while waits:
            try:
                connection.execute("PRAGMA journal_mode=WAL").close()
                waits = False
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_SECONDS)

    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", connect)
    event.listen(engine, "begin", begin)


def _prepare(engine: Engine, where: str) -> None:
    """Bring the tables to this release's form, in one transaction; another process may do the same at this moment."""
    with engine.begin() as connection:
        revision = _revision(connection)
        if revision == storage.REVISION:
            return
        # A later release's: most users could not lock its tables, and nobody need
        if _is_later(revision, where, served=_serves(connection)):
            return
    try:
        for left in reversed(range(UPGRADE_ATTEMPTS)):
            try:
                _upgrade(engine, where)
                break
            except sa.exc.OperationalError as error:
                if getattr(error.orig, "sqlstate", "") != DEADLOCK or not left:
                    raise
    except (sa.exc.IntegrityError, sa.exc.ProgrammingError) as error:
        with engine.begin() as connection:
            if _revision(connection) == storage.REVISION:
                return
        if getattr(error.orig, "sqlstate", "") == MAY_NOT:  # as the roles of build_configs/lab have it
            raise ConfigError(
                f"the database has the schema {revision}, and this user may not upgrade it"
                if revision
                else "the database has no tables of ort-mobile, and this user may not make them",
                where=where,
                why=f"this release reads and writes {storage.REVISION}",
                remedy="run `ort-mobile lab status` of this release as the owner of the tables, then roles.sql again",
            ) from error
        raise


def _upgrade(engine: Engine, where: str) -> None:
    """Make the tables what this release needs, where nobody did meanwhile."""
    from pipeline.campaign.store import migrations

    with engine.execution_options(writes=True).begin() as connection:
        # What one process finds must stay true until it has upgraded; who may only read cannot hold such a lock. In a
        # new database making `alembic_version` is the lock: PostgreSQL lets the second wait for the first, and fails
        # it. SQLite's transaction has the only lock there is.
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(UPGRADING)
        if connection.dialect.name == "postgresql" and sa.inspect(connection).has_table("alembic_version"):
            connection.execute(sa.text("LOCK TABLE alembic_version IN EXCLUSIVE MODE"))
        locked = _revision(connection)
        if locked != storage.REVISION and not _is_later(locked, where, served=_serves(connection)):
            migrations.upgrade(connection)


def _is_later(revision: str | None, where: str, *, served: bool) -> bool:
    """Whether a schema is none that this release upgrades, but `served` it is; raises ConfigError where it is not."""
    from pipeline.campaign.store import migrations

    if revision in (None, *migrations.revisions()):
        return False
    if served:
        return True
    raise ConfigError(
        f"the database has the schema {revision}, which this release of ort-mobile does not know",
        where=where,
        why=f"this release reads and writes {storage.REVISION}",
        remedy="update ort-mobile, or use another database: those of before 1.0 are not read",
    )


def _serves(connection: Connection) -> bool:
    """Whether a lab's database of another release says that the statements of this one go on working."""
    if connection.dialect.name != "postgresql":
        return False
    # Null where there is none; false for a login that has no role of the lab, or whose roles are of before the upgrade
    may_ask = "SELECT has_function_privilege(to_regprocedure('lab_serves()'), 'EXECUTE')"
    if not connection.scalar(sa.text(may_ask)):
        return False
    # What a later migration left as it was says nothing of that migration
    query = "SELECT :own = ANY (lab_serves()) AND bool_and(version_num = ANY (lab_serves())) FROM alembic_version"
    return bool(connection.scalar(sa.text(query), {"own": storage.REVISION}))


def _revision(connection: Connection) -> str | None:
    """The migration that the tables are at; None for a new database."""
    if sa.inspect(connection).has_table("alembic_version"):
        return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None
