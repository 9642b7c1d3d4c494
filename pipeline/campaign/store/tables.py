"""The tables as the newest migration leaves them, a digest for each row by which damage is seen, and how runs get in.

Runs that come at the same moment are written in one transaction: a commit waits for the disk. Who comes first writes
what is waiting, his own and the others'; nobody is told that a run is stored before it is committed. A run that the
database refuses is refused alone, with a cause and a remedy.

A restart of PostgreSQL, or a network that fails for a minute, must cost no measurement: work is done again with
back-off. A run that cannot be stored is written to the spool folder at once, so that not even a kill loses it, and
every process that opens the same database stores what lies there.
"""

import hashlib
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import Connection, Engine

from device_runner.files import decode_json, state_folder
from device_runner.result import FailureKind, epoch_ms
from pipeline.campaign.record import RunRecord
from pipeline.core.errors import ConfigError, DiskError, MissingError, PipelineError
from pipeline.core.files import write_bytes

metadata = sa.MetaData()


def _digest_column() -> sa.Column[str]:
    return sa.Column("digest", sa.String(32), nullable=False)


campaigns = sa.Table(
    "campaigns",
    metadata,
    sa.Column("id", sa.String(128), primary_key=True),
    sa.Column("name", sa.String(128), nullable=False, index=True),
    sa.Column("created_at", sa.String(32), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    sa.Column("sequence", sa.Integer, nullable=False, index=True, unique=True),
    _digest_column(),
    sa.Column("login", sa.String(64), nullable=False, server_default=""),
)
"""`sequence` counts campaigns in the order in which they were entered: clocks jump. `login` is the user that entered it
where the database is PostgreSQL, which says so itself.
"""

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""The type of the keys of runs: SQLite has 64 bits by the other name."""


def _campaign_column(**more: Any) -> sa.Column[str]:
    return sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), nullable=False, **more)


devices = sa.Table(
    "devices",
    metadata,
    _campaign_column(primary_key=True),
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("document", sa.Text, nullable=False),
    _digest_column(),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    _campaign_column(primary_key=True),
    sa.Column("model", sa.String(256), primary_key=True),
    sa.Column("variant", sa.String(256), primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
    _digest_column(),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", KEY, sa.Identity(always=True), primary_key=True),
    _campaign_column(),
    sa.Column("spec_id", sa.String(256), nullable=False),
    sa.Column("planned", sa.String(256), nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("model", sa.String(256), nullable=False),
    sa.Column("variant", sa.String(256), nullable=False),
    sa.Column("device", sa.String(256), nullable=False),
    sa.Column("provider", sa.String(128), nullable=False),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("failure_kind", sa.String(32)),
    sa.Column("started_at", sa.String(32), nullable=False),
    sa.Column("spec", sa.Text, nullable=False),
    sa.Column("result", sa.Text, nullable=False),
    sa.Column("checks", sa.Text, nullable=False),
    sa.Column("prediction", sa.Text),
    sa.Column("host", sa.String(256), nullable=False),
    sa.Column("started_at_ms", sa.BigInteger),
    sa.Column("ended_at_ms", sa.BigInteger),
    sa.Column("median_ns", sa.BigInteger),
    _digest_column(),
    sa.UniqueConstraint("campaign_id", "spec_id", "round"),
)
"""`host`, the times in milliseconds since 1970 and the median are what `result` and the latencies say, for SQL."""

latencies = sa.Table(
    "latencies",
    metadata,
    sa.Column("run_id", KEY, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("nanoseconds", sa.LargeBinary, nullable=False),
)

quarantines = sa.Table(
    "lab_quarantines",
    metadata,
    sa.Column("id", KEY, sa.Identity(always=True), primary_key=True),
    sa.Column("device", sa.String(256), nullable=False, index=True),
    sa.Column("host", sa.String(256), nullable=False, server_default=""),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("placed", sa.DateTime(timezone=True), nullable=False),
    sa.Column("after_run", sa.BigInteger, nullable=False),
    sa.Column("last_run", sa.BigInteger),
    sa.Column("released", sa.DateTime(timezone=True)),
    sa.Column("released_by", sa.String(64), nullable=False, server_default=""),
    sa.Column("sound", sa.Boolean, nullable=False, server_default=sa.false()),
)
"""Devices that a lab took out. Their runs with keys above `after_run`, of the last good check, up to `last_run`, of the
release (None before it), are in doubt, unless the operator found the device `sound`."""

IN_DOUBT = sa.exists(
    sa.select(quarantines.c.id).where(
        quarantines.c.device == runs.c.device,
        runs.c.id > quarantines.c.after_run,
        sa.or_(quarantines.c.last_run.is_(None), runs.c.id <= quarantines.c.last_run),
        sa.not_(quarantines.c.sound),
    )
).label("in_doubt")
"""Whether a run is of a device in quarantine, since its last good check."""


DIGEST_BYTES = 16

COLUMNS: dict[str, tuple[str, ...]] = {
    "campaigns": ("id", "name", "created_at", "sequence", "document"),
    "devices": ("campaign_id", "name", "document"),
    "artifacts": ("campaign_id", "model", "variant", "sha256", "document"),
    "runs": (
        "campaign_id", "spec_id", "planned", "round", "model", "variant", "device", "provider", "status",
        "failure_kind", "started_at", "spec", "result", "checks", "prediction", "samples", "nanoseconds", "host",
        "started_at_ms", "ended_at_ms", "median_ns",
    ),
}  # fmt: skip
"""Table to the columns that its digests cover, in their order; a run's latencies belong to the run."""


def row_digest(table: str, row: Mapping[Any, Any]) -> str:
    """The digest of a row, from the columns that COLUMNS names. Databases hold it: another way needs a migration."""
    return digest(row[name] for name in COLUMNS[table])


def digest(values: Iterable[object]) -> str:
    """32 hexadecimal digits for these values, their types and their order.

    Texts, which most columns of a row are, have a short way: histories check thousands of rows.
    """
    parts: list[bytes] = []
    for value in values:
        if type(value) is str:
            data = value.encode("utf-8", "surrogatepass")
            parts += (b"s%d:" % len(data), data)
            continue
        match value:
            case None:
                kind, data = b"n", b""
            case int():
                kind, data = b"i", b"%d" % value
            case str():
                kind, data = b"s", value.encode("utf-8", "surrogatepass")
            case bytes() | memoryview():
                kind, data = b"b", bytes(value)
            case _:  # a kind that nothing is stored in: its name alone
                kind, data = b"?", type(value).__name__.encode()
        parts += (b"%s%d:" % (kind, len(data)), data)
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).hexdigest()


