"""Simulated devices whose best configuration is known, and searches on them as the command runs them.

A table has the true latency of every candidate: variants in families, threads by Amdahl's law on four big and four
little cores, spinning that saves wake-ups, provider flags that suit a variant or do not, and what acts together beside
that. The harder tables add effects of three factors and of single candidates. A process costs a second, a warm-up of
three inferences, and 20 inferences or 0.2 s; its median is off by noise between processes, and the device drifts.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec
import numpy as np
import numpy.typing as npt

from device_runner.options import SPINNING_KEYS
from device_runner.spec import NnapiFlag, RunOptions
from pipeline.campaign.planned import PlannedRun, run_of
from pipeline.campaign.tuned import CandidateValues
from pipeline.config import Goal, TuneConfig
from pipeline.core.variant import Artifact, Level, Variant
from pipeline.features.tune.model_search import CONFIRM_ROUNDS, ModelSearch
from pipeline.features.tune.search import Observation
from pipeline.features.tune.space import Space, ratio_of, space_of
from tests.ort_models import ORT_STYLES

Floats = npt.NDArray[np.float64]

THREADS = (0, 1, 2, 3, 4, 6)
"""0 leaves the number to ONNX Runtime: one for each of the eight cores."""

FLAGS = ((), (NnapiFlag.USE_FP16,), (NnapiFlag.USE_NCHW,), (NnapiFlag.USE_FP16, NnapiFlag.USE_NCHW))
LEVELS = {24: (Level.BASIC, Level.EXTENDED, Level.ALL), 40: tuple(Level)}
PRECISIONS = ("", "fp16", "u8u8", "u8s8pc")
FAILING_PAIRS = 0.05
"""Share of pairs of a variant and flags with which no session is made: known beforehand of half of them."""

SEED = 2200

Key = tuple[int, int, bool, bool, int]
"""Number of the variant, threads, spinning, arena, number of the flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A space with the true seconds of an inference of every candidate, and which of them fail."""

    space: Space
    seconds: Floats
    failing: npt.NDArray[np.bool_]

    @property
    def best(self) -> float:
        """The least of those that run."""
        return float(self.seconds[~self.failing].min())


def simulated_table(variants: int, number: int, *, harder: bool = False, most: int | None = None) -> Table:
    """The table of a number: 24 variants have about 2,200 candidates, 40 about 3,700; `most` draws some of them."""
    random = np.random.default_rng([SEED, variants, number])
    kinds = [
        Variant(level=level, style=style, precision=precision)
        for level, style, precision in product(LEVELS[variants], ORT_STYLES, PRECISIONS)
    ]
    pairs = list(product(range(variants), range(len(FLAGS))))
    broken = random.permutation(len(pairs))[: round(FAILING_PAIRS * len(pairs))]
    known = {pairs[at] for at in broken[::2]}
    axes = product(range(variants), THREADS, (True, False), (True, False), range(len(FLAGS)))
    chosen = [key for key in axes if (key[0], key[4]) not in known]
    if most is not None:
        chosen = [chosen[at] for at in sorted(random.permutation(len(chosen))[:most])]
    space = space_of([_planned(kinds[key[0]], *key[1:]) for key in chosen])
    logs = _logs(random, kinds, chosen, harder=harder)
    failing = np.array([(key[0], key[4]) in {pairs[at] for at in broken[1::2]} for key in chosen])
    failing[space.default] = False
    return Table(space=space, seconds=0.06 * np.exp(logs), failing=failing)


def _planned(variant: Variant, threads: int, spinning: bool, arena: bool, flags: int) -> PlannedRun:
    digest = hashlib.sha256(variant.name.encode()).hexdigest()
    artifact = Artifact(
        model="m", variant=variant, file=f"{variant.name}.ort", size_bytes=1, sha256=digest, semantic_digest=digest,
        operators={}, source_operators={},
    )  # fmt: skip
    config = dict.fromkeys(SPINNING_KEYS, str(int(spinning)))
    options = RunOptions(
        provider="nnapi", flags=FLAGS[flags], intra_op_threads=threads, cpu_arena=arena, session_config=config
    )
    return run_of("simulated", artifact, options)


def _logs(random: np.random.Generator, kinds: Sequence[Variant], chosen: Sequence[Key], *, harder: bool) -> Floats:
    """Logarithms of the true latencies, of which 0 is 60 ms."""
    variants = [kinds[key[0]] for key in chosen]
    effect = functools.partial(_effect, random)
    families = (
        effect(0.15, [one.precision for one in variants]) + effect(0.04, [one.level for one in variants])
        + effect(0.02, [one.style for one in variants]) + effect(0.03, [(one.level, one.precision) for one in variants])
        + effect(0.02, [key[0] for key in chosen])
    )  # fmt: skip
    flags = effect(0.03, [key[4] for key in chosen]) + effect(0.03, [(key[4], key[0]) for key in chosen])
    arena = effect(0.006, [key[3] for key in chosen])
    more = effect(0.01, [(key[0], key[1]) for key in chosen])
    if harder:
        more = more + effect(0.02, [key[:2] + key[4:] for key in chosen]) + effect(0.02, chosen)
    return families + flags + arena + more + _threads(random, [key[:3] for key in chosen])


def _effect(random: np.random.Generator, deviation: float, names: Sequence[Hashable]) -> Floats:
    """A normal effect for each name, the same wherever the name stands."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    drawn: Floats = random.normal(0, deviation, len(numbers))[[numbers[name] for name in names]]
    return drawn


