"""What is to be seen of a lab: its hosts and devices, and how far its campaigns are, as a document and in lines."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from device_runner import providers as runner_providers
from device_runner import safe_text, untrusted_files
from pipeline.campaign import store as campaign_store
from pipeline.campaign.store import Store
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core.errors import PipelineError
from pipeline.features.lab import checks as lab_checks
from pipeline.features.lab import queue as lab_queue
from pipeline.features.lab.campaigns import found_campaign
from pipeline.features.lab.progress import RunsLeft, progress_by_device

MOST_REASONS = 5
"""Of one campaign in the terminal; --json has all."""


def lab_status(database: str, campaign: str | None = None) -> dict[str, Any]:
    """The state of the lab whose database is at a URL; see `state_of`."""
    with campaign_store.open_store(database) as store:
        return state_of(store, campaign)


def state_of(store: Store, campaign: str | None = None) -> dict[str, Any]:
    """Hosts, devices and campaigns of a lab; with `campaign` that campaign alone. Times are the database's."""
    names = (
        [found_campaign(store, campaign).id]
        if campaign
        else sorted({job.campaign_id for job in lab_queue.jobs_of(store)})
    )
    titles, hosts, devices = store.names(), [], []
    for host in lab_queue.lab_hosts(store):
        versions: dict[str, str] = {}
        with suppress(msgspec.DecodeError):  # what a host wrote that is none of ours
            versions = untrusted_files.decode_json(host["versions"], dict[str, str])
        state = "silent" if host["silent_seconds"] > lab_queue.SILENT_SECONDS else "working"
        hosts.append({**host, "versions": versions, "state": state})
    for name, facts in lab_queue.attached_devices(store).items():
        chip = runner_providers.chip_of_phone(facts.soc.rpartition(" ")[2])
        title = f"{chip.name} ({chip.title})" if chip else ""
        devices.append({"name": name, "host": facts.host, "model": facts.model, "soc": facts.soc, "chip": title})
    lost = lab_queue.lost_devices(store)
    silent = {host["name"]: host["silent_seconds"] for host in hosts if host["state"] == "silent"}
    campaigns = [campaign_state(store, name, titles[name]) for name in names]
    for job in (job for campaign in campaigns for job in campaign["jobs"] if job["state"] in lab_queue.OPEN):
        # Why a device does not go on, which no host says that is dead or does not see it
        device, silent_seconds = lost.get(job["device"]), silent.get(job["host"])
        if silent_seconds is not None and job["state"] == lab_queue.RUNNING:
            job["note"] = f"nothing heard of {job['host']} for {core_progress.duration_text(silent_seconds)}"
        elif device:
            job["note"] = (
                f"lost: at {device.host} until {device.since}, {core_progress.duration_text(device.seconds)} ago"
            )
    return {
        "version": 1,
        "hosts": hosts,
        "devices": devices,
        "campaigns": campaigns,
        "golden": store.read(lab_checks.golden_of),
        "quarantine": lab_checks.in_quarantine(store),
        "lost": [
            {"name": name, "host": device.host, "since": device.since, "seconds": device.seconds}
            for name, device in lost.items()
        ],
    }


