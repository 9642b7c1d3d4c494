"""What hosts of a lab share in its database: leases of devices, and the jobs of its campaigns.

Leases are rows that hold while their host gives signs of life (8 s); when it does not, as when it died, was stopped or
lost its cable, another host may take its devices. Who finds that a lease is another's stops before its next run. A
campaign is submitted with a job for each device, which hosts take and end; states of jobs only say what is left to do,
and go forward.

Whatever changes is changed by functions of the database (its first migration), which know the login: no statement of a
reader can take or keep a lease, and no agent's that of another login's host. Whoever may write to the database may have
written anything: a host checks what it gets before it takes it (content.py).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Connection, Engine

from device_runner import safe_text, untrusted_files
from device_runner.device import DeviceFacts
from pipeline.campaign.store import Store, StoreError, refusals, spool
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError
from pipeline.features.lab.content import LabFile
from pipeline.features.lab.tables import attached, hosts, jobs, leases, lost

T = TypeVar("T")

SILENT_SECONDS = 8
"""After so long without a sign of life others may have a host's devices; the database's lab_alive has the same."""

SERVER_SIDE = ("tcp_keepalives_idle=3", "tcp_keepalives_interval=1", "tcp_keepalives_count=3", "tcp_user_timeout=8000")
"""How fast the server notices that a host is gone; settings that any user may make for a session."""

HELD_MS = 2000
"""How long a statement of a session waits for a lock of another: less than a host may be silent."""

PREFIX = "ort-mobile "
"""Of the sessions' names, which pg_stat_activity shows."""


class SessionLost(Exception):
    """The connection ended, or another host has the device: nothing may be begun."""


class LeaseHeld(SessionLost):
    """Another session is at what was asked for, and has not said yet what becomes of it; this session goes on."""


def refuse_other_database(engine: Engine) -> str:
    """Where the database is; raises ConfigError for another than PostgreSQL."""
    where = refusals.hidden(str(engine.url.set(drivername=engine.dialect.name)))
    if engine.dialect.name != "postgresql":
        raise ConfigError(
            "a lab needs PostgreSQL",
            where=where,
            why="its rules for hosts, submitters and readers are functions and roles of PostgreSQL",
            remedy="--database postgresql://USER@HOST/DATABASE, or [output] database in the config",
        )
    return where


@dataclass(frozen=True, slots=True)
class Turn:
    """The state of a job, and the campaign that its device is to be left to; "" while it goes on."""

    state: str
    gives_way_to: str