REPEATED = (
    FailureKind.LOST_DEVICE, FailureKind.GARBAGE, FailureKind.DEVICE_ERROR, FailureKind.NO_SPACE, FailureKind.DENIED,
    FailureKind.OUT_OF_MEMORY, FailureKind.SET_UP,
)  # fmt: skip
"""Failures that say nothing sure of the run itself: it counts as not done, and the next attempt takes their place.

Out of memory is what a kill from outside looks like: somebody's `kill -9`, or the system's own choice among processes.
"""

MOST_AT_ONCE = 256
"""Runs of one transaction: databases limit the parameters of a statement (SQLite: 32,766)."""

FIND = sa.select(runs.c.id, runs.c.spec_id, runs.c.round, runs.c.failure_kind).where(
    runs.c.campaign_id == sa.bindparam("campaign"), runs.c.spec_id.in_(sa.bindparam("specs", expanding=True))
)
REPEAT = sa.select(sa.func.lab_repeat(sa.bindparam("keys", type_=sa.ARRAY(sa.BigInteger))))
"""PostgreSQL's way to remove runs that are repeated: who may delete from a table may also lock it for everybody."""
REMOVE = (
    latencies.delete().where(latencies.c.run_id == sa.bindparam("key")),
    runs.delete().where(runs.c.id == sa.bindparam("key")),
)
ENTER = runs.insert()
ENTER_LATENCIES = latencies.insert()

Identity = tuple[str, str, int]
"""What tells runs apart: campaign, spec, round."""

Row = dict[str, Any]
"""A run to be stored: the columns of `runs` but its key, and of its latencies."""


def _identity(row: Row) -> Identity:
    return row["campaign_id"], row["spec_id"], row["round"]