def _threads(random: np.random.Generator, keys: Sequence[tuple[int, int, bool]]) -> Floats:
    """Amdahl's law with a parallel share for each variant; wake-ups cost without spinning, little cores make wait."""
    share = np.clip(0.8 + _effect(random, 0.08, [variant for variant, _, _ in keys]), 0.3, 0.97)
    threads = np.array([number or 8 for _, number, _ in keys])
    spinning = np.array([on for _, _, on in keys])
    little, wake, crowd = random.uniform(0.3, 0.6), random.uniform(0.002, 0.015), random.uniform(0.0, 0.02)
    speed = np.minimum(threads, 4) + little * np.maximum(threads - 4, 0) * 0.5
    busy = np.where(spinning, crowd * np.maximum(threads - 4, 0), wake * (threads - 1))
    amdahl: Floats = np.log(1 - share + share / speed + 0.01 * (threads - 1)) + busy
    return amdahl


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What medians of processes are off by, as shares: `between` scales Student's t with 3 degrees of freedom."""

    between: float
    slow: float = 0.06
    slow_share: float = 0.10
    within: float = 0.02
    drift: float = 0.05
    drift_seconds: float = 90.0
    warming: float = 0.10
    warming_seconds: float = 180.0


NOISES = {"low": Noise(between=0.004), "usual": Noise(between=0.012), "high": Noise(between=0.03)}


class SimulatedDevice:
    """A device that runs candidates of a table and has a clock, a temperature and a drift."""

    def __init__(self, world: Table, noise: Noise, number: int) -> None:
        self.world, self.noise = world, noise
        self.random = np.random.default_rng([SEED, 7, number])
        self.seconds, self.level = 0.0, float(self.random.normal(0, noise.drift))

    def run(self, candidate: int) -> tuple[float | None, float]:
        """The median that a process measures, None where it fails, and the seconds that it took."""
        world, noise, random = self.world, self.noise, self.random
        if world.failing[candidate]:
            self._pass(1.0)
            return None, 1.0
        true = float(world.seconds[candidate])
        inferences = max(20, math.ceil(0.2 / true))
        off = noise.between * random.standard_t(3) + random.normal(0, noise.within * 1.25 / math.sqrt(inferences))
        off += noise.slow * (random.random() < noise.slow_share)
        warm = noise.warming * (1 - math.exp(-self.seconds / noise.warming_seconds))
        now = true * math.exp(self.level + warm)
        took = 1.0 + (3 + inferences) * now
        self._pass(took)
        return now * math.exp(off), took

    def _pass(self, seconds: float) -> None:
        kept = math.exp(-seconds / self.noise.drift_seconds)
        self.level = self.level * kept + self.noise.drift * math.sqrt(1 - kept**2) * float(self.random.normal())
        self.seconds += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A search's end: by what share its choice is worse than the best, device seconds and runs that it took.

    `grid_seconds` is what measuring every candidate once takes; `worse` says that the default would have been better.
    """

    regret: float
    seconds: float
    grid_seconds: float
    runs: int
    worse: bool
    why: str = ""


Search = Callable[[SimulatedDevice, int], tuple[int, int, str]]
"""From a device and a seed to the choice, how many runs it took, and why it ended."""


def ours(tune: TuneConfig) -> Search:
    """The search of the package, as its command runs it."""

    def search(device: SimulatedDevice, seed: int) -> tuple[int, int, str]:
        space = device.world.space
        searched = ModelSearch(
            space=space, tune=msgspec.structs.replace(tune, seed=seed), goals=(Goal.LATENCY,),
            budget_seconds=tune.minutes * 60,
        )  # fmt: skip
        numbers = {id(planned): number for number, planned in enumerate(space.candidates)}
        while planned := searched.next():
            number = numbers[id(planned)]
            value, seconds = device.run(number)
            searched.learn(
                Observation(
                    candidate=number, order=len(searched.seen), seconds=seconds, values=_latency(value),
                    reason="" if value else "no session",
                )
            )  # fmt: skip
        choice, runs = _confirmed(device, searched)
        return choice, len(searched.seen) + runs, searched.proposals[Goal.LATENCY].done

    return search


def _latency(seconds: float | None) -> CandidateValues:
    return CandidateValues(latency_ns=None if seconds is None else seconds * 1e9)


def _confirmed(device: SimulatedDevice, searched: ModelSearch) -> tuple[int, int]:
    """The winner, or the default where fresh rounds do not show it to be better; and how many runs that took."""
    space, winner = searched.space, searched.best()
    if winner is None:
        return -1, 0
    planned = list(dict.fromkeys(one for one in (space.ort_default, space.default, winner) if one is not None))
    rounds: dict[int, dict[int, CandidateValues]] = {candidate: {} for candidate in planned}
    for number in range(CONFIRM_ROUNDS):
        for candidate in planned[:: 1 if number % 2 == 0 else -1]:
            rounds[candidate][number] = _latency(device.run(candidate)[0])
    ratio = ratio_of(rounds[winner], rounds[space.default], Goal.LATENCY)
    better = ratio is None or ratio.shown_below  # None: the default fails
    return winner if better else space.default, len(planned) * CONFIRM_ROUNDS


def campaign(world: Table, noise: Noise, number: int, search: Search) -> Ended:
    """One search on one device."""
    device = SimulatedDevice(world, noise, number)
    choice, runs, why = search(device, number)
    once = SimulatedDevice(world, replace(noise, drift=0.0), number)
    for candidate in range(len(world.space)):
        once.run(candidate)
    found = float(world.seconds[choice])
    return Ended(
        regret=found / world.best - 1, seconds=device.seconds, grid_seconds=once.seconds, runs=runs,
        worse=found > float(world.seconds[world.space.default]) * (1 + 1e-12), why=why,
    )  # fmt: skip
