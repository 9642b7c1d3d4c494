"""A database that refuses, as errors with a cause and a remedy; and one that is away for a while.

A restart of PostgreSQL, or a network that fails for a minute, must cost no measurement: work is done again with
back-off. A run that cannot be stored is written to the spool folder at once, so that not even a kill loses it, and
every process that opens the same database stores what lies there.
"""

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from sqlalchemy import exc

from device_runner.files import decode_json, state_folder
from pipeline.campaign.record import RunRecord
from pipeline.core.errors import ConfigError, MissingError, PipelineError
from pipeline.core.files import write_bytes


class StoreError(PipelineError):
    """The database holds something else than what was stored: a disk, a copy or another program damaged it."""


def damaged(what: str, where: str, why: str) -> StoreError:
    """The error for a row that is not as it was stored; `what` names it."""
    return StoreError(
        f"the database is damaged: {what} is not as it was stored",
        where=where,
        why=why,
        remedy="restore a copy of the database; without one, start again with another --output or database",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseRefusal:
    """`part` is of what SQLite or PostgreSQL says, in lower case."""

    part: str
    what: str
    remedy: str
    error: type[PipelineError] = PipelineError


REFUSALS = (
    DatabaseRefusal(
        part="unable to open database file",
        what="the database file cannot be opened",
        remedy="check that its folder exists and that you may write there",
        error=MissingError,
    ),
    DatabaseRefusal(
        part="readonly database",
        what="the database cannot be written to",
        remedy="check the permissions of the file and its folder, or give another one",
    ),
    DatabaseRefusal(
        part="database or disk is full",
        what="the disk is full",
        remedy="make room and start again: runs that were stored are kept and not repeated",
    ),
    DatabaseRefusal(
        part="no space left on device",
        what="the database server's disk is full",
        remedy="make room there and start again: runs that were stored are kept and not repeated",
    ),
    DatabaseRefusal(
        part="database is locked",
        what="another process holds the database",
        remedy="wait for it to end, or give this one a database of its own",
    ),
    DatabaseRefusal(
        part="file is not a database",
        what="the file is no SQLite database",
        remedy="give another file name, or move that file away",
    ),
    DatabaseRefusal(
        part="malformed",
        what="the database is damaged",
        remedy="restore a copy, or save what is readable with `sqlite3 FILE .recover`",
        error=StoreError,
    ),
    DatabaseRefusal(
        part="could not decode to utf-8",
        what="the database is damaged: a text in it is none",
        remedy="restore a copy of the database; without one, start again with another --output or database",
        error=StoreError,
    ),
    DatabaseRefusal(
        part="disk i/o error",
        what="the disk failed while reading or writing the database",
        remedy="check the disk; SQLite also says so on network folders that cannot lock files",
    ),
    DatabaseRefusal(
        part="authentication failed",
        what="the database server refuses the user or the password",
        remedy="check them in the URL, or give the password in PGPASSWORD or ~/.pgpass",
        error=MissingError,
    ),
    DatabaseRefusal(
        part="no password supplied",
        what="the database server wants a password",
        remedy="give it in PGPASSFILE, ~/.pgpass or PGPASSWORD",
        error=MissingError,
    ),
    DatabaseRefusal(
        part="no pg_hba.conf entry",
        what="the database server does not let this host, user or database in",
        remedy="add a line for them to pg_hba.conf there (hostssl where TLS is used), or correct the URL",
        error=MissingError,
    ),
    DatabaseRefusal(
        part="certificate",
        what="the database server's certificate cannot be checked",
        remedy="correct sslrootcert, sslmode or the host in the URL, which verify-full compares with the certificate",
        error=MissingError,
    ),
    DatabaseRefusal(
        part="does not support ssl",
        what="the database server has no TLS",
        remedy="turn it on there (`ssl = on` and a certificate in postgresql.conf), or correct sslmode in the URL",
        error=MissingError,
    ),
    DatabaseRefusal(
        part="too many clients",
        what="the database server has no place for another connection",
        remedy="raise max_connections in postgresql.conf there",
        error=MissingError,
    ),
    *(
        DatabaseRefusal(
            part=part,
            what="the database URL has an option that libpq does not know",
            remedy="correct what stands behind `?` in the URL, as in ?sslmode=verify-full",
            error=ConfigError,
        )
        for part in ("invalid connection option", "invalid sslmode value")
    ),
    DatabaseRefusal(
        part="the lab refuses",
        what="this login may not do this in the lab",
        remedy="docs/lab.md says what each role may; `ort-mobile lab status` says which host has which device",
    ),
    DatabaseRefusal(
        part="permission denied",
        what="the database's user may not do this",
        remedy="use a user with the role for it; for a lab's see docs/lab.md",
    ),
    DatabaseRefusal(
        part="does not exist",
        what="the database server does not know this database, user or table",
        remedy="create it (createdb NAME), or correct the URL",
        error=MissingError,
    ),
    *(
        DatabaseRefusal(
            part=part,
            what="the database server cannot be reached",
            remedy="check host and port in the URL and that the server runs",
            error=MissingError,
        )
        for part in ("connection failed", "failed to resolve host", "timeout expired")
    ),
    DatabaseRefusal(
        part="already exists",
        what="the database is not one of this pipeline",
        remedy="give another one: it has tables of the same names",
    ),
    DatabaseRefusal(
        part="no such column",
        what="the database is not one of this pipeline",
        remedy="give another one: its tables have the same names but other columns",
    ),
    DatabaseRefusal(
        part="foreign key",
        what="a value belongs to a campaign that is not in the database",
        remedy="the campaign was deleted while it ran: start it again",
    ),
)
"""The first whose `said` occurs counts."""

UNKNOWN = DatabaseRefusal(
    part="", what="the database refuses", remedy="see why above; --debug shows where it came from"
)


@contextmanager
def store_errors(where: str) -> Iterator[None]:
    """Raise what the database refuses as PipelineError; `where` is its URL without a password."""
    try:
        yield
    except exc.SQLAlchemyError as error:
        raise store_error(error, where) from error
    except UnicodeDecodeError as error:  # sqlite3 cannot read SQLite's own message, which quotes a damaged schema
        raise damaged("its schema", where, str(error)) from error


def store_error(error: exc.SQLAlchemyError, where: str) -> PipelineError:
    """The error for what the database said; `where` is its URL without a password."""
    cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    message = " ".join(str(cause).split())
    refusal = next((row for row in REFUSALS if row.part in message.lower()), UNKNOWN)
    return refusal.error(refusal.what, where=where, why=message, remedy=refusal.remedy)


def hidden(url: str) -> str:
    """The URL with its passwords left out, whether or not it is a good one: libpq also reads them from the query."""
    return re.sub(r"(?i)([?&][^=&]*password=)[^&#]*", r"\1***", re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url))


