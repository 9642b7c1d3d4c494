"""What an agent knows, its session with the database, and what it says of its host there and to who started it.

One agent works for a host: its name is leased as devices are, since rows of hosts and devices are by that name.

Phones are asked through the adb server and not opened: a look takes no lease that a run could meet.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from device_runner.adb.link import list_serials, reconnect, server_at
from device_runner.device import (
    DeviceFacts,
    Readiness,
    identity,
    on_network,
    open_device,
    parse_selector,
    split_server,
)
from device_runner.errors import RunnerError
from device_runner.result import host_name
from pipeline.campaign.store import Store
from pipeline.core.errors import ConfigError
from pipeline.features.lab.carry import Carried, lab_versions
from pipeline.features.lab.session import LabSession, SessionLost

log = logging.getLogger(__name__)

AGAIN_SECONDS = 30.0
"""After so long devices that were not ready are asked again, also where adb's servers say what they said."""

JOIN_SECONDS = (10.0, 600.0)
"""Between two tries to join a phone on the network that an adb server has lost: the first pause, which doubles, and
the longest."""


@dataclass(slots=True)
class LostPhone:
    """A phone on the network that its adb server had: when to join it again (monotonic), and the pause after that."""

    due: float
    pause: float


@dataclass(slots=True)
class Attached:
    """The devices that `names` mean: `facts` are of those that are ready, by their names among all hosts.

    `opens` has the names by which this host opens them, `notes` why others cannot be used.
    """

    names: tuple[str, ...]
    facts: dict[str, DeviceFacts] = field(default_factory=dict)
    opens: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seen: object = None
    asked: float = 0.0
    network: set[tuple[str, str]] = field(default_factory=set)
    lost: dict[tuple[str, str], LostPhone] = field(default_factory=dict)

    def look(self, busy: Iterable[str] = ()) -> None:
        """Ask adb's servers what is there, which costs phones nothing; ask phones where that has changed.

        It takes as long as devices need to answer.
        """
        listed, notes = {}, []
        for address in sorted({split_server(name)[1] for name in self.names if name.startswith("adb:")}):
            try:
                listed[address] = dict(list_serials(server_at(address)))
            except RunnerError as error:
                notes.append(f"adb {address or 'here'}: {error.reason}")
        self._join_lost(listed)
        answer = (listed, tuple(notes))
        waits = bool(self.notes) and time.monotonic() - self.asked > AGAIN_SECONDS
        if answer != self.seen or waits:
            self.seen, self.asked = answer, time.monotonic()
            self._ask(set(busy), listed, notes)

    def _join_lost(self, listed: dict[str, dict[str, str]]) -> None:
        """Join phones on the network again that were there: an adb server forgets one when it loses it."""
        now = time.monotonic()
        for address, states in listed.items():
            ready = {(address, serial) for serial, state in states.items() if state == "device" and on_network(serial)}
            self.network |= ready
            for back in ready & set(self.lost):
                del self.lost[back]
        for address, serial in self.network:
            if address not in listed or listed[address].get(serial) == "device":
                continue
            lost = self.lost.setdefault((address, serial), LostPhone(now, JOIN_SECONDS[0]))
            if lost.due <= now:
                log.info("adb:%s: joined again: %s", serial, reconnect(server_at(address), serial))
                lost.due, lost.pause = time.monotonic() + lost.pause, min(2 * lost.pause, JOIN_SECONDS[1])

    def _ask(self, busy: set[str], addresses: Iterable[str], notes: list[str]) -> None:
        """Ask every device that does not work at this moment; those that do are as they were."""
        facts = {name: facts_here for name, facts_here in self.facts.items() if name in busy}
        opens = {name: self.opens[name] for name in facts}
        answers, silent = _answers(self.names, addresses, set(opens.values()))
        notes += silent
        for answer in answers:
            phone = msgspec.structs.replace(answer, host=host_name())
            if phone.readiness is Readiness.READY:
                facts[identity(phone)], opens[identity(phone)] = phone, phone.name
            else:
                notes.append(f"{phone.name}: {phone.advice}")
        self.opens, self.facts, self.notes = {**self.opens, **opens}, facts, tuple(dict.fromkeys(notes))


def _answers(names: Iterable[str], addresses: Iterable[str], known: set[str]) -> tuple[list[DeviceFacts], list[str]]:
    """Facts of the devices that names mean, why others give none; those that are `known` are not asked."""
    from device_runner.adb.device import list_devices

    phones: dict[str, DeviceFacts] = {}
    silent = []
    wanted = [split_server(name.removeprefix("adb:")) for name in names if name.startswith("adb:")]
    for address in addresses:
        fits = [parse_selector(text) for text, at in wanted if at == address]
        try:
            listed = list_devices(f"*@{address}" if address else "*", known)
        except RunnerError as error:
            silent.append(f"adb {address or 'here'}: {error.reason}")
        else:
            phones.update({facts.name: facts for facts in listed if any(fit(facts) for fit in fits)})
    for name in names:
        if not name.startswith("adb:") and name not in known:
            try:
                with open_device(name) as device:
                    phones[name] = device.facts()
            except RunnerError as error:
                silent.append(f"{name}: {error.text}")
    return list(phones.values()), silent


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
    shown: str = ""
    busy: dict[str, Future[None]] = field(default_factory=dict)
    working: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    resting: dict[str, float] = field(default_factory=dict)
    carried: dict[str, Carried] = field(default_factory=dict)
    fetching: threading.Lock = field(default_factory=threading.Lock)
    tidied: float = float("-inf")
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    """What tells this agent from another of the same host's name."""


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
    """A session that has this host's name: rows of hosts and devices are by that name."""
    session = LabSession(agent.store.engine, agent.host, agent.key)
    if session.has_name:
        return session
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
            session.end()


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
    if (lines := "\n".join((listed, *agent.attached.notes))) != agent.shown:
        agent.shown = lines
        agent.say(listed)
        for note in agent.attached.notes:
            log.warning("%s", note)


def _live(agent: Agent, session: LabSession, over: threading.Event) -> None:
    """Give signs of life, and say what is attached, until the session is `over` or lost."""
    versions = msgspec.json.encode(lab_versions()).decode()
    try:
        while True:
            note = "; ".join((*agent.attached.notes, *dict.fromkeys(agent.refused.values())))
            documents = {
                name: msgspec.json.encode(facts).decode() for name, facts in dict(agent.attached.facts).items()
            }
            session.sign_of_life(versions, note, documents)
            if over.wait(SIGN_SECONDS):
                return
    except SessionLost as error:
        log.info("signs of life end: %s", error)
