"""What is usual of a number that was measured again and again, and how far from it a value has to lie to be another."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class UsualLevel(NamedTuple):
    """The usual value, and how far others may lie from it."""

    median: float
    reach: float


def level_of(values: Sequence[float], deviations: float, least: float) -> UsualLevel:
    """The median, and so many median absolute deviations of the values from it, at least a share of it.

    Neither is moved by single outliers, as a mean and a standard deviation are. Raises StatisticsError for no values.
    """
    median = statistics.median(values)
    deviation = statistics.median(abs(value - median) for value in values)
    return UsualLevel(median, max(deviations * deviation, least * median))
