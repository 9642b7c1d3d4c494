"""`lab wait`: until campaigns have ended, and how they ended."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from pipeline.campaign import store as campaign_store
from pipeline.campaign.store import Store
from pipeline.core import errors as core_errors
from pipeline.features.lab import queue as lab_queue
from pipeline.features.lab.campaigns import found_campaign
from pipeline.features.lab.status import campaign_state, progress_text

POLL_SECONDS = 2.0
SAY_SECONDS = 60.0
"""Between two lines about what has not changed otherwise."""


class CampaignEnd(StrEnum):
    """How a campaign ended: FAILED where a device of it failed or was cancelled; OPEN while it goes on."""

    DONE = "done"
    FAILED = "failed"
    OPEN = "open"


CODES = {CampaignEnd.FAILED: core_errors.ExitCode.SOME_FAILED, CampaignEnd.OPEN: core_errors.ExitCode.TIMED_OUT}
"""The exit codes of `lab wait`, the gravest first; 0 where all campaigns are done."""


def outcome_of(jobs: Sequence[lab_queue.LabJob]) -> CampaignEnd:
    """How a campaign with these jobs ended."""
    states = {job.state for job in jobs}
    if states - set(lab_queue.ENDED):
        return CampaignEnd.OPEN
    return CampaignEnd.DONE if states == {lab_queue.DONE} else CampaignEnd.FAILED


def ended_document(store: Store, campaign: str, name: str) -> dict[str, Any]:
    """What is told of a campaign's end: the outcome, devices by state, and why some have no result."""
    jobs = lab_queue.jobs_of(store, campaign)
    left = {job.device: job.reason for job in jobs if job.state != lab_queue.DONE}
    return {
        "version": 1,
        "campaign": campaign,
        "name": name,
        "outcome": outcome_of(jobs),
        "devices": dict(sorted(Counter(job.state for job in jobs).items())),
        "left": dict(sorted(left.items())[:MOST_LEFT]),
    }


MOST_LEFT = 20
"""Devices whose reason is told."""


def wait_for(
    database: str,
    asked: Sequence[str],
    timeout_seconds: float | None,
    stop: threading.Event,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Wait until these campaigns (ids or names) have ended, the time is over or `stop`; what each came to.

    A database that is away is waited for. Raises ConfigError for a campaign that was not submitted.
    """
    begun, said = time.monotonic(), 0.0
    with campaign_store.open_store(database) as store:
        records = list({record.id: record for record in (found_campaign(store, name) for name in asked)}.values())
        ends: dict[str, CampaignEnd] = {}
        while True:
            for record in records:
                outcome = outcome_of(lab_queue.jobs_of(store, record.id))
                if record.id not in ends and outcome != CampaignEnd.OPEN:
                    ends[record.id] = outcome
                    say(f"{record.id} {record.name}: {outcome}")
            left = [record for record in records if record.id not in ends]
            passed = time.monotonic() - begun
            if not left or stop.is_set() or (timeout_seconds is not None and passed >= timeout_seconds):
                return [ended_document(store, record.id, record.name) for record in records]
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                for record in left:
                    say(f"{record.id} {record.name}: {progress_text(campaign_state(store, record.id, record.name))}")
            rest = POLL_SECONDS if timeout_seconds is None else min(POLL_SECONDS, timeout_seconds - passed)
            stop.wait(max(0.0, rest))


def ended_lines(campaigns: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What campaigns came to, for people."""
    for campaign in campaigns:
        states = ", ".join(f"{count} {state}" for state, count in campaign["devices"].items())
        yield f"{campaign['campaign']} {campaign['name']}: {campaign['outcome']}; devices: {states}"
        for device, reason in campaign["left"].items():
            if reason:
                yield f"  {device}: {reason}"


def exit_code_of(campaigns: Sequence[dict[str, Any]]) -> int:
    """1 where one failed, else 124 where one has not ended."""
    outcomes = {campaign["outcome"] for campaign in campaigns}
    return next((int(code) for outcome, code in CODES.items() if outcome in outcomes), 0)
