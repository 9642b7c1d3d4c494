"""A campaign that begins, or the one that a job goes on with."""

import contextlib
import logging
import os
import platform
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from device_runner import device as runner_device
from device_runner import result as run_result
from device_runner import untrusted_files
from device_runner.device import DeviceFacts
from pipeline import __version__
from pipeline import config as configs
from pipeline.campaign import record as campaign_record
from pipeline.campaign.record import CampaignRecord
from pipeline.campaign.store import Store
from pipeline.config import Config
from pipeline.core import groups as counting
from pipeline.core.variant import Artifact
from pipeline.job.bench import T

log = logging.getLogger(__name__)

PROGRAMS = ("onnxruntime", "onnx", "numpy", "flatbuffers")


def versions() -> dict[str, str]:
    """Every program that has a part in an artifact."""
    installed = {"ort-mobile": __version__}
    for name in PROGRAMS:
        with contextlib.suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def host() -> campaign_record.Host:
    """The computer that this runs on."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    processors = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return campaign_record.Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=processors[0] if processors else platform.processor(),
        cores=os.cpu_count() or 0,
        memory_bytes=0 if sys.platform == "win32" else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        python=platform.python_version(),
    )


def new_campaign(name: str, document: campaign_record.JobRecord | None = None) -> CampaignRecord:
    """A campaign that begins now, under an id that no other has."""
    now = run_result.utc_now()
    return CampaignRecord(id=f"{now}-{secrets.token_hex(3)}", name=name, created_at=now, document=document)


def stored_config(config: Config) -> Config:
    """The config as it is stored: not with the database: its URL may have a password, and is no part of a plan."""
    output = msgspec.structs.replace(config.output, database=None)
    return msgspec.structs.replace(config, output=output)


def as_read(value: T) -> T:
    """A value as it is read back from the store: numbers and lists of a config may have become other equal ones."""
    return untrusted_files.decode_json(msgspec.json.encode(value), type(value))


def known_on_network(store: Store, config: Config) -> list[str]:
    """Devices on the network that earlier campaigns of a config with selectors met, ready or not.

    An adb server forgets such a device when it loses it, so that no selector would find it again.
    """
    if not any(runner_device.is_selector(name.partition(":")[2]) for name in config.devices):
        return []
    stored = as_read(stored_config(config))
    documents = [
        campaign.document for campaign in store.campaigns() if campaign.document and campaign.document.config == stored
    ]
    names = [run.device for document in documents for run in document.planned]
    names += [skipped.device for document in documents for skipped in document.skipped]
    adb = [name for name in dict.fromkeys(names) if name.startswith("adb:")]
    return [name for name in adb if runner_device.on_network(runner_device.split_server(name.removeprefix("adb:"))[0])]


def resume(
    store: Store, record: campaign_record.JobRecord, artifacts: Sequence[Artifact], facts: Mapping[str, DeviceFacts]
) -> CampaignRecord | None:
    """The newest campaign of the same config and programs whose artifacts are unchanged, with what is new to it.

    New are planned runs of devices that were not there, and of models that failed then. It may have planned more, for
    a device that is not there now. None where there is no such campaign; why the newest is none is logged.
    """
    plan = as_read(record)
    now = {(artifact.model, artifact.variant.name, artifact.sha256): artifact for artifact in artifacts}
    last, stored, changed = None, list[tuple[str, str, str]](), ""
    for campaign in store.campaigns():
        if document := campaign.document:
            before = [
                (artifact.model, artifact.variant.name, artifact.sha256) for artifact in store.artifacts(campaign.id)
            ]
            missing = [f"{model}/{variant}" for model, variant, sha256 in before if (model, variant, sha256) not in now]
            others = strangers(store.devices(campaign.id), facts)
            earlier = _places(document)
            # One that was only converted plans nothing, and nothing goes on with it. Runs are looked up last: of each
            # among all, and a lab has thousands of campaigns.
            continued = (earlier or not plan.planned) and _purpose(document) == _purpose(plan)
            if not continued or any(
                run not in document.planned for run in plan.planned if (run.device, run.model) in earlier
            ):
                changed = "its config, programs or runs are others"
            elif missing:
                changed = f"it has other files of {counting.few(missing)}"
            elif others:
                changed = f"{counting.few(others)} is now another device"
            else:
                last, stored = campaign, before
    if last is None:
        if changed:
            log.warning("nothing to resume, a new campaign begins: of the last one, %s", changed)
        return None
    document = last.job()
    if not _places(plan) - _places(document):
        return last
    new_devices = {run.device for run in plan.planned} - {run.device for run in document.planned}
    return store.amend(
        last.id,
        lambda document: _joined(document, plan),
        facts=[facts[device] for device in sorted(new_devices)],
        new_artifacts=[artifact for key, artifact in now.items() if key not in stored],
    )


def strangers(stored: Iterable[DeviceFacts], facts: Mapping[str, DeviceFacts]) -> list[str]:
    """Devices of a stored campaign that are others now, under the same name: `local` and emulators of another host."""
    return [
        stored_facts.name
        for stored_facts in stored
        if stored_facts.host
        and stored_facts.name in facts
        and runner_device.identity(stored_facts) != runner_device.identity(facts[stored_facts.name])
    ]


def _purpose(record: campaign_record.JobRecord) -> tuple[object, ...]:
    """What makes two plans the same: the config, but for how long a search may take, and the programs.

    Campaigns in rounds, of searches, and those that confirm what these found never continue one another; [tune] is of
    no importance to the first.
    """
    kind = record.searching, bool(record.tuned)
    tune = (
        msgspec.structs.replace(record.config.tune, minutes=configs.TuneConfig().minutes)
        if any(kind)
        else configs.TuneConfig()
    )
    return msgspec.structs.replace(record.config, tune=tune), record.versions, kind


def _places(document: campaign_record.JobRecord) -> set[tuple[str, str]]:
    """Every device with every model that it measures."""
    return {(run.device, run.model) for run in document.planned}


def _joined(document: campaign_record.JobRecord, plan: campaign_record.JobRecord) -> campaign_record.JobRecord:
    """The stored campaign's document with what is planned for new devices and models, and no more why these failed.

    What it says of models is newer where a model that had failed is there now.
    """
    earlier = _places(document)
    new = _places(plan) - earlier
    devices = {device for device, _ in _places(plan)} - {device for device, _ in earlier}
    models = {model for _, model in new} - {model for _, model in earlier}
    searches = (*document.tuned, *plan.tuned)
    placements = (*plan.placements, *document.placements)
    return msgspec.structs.replace(
        plan if models else document,
        config=document.config,
        host=document.host,
        versions=document.versions,
        planned=(*document.planned, *(run for run in plan.planned if (run.device, run.model) in new)),
        skipped=(
            *(skipped for skipped in document.skipped if skipped.device not in devices and skipped.model not in models),
            *(skipped for skipped in plan.skipped if skipped.device in devices or skipped.model in models),
        ),
        tuned=tuple({(search.device, search.model): search for search in searches}.values()),
        placements=tuple({(placement.model, placement.provider): placement for placement in placements}.values()),
    )