class RunWriter:
    """Where the threads of a store bring their runs."""

    def __init__(self, engine: Engine, writing: threading.Lock) -> None:
        self._engine = engine.execution_options(writes=True)
        self._writing = writing
        self._waiting: deque[tuple[Row, Future[bool]]] = deque()

    def bring(self, row: Row) -> bool:
        """Store a run; False where it is there already. Raises SQLAlchemyError when the database refuses it."""
        entered: Future[bool] = Future()
        self._waiting.append((row, entered))
        while not entered.done():  # another thread may see to that
            with self._writing:
                if not entered.done():
                    self._write()
        return entered.result()

    def _write(self) -> None:
        """Enter what is waiting, each run once: another of the same identity waits for the next turn."""
        batch: dict[Identity, tuple[Row, Future[bool]]] = {}
        for waiting in list(self._waiting):
            if len(batch) < MOST_AT_ONCE:
                batch.setdefault(_identity(waiting[0]), waiting)
        try:
            new = self._enter([row for row, _ in batch.values()])
            for name, (_, entered) in batch.items():
                entered.set_result(name in new)
        except sa.exc.SQLAlchemyError as error:
            for row, entered in batch.values():
                if is_away_or_held(error):  # to try each would only wait for the server once more
                    entered.set_exception(error)
                    continue
                try:
                    try:
                        entered.set_result(bool(self._enter([row])))
                    except sa.exc.IntegrityError:  # another process entered the same since this one looked
                        entered.set_result(bool(self._enter([row])))
                except sa.exc.SQLAlchemyError as refusal:
                    entered.set_exception(refusal)
        finally:  # what no answer was had for is entered in the next turn
            for waiting in batch.values():
                if waiting[1].done():
                    self._waiting.remove(waiting)

    def _enter(self, rows: Sequence[Row]) -> set[Identity]:
        with self._engine.begin() as connection:
            return enter(connection, rows)


def enter(connection: Connection, rows: Sequence[Row]) -> set[Identity]:
    """Insert runs of different identities with their latencies, over those of `REPEATED`; which were not there."""
    stored = dict(_found(connection, rows))
    stale = [{"key": key} for key, kind in stored.values() if kind in REPEATED]
    if stale and connection.dialect.name == "postgresql":
        connection.execute(REPEAT, {"keys": [row["key"] for row in stale]})
    elif stale:
        for statement in REMOVE:
            connection.execute(statement, stale)
    new = [row for row in rows if _identity(row) not in stored or stored[_identity(row)][1] in REPEATED]
    if new:
        of_latencies = ("samples", "nanoseconds")
        columns = [{key: value for key, value in row.items() if key not in of_latencies} for row in new]
        connection.execute(ENTER, columns)
        keys = dict(_found(connection, new))
        data = [{"run_id": keys[_identity(row)][0], **{key: row[key] for key in of_latencies}} for row in new]
        connection.execute(ENTER_LATENCIES, data)
    return set(map(_identity, new))


def _found(connection: Connection, rows: Sequence[Row]) -> Iterator[tuple[Identity, tuple[int, str | None]]]:
    """Key and kind of failure of those runs that are there."""
    identities = set(map(_identity, rows))
    for campaign, group in groupby(sorted(identities), key=lambda identity: identity[0]):
        specs = [identity[1] for identity in group]
        for row in connection.execute(FIND, {"campaign": campaign, "specs": specs}):
            identity = (campaign, row.spec_id, row.round)
            if identity in identities:
                yield identity, (row.id, row.failure_kind)


def run_columns(run: RunRecord) -> dict[str, Any]:
    """The columns of a run but its key and its digest, which covers the latencies too."""
    result = run.result
    started_ms = epoch_ms(result.started_at)
    ended_ms = None if started_ms is None or not result.elapsed_ns else started_ms + result.elapsed_ns // 1_000_000
    return {
        "campaign_id": run.campaign,
        "spec_id": run.spec.id,
        "planned": run.planned,
        "round": run.round,
        "model": run.model,
        "variant": run.variant,
        "device": result.device,
        "provider": run.spec.options.provider,
        "status": result.status.value,
        "failure_kind": None if result.failure is None else result.failure.kind.value,
        "started_at": result.started_at,
        "host": result.host,
        "started_at_ms": started_ms,
        "ended_at_ms": ended_ms,
        "median_ns": result.median_ns,
        "spec": text_of(run.spec),
        "result": text_of(msgspec.structs.replace(result, latencies_ns=())),
        "checks": text_of(run.checks),
        "prediction": None if run.prediction is None else text_of(run.prediction),
    }


