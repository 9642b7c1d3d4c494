"""What is stored with a campaign before anything is measured: enough to report, bundle and resume it later."""

import os
import platform
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import msgspec

from device_runner.device import DeviceFacts, is_selector, on_network, split_server
from device_runner.device import identity as device_identity
from device_runner.files import decode_json
from device_runner.result import utc_now
from pipeline import __version__
from pipeline.campaign.record import CampaignRecord, FailureRow, Host, JobRecord, ModelFacts, RecordedRun, Skipped
from pipeline.campaign.store import Store
from pipeline.config import Config, TuneConfig
from pipeline.core.errors import Finding, PipelineError, warning
from pipeline.core.variant import Artifact
from pipeline.job.prepare import Prepared

PROGRAMS = ("onnxruntime", "onnx", "numpy", "flatbuffers")


def new_campaign(name: str, document: JobRecord | None = None) -> CampaignRecord:
    """A campaign that begins now, under an id that no other has."""
    now = utc_now()
    return CampaignRecord(id=f"{now}-{secrets.token_hex(3)}", name=name, created_at=now, document=document)


def conversion_skips(prepared: Sequence[Prepared]) -> list[Skipped]:
    """Variants that the releases do not have."""
    return [
        Skipped(what=f"{failure.why}; {failure.remedy}", model=model.name, variant=failure.variant.name)
        for model in prepared
        for failure in model.converted.failures
        if failure.skipped
    ]


def preparation_failures(prepared: Sequence[Prepared]) -> list[FailureRow]:
    """Models and variants that could not be made, run as reference, or checked."""
    rows = []
    for model in prepared:
        rows += [_failure_row(error, model.name) for error in model.errors]
        for failure in model.converted.failures:
            if not failure.skipped:
                error = PipelineError(failure.what, where=failure.where, why=failure.why, remedy=failure.remedy)
                row = _failure_row(error, model.name)
                variant = failure.variant
                rows.append(msgspec.structs.replace(row, variant=variant.name, level=variant.level))
    return rows


def _failure_row(error: PipelineError, model: str) -> FailureRow:
    return FailureRow(kind="preparation", message=error.what, cause=error.why, remedy=error.remedy, model=model)


def notes(prepared: Sequence[Prepared], hints: Iterable[str]) -> Iterator[Finding]:
    """What a user should see of a job, and of its models."""
    yield from map(warning, hints)
    for model in prepared:
        texts = [f"precision {verdict.text}" for verdict in model.verdicts]
        texts += [f"precision {each.precision}: {each.search.text}" for each in model.searches]
        if (result := model.converted.result) and (dynamic := result.dynamic) and not model.table.lists:
            texts.append(
                f"open dimensions {', '.join(dynamic)}: NNAPI takes nothing whose shape is open; "
                "fix them with `dimensions` in the config, where the model still loads with fixed ones"
            )
        texts += model.reference.notes if model.reference else ()
        if model.table.state:
            steps = model.table.stream_steps
            texts.append(f"a stream of {steps} steps: times are a step's, outputs those after the last one")
        texts += [note for artifact in model.artifacts for note in artifact.notes]
        texts += [each.text for a in model.accuracy if a.result for each in a.result.findings]
        yield from (warning(text, model.name) for text in dict.fromkeys(texts))


def model_facts(prepared: Prepared) -> ModelFacts:
    """What the report says of a model."""
    source = prepared.model.source
    return ModelFacts(
        name=prepared.name,
        file=source.name,
        size_bytes=prepared.model.size_bytes,
        sha256=prepared.converted.result.content_digest if prepared.converted.result else "",
        inputs=tuple(_signature(t.name, t.dtype, t.shape) for t in prepared.reference.inputs)
        if prepared.reference
        else (),
        outputs=tuple(_signature(t.name, t.dtype, t.shape) for t in prepared.reference.outputs)
        if prepared.reference
        else (),
        error=prepared.errors[0].what if prepared.errors and not prepared.artifacts else "",
        remedy=prepared.errors[0].remedy if prepared.errors and not prepared.artifacts else "",
        dimensions=prepared.model.dimensions,
        guessed=prepared.table.guessed,
    )


def _signature(name: str, dtype: str, shape: Sequence[int]) -> str:
    return f"{name}: {dtype}[{', '.join(map(str, shape))}]"


