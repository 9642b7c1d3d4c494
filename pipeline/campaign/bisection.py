"""Which step of an ordered list made runs slower: a bisection that says where it cannot know. Pure functions.

Positions are compared with the first, which is good by definition. As `git bisect` does, a position that cannot be
measured is skipped, and the answer is then a range.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class PositionStanding(StrEnum):
    """How a position compares with the first: as fast, slower, not decided by its rounds, or not measurable."""

    GOOD = "good"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"


class BisectionEnd(StrEnum):
    """Why a bisection ended."""

    FOUND = "found"
    RANGE = "range"
    """Between the last good and the first slower position are only ones that could not be decided."""
    NO_DIFFERENCE = "no difference"
    """The last position was not shown to be slower than the first."""
    NOT_MONOTONE = "not monotone"
    """A good position follows a slower one: the slowdown came, went, and perhaps came again."""
    NOT_MEASURABLE = "not measurable"
    """The last position could not be compared with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionStep:
    """What to do: measure `measure` next, or stop for the reason `end`; `good` and `slower` are the bounds so far."""

    good: int
    slower: int
    measure: int | None = None
    end: BisectionEnd | None = None


def next_step(known: Mapping[int, PositionStanding], count: int) -> BisectionStep:
    """The next position to compare with the first, from those that are known of `count` in order.

    The last is compared first: without a difference there is nothing to look for. Then the middle one between the last
    good and the first slower position, or of those the nearest to it that is not known yet.
    """
    last = count - 1
    if last not in known:
        return BisectionStep(good=0, slower=last, measure=last)
    if known[last] is not PositionStanding.SLOWER:
        measurable = known[last] is not PositionStanding.SKIPPED
        end = BisectionEnd.NO_DIFFERENCE if measurable else BisectionEnd.NOT_MEASURABLE
        return BisectionStep(good=0, slower=last, end=end)
    slower = min(place for place, standing in known.items() if standing is PositionStanding.SLOWER)
    goods = [0, *(place for place, standing in known.items() if standing is PositionStanding.GOOD)]
    if max(goods) > slower:
        return BisectionStep(good=max(goods), slower=slower, end=BisectionEnd.NOT_MONOTONE)
    good = max(goods)
    open_places = [place for place in range(good + 1, slower) if place not in known]
    if open_places:
        middle = (good + slower) / 2
        return BisectionStep(good=good, slower=slower, measure=min(open_places, key=lambda at: abs(at - middle)))
    end = BisectionEnd.FOUND if slower == good + 1 else BisectionEnd.RANGE
    return BisectionStep(good=good, slower=slower, end=end)
