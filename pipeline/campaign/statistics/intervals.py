"""How sure a ratio is: intervals and p values from one logarithm of a ratio a round (measuring S.2).

Rounds are independent of one another, inferences of one process are not: a round counts as one value, however many
inferences it timed.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.campaign.statistics.distributions import Floats, rank_bound, rank_sums, t_quantile, t_tail

LEAST_ROUNDS = 4
"""Below, an interval at 99 % is wider than any difference that anybody looks for."""
RANKS_FROM, RANKS_TO = 8, 500
"""Rounds with signed ranks, which outliers do not widen: fewer have no bounds at 99 %, more need no such care."""
MOST_ROUNDS_NEEDED = 10_000
ROUNDING = 1e-13
POWER = 0.95
"""How often a difference that is called detectable is found."""
CAMPAIGNS, DRAWN_TO = 2000, 40
"""Campaigns that are drawn to know what so many rounds find, and up to how many rounds their ranks are: more are
normal enough for the ranks' efficiency."""
RANKS_COST = math.sqrt(math.pi / 3)
"""By how much ranks widen an interval of many normal values."""


class Interval(NamedTuple):
    """A ratio with the bounds that hold the true one with the confidence asked for."""

    ratio: float
    low: float
    high: float


def ratio_interval(log_ratios: Floats, confidence: float = 0.95) -> Interval | None:
    """The interval of a ratio from its logarithm in each round; None below LEAST_ROUNDS.

    Student's t of the mean below 8 rounds; from then on the Hodges-Lehmann estimate with exact bounds of the
    signed-rank test, or t where so few rounds have none at this confidence.
    """
    count = len(log_ratios)
    if count < LEAST_ROUNDS:
        return None
    bound = rank_bound(count, 1 - confidence) if RANKS_FROM <= count <= RANKS_TO else None
    if bound is None:
        middle = float(log_ratios.mean())
        reach = t_quantile((1 + confidence) / 2, count - 1) * _spread(log_ratios) / math.sqrt(count)
        logs = (middle, middle - reach, middle + reach)
    else:
        means = walsh_means(log_ratios)
        logs = (float(np.median(means)), float(means[bound]), float(means[-1 - bound]))
    return Interval(*map(math.exp, logs))


def p_value(log_ratios: Floats) -> float:
    """How likely a difference at least so clear is, were both equally fast; 1 below LEAST_ROUNDS.

    At most `1 - c` exactly where the interval at confidence c excludes 1. Where all rounds agree in sign, which is
    the least that ranks can say, t decides: so small levels can be reached.
    """
    count = len(log_ratios)
    if count < LEAST_ROUNDS:
        return 1.0
    if not RANKS_FROM <= count <= RANKS_TO:
        return _t_p_value(log_ratios)
    means = walsh_means(log_ratios)
    beyond = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
    by_ranks = min(1.0, 2 * float(rank_sums(count)[beyond]))
    return min(by_ranks, _t_p_value(log_ratios)) if beyond == 0 else by_ranks


def _t_p_value(values: Floats) -> float:
    middle, error = float(values.mean()), _spread(values) / math.sqrt(len(values))
    if error == 0:
        return float(abs(middle) < ROUNDING)
    return t_tail(middle / error, len(values) - 1)


def _spread(values: Floats) -> float:
    """The standard deviation; 0 where values differ by rounding only."""
    found = float(values.std(ddof=1))
    return found if found > ROUNDING * (1 + abs(float(values.mean()))) else 0.0


def walsh_means(values: Floats) -> Floats:
    """The means of all pairs of values, each with itself too, sorted."""
    first, second = _pairs(len(values))
    means: Floats = np.sort((values[first] + values[second]) / 2)
    return means


@lru_cache(maxsize=64)
def _pairs(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    first, second = np.triu_indices(count)
    return first, second


def noise(log_ratios: Floats) -> float:
    """The standard deviation of a log ratio that fits the 95 % interval, so that outliers weigh as much as they do
    there. At least LEAST_ROUNDS values.
    """
    found = ratio_interval(log_ratios, 0.95)
    if found is None:
        raise ValueError(f"{len(log_ratios)} rounds have no interval")
    count = len(log_ratios)
    return math.log(found.high / found.low) / 2 * math.sqrt(count) / t_quantile(0.975, count - 1)


def detectable(sd: float, rounds: int, confidence: float, known_from: int | None = None) -> float:
    """The difference, as a share (0.03 is 3 %), that so many rounds show at this confidence in 95 of 100 campaigns.

    `sd` is that of log ratios, about 1.4 times that of a lane's log round medians. `known_from` are the rounds of the
    pilot that it was estimated from: the 95 of 100 are then pilots with their campaigns. Infinite below LEAST_ROUNDS.
    """
    if rounds < LEAST_ROUNDS:
        return math.inf
    return math.expm1(min(700.0, sd * _least_shown(rounds, confidence, known_from)))


def rounds_needed(sd: float, effect: float, confidence: float, known_from: int | None = None) -> int | None:
    """The fewest rounds that show a difference of so large a share in 95 of 100 campaigns; None above 10,000.

    7 rounds may find what 8 do not: ranks need more rounds than t where there are few (measuring S.5).
    """

    def enough(rounds: int) -> bool:
        return detectable(sd, rounds, confidence, known_from) <= effect

    low, high = DRAWN_TO, MOST_ROUNDS_NEEDED
    if not enough(high):
        return None
    if enough(low):
        return next(rounds for rounds in range(LEAST_ROUNDS, low + 1) if enough(rounds))
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@lru_cache(maxsize=1024)
def _least_shown(rounds: int, confidence: float, known_from: int | None) -> float:
    """The log ratio, in its standard deviations, that is shown in 95 of 100 drawn campaigns with normal noise.

    A campaign shows what is larger than the lower bound of its noise is below 0: bounds move with the truth.
    """
    random = np.random.default_rng(rounds)
    if rounds <= DRAWN_TO:
        below = _reaches(random.standard_normal((CAMPAIGNS, rounds)), confidence)
    else:
        spread = np.sqrt(random.chisquare(rounds - 1, CAMPAIGNS) / (rounds - 1))
        reach = t_quantile((1 + confidence) / 2, rounds - 1) * spread + random.standard_normal(CAMPAIGNS)
        below = reach / math.sqrt(rounds) * (RANKS_COST if rounds <= RANKS_TO else 1.0)
    if known_from:
        below = below / np.sqrt(random.chisquare(known_from - 1, CAMPAIGNS) / (known_from - 1))
    return float(np.quantile(below, POWER))


def _reaches(campaigns: Floats, confidence: float) -> Floats:
    """How far below 0 the lower bound of each campaign's log ratios is, by the rule of `p_value`."""
    count = campaigns.shape[1]
    t = t_quantile((1 + confidence) / 2, count - 1) / math.sqrt(count)
    by_t: Floats = t * campaigns.std(axis=1, ddof=1) - campaigns.mean(axis=1)
    if count < RANKS_FROM:
        return by_t
    bound = rank_bound(count, 1 - confidence)
    first, second = _pairs(count)
    means = np.partition((campaigns[:, first] + campaigns[:, second]) / 2, bound or 0, axis=1)
    by_ranks: Floats = -means[:, bound or 0]
    return by_ranks if bound is not None else np.maximum(by_t, by_ranks)
