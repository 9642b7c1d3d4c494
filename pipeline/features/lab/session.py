"""The session of a host's agent with the database, and through it the leases of the devices that the host works on.

The tables of a lab stand beside those of the store: its hosts, their devices, what is to be measured where, and files.
Leases are rows that hold while their host gives signs of life (8 s); when it does not, as when it died, was stopped or
lost its cable, another host may take its devices. Who finds that a lease is another's stops before its next run. All of
it is written by functions of the database (its first migration), which know the login: no statement of a reader can
take or keep a lease, and no agent's that of another login's host.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from device_runner.reading import visible
from pipeline.campaign.store.errors import hidden, store_errors
from pipeline.campaign.store.tables import metadata
from pipeline.core.errors import ConfigError

hosts = sa.Table(
    "lab_hosts",
    metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
    sa.Column("versions", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False, server_default=""),
    sa.Column("login", sa.String(64), nullable=False, server_default=""),
    sa.Column("session", sa.String(64), nullable=False, server_default=""),
)
"""`login` is the user of the database that the host's name belongs to, `session` its agent at work, "" for none."""

leases = sa.Table(
    "lab_leases",
    metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("host", sa.String(256), sa.ForeignKey("lab_hosts.name", ondelete="CASCADE"), nullable=False),
    sa.Column("since", sa.DateTime(timezone=True), nullable=False),
)
"""Which host has a device, or the choice of a campaign (`campaign ID`): it holds while the host gives signs of life,
and after that until another takes it."""

attached = sa.Table(
    "lab_devices",
    metadata,
    sa.Column("name", sa.String(256), primary_key=True),
    sa.Column("host", sa.String(256), primary_key=True),
    sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)
"""Devices under their names among those of all hosts; one on the network may be at several hosts."""

jobs = sa.Table(
    "lab_jobs",
    metadata,
    sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("device", sa.String(256), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("stage", sa.String(16), nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("host", sa.String(256), nullable=False, server_default=""),
    sa.Column("reason", sa.Text, nullable=False, server_default=""),
    sa.Column("changed", sa.DateTime(timezone=True), nullable=False),
    sa.Column("again", sa.Text, nullable=False, server_default="[]"),
    sa.Column("runs_left", sa.Integer, nullable=False, server_default="0"),
)
"""One device of one campaign, with all its rounds: leased as a whole, so that its runs stay interleaved. `again` has
the planned runs of the fresh rounds, as JSON; `runs_left` is how many results may still be stored."""

files = sa.Table(
    "lab_files",
    metadata,
    sa.Column("campaign_id", sa.String(128), sa.ForeignKey("campaigns.id"), primary_key=True),
    sa.Column("name", sa.String(1024), primary_key=True),
    sa.Column("sha256", sa.String(64), nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
)

blobs = sa.Table(
    "lab_blobs",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Column("stored", sa.DateTime(timezone=True)),
)

TABLES = (hosts, attached, leases, jobs, files, blobs)


T = TypeVar("T")

SILENT_SECONDS = 8
"""After so long without a sign of life others may have a host's devices; the database's lab_alive has the same."""

SERVER_SIDE = ("tcp_keepalives_idle=3", "tcp_keepalives_interval=1", "tcp_keepalives_count=3", "tcp_user_timeout=8000")
"""How fast the server notices that a host is gone; settings that any user may make for a session."""

PREFIX = "ort-mobile "
"""Of the sessions' names, which pg_stat_activity shows."""


class SessionLost(Exception):
    """The connection ended, or another host has the device: nothing may be begun."""


def refuse_other_database(engine: Engine) -> str:
    """Where the database is; raises ConfigError for another than PostgreSQL."""
    where = hidden(str(engine.url.set(drivername=engine.dialect.name)))
    if engine.dialect.name != "postgresql":
        raise ConfigError(
            "a lab needs PostgreSQL", where=where,
            why="its rules for hosts, submitters and readers are functions and roles of PostgreSQL",
            remedy="--database postgresql://USER@HOST/DATABASE, or [output] database in the config",
        )  # fmt: skip
    return where


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
        settings = [f"SET {setting.replace('=', ' = ')}" for setting in SERVER_SIDE]
        name = f"{PREFIX}{host[:40]}"
        with store_errors(where):
            connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._connection = connection
            try:
                connection.execute(sa.text("SELECT set_config('application_name', :name, false)"), {"name": name})
                for setting in settings:
                    connection.exec_driver_sql(setting)
                self.has_name = bool(connection.scalar(sa.select(sa.func.lab_begin(host, key))))
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
                self._drop()
                raise SessionLost(" ".join(str(error.orig).split())[:200]) from error

    def call(self, function: str, *values: object) -> object:
        """What a function of the database says to this session."""
        query = sa.select(getattr(sa.func, function)(self.host, self.key, *values))
        return self.ask(lambda connection: connection.scalar(query))

    def take(self, device: str) -> bool:
        """Lease a device, without waiting; False where another host has it, or this one has not said that it has it."""
        return bool(self.call("lab_take", device))

    def keep(self, names: Iterable[str]) -> None:
        """Give back every lease but these."""
        self.call("lab_keep", _texts(names))

    def sign_of_life(self, versions: str, note: str, devices: dict[str, str]) -> None:
        """Say that this host lives, and which devices are attached: their names to their facts as JSON."""
        noted = visible(" ".join(note.split()))[:MOST_NOTE]
        self.call("lab_live", versions, noted, _texts(devices), _texts(devices.values()))

    def state_of(self, campaign: str, device: str) -> str:
        """The state of a job as it is now, "" for none; raises SessionLost where this host has no lease of the device.

        So it is the fence before each run.
        """
        mine = sa.select(leases.c.name).join(hosts, hosts.c.name == leases.c.host)
        mine = mine.where(leases.c.name == device, hosts.c.name == self.host, hosts.c.session == self.key)
        query = sa.select(sa.exists(mine), sa.select(jobs.c.state).where(
            jobs.c.campaign_id == campaign, jobs.c.device == device
        ).scalar_subquery())  # fmt: skip
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


def _texts(values: Iterable[str]) -> sa.BindParameter[list[str]]:
    """Texts as an array of PostgreSQL."""
    return sa.literal(list(values), sa.ARRAY(sa.Text))
