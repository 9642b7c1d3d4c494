"""A lab of four hosts in network namespaces, and what happens to it: events of two hosts overlap."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import sqlalchemy as sa

from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.store import Store
from pipeline.features.lab.queue import (
    DONE,
    ENDED,
    OPEN,
    RUNNING,
    jobs_of,
)
from pipeline.features.lab.tables import jobs
from tests.features.lab.farm import all_in, until
from tests.postgres import PostgresServer, own_server

EVENTS = int(os.environ.get("LAB_EVENTS", "2"))
"""How often each kind of event happens."""

CABLE_SECONDS = 25.0
STREAMS = 2
"""Of events, at the same time."""

HOSTS = 4


def ip(*words: str, check: bool = True) -> str:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True).stdout


def network() -> str:
    """The first three numbers of this process's own network, on which this computer is .1."""
    return f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 256}"


@contextmanager
def namespaces(tag: str) -> Iterator[list[str]]:
    """Namespaces behind a bridge of this computer; their names are this test's own."""
    bridge, names = f"lb{tag}", [f"lab{tag}n{number}" for number in range(HOSTS)]
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"{network()}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{bridge}v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"{bridge}v{number}", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{network()}.{number + 2}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
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
    names: Sequence[str]
    restarting: threading.Lock = field(default_factory=threading.Lock)

    def pid(self, number: int) -> int:
        return int((self.folder / f"h{number}").read_text())

    def killed(self, number: int) -> None:
        """The agent of a host dies; it is started again."""
        os.kill(self.pid(number), signal.SIGKILL)

    def restarted(self, _: int) -> None:
        with self.restarting:
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
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A database, and namespaces in which nothing runs yet."""
    tag = f"{os.getpid() % 10000}"
    with namespaces(tag) as names, own_server(address=f"{network()}.1") as server:
        yield Lab(server, tag, tmp_path, names)


@contextmanager
def agents(found: Lab, devices: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """An agent in each namespace; `devices` has for each what agent_process.py is told of them."""
    processes = []
    try:
        for number, name in enumerate(found.names):
            own = {f"ORT_MOBILE_{folder}": f"{found.folder}/{folder}{number}" for folder in ("CACHE", "STATE")}
            words = [found.server.url, f"h{number}", devices[number], f"{found.folder}/h{number}"]
            command = [*inside(name), sys.executable, "-m", "tests.features.lab.agent_process", *words]
            with (found.folder / f"log{number}").open("w") as log:
                processes.append(subprocess.Popen(command, env={**os.environ, **environment, **own}, stderr=log))
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(600)


def inside(name: str) -> list[str]:
    """Before a command: it runs in that namespace."""
    return ["ip", "netns", "exec", name]


def busy_share(runs: Sequence[RunRecord]) -> float:
    """The share of the time of all their devices, from the first run's begin to the last one's end, that runs took."""
    devices = len({run.result.device for run in runs})
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


def stored_in(store: Store) -> set[tuple[str, str, int]]:
    """Campaign, planned run and round of everything that is stored."""
    names = {job.campaign_id for job in jobs_of(store)}
    return {(name, run, number) for name in names for run, number in store.finished(name)}


@dataclass(slots=True)
class Tally:
    """What events came to; `taken` has seconds until devices were begun again, by the kind of event."""

    happened: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    seen: set[tuple[str, str, int]] = field(default_factory=set)
    taken: dict[str, list[float]] = field(default_factory=dict)
    upset: set[str] = field(default_factory=set)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def events(self, found: Lab, store: Store, begin: Callable[[int], CampaignRecord]) -> list[CampaignRecord]:
        """Let `EVENTS` of each kind happen, in any order and `STREAMS` at once; gives the campaigns, which have ended.

        `begin` submits the campaign of a number: the next one when a device has nothing left to do.
        """
        kinds = ["killed", "restarted", "unplugged", "stopped"] * EVENTS
        random.shuffle(kinds)
        campaigns = [begin(0)]
        until(lambda: len(store.finished(campaigns[0].id)) > 100, 600)
        count = len(jobs_of(store))
        with ThreadPoolExecutor(STREAMS) as pool:
            futures = [pool.submit(self._event, found, store, kind) for kind in kinds]
            try:
                while not all(future.done() for future in futures):
                    if sum(job.state in OPEN for job in jobs_of(store)) < count:
                        campaigns.append(begin(len(campaigns)))
                    time.sleep(0.5)
                for future in futures:
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)
        until(all_in(store, *ENDED), 1800)
        assert not [job for job in jobs_of(store) if job.state != DONE]
        return campaigns

    def _event(self, found: Lab, store: Store, kind: str) -> None:
        """Let it happen to a host that has devices, and see what became of them and of what was stored."""
        with self.turn:
            owners = {job.host for job in jobs_of(store) if job.state == RUNNING and job.host}
            others = {f"h{number}" for number in range(HOSTS)} - self.upset
            host = random.choice(sorted(owners & others or others))
            self.upset.add(host)
        watch = Watch(store, host, other=kind in ("unplugged", "stopped"))
        watch.start()
        getattr(found, kind)(int(host.removeprefix("h")))
        time.sleep(random.uniform(4.0, 8.0))
        watch.over.set()
        watch.join()
        with self.turn:
            self.upset.remove(host)
            self.happened[kind] += 1
            self.taken.setdefault(kind, []).extend(watch.seconds.values())
            now = stored_in(store)
            self.lost += len(self.seen - now)
            self.seen = now
            print(
                f"lab: {dict(self.happened)}, {len(now)} runs stored, {self.lost} lost", file=sys.__stderr__, flush=True
            )

    def lines(self) -> Iterator[str]:
        for kind, seconds in sorted(self.taken.items()):
            range_ = (
                f"{min(seconds):.1f} to {max(seconds):.1f} s, median {median(seconds):.1f}" if seconds else "no time"
            )
            yield f"lab: {kind}: {len(seconds)} devices begun again after {range_}"
