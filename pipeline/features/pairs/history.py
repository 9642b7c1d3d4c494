"""Latencies over time: where the environment changed, what is missing, and when the newest look slower.

History alone is no proof: a phone drifts between days. It raises a suspicion, which paired rounds confirm or not
(measuring S.6).
"""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from device_runner import result as run_result
from device_runner.result import Status
from pipeline import config as configs
from pipeline.campaign import changed_facts
from pipeline.campaign.statistics import groups as run_groups
from pipeline.campaign.statistics import level as statistics_level
from pipeline.core import groups as counting
from pipeline.core.errors import ConfigError

if TYPE_CHECKING:  # a suspicion is raised without a database, too
    from pipeline.campaign import record as campaign_record
    from pipeline.campaign.record import CampaignRecord, RunRecord
    from pipeline.campaign.store import Store

WINDOW = 30
"""Campaigns before the newest that say what is usual."""
FEWEST_POINTS = 8
"""Fewer say nothing about how much campaigns scatter."""
IN_A_ROW = 3
"""Campaigns that must all be slower: outliers come alone."""
DEVIATIONS, LEAST_RISE = 3.0, 0.02
"""How far over the median they must be: so many median absolute deviations, and at least this share."""


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What one campaign measured: the median of the medians of rounds in nanoseconds, and what it was measured with.

    `sd` is the standard deviation of the rounds as a share of that.
    """

    campaign: str
    created_at: str
    median_ns: float
    rounds: int
    sd: float = 0.0
    facts: dict[str, str] = {}


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """The point by its place from which on the environment is another: what was measured before is not comparable."""

    place: int
    changes: tuple[changed_facts.ChangedFact, ...]


class Suspicion(msgspec.Struct, frozen=True, kw_only=True):
    """The newest points all lie over `limit_ns`: `first` was the first campaign to do so, `before` the one before it.

    `ratio` is their median to the usual one. `changes` is what differs between the two campaigns.
    """

    before: str
    first: str
    ratio: float
    limit_ns: float
    changes: tuple[changed_facts.ChangedFact, ...] = ()


class MissingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign without a point, and why."""

    campaign: str
    reason: str


class History(msgspec.Struct, frozen=True, kw_only=True):
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


class Usual(NamedTuple):
    """The median that is usual before the newest points, and the latency over which a point is slower."""

    median_ns: float
    limit_ns: float


def usual(values: Sequence[float]) -> Usual:
    """The median, and the limit: 3 median absolute deviations over it, at least 2 %."""
    level = statistics_level.level_of(values, DEVIATIONS, LEAST_RISE)
    return Usual(level.median, level.median + level.reach)


def rise(values: Sequence[float]) -> Usual | None:
    """What was usual where the newest IN_A_ROW values all lie over its limit; None where not, or of too few."""
    before = values[-IN_A_ROW - WINDOW : -IN_A_ROW]
    if len(before) < FEWEST_POINTS:
        return None
    level = usual(before)
    return level if min(values[-IN_A_ROW:]) > level.limit_ns else None


def restarts(points: Sequence[HistoryPoint]) -> tuple[Restart, ...]:
    """Where the environment differs from the point before, in what is known of both."""
    interruptions = []
    for position, (before, point) in enumerate(itertools.pairwise(points), 1):
        changes = changed_facts.changes(before.facts, point.facts)
        environment = [change for change in changes if change.what in changed_facts.ENVIRONMENT]
        if of_both := tuple(
            change for change in environment if changed_facts.NOT_KNOWN not in (change.before, change.after)
        ):
            interruptions.append(Restart(place=position, changes=of_both))
    return tuple(interruptions)


class HistoryKey(NamedTuple):
    """What a history is of: a run of a model on a device."""

    device: str
    model: str
    run: str


def history(key: HistoryKey, points: Sequence[HistoryPoint], missing: Mapping[str, str] | None = None) -> History:
    """The history of a run from its points in order; only those since the last restart count."""
    interruptions = restarts(points)
    current = points[interruptions[-1].place :] if interruptions else points
    values = [point.median_ns for point in current]
    enough = len(values) >= FEWEST_POINTS + IN_A_ROW
    usual_ns, limit_ns = usual(values[-IN_A_ROW - WINDOW : -IN_A_ROW]) if enough else (None, None)
    since = " since the environment changed" if interruptions else ""
    short = f"{len(values)} of at least {FEWEST_POINTS + IN_A_ROW} campaigns{since}"
    suspicion = None
    if risen := rise(values):
        # The suspicion begins with the first of all that lie over the limit
        first = len(current) - IN_A_ROW
        while first > 1 and values[first - 1] > risen.limit_ns:
            first -= 1
        suspicion = Suspicion(
            before=current[first - 1].campaign,
            first=current[first].campaign,
            ratio=statistics.median(values[-IN_A_ROW:]) / risen.median_ns,
            limit_ns=risen.limit_ns,
            changes=changed_facts.changes(current[first - 1].facts, current[first].facts),
        )
    return History(
        device=key.device,
        model=key.model,
        run=key.run,
        points=tuple(points),
        missing=tuple(MissingPoint(campaign=name, reason=reason) for name, reason in (missing or {}).items()),
        restarts=interruptions,
        usual_ns=usual_ns,
        limit_ns=limit_ns,
        suspicion=suspicion,
        note="" if enough else f"{short}: nothing can be suspected yet",
    )