log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS = 600.0
"""How long a server may be away before the work that needs it ends; runs that were measured stay in the spool."""

PAUSE_SECONDS = (0.1, 5.0)
"""The first pause between two tries, which doubles, and the longest."""

AWAY_STATES = ("57P01", "57P02", "57P03")
"""PostgreSQL's codes for a server that stops or starts; those that begin with 08 are failed connections."""


def is_away(error: exc.SQLAlchemyError) -> bool:
    """Whether the server went away or cannot be reached now; never for SQLite, which has none."""
    state = getattr(error.orig, "sqlstate", "") if isinstance(error, exc.DBAPIError) else ""
    if not isinstance(error, exc.DBAPIError) or state == "":
        return False
    lost = state is None or state.startswith("08") or state in AWAY_STATES
    return error.connection_invalidated or (isinstance(error, exc.OperationalError) and lost)


def patiently(work: Callable[[], T], stop: threading.Event | None = None, seconds: float = PATIENCE_SECONDS) -> T:
    """What `work` gives, tried again while the server is away, until `stop` or `seconds` have passed.

    Raises SQLAlchemyError: any other at once, the last when it gives up.
    """
    stop = stop or threading.Event()
    begun, pause = time.monotonic(), PAUSE_SECONDS[0]
    while True:
        try:
            value = work()
        except exc.SQLAlchemyError as error:
            if not is_away(error) or time.monotonic() - begun > seconds or stop.wait(pause):
                raise
            if pause == PAUSE_SECONDS[0]:
                log.warning("the database server is away; trying again for %g s", seconds)
            pause = min(2 * pause, PAUSE_SECONDS[1])
        else:
            if pause > PAUSE_SECONDS[0]:
                log.warning("the database server is back after %.1f s", time.monotonic() - begun)
            return value


@dataclass(frozen=True, slots=True)
class RunSpool:
    """The folder of runs that wait for one database; each file is one run, whole or not at all."""

    folder: Path

    def keep(self, run: RunRecord) -> Path | None:
        """Write a run to a file; None, with an error logged, where the disk has no place: it is still in memory."""
        content = msgspec.json.encode(run)
        path = self.folder / f"{hashlib.sha256(content).hexdigest()}.json"
        try:
            write_bytes(path, content)
        except PipelineError as error:
            log.error("round %d of %s is in memory only: %s", run.round, run.planned, error)  # noqa: TRY400 # one line
            return None
        return path

    def waiting(self) -> Iterator[tuple[Path, RunRecord]]:
        """The runs that lie there; a file that is not what was written is left out with a warning."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                content = path.read_bytes()
                run = decode_json(content, RunRecord)
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("%s: left out: %s", path, error)
                continue
            if path.stem == hashlib.sha256(content).hexdigest():
                yield path, run
            else:
                log.warning("%s: left out: its content was changed", path)


def spool_of(where: str) -> RunSpool:
    """The spool of a database by its URL without a password."""
    return RunSpool(state_folder() / "spool" / hashlib.sha256(where.encode()).hexdigest()[:16])
