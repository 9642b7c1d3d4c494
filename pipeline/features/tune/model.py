"""What measured values say of candidates, apart from the device's drift: a linear model, and a race. numpy only.

A value is (effects of the candidate) + (level of the device at that time) + noise. Effects are those of each factor, of
each variant with threads and with flags, and of threads with spinning. Each kind of effect is shrunk by a ridge whose
strength is estimated from the data (MacKay's evidence approximation), so that kinds that are not there cost nothing.
The level is a random walk, noise has heavy tails (Student's t by reweighting): both are usual on phones.

A race measures each of the last candidates, its arms, once a round in random order until the best is known. The arms'
values and the device's level are fitted together over all rounds, so that an arm that met a warm device loses nothing.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pipeline.campaign.record import Dropped
from pipeline.campaign.statistics import Interval, t_quantile
from pipeline.features.tune.space import Factors, Space

Floats = npt.NDArray[np.float64]

DRIFT_STEP = 5
"""Runs between knots of the device's level: some 8 s, within which it changes less than one process differs."""

MOST_KNOTS = 200
"""Knots at most: a grid of thousands of runs needs none so close."""

DRIFT_VARIANCE = 1e-4
"""Where the variance of what the level rises in a step starts: 1 %."""

TAILS = 4.0
"""Degrees of freedom of the noise: weights fall to a half at two standard deviations."""

ITERATIONS = 8
SETTLED = 0.03
"""A fit is done when the estimate of the noise changes by less: by then no effect moves by a tenth of it."""
LARGE, SMALL = 4.0, 1e-9
"""Bounds of variances of log values: a factor of e², and nothing."""


Fit = tuple[Floats, Floats, float, Floats]
"""Means and covariance of all effects, block after block, the variance of a value's noise, the weight of each value."""


def fit(blocks: Sequence[Floats], starts: Sequence[float], values: Floats, *, fixed: int) -> Fit:
    """Effects that explain the values; those of the first columns are found at the same indices in the result.

    A block has columns whose effects share a variance, of which the estimate begins at its start; the first `fixed`
    blocks keep theirs.
    """
    columns = np.hstack(blocks)
    sizes = [block.shape[1] for block in blocks]
    edges = np.cumsum([0, *sizes])
    variances = list(starts)
    weights: Floats = np.ones(len(values))
    noise = max(float(np.var(values)) / 4, SMALL)
    mean: Floats = np.zeros(columns.shape[1])
    covariance: Floats = np.eye(columns.shape[1])
    for _ in range(ITERATIONS):
        weighted = columns * (weights / noise)[:, None]
        precision = weighted.T @ columns
        precision[np.diag_indices_from(precision)] += 1 / np.repeat(variances, sizes)
        covariance = np.asarray(np.linalg.inv(precision), np.float64)
        mean = covariance @ (weighted.T @ values)
        determined = 0.0
        for number in range(len(blocks)):
            part = slice(edges[number], edges[number + 1])
            degrees = sizes[number] - float(np.trace(covariance[part, part])) / variances[number]
            determined += degrees
            if number >= fixed:
                estimate = float(mean[part] @ mean[part]) / max(degrees, 1e-3)
                variances[number] = min(max(estimate, SMALL), LARGE)
        rest = values - columns @ mean
        before, noise = noise, max(float(weights @ rest**2) / max(len(values) - determined, 1.0), SMALL)
        weights = (TAILS + 1) / (TAILS + rest**2 / noise)
        if abs(noise / before - 1) < SETTLED:
            break
    return mean, covariance, noise, weights


def drift_columns(positions: Sequence[int]) -> Floats:
    """One column for each stretch of runs: what the level rises on it counts for all that come after."""
    at = np.asarray(positions, np.float64)
    at = at - at.min()
    step = max(DRIFT_STEP, at.max() / MOST_KNOTS)
    knots = np.arange(0, at.max() + step, step)
    columns: Floats = np.clip((at[:, None] - knots[None, :]) / step, 0.0, 1.0)
    return columns


VARIANT = ("level", "style", "precision", "providers")


