"""Searches for the fastest configuration side by side, on simulated devices whose best configuration is known.

Device time is simulated: a process costs a second, its warm-up and its inferences. A search takes a second of a
processor, so that the whole table takes some five minutes of two.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.simulate.tables import NOISES, SEED, Noise, SimulatedDevice, Table, simulated_table
from pipeline.campaign.tune.observed import Observation, SearchSettings, SearchStrategy
from pipeline.campaign.tune.search import propose

MANY, CAMPAIGNS, FEWER = 100, 12, 6
"""Campaigns of the row that is nearest to its bound, of a row, and of one that is there for comparison."""

WITHIN = SearchSettings().within


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


def ours(settings: SearchSettings) -> Search:
    """The search of the package, as its command runs it."""

    def search(device: SimulatedDevice, seed: int) -> tuple[int, int, str]:
        seen: list[Observation] = []
        chosen = replace(settings, seed=seed)
        while True:
            proposal = propose(device.world.space, seen, chosen)
            if proposal.done:
                return proposal.leader if proposal.leader is not None else -1, len(seen), proposal.done
            for candidate in proposal.candidates:
                value, seconds = device.run(candidate)
                seen.append(Observation(candidate=candidate, order=len(seen), value=value, seconds=seconds))

    return search


def grid(rounds: int, count: int | None = None) -> Search:
    """Every candidate so often, or `count` drawn at random, every other round backwards; the lowest mean of logs."""

    def search(device: SimulatedDevice, seed: int) -> tuple[int, int, str]:
        some = np.random.default_rng([SEED, 3, seed]).permutation(len(device.world.space))[:count]
        return _lowest(device, [some[:: 1 if number % 2 == 0 else -1] for number in range(rounds)])

    return search


def _lowest(device: SimulatedDevice, rounds: Sequence[npt.NDArray[np.int64]]) -> tuple[int, int, str]:
    total = np.zeros(len(device.world.space))
    for candidates in rounds:
        for candidate in candidates:
            value, _ = device.run(int(candidate))
            total[candidate] += math.inf if value is None else math.log(value)
    measured = np.unique(np.concatenate(rounds))
    return int(measured[np.argmin(total[measured])]), sum(map(len, rounds)), ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row of the table: a strategy on so many tables of a kind; `most` is how many candidates they have at most."""

    strategy: str = "search"
    variants: int = 24
    noise: str = "usual"
    campaigns: int = CAMPAIGNS
    harder: bool = False
    most: int | None = None


STRATEGIES: dict[str, Search] = {
    "search": ours(SearchSettings()),
    "5 rounds of all": grid(5),
    "grid, once": grid(1),
    "grid, 3 rounds": grid(3),
    "400 at random, 3 rounds": grid(3, 400),
    "Optuna's TPE, then the race": ours(SearchSettings(strategy=SearchStrategy.OPTUNA)),
}

CASES = (
    Case(noise="low"),
    Case(campaigns=40),
    Case(noise="high", campaigns=MANY),
    Case(variants=40, noise="low"),
    Case(variants=40, campaigns=26),
    Case(variants=40, noise="high"),
    Case(harder=True, campaigns=40),
    Case(most=20, campaigns=40),
    Case(strategy="5 rounds of all", most=20),
    Case(strategy="grid, once", campaigns=FEWER),
    Case(strategy="grid, 3 rounds", campaigns=FEWER),
    Case(strategy="400 at random, 3 rounds", campaigns=FEWER),
    Case(strategy="Optuna's TPE, then the race", campaigns=FEWER),
)


def run_one(case: Case, number: int) -> Ended:
    """One campaign of a case."""
    world = simulated_table(case.variants, number, harder=case.harder, most=case.most)
    return campaign(world, NOISES[case.noise], number, STRATEGIES[case.strategy])


def score_interval(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share."""
    middle = (hits + z * z / 2) / (count + z * z)
    reach = z * math.sqrt(hits * (count - hits) / count + z * z / 4) / (count + z * z)
    return max(middle - reach, 0.0), min(middle + reach, 1.0)


def row_of(case: Case, found: Sequence[Ended]) -> str:
    """A line of the Markdown table."""
    regret = np.array([one.regret for one in found])
    share = np.array([one.seconds / one.grid_seconds for one in found])
    hits = int((regret <= WITHIN).sum())
    low, high = score_interval(hits, len(found))
    size = {24: "2,200", 40: "3,700"}[case.variants] if case.most is None else str(case.most)
    cells = [
        case.strategy, f"{size}{', harder' if case.harder else ''}", case.noise, f"{hits} of {len(found)}",
        f"{low:.0%} to {high:.0%}", f"{regret.mean():.1%} / {np.quantile(regret, 0.95):.1%}",
        f"{share.mean():.0%} / {share.max():.0%}", f"{np.mean([one.seconds for one in found]) / 60:.1f}",
        str(sum(one.worse for one in found)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| strategy | configurations | noise | within 2 % of the best | 95 % interval | worse than the best, mean / p95 "
    "| of one pass over the grid, mean / most | device minutes | worse than the default |"
)


def markdown(lines: Sequence[str]) -> str:
    """The table of these lines."""
    return "\n".join([HEAD, f"|{' --- |' * (HEAD.count('|') - 1)}", *lines])


def table_of_cases(cases: Sequence[Case], workers: int = 2) -> str:
    """All campaigns of all cases, in processes that have one thread each."""
    with ProcessPoolExecutor(workers) as pool:
        return markdown([row_of(case, list(pool.map(partial(run_one, case), range(case.campaigns)))) for case in cases])


def table() -> str:
    """The table of all cases."""
    return table_of_cases(CASES)
