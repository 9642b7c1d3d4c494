"""Runs into the database, those that come at the same moment in one transaction: a commit waits for the disk.

Who comes first writes what is waiting, his own and the others'; nobody is told that a run is stored before it is
committed. A run that the database refuses is refused alone.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from device_runner.result import FailureKind, RunResult, epoch_ms
from pipeline.campaign.record import RunRecord
from pipeline.campaign.store.patience import is_away
from pipeline.campaign.store.tables import latencies, runs

REPEATED = (
    FailureKind.LOST_DEVICE, FailureKind.GARBAGE, FailureKind.DEVICE_ERROR, FailureKind.NO_SPACE, FailureKind.DENIED,
    FailureKind.OUT_OF_MEMORY,
)  # fmt: skip
"""Failures that say nothing sure of the run itself: it counts as not done, and the next attempt takes their place.

Out of memory is what a kill from outside looks like: somebody's `kill -9`, or the system's own choice among processes.
"""

MOST_AT_ONCE = 256
"""Runs of one transaction: databases limit the parameters of a statement (SQLite: 32,766)."""

FIND = sa.select(runs.c.id, runs.c.spec_id, runs.c.round, runs.c.failure_kind).where(
    runs.c.campaign_id == sa.bindparam("campaign"), runs.c.spec_id.in_(sa.bindparam("specs", expanding=True))
)
REMOVE = (
    latencies.delete().where(latencies.c.run_id == sa.bindparam("key")),
    runs.delete().where(runs.c.id == sa.bindparam("key")),
)
ENTER = runs.insert()
ENTER_LATENCIES = latencies.insert()

Identity = tuple[str, str, int]


@dataclass(slots=True, eq=False)
class RunRow:
    """A run to be stored: the columns of `runs` but its key, its latencies, and how it ended (None: not yet)."""

    columns: dict[str, Any]
    samples: int
    nanoseconds: bytes
    entered: bool | None = None
    refused: sa.exc.SQLAlchemyError | None = None

    @property
    def identity(self) -> Identity:
        """What tells runs apart: campaign, spec, round."""
        return self.columns["campaign_id"], self.columns["spec_id"], self.columns["round"]

    def ended(self) -> bool:
        """Whether it is known to be in, or refused; another thread may see to that."""
        return self.entered is not None or self.refused is not None


class RunWriter:
    """Where the threads of a store bring their runs."""

    def __init__(self, engine: Engine, writing: threading.Lock) -> None:
        self._engine = engine.execution_options(writes=True)
        self._writing = writing
        self._waiting: deque[RunRow] = deque()

    def bring(self, row: RunRow) -> bool:
        """Store a run; False where it is there already. Raises SQLAlchemyError when the database refuses it."""
        self._waiting.append(row)
        while not row.ended():
            with self._writing:
                if not row.ended():
                    self._write()
        if row.refused is not None:
            raise row.refused
        return bool(row.entered)

    def _write(self) -> None:
        """Enter what is waiting, each run once: another of the same identity waits for the next turn."""
        batch: dict[Identity, RunRow] = {}
        for row in list(self._waiting):
            if len(batch) < MOST_AT_ONCE:
                batch.setdefault(row.identity, row)
        rows = list(batch.values())
        try:
            self._enter(rows)
        except sa.exc.SQLAlchemyError as error:
            for row in rows:
                if is_away(error):  # to try each would only wait for the server once more
                    row.refused = error
                else:
                    self._enter_alone(row)
        for row in rows:
            self._waiting.remove(row)

    def _enter_alone(self, row: RunRow) -> None:
        """Once more where another process entered the same since this one looked."""
        try:
            try:
                self._enter([row])
            except sa.exc.IntegrityError:
                self._enter([row])
        except sa.exc.SQLAlchemyError as error:
            row.refused = error

    def _enter(self, rows: Sequence[RunRow]) -> None:
        with self._engine.begin() as connection:
            new = enter(connection, rows)
        for row in rows:
            row.entered = row.identity in new


def enter(connection: Connection, rows: Sequence[RunRow]) -> set[Identity]:
    """Insert runs of different identities with their latencies, over those of `REPEATED`; which were not there."""
    known = dict(_found(connection, rows))
    stale = [{"key": key} for key, kind in known.values() if kind in REPEATED]
    if stale:
        for statement in REMOVE:
            connection.execute(statement, stale)
    new = [row for row in rows if row.identity not in known or known[row.identity][1] in REPEATED]
    if new:
        connection.execute(ENTER, [row.columns for row in new])
        keys = dict(_found(connection, new))
        connection.execute(
            ENTER_LATENCIES,
            [{"run_id": keys[r.identity][0], "samples": r.samples, "nanoseconds": r.nanoseconds} for r in new],
        )
    return {row.identity for row in new}


def _found(connection: Connection, rows: Sequence[RunRow]) -> Iterator[tuple[Identity, tuple[int, str | None]]]:
    """Key and kind of failure of those runs that are there."""
    wanted = {row.identity for row in rows}
    for campaign, group in groupby(sorted(wanted), key=lambda identity: identity[0]):
        specs = [identity[1] for identity in group]
        for row in connection.execute(FIND, {"campaign": campaign, "specs": specs}):
            identity = (campaign, row.spec_id, row.round)
            if identity in wanted:
                yield identity, (row.id, row.failure_kind)


def run_columns(run: RunRecord) -> dict[str, Any]:
    """The columns of a run but its key and its digest, which covers the latencies too."""
    result = run.result
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
        **_columns_for_sql(result),
        "spec": text_of(run.spec),
        "result": text_of(msgspec.structs.replace(result, latencies_ns=())),
        "checks": text_of(run.checks),
        "prediction": None if run.prediction is None else text_of(run.prediction),
    }


def _columns_for_sql(result: RunResult) -> dict[str, str | int | None]:
    """What SQL can draw: where a run was, when it began and ended in milliseconds since 1970, its usual latency."""
    started_ms = epoch_ms(result.started_at)
    ended_ms = None if started_ms is None or not result.elapsed_ns else started_ms + result.elapsed_ns // 1_000_000
    return {
        "host": result.host,
        "started_at_ms": started_ms,
        "ended_at_ms": ended_ms,
        "median_ns": result.median_ns,
    }


def text_of(value: object) -> str:
    """A value as the JSON text of its column."""
    return msgspec.json.encode(value).decode()
