"""Exact distributions of the two tests: Student's t, and the signed-rank sum of so many values."""

import math
from collections.abc import Callable
from functools import lru_cache

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
    found = int(np.searchsorted(rank_sums(count), outside / 2 * (1 + 1e-12), side="right")) - 1
    return found if found >= 0 else None


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