def _kinds(names: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """Kinds of effects, each as the sets of factors whose values make a column together.

    Factors alone; the variant; the variant with threads, and with the provider's flags and options; threads with
    spinning; each part of the variant with threads and with flags.
    """
    flags = ("provider", "flags", *(name for name in names if name.startswith("options.")))
    return [
        [(name,) for name in names],
        [VARIANT],
        [(*VARIANT, "threads")],
        [(*VARIANT, *flags)],
        [("threads", "spinning")],
        [(part, other) for part in VARIANT for other in ("threads", "flags")],
    ]


def _one_hot(rows: Sequence[Factors], sets: Sequence[tuple[str, ...]]) -> Floats:
    """A column for each combination of values that a set of factors has; sets with only one have none."""
    columns = [np.zeros((len(rows), 0))]
    for names in sets:
        values = [tuple(row.get(name, "") for name in names) for row in rows]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        if len(numbers) > 1:
            columns.append(np.eye(len(numbers))[[numbers[value] for value in values]])
    return np.hstack(columns)


@lru_cache(maxsize=4)
def candidate_columns(space: Space) -> list[Floats]:
    """The columns of all candidates, one matrix for each kind of effect; the first is the level of all."""
    rows = space.factors
    kinds = [_one_hot(rows, sets) for sets in _kinds(list(dict.fromkeys(name for row in rows for name in row)))]
    return [np.ones((len(rows), 1)), *(kind for kind in kinds if kind.shape[1])]


START = (LARGE, 0.05, 0.05, *[0.005] * 4)
"""Where the variances of the kinds of effects start: the level of all, factors, variants, and what acts together."""


def forecast(space: Space, candidates: Sequence[int], values: Floats, orders: Sequence[int]) -> tuple[Floats, Floats]:
    """What all candidates are expected to have, from the log values of some; the same level counts for all of them.

    The expected log value of each and its standard deviation, both without noise. What the effects do not explain of
    a candidate is partly its own: as much as candidates differ more from the model than runs of one candidate differ
    from each other.
    """
    columns = candidate_columns(space)
    rows = np.asarray(candidates)
    middle = float(np.median(values))
    blocks = [*(kind[rows] for kind in columns), drift_columns(orders)]
    fitted = fit(blocks, [*START[: len(columns)], DRIFT_VARIANCE], values - middle, fixed=1)
    effect, covariance, _, _ = fitted
    everything = np.hstack(columns)
    size = everything.shape[1]
    mean = everything @ effect[:size]
    variance = np.einsum("ij,ij->i", everything @ covariance[:size, :size], everything)
    explained = np.hstack(blocks) @ effect
    effects, left = _own_effects(len(space), rows, values - middle - explained, fitted)
    return mean + effects + middle, np.sqrt(np.maximum(variance + left, 0.0))


def _own_effects(size: int, rows: npt.NDArray[np.int64], rest: Floats, fitted: Fit) -> tuple[Floats, Floats]:
    """What each candidate has beside its effects, shrunk, and the variance that it may still have there."""
    _, _, noise, weights = fitted
    weight = np.bincount(rows, weights, size)
    summed = np.bincount(rows, weights * rest, size)
    average = summed / np.maximum(weight, SMALL)
    repeated = np.bincount(rows, minlength=size)[rows] > 1
    within = weights[repeated] @ (rest - average[rows])[repeated] ** 2
    freedom = int(repeated.sum()) - len(np.unique(rows[repeated]))
    process = float(within) / freedom if freedom > 5 else noise / 2
    between = max(noise - process, 0.0)
    share = between / (between + process / np.maximum(weight, SMALL)) if between else np.zeros(size)
    return share * average, between * (1 - share)


FIRST_LOOK = 3
"""Rounds before the first arm may be dropped: of two runs both may be outliers."""

LOOK_STEP = 1.1
"""How many times the rounds of a look the next one has at least: each is a fit of all laps, of thousands in an hour."""


Lap = tuple[int, float, int]
"""One run: of which arm, its logarithmic value, and which run of the device it was."""

ArmForecast = tuple[int, float, float]
"""An arm with the log value that it is expected to have before the race, and the standard deviation of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceStanding:
    """Where a race was at its last look, after so many rounds.

    `dropped` has the reason of each arm that is out; `bounds` compares the others with the leader. `ended` is why the
    race is decided, "" while it goes on.
    """

    leader: int
    rounds: int
    dropped: Mapping[int, Dropped]
    bounds: Mapping[int, Interval]
    ended: str = ""

    @property
    def could(self) -> float:
        """By what share of its value an arm that is left may be better than the leader."""
        return max(1 / bound.low - 1 for bound in self.bounds.values())

    @property
    def open_end(self) -> str:
        """What a race leaves open that is ended before it is decided."""
        return (
            f"after {self.rounds} rounds of the last candidates {len(self.bounds)} are left, of which one may be "
            f"{self.could:.1%} better"
        )


def run_race(
    arms: Sequence[int],
    laps: Sequence[Lap],
    failed: Mapping[int, int],
    expected: Sequence[ArmForecast] = (),
    *,
    delta: float,
    within: float,
) -> RaceStanding | None:
    """The standing at the last look, or at the one that ended the race; None before the first.

    `failed` is how many laps had been run when an arm failed, `expected` what the model says of arms. `delta` is the
    share of races in which a better arm may be lost, `within` the share of the value that matters.
    """
    dropped: dict[int, Dropped] = {}
    standing = None
    for number in _looks(len(laps)):
        alive = [arm for arm in arms if arm not in dropped]
        complete = _end_of_round(number, alive, laps, failed)
        if complete is None:
            break
        alive = [arm for arm in alive if failed.get(arm, complete + 1) > complete]
        if not alive:
            break
        bounds = compare_arms(alive, laps[:complete], delta, expected)
        dropped |= {
            arm: Dropped(
                reason="dropped in the race, above the leader",
                detail=f"in round {number}",
                above=(interval.low - 1, interval.high - 1),
            )
            for arm, interval in bounds.items()
            if interval.low > 1
        }
        standing = RaceStanding(
            leader=min(bounds, key=lambda arm: bounds[arm].ratio), rounds=number, dropped=dict(dropped),
            bounds={arm: interval for arm, interval in bounds.items() if arm not in dropped},
        )  # fmt: skip
        if standing.could <= within:
            return replace(
                standing, ended=f"after {number} rounds no candidate left can be more than {within:.0%} better"
            )
    return standing


def _looks(most: int) -> Iterator[int]:
    """The numbers of rounds after which a race may be decided."""
    number = FIRST_LOOK
    while number <= most:
        yield number
        number = max(number + 1, math.ceil(number * LOOK_STEP))


def _end_of_round(number: int, alive: Sequence[int], laps: Sequence[Lap], failed: Mapping[int, int]) -> int | None:
    """How many laps had been run when every arm that is left had so many; None where one has not."""
    waiting = set(alive)
    counted: Counter[int] = Counter()
    for complete, (ran, _, _) in enumerate(laps, start=1):
        counted[ran] += 1
        if counted[ran] >= number:
            waiting.discard(ran)
        if all(failed.get(arm, complete + 1) <= complete for arm in waiting):
            return complete
    return len(laps) if all(arm in failed for arm in waiting) else None


def arm_ratio(laps: Sequence[Lap], arm: int, base: int, error: float, expected: Sequence[ArmForecast] = ()) -> Interval:
    """By what factor the arm's value is the base's; outside of the bounds with a probability of `error`."""
    rows, mean, covariance, freedom = levels(tuple(laps), tuple(expected))
    row, other = rows[arm], rows[base]
    difference = float(mean[row] - mean[other])
    variance = float(covariance[row, row] + covariance[other, other] - 2 * covariance[row, other])
    reach = t_quantile(1 - error / 2, freedom) * math.sqrt(max(variance, 0.0))
    return Interval(*map(math.exp, (difference, difference - reach, difference + reach)))


@lru_cache(maxsize=256)
def levels(
    laps: tuple[Lap, ...], expected: tuple[ArmForecast, ...] = ()
) -> tuple[Mapping[int, int], Floats, Floats, int]:
    """The arms' levels and the device's, fitted together; where nothing is expected of an arm, only its laps count.

    The row of each arm, the log values of the rows, their covariance, and the degrees of freedom that are left.
    """
    arms = list(dict.fromkeys(arm for arm, _, _ in laps))
    rows = {arm: number for number, arm in enumerate(arms)}
    forecasts = {arm: (mean, deviation) for arm, mean, deviation in expected}
    before = np.array([forecasts[arm][0] if arm in forecasts else 0.0 for arm in arms])
    scale = np.array([forecasts[arm][1] if arm in forecasts else math.sqrt(LARGE) for arm in arms])
    at = [rows[arm] for arm, _, _ in laps]
    values = np.array([value for _, value, _ in laps]) - before[at]
    of_arms, of_all = (np.eye(len(arms)) * scale)[at], np.ones((len(laps), 1))
    drift = drift_columns([order for _, _, order in laps])
    mean, covariance, _, _ = fit(
        [of_arms, of_all, drift], [1.0, LARGE, DRIFT_VARIANCE], values - float(np.median(values)), fixed=2
    )
    size = len(arms)
    scaled = covariance[:size, :size] * np.outer(scale, scale)
    return rows, before + scale * mean[:size], scaled, max(len(laps) - size, 2)


def compare_arms(
    alive: Sequence[int], laps: Sequence[Lap], delta: float, expected: Sequence[ArmForecast] = ()
) -> dict[int, Interval]:
    """Each arm against the one with the lowest value, at a confidence that holds for all of them together."""
    rows, mean, _, _ = levels(tuple(laps), tuple(expected))
    leader = min(alive, key=lambda arm: float(mean[rows[arm]]))
    return {arm: arm_ratio(laps, arm, leader, delta / max(len(alive) - 1, 1), expected) for arm in alive}


def next_round(
    arms: Sequence[int], standing: RaceStanding | None, laps: Sequence[Lap], failed: AbstractSet[int]
) -> list[int]:
    """Arms that are still to run in the round that is under way, in the order of the arms."""
    out = standing.dropped if standing else {}
    left = [arm for arm in arms if arm not in failed and arm not in out]
    counted = Counter(arm for arm, _, _ in laps)
    number = min((counted[arm] for arm in left), default=0)
    return [arm for arm in left if counted[arm] == number]
