"""The session of a host with the database: it is the lease of every device that the host works on.

PostgreSQL gives up a session's advisory locks when the session ends, however that comes about: the process died, the
cable was pulled (keepalive, 6 s), or another host ended it since this one gave no sign of life (8 s, as when it is
stopped). Whoever lost the session stops before its next run.
"""

import hashlib
import threading
from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from device_runner.reading import visible
from pipeline.campaign.lab.tables import attached, hosts, jobs
from pipeline.campaign.store.errors import hidden, told
from pipeline.core.errors import ConfigError

T = TypeVar("T")

SILENT_SECONDS = 8
"""After so long without a sign of life the session of a host is ended by the others."""

SERVER_SIDE = ("tcp_keepalives_idle=3", "tcp_keepalives_interval=1", "tcp_keepalives_count=3", "tcp_user_timeout=8000")
"""How fast the server notices that a host is gone; settings that any user may make for a session."""

END_SILENT = sa.text(
    "SELECT h.name, pg_terminate_backend(h.backend) FROM lab_hosts h JOIN pg_stat_activity a ON a.pid = h.backend "
    "WHERE h.seen < now() - make_interval(secs => :seconds) AND a.application_name = :prefix || left(h.name, 40) "
    "AND a.backend_start <= h.seen"
)

PREFIX = "ort-mobile "
"""Of the sessions' names, which pg_stat_activity shows."""


def lease_key(device: str) -> int:
    """The number of a device's advisory lock: 64 bits, as PostgreSQL has them."""
    digest = hashlib.blake2b(f"ort-mobile device {device}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class SessionLost(Exception):
    """The session ended, and with it every lease."""


class LabSession:
    """One connection that stays open, with the leases that it holds; calls from several threads take turns.

    Raises ConfigError for another database than PostgreSQL, PipelineError where the server refuses the connection.
    """

    def __init__(self, engine: Engine, host: str) -> None:
        where = hidden(str(engine.url.set(drivername=engine.dialect.name)))
        if engine.dialect.name != "postgresql":
            raise ConfigError(
                "a lab needs PostgreSQL", where=where,
                why="leases of devices are locks of its sessions, which end with a host",
                remedy="--database postgresql://USER@HOST/DATABASE, or [output] database in the config",
            )  # fmt: skip
        self.host = host
        self._turn = threading.Lock()
        self._connection: Connection | None = None
        settings = [f"SET {one.replace('=', ' = ')}" for one in SERVER_SIDE]
        name = f"{PREFIX}{host[:40]}"
        with told(where):
            connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(sa.text("SELECT set_config('application_name', :name, false)"), {"name": name})
            for setting in settings:
                connection.exec_driver_sql(setting)
            self.backend = int(connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())
        self._connection = connection

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

    def take(self, device: str) -> bool:
        """Lease a device, without waiting; False where another session has it."""
        query = sa.select(sa.func.pg_try_advisory_lock(lease_key(device)))
        return bool(self.ask(lambda connection: connection.execute(query).scalar()))

    def give_back(self, device: str) -> None:
        """End a lease that this session took."""
        query = sa.select(sa.func.pg_advisory_unlock(lease_key(device)))
        self.ask(lambda connection: connection.execute(query))

    def sign_of_life(self, versions: str, note: str) -> list[str]:
        """Say that this host lives, and end sessions of hosts that have not for too long; their names."""
        now = sa.func.now()
        row = {"seen": now, "backend": self.backend, "versions": versions, "note": visible(" ".join(note.split()))}

        def work(connection: Connection) -> None:
            if not connection.execute(hosts.update().where(hosts.c.name == self.host).values(row)).rowcount:
                connection.execute(hosts.insert().values(name=self.host, **row))

        self.ask(work)
        return [name for name in self.end_silent() if name != self.host]

    def end_silent(self) -> list[str]:
        """End sessions of hosts that gave no sign of life for too long; their names."""
        limit = {"seconds": SILENT_SECONDS, "prefix": PREFIX}
        return self.ask(lambda connection: [found.name for found in connection.execute(END_SILENT, limit)])

    def show(self, devices: dict[str, str]) -> None:
        """Say which devices are attached: their names to their facts as JSON; those that are not named are gone."""

        def work(connection: Connection) -> None:
            mine = attached.c.host == self.host
            for name, document in devices.items():
                row = {"seen": sa.func.now(), "document": document}
                if not connection.execute(attached.update().where(mine, attached.c.name == name).values(row)).rowcount:
                    connection.execute(attached.insert().values(name=name, host=self.host, **row))
            connection.execute(attached.delete().where(mine, attached.c.name.not_in(list(devices))))

        self.ask(work)

    def state_of(self, campaign: str, device: str) -> str:
        """The state of a job as it is now; "" for none. Raises SessionLost: so it is the fence before each run."""
        query = sa.select(jobs.c.state).where(jobs.c.campaign_id == campaign, jobs.c.device == device)
        return str(self.ask(lambda connection: connection.execute(query).scalar()) or "")

    def close(self) -> None:
        """End the session and every lease."""
        with self._turn:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
        self._connection = None
