"""A campaign as data: the files that hosts need of it, and its plan built again from what is stored.

What a host runs of a campaign that it was handed as data are the same functions of the same values as elsewhere.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from device_runner.build import units
from device_runner.device import DeviceFacts
from device_runner.files import cache_folder
from device_runner.spec import TensorFile
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import PlannedRun, distinct, in_modes, inputs_of, plan_runs, planned_id
from pipeline.campaign.record import CampaignRecord, JobRecord
from pipeline.campaign.store import Store
from pipeline.check.result import Reference
from pipeline.config import Target
from pipeline.core.output import ARTIFACTS, REFERENCES
from pipeline.core.progress import NoProgress
from pipeline.core.variant import Artifact
from pipeline.features.lab.queue import checked_id, fetch_file, file_in, files_of
from pipeline.job.bench import libraries_by_device
from pipeline.job.campaign import campaign_plan
from pipeline.job.predict import predict
from pipeline.job.record import versions
from pipeline.job.targets import oldest_release

LIBRARIES = "libraries"
"""The folder of libraries that targets name by a path, each by the digest of that path."""

COMPARED = ("ort-mobile", "onnxruntime", "probe")
"""Programs that must be of the same version on every host of a campaign: others would measure something else."""


@cache
def lab_versions() -> dict[str, str]:
    """The versions of this host: of every program that has a part in an artifact, and of the probe's sources."""
    digest = hashlib.sha256(b"".join(unit.read_bytes() for unit in units())).hexdigest()[:12]
    return {**versions(), "probe": digest}


def other_versions(record: JobRecord) -> str:
    """Why this host may not measure a campaign, or ""."""
    versions = lab_versions()
    pairs = {name: (versions.get(name), record.versions.get(name)) for name in COMPARED}
    other = [f"{name} {here}, the campaign {there}" for name, (here, there) in pairs.items() if here != there]
    return f"this host has {'; '.join(other)}" if other else ""


def carried_files(
    folder: Path, artifacts: Iterable[Artifact], references: Mapping[str, Reference], targets: Iterable[Target]
) -> dict[str, Path]:
    """The files that other hosts need of a campaign, by their names in any output folder."""
    paths = {f"{ARTIFACTS}/{artifact.file}": folder / ARTIFACTS / artifact.file for artifact in artifacts}
    for name, reference in references.items():
        labelled = (reference.labelled.inputs, reference.labelled.outputs) if reference.labelled else ()
        for tensor in (*reference.inputs, *reference.outputs, *labelled):
            file = Path(tensor.file)
            paths[f"{REFERENCES}/{name}/{file.name}"] = folder / REFERENCES / name / file.name
    for target in targets:
        if target.library and Path(target.library).is_file():
            paths[_library_name(target.library)] = Path(target.library)
    return paths


def _library_name(library: str) -> str:
    return f"{LIBRARIES}/{hashlib.sha256(library.encode()).hexdigest()[:12]}-{Path(library).name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A campaign with its files in a folder of this host."""

    campaign: CampaignRecord
    record: JobRecord
    artifacts: tuple[Artifact, ...]
    folder: Path

    @property
    def references(self) -> dict[str, Reference]:
        """The references with their files where they lie here."""
        return {name: self._relocated(name, reference) for name, reference in self.record.references.items()}

    def _relocated(self, name: str, reference: Reference) -> Reference:
        def here(tensor: TensorFile) -> TensorFile:
            file = self.folder / REFERENCES / name / Path(tensor.file).name
            return msgspec.structs.replace(tensor, file=str(file))

        labelled = reference.labelled
        if labelled:
            labelled = msgspec.structs.replace(labelled, inputs=here(labelled.inputs), outputs=here(labelled.outputs))
        return msgspec.structs.replace(
            reference,
            inputs=tuple(map(here, reference.inputs)),
            outputs=tuple(map(here, reference.outputs)),
            labelled=labelled,
        )

    def targets(self) -> tuple[Target, ...]:
        """The targets of the config, with libraries that were files where these lie here."""

        def here(target: Target) -> Target:
            path = self.folder / _library_name(target.library) if target.library else None
            return msgspec.structs.replace(target, library=str(path)) if path and path.is_file() else target

        return tuple(map(here, self.record.config.targets))


def carried_folder(campaign: str) -> Path:
    """Where this host has the files of a campaign; raises StoreError for an id that could lead elsewhere."""
    return cache_folder() / "lab" / checked_id(campaign).replace(":", "=")  # no id has =, no Windows path has :


def carried_campaigns() -> list[str]:
    """The ids of campaigns whose files are on this host."""
    folder = cache_folder() / "lab"
    return [path.name.replace("=", ":") for path in folder.iterdir()] if folder.is_dir() else []


def fetched(
    store: Store, campaign: CampaignRecord, folder: Path | None = None, ended: Callable[[], str] = str
) -> Carried:
    """A campaign with its files, by default in this user's cache; raises StoreError, DiskError and their like.

    All names are looked at before anything is written: who may submit could name any file of this computer. `ended`
    is as for `fetch_file`.
    """
    folder = folder or carried_folder(campaign.id)
    record, artifacts = campaign.job(), store.artifacts(campaign.id)
    for artifact in artifacts:
        file_in(folder, f"{ARTIFACTS}/{artifact.file}")
    for name in record.references:
        file_in(folder, f"{REFERENCES}/{name}/any")
    paths = [(file, file_in(folder, file.name)) for file in files_of(store, campaign.id)]
    for file, path in paths:
        fetch_file(store, file, path, ended)
    return Carried(campaign=campaign, record=record, artifacts=artifacts, folder=folder)


def planned_here(carried: Carried, facts: DeviceFacts) -> list[PlannedRun]:
    """What the campaign planned for a device, in its order: that decides which of equal runs counts."""
    record = carried.record
    place = {run.id: number for number, run in enumerate(record.planned) if run.device == facts.name}
    measurable = [artifact for artifact in carried.artifacts if artifact.source in record.references]
    legal, _ = plan_runs(record.config.runs, measurable, [facts])
    runs = [run for run in in_modes(legal, record.config.measure) if planned_id(run) in place]
    return sorted(runs, key=lambda run: place[planned_id(run)])


def plan_here(carried: Carried, planned_runs: list[PlannedRun], facts: DeviceFacts) -> CampaignPlan:
    """The plan of a device, with files where they lie on this host."""
    config, references = carried.record.config, carried.references
    models = {artifact.source: artifact.model for artifact in carried.artifacts}
    tables = carried.record.tables
    inputs = {}
    for source, reference in references.items():
        model = models.get(source, source)
        dimensions = dict(tables[model].dimensions) if model in tables else {}
        inputs[source] = inputs_of(references.get(model, reference), dimensions)
    predictions, _ = predict(
        planned_runs, {facts.name: facts}, oldest_release(config), carried.folder / ARTIFACTS, NoProgress()
    )
    return campaign_plan(
        config,
        carried.campaign.id,
        distinct(planned_runs),
        carried.folder,
        references=references,
        inputs=inputs,
        libraries=libraries_by_device({facts.name: facts}, carried.targets(), None),
        predictions=predictions,
    )
