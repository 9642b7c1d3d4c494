"""Seeded schedules of several faults against a small campaign on two real phones, and what must hold after each."""

import contextlib
import hashlib
import multiprocessing
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.campaign.store import REPEATED
from tests.device import lives
from tests.device.adb_farm import BATTERY, PHONE_PROPERTIES, Farm, Phone
from tests.device.fault_proxy import FaultProxy, Hit
from tests.device.lives import CAMPAIGN, Ground, Member, lanes_of, noted_store, whole_requests

BATTERIES = (40, 75, 93, 28)
"""Levels of the phones: none becomes another's by one bit."""

LONGEST_SECONDS = 600.0
"""A schedule that takes longer does not end."""

PROBE_FAULTS = (
    "kill -SEGV $$\n",
    "kill -KILL $$\n",
    "exec sleep 30\n",
    "echo nonsense; exit 0\n",
    'exec "$PHONE/bin/none"\n',
)

Action = Callable[[], object]


@dataclass(slots=True)
class Event:
    """What happens `delay` seconds after so many runs were said to be stored, and how it is undone later."""

    name: str
    after_runs: int
    delay: float
    act: Action
    back: Action | None = None
    back_after: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a campaign left, in numbers: all but `runs` and `lives` must be 0."""

    runs: int
    lives: int
    lost: int = 0
    doubled: int = 0
    mixed_up: int = 0
    half: int = 0
    endless: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Outcome") -> "Outcome":
        names = ("runs", "lives", "lost", "doubled", "mixed_up", "half", "endless", "faults")
        return Outcome(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def wrong(self) -> int:
        """How much is not as it must be."""
        return self.lost + self.doubled + self.mixed_up + self.half + self.endless

    def __str__(self) -> str:
        return (
            f"{self.runs} runs stored in {self.lives} processes, {self.lost} lost, {self.doubled} double, "
            f"{self.mixed_up} of a wrong device or run, {self.half} half files, {self.endless} without end"
        )


class Lab:
    """Phones behind proxies, for one campaign after the other."""

    def __init__(self, farm: Farm, phones: int, probe: Path, library: Path) -> None:
        self.farm = farm
        self.library = library
        self.probe = farm.folder / "probe"
        self.probe.write_text(lives.PROBE.format(probe=probe))
        self.proxies: list[FaultProxy] = []
        self.phones = [farm.phone(PHONE_PROPERTIES, self._before) for _ in range(phones)]
        for phone, level in zip(self.phones, BATTERIES, strict=False):
            phone.write("dumpsys/battery", BATTERY.replace("level: 84", f"level: {level}"))
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["tests.device.lives"])

    def _before(self, phone: Phone) -> str:
        proxy = FaultProxy(phone.port)
        self.proxies.append(proxy)
        return f"127.0.0.1:{proxy.port}"

    def close(self) -> None:
        """End the proxies; the farm ends the rest."""
        for proxy in self.proxies:
            proxy.close()

    def ground(self, folder: Path, *, lanes: int, rounds: int, values: int, seed: int) -> Ground:
        """A new campaign; its models are not on the phones yet."""
        folder.mkdir(parents=True)
        made = Ground(
            folder=str(folder),
            members=tuple(
                Member(serial=phone.serial, root=phone.root, battery_percent=level)
                for phone, level in zip(self.phones, BATTERIES, strict=False)
            ),
            environment={
                **self.farm.environment,
                "ORT_MOBILE_CACHE": str(self.farm.folder / "cache"),
                "ORT_MOBILE_STATE": str(self.farm.folder / "state"),
            },
            probe=str(self.probe),
            library=str(self.library),
            lanes=lanes,
            rounds=rounds,
            values=values,
            seed=seed,
        )
        lives.save_lane_models(made)
        for phone in self.phones:
            shutil.rmtree(phone.folder / "ran", ignore_errors=True)
            for model in Path(phone.root).glob("store/*.onnx"):
                model.unlink()
        return made

    @contextlib.contextmanager
    def living(self, ground: Ground) -> Iterator["multiprocessing.process.BaseProcess"]:
        """A process that lives the campaign, or a part of it."""
        process = self._processes.Process(target=lives.live, args=(ground,))
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join()


def stored_runs(ground: Ground) -> int:
    """How many runs were said to be stored."""
    return len(lives.journal_of(ground.folder))


def missing(ground: Ground) -> set[tuple[str, int]]:
    """Runs that a resumed campaign would still do."""
    with noted_store(ground) as store:
        finished = store.finished(CAMPAIGN.id)
        given_up = store.failed(CAMPAIGN.id)
    lanes = [lane for lane in lanes_of(ground) if lane.id not in given_up]
    return {(lane.id, number) for lane in lanes for number in range(ground.rounds)} - finished


def judge(ground: Ground, phones: list[Phone], lives_lived: int, faults: Counter[str]) -> Outcome:
    """What is in the store after the campaign, against what was said, what ran where, and what lies on the phones."""
    with noted_store(ground) as store:
        runs, finished = store.runs(CAMPAIGN.id), store.finished(CAMPAIGN.id)
    batteries = {member.name: member.battery_percent for member in ground.members}
    said = [(spec, number) for spec, number, kind in lives.journal_of(ground.folder) if kind not in REPEATED]
    mixed = 0
    for run in runs:
        result = run.result
        others = {level for name, level in batteries.items() if name != result.device}
        measured = result.failure is not None or (
            len(result.latencies_ns) == lives.MIN_RUNS and bool(run.checks) and all(c.passed for c in run.checks)
        )
        own = run.spec.id.startswith(f"{result.device}/") and result.spec_id == run.spec.id
        mixed += not (own and measured and result.before.battery_percent not in others)
    return Outcome(
        runs=len(runs),
        lives=lives_lived,
        lost=len(set(said) - finished) + len(missing(ground)),
        doubled=len(runs) - len({(run.spec.id, run.round) for run in runs}) + len(said) - len(set(said)),
        mixed_up=mixed + sum(_foreign_requests(phone, phones) for phone in phones),
        half=sum(map(_half_files, phones)),
        faults=faults,
    )


def _foreign_requests(phone: Phone, phones: list[Phone]) -> int:
    """Requests in which another phone's files are named."""
    others = [other.root.encode() for other in phones if other is not phone]
    return sum(any(root in request for root in others) for request in whole_requests(phone.folder))


