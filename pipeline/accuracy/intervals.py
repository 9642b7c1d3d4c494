"""Intervals of a drop, what they say of a budget, and how many samples would tell.

For 0/1 metrics the interval is Tango's score interval of a difference of paired proportions (Statistics in Medicine 17,
1998), which holds where few or no samples differ; else a paired percentile bootstrap over samples with a fixed seed.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.accuracy.result import DropVerdict

CONFIDENCE = 0.95
Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: two-sided 95 %."""
RESAMPLES = 2000
"""Of a bootstrap; metrics that take milliseconds to count again have fewer."""
SEED = 0
LEAST_SAMPLES = 10
"""With fewer a bootstrap cannot leave the few values that it draws from."""
MOST_SAMPLES = 100_000_000
"""More are no answer to how many are needed."""


DropInterval = tuple[float, float]
"""Bounds of a drop, low and high; positive is worse than the original."""


def paired_interval(lost: float, gained: float, count: int) -> DropInterval:
    """The interval of (lost - gained) / count, where so many of `count` samples are right with the original only, and
    with the other model only. Rates instead of whole numbers are fine.
    """
    observed = (lost - gained) / count
    low = _where(lambda drop: _score(lost, gained, count, drop) <= Z, -1.0, observed)
    high = _where(lambda drop: _score(lost, gained, count, drop) < -Z, observed, 1.0)
    return low, high


def _score(lost: float, gained: float, count: int, drop: float) -> float:
    """Tango's z for a supposed drop, with the constrained estimate of the share that is gained."""
    b = -lost - gained + (2 * count - lost + gained) * drop
    c = -gained * drop * (1 - drop)
    share = (math.sqrt(max(b * b - 8 * count * c, 0.0)) - b) / (4 * count)
    variance = count * (2 * share + drop * (1 - drop))
    distance = lost - gained - count * drop
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return float(distance / math.sqrt(variance))


def _where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition begins to hold between two bounds; the upper one where it never does."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided p of as uneven a split of the samples that differ, were either model as good."""
    total, least = lost + gained, min(lost, gained)
    tail = sum(math.comb(total, k) for k in range(least + 1))
    return min(1.0, 2.0 * tail / (1 << total))


def bootstrap_interval(
    drop: Callable[[npt.NDArray[np.int64]], float], count: int, span: float = 1.0, resamples: int = RESAMPLES
) -> DropInterval | None:
    """Percentiles of a drop over samples drawn again, each counting as often as it is drawn; None for too few samples.

    Where no sample differs a bootstrap is sure of nothing: the bounds are then those of a share that was never seen,
    times the `span` by which one sample can change the metric. It is 0 for metrics of numbers, which equal outputs keep
    as surely as those that differ a little.
    """
    if count < LEAST_SAMPLES:
        return None
    generator = np.random.Generator(np.random.PCG64(SEED))
    drops = np.array(
        [drop(np.bincount(generator.integers(0, count, count), minlength=count)) for _ in range(resamples)]
    )
    if not np.isfinite(drops).all():
        return None
    low, high = (float(bound) for bound in np.quantile(drops, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    if low == high:
        unseen = span * unseen_share(count)
        return low - unseen, high + unseen
    return low, high


def unseen_share(count: int) -> float:
    """The largest share of samples of which so many may well have none: its bound falls as one by the samples."""
    return float(1 - ((1 - CONFIDENCE) / 2) ** (1 / count))


def verdict_of(interval: DropInterval | None, max_drop: float) -> DropVerdict:
    """Within only where the interval excludes a larger drop, over only where it excludes a smaller one."""
    if interval is None:
        return DropVerdict.CANNOT_TELL
    low, high = interval
    if high <= max_drop:
        return DropVerdict.WITHIN
    return DropVerdict.OVER if low > max_drop else DropVerdict.CANNOT_TELL


def paired_samples_needed(lost: int, gained: int, count: int, max_drop: float) -> int | None:
    """How many samples would tell, were the same shares of them to differ; None where no number does."""

    def tells(samples: int) -> bool:
        factor = samples / count
        interval = paired_interval(lost * factor, gained * factor, samples)
        return verdict_of(interval, max_drop) is not DropVerdict.CANNOT_TELL

    enough = count
    while not tells(enough):
        enough *= 2
        if enough > MOST_SAMPLES:
            return None
    few = enough // 2
    while enough - few > 1:
        middle = (enough + few) // 2
        few, enough = (few, middle) if tells(middle) else (middle, enough)
    return enough


def samples_needed(drop: float, interval: DropInterval | None, count: int, max_drop: float, span: float) -> int | None:
    """The same for a bootstrap: the distance from the drop to a bound shrinks with the root of the samples, and where
    no sample differs with their number (`unseen_share`, times `span`).
    """
    if interval is None:
        return None
    gap = max_drop - drop
    width = interval[1] - drop if gap > 0 else drop - interval[0]
    if gap == 0 or width <= 0:
        return None
    if math.isclose(width, span * unseen_share(count)) and 0 < gap < span:
        needed = math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-gap / span))
    else:
        needed = math.ceil(count * (width / gap) ** 2) + 1
    return needed if needed <= MOST_SAMPLES else None


def finite(number: Any) -> float | None:
    """A number that JSON has; None for infinity and NaN."""
    return float(number) if number is not None and math.isfinite(number) else None