def read_histories(text: str) -> tuple[History, ...]:
    """The histories of the newest campaign's name in an output folder, a database file or at a URL.

    `#NAME` behind it names other campaigns. Raises ConfigError where there are none, and PipelineError for a database
    that is damaged or a later release's.
    """
    location, _, name = text.partition("#") if not Path(text).exists() else (text, "", "")
    with _opened(location, name) as (store, title):
        campaigns = [
            campaign for campaign in store.campaigns(title) if not (campaign.document and campaign.document.searching)
        ]
        if not campaigns:
            raise ConfigError(
                f"no campaign is called {title!r} here",
                where=store.where,
                why=f"stored are: {', '.join(dict.fromkeys(store.names().values()))}",
                remedy="run `ort-mobile run` first, or name the campaigns behind a #, as in results.sqlite#NAME",
            )
        return _histories(store, campaigns)


@contextmanager
def _opened(location: str, name: str) -> Iterator["tuple[Store, str]"]:
    """The open store and the name of the campaigns: that of the newest unless one is given."""
    from pipeline.campaign import store as campaign_store
    from pipeline.core import files as storage
    from pipeline.job import stored as job_stored

    path, url = Path(location), location
    folder = path if job_stored.has_campaigns(path) else None
    if folder is None and "://" not in location:
        if not path.is_file():
            raise ConfigError(
                "there is no history here",
                where=location,
                why=f"there is no {storage.DATABASE} in it" if path.is_dir() else "no file or folder has this name",
                remedy="name an output folder of `ort-mobile run`, its results.sqlite, or a database URL",
            )
        url = f"sqlite:///{path}"
    if folder is None and name:  # nothing need be asked of a lab's thousands of campaigns
        with campaign_store.open_store(url) as store:
            yield store, name
    else:
        with job_stored.own_campaign(folder, None if folder else url) as (store, newest):
            yield store, name or newest.name


def _histories(store: "Store", campaigns: "Sequence[CampaignRecord]") -> tuple[History, ...]:
    measured: dict[str, dict[HistoryKey, HistoryPoint | str]] = {}
    absent: dict[str, str] = {}
    timed = store.run_medians(campaign.id for campaign in campaigns if campaign.document)
    for campaign in campaigns:
        absent[campaign.id] = "not measured in this campaign"
        if campaign.document is None:
            absent[campaign.id] = f"stored by another release: {campaign.unreadable or 'it has no plan'}"
        document = campaign.document
        measured[campaign.id] = dict(_measured(store, campaign, document, next(timed))) if document else {}
    histories = []
    for key in dict.fromkeys(key for points in measured.values() for key in points):
        points = {campaign: points.get(key, absent[campaign]) for campaign, points in measured.items()}
        missing = {campaign: point for campaign, point in points.items() if isinstance(point, str)}
        histories.append(history(key, [p for p in points.values() if isinstance(p, HistoryPoint)], missing))
    return tuple(sorted(histories, key=lambda history: not history.points))


def _measured(
    store: "Store",
    campaign: "CampaignRecord",
    record: "campaign_record.JobRecord",
    timed: "Iterable[tuple[RunRecord, int | None]]",
) -> Iterator[tuple[HistoryKey, HistoryPoint | str]]:
    """What a campaign measured of each planned run in its steady state, or why it did not."""
    by_run = counting.grouped((run.planned, (run, median_ns)) for run, median_ns in timed)
    devices = {facts.name: facts for facts in store.devices(campaign.id)}
    for planned in record.planned:
        if planned.same_as or planned.mode is not configs.MeasureMode.STEADY:
            continue
        key, runs = HistoryKey(planned.device, planned.model, planned.way), by_run.get(planned.id, [])
        passed = [(run, median_ns) for run, median_ns in runs if run.result.status is Status.OK]
        medians_ns = [median_ns for _, median_ns in passed if median_ns is not None]
        marks = tuple(mark for run, _ in passed for mark in run.result.marks)
        if not medians_ns:
            failures = (run.result.failure for run, _ in runs)
            yield key, next((failure.what for failure in failures if failure), "no round of it was run")
        elif not run_groups.comparable(run_groups.RunGroup(key="", latencies_ns={}, marks=marks)):
            in_doubt = run_result.Mark.QUARANTINED in marks
            yield key, "a lab took the device out" if in_doubt else "its times are not a phone's"
        else:
            middle = statistics.median(medians_ns)
            device_facts = changed_facts.facts_of_place(planned.device, devices.get(planned.device), record.host)
            point = HistoryPoint(
                campaign=campaign.id,
                created_at=campaign.created_at,
                median_ns=middle,
                rounds=len(medians_ns),
                sd=statistics.stdev(medians_ns) / middle if len(medians_ns) > 1 else 0.0,
                facts={**changed_facts.facts_of_run(passed[0][0]), **device_facts},
            )
            yield key, point
