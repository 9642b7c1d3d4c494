"""Finding the campaign that a job goes on with, and joining devices to it that were not there before."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from device_runner.device import DeviceFacts, is_selector, on_network, split_server
from pipeline.campaign.store import CampaignRecord, Store
from pipeline.config import Config
from pipeline.core.variant import Artifact
from pipeline.job.record import JobRecord, encode_record

Identity = tuple[str, str, str]

Document = dict[str, Any]


def identity(artifact: Artifact) -> Identity:
    """Model, variant and digest: what must be equal for runs to be compared."""
    return artifact.model, artifact.variant.name, artifact.sha256


def resume(
    store: Store, record: JobRecord, artifacts: Sequence[Artifact], facts: Mapping[str, DeviceFacts]
) -> CampaignRecord | None:
    """The newest campaign of the same config and programs whose artifacts are unchanged, with what is new to it.

    New are lanes of devices that were not there, and of models that failed then. It may have planned more, for a device
    that is not there now. None where there is no such campaign.
    """
    plan = encode_record(record)
    now = {identity(artifact): artifact for artifact in artifacts}
    same = [
        campaign
        for campaign in store.campaigns()
        if goes_on(campaign.document, plan) and now.keys() >= set(map(identity, store.artifacts(campaign.id)))
    ]
    if not same:
        return None
    campaign = same[-1]
    if not new_places(campaign.document, plan):
        return campaign
    stored = set(map(identity, store.artifacts(campaign.id)))
    return store.amend(
        campaign.id,
        lambda document: joined(document, plan),
        facts=[facts[name] for name in sorted(new_devices(campaign.document, plan))],
        made=[artifact for one, artifact in now.items() if one not in stored],
    )


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
    """Whether a stored campaign is the planned one, as far as it knows the devices and their models."""
    known = places(document)
    lanes = [lane for lane in plan["lanes"] if place(lane) in known]
    if not known and plan["lanes"]:
        return False  # it was only converted
    return all(document.get(key) == plan[key] for key in ("config", "versions")) and all(
        lane in document["lanes"] for lane in lanes
    )


def place(lane: Mapping[str, Any]) -> tuple[str, str]:
    """Where and what a lane measures: device and model."""
    return lane["device"], lane["model"]


def places(document: Document) -> set[tuple[str, str]]:
    """Every device with every model that it measures."""
    return {place(lane) for lane in document.get("lanes", ())}


def new_places(document: Document, plan: Document) -> set[tuple[str, str]]:
    """Devices and models for which the plan has lanes and the stored campaign has none."""
    return places(plan) - places(document)


def new_devices(document: Document, plan: Document) -> set[str]:
    """Devices for which the plan has lanes and the stored campaign has none."""
    return {lane["device"] for lane in plan["lanes"]} - {lane["device"] for lane in document["lanes"]}


OF_MODELS = ("models", "failures", "warnings", "checks", "references", "tables", "unloadable")
"""What a campaign's document says of its models: newer where a model that had failed is there now."""


def joined(document: Document, plan: Document) -> Document:
    """The stored campaign's document with what is planned for new devices and models, and no more why these failed."""
    new, devices = new_places(document, plan), new_devices(document, plan)
    models = {model for _, model in new} - {model for _, model in places(document)}
    lanes = [lane for lane in plan["lanes"] if place(lane) in new]

    def is_new(row: Mapping[str, Any]) -> bool:
        return row.get("device") in devices or row.get("model") in models

    kept = [row for row in document["skipped"] if not is_new(row)]
    skipped = [row for row in plan["skipped"] if is_new(row)]
    told = {key: plan[key] for key in OF_MODELS if models and key in plan}
    return {**document, **told, "lanes": [*document["lanes"], *lanes], "skipped": [*kept, *skipped]}
