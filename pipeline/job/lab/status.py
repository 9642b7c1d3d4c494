"""The state of a lab, as one value for people and programs."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from pipeline.campaign.lab.queue import attached_devices, jobs_of, lab_hosts
from pipeline.campaign.lab.session import SILENT_SECONDS
from pipeline.campaign.store import Store, open_store
from pipeline.core.progress import duration_text
from pipeline.job.lab.close import found_campaign

MOST_REASONS = 5
"""Of one campaign in the terminal; --json has all."""


def lab_status(database: str, wanted: str | None = None) -> dict[str, Any]:
    """The state of the lab whose database is at a URL; see `state_of`."""
    with open_store(database) as store:
        return state_of(store, wanted)


def state_of(store: Store, wanted: str | None = None) -> dict[str, Any]:
    """Hosts, devices and campaigns of a lab; with `wanted` that campaign alone. Times are the database's."""
    campaigns = [found_campaign(store, wanted).id] if wanted else sorted({job.campaign for job in jobs_of(store)})
    return {
        "version": 1,
        "hosts": [
            {
                **row,
                "versions": msgspec.json.decode(row["versions"]),
                "state": "silent" if row["silent_seconds"] > SILENT_SECONDS else "working",
            }
            for row in lab_hosts(store)
        ],
        "devices": [
            {"name": name, "host": facts.host, "model": facts.model, "soc": facts.soc}
            for name, facts in attached_devices(store).items()
        ],
        "campaigns": [_campaign(store, name) for name in campaigns],
    }


def _campaign(store: Store, name: str) -> dict[str, Any]:
    jobs = jobs_of(store, name)
    return {
        "campaign": name,
        "name": store.campaign(name).name,
        "runs": len(store.finished(name)),
        "devices": dict(sorted(Counter(job.state for job in jobs).items())),
        "jobs": [{name: getattr(job, name) for name in job.__slots__ if name != "campaign"} for job in jobs],
    }


def status_lines(found: dict[str, Any]) -> Iterator[str]:
    """The state of a lab for a terminal."""
    yield f"hosts: {len(found['hosts'])}"
    for host in found["hosts"]:
        silent = f"nothing heard for {duration_text(host['silent_seconds'])}"
        count = f"{host['devices']} device{'s' * (host['devices'] != 1)}"
        note = f"; {host['note']}" if host["note"] else ""
        yield f"  {host['name']}: {silent if host['state'] == 'silent' else 'working'}, {count}{note}"
    for one in found["campaigns"]:
        states = ", ".join(f"{number} {state}" for state, number in one["devices"].items())
        yield f"{one['campaign']} {one['name']}: {one['runs']} runs stored; devices: {states}"
        reasons = [job for job in one["jobs"] if job["reason"]]
        for job in reasons[:MOST_REASONS]:
            yield f"  {job['device']} {job['state']}: {job['reason']}"
        if len(reasons) > MOST_REASONS:
            yield f"  and {len(reasons) - MOST_REASONS} more: --json - lists all"