class LabSession:
    """One connection that stays open; calls from several threads take turns.

    `key` tells the agents of a host apart: the next session of the same agent has what the one before had. Raises
    ConfigError for another database than PostgreSQL, PipelineError where the server refuses the connection or the name.
    """

    def __init__(self, engine: Engine, host: str, key: str) -> None:
        where = refuse_other_database(engine)
        self.host, self.key = host, key
        self._turn = threading.Lock()
        self._connection: Connection | None = None
        settings = [f"SET {setting.replace('=', ' = ')}" for setting in (*SERVER_SIDE, f"lock_timeout={HELD_MS}")]
        name = f"{PREFIX}{host[:40]}"
        with refusals.store_errors(where):
            connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connection = connection
            try:
                connection.execute(sa.text("SELECT set_config('application_name', :name, false)"), {"name": name})
                for setting in settings:
                    connection.exec_driver_sql(setting)
                self.has_name = bool(connection.scalar(sa.select(sa.func.lab_begin(host, key, storage.REVISION))))
                """Whether no other agent of this host's name is at work."""
            except BaseException:
                self._drop()
                raise

    def ask(self, work: Callable[[Connection], T]) -> T:
        """What `work` gives on the session; raises SessionLost when it has ended, now or before."""
        with self._turn:
            if self._connection is None:
                raise SessionLost("the session with the database ended before")
            try:
                return work(self._connection)
            except sa.exc.DBAPIError as error:
                if getattr(error.orig, "sqlstate", "") == spool.HELD_STATE:
                    raise LeaseHeld("another session holds what is asked for") from error
                self._drop()
                raise SessionLost(" ".join(str(error.orig).split())[:200]) from error

    def call(self, function: str, *values: object) -> object:
        """What a function of the database says to this session."""
        query = sa.select(getattr(sa.func, function)(self.host, self.key, *values))
        return self.ask(lambda connection: connection.scalar(query))

    def take(self, device: str) -> bool:
        """Lease a device; False where another host has it, or takes it now, or this one has not said that it has it."""
        try:
            return bool(self.call("lab_take", device))
        except LeaseHeld:
            return False

    def next_job(self, device: str, refused: Iterable[str]) -> str:
        """Lease a device with the campaign whose turn it is there; "" for none, or where another host has the device.

        `refused` are campaigns that this host cannot measure.
        """
        try:
            return str(self.call("lab_next", device, texts(refused)) or "")
        except LeaseHeld:
            return ""

    def turn(self, job: "LabJob", refused: Iterable[str], *, between_rounds: bool) -> "Turn":
        """What is of a job and its device now; raises SessionLost where this host has no lease of it.

        So it is the fence before each run.
        """
        answer = self.call("lab_turn", job.campaign_id, job.device, texts(refused), between_rounds)
        if not isinstance(answer, list):
            raise SessionLost(f"this host has no lease of {job.device} for {job.campaign_id} any more")
        return Turn(state=str(answer[0] or ""), gives_way_to=str(answer[1] or ""))

    def keep(self, names: Iterable[str]) -> None:
        """Give back every lease but these."""
        self.call("lab_keep", texts(names))

    def sign_of_life(self, versions: str, note: str, devices: dict[str, str]) -> tuple[str, ...]:
        """Say that this host lives, and which devices are attached: their names to their facts as JSON.

        Gives those that it may not have: a host of another login has them, and is alive.
        """
        noted = safe_text.visible(" ".join(note.split()))[:MOST_NOTE]
        others = self.call("lab_live", versions, noted, texts(devices), texts(devices.values()))
        return tuple(others) if isinstance(others, list) else ()

    def state_of(self, campaign: str, device: str) -> str:
        """The state of a job now, "" for none; raises SessionLost where this host has no lease of its device."""
        mine = sa.select(leases.c.name).join(hosts, hosts.c.name == leases.c.host)
        mine = mine.where(leases.c.name == device, hosts.c.name == self.host, hosts.c.session == self.key)
        query = sa.select(
            sa.exists(mine),
            sa.select(jobs.c.state).where(jobs.c.campaign_id == campaign, jobs.c.device == device).scalar_subquery(),
        )
        leased, state = self.ask(lambda connection: connection.execute(query).one())
        if not leased:
            raise SessionLost(f"this host has no lease of {device} any more")
        return str(state or "")

    def end(self) -> None:
        """Give everything back, say that the agent was stopped, and close the connection."""
        self.call("lab_end")
        self.close()

    def close(self) -> None:
        """Close the connection; leases stay for as long as a host may be silent."""
        with self._turn:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
        self._connection = None


MOST_NOTE = 4096
"""Characters of what a host says of itself."""


def texts(values: Iterable[str]) -> sa.BindParameter[list[str]]:
    """Texts as an array of PostgreSQL."""
    return sa.literal(list(values), sa.ARRAY(sa.Text))


log = logging.getLogger(__name__)

ATTACHED_SECONDS = 600
"""For how long after its host was heard of last a device counts as attached: a host may restart meanwhile."""

WAITING, RUNNING, MEASURED, DONE, FAILED, CANCELLED = "waiting", "running", "measured", "done", "failed", "cancelled"

OPEN = (WAITING, RUNNING)
ENDED = (DONE, FAILED, CANCELLED)

ROUNDS, FRESH = "rounds", "fresh"
"""The stages of a job: the rounds that choose what ships, and those that say how good the choice is."""

MOST_REASON = 4096
"""Characters of why a device was left."""

MOST_ATTEMPTS = 3
"""How often a device that was left before the end is taken again."""


LabJob = sa.Row[Any]
"""One device of one campaign: a row of `jobs` without what its fresh rounds are and what may still be stored."""

