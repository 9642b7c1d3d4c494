"""Histories out of a store: what campaigns of one name measured, one after the other."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from device_runner.result import Status
from pipeline.campaign.history import History, HistoryPoint, history
from pipeline.campaign.provenance import Facts, facts_of_place, facts_of_run
from pipeline.campaign.record import CampaignRecord, JobRecord
from pipeline.campaign.statistics import Round, RunGroup, ranks
from pipeline.campaign.store import RunMedian, Store, open_store
from pipeline.config import MeasureMode
from pipeline.core.errors import ConfigError
from pipeline.job.stored import DATABASE, has_campaigns, own_campaign

Lane = tuple[str, str, str]
"""Device, model, and VARIANT/RUN."""


def read_histories(text: str) -> tuple[History, ...]:
    """The histories of the newest campaign's name in an output folder, a database file or at a URL.

    `#NAME` behind it names other campaigns. Raises ConfigError where there are none, and PipelineError for a database
    that is damaged or a later release's.
    """
    place, _, name = text.partition("#") if not Path(text).exists() else (text, "", "")
    folder = Path(place) if has_campaigns(Path(place)) else None
    with _opened(folder, place, name) as (store, wanted):
        found = [one for one in store.campaigns(wanted) if not (one.document and one.document.searching)]
        if not found:
            raise ConfigError(
                f"no campaign is called {wanted!r} here", where=store.where,
                why=f"stored are: {', '.join(dict.fromkeys(store.names().values()))}",
                remedy="run `ort-mobile run` first, or name the campaigns behind a #, as in results.sqlite#NAME",
            )  # fmt: skip
        return _histories(store, found)


@contextmanager
def _opened(folder: Path | None, place: str, name: str) -> Iterator[tuple[Store, str]]:
    """The open store and the name of the campaigns: that of the newest unless one is given."""
    if folder is None and name:  # nothing need be asked of a lab's thousands of campaigns
        with open_store(_url(place)) as store:
            yield store, name
    else:
        with own_campaign(folder, None if folder else _url(place)) as (store, own):
            yield store, name or own.name


def _url(place: str) -> str:
    if "://" in place:
        return place
    path = Path(place)
    if not path.is_file():
        raise ConfigError(
            "there is no history here", where=place,
            why=f"there is no {DATABASE} in it" if path.is_dir() else "no file or folder has this name",
            remedy="name an output folder of `ort-mobile run`, its results.sqlite, or a database URL",
        )  # fmt: skip
    return f"sqlite:///{path}"


def _histories(store: Store, campaigns: Sequence[CampaignRecord]) -> tuple[History, ...]:
    points: dict[Lane, list[HistoryPoint]] = {}
    missing: dict[Lane, dict[str, str]] = {}
    seen: list[tuple[str, dict[Lane, HistoryPoint | str]]] = []
    timed = store.run_medians(one.id for one in campaigns if one.document)
    for campaign in campaigns:
        found = dict(_measured(store, campaign, campaign.document, next(timed))) if campaign.document else {}
        seen.append((campaign.id, found))
    unreadable = {one.id: f"stored by another release: {one.unreadable or 'it has no plan'}" for one in campaigns
                  if one.document is None}  # fmt: skip
    for lane in dict.fromkeys(lane for _, found in seen for lane in found):
        for campaign_id, found in seen:
            point = found.get(lane, unreadable.get(campaign_id, "not measured in this campaign"))
            if isinstance(point, HistoryPoint):
                points.setdefault(lane, []).append(point)
            else:
                missing.setdefault(lane, {})[campaign_id] = point
    return tuple(history(lane, points.get(lane, []), missing.get(lane)) for lane in dict.fromkeys([*points, *missing]))


def _measured(
    store: Store, campaign: CampaignRecord, record: JobRecord, timed: Iterable[RunMedian]
) -> Iterator[tuple[Lane, HistoryPoint | str]]:
    """What a campaign measured of each planned run in its steady state, or why it did not."""
    runs: dict[str, list[RunMedian]] = {}
    for run in timed:
        runs.setdefault(run.planned, []).append(run)
    devices = {facts.name: facts for facts in store.devices(campaign.id)}
    for planned in record.planned:
        if not planned.same_as and planned.mode is MeasureMode.STEADY:
            lane = planned.device, planned.model, f"{planned.variant}/{planned.run}"
            place = facts_of_place(planned.device, devices.get(planned.device), record.host)
            yield lane, _point(campaign, lane, runs.get(planned.id, ()), place)


def _point(campaign: CampaignRecord, lane: Lane, runs: Sequence[RunMedian], place: Facts) -> HistoryPoint | str:
    passed = [run for run in runs if run.status is Status.OK]
    medians_ns = [run.median_ns for run in passed if run.median_ns is not None]
    if not medians_ns:
        failures = (run.record().result.failure for run in runs)
        return next((failure.message for failure in failures if failure), "no round of it was run")
    rounds = tuple(Round(number=run.round, latencies_ns=(), marks=run.marks) for run in passed)
    if not ranks(RunGroup(key=lane[-1], rounds=rounds)):
        return "its times are not a phone's"
    middle = statistics.median(medians_ns)
    return HistoryPoint(
        campaign=campaign.id,
        created_at=campaign.created_at,
        median_ns=middle,
        rounds=len(medians_ns),
        sd=statistics.stdev(medians_ns) / middle if len(medians_ns) > 1 else 0.0,
        facts={**facts_of_run(passed[0].record()), **place},
    )
