"""What is attached to a host: its devices under their names among all hosts, looked at without disturbing runs."""

import logging
from dataclasses import dataclass, field

import msgspec

from device_runner.adb.link import list_serials, server_at
from device_runner.device import DeviceFacts, Readiness, identity, is_selector, open_device, split_server
from device_runner.errors import RunnerError
from device_runner.result import host_name
from pipeline.job.devices import found

log = logging.getLogger(__name__)


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

    def look(self, busy: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        """Ask adb's servers what is there, which costs phones nothing; ask phones where that has changed."""
        servers = {split_server(name.partition(":")[2])[1] for name in self.names if name.startswith("adb:")}
        now, notes = [], []
        for address in sorted(servers):
            try:
                now.append((address, list_serials(server_at(address))))
            except RunnerError as error:
                now.append((address, []))
                notes.append(f"adb {address or 'here'}: {error.what}")
        named = [name for name in self.names if not is_selector(name.partition(":")[2])]
        if now == self.seen and (busy or len(self.facts) >= len(named)):
            return
        self.seen = now
        self._ask(busy, notes)

    def _ask(self, busy: set[str], notes: list[str]) -> None:
        """Ask every device that does not work at this moment; those that do are as they were."""
        facts = {name: one for name, one in self.facts.items() if name in busy}
        opens = {name: self.opens[name] for name in facts}
        names, silent = found([name for name in self.names if name not in opens.values()])
        notes += [f"{one.device}: {one.text}" for one in silent]
        for name in names:
            if name in opens.values():
                continue
            try:
                with open_device(name) as device:
                    one = msgspec.structs.replace(device.facts(), host=host_name())
            except RunnerError as error:
                notes.append(f"{name}: {error.text}")
                continue
            if one.readiness is Readiness.READY:
                facts[identity(one)], opens[identity(one)] = one, name
            else:
                notes.append(f"{name}: {one.readiness.value}: {one.advice}")
        self.facts, self.opens, self.notes = facts, opens, tuple(dict.fromkeys(notes))
