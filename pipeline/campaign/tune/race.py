"""The last candidates measured in rounds until the best is known: which leads, which are out and why, what decided it.

Every round measures each arm once, in random order. The arms' values and the device's level are fitted together over
all rounds, so that an arm that met a warm device loses nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipeline.campaign.statistics import Interval, t_quantile
from pipeline.campaign.tune.model import DRIFT_VARIANCE, LARGE, Block, Floats, drift_columns, fit

FIRST_LOOK = 3
"""Rounds before the first arm may be dropped: of two runs both may be outliers."""


class Lap(NamedTuple):
    """One run of an arm: its logarithmic value, and which run of the device it was."""

    arm: int
    value: float
    order: int


class RaceForecast(NamedTuple):
    """The log value that an arm is expected to have before the race, and its standard deviation."""

    arm: int
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceStanding:
    """Where a race is. `dropped` has the reason of each arm that is out; `bounds` compares the others with the leader.

    `complete` is how many of the laps it is known from. `ended` is why the race is over, "" while it goes on;
    `uncertain` where that was for want of time or rounds.
    """

    leader: int
    rounds: int
    complete: int
    dropped: Mapping[int, str]
    bounds: Mapping[int, Interval]
    ended: str = ""
    uncertain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRules:
    """`delta` is the share of races in which a better arm may be lost, `within` the share of the value that matters.

    A race that is not decided ends after `most_rounds`, or with the round in which the lap `most_laps` was run.
    """

    delta: float
    within: float
    most_rounds: int
    most_laps: int | None = None


def run_race(
    arms: Sequence[int],
    laps: Sequence[Lap],
    failed: Mapping[int, int],
    rules: RaceRules,
    expected: Sequence[RaceForecast] = (),
) -> RaceStanding | None:
    """The standing after the last complete round, or at the round that ended it; None before the first look.

    `failed` is how many laps had been run when an arm failed, `expected` what the model says of arms.
    """
    dropped: dict[int, str] = {}
    standing = None
    for number in range(FIRST_LOOK, len(laps) + 1):
        alive = [arm for arm in arms if arm not in dropped]
        complete = _end_of_round(number, alive, laps, failed)
        if complete is None:
            break
        alive = [arm for arm in alive if failed.get(arm, complete + 1) > complete]
        if not alive:
            break
        bounds = compare_arms(alive, laps[:complete], rules.delta, expected)
        dropped |= {
            arm: f"dropped in round {number} of the race: {one.ratio - 1:.1%} above the leader "
            f"({one.low - 1:.1%} to {one.high - 1:.1%})"
            for arm, one in bounds.items()
            if one.low > 1
        }
        standing = RaceStanding(
            leader=min(bounds, key=lambda arm: bounds[arm].ratio), rounds=number, complete=complete,
            dropped=dict(dropped), bounds={arm: one for arm, one in bounds.items() if arm not in dropped},
        )  # fmt: skip
        ended, uncertain = _why_ended(standing, rules)
        if ended:
            return replace(standing, ended=ended, uncertain=uncertain)
    return standing


def _why_ended(standing: RaceStanding, rules: RaceRules) -> tuple[str, bool]:
    """Why the race is over, "" where it is not, and whether its answer is then uncertain."""
    could = max(1 / one.low - 1 for one in standing.bounds.values())
    if could <= rules.within:
        return f"after {standing.rounds} rounds no candidate left can be more than {rules.within:.0%} better", False
    open_end = f"{len(standing.bounds)} candidates left, of which one may be {could:.1%} better"
    if standing.rounds >= rules.most_rounds:
        return f"{standing.rounds} rounds were not enough to decide: {open_end}", True
    if rules.most_laps is not None and standing.complete >= rules.most_laps:
        return f"the budget ended the race after {standing.rounds} rounds: {open_end}", True
    return "", False


def _end_of_round(number: int, alive: Sequence[int], laps: Sequence[Lap], failed: Mapping[int, int]) -> int | None:
    """How many laps had been run when every arm that is left had so many; None where one has not."""
    waiting = set(alive)
    counted: Counter[int] = Counter()
    for complete, lap in enumerate(laps, start=1):
        counted[lap.arm] += 1
        if counted[lap.arm] >= number:
            waiting.discard(lap.arm)
        if all(failed.get(arm, complete + 1) <= complete for arm in waiting):
            return complete
    return len(laps) if all(arm in failed for arm in waiting) else None


@dataclass(frozen=True, slots=True)
class Levels:
    """What arms have over all laps: their rows in a fit of log values, and the degrees of freedom that are left."""

    rows: Mapping[int, int]
    mean: Floats
    covariance: Floats
    freedom: int

    def between(self, arm: int, base: int, error: float) -> Interval:
        """By what factor the arm's value is the base's; outside of the bounds with a probability of `error`."""
        one, other = self.rows[arm], self.rows[base]
        covariance = self.covariance
        difference = float(self.mean[one] - self.mean[other])
        variance = float(covariance[one, one] + covariance[other, other] - 2 * covariance[one, other])
        reach = t_quantile(1 - error / 2, self.freedom) * math.sqrt(max(variance, 0.0))
        return Interval(*map(math.exp, (difference, difference - reach, difference + reach)))


@lru_cache(maxsize=256)
def levels(laps: tuple[Lap, ...], expected: tuple[RaceForecast, ...] = ()) -> Levels:
    """The arms' levels and the device's, fitted together; where nothing is expected of an arm, only its laps count."""
    arms = list(dict.fromkeys(lap.arm for lap in laps))
    rows = {arm: number for number, arm in enumerate(arms)}
    known = {one.arm: one for one in expected}
    before = np.array([known[arm].mean if arm in known else 0.0 for arm in arms])
    scale = np.array([known[arm].deviation if arm in known else math.sqrt(LARGE) for arm in arms])
    at = [rows[lap.arm] for lap in laps]
    values = np.array([lap.value for lap in laps]) - before[at]
    own = Block((np.eye(len(arms)) * scale)[at], 1.0, fixed=True)
    everything = Block(np.ones((len(laps), 1)), LARGE, fixed=True)
    drift = Block(drift_columns([lap.order for lap in laps]), DRIFT_VARIANCE)
    found = fit([own, everything, drift], values - float(np.median(values)))
    size = len(arms)
    covariance = found.covariance[:size, :size] * np.outer(scale, scale)
    return Levels(rows, before + scale * found.mean[:size], covariance, max(len(laps) - size, 2))


def compare_arms(
    alive: Sequence[int], laps: Sequence[Lap], delta: float, expected: Sequence[RaceForecast] = ()
) -> dict[int, Interval]:
    """Each arm against the one with the lowest value, at a confidence that holds for all of them together."""
    known = levels(tuple(laps), tuple(expected))
    leader = min(alive, key=lambda arm: float(known.mean[known.rows[arm]]))
    return {arm: known.between(arm, leader, delta / max(len(alive) - 1, 1)) for arm in alive}


def next_round(
    arms: Sequence[int], standing: RaceStanding | None, laps: Sequence[Lap], failed: AbstractSet[int]
) -> list[int]:
    """Arms that are still to run in the round that is under way, in the order of the arms."""
    out = standing.dropped if standing else {}
    left = [arm for arm in arms if arm not in failed and arm not in out]
    counted = Counter(lap.arm for lap in laps)
    number = min((counted[arm] for arm in left), default=0)
    return [arm for arm in left if counted[arm] == number]