def host() -> Host:
    """The computer that this runs on."""
    return Host(
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_cpu_name(),
        cores=os.cpu_count() or 0,
        memory_bytes=_memory_bytes(),
        python=platform.python_version(),
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory_bytes() -> int:
    if sys.platform == "win32":
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def versions() -> dict[str, str]:
    """Every program that has a part in an artifact."""
    installed = {"ort-mobile": __version__}
    for name in PROGRAMS:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


T = TypeVar("T")
Identity = tuple[str, str, str]


def identity(artifact: Artifact) -> Identity:
    """Model, variant and digest: what must be equal for runs to be compared."""
    return artifact.model, artifact.variant.name, artifact.sha256


def stored_config(config: Config) -> Config:
    """The config as it is stored: not with the database: its URL may have a password, and is no part of a plan."""
    output = msgspec.structs.replace(config.output, database=None)
    return msgspec.structs.replace(config, output=output)


def resume(
    store: Store, record: JobRecord, artifacts: Sequence[Artifact], facts: Mapping[str, DeviceFacts]
) -> CampaignRecord | None:
    """The newest campaign of the same config and programs whose artifacts are unchanged, with what is new to it.

    New are planned runs of devices that were not there, and of models that failed then. It may have planned more, for
    a device that is not there now. None where there is no such campaign.
    """
    plan = as_read(record)
    now = {identity(artifact): artifact for artifact in artifacts}
    same = [
        (campaign.id, campaign.document, campaign)
        for campaign in store.campaigns()
        if campaign.document
        and continues(campaign.document, plan)
        and now.keys() >= set(map(identity, store.artifacts(campaign.id)))
        and not strangers(store.devices(campaign.id), facts)
    ]
    if not same:
        return None
    name, document, campaign = same[-1]
    if not new_places(document, plan):
        return campaign
    stored = set(map(identity, store.artifacts(name)))
    return store.amend(
        name,
        lambda document: joined(document, plan),
        facts=[facts[device] for device in sorted(new_devices(document, plan))],
        new_artifacts=[artifact for key, artifact in now.items() if key not in stored],
    )


def strangers(stored: Iterable[DeviceFacts], facts: Mapping[str, DeviceFacts]) -> list[str]:
    """Devices of a stored campaign that are others now, under the same name: `local` and emulators of another host."""
    return [
        facts_stored.name
        for facts_stored in stored
        if facts_stored.host
        and facts_stored.name in facts
        and device_identity(facts_stored) != device_identity(facts[facts_stored.name])
    ]


def as_read(value: T) -> T:
    """A value as it is read back from the store: numbers and lists of a config may have become other equal ones."""
    return decode_json(msgspec.json.encode(value), type(value))


def known_on_network(store: Store, config: Config) -> list[str]:
    """Devices on the network that earlier campaigns of a config with selectors met, ready or not.

    An adb server forgets such a device when it loses it, so that no selector would find it again.
    """
    if not any(is_selector(name.partition(":")[2]) for name in config.devices):
        return []
    wanted = as_read(stored_config(config))
    same = [
        campaign.document for campaign in store.campaigns() if campaign.document and campaign.document.config == wanted
    ]
    names = [run.device for document in same for run in document.planned] + [
        row.device for document in same for row in document.skipped
    ]
    adb = [name for name in dict.fromkeys(names) if name.startswith("adb:")]
    return [name for name in adb if on_network(split_server(name.removeprefix("adb:"))[0])]


def continues(document: JobRecord, plan: JobRecord) -> bool:
    """Whether a stored campaign is the planned one, as far as it knows the devices and their models."""
    known = places(document)
    if not known and plan.planned:
        return False  # it was only converted
    same = _purpose(document) == _purpose(plan)
    return same and all(run in document.planned for run in plan.planned if device_and_model(run) in known)


def _purpose(record: JobRecord) -> tuple[object, ...]:
    """What makes two plans the same: the config, but for how long a search may take, and the programs.

    Campaigns in rounds, of searches, and those that confirm what these found never continue one another; [tune] is of
    no importance to the first.
    """
    kind = record.searching, bool(record.tuned)
    tune = msgspec.structs.replace(record.config.tune, minutes=TuneConfig().minutes) if any(kind) else TuneConfig()
    return msgspec.structs.replace(record.config, tune=tune), record.versions, kind


def device_and_model(run: RecordedRun) -> tuple[str, str]:
    """Where and what a run measures: device and model."""
    return run.device, run.model


def places(document: JobRecord) -> set[tuple[str, str]]:
    """Every device with every model that it measures."""
    return set(map(device_and_model, document.planned))


def new_places(document: JobRecord, plan: JobRecord) -> set[tuple[str, str]]:
    """Devices and models for which the plan has runs and the stored campaign has none."""
    return places(plan) - places(document)


def new_devices(document: JobRecord, plan: JobRecord) -> set[str]:
    """Devices for which the plan has runs and the stored campaign has none."""
    return {run.device for run in plan.planned} - {run.device for run in document.planned}


def joined(document: JobRecord, plan: JobRecord) -> JobRecord:
    """The stored campaign's document with what is planned for new devices and models, and no more why these failed.

    What it says of models is newer where a model that had failed is there now.
    """
    new, devices = new_places(document, plan), new_devices(document, plan)
    models = {model for _, model in new} - {model for _, model in places(document)}
    newer = plan if models else document
    return msgspec.structs.replace(
        newer,
        config=document.config,
        host=document.host,
        versions=document.versions,
        planned=(*document.planned, *(run for run in plan.planned if device_and_model(run) in new)),
        skipped=(
            *(row for row in document.skipped if row.device not in devices and row.model not in models),
            *(row for row in plan.skipped if row.device in devices or row.model in models),
        ),
        tuned=tuple({(search.device, search.model): search for search in (*document.tuned, *plan.tuned)}.values()),
        placements=tuple(
            {
                (placement.model, placement.provider): placement
                for placement in (*plan.placements, *document.placements)
            }.values()
        ),
    )
