"""How far a campaign of a lab is on each device, and how much of the device's time is left, from what was measured.

Nothing is said of a device before its first run of each mode has ended. Runs of a kind take what those of it took on
that device; what passes between two runs counts as the usual pause does, so that a device that was left to another
campaign meanwhile does not look slow.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from statistics import fmean, median
from typing import Any

import msgspec
import sqlalchemy as sa

from device_runner.result import Status
from pipeline import config as configs
from pipeline.campaign import record as campaign_record
from pipeline.campaign import store as campaign_store
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store
from pipeline.campaign.store import tables as store_tables
from pipeline.core import groups as counting


class RunsLeft(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a device that are stored, and how many there are at most; `seconds_left` of its time, None for unknown.

    Rounds that end early, and what waits for other campaigns, are not in it.
    """

    stored: int
    failed: int
    at_most: int
    seconds_left: float | None


def turns_of(record: campaign_record.JobRecord, run: campaign_record.RecordedRun) -> int:
    """How many runs are planned of it at most, before fresh rounds."""
    measure = record.config.measure
    if run.mode is configs.MeasureMode.SUSTAINED:
        return measure.sustained_rounds
    return measure.timed_rounds + (measure.profile and run.mode is configs.MeasureMode.STEADY)


def progress_by_device(store: Store, campaign: CampaignRecord, again: Collection[str] = ()) -> dict[str, RunsLeft]:
    """How far each device of a plan is; `again` are the planned runs of its fresh rounds, where they have begun."""
    record = campaign.job()
    columns = (
        store_tables.runs.c.device,
        store_tables.runs.c.planned,
        store_tables.runs.c.round,
        store_tables.runs.c.status,
        store_tables.runs.c.failure_kind,
        store_tables.runs.c.started_at_ms,
        store_tables.runs.c.ended_at_ms,
    )
    query = (
        sa.select(*columns)
        .where(store_tables.runs.c.campaign_id == campaign.id)
        .order_by(store_tables.runs.c.started_at_ms)
    )
    stored = counting.grouped(
        (run.device, run) for run in store.read(lambda connection: connection.execute(query).all())
    )
    planned = counting.grouped((run.device, run) for run in record.planned if not run.same_as)
    return {
        device: _of_device(record, planned.get(device, []), stored.get(device, []), frozenset(again))
        for device in planned.keys() | stored.keys()
    }


def _of_device(
    record: campaign_record.JobRecord,
    planned: list[campaign_record.RecordedRun],
    stored: Iterable[Any],
    again: frozenset[str],
) -> RunsLeft:
    modes = {run.id: run.mode for run in planned}
    seconds, by_mode = defaultdict(list), defaultdict(list)
    pauses: list[float] = []
    done, given_up, failed, before = Counter[tuple[str, bool]](), set(), 0, None
    for run in stored:
        if run.failure_kind in campaign_store.REPEATED:
            continue
        done[run.planned, run.round >= campaign_record.FRESH_FROM] += 1
        failed += run.status == Status.FAILED
        if run.failure_kind is not None:
            given_up.add(run.planned)
        if run.started_at_ms is None or run.ended_at_ms is None:
            continue
        seconds[run.planned].append((run.ended_at_ms - run.started_at_ms) / 1000)
        by_mode[modes.get(run.planned)].append(seconds[run.planned][-1])
        if before is not None and run.started_at_ms >= before:
            pauses.append((run.started_at_ms - before) / 1000)
        before = run.ended_at_ms
    pause = median(pauses) if pauses else 0.0
    at_most, left, unknown = 0, 0.0, False
    for plan in planned:
        for count, fresh in (
            (turns_of(record, plan), False),
            (campaign_record.FRESH_ROUNDS * (plan.id in again), True),
        ):
            at_most += count
            more = 0 if plan.id in given_up else max(0, count - done[plan.id, fresh])
            known = seconds.get(plan.id) or by_mode.get(plan.mode)
            unknown |= bool(more) and not known
            left += more * (fmean(known) + pause if known else 0.0)
    count = sum(done.values())
    return RunsLeft(stored=count, failed=failed, at_most=max(at_most, count), seconds_left=None if unknown else left)
