"""The store: campaigns, devices, artifacts and runs in, the same values out."""

import logging
import math
import struct
import threading
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from device_runner import result as run_result
from device_runner import safe_text, untrusted_files
from device_runner.device import DeviceFacts
from device_runner.result import RunResult, Status
from device_runner.spec import RunSpec
from pipeline.campaign import record as campaign_record
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.store.digests import row_digest
from pipeline.campaign.store.refusals import StoreError, damaged, store_errors
from pipeline.campaign.store.spool import (
    PATIENCE_SECONDS,
    is_away_or_held,
    keep_waiting,
    patiently,
    spool_of,
    waiting_runs,
)
from pipeline.campaign.store.tables import IN_DOUBT, artifacts, campaigns, devices, latencies, runs
from pipeline.campaign.store.writer import REPEATED, Row, RunWriter, run_columns, text_of
from pipeline.check.compare import OutputCheck
from pipeline.core import errors as core_errors
from pipeline.core import groups as counting
from pipeline.core.errors import Finding, MissingError, PipelineError
from pipeline.core.variant import Artifact

T = TypeVar("T")

log = logging.getLogger(__name__)

RAW_LATENCIES = sa.type_coerce(latencies.c.nanoseconds, sa.types.NULLTYPE).label("nanoseconds")
"""As the database has them: SQLAlchemy fails on a damaged value before its digest can be looked at."""

OF_THE_DOCUMENT = ("spec_id", "device", "provider", "status", "failure_kind", "host", "median_ns")
"""Columns of runs that say again what is in the documents: a shared database decides by them who may enter a run, and
histories read their medians."""

CHECKED_BYTES = 256 << 20
"""SQLite files up to this size are checked as a whole before runs are read: at most some 0.3 s.

In larger ones damage is found where it is read: by SQLite in its pages, by digests in rows; that of other campaigns is
not. No check sees that an index page was replaced by another of the same index: its rows are missing then.
"""


