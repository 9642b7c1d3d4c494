"""Four hosts in network namespaces, each with devices that all of them reach, and what happens to a lab at random.

`nox -s lab_tests` runs it; LAB_EVENTS is how often each kind of event happens (2; 50 in the full session).
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline.campaign.lab.queue import DONE, RUNNING, jobs_of
from pipeline.campaign.lab.tables import jobs
from pipeline.campaign.store import Store, open_store
from tests.lab.farm import JOURNAL, SECONDS, Faults, check_stored, faults, rigs, submitted
from tests.postgres import PostgresServer, own_server

pytestmark = pytest.mark.lab

EVENTS = int(os.environ.get("LAB_EVENTS", "2"))
CABLE_SECONDS = 25.0
HOSTS = 4
NETWORK = "10.213.77"


def ip(*words: str, check: bool = True) -> str:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True).stdout


@contextmanager
def namespaces(tag: str) -> Iterator[list[str]]:
    """Namespaces behind a bridge, on which this computer is .1; their names are this test's own."""
    bridge, names = f"lb{tag}", [f"lab{tag}n{number}" for number in range(HOSTS)]
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{bridge}v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{bridge}v{number}", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{number + 2}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)
        ip("link", "del", bridge, check=False)


@dataclass
class Lab:
    server: PostgresServer
    tag: str
    folder: Path

    def pid(self, number: int) -> int:
        return int((self.folder / f"h{number}").read_text())

    def killed(self, number: int) -> None:
        """The agent of a host dies; it is started again."""
        os.kill(self.pid(number), signal.SIGKILL)

    def restarted(self, _: int) -> None:
        self.server.restart(random.uniform(0.0, 2.0))

    def unplugged(self, number: int) -> None:
        link = f"lb{self.tag}v{number}"
        ip("link", "set", link, "down")
        time.sleep(CABLE_SECONDS)
        ip("link", "set", link, "up")

    def stopped(self, number: int) -> None:
        pid = self.pid(number)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(random.uniform(1.0, 20.0))
        os.kill(pid, signal.SIGCONT)


@contextmanager
def lab(tmp_path: Path, counts: list[str], seconds: float) -> Iterator[Lab]:
    tag = f"{os.getpid() % 10000}"
    with namespaces(tag) as names, own_server(address=f"{NETWORK}.1") as server:
        environment = {**os.environ, SECONDS: str(seconds), JOURNAL: str(tmp_path / "journal")}
        processes = []
        try:
            for number, name in enumerate(names):
                own = {
                    **environment,
                    "ORT_MOBILE_CACHE": f"{tmp_path}/c{number}",
                    "ORT_MOBILE_STATE": f"{tmp_path}/s{number}",
                }
                command = ["ip", "netns", "exec", name, sys.executable, "-m", "tests.lab.agent_process", server.url]
                with (tmp_path / f"log{number}").open("w") as log:
                    words = [*command, f"h{number}", counts[number], f"{tmp_path}/h{number}"]
                    processes.append(subprocess.Popen(words, env=own, stderr=log))
            yield Lab(server, tag, tmp_path)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(120)


def until(ended: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not ended():
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.5)


def ended(store: Store) -> Callable[[], bool]:
    return lambda: all(job.state == DONE for job in jobs_of(store))


def busy_share(store: Store, campaign: str, devices: int) -> float:
    """The share of the time of all devices, from the first run's begin to the last one's end, that runs took."""
    runs = store.runs(campaign)
    begins = [datetime.fromisoformat(run.result.started_at).timestamp() for run in runs]
    lengths = [(run.result.elapsed_ns or 0) / 1e9 for run in runs]
    return sum(lengths) / devices / (max(map(sum, zip(begins, lengths, strict=True))) - min(begins))


