"""Histories out of a store: what campaigns of one name measured, one after the other."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from device_runner.device import DeviceFacts
from device_runner.result import Status
from pipeline.campaign.history import History, HistoryPoint, history
from pipeline.campaign.provenance import facts_of_place, facts_of_run
from pipeline.campaign.record import CampaignRecord, JobRecord, RunRecord
from pipeline.campaign.statistics import ranks
from pipeline.campaign.store import Store
from pipeline.config import MeasureMode
from pipeline.core.errors import ConfigError
from pipeline.job.folder import DATABASE
from pipeline.job.stored import has_campaigns, own_campaign
from pipeline.report.rows import MeasuredRow, run_group

Lane = tuple[str, str, str]
"""Device, model, and VARIANT/RUN."""


def read_histories(text: str) -> tuple[History, ...]:
    """The histories of the newest campaign's name in an output folder, a database file or at a URL.

    `#NAME` behind it names other campaigns. Raises ConfigError where there are none, and PipelineError for a database
    that is damaged or a later release's.
    """
    place, _, name = text.partition("#") if not Path(text).exists() else (text, "", "")
    folder = Path(place) if has_campaigns(Path(place)) else None
    with own_campaign(folder, None if folder else _url(place)) as (store, own):
        wanted = name or own.name
        found = [one for one in store.campaigns(wanted) if not (one.document and one.document.searching)]
        if not found:
            raise ConfigError(
                f"no campaign is called {wanted!r} here", where=store.where,
                why=f"stored are: {', '.join(dict.fromkeys(store.names().values()))}",
                remedy="run `ort-mobile run` first, or name the campaigns behind a #, as in results.sqlite#NAME",
            )  # fmt: skip
        return _histories(store, found)


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
    for campaign in campaigns:
        found = dict(_measured(store, campaign, campaign.document)) if campaign.document else {}
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


def _measured(store: Store, campaign: CampaignRecord, record: JobRecord) -> Iterator[tuple[Lane, HistoryPoint | str]]:
    """What a campaign measured of each planned run in its steady state, or why it did not."""
    runs: dict[str, list[RunRecord]] = {}
    medians: dict[str, list[int]] = {}
    for run, median_ns in store.run_medians(campaign.id):
        if not run.spec.profile:
            runs.setdefault(run.planned, []).append(run)
            if run.result.status is Status.OK and median_ns is not None:
                medians.setdefault(run.planned, []).append(median_ns)
    devices = {facts.name: facts for facts in store.devices(campaign.id)}
    for planned in record.planned:
        if not planned.same_as and planned.mode is MeasureMode.STEADY:
            lane = planned.device, planned.model, f"{planned.variant}/{planned.run}"
            measured = MeasuredRow(
                device=planned.device, model=planned.model, variant=planned.variant, run=planned.run,
                runs=runs.get(planned.id, ()),
            )  # fmt: skip
            yield lane, _point(campaign, record, measured, medians.get(planned.id, ()), devices.get(planned.device))


def _point(
    campaign: CampaignRecord,
    record: JobRecord,
    measured: MeasuredRow,
    medians_ns: Sequence[int],
    device: DeviceFacts | None,
) -> HistoryPoint | str:
    if not medians_ns:
        failures = [run.result.failure.message for run in measured.runs if run.result.failure]
        return failures[0] if failures else "no round of it was run"
    if not ranks(run_group(measured)):
        return "its times are not a phone's"
    middle = statistics.median(medians_ns)
    first = next(run for run in measured.runs if run.result.status is Status.OK)
    return HistoryPoint(
        campaign=campaign.id,
        created_at=campaign.created_at,
        median_ns=middle,
        rounds=len(medians_ns),
        sd=statistics.stdev(medians_ns) / middle if len(medians_ns) > 1 else 0.0,
        facts={**facts_of_run(first), **facts_of_place(measured.device, device, record.host)},
    )