class Store:
    """An open database. Every method is one transaction and raises PipelineError when the database refuses it.

    What is read is checked against its digest; StoreError names the row that is not as it was stored.
    """

    def __init__(self, engine: Engine, where: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.where = where
        self._patience_seconds = patience_seconds
        self.engine = engine
        self._writing = threading.Lock()
        self._entrance = RunWriter(engine, self._writing)
        self._spool = spool_of(where)
        self.shared = engine.dialect.name == "postgresql"
        """Whether others enter runs, too: theirs are left out where they cannot be what was measured."""

    def start(
        self, campaign: CampaignRecord, facts: Iterable[DeviceFacts] = (), new_artifacts: Iterable[Artifact] = ()
    ) -> bool:
        """Enter a campaign with its devices and artifacts, all or none.

        False where its id is there already, which then stays as it was.
        """

        def work(connection: Connection) -> bool:
            if connection.execute(sa.select(campaigns.c.id).where(campaigns.c.id == campaign.id)).first() is not None:
                return False
            last = connection.execute(sa.select(sa.func.max(campaigns.c.sequence))).scalar()
            row = {
                "id": campaign.id,
                "name": campaign.name,
                "created_at": campaign.created_at,
                "sequence": (last or 0) + 1,
                "document": text_of(campaign.document),
            }
            connection.execute(campaigns.insert().values(**row, digest=row_digest("campaigns", row)))
            for device in facts:
                connection.execute(devices.insert().values(_device_row(campaign.id, device)))
            for artifact in new_artifacts:
                connection.execute(artifacts.insert().values(_artifact_row(campaign.id, artifact)))
            return True

        return self.write(work)

    def amend(
        self,
        campaign: str,
        change: Callable[[campaign_record.JobRecord], campaign_record.JobRecord],
        facts: Iterable[DeviceFacts] = (),
        new_artifacts: Iterable[Artifact] = (),
    ) -> CampaignRecord:
        """Change the document of a stored campaign and add devices and artifacts, all in one transaction.

        Raises PipelineError for a document that this release cannot read.
        """
        same = campaigns.c.id == campaign

        def work(connection: Connection) -> CampaignRecord:
            row = connection.execute(sa.select(campaigns).where(same).with_for_update()).mappings().one()
            stored = self._campaign(row)
            changed = msgspec.structs.replace(stored, document=change(stored.job()))
            values = {"document": text_of(changed.document)}
            values["digest"] = row_digest("campaigns", {**row, **values})
            connection.execute(campaigns.update().where(same).values(values))
            for device in facts:
                _put(connection, devices, _device_row(campaign, device))
            for artifact in new_artifacts:
                _put(connection, artifacts, _artifact_row(campaign, artifact))
            return changed

        return self.write(work)

    def add_run(self, run: RunRecord, stop: threading.Event | None = None) -> bool:
        """Enter a run with its latencies; False, and nothing changed, where that run is there already.

        A run that failed for what `REPEATED` names is replaced. It is committed when this returns; runs that threads
        bring at the same moment share a transaction. While the server is away the run waits in memory and in a file,
        until `stop` is set or patience ends: then MissingError says where it lies.
        """
        row, kept = self._row(run), None
        try:
            with store_errors(self.where):
                try:
                    return self._bring(row)
                except sa.exc.SQLAlchemyError as error:
                    if not is_away_or_held(error):
                        raise
                kept = keep_waiting(run, self._spool)
                entered = patiently(lambda: self._bring(self._row(run)), stop, passes=is_away_or_held)
        except MissingError as error:
            if kept is None:
                raise
            raise MissingError(
                error.what,
                where=error.where,
                why=error.why,
                remedy=f"{error.remedy}; what was measured waits in {self._spool} and is stored when this user "
                "opens the database again from this computer, as with --resume",
            ) from error
        if kept:
            kept.unlink(missing_ok=True)
        return entered

    def bring_spooled(self) -> int:
        """Store runs that earlier processes measured while the server was away; how many were not there yet.

        A run that the database refuses, since its campaign was deleted, stays in its file with a warning.
        """
        brought = 0
        for path, run in waiting_runs(self._spool):
            try:
                with store_errors(self.where):
                    brought += self._bring(self._row(run))
            except MissingError:
                raise
            except PipelineError as error:
                log.warning("%s: stays there: %s", path, error)
            else:
                path.unlink(missing_ok=True)
        return brought

    def _bring(self, row: Row) -> bool:
        """Enter a run; False where it is there. Raises StoreError where that one is of another device."""
        if self._entrance.bring(row):
            return True
        same = (getattr(runs.c, name) == row[name] for name in ("campaign_id", "spec_id", "round"))
        with self.engine.begin() as connection:
            there = connection.execute(sa.select(runs.c.device, runs.c.host).where(*same)).first()
        if there is not None and there.device != row["device"]:
            raise StoreError(
                f"a run of {row['device']} cannot be stored: a row of {there.device} is in its place",
                where=self.where,
                why=safe_text.visible(f"the host {there.host or '?'} entered it as {_name_of_run(row)}"),
                remedy="ask whose login that host has, and submit the campaign again",
            )
        return False

    def _row(self, run: RunRecord) -> Row:
        latencies_ns = run.result.latencies_ns
        try:
            nanoseconds = struct.pack(f"<{len(latencies_ns)}q", *latencies_ns)
        except struct.error as error:
            raise PipelineError(
                "a latency is no 64-bit number of nanoseconds", where=self.where, why="the device's answer is broken"
            ) from error
        row = {**run_columns(run), "samples": len(latencies_ns), "nanoseconds": nanoseconds}
        return {**row, "digest": row_digest("runs", row)}

    def finished(self, campaign: str, device: str | None = None) -> frozenset[tuple[str, int]]:
        """The planned run and the round of every run of a campaign, or a device of it, that need not be done again."""
        done = sa.or_(runs.c.failure_kind.is_(None), runs.c.failure_kind.not_in(REPEATED))
        query = sa.select(runs.c.planned, runs.c.round).where(*_of(campaign, device), done)
        return self.read(lambda connection: frozenset((run.planned, run.round) for run in connection.execute(query)))

    def failed(self, campaign: str, device: str | None = None) -> frozenset[str]:
        """The planned runs that failed or were skipped for a reason of their own, and would again."""
        query = sa.select(runs.c.planned).where(
            *_of(campaign, device), runs.c.failure_kind.is_not(None), runs.c.failure_kind.not_in(REPEATED)
        )
        return self.read(lambda connection: frozenset(connection.scalars(query)))

    def campaigns(self, name: str = "") -> tuple[CampaignRecord, ...]:
        """All campaigns, or those of a name, in the order in which they were entered, whatever the clock said then."""
        query = sa.select(campaigns).order_by(campaigns.c.sequence)
        query = query.where(campaigns.c.name == name) if name else query
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        return tuple(self._campaign(row) for row in rows)

    def names(self) -> dict[str, str]:
        """The names of all campaigns by their ids, in the order in which they were entered; nothing else is read."""
        query = sa.select(campaigns.c.id, campaigns.c.name).order_by(campaigns.c.sequence)
        return self.read(lambda connection: {campaign.id: campaign.name for campaign in connection.execute(query)})

    def campaign(self, name: str) -> CampaignRecord:
        """The campaign with this id, which must be there."""
        query = sa.select(campaigns).where(campaigns.c.id == name)
        return self._campaign(self.read(lambda connection: connection.execute(query).mappings().one()))

    def runs(self, campaign: str, number: int | None = None) -> tuple[RunRecord, ...]:
        """As `read_runs`; those that are left out are logged."""
        read = self.read_runs(campaign, number)
        for finding in read.left_out:
            log.warning("%s: %s: %s", campaign, finding.where, finding.what)
        return read.runs

    def read_runs(self, campaign: str, number: int | None = None) -> campaign_record.ReadRuns:
        """All runs of a campaign, or of a round of it, with raw latencies, in the order of their storing.

        In a shared database those are left out that cannot be what was measured. Elsewhere StoreError names the first.
        """
        records, left_out, rows = [], [], self._run_rows(campaign, number)
        stretch = self._stretches(campaign, rows)
        for row in rows:
            try:
                records.append(msgspec.structs.replace(self._timed_run(row), stretch=stretch(row)))
            except StoreError as error:
                left_out.append(self._left_out(row, error))
        return campaign_record.ReadRuns(runs=tuple(records), left_out=tuple(left_out))

    def _stretches(self, campaign: str, rows: Sequence[Mapping[Any, Any]]) -> Callable[[Mapping[Any, Any]], int]:
        """How many runs of other campaigns were stored of a run's device before it, since the first of these.

        Of hosts that the campaign has, too: of other computers a device may have the same name.
        """
        keys = [row["id"] for row in rows]
        query = (
            sa.select(runs.c.device, runs.c.id)
            .where(
                runs.c.campaign_id != campaign,
                runs.c.id.between(min(keys, default=0), max(keys, default=0)),
                runs.c.device.in_({row["device"] for row in rows}),
                runs.c.host.in_({row["host"] for row in rows}),
            )
            .order_by(runs.c.id)
        )
        others = counting.grouped(
            self.read(lambda connection: [(run.device, run.id) for run in connection.execute(query)])
        )
        return lambda row: bisect(others.get(row["device"], ()), row["id"])

    def _left_out(self, row: Mapping[Any, Any], error: StoreError) -> Finding:
        """What is said of a run that cannot be read in a shared database; raises the error in another."""
        if not self.shared:
            raise error
        what = safe_text.visible(f"{_name_of_run(row)} was left out: {error.why}")
        where = safe_text.visible(" at the host ".join(filter(None, (row["device"], row["host"]))))
        return core_errors.warning(what, where)

    def run_medians(self, campaigns: Iterable[str]) -> Iterator[tuple[tuple[RunRecord, int | None], ...]]:
        """The timed runs of one campaign after the other, each with the median of its latencies in nanoseconds, None of
        none; those with the profiler on are left out.

        Latencies are not decoded, and the file is checked once: histories read thousands of runs.
        """
        for index, campaign in enumerate(campaigns):
            medians = []
            for row in self._run_rows(campaign, check_pages=index == 0):
                try:
                    run = self._run(row)
                except StoreError as error:
                    finding = self._left_out(row, error)
                    log.warning("%s: %s: %s", campaign, finding.where, finding.what)
                else:
                    medians += [] if run.spec.profile else [(run, row["median_ns"])]
            yield tuple(medians)

    def _run_rows(
        self, campaign: str, number: int | None = None, *, check_pages: bool = True
    ) -> Sequence[Mapping[Any, Any]]:
        query = (
            sa.select(runs, latencies.c.samples, RAW_LATENCIES, IN_DOUBT)
            .join_from(runs, latencies, isouter=True)
            .where(*_of(campaign, None))
            .order_by(runs.c.id)
        )
        query = query if number is None else query.where(runs.c.round == number)

        def work(connection: Connection) -> Sequence[Mapping[Any, Any]]:
            # SQLite's own check of its file: pages that are lost would be rows that nobody misses.
            if check_pages and connection.dialect.name == "sqlite":
                counts = (connection.exec_driver_sql(f"PRAGMA {what}") for what in ("page_count", "page_size"))
                if math.prod(int(count.scalar_one()) for count in counts) <= CHECKED_BYTES:
                    answer = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                    if answer != "ok":
                        raise damaged("its file", self.where, str(answer))
            return connection.execute(query).mappings().all()

        return self.read(work)

    def artifacts(self, campaign: str) -> tuple[Artifact, ...]:
        """All artifacts of a campaign by model and variant."""
        query = sa.select(artifacts).where(artifacts.c.campaign_id == campaign)
        query = query.order_by(artifacts.c.model, artifacts.c.variant)
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        named_rows = [(f"the artifact {row['model']} {row['variant']}", row) for row in rows]
        return tuple(self._document("artifacts", name, row, Artifact) for name, row in named_rows)

    def devices(self, campaign: str) -> tuple[DeviceFacts, ...]:
        """All devices of a campaign by name."""
        query = sa.select(devices).where(devices.c.campaign_id == campaign).order_by(devices.c.name)
        rows = self.read(lambda connection: connection.execute(query).mappings().all())
        return tuple(self._document("devices", f"the device {row['name']}", row, DeviceFacts) for row in rows)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, work: Callable[[Connection], T]) -> T:
        """`work` in one transaction, again where the server was away."""

        def once() -> T:
            with self.engine.begin() as connection:
                return work(connection)

        with store_errors(self.where):
            return patiently(once, seconds=self._patience_seconds)

    def write(self, work: Callable[[Connection], T]) -> T:
        """`work` in one transaction; once more where another process entered the same since it looked.

        Threads take turns: SQLite lets them wait for each other by polling, and some for too long. Where the server
        goes away during the commit, `work` is done twice: it must find what it did.
        """
        engine = self.engine.execution_options(writes=True)

        def once() -> T:
            with engine.begin() as connection:
                return work(connection)

        with self._writing, store_errors(self.where):
            try:
                return patiently(once)
            except sa.exc.IntegrityError:
                return patiently(once)

    def _check(self, table: str, name: str, row: Mapping[Any, Any]) -> None:
        if row["digest"] != row_digest(table, row):
            raise damaged(name, self.where, "its digest is another")

    def _campaign(self, row: Mapping[Any, Any]) -> CampaignRecord:
        self._check("campaigns", f"the campaign {row['id']}", row)
        text, document, unreadable = row["document"], None, ""
        try:
            document = None if text == "null" else untrusted_files.decode_json(text, campaign_record.JobRecord)
        except msgspec.ValidationError as error:
            unreadable = str(error)
        return CampaignRecord(
            id=row["id"], name=row["name"], created_at=row["created_at"], document=document, unreadable=unreadable
        )

    def _document(self, table: str, name: str, row: Mapping[Any, Any], kind: type[T]) -> T:
        self._check(table, name, row)
        return self._decode(row["document"], kind, name)

    def _run(self, row: Mapping[Any, Any]) -> RunRecord:
        """The run of a row, without its latencies."""
        name = _name_of_run(row)
        self._check("runs", name, row)
        prediction, result = row["prediction"], self._decode(row["result"], RunResult, name)
        if row["in_doubt"]:  # said of the device later, and no part of what was measured
            result = msgspec.structs.replace(result, marks=(*result.marks, run_result.Mark.QUARANTINED))
        return RunRecord(
            campaign=row["campaign_id"],
            planned=row["planned"],
            round=row["round"],
            model=row["model"],
            variant=row["variant"],
            spec=self._decode(row["spec"], RunSpec, name),
            result=result,
            checks=self._decode(row["checks"], tuple[OutputCheck, ...], name),
            prediction=None if prediction is None else self._decode(prediction, campaign_record.Prediction, name),
        )

    def _timed_run(self, row: Mapping[Any, Any]) -> RunRecord:
        """The run of a row. Raises StoreError for what cannot be, whoever computed its digest."""
        run, data, samples = self._run(row), row["nanoseconds"], row["samples"]
        if not isinstance(data, bytes) or len(data) != 8 * samples:
            raise damaged(_name_of_run(row), self.where, "its latencies are lost or cut off")
        result = msgspec.structs.replace(run.result, latencies_ns=struct.unpack(f"<{samples}q", data))
        run = msgspec.structs.replace(run, result=result)
        if self.shared:
            columns, why = run_columns(run), ""
            if min(result.latencies_ns, default=0) < 0:
                why = "a latency is negative"
            elif other := [name for name in OF_THE_DOCUMENT if row[name] != columns[name]]:
                why = f"its column {other[0]} is not that of its document"
            elif (result.status is Status.OK) != (result.failure is None):
                why = f"its status is {result.status.value} {'with' if result.failure else 'without'} a failure"
            if why:
                raise damaged(_name_of_run(row), self.where, why)
        return run

    def _decode(self, text: str, kind: type[T], name: str) -> T:
        try:
            return untrusted_files.decode_json(text, kind)
        except (msgspec.DecodeError, TypeError) as error:
            raise StoreError(
                f"{name} cannot be read from the database",
                where=self.where,
                why=str(error),
                remedy="another program or a later release wrote it: use that, or start again with another --output",
            ) from error


def _name_of_run(row: Mapping[Any, Any]) -> str:
    return f"round {row['round']} of the run {row['spec_id']}"


def _of(campaign: str, device: str | None) -> tuple[sa.ColumnElement[bool], ...]:
    """The conditions of runs of a campaign, or of a device of it."""
    return (runs.c.campaign_id == campaign, *((runs.c.device == device,) if device is not None else ()))


def _device_row(campaign: str, facts: DeviceFacts) -> dict[str, str]:
    row = {"campaign_id": campaign, "name": facts.name, "document": text_of(facts)}
    return {**row, "digest": row_digest(devices.name, row)}


def _artifact_row(campaign: str, artifact: Artifact) -> dict[str, str]:
    row = {"campaign_id": campaign, "model": artifact.model, "variant": artifact.variant.name}
    row |= {"sha256": artifact.sha256, "document": text_of(artifact)}
    return {**row, "digest": row_digest(artifacts.name, row)}


def _put(connection: Connection, table: sa.Table, row: Mapping[str, str]) -> None:
    """Enter a row under its key, over the one that is there."""
    same = sa.and_(*(column == row[column.name] for column in table.primary_key))
    if not connection.execute(table.update().where(same).values(row)).rowcount:
        connection.execute(table.insert().values(row))
