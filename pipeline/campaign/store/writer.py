"""Runs on their way into the database.

Those that come at the same moment are written in one transaction: a commit waits for the disk. Who comes first writes
what is waiting, his own and the others'; nobody is told that a run is stored before it is committed. A run that the
database refuses is refused alone, with a cause and a remedy.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from device_runner import result as run_result
from pipeline.campaign.record import RunRecord
from pipeline.campaign.store.spool import is_away_or_held
from pipeline.campaign.store.tables import latencies, runs

REPEATED = (
    run_result.FailureKind.LOST_DEVICE,
    run_result.FailureKind.GARBAGE,
    run_result.FailureKind.DEVICE_ERROR,
    run_result.FailureKind.NO_SPACE,
    run_result.FailureKind.DENIED,
    run_result.FailureKind.OUT_OF_MEMORY,
    run_result.FailureKind.SET_UP,
)
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

Row = dict[str, Any]
"""A run to be stored: the columns of `runs` but its key, and of its latencies."""


class Identity(NamedTuple):
    """What tells runs apart."""

    campaign: str
    spec: str
    round: int


def _identity(row: Row) -> Identity:
    return Identity(row["campaign_id"], row["spec_id"], row["round"])


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
            new = self._enter([run for run, _ in batch.values()])
            for name, (_, entered) in batch.items():
                entered.set_result(name in new)
        except sa.exc.SQLAlchemyError as error:
            for run, entered in batch.values():
                if is_away_or_held(error):  # to try each would only wait for the server once more
                    entered.set_exception(error)
                    continue
                try:
                    try:
                        entered.set_result(bool(self._enter([run])))
                    except sa.exc.IntegrityError:  # another process entered the same since this one looked
                        entered.set_result(bool(self._enter([run])))
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
        connection.execute(REPEAT, {"keys": [run["key"] for run in stale]})
    elif stale:
        for statement in REMOVE:
            connection.execute(statement, stale)
    new = [run for run in rows if _identity(run) not in stored or stored[_identity(run)][1] in REPEATED]
    if new:
        of_latencies = ("samples", "nanoseconds")
        columns = [{key: value for key, value in run.items() if key not in of_latencies} for run in new]
        connection.execute(ENTER, columns)
        keys = dict(_found(connection, new))
        data = [{"run_id": keys[_identity(run)][0], **{key: run[key] for key in of_latencies}} for run in new]
        connection.execute(ENTER_LATENCIES, data)
    return set(map(_identity, new))


def _found(connection: Connection, rows: Sequence[Row]) -> Iterator[tuple[Identity, tuple[int, str | None]]]:
    """Key and kind of failure of those runs that are there."""
    identities = set(map(_identity, rows))
    for campaign, group in groupby(sorted(identities), key=lambda identity: identity.campaign):
        specs = [identity.spec for identity in group]
        for run in connection.execute(FIND, {"campaign": campaign, "specs": specs}):
            identity = Identity(campaign, run.spec_id, run.round)
            if identity in identities:
                yield identity, (run.id, run.failure_kind)


def run_columns(run: RunRecord) -> dict[str, Any]:
    """The columns of a run but its key and its digest, which covers the latencies too."""
    result = run.result
    started_ms = run_result.epoch_ms(result.started_at)
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
        "failure_kind": None if result.failure is None else result.failure.code.value,
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
