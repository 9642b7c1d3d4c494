"""What a database refuses, in the words of this program."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from pipeline.core.errors import ConfigError, DiskError, MissingError, PipelineError


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


REFUSALS: tuple[tuple[str, str, str, type[PipelineError]], ...] = (
    (
        "unable to open database file", "the database file cannot be opened",
        "check that its folder exists and that you may write there", MissingError,
    ),
    (
        "readonly database", "the database cannot be written to",
        "check the permissions of the file and its folder, or give another one", MissingError,
    ),
    (
        "database or disk is full|sqlite_ioerr_shmsize", "the disk is full",
        "make room and start again: runs that were stored are kept and not repeated", DiskError,
    ),
    (
        "no space left on device", "the database server's disk is full",
        "make room there and start again: runs that were stored are kept and not repeated", DiskError,
    ),
    (
        "database is locked", "another process holds the database",
        "wait for it to end, or give this one a database of its own", PipelineError,
    ),
    (
        "file is not a database", "the file is no SQLite database",
        "give another file name, or move that file away", PipelineError,
    ),
    (
        "malformed", "the database is damaged",
        "restore a copy, or save what is readable with `sqlite3 FILE .recover`", StoreError,
    ),
    (
        "could not decode to utf-8", "the database is damaged: a text in it is none",
        "restore a copy of the database; without one, start again with another --output or database", StoreError,
    ),
    (
        "disk i/o error", "the disk failed while reading or writing the database",
        "check the disk; SQLite also says so on network folders that cannot lock files", PipelineError,
    ),
    (
        "authentication failed", "the database server refuses the user or the password",
        "check them in the URL, or give the password in PGPASSWORD or ~/.pgpass", MissingError,
    ),
    (
        "no password supplied", "the database server wants a password",
        "give it in PGPASSFILE, ~/.pgpass or PGPASSWORD", MissingError,
    ),
    (
        "no pg_hba.conf entry", "the database server does not let this host, user or database in",
        "add a line for them to pg_hba.conf there (hostssl where TLS is used), or correct the URL", MissingError,
    ),
    (
        "certificate", "the database server's certificate cannot be checked",
        "correct sslrootcert, sslmode or the host in the URL, which verify-full compares with the certificate",
        MissingError,
    ),
    (
        "does not support ssl", "the database server has no TLS",
        "turn it on there (`ssl = on` and a certificate in postgresql.conf), or correct sslmode in the URL",
        MissingError,
    ),
    (
        "too many clients", "the database server has no place for another connection",
        "raise max_connections in postgresql.conf there", MissingError,
    ),
    (
        "invalid (connection option|sslmode value)", "the database URL has an option that libpq does not know",
        "correct what stands behind `?` in the URL, as in ?sslmode=verify-full", ConfigError,
    ),
    (
        "the lab refuses", "this login may not do this in the lab",
        "docs/lab.md says what each role may; `ort-mobile lab status` says which host has which device", ConfigError,
    ),
    (
        "permission denied", "the database's user may not do this",
        "use a user with the role for it; after an update of a lab run roles.sql again, as docs/lab.md says",
        ConfigError,
    ),
    (
        "due to lock timeout", "another session holds what is needed of the database",
        "try again; where it stays so, the owner of the database looks for it in pg_locks and pg_stat_activity",
        PipelineError,
    ),
    (
        "due to statement timeout", "the database server takes too long to answer",
        "try again; where the network is slow, pass ?options=-c%20statement_timeout%3D0 in the URL", PipelineError,
    ),
    (
        "does not exist", "the database server does not know this database, user or table",
        "create it (createdb NAME), or correct the URL", MissingError,
    ),
    (
        "connection failed|failed to resolve host|timeout expired", "the database server cannot be reached",
        "check host and port in the URL and that the server runs", MissingError,
    ),
    (
        "already exists", "the database is not one of this pipeline",
        "give another one: it has tables of the same names", PipelineError,
    ),
    (
        "no such column", "the database is not one of this pipeline",
        "give another one: its tables have the same names but other columns", PipelineError,
    ),
    (
        "foreign key", "a value belongs to a campaign that is not in the database",
        "the campaign was deleted while it ran: start it again", PipelineError,
    ),
)  # fmt: skip
"""What SQLite, behind the name of its code, or PostgreSQL says in lower case, as a pattern of which the first that fits
counts; what and remedy. Of a full disk a reader gets another code: the file beside the log cannot be enlarged."""

UNKNOWN = ("", "the database refuses", "see why above; --debug shows where it came from", PipelineError)


@contextmanager
def store_errors(where: str) -> Iterator[None]:
    """Raise what the database refuses as PipelineError; `where` is its URL without a password."""
    try:
        yield
    except exc.SQLAlchemyError as error:
        cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
        message = " ".join(str(cause).split())
        said = f"{getattr(cause, 'sqlite_errorname', '')} {message}".lower()
        _, what, remedy, kind = next((refusal for refusal in REFUSALS if re.search(refusal[0], said)), UNKNOWN)
        raise kind(what, where=where, why=message, remedy=remedy) from error
    except UnicodeDecodeError as error:  # sqlite3 cannot read SQLite's own message, which quotes a damaged schema
        raise damaged("its schema", where, str(error)) from error


def hidden(url: str) -> str:
    """The URL with its passwords left out, whether or not it is a good one: libpq also reads them from the query."""
    return re.sub(r"(?i)([?&][^=&]*password=)[^&#]*", r"\1***", re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url))
