"""What an agent knows, its session with the database, and what it says of its host there and to who started it.

One agent works for a host: its name is leased as devices are, since rows of hosts and devices are by that name.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from device_runner.errors import RunnerError
from pipeline.campaign.lab.session import LabSession, SessionLost
from pipeline.campaign.store import Store
from pipeline.core.errors import ConfigError
from pipeline.job.lab.attached import Attached
from pipeline.job.lab.carry import Carried, lab_versions

log = logging.getLogger(__name__)

SIGN_SECONDS = 2.0
PAUSE_SECONDS = 1.0
"""Between two tries to open a session."""

MOST_NAMES = 8
"""Devices that are named in a line."""

NAME_SECONDS = 30.0
"""For how long an agent that begins waits for the session of an earlier one of its host to end."""


class HostTakenError(ConfigError):
    """Another agent of this host's name is at work."""


@dataclass(slots=True)
class Agent:
    """What an agent knows: `busy` are devices with a thread, `refused` campaigns that this host may not measure.

    `working` has the campaigns of busy devices, `said` what was said last of those that are attached.
    """

    store: Store
    attached: Attached
    stop: threading.Event
    host: str
    say: Callable[[str], None]
    said: str = ""
    busy: dict[str, Future[None]] = field(default_factory=dict)
    working: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    carried: dict[str, Carried] = field(default_factory=dict)
    fetching: threading.Lock = field(default_factory=threading.Lock)
    tidied: float = float("-inf")


def sessions_of(agent: Agent) -> Generator[LabSession]:
    """Sessions with the database, the next when one was lost, until the agent stops; what hinders the first raises."""
    begun, opened, hindered = time.monotonic(), False, ""
    while not agent.stop.is_set():
        try:
            session = _opened(agent)
        except (RunnerError, SessionLost) as error:
            waits = isinstance(error, SessionLost) or (
                isinstance(error, HostTakenError) and time.monotonic() - begun < NAME_SECONDS
            )
            if not opened and not waits:
                raise
            if str(error) != hindered:
                hindered = str(error)
                log.warning("waits: %s", hindered)
        else:
            if hindered:
                agent.say("has a session with the database")
            opened, hindered = True, ""
            try:
                yield session
            finally:
                session.close()
        agent.stop.wait(PAUSE_SECONDS)


def _opened(agent: Agent) -> LabSession:
    """A session that has the lease of this host's name: rows of hosts and devices are by that name."""
    session = LabSession(agent.store.engine, agent.host)
    try:
        if session.take(f"host {agent.host}"):
            return session
        session.end_silent()
    except BaseException:
        session.close()
        raise
    session.close()
    raise HostTakenError(
        "another agent of this host's name is at work", where=agent.host,
        why="an agent works on all devices of its host, and a lab knows hosts by their names",
        remedy="name all devices to one agent (`--device` is repeatable); give each computer a name of its own",
    )  # fmt: skip


@contextmanager
def alive(agent: Agent, session: LabSession) -> Iterator[None]:
    """Signs of life beside what is done meanwhile; then what is attached is withdrawn, so that nobody counts on it."""
    over = threading.Event()
    signs = threading.Thread(target=_live, args=(agent, session, over), daemon=True, name="signs")
    signs.start()
    try:
        yield
    finally:
        over.set()
        signs.join()
        with suppress(SessionLost):
            session.show({})
            session.sign_of_life(_versions(), "the agent was stopped")


def _versions() -> str:
    return msgspec.json.encode(lab_versions()).decode()


def begin_looking(agent: Agent) -> None:
    """Look at what is attached, say it, and go on looking in a thread."""
    agent.attached.look()
    _say_attached(agent)
    threading.Thread(target=_look, args=(agent,), daemon=True, name="look").start()


def _look(agent: Agent) -> None:
    """Look at what is attached until the agent stops. Not between signs of life: phones may take long to answer."""
    while not agent.stop.wait(SIGN_SECONDS):
        try:
            agent.attached.look(list(agent.busy))
            _say_attached(agent)
        except (RunnerError, OSError) as error:
            log.warning("devices could not be looked at: %s", error)


def _say_attached(agent: Agent) -> None:
    """Say which devices this host has, and why others cannot be used, where that has changed."""
    names = sorted(agent.attached.facts)
    more = [f"and {len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    listed = f"devices of {agent.host}: {', '.join((*names[:MOST_NAMES], *more)) or 'none'}"
    if (said := "\n".join((listed, *agent.attached.notes))) != agent.said:
        agent.said = said
        agent.say(listed)
        for note in agent.attached.notes:
            log.warning("%s", note)


def _live(agent: Agent, session: LabSession, over: threading.Event) -> None:
    """Give signs of life, and say what is attached, until the session is `over` or lost."""
    try:
        while True:
            note = "; ".join((*agent.attached.notes, *dict.fromkeys(agent.refused.values())))
            for other in session.sign_of_life(_versions(), note):
                log.warning("%s gave no sign of life: its session was ended", other)
            documents = {name: msgspec.json.encode(one).decode() for name, one in dict(agent.attached.facts).items()}
            session.show(documents)
            if over.wait(SIGN_SECONDS):
                return
    except SessionLost as error:
        log.info("signs of life end: %s", error)
