"""Finding the campaign that a job goes on with, and joining devices to it that were not there before."""

from collections.abc import Mapping
from typing import Any

import msgspec

from device_runner.device import DeviceFacts
from device_runner.selectors import is_selector, on_network, split_server
from pipeline.config import Config
from pipeline.job.record import JobRecord, encode_record
from pipeline.store import CampaignRecord, Store
from pipeline.variant import Artifact

Identity = tuple[str, str, str]

Document = dict[str, Any]


def identity(artifact: Artifact) -> Identity:
    """Model, variant and digest: what must be equal for runs to be compared."""
    return artifact.model, artifact.variant.name, artifact.sha256


def resume(
    store: Store, record: JobRecord, artifacts: set[Identity], facts: Mapping[str, DeviceFacts]
) -> CampaignRecord | None:
    """The newest campaign of the same config, programs and artifacts, with the lanes of devices that are new to it.

    It may have planned more, for a device that is not there now. None where there is no such campaign.
    """
    plan = encode_record(record)
    same = [
        campaign
        for campaign in store.campaigns()
        if goes_on(campaign.document, plan) and artifacts == set(map(identity, store.artifacts(campaign.id)))
    ]
    if not same:
        return None
    campaign = same[-1]
    new = sorted(new_devices(campaign.document, plan))
    if not new:
        return campaign
    return store.amend(campaign.id, lambda document: joined(document, plan), [facts[name] for name in new])


def known_on_network(store: Store, config: Config) -> list[str]:
    """Devices on the network that earlier campaigns of a config with selectors met, ready or not.

    An adb server forgets such a device when it loses it, so that no selector would find it again.
    """
    if not any(is_selector(name.partition(":")[2]) for name in config.devices):
        return []
    same = [campaign.document for campaign in store.campaigns() if campaign.document.get("config") == plain(config)]
    rows = [row for document in same for part in ("lanes", "skipped") for row in document.get(part, ())]
    names = [row.get("device") or "" for row in rows]
    adb = [name for name in dict.fromkeys(names) if name.startswith("adb:")]
    return [name for name in adb if on_network(split_server(name.removeprefix("adb:"))[0])]


def plain(value: object) -> Any:
    """A value in JSON's own types."""
    return msgspec.json.decode(msgspec.json.encode(value))


def goes_on(document: Document, plan: Document) -> bool:
    """Whether a stored campaign is the planned one, as far as it knows the devices."""
    known = {lane["device"] for lane in document.get("lanes", ())}
    lanes = [lane for lane in plan["lanes"] if lane["device"] in known]
    if not known and plan["lanes"]:
        return False  # it was only converted
    return all(document.get(key) == plan[key] for key in ("config", "versions")) and all(
        lane in document["lanes"] for lane in lanes
    )


def new_devices(document: Document, plan: Document) -> set[str]:
    """Devices for which the plan has lanes and the stored campaign has none."""
    return {lane["device"] for lane in plan["lanes"]} - {lane["device"] for lane in document["lanes"]}


def joined(document: Document, plan: Document) -> Document:
    """The stored campaign's document with what is planned for new devices, in the place of why they were left out."""
    new = new_devices(document, plan)
    lanes = [lane for lane in plan["lanes"] if lane["device"] in new]
    kept = [row for row in document["skipped"] if row.get("device") not in new]
    skipped = [row for row in plan["skipped"] if row.get("device") in new]
    return {**document, "lanes": [*document["lanes"], *lanes], "skipped": [*kept, *skipped]}
