"""What a database says when it refuses, as errors with a cause and a remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import exc

from pipeline.core.errors import ConfigError, MissingError, PipelineError


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
def told(where: str) -> Iterator[None]:
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