JOB = tuple(column for column in jobs.c if column.name not in ("changed", "again", "runs_left", "bytes_left"))
"""The columns of a `LabJob`."""


def attached_devices(store: Store) -> dict[str, DeviceFacts]:
    """The devices that the hosts of a lab have, by their names among all; the newest facts of each.

    Those of hosts that were not heard of for `ATTACHED_SECONDS` are left out, and what is no description of a device.
    """
    silent = sa.extract("epoch", sa.func.now() - attached.c.seen).label("silent_seconds")
    query = sa.select(attached.c.name, attached.c.document, silent).order_by(attached.c.seen)
    rows = store.read(lambda connection: connection.execute(query).all())
    devices = {}
    for device in rows:
        if device.silent_seconds < ATTACHED_SECONDS:
            try:
                devices[device.name] = untrusted_files.decode_json(device.document, DeviceFacts)
            except msgspec.DecodeError as error:
                log.warning("%s: left out: %s", device.name, error)
    return devices


@dataclass(frozen=True, slots=True)
class LostDevice:
    """The host that had a device last, and since when no host has it."""

    host: str
    since: str
    seconds: int


@dataclass(frozen=True, slots=True)
class Allowed:
    """How many results of a device a campaign takes, and of how many bytes together."""

    runs: int
    bytes: int


def submit_jobs(
    store: Store,
    campaign: str,
    allowed: Mapping[str, Allowed],
    files_kept: Sequence[LabFile],
    *,
    priority: int = 0,
    address: str = "",
    needs: str = "",
) -> None:
    """Enter a job for each device with what it may store, and the campaign's files, all in one transaction.

    `address` is the URL that is told of the campaign's end, `needs` the schema of the earliest agents that measure it,
    "" for any. Raises StoreError where files were removed since they were stored.
    """
    query = sa.select(
        sa.func.lab_submit(
            campaign,
            texts(allowed),
            sa.literal([device.runs for device in allowed.values()], sa.ARRAY(sa.Integer)),
            sa.literal([device.bytes for device in allowed.values()], sa.ARRAY(sa.BigInteger)),
            sa.literal(msgspec.to_builtins(files_kept), JSONB),
            priority,
            address,
        )
    )

    def work(connection: Connection) -> bool:
        entered = bool(connection.scalar(query))
        if entered and needs:
            connection.execute(sa.select(sa.func.lab_needs(campaign, needs)))
        return entered

    if not store.write(work):
        raise StoreError(
            "files of the campaign are gone",
            where=store.where,
            remedy="submit it again",
            why="they were of a campaign that ended long ago, or the database was away meanwhile",
        )


def jobs_of(store: Store, campaign: str | None = None) -> list[LabJob]:
    """The jobs of a campaign, or of all."""
    query = sa.select(*JOB).order_by(jobs.c.campaign_id, jobs.c.device)
    if campaign is not None:
        query = query.where(jobs.c.campaign_id == campaign)
    return list(store.read(lambda connection: connection.execute(query).all()))


def open_jobs(connection: Connection, devices: Sequence[str]) -> list[LabJob]:
    """Jobs of these devices that are left to do; whose turn it is the database says (`LabSession.next_job`)."""
    query = sa.select(*JOB).where(jobs.c.device.in_(devices), jobs.c.state.in_(OPEN)).order_by(jobs.c.campaign_id)
    return list(connection.execute(query))


def change_job(session: LabSession, job: LabJob, state: str, reason: str = "", attempts: int | None = None) -> None:
    """Change an open job of a device that this host has; one that was cancelled or has ended stays as it is.

    A reason may quote a device.
    """
    text = safe_text.visible(" ".join(reason.split()))[:MOST_REASON]
    session.call("lab_change", job.campaign_id, job.device, state, job.attempts if attempts is None else attempts, text)


def stages_to_end(connection: Connection) -> list[str]:
    """Campaigns of which every device has its rounds behind it, and some wait for the choice."""
    left = sa.func.count().filter(jobs.c.state.in_(OPEN))
    measured = sa.func.count().filter(jobs.c.state == MEASURED)
    query = sa.select(jobs.c.campaign_id).group_by(jobs.c.campaign_id).having(left == 0, measured > 0)
    return list(connection.scalars(query))


