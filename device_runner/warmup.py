"""Which inferences of a process were warm-up: a change point in its raw latencies. Pure functions, no I/O."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median, median_low

from device_runner.result import WarmUp

FEWEST = 12
"""With fewer latencies no change can be told from noise: `LEFT_OUT` are left out, as a fixed count would."""

LEFT_OUT = 3

BINS = 200
"""A long series is looked at as medians of so many stretches, then its beginning one by one."""

LIMIT = 7.0
"""What the cumulative sum must exceed. Of independent noise it does so with a probability of about exp(-LIMIT)."""

LEAST_CHANGE = 0.01
"""Inferences that are less than 1 % slower than later ones are no warm-up that matters."""

CLIPPED = 5.0
"""Standard deviations that one value counts for at most: a single interruption is no warm-up."""


def find_warmup(latencies_ns: Sequence[int]) -> WarmUp:
    """How many inferences at the beginning are slower than those after, by Page's cumulative sum; half at most.

    A long series is looked at as medians of stretches first. Being faster at first is no warm-up.
    """
    count = len(latencies_ns)
    if count < FEWEST:
        few = min(LEFT_OUT, count // 2)
        return WarmUp(inferences=few, why=f"{count} inferences are too few to find a change: the first {few} left out")
    size = math.ceil(count / BINS)
    medians = [median(latencies_ns[at : at + size]) for at in range(0, count - size + 1, size)]
    found = change_point(medians) * size or change_point(latencies_ns[:BINS])
    if not found:
        return WarmUp(inferences=0, why="none: the first inferences are as fast as the later ones")
    settled = found < (len(medians) // 2) * size
    ratio = median_low(latencies_ns[:found]) / max(1, median_low(latencies_ns[found:]))
    end = "" if settled else "; it had not settled by the middle, up to which it was looked for"
    why = f"the first {found} of {count} inferences take {ratio:.3g} times as long as the later ones{end}"
    return WarmUp(inferences=found, settled=settled, why=why)


def change_point(values: Sequence[float]) -> int:
    """How many of the first values lie higher than the second half; 0 where none can be told to, half at most.

    The sum adds by how much each lies over the median of the second half, less an allowance, in that half's standard
    deviations. Where it exceeds its limit there is a change, whose place is the most likely one for a shift of that
    size; what is left of the first half is looked at again, since a warm-up may fall in steps or slowly.
    """
    middle = len(values) // 2
    logs = [math.log(max(value, 1.0)) for value in values]
    later = sorted(logs[middle:])
    level, high = later[len(later) // 2], later[int(0.9 * (len(later) - 1))]
    deviation = 1.4826 * median(abs(value - level) for value in later)
    # That above the median, from the 90th percentile, so that a second mode counts as noise.
    scale = max((high - level) / 1.2816, deviation, LEAST_CHANGE / 20)
    over = [(value - level) / scale for value in logs[:middle]]
    allowance = max(0.5, LEAST_CHANGE / scale)
    limit = LIMIT * _inflation([value - level for value in logs[middle:]])
    place = 0
    while (end := place + _highest(over[place:], allowance, limit)) > place:
        shift = median(over[place:end])
        place += _highest(over[place:end], max(allowance, shift / 2), 0.0) or end - place
    return place


def _highest(over: Sequence[float], allowance: float, limit: float) -> int:
    """How many values the cumulative sum has where it is highest; 0 where it stays below its limit."""
    clipped = (min(max(value - allowance, -CLIPPED), CLIPPED) for value in over)
    best = max(enumerate(accumulate(clipped), start=1), key=lambda found: found[1], default=(0, 0.0))
    return best[0] if best[1] > limit else 0


def _inflation(centred: Sequence[float]) -> float:
    """By how much values that follow their neighbours enlarge a sum of them: (1 + r) / (1 - r) for a lag-1 r."""
    square = sum(value * value for value in centred)
    if not square:
        return 1.0
    lag = sum(one * other for one, other in pairwise(centred)) / square
    lag = min(max(lag, 0.0), 0.9)
    return (1 + lag) / (1 - lag)