class Watch(threading.Thread):
    """After how many seconds each device that a host was working on was begun again; by another host, if `other`."""

    def __init__(self, store: Store, host: str, *, other: bool) -> None:
        super().__init__(daemon=True)
        self.store, self.host, self.other = store, host, other
        self.seconds: dict[str, float] = {}
        self.over = threading.Event()
        self.begun, self.left = time.time(), {device for device, owner, _ in self.rows() if owner == host}

    def rows(self) -> list[tuple[Any, ...]]:
        query = sa.select(jobs.c.device, jobs.c.host, jobs.c.changed).where(jobs.c.state == RUNNING)
        return [tuple(row) for row in self.store.read(lambda connection: connection.execute(query).all())]

    def run(self) -> None:
        while not self.over.wait(0.2):
            for device, host, changed in self.rows():
                seconds = changed.timestamp() - self.begun
                if device in self.left and seconds > 0 and not (self.other and host == self.host):
                    self.seconds.setdefault(device, seconds)


@dataclass(slots=True)
class Tally:
    """What events came to; `taken` has seconds until devices were begun again, by the kind of event."""

    lost: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)
    taken: dict[str, list[float]] = field(default_factory=dict)

    def event(self, found: Lab, store: Store, campaign: str, kind: str) -> None:
        """Let it happen to a host that has devices, and see what became of them and of what was stored."""
        owners = {job.host for job in jobs_of(store, campaign) if job.state == RUNNING and job.host}
        number = int(random.choice(sorted(owners)).removeprefix("h"))
        watch = Watch(store, f"h{number}", other=kind in ("unplugged", "stopped"))
        watch.start()
        getattr(found, kind)(number)
        time.sleep(random.uniform(4.0, 8.0))
        watch.over.set()
        watch.join()
        self.taken.setdefault(kind, []).extend(watch.seconds.values())
        now = set(store.finished(campaign))
        self.lost += len(self.seen - now)
        self.seen = now

    def lines(self) -> Iterator[str]:
        for kind, seconds in sorted(self.taken.items()):
            range_ = f"{min(seconds):.1f} to {max(seconds):.1f} s" if seconds else "by nobody"
            yield f"lab: {kind}: {len(seconds)} devices begun again after {range_}"


def test_events_at_random_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that was stored is lost, nothing is stored twice or on a wrong device, and the campaign ends."""
    names = rigs(64)
    kinds = ["killed", "restarted", "unplugged", "stopped"] * EVENTS
    random.shuffle(kinds)
    rounds = 8 + 8 * len(kinds)
    with lab(tmp_path, ["64"] * HOSTS, 1.0) as found, open_store(found.server.url) as store:
        campaign = submitted(store, tmp_path, names, rounds)
        until(lambda: len(store.finished(campaign.id)) > 100, 600)
        tally = Tally()
        for kind in kinds:
            tally.event(found, store, campaign.id, kind)
        until(ended(store), 3600)
        counted = faults(store, campaign, rounds)
        begun = len((tmp_path / "journal").read_text().splitlines())
        stored = len(store.finished(campaign.id))
    with capsys.disabled():
        print(f"\nlab: {EVENTS} each of {sorted(set(kinds))}: {stored} of {len(names) * 2 * rounds} runs stored")
        print(f"lab: {tally.lost} lost, {counted}, {begun - stored} begun in vain")
        print("\n".join(tally.lines()))
    assert (tally.lost, counted) == (0, Faults(missing=0, twice=0, wrong_device=0))


def test_a_thousand_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count, rounds = 1000, 4
    parts = [f"{number * count // HOSTS}-{(number + 1) * count // HOSTS}" for number in range(HOSTS)]
    with lab(tmp_path, parts, 20.0) as found, open_store(found.server.url) as store:
        campaign = submitted(store, tmp_path, rigs(count), rounds)
        until(lambda: len(store.finished(campaign.id)) > 100, 600)
        found.killed(0)
        until(ended(store), 3600)
        check_stored(store, campaign, rounds)
        share = busy_share(store, campaign.id, count)
    with capsys.disabled():
        print(f"\nlab: {count} devices, {count * 2 * rounds} runs stored once, {share:.1%} of device time in runs")
