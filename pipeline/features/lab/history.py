"""What was run on one device, campaign by campaign, how it went, in which state the device was, and how fast it was.

How fast is relative: only runs of one file with one set of session options are compared with each other, in campaigns
of one name. A device that drifts shows as a level that rises, whatever was measured on it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean, median
from typing import Any

import msgspec
import sqlalchemy as sa

from device_runner import result as run_result
from device_runner import untrusted_files
from device_runner.device import DeviceFacts
from device_runner.result import RunResult
from pipeline.campaign import record as campaign_record
from pipeline.campaign import store as campaign_store
from pipeline.campaign.store import Store
from pipeline.campaign.store import tables as store_tables
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core.errors import ConfigError

SLOWER = 1.05
"""A level above this, in its newest campaign, is said to be slower than usual: the usual margin of comparisons."""


class DeviceCampaign(msgspec.Struct, frozen=True, kw_only=True):
    """What one campaign ran on a device. Times are milliseconds since 1970, None where no run has any.

    `level` is how slow its runs were relative to the median of all campaigns that ran the same: 1.1 is 10 % slower.
    None where no other campaign did. `before` and `after` are the device's states at its first run and its last.
    """

    campaign: str
    name: str
    hosts: tuple[str, ...]
    runs: int
    outcomes: dict[str, int]
    """Runs by `ok` or kind of failure."""
    first_ms: int | None
    last_ms: int | None
    busy_seconds: float
    level: float | None
    compared: int
    """Runs that the level rests on."""
    before: run_result.Conditions
    after: run_result.Conditions
    os_build: str


class DeviceHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The campaigns of a device, the oldest first."""

    device: str
    campaigns: tuple[DeviceCampaign, ...]


@dataclass(frozen=True, slots=True)
class _Campaign:
    """A campaign that has the device, with its runs there, in the order in which they began."""

    id: str
    name: str
    facts: DeviceFacts | None
    runs: list[Any]

    def medians(self) -> dict[tuple[str, ...], float]:
        """The median of the rounds of everything that went well, by what it was: campaign's name, run, file."""
        values = defaultdict(list)
        for run in self.runs:
            if run.status == "ok" and run.median_ns and run.round < campaign_record.FRESH_FROM:
                values[self.name, run.planned, run.sha256 or ""].append(run.median_ns)
        return {key: median(value) for key, value in values.items()}


def device_history(database: str, device: str, most: int) -> DeviceHistory:
    """The newest campaigns of a device, `most` at most; raises ConfigError for a device that no campaign has."""
    with campaign_store.open_store(database) as store:
        recorded = list(_campaigns(store, device, most))
        if not recorded:
            query = sa.select(store_tables.devices.c.name).distinct().order_by(store_tables.devices.c.name).limit(1000)
            names = store.read(lambda connection: list(connection.scalars(query)))
            raise ConfigError(
                f"no campaign here has a device {device!r}",
                where=store.where,
                why=f"those of campaigns are: {counting.few(names) or 'none'}",
                remedy="write the name as `ort-mobile lab status --json -` has it, or as reports do",
            )
        usual = defaultdict(list)
        for campaign in recorded:
            for key, value in campaign.medians().items():
                usual[key].append(value)
        shared = {key: median(values) for key, values in usual.items() if len(values) > 1}
        return DeviceHistory(device=device, campaigns=tuple(_row(store, campaign, shared) for campaign in recorded))


def _campaigns(store: Store, device: str, most: int) -> Iterator[_Campaign]:
    query = sa.select(store_tables.campaigns.c.id, store_tables.campaigns.c.name, store_tables.devices.c.document).join(
        store_tables.devices, store_tables.devices.c.campaign_id == store_tables.campaigns.c.id
    )
    query = (
        query.where(store_tables.devices.c.name == device)
        .order_by(store_tables.campaigns.c.sequence.desc())
        .limit(most)
    )
    stored = store.read(lambda connection: connection.execute(query).all())
    for campaign in reversed(stored):
        columns = (
            store_tables.runs.c.id,
            store_tables.runs.c.planned,
            store_tables.runs.c.round,
            store_tables.runs.c.status,
            store_tables.runs.c.failure_kind,
            store_tables.runs.c.host,
            store_tables.runs.c.median_ns,
            store_tables.runs.c.started_at_ms,
            store_tables.runs.c.ended_at_ms,
            store_tables.artifacts.c.sha256,
        )
        same = (
            (store_tables.artifacts.c.campaign_id == store_tables.runs.c.campaign_id)
            & (store_tables.artifacts.c.model == store_tables.runs.c.model)
            & (store_tables.artifacts.c.variant == store_tables.runs.c.variant)
        )
        of_device = sa.select(*columns).outerjoin_from(store_tables.runs, store_tables.artifacts, same)
        of_device = of_device.where(
            store_tables.runs.c.campaign_id == campaign.id, store_tables.runs.c.device == device
        )
        of_device = of_device.order_by(store_tables.runs.c.started_at_ms, store_tables.runs.c.id)
        device_runs = store.read(lambda connection, query=of_device: list(connection.execute(query).all()))  # type: ignore[misc]
        facts = None
        with suppress(msgspec.DecodeError):  # of a later release
            facts = untrusted_files.decode_json(campaign.document, DeviceFacts)
        yield _Campaign(campaign.id, campaign.name, facts, device_runs)


