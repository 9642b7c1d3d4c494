"""Bounds of ratios and shares of independent rounds, and the exact distributions that they need. Pure functions."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

STEPS = 500
"""Of a continued fraction; it converges within some 5 * sqrt(max(a, b)) of them."""


def t_tail(t: float, freedom: float) -> float:
    """The probability that Student's t with so many degrees of freedom is further from 0 than `t`, on either side."""
    if math.isinf(t):
        return 0.0
    return beta_share(freedom / (freedom + t * t), freedom / 2, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: float) -> float:
    """The value that Student's t does not exceed with probability `share`, 0 < share < 1, to rounding."""
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    outside = 2 * (1 - share)
    high = 1.0
    while t_tail(high, freedom) > outside:
        high *= 2
    low = 0.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_tail(middle, freedom) > outside else (low, middle)
    return high


def beta_share(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by the continued fraction of DLMF 8.17.22."""
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_share(1 - x, b, a)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) / a / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1 / (1 + d2 / (1 + …)) by Lentz's method."""
    value = c = 1.0
    d = 0.0
    for step in range(1, STEPS + 1):
        m = step // 2
        over = m * (b - m) if step % 2 == 0 else -(a + m) * (a + b + m)
        term = over * x / ((a + 2 * m - 1) * (a + 2 * m) if step % 2 == 0 else (a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d)
        c = 1 + term / c
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


@lru_cache(maxsize=1024)
def rank_sums(count: int) -> Floats:
    """At place s: the probability that the signed-rank sum of so many values is at most s, where signs are chance."""
    shares = np.zeros(count * (count + 1) // 2 + 1)
    shares[0] = 1.0
    for rank in range(1, count + 1):
        shares[rank:] += shares[:-rank].copy()
        shares /= 2
    return np.cumsum(shares)


def rank_bound(count: int, outside: float) -> int | None:
    """The largest sum that is reached or undercut with at most probability `outside` / 2; None where not even 0 is."""
    bound = int(np.searchsorted(rank_sums(count), outside / 2 * (1 + 1e-12), side="right")) - 1
    return bound if bound >= 0 else None


@lru_cache(maxsize=1024)
def share_bounds(share: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's exact bounds of a share that was seen in so many draws; a part of a hit counts as such."""
    hits, outside = share * count, (1 - confidence) / 2
    return (
        _where(lambda x: beta_share(x, hits, count - hits + 1), outside),
        _where(lambda x: beta_share(x, hits + 1, count - hits), 1 - outside),
    )


def _where(rising: Callable[[float], float], level: float) -> float:
    """Where a function that rises from 0 to 1 between 0 and 1 reaches a level."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if rising(middle) < level else (low, middle)
    return high


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
    spread = float(values.std(ddof=1))
    return spread if spread > ROUNDING * (1 + abs(float(values.mean()))) else 0.0


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
    interval = ratio_interval(log_ratios, 0.95)
    if interval is None:
        raise ValueError(f"{len(log_ratios)} rounds have no interval")
    count = len(log_ratios)
    return math.log(interval.high / interval.low) / 2 * math.sqrt(count) / t_quantile(0.975, count - 1)


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
