"""Histories of commits: how often rules alarm without a cause, and how soon they find a slowdown of 5 %.

A commit's latency has noise by Student's t with 4 degrees of freedom, 2 % of commits are 8 % off, and the level walks
by 0.05 % a commit. Rounds of a pair have the same noise on each side; what the pair shares is not in its ratio.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.campaign.statistics.groups import ratio_interval
from pipeline.features.pairs.history import rise

Floats = npt.NDArray[np.float64]

HISTORIES, COMMITS, SLOWER_FROM, WITHIN = 1000, 60, 40, 5
"""Histories of each kind, their length, the commit that is slower, and by when that must be found."""
SLOWDOWN, LEAST, ROUNDS, CONFIDENCE = 0.05, 0.01, 20, 0.99
OUTLIERS, OUTLIER, WALK = 0.02, 0.08, 0.0005
SEED = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """A history: true levels, and what one campaign of each commit measured (both as logarithms)."""

    true: Floats
    measured: Floats
    sd: float
    random: np.random.Generator

    def pair(self, base: int, commit: int) -> Floats:
        """The log ratios of so many rounds that measure both."""
        sides = self.true[commit] - self.true[base]
        ratios: Floats = sides + noise(self.random, ROUNDS, self.sd) - noise(self.random, ROUNDS, self.sd)
        return ratios


def noise(random: np.random.Generator, count: int, sd: float) -> Floats:
    """Of standard deviation `sd`, and outliers beside it."""
    plain: Floats = random.standard_t(4, count) * sd / np.sqrt(2)
    plain += np.log1p(OUTLIER) * (random.random(count) < OUTLIERS)
    return plain


def commits(seed: int, sd: float, slowdown: float = 0.0) -> Commits:
    """A history, slower by `slowdown` from SLOWER_FROM on."""
    random = np.random.default_rng([SEED, seed, int(slowdown * 1000), int(sd * 10_000)])
    true = np.cumsum(random.normal(0, WALK, COMMITS))
    true[SLOWER_FROM:] += np.log1p(slowdown)
    return Commits(true=true, measured=true + noise(random, COMMITS, sd), sd=sd, random=random)


def slower(logs: Floats) -> bool:
    """The gate's rule for a pair."""
    found = ratio_interval(logs, CONFIDENCE)
    return found is not None and found.low > 1 + LEAST


Alarms = Callable[[Commits], Iterator[int]]
"""The commits at which a rule alarms."""


def last_commit(one: Commits) -> Iterator[int]:
    """A fixed limit on what two campaigns measured."""
    steps = np.diff(one.measured)
    yield from (place + 1 for place, step in enumerate(steps) if step > np.log1p(SLOWDOWN))


def suspicion(one: Commits) -> Iterator[int]:
    """The history alone."""
    values = np.exp(one.measured).tolist()
    yield from (place for place in range(COMMITS) if rise(values[: place + 1]))


def gate(one: Commits) -> Iterator[int]:
    """`gate --history`: the newest commit in pairs with the last that was not over the limit."""
    values = np.exp(one.measured).tolist()
    for place in range(COMMITS):
        if risen := rise(values[: place + 1]):
            over = itertools.takewhile(lambda at: values[at] > risen[1], range(place, -1, -1))
            base = place - len(list(over))
            if slower(one.pair(max(base, 0), place)):
                yield place


def pairs(one: Commits) -> Iterator[int]:
    """`gate BASE CANDIDATE` for every commit and the one before."""
    yield from (place for place in range(1, COMMITS) if slower(one.pair(place - 1, place)))


def alarmed(rule: Alarms, sd: float, count: int = HISTORIES) -> float:
    """The share of quiet histories in which a rule alarms."""
    return sum(any(True for _ in rule(commits(seed, sd))) for seed in range(count)) / count


def found(rule: Alarms, sd: float, count: int = HISTORIES) -> float:
    """The share of slower histories in which a rule alarms within WITHIN commits of the slowdown."""
    window = range(SLOWER_FROM, SLOWER_FROM + WITHIN)
    return sum(any(at in window for at in rule(commits(seed, sd, SLOWDOWN))) for seed in range(count)) / count
