"""A database server that is away for a while: work is done again with back-off, and measured runs wait in files.

A restart of PostgreSQL, or a network that fails for a minute, must cost no measurement. A run that cannot be stored is
written to the spool folder at once, so that not even a kill loses it, and every process that opens the same database
stores what lies there.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from sqlalchemy import exc

from device_runner.files import state_folder
from device_runner.reading import decode_json
from pipeline.campaign.record import RunRecord
from pipeline.core.errors import PipelineError
from pipeline.core.files import write_bytes

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_SECONDS = 600.0
"""How long a server may be away before the work that needs it ends; runs that were measured stay in the spool."""

PAUSE_SECONDS = (0.1, 5.0)
"""The first pause between two tries, which doubles, and the longest."""

AWAY_STATES = ("57P01", "57P02", "57P03")
"""PostgreSQL's codes for a server that stops or starts; those that begin with 08 are failed connections."""


def is_away(error: exc.SQLAlchemyError) -> bool:
    """Whether the server went away or cannot be reached now; never for SQLite, which has none."""
    state = getattr(error.orig, "sqlstate", "") if isinstance(error, exc.DBAPIError) else ""
    if not isinstance(error, exc.DBAPIError) or state == "":
        return False
    lost = state is None or state.startswith("08") or state in AWAY_STATES
    return error.connection_invalidated or (isinstance(error, exc.OperationalError) and lost)


def patiently(work: Callable[[], T], stop: threading.Event | None = None, seconds: float = PATIENCE_SECONDS) -> T:
    """What `work` gives, tried again while the server is away, until `stop` or `seconds` have passed.

    Raises SQLAlchemyError: any other at once, the last when it gives up.
    """
    stop = stop or threading.Event()
    begun, pause = time.monotonic(), PAUSE_SECONDS[0]
    while True:
        try:
            value = work()
        except exc.SQLAlchemyError as error:
            if not is_away(error) or time.monotonic() - begun > seconds or stop.wait(pause):
                raise
            if pause == PAUSE_SECONDS[0]:
                log.warning("the database server is away; trying again for %g s", seconds)
            pause = min(2 * pause, PAUSE_SECONDS[1])
        else:
            if pause > PAUSE_SECONDS[0]:
                log.warning("the database server is back after %.1f s", time.monotonic() - begun)
            return value


@dataclass(frozen=True, slots=True)
class RunSpool:
    """The folder of runs that wait for one database; each file is one run, whole or not at all."""

    folder: Path

    def keep(self, run: RunRecord) -> Path | None:
        """Write a run to a file; None, with an error logged, where the disk has no place: it is still in memory."""
        content = msgspec.json.encode(run)
        path = self.folder / f"{hashlib.sha256(content).hexdigest()}.json"
        try:
            write_bytes(path, content)
        except PipelineError as error:
            log.error("round %d of %s is in memory only: %s", run.round, run.planned, error)  # noqa: TRY400 # one line
            return None
        return path

    def waiting(self) -> Iterator[tuple[Path, RunRecord]]:
        """The runs that lie there; a file that is not what was written is left out with a warning."""
        for path in sorted(self.folder.glob("*.json")):
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


def spool_of(where: str) -> RunSpool:
    """The spool of a database by its URL without a password."""
    return RunSpool(state_folder() / "spool" / hashlib.sha256(where.encode()).hexdigest()[:16])