def text_of(value: object) -> str:
    """A value as the JSON text of its column."""
    return msgspec.json.encode(value).decode()


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
        _, what, remedy, kind = next((row for row in REFUSALS if re.search(row[0], said)), UNKNOWN)
        raise kind(what, where=where, why=message, remedy=remedy) from error
    except UnicodeDecodeError as error:  # sqlite3 cannot read SQLite's own message, which quotes a damaged schema
        raise damaged("its schema", where, str(error)) from error


def hidden(url: str) -> str:
    """The URL with its passwords left out, whether or not it is a good one: libpq also reads them from the query."""
    return re.sub(r"(?i)([?&][^=&]*password=)[^&#]*", r"\1***", re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url))


log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS = 600.0
"""How long a server may be away before the work that needs it ends; runs that were measured stay in the spool."""

PAUSE_SECONDS = (0.1, 5.0)
"""The first pause between two tries, which doubles, and the longest."""

HELD_STATE = "55P03"
"""PostgreSQL's code for a lock that another session kept for longer than `lock_timeout`."""

AWAY_STATES = ("57P01", "57P02", "57P03")
"""PostgreSQL's codes for a server that stops or starts; those that begin with 08 are failed connections."""


def is_away(error: exc.SQLAlchemyError) -> bool:
    """Whether the server went away or cannot be reached now; never for SQLite, which has none."""
    state = getattr(error.orig, "sqlstate", "") if isinstance(error, exc.DBAPIError) else ""
    if not isinstance(error, exc.DBAPIError) or state == "":
        return False
    lost = state is None or state.startswith("08") or state in AWAY_STATES
    return error.connection_invalidated or (isinstance(error, exc.OperationalError) and lost)


def is_away_or_held(error: exc.SQLAlchemyError) -> bool:
    """Whether the server is away, or another session holds what is needed."""
    held = isinstance(error, exc.DBAPIError) and getattr(error.orig, "sqlstate", "") == HELD_STATE
    return held or is_away(error)


def patiently(
    work: Callable[[], T],
    stop: threading.Event | None = None,
    seconds: float = PATIENCE_SECONDS,
    passes: Callable[[exc.SQLAlchemyError], bool] = is_away,
) -> T:
    """What `work` gives, tried again while the server is away, until `stop` or `seconds` have passed.

    `passes` says which errors are waited for.

    Raises SQLAlchemyError: any other at once, the last when it gives up.
    """
    stop = stop or threading.Event()
    begun, pause = time.monotonic(), PAUSE_SECONDS[0]
    while True:
        try:
            value = work()
        except exc.SQLAlchemyError as error:
            if not passes(error) or time.monotonic() - begun > seconds or stop.wait(pause):
                raise
            if pause == PAUSE_SECONDS[0]:
                log.warning("the database server is away or held by another; trying again for %g s", seconds)
            pause = min(2 * pause, PAUSE_SECONDS[1])
        else:
            if pause > PAUSE_SECONDS[0]:
                log.warning("the database server is back after %.1f s", time.monotonic() - begun)
            return value


def spool_of(where: str) -> Path:
    """The folder of runs that wait for a database, by its URL without a password: each file is one, whole or not."""
    return state_folder() / "spool" / hashlib.sha256(where.encode()).hexdigest()[:16]


def keep_waiting(run: RunRecord, spool: Path) -> Path | None:
    """Write a run to a file; None, with an error logged, where the disk has no place: it is still in memory."""
    content = msgspec.json.encode(run)
    path = spool / f"{hashlib.sha256(content).hexdigest()}.json"
    try:
        write_bytes(path, content)
    except PipelineError as error:
        log.error("round %d of %s is in memory only: %s", run.round, run.planned, error)  # noqa: TRY400 # one line
        return None
    return path


def waiting_runs(spool: Path) -> Iterator[tuple[Path, RunRecord]]:
    """The runs that lie in a spool; a file that is not what was written is left out with a warning."""
    for path in sorted(spool.glob("*.json")):
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