def _half_files(phone: Phone) -> int:
    """Files that have the name of a whole one and are not."""
    files = [path for path in Path(phone.root).glob("store/*") if re.match(r"[0-9a-f]{64}", path.name)]
    return sum(hashlib.sha256(path.read_bytes()).hexdigest() != path.name[:64] for path in files)


# --- schedules --------------------------------------------------------------------------------------------------------


def events_of(lab: Lab, chance: random.Random, kill: Action, runs: int, values: int) -> list[Event]:
    """One to four faults, each at some point of the campaign; its models and outputs have so many values."""

    def line(lab: Lab, chance: random.Random) -> Made:
        return _on_the_line(lab, chance, 16 * values + 20_000)

    makers: tuple[Callable[[Lab, random.Random], Made], ...] = (
        line, line, line, _adbd, _server, _full, _probe, _wiped, lambda *_: ("killed", kill, None),
    )  # fmt: skip
    found = []
    for _ in range(chance.randint(1, 4)):
        name, act, back = chance.choice(makers)(lab, chance)
        after, delay = chance.randrange(runs), chance.uniform(0, 0.15)
        found.append(Event(name, after, delay, act, back, chance.uniform(0.0, 1.5)))
    return found


Made = tuple[str, Action, Action | None]


def _on_the_line(lab: Lab, chance: random.Random, most_bytes: int) -> Made:
    """A fault that the proxy counts itself, when it is reached."""
    proxy, way = chance.choice(lab.proxies), chance.choice(("up", "down"))
    after = int(most_bytes ** chance.uniform(0, 1))
    hit = Hit(chance.choice(("cut", "garble", "stall")), after, chance.randrange(8), chance.uniform(0.1, 3.0))
    return "", lambda: proxy.once(way, hit), None


