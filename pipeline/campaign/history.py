"""Latencies over time: where the environment changed, what is missing, and when the newest look slower. Pure functions.

History alone is no proof: a phone drifts between days. It raises a suspicion, which paired rounds confirm or not
(measuring S.6).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_runner.result import Struct
from pipeline.campaign.provenance import ChangedFact, changes, environment_changes

WINDOW = 30
"""Campaigns before the newest that say what is usual."""
FEWEST_POINTS = 8
"""Fewer say nothing about how much campaigns scatter."""
IN_A_ROW = 3
"""Campaigns that must all be slower: outliers come alone."""
DEVIATIONS, LEAST_RISE = 3.0, 0.02
"""How far over the median they must be: so many median absolute deviations, and at least this share."""


class HistoryPoint(Struct, frozen=True, kw_only=True):
    """What one campaign measured: the median of the medians of rounds in nanoseconds, and what it was measured with.

    `sd` is the standard deviation of the rounds as a share of that.
    """

    campaign: str
    created_at: str
    median_ns: float
    rounds: int
    sd: float = 0.0
    facts: dict[str, str] = {}


class Restart(Struct, frozen=True, kw_only=True):
    """The point by its place from which on the environment is another: what was measured before is not comparable."""

    place: int
    changes: tuple[ChangedFact, ...]


class Suspicion(Struct, frozen=True, kw_only=True):
    """The newest points all lie over `limit_ns`: `first` was the first campaign to do so, `before` the one before it.

    `ratio` is their median to the usual one. `changes` is what differs between the two campaigns.
    """

    before: str
    first: str
    ratio: float
    limit_ns: float
    changes: tuple[ChangedFact, ...] = ()


class MissingPoint(Struct, frozen=True, kw_only=True):
    """A campaign without a point, and why."""

    campaign: str
    reason: str


class History(Struct, frozen=True, kw_only=True):
    """One artifact with one set of run options on one device over campaigns of one name, the oldest first.

    `note` says why nothing can be suspected, where that is so.
    """

    device: str
    model: str
    run: str
    points: tuple[HistoryPoint, ...]
    missing: tuple[MissingPoint, ...] = ()
    restarts: tuple[Restart, ...] = ()
    usual_ns: float | None = None
    limit_ns: float | None = None
    suspicion: Suspicion | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usual before the newest points, and over which latency a point is slower."""

    median: float
    limit: float


def usual(values: Sequence[float]) -> Usual:
    """The median, and the limit: 3 median absolute deviations over it, at least 2 %."""
    median = statistics.median(values)
    deviation = statistics.median(abs(value - median) for value in values)
    return Usual(median, median + max(DEVIATIONS * deviation, LEAST_RISE * median))


def rise(values: Sequence[float]) -> Usual | None:
    """What was usual where the newest IN_A_ROW values all lie over its limit; None where not, or of too few."""
    before = values[-IN_A_ROW - WINDOW : -IN_A_ROW]
    if len(before) < FEWEST_POINTS:
        return None
    found = usual(before)
    return found if min(values[-IN_A_ROW:]) > found.limit else None


def restarts(points: Sequence[HistoryPoint]) -> tuple[Restart, ...]:
    """Where the environment differs from the point before, in what is known of both."""
    found = (
        Restart(place=place, changes=environment_changes(points[place - 1].facts, points[place].facts))
        for place in range(1, len(points))
    )
    return tuple(one for one in found if one.changes)


def history(
    key: tuple[str, str, str], points: Sequence[HistoryPoint], missing: Mapping[str, str] | None = None
) -> History:
    """The history of device, model and run from its points in order; only those since the last restart count."""
    found = restarts(points)
    current = points[found[-1].place :] if found else points
    values = [point.median_ns for point in current]
    enough = len(values) >= FEWEST_POINTS + IN_A_ROW
    level = usual(values[-IN_A_ROW - WINDOW : -IN_A_ROW]) if enough else None
    since = " since the environment changed" if found else ""
    short = f"{len(values)} of at least {FEWEST_POINTS + IN_A_ROW} campaigns{since}"
    device, model, run = key
    return History(
        device=device,
        model=model,
        run=run,
        points=tuple(points),
        missing=tuple(MissingPoint(campaign=name, reason=reason) for name, reason in (missing or {}).items()),
        restarts=found,
        usual_ns=level.median if level else None,
        limit_ns=level.limit if level else None,
        suspicion=_suspicion(current, rise(values)),
        note="" if enough else f"{short}: nothing can be suspected yet",
    )


def _suspicion(points: Sequence[HistoryPoint], risen: Usual | None) -> Suspicion | None:
    """The suspicion on points whose newest have risen; it begins with the first of all that lie over the limit."""
    if risen is None:
        return None
    first = len(points) - IN_A_ROW
    while first > 1 and points[first - 1].median_ns > risen.limit:
        first -= 1
    newest = [point.median_ns for point in points[-IN_A_ROW:]]
    return Suspicion(
        before=points[first - 1].campaign,
        first=points[first].campaign,
        ratio=statistics.median(newest) / risen.median,
        limit_ns=risen.limit,
        changes=changes(points[first - 1].facts, points[first].facts),
    )
