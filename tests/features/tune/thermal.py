"""Simulated phones that heat up, and searches on them for what is fastest after minutes of load.

A phone has a chip (seconds) and a case (minutes) that warm by the power of what runs, and a governor that takes clocks
down between two temperatures. Candidates have a latency at full clocks and a power there, which clocks lower by their
cube: more threads are faster and heat more, accelerators are one or the other. Processes differ by noise, the room's
temperature wanders, and a run begins when the case is as cool as at the first, or when nobody waits any longer.
"""

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import Conditions, LatencyBin, RunResult, Status, SustainedRun
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.planned import PlannedRun, run_of
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics.sustained import START_ROOM_CELSIUS
from pipeline.campaign.tuned import CandidateValues, TunedModel
from pipeline.config import Config, Goal, MeasureConfig, MeasureMode, ModelConfig, TuneConfig
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.features.tune import lasting
from pipeline.features.tune.model_search import CONFIRM_ROUNDS, ModelSearch, found_by
from pipeline.features.tune.search import Observation
from pipeline.features.tune.space import Space, space_of

LASTING_SECONDS, STEP_SECONDS, BINS = 300.0, 2.0, 150
WAIT_SECONDS = 600.0
FACTS = DeviceFacts(name="phone", platform="android", core_max_mhz=(2000,) * 8)
THREADS = (1, 2, 3, 4, 6, 8)
PROVIDERS = ("xnnpack", "nnapi")


def phone_space() -> Space:
    """Two variants on the CPU with threads, and on two providers."""
    planned = []
    for level in (Level.BASIC, Level.ALL):
        digest = hashlib.sha256(level.value.encode()).hexdigest()
        artifact = Artifact(
            model="m", variant=Variant(level=level), file=f"{level}.ort", size_bytes=1, sha256=digest,
            semantic_digest=digest, operators={}, source_operators={},
        )  # fmt: skip
        options = [RunOptions(intra_op_threads=count) for count in THREADS]
        options += [RunOptions(provider=name, intra_op_threads=2) for name in PROVIDERS]
        planned += [run_of("phone", artifact, given) for given in options]
    return space_of(planned)