def _adbd(lab: Lab, chance: random.Random) -> Made:
    phone = chance.choice(lab.phones)
    return "adbd killed", phone.stop, phone.start


def _server(lab: Lab, chance: random.Random) -> Made:
    return "server killed", lab.farm.stop_server, lab.farm.start_server


def _full(lab: Lab, chance: random.Random) -> Made:
    phone = chance.choice(lab.phones)
    return "full", lambda: phone.says_free(10), lambda: (phone.folder / "bin/df").unlink(missing_ok=True)


def _probe(lab: Lab, chance: random.Random) -> Made:
    phone, text = chance.choice(lab.phones), chance.choice(PROBE_FAULTS)
    return "probe", lambda: phone.write("fault", text), None


def _wiped(lab: Lab, chance: random.Random) -> Made:
    phone = chance.choice(lab.phones)
    return "wiped", lambda: shutil.rmtree(phone.root, ignore_errors=True), None


class Timeline:
    """Lets events happen when it is their time."""

    def __init__(self, events: list[Event]) -> None:
        self._events = sorted(events, key=lambda event: event.after_runs)
        self._due: list[tuple[float, Event]] = []
        self._undone: list[tuple[float, Action]] = []
        self.happened: Counter[str] = Counter()

    def at(self, runs: int) -> None:
        """So many runs are stored now."""
        now = time.monotonic()
        while self._events and self._events[0].after_runs <= runs:
            self._due.append((now + self._events[0].delay, self._events.pop(0)))
        for when, event in [one for one in self._due if one[0] <= now]:
            self._due.remove((when, event))
            event.act()
            self.happened.update([event.name] if event.name else [])
            if event.back:
                self._undone.append((time.monotonic() + event.back_after, event.back))
        self.undo(now)

    def undo(self, now: float) -> None:
        """Undo what is to be undone by now."""
        for when, back in [one for one in self._undone if one[0] <= now]:
            self._undone.remove((when, back))
            back()


def follow(lab: Lab, folder: Path, seed: int) -> Outcome:
    """A small campaign from its beginning to its end through the faults of a seed."""
    chance = random.Random(seed)
    values = chance.choice((10, 1_000, 100_000, 600_000))
    if chance.random() < 0.1:  # then the library must be pushed, too
        for phone in lab.phones:
            shutil.rmtree(phone.root, ignore_errors=True)
    ground = lab.ground(folder, lanes=2, rounds=2, values=values, seed=seed)
    current: list[multiprocessing.process.BaseProcess] = []
    total = len(lab.phones) * ground.lanes * ground.rounds
    timeline = Timeline(events_of(lab, chance, lambda: current[-1].kill(), total, values))
    end, lived, endless = time.monotonic() + LONGEST_SECONDS, 0, 0
    while not endless:
        with lab.living(ground) as process:
            current.append(process)
            lived += 1
            while process.is_alive() and time.monotonic() < end:
                timeline.at(stored_runs(ground))
                process.join(0.01)
            done = process.exitcode == 0
        if done and not missing(ground):
            break
        endless = int(time.monotonic() >= end)
    timeline.undo(float("inf"))
    for proxy in lab.proxies:
        proxy.heal()
        timeline.happened += proxy.hits
        proxy.hits.clear()
    for phone in lab.phones:
        (phone.folder / "fault").unlink(missing_ok=True)
    outcome = judge(ground, lab.phones, lived, timeline.happened)
    return outcome + Outcome(runs=0, lives=0, endless=1) if endless else outcome
