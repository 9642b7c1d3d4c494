"""A race: each of the last candidates of a search, its arms, runs once a round in random order until the best is known.

The arms' values and the device's level are fitted together over all rounds, so that an arm that met a warm device loses
nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.statistics import groups as run_groups
from pipeline.features.tune.effects import DRIFT_VARIANCE, LARGE, Floats, drift_columns, fit

FIRST_LOOK = 3
"""Rounds before the first arm may be dropped: of two runs both may be outliers."""

LOOK_STEP = 1.1
"""How many times the rounds of a look the next one has at least: each is a fit of all laps, of thousands in an hour."""


class Lap(NamedTuple):
    """One run: of which arm, its logarithmic value, and which run of the device it was."""

    arm: int
    value: float
    order: int


class ArmForecast(NamedTuple):
    """An arm with the log value that it is expected to have before the race, and the standard deviation of that."""

    arm: int
    value: float
    deviation: float


class SearchStage(StrEnum):
    """What a run is measured for."""

    RANDOM = "random part"
    MODEL = "best predicted"
    RACE = "race"
    GRID = "grid"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to measure next, once each and in this order, and what is known so far.

    `leader` is the best so far, always measured; while candidates are measured once each, that is a guess. `compared`
    has its value relative to those of the defaults, as far as a race knows that. `dropped` has the reason of every
    candidate that is out. `done` is why the search ended, "" while it goes on; `uncertain` where `conclude` ended it,
    before it was sure of its answer.

    Of a race: where it was at its last look, after so many `rounds`; `bounds` compares the arms that are left with the
    leader.
    """

    candidates: tuple[int, ...] = ()
    stage: SearchStage
    dropped: Mapping[int, campaign_tuned.Dropped] = field(default_factory=dict)
    leader: int | None = None
    compared: Mapping[int, run_groups.Interval] = field(default_factory=dict)
    done: str = ""
    uncertain: bool = False
    rounds: int = 0
    bounds: Mapping[int, run_groups.Interval] = field(default_factory=dict)

    @property
    def could(self) -> float:
        """By what share of its value an arm that is left may be better than the leader."""
        return max(1 / bound.low - 1 for bound in self.bounds.values())


def run_race(
    arms: Sequence[int],
    laps: Sequence[Lap],
    failed: Mapping[int, int],
    expected: Sequence[ArmForecast] = (),
    *,
    delta: float,
    within: float,
) -> Proposal | None:
    """The standing at the last look, or at the one that ended the race; None before the first.

    `failed` is how many laps had been run when an arm failed, `expected` what the model says of arms. `delta` is the
    share of races in which a better arm may be lost, `within` the share of the value that matters.
    """
    dropped: dict[int, campaign_tuned.Dropped] = {}
    standing, number = None, FIRST_LOOK
    while number <= len(laps):
        alive = [arm for arm in arms if arm not in dropped]
        complete = _end_of_round(number, alive, laps, failed)
        if complete is None:
            break
        alive = [arm for arm in alive if failed.get(arm, complete + 1) > complete]
        if not alive:
            break
        bounds = compare_arms(alive, laps[:complete], delta, expected)
        dropped |= {
            arm: campaign_tuned.Dropped(
                reason="worse than the best so far, in rounds beside it",
                detail=f"in round {number}",
                above=(interval.low - 1, interval.high - 1),
            )
            for arm, interval in bounds.items()
            if interval.low > 1
        }
        standing = Proposal(
            stage=SearchStage.RACE,
            leader=min(bounds, key=lambda arm: bounds[arm].ratio),
            dropped=dict(dropped),
            rounds=number,
            bounds={arm: interval for arm, interval in bounds.items() if arm not in dropped},
        )
        if standing.could <= within:
            return replace(
                standing, done=f"after {number} rounds no candidate left can be more than {within:.0%} better"
            )
        number = max(number + 1, math.ceil(number * LOOK_STEP))
    return standing


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


def arm_ratio(
    laps: Sequence[Lap], arm: int, base: int, error: float, expected: Sequence[ArmForecast] = ()
) -> run_groups.Interval:
    """By what factor the arm's value is the base's; outside of the bounds with a probability of `error`."""
    fitted = levels(tuple(laps), tuple(expected))
    row, other, covariance = fitted.rows[arm], fitted.rows[base], fitted.covariance
    difference = float(fitted.values[row] - fitted.values[other])
    variance = float(covariance[row, row] + covariance[other, other] - 2 * covariance[row, other])
    reach = run_groups.t_quantile(1 - error / 2, fitted.freedom) * math.sqrt(max(variance, 0.0))
    return run_groups.Interval(*map(math.exp, (difference, difference - reach, difference + reach)))


class ArmLevels(NamedTuple):
    """The row of each arm, the log values of the rows, their covariance, and the degrees of freedom that are left."""

    rows: Mapping[int, int]
    values: Floats
    covariance: Floats
    freedom: int


@lru_cache(maxsize=256)
def levels(laps: tuple[Lap, ...], expected: tuple[ArmForecast, ...] = ()) -> ArmLevels:
    """The arms' levels and the device's, fitted together; where nothing is expected of an arm, only its laps count."""
    arms = list(dict.fromkeys(lap.arm for lap in laps))
    rows = {arm: number for number, arm in enumerate(arms)}
    forecasts = {forecast.arm: forecast for forecast in expected}
    before = np.array([forecasts[arm].value if arm in forecasts else 0.0 for arm in arms])
    scale = np.array([forecasts[arm].deviation if arm in forecasts else math.sqrt(LARGE) for arm in arms])
    at = [rows[lap.arm] for lap in laps]
    values = np.array([lap.value for lap in laps]) - before[at]
    of_arms, of_all = (np.eye(len(arms)) * scale)[at], np.ones((len(laps), 1))
    drift = drift_columns([lap.order for lap in laps])
    fitted = fit([of_arms, of_all, drift], [1.0, LARGE, DRIFT_VARIANCE], values - float(np.median(values)), fixed=2)
    size = len(arms)
    scaled = fitted.covariance[:size, :size] * np.outer(scale, scale)
    return ArmLevels(rows, before + scale * fitted.means[:size], scaled, max(len(laps) - size, 2))


def compare_arms(
    alive: Sequence[int], laps: Sequence[Lap], delta: float, expected: Sequence[ArmForecast] = ()
) -> dict[int, run_groups.Interval]:
    """Each arm against the one with the lowest value, at a confidence that holds for all of them together."""
    fitted = levels(tuple(laps), tuple(expected))
    leader = min(alive, key=lambda arm: float(fitted.values[fitted.rows[arm]]))
    return {arm: arm_ratio(laps, arm, leader, delta / max(len(alive) - 1, 1), expected) for arm in alive}


def next_round(
    arms: Sequence[int], standing: Proposal | None, laps: Sequence[Lap], failed: AbstractSet[int]
) -> list[int]:
    """Arms that are still to run in the round that is under way, in the order of the arms."""
    out = standing.dropped if standing else {}
    left = [arm for arm in arms if arm not in failed and arm not in out]
    counted = Counter(lap.arm for lap in laps)
    number = min((counted[arm] for arm in left), default=0)
    return [arm for arm in left if counted[arm] == number]