class HotPhone:
    """One phone by its number. `chip` and `case` are degrees above the room, `room` above what it was at first;
    `spent` are the seconds of runs, without those of waiting.
    """

    def __init__(self, number: int) -> None:
        self.space = phone_space()
        self.chip = self.case = self.room = self.spent = 0.0
        self.first_case: float | None = None
        random = self.random = np.random.default_rng([55, number])
        serial, little = random.uniform(0.05, 0.4), random.uniform(0.2, 0.6)
        base, watts = math.exp(random.uniform(math.log(0.004), math.log(0.08))), random.uniform(0.8, 1.8)
        by_provider = {
            name: (base * math.exp(random.normal(-0.9, 0.4)), watts * math.exp(random.normal(0.9, 0.6)))
            for name in PROVIDERS
        }
        self.latency: list[float] = []
        self.power: list[float] = []
        for planned in self.space.candidates:
            threads, provider = planned.options.intra_op_threads, planned.options.provider
            big, small = min(threads, 4), max(0, threads - 4)
            own = base * (serial + (1 - serial) / (big + little * small)), watts * (0.4 + 0.6 * big + 0.2 * small)
            seconds, needed = by_provider.get(provider, own)
            self.latency.append(seconds * math.exp(random.normal(0, 0.04)))
            self.power.append(needed * math.exp(random.normal(0, 0.05)))
        self.between = math.exp(random.uniform(math.log(0.004), math.log(0.03)))
        self.chip_resistance, self.case_resistance = random.uniform(3, 7), random.uniform(3, 7)
        self.chip_seconds, self.case_seconds = random.uniform(8, 30), random.uniform(150, 500)
        self.warm, self.hot = random.uniform(8, 18), random.uniform(22, 40)
        self.least_clock = random.uniform(0.35, 0.7)
        self.tells = random.random() < 0.7

    def clock(self) -> float:
        """The share of full clocks that the governor gives at the chip's temperature."""
        over = (self.chip + self.room - self.warm) / (self.hot - self.warm)
        return 1 - (1 - self.least_clock) * min(max(over, 0.0), 1.0)

    def warm_up(self, watts: float, seconds: float) -> None:
        """Time with so much power at full clocks."""
        left = seconds
        while left > 0:
            step = min(STEP_SECONDS, left)
            heat = watts * self.clock() ** 3
            case = heat * self.case_resistance
            self.case += (case - self.case) * (1 - math.exp(-step / self.case_seconds))
            chip = self.case + heat * self.chip_resistance
            self.chip += (chip - self.chip) * (1 - math.exp(-step / self.chip_seconds))
            left -= step

    def short_run(self, candidate: int) -> tuple[float, float]:
        """The median of a process of the search, and what it took."""
        now = self.latency[candidate] / self.clock() * math.exp(self.between * self.random.standard_t(3))
        took = 1.0 + max(23 * now, 0.2)
        self.warm_up(self.power[candidate], took)
        self.warm_up(0.0, 0.5)
        self.spent += took
        return now, took

    def wait(self) -> None:
        """Until the case is as cool as it was when runs of minutes began, where the phone tells; else no moment."""
        self.room += self.random.normal(0, 0.3)
        if self.first_case is None:
            self.first_case = self.case + self.room
        waited = 0.0
        while self.tells and waited < WAIT_SECONDS and self.case + self.room > self.first_case + START_ROOM_CELSIUS:
            self.warm_up(0.0, 10.0)
            waited += 10.0

    def minutes(self, candidate: int, seconds: float = LASTING_SECONDS, noise: bool = True) -> SustainedRun:
        """A run of minutes, with its stretches."""
        off = math.exp(self.between * self.random.standard_t(3)) if noise else 1.0
        length, bins = seconds / BINS, []
        for number in range(BINS):
            jitter = math.exp(self.random.normal(0, 0.01)) if noise else 1.0
            median = int(1e9 * self.latency[candidate] / self.clock() * off * jitter)
            start, count = int(1e9 * length * number), max(1, int(1e9 * length / median))
            bins.append(
                LatencyBin(
                    start_ns=start, inferences=count, total_ns=int(1e9 * length), min_ns=median, median_ns=median,
                    max_ns=median,
                )
            )  # fmt: skip
            self.warm_up(self.power[candidate], length)
        return SustainedRun(bins=tuple(bins))

    def at_the_end(self, candidate: int) -> float:
        """What an inference of a candidate truly takes after minutes from a cool start, in nanoseconds."""
        state = self.chip, self.case, self.room
        self.chip = self.case = self.room = 0.0
        times = [part.median_ns for part in self.minutes(candidate, noise=False).bins]
        self.chip, self.case, self.room = state
        return float(np.median(times[-BINS // 5 :]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingEnd:
    """What a search came to: by what share its choice is slower at the end than the best of those that ran so long and
    of all, whether it says that it cannot tell, what of its time runs took, and whether its leader was not the answer.
    """

    regret: float
    of_all: float
    is_told: bool
    time_share: float
    overtaken: bool


def search_on(number: int, minutes: float) -> LastingEnd:
    """A whole search on one phone, as the command makes it."""
    phone = HotPhone(number)
    tune = TuneConfig(goals=Goal.SUSTAINED, minutes=minutes, seed=number)
    config = Config(
        name="phone", models=(ModelConfig(path="m.onnx"),), tune=tune,
        measure=MeasureConfig(sustained_seconds=LASTING_SECONDS),
    )  # fmt: skip
    plan = lasting.plan_of(config, 1)
    search = ModelSearch(
        space=phone.space, tune=tune, goals=(Goal.SUSTAINED,), lasting=plan.candidates, facts=FACTS,
        budget_seconds=minutes * 60 - plan.seconds,
    )  # fmt: skip
    numbers = {id(planned): at for at, planned in enumerate(phone.space.candidates)}
    while planned := search.next():
        candidate = numbers[id(planned)]
        value, seconds = phone.short_run(candidate)
        values = CandidateValues(latency_ns=value * 1e9)
        search.learn(Observation(candidate=candidate, order=len(search.seen), seconds=seconds, values=values))
    found = found_by(search, "phone", "m")
    by_id = {planned.id: at for at, planned in enumerate(phone.space.candidates)}
    last = [by_id[name] for name in found.front]
    for turn in range(CONFIRM_ROUNDS):
        for candidate in last[:: 1 if turn % 2 == 0 else -1]:
            phone.short_run(candidate)
    answer = _answered(phone, found, last, plan.rounds)
    ends = {candidate: phone.at_the_end(candidate) for candidate in range(len(phone.space))}
    chosen = by_id[answer.winner]
    return LastingEnd(
        regret=ends[chosen] / min(ends[candidate] for candidate in last) - 1,
        of_all=ends[chosen] / min(ends.values()) - 1,
        is_told="cannot tell" not in answer.reason,
        time_share=phone.spent / (minutes * 60),
        overtaken=answer.winner != found.winner,
    )


def _answered(phone: HotPhone, found: TunedModel, last: list[int], rounds: int) -> TunedModel:
    """The runs of minutes in alternating rounds, stored as records are, and what follows from them."""
    planned = [phone.space.candidates[candidate] for candidate in last]
    of_minutes = [replace(run, mode=MeasureMode.SUSTAINED) for run in planned]
    recorded = [run.recorded(baseline=False, same_as="") for run in (*planned, *of_minutes)]
    records = []
    for turn in range(rounds):
        order = list(zip(last, of_minutes, strict=True))
        for candidate, run in order[:: 1 if turn % 2 == 0 else -1]:
            records.append(_record(phone, candidate, run, turn))
    confirmed: dict[str, dict[int, CandidateValues]] = {run.id: {} for run in planned}
    whole = lasting.with_late_rounds(confirmed, recorded, records)
    return lasting.fastest_at_the_end(found, whole, LASTING_SECONDS)


def _record(phone: HotPhone, candidate: int, run: PlannedRun, turn: int) -> RunRecord:
    phone.wait()
    celsius = 25 + phone.case + phone.room if phone.tells else None
    result = RunResult(
        spec_id=f"{run.id}#{turn}", device="phone", status=Status.OK, sustained=phone.minutes(candidate),
        before=Conditions(battery_celsius=celsius), latencies_ns=(1,),
    )  # fmt: skip
    phone.spent += LASTING_SECONDS * 1.01 + 2
    return RunRecord(
        campaign="c", planned=run.id, round=turn, model="m", variant=run.variant,
        spec=RunSpec(id=result.spec_id, model="m.ort"), result=result,
    )  # fmt: skip