def campaign_state(store: Store, campaign: str, name: str) -> dict[str, Any]:
    """One campaign of `state_of`: its jobs, and how far each device is; no progress of one that has ended."""
    jobs = lab_queue.jobs_of(store, campaign)
    progress: dict[str, RunsLeft] = {}
    if any(job.state not in lab_queue.ENDED for job in jobs):
        with suppress(PipelineError):  # a plan that this release cannot read, which `lab close` says
            progress = progress_by_device(store, store.campaign(campaign), lab_queue.again_of_all(store, campaign))
    rows = []
    for job in jobs:
        row = {key: value for key, value in job._mapping.items() if key != "campaign_id"}
        rows.append({**row, "note": "", "progress": msgspec.to_builtins(progress.get(job.device))})
    left = {job.device: progress[job.device] for job in jobs if job.device in progress and job.state in lab_queue.OPEN}
    known = {device: runs.seconds_left for device, runs in left.items() if runs.seconds_left is not None}
    together = {
        "stored": sum(runs.stored for runs in progress.values()),
        "failed": sum(runs.failed for runs in progress.values()),
        "at_most": sum(runs.at_most for runs in progress.values()),
        "seconds_left": max(known.values(), default=None),
        "slowest": max(known, key=lambda device: known[device] or 0.0, default=""),
        "unknown": sorted(left.keys() - known.keys()),
    }
    return {
        "campaign": campaign,
        "name": name,
        "priority": max((job.priority for job in jobs), default=0),
        "runs": len(store.finished(campaign)),
        "devices": dict(sorted(Counter(job.state for job in jobs).items())),
        "progress": together if progress else None,
        "jobs": rows,
    }


def status_lines(state: dict[str, Any]) -> Iterator[str]:
    """The state of a lab for a terminal, which nothing in it can steer: others wrote it."""
    yield from map(safe_text.visible, _lines(state))


def _lines(state: dict[str, Any]) -> Iterator[str]:
    yield f"hosts: {len(state['hosts'])}"
    for host in state["hosts"]:
        is_silent = host["state"] == "silent"
        silent = f"nothing heard for {core_progress.duration_text(host['silent_seconds'])}"
        names = [device["name"] for device in state.get("devices", ()) if device["host"] == host["name"]]
        listed = f" ({counting.few(names)})" if names else ""
        has = f", {'worked' if is_silent else 'works'} on {counting.few(host['leases'])}" if host["leases"] else ""
        note = f"{has}; {host['note']}" if host["note"] else has
        count = f"{counting.counted(host['devices'], 'device')}{listed}"
        yield f"  {host['name']}: {silent if is_silent else 'working'}, {count}{note}"
    lost = state.get("lost", ())
    for device in lost[:MOST_REASONS]:
        when = f"until {device['since']}, {core_progress.duration_text(device['seconds'])} ago"
        yield f"lost: {device['name']}, at {device['host']} {when}"
    if len(lost) > MOST_REASONS:
        yield f"lost: {len(lost) - MOST_REASONS} more: --json - lists all"
    for device, quarantine in state.get("quarantine", {}).items():
        since = quarantine["since"][:16].replace("T", " ")
        yield f"in quarantine: {device}, since {since}, by {quarantine['host']}: {quarantine['reason']}"
        yield f"  once it was looked at: ort-mobile lab release {device}"
    for campaign in state["campaigns"]:
        states = ", ".join(f"{number} {state}" for state, number in campaign["devices"].items())
        first = f" (priority {campaign['priority']})" if campaign["priority"] else ""
        yield f"{campaign['campaign']} {campaign['name']}{first}: {progress_text(campaign)}; devices: {states}"
        reasons = [(job, "; ".join(filter(None, (job["note"], job["reason"])))) for job in campaign["jobs"]]
        said = [f"  {job['device']} {job['state']}: {reason}" for job, reason in reasons if reason]
        yield from said[:MOST_REASONS]
        if len(said) > MOST_REASONS:
            yield f"  and {len(said) - MOST_REASONS} more: --json - lists all"


def progress_text(campaign: dict[str, Any]) -> str:
    """How far a campaign of `campaign_state` is, in words."""
    progress = campaign["progress"]
    if progress is None:
        return f"{campaign['runs']} runs stored"
    parts = [f"{progress['stored']:,} of at most {progress['at_most']:,} runs stored"]
    parts += [f"{progress['failed']:,} failed"] if progress["failed"] else []
    if progress["seconds_left"]:
        parts.append(
            f"about {core_progress.duration_text(progress['seconds_left'])} of {progress['slowest']}'s time left"
        )
    if progress["unknown"]:
        parts.append(f"not known yet how long {counting.few(progress['unknown'])} takes")
    return ", ".join(parts)
