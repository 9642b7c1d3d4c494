"""The store: campaigns, devices, artifacts and runs in, the same values out."""

import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from device_runner.device import DeviceFacts
from device_runner.result import RunResult
from device_runner.spec import RunSpec
from pipeline.errors import PipelineError
from pipeline.store.entering import REPEATED, Entrance, Row, text_of
from pipeline.store.refusals import told
from pipeline.store.tables import artifacts, campaigns, devices, latencies, runs
from pipeline.summary import OutputCheck
from pipeline.variant import Artifact

T = TypeVar("T")


class CampaignRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign as stored: `document` is what the caller wants to find again (config, host facts, versions)."""

    id: str
    name: str
    created_at: str
    document: dict[str, Any] = {}


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run as stored: identity (`campaign`, `spec.id`, `round`), what was asked, what came, and how outputs differ.

    `variant` is the variant's name; `prediction` what was expected of the run before it was measured.
    """

    campaign: str
    round: int
    model: str
    variant: str
    spec: RunSpec
    result: RunResult
    checks: tuple[OutputCheck, ...] = ()
    prediction: dict[str, Any] | None = None


class Store:
    """An open database. Every method is one transaction and raises PipelineError when the database refuses it."""

    def __init__(self, engine: Engine, where: str) -> None:
        self.where = where
        self._engine = engine
        self._writing = threading.Lock()
        self._entrance = Entrance(engine, self._writing)

    def start(self, campaign: CampaignRecord) -> bool:
        """Enter a campaign; False where its id is there already, which then stays as it was."""
        return self._write(lambda connection: _insert_campaign(connection, campaign))

    def amend(self, campaign: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> CampaignRecord:
        """Change the document of a campaign that is there, in one transaction with what is read of it."""
        same = campaigns.c.id == campaign

        def work(connection: Connection) -> CampaignRecord:
            known = self._campaign(connection.execute(sa.select(campaigns).where(same).with_for_update()).one())
            changed = msgspec.structs.replace(known, document=change(known.document))
            connection.execute(campaigns.update().where(same).values(document=text_of(changed.document)))
            return changed

        return self._write(work)

    def add_device(self, campaign: str, facts: DeviceFacts) -> None:
        """Enter what is known of a device, over what was known before."""
        key = {"campaign_id": campaign, "name": facts.name}
        self._write(lambda connection: _put(connection, devices, key, {"document": text_of(facts)}))

    def add_artifact(self, campaign: str, artifact: Artifact) -> None:
        """Enter an artifact, over one of the same model and variant."""
        key = {"campaign_id": campaign, "model": artifact.model, "variant": artifact.variant.name}
        values = {"sha256": artifact.sha256, "document": text_of(artifact)}
        self._write(lambda connection: _put(connection, artifacts, key, values))

    def add_run(self, run: RunRecord) -> bool:
        """Enter a run with its latencies; False, and nothing changed, where that run is there already.

        A run that failed for what `REPEATED` names is replaced. It is committed when this returns; runs that threads
        bring at the same moment share a transaction.
        """
        nanoseconds = _packed(run.result.latencies_ns, self.where)
        row = Row(columns=_run_columns(run), samples=len(run.result.latencies_ns), nanoseconds=nanoseconds)
        with told(self.where):
            return self._entrance.bring(row)

    def finished(self, campaign: str) -> frozenset[tuple[str, int]]:
        """Spec id and round of every run of a campaign that need not be done again."""
        done = sa.or_(runs.c.failure_kind.is_(None), runs.c.failure_kind.not_in(REPEATED))
        query = sa.select(runs.c.spec_id, runs.c.round).where(runs.c.campaign_id == campaign, done)
        with self._reading() as connection:
            return frozenset((row.spec_id, row.round) for row in connection.execute(query))

    def failed(self, campaign: str) -> frozenset[str]:
        """Spec ids of runs that failed or were skipped for a reason of their own, and would again."""
        query = sa.select(runs.c.spec_id).where(
            runs.c.campaign_id == campaign, runs.c.failure_kind.is_not(None), runs.c.failure_kind.not_in(REPEATED)
        )
        with self._reading() as connection:
            return frozenset(connection.scalars(query))

    def campaigns(self) -> tuple[CampaignRecord, ...]:
        """All campaigns, the oldest first."""
        query = sa.select(campaigns).order_by(campaigns.c.created_at, campaigns.c.id)
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return tuple(self._campaign(row) for row in rows)

    def runs(self, campaign: str) -> tuple[RunRecord, ...]:
        """All runs of a campaign with their raw latencies, in the order in which they were stored."""
        query = (
            sa.select(runs, latencies.c.nanoseconds)
            .join_from(runs, latencies)
            .where(runs.c.campaign_id == campaign)
            .order_by(runs.c.id)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        return tuple(self._run(row) for row in rows)

    def artifacts(self, campaign: str) -> tuple[Artifact, ...]:
        """All artifacts of a campaign by model and variant."""
        query = sa.select(artifacts.c.document).where(artifacts.c.campaign_id == campaign)
        with self._reading() as connection:
            texts = connection.scalars(query.order_by(artifacts.c.model, artifacts.c.variant)).all()
        return tuple(self._decode(text, Artifact) for text in texts)

    def devices(self, campaign: str) -> tuple[DeviceFacts, ...]:
        """All devices of a campaign by name."""
        query = sa.select(devices.c.document).where(devices.c.campaign_id == campaign).order_by(devices.c.name)
        with self._reading() as connection:
            texts = connection.scalars(query).all()
        return tuple(self._decode(text, DeviceFacts) for text in texts)

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with told(self.where), self._engine.begin() as connection:
            yield connection

    def _write(self, work: Callable[[Connection], T]) -> T:
        """`work` in one transaction; once more where another process entered the same since it looked.

        Threads take turns: SQLite lets them wait for each other by polling, and some for too long.
        """
        engine = self._engine.execution_options(writes=True)
        with self._writing, told(self.where):
            try:
                with engine.begin() as connection:
                    return work(connection)
            except sa.exc.IntegrityError:
                with engine.begin() as connection:
                    return work(connection)

    def _campaign(self, row: sa.Row[Any]) -> CampaignRecord:
        document = self._decode(row.document, dict[str, Any])
        return CampaignRecord(id=row.id, name=row.name, created_at=row.created_at, document=document)

    def _run(self, row: sa.Row[Any]) -> RunRecord:
        result = self._decode(row.result, RunResult)
        return RunRecord(
            campaign=row.campaign_id,
            round=row.round,
            model=row.model,
            variant=row.variant,
            spec=self._decode(row.spec, RunSpec),
            result=msgspec.structs.replace(result, latencies_ns=_unpacked(row.nanoseconds)),
            checks=self._decode(row.checks, tuple[OutputCheck, ...]),
            prediction=None if row.prediction is None else self._decode(row.prediction, dict[str, Any]),
        )

    def _decode(self, text: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            raise PipelineError(
                "a stored value cannot be read",
                where=self.where,
                why=str(error),
                remedy="the database was changed by something else: take a new one, or restore a copy",
            ) from error


def _put(connection: Connection, table: sa.Table, key: Mapping[str, str], values: Mapping[str, str]) -> None:
    same = sa.and_(*(table.c[name] == value for name, value in key.items()))
    if not connection.execute(table.update().where(same).values(dict(values))).rowcount:
        connection.execute(table.insert().values({**key, **values}))


def _insert_campaign(connection: Connection, campaign: CampaignRecord) -> bool:
    if connection.execute(sa.select(campaigns.c.id).where(campaigns.c.id == campaign.id)).first() is not None:
        return False
    row = {"id": campaign.id, "name": campaign.name, "created_at": campaign.created_at}
    connection.execute(campaigns.insert().values(**row, document=text_of(campaign.document)))
    return True


def _run_columns(run: RunRecord) -> dict[str, Any]:
    result = run.result
    return {
        "campaign_id": run.campaign,
        "spec_id": run.spec.id,
        "round": run.round,
        "model": run.model,
        "variant": run.variant,
        "device": result.device,
        "provider": run.spec.options.provider,
        "status": result.status.value,
        "failure_kind": None if result.failure is None else result.failure.kind.value,
        "started_at": result.started_at,
        "spec": text_of(run.spec),
        "result": text_of(msgspec.structs.replace(result, latencies_ns=())),
        "checks": text_of(run.checks),
        "prediction": None if run.prediction is None else text_of(run.prediction),
    }


def _packed(latencies_ns: tuple[int, ...], where: str) -> bytes:
    try:
        return struct.pack(f"<{len(latencies_ns)}q", *latencies_ns)
    except struct.error as error:
        raise PipelineError(
            "a latency is no 64-bit number of nanoseconds", where=where, why="the device's answer is broken"
        ) from error


def _unpacked(nanoseconds: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(nanoseconds) // 8}q", nanoseconds)
