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
    """`said` is a part of what SQLite or PostgreSQL says, in lower case."""

    said: str
    what: str
    remedy: str
    error: type[PipelineError] = PipelineError


REFUSALS = (
    DatabaseRefusal(
        said="unable to open database file",
        what="the database file cannot be opened",
        remedy="check that its folder exists and that you may write there",
        error=MissingError,
    ),
    DatabaseRefusal(
        said="readonly database",
        what="the database cannot be written to",
        remedy="check the permissions of the file and its folder, or give another one",
    ),
    DatabaseRefusal(
        said="database or disk is full",
        what="the disk is full",
        remedy="make room and start again: runs that were stored are kept and not repeated",
    ),
    DatabaseRefusal(
        said="no space left on device",
        what="the database server's disk is full",
        remedy="make room there and start again: runs that were stored are kept and not repeated",
    ),
    DatabaseRefusal(
        said="database is locked",
        what="another process holds the database",
        remedy="wait for it to end, or give this one a database of its own",
    ),
    DatabaseRefusal(
        said="file is not a database",
        what="the file is no SQLite database",
        remedy="give another file name, or move that file away",
    ),
    DatabaseRefusal(
        said="malformed",
        what="the database is damaged",
        remedy="restore a copy, or save what is readable with `sqlite3 FILE .recover`",
        error=StoreError,
    ),
    DatabaseRefusal(
        said="could not decode to utf-8",
        what="the database is damaged: a text in it is none",
        remedy="restore a copy of the database; without one, start again with another --output or database",
        error=StoreError,
    ),
    DatabaseRefusal(
        said="disk i/o error",
        what="the disk failed while reading or writing the database",
        remedy="check the disk; SQLite also says so on network folders that cannot lock files",
    ),
    DatabaseRefusal(
        said="authentication failed",
        what="the database server refuses the user or the password",
        remedy="check them in the URL, or give the password in PGPASSWORD or ~/.pgpass",
        error=MissingError,
    ),
    DatabaseRefusal(
        said="no password supplied",
        what="the database server wants a password",
        remedy="give it in PGPASSFILE, ~/.pgpass or PGPASSWORD",
        error=MissingError,
    ),
    DatabaseRefusal(
        said="no pg_hba.conf entry",
        what="the database server does not let this host, user or database in",
        remedy="add a line for them to pg_hba.conf there (hostssl where TLS is used), or correct the URL",
        error=MissingError,
    ),
    DatabaseRefusal(
        said="certificate",
        what="the database server's certificate cannot be checked",
        remedy="correct sslrootcert, sslmode or the host in the URL, which verify-full compares with the certificate",
        error=MissingError,
    ),
    DatabaseRefusal(
        said="does not support ssl",
        what="the database server has no TLS",
        remedy="turn it on there (`ssl = on` and a certificate in postgresql.conf), or correct sslmode in the URL",
        error=MissingError,
    ),
    DatabaseRefusal(
        said="too many clients",
        what="the database server has no place for another connection",
        remedy="raise max_connections in postgresql.conf there",
        error=MissingError,
    ),
    *(
        DatabaseRefusal(
            said=said,
            what="the database URL has an option that libpq does not know",
            remedy="correct what stands behind `?` in the URL, as in ?sslmode=verify-full",
            error=ConfigError,
        )
        for said in ("invalid connection option", "invalid sslmode value")
    ),
    DatabaseRefusal(
        said="the lab refuses",
        what="this login may not do this in the lab",
        remedy="docs/lab.md says what each role may; `ort-mobile lab status` says which host has which device",
    ),
    DatabaseRefusal(
        said="permission denied",
        what="the database's user may not do this",
        remedy="use a user with the role for it; for a lab's see docs/lab.md",
    ),
    DatabaseRefusal(
        said="does not exist",
        what="the database server does not know this database, user or table",
        remedy="create it (createdb NAME), or correct the URL",
        error=MissingError,
    ),
    *(
        DatabaseRefusal(
            said=said,
            what="the database server cannot be reached",
            remedy="check host and port in the URL and that the server runs",
            error=MissingError,
        )
        for said in ("connection failed", "failed to resolve host", "timeout expired")
    ),
    DatabaseRefusal(
        said="already exists",
        what="the database is not one of this pipeline",
        remedy="give another one: it has tables of the same names",
    ),
    DatabaseRefusal(
        said="no such column",
        what="the database is not one of this pipeline",
        remedy="give another one: its tables have the same names but other columns",
    ),
    DatabaseRefusal(
        said="foreign key",
        what="a value belongs to a campaign that is not in the database",
        remedy="the campaign was deleted while it ran: start it again",
    ),
)
"""The first whose `said` occurs counts."""

UNKNOWN = DatabaseRefusal(
    said="", what="the database refuses", remedy="see why above; --debug shows where it came from"
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
    said = " ".join(str(cause).split())
    refusal = next((one for one in REFUSALS if one.said in said.lower()), UNKNOWN)
    return refusal.error(refusal.what, where=where, why=said, remedy=refusal.remedy)


def hidden(url: str) -> str:
    """The URL with its passwords left out, whether or not it is a good one: libpq also reads them from the query."""
    return re.sub(r"(?i)([?&][^=&]*password=)[^&#]*", r"\1***", re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url))
