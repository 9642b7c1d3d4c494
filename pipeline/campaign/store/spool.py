"""A server that is away: work that is tried again, and runs that wait for it in files.

A restart of PostgreSQL, or a network that fails for a minute, must cost no measurement: work is done again with
back-off. A run that cannot be stored is written to the spool folder at once, so that not even a kill loses it, and
every process that opens the same database stores what lies there.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from sqlalchemy import exc

from device_runner import files as runner_files
from device_runner import untrusted_files
from pipeline.campaign.record import RunRecord
from pipeline.core import files as storage
from pipeline.core.errors import PipelineError

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
    return runner_files.state_folder() / "spool" / hashlib.sha256(where.encode()).hexdigest()[:16]


def keep_waiting(run: RunRecord, spool: Path) -> Path | None:
    """Write a run to a file; None, with an error logged, where the disk has no place: it is still in memory."""
    content = msgspec.json.encode(run)
    path = spool / f"{hashlib.sha256(content).hexdigest()}.json"
    try:
        storage.write_bytes(path, content)
    except PipelineError as error:
        log.error("round %d of %s is in memory only: %s", run.round, run.planned, error)  # noqa: TRY400 # one line
        return None
    return path


def waiting_runs(spool: Path) -> Iterator[tuple[Path, RunRecord]]:
    """The runs that lie in a spool; a file that is not what was written is left out with a warning."""
    for path in sorted(spool.glob("*.json")):
        try:
            content = path.read_bytes()
            run = untrusted_files.decode_json(content, RunRecord)
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s: left out: %s", path, error)
            continue
        if path.stem == hashlib.sha256(content).hexdigest():
            yield path, run
        else:
            log.warning("%s: left out: its content was changed", path)
