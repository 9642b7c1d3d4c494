"""What is attached to a host: its devices under their names among all hosts, looked at without disturbing runs.

Phones are asked through the adb server and not opened: a look takes no lease that a run could meet.
"""

import logging
import time
from collections.abc import Iterable
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
        said = (listed, tuple(notes))
        waits = bool(self.notes) and time.monotonic() - self.asked > AGAIN_SECONDS
        if said != self.seen or waits:
            self.seen, self.asked = said, time.monotonic()
            self._ask(set(busy), listed, notes)

    def _join_lost(self, listed: dict[str, dict[str, str]]) -> None:
        """Join phones on the network again that were there: an adb server forgets one when it loses it."""
        now = time.monotonic()
        for address, states in listed.items():
            ready = {(address, serial) for serial, state in states.items() if state == "device" and on_network(serial)}
            self.network |= ready
            for one in ready & set(self.lost):
                del self.lost[one]
        for one in self.network:
            address, serial = one
            if address not in listed or listed[address].get(serial) == "device":
                continue
            lost = self.lost.setdefault(one, LostPhone(now, JOIN_SECONDS[0]))
            if lost.due <= now:
                log.info("adb:%s: joined again: %s", serial, reconnect(server_at(address), serial))
                lost.due, lost.pause = time.monotonic() + lost.pause, min(2 * lost.pause, JOIN_SECONDS[1])

    def _ask(self, busy: set[str], addresses: Iterable[str], notes: list[str]) -> None:
        """Ask every device that does not work at this moment; those that do are as they were."""
        facts = {name: one for name, one in self.facts.items() if name in busy}
        opens = {name: self.opens[name] for name in facts}
        answers, silent = _answers(self.names, addresses, set(opens.values()))
        notes += silent
        for answer in answers:
            one = msgspec.structs.replace(answer, host=host_name())
            if one.readiness is Readiness.READY:
                facts[identity(one)], opens[identity(one)] = one, one.name
            else:
                notes.append(f"{one.name}: {one.advice}")
        self.opens, self.facts, self.notes = {**self.opens, **opens}, facts, tuple(dict.fromkeys(notes))


def _answers(names: Iterable[str], addresses: Iterable[str], known: set[str]) -> tuple[list[DeviceFacts], list[str]]:
    """Facts of the devices that names mean, why others give none; those that are `known` are not asked."""
    from device_runner.adb.device import list_devices

    found: dict[str, DeviceFacts] = {}
    silent = []
    wanted = [split_server(name.removeprefix("adb:")) for name in names if name.startswith("adb:")]
    for address in addresses:
        fits = [parse_selector(text) for text, at in wanted if at == address]
        try:
            listed = list_devices(f"*@{address}" if address else "*", known)
        except RunnerError as error:
            silent.append(f"adb {address or 'here'}: {error.reason}")
        else:
            found.update({one.name: one for one in listed if any(fit(one) for fit in fits)})
    for name in names:
        if not name.startswith("adb:") and name not in known:
            try:
                with open_device(name) as device:
                    found[name] = device.facts()
            except RunnerError as error:
                silent.append(f"{name}: {error.text}")
    return list(found.values()), silent