def _row(store: Store, campaign: _Campaign, usual: dict[tuple[str, ...], float]) -> DeviceCampaign:
    ratios = [math.log(value / usual[key]) for key, value in campaign.medians().items() if key in usual]
    outcomes: dict[str, int] = defaultdict(int)
    for run in campaign.runs:
        outcomes["ok" if run.failure_kind is None else run.failure_kind] += 1
    begun = [run.started_at_ms for run in campaign.runs if run.started_at_ms is not None]
    ended = [run.ended_at_ms for run in campaign.runs if run.ended_at_ms is not None]
    busy = sum(run.ended_at_ms - run.started_at_ms for run in campaign.runs if run.ended_at_ms and run.started_at_ms)
    first, last = (_result(store, edge[0].id) if edge else None for edge in (campaign.runs[:1], campaign.runs[-1:]))
    return DeviceCampaign(
        campaign=campaign.id,
        name=campaign.name,
        hosts=tuple(sorted({run.host for run in campaign.runs})),
        runs=len(campaign.runs),
        outcomes=dict(outcomes),
        first_ms=min(begun, default=None),
        last_ms=max(ended, default=None),
        busy_seconds=busy / 1000,
        compared=len(ratios),
        level=math.exp(fmean(ratios)) if ratios else None,
        before=first.before if first else run_result.Conditions(),
        after=last.after if last else run_result.Conditions(),
        os_build=campaign.facts.fingerprint if campaign.facts else "",
    )


def _result(store: Store, key: int) -> RunResult | None:
    """A stored result; None for one of a later release, which reports name: here only its state is missing."""
    text = store.read(
        lambda connection: connection.scalar(sa.select(store_tables.runs.c.result).where(store_tables.runs.c.id == key))
    )
    try:
        return untrusted_files.decode_json(text or "", RunResult)
    except msgspec.DecodeError:
        return None


def instant(milliseconds: int | None) -> str:
    """A time for people, in UTC."""
    if milliseconds is None:
        return "no time"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _state(conditions: run_result.Conditions) -> str:
    parts = (
        "" if conditions.battery_celsius is None else f"{conditions.battery_celsius:g} °C",
        "" if conditions.battery_percent is None else f"{conditions.battery_percent} %",
        f"thermal status {conditions.thermal_status}" if conditions.thermal_status else "",
    )
    return " ".join(filter(None, parts))


def history_lines(history: DeviceHistory) -> Iterable[str]:
    """The history of a device for a terminal."""
    count = counting.counted(len(history.campaigns), "campaign")
    yield f"{history.device}: {count}, the newest last; a level of 1 is usual, 1.1 is 10 % slower"
    for campaign in history.campaigns:
        level = "no level" if campaign.level is None else f"level {campaign.level:.3f} of {campaign.compared}"
        outcomes = ", ".join(f"{count} {kind}" for kind, count in sorted(campaign.outcomes.items())) or "no runs"
        states = " to ".join(dict.fromkeys(filter(None, map(_state, (campaign.before, campaign.after)))))
        parts = (
            f"{instant(campaign.first_ms)} {campaign.campaign} {campaign.name}",
            level,
            outcomes,
            f"{core_progress.duration_text(campaign.busy_seconds)} at {counting.few(campaign.hosts) or 'no host'}",
            states,
            campaign.os_build,
        )
        yield f"  {'; '.join(filter(None, parts))}"
    levels = [campaign.level for campaign in history.campaigns if campaign.level is not None]
    if levels and levels[-1] > SLOWER:
        yield f"its newest campaign with a level was {levels[-1] - 1:.1%} slower than usual on this device"
