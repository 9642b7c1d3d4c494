"""A campaign as data: the files that hosts need of it, and its plan built again from what is stored."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from device_runner.files import cache_folder
from device_runner.probe.build import units
from device_runner.spec import TensorFile
from pipeline.campaign.lab.queue import LabFile, fetch_file
from pipeline.campaign.record import CampaignRecord, JobRecord
from pipeline.campaign.store import Store
from pipeline.check.reference import Reference
from pipeline.config import Target
from pipeline.core.variant import Artifact
from pipeline.job.prepare import ARTIFACTS, REFERENCES
from pipeline.job.record import versions

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
    here = lab_versions()
    pairs = {name: (here.get(name), record.versions.get(name)) for name in COMPARED}
    other = [f"{name} {mine}, the campaign {its}" for name, (mine, its) in pairs.items() if mine != its]
    return f"this host has {'; '.join(other)}" if other else ""


def carried_files(
    folder: Path, artifacts: Iterable[Artifact], references: Mapping[str, Reference], targets: Iterable[Target]
) -> dict[str, Path]:
    """The files that other hosts need of a campaign, by their names in any output folder."""
    found = {f"{ARTIFACTS}/{artifact.file}": folder / ARTIFACTS / artifact.file for artifact in artifacts}
    for name, reference in references.items():
        labelled = (reference.labelled.inputs, reference.labelled.outputs) if reference.labelled else ()
        for tensor in (*reference.inputs, *reference.outputs, *labelled):
            file = Path(tensor.file)
            found[f"{REFERENCES}/{name}/{file.name}"] = folder / REFERENCES / name / file.name
    for target in targets:
        if target.library and Path(target.library).is_file():
            found[_library_name(target.library)] = Path(target.library)
    return found


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
        return {name: self._relocated(name, one) for name, one in self.record.references.items()}

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


def carried_folder(campaign: str = "") -> Path:
    """Where this host has the files of a campaign; without one, the folder in which those of all campaigns are."""
    return cache_folder() / "lab" / campaign.replace(":", "-")


def fetched(store: Store, campaign: CampaignRecord, files: Iterable[LabFile], folder: Path | None = None) -> Carried:
    """A campaign with its files, by default in this user's cache; raises StoreError, DiskFullError and their like."""
    folder = folder or carried_folder(campaign.id)
    for file in files:
        fetch_file(store, file, folder / file.name)
    return Carried(campaign=campaign, record=campaign.job(), artifacts=store.artifacts(campaign.id), folder=folder)