def ended_campaigns(connection: Connection, names: Iterable[str]) -> set[str]:
    """Those campaigns of which no device has anything left to do."""
    left = sa.func.count().filter(jobs.c.state.not_in(ENDED))
    query = sa.select(jobs.c.campaign_id).where(jobs.c.campaign_id.in_(list(names)))
    return set(connection.scalars(query.group_by(jobs.c.campaign_id).having(left == 0)))


def end_stage(session: LabSession, campaign: str, chosen: Mapping[str, str], reason: str) -> None:
    """Enter the fresh rounds: `chosen` has planned runs with their devices; devices without any are done.

    With a reason why nothing can be chosen all have failed.
    """
    again: dict[str, list[str]] = {}
    for run, device in chosen.items():
        again.setdefault(device, []).append(run)
    session.call(
        "lab_end_stage",
        campaign,
        sa.literal(again, JSONB),
        safe_text.visible(" ".join(reason.split()))[:MOST_REASON],
    )


def again_of_all(store: Store, campaign: str) -> set[str]:
    """The planned runs of the fresh rounds of a campaign, whose ids tell devices apart."""
    query = sa.select(jobs.c.again).where(jobs.c.campaign_id == campaign)
    rows = store.read(lambda connection: list(connection.scalars(query)))
    return {run for text in rows for run in msgspec.json.decode(text)}


def lost_devices(store: Store) -> dict[str, LostDevice]:
    """Devices that no host has any more, by name."""
    seconds = sa.extract("epoch", sa.func.now() - lost.c.since).label("seconds")
    query = sa.select(lost.c.name, lost.c.host, lost.c.since, seconds).order_by(lost.c.name)
    rows = store.read(lambda connection: connection.execute(query).all())
    return {
        device.name: LostDevice(
            host=device.host, since=device.since.isoformat(" ", "seconds"), seconds=round(float(device.seconds))
        )
        for device in rows
    }


def again_of(store: Store, job: LabJob) -> set[str]:
    """The planned runs of a job's fresh rounds."""
    query = sa.select(jobs.c.again).where(jobs.c.campaign_id == job.campaign_id, jobs.c.device == job.device)
    return set(msgspec.json.decode(store.read(lambda connection: connection.execute(query).scalar()) or "[]"))


def cancel_jobs(store: Store, campaign: str) -> int:
    """Cancel what is left of a campaign; how many jobs that were. Hosts stop before their next run."""
    return int(store.write(lambda connection: connection.scalar(sa.select(sa.func.lab_cancel(campaign)))) or 0)


def prefer(store: Store, campaign: str, priority: int) -> int:
    """Give what is left of a campaign another priority; how many jobs that were. Devices see it before their next run.

    Raises PipelineError for a campaign of another login, or a priority that this one may not give.
    """
    change = sa.select(sa.func.lab_prefer(campaign, priority))
    return int(store.write(lambda connection: connection.scalar(change)) or 0)


def lab_hosts(store: Store) -> list[dict[str, Any]]:
    """The hosts of a lab: name, versions, what they say, for how long nothing was heard of them, count of devices,
    and what they have leases of.
    """
    silent = sa.extract("epoch", sa.func.now() - hosts.c.seen).label("silent_seconds")
    of_host = sa.select(sa.func.count()).where(attached.c.host == hosts.c.name).scalar_subquery().label("devices")
    query = sa.select(hosts.c.name, hosts.c.versions, hosts.c.note, silent, of_host).order_by(hosts.c.name)
    rows = store.read(lambda connection: connection.execute(query).mappings().all())
    held: dict[str, list[str]] = {}
    for name, host in store.read(lambda connection: connection.execute(sa.select(leases.c.name, leases.c.host)).all()):
        held.setdefault(host, []).append(name)
    return [
        {
            **host,
            "silent_seconds": round(float(host["silent_seconds"]), 1),
            "leases": sorted(held.get(host["name"], [])),
        }
        for host in rows
    ]
