"""A campaign that is measured elsewhere: the files that travel with it, and its plan where they have arrived.

A lab's host is handed a campaign as data with its files, and a package takes both to a phone that no cable reaches.
What is run there are the same functions of the same values as here.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from device_runner.device import DeviceFacts
from device_runner.spec import TensorFile
from pipeline import config as configs
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import specs as campaign_specs
from pipeline.campaign.record import CampaignRecord
from pipeline.check import result as check_result
from pipeline.compat import contexts as npu_contexts
from pipeline.config import Config
from pipeline.core import files as storage
from pipeline.core import progress as core_progress
from pipeline.core.variant import Artifact
from pipeline.job.bench import libraries_by_device
from pipeline.job.campaign_plan import campaign_plan
from pipeline.job.predicted import predict

LIBRARIES = "libraries"
"""The folder of libraries that targets name by a path, each by the digest of that path."""

CUSTOM_OPS, PLUGINS = "custom_ops", "plugins"
"""A host's folders of libraries by their own names: of custom operators each in one of its own, as a process loads the
first of a name, and of a plugin all in one, as its library loads the others beside it."""


def carried_files(
    folder: Path,
    artifacts: Iterable[Artifact],
    references: Mapping[str, check_result.Reference],
    config: Config,
    contexts: Iterable[npu_contexts.NpuContext],
) -> dict[str, Path]:
    """The files that other hosts need of a campaign, by their names in any output folder."""
    by_chip = [name for context in contexts for name in (context.file, context.binary)]
    paths = {f"{storage.ARTIFACTS}/{name}": folder / storage.ARTIFACTS / name for name in by_chip}
    files = (name for artifact in artifacts for name in artifact.files)
    paths |= {f"{storage.ARTIFACTS}/{name}": folder / storage.ARTIFACTS / name for name in files}
    for name, reference in references.items():
        for tensor in _tensors(reference):
            file = Path(tensor.file).name
            paths[f"{storage.REFERENCES}/{name}/{file}"] = folder / storage.REFERENCES / name / file
    for target in config.targets:
        if target.library and Path(target.library).is_file():
            paths[_library_name(target.library)] = Path(target.library)
    return paths | {library.name: Path(library.file) for library in carried_libraries(config)}


@dataclass(frozen=True, slots=True)
class CarriedLibrary:
    """A library that a config names by its file: of custom operators, or of a plugin, whose `key` tells its folder."""

    kind: str
    key: str
    file: str

    @property
    def name(self) -> str:
        """Its name in the database."""
        return f"{LIBRARIES}/{self.key}-{Path(self.file).name}"

    @property
    def place(self) -> str:
        """Where it lies in the campaign's folder of a host."""
        return f"{self.kind}/{self.key}/{Path(self.file).name}"


def carried_libraries(config: Config) -> list[CarriedLibrary]:
    """A config's custom operators and plugins."""
    custom = [CarriedLibrary(CUSTOM_OPS, str(number), file) for number, file in enumerate(config.custom_ops)]
    plugins = config.measure.plugins.items()
    return custom + [CarriedLibrary(PLUGINS, name, file) for name, files in plugins for file in files]


def _library_name(library: str) -> str:
    return f"{LIBRARIES}/{hashlib.sha256(library.encode()).hexdigest()[:12]}-{Path(library).name}"


def _tensors(value: object) -> Iterator[TensorFile]:
    """Every raw file that a reference, or a part of one, names: hosts judge outputs by all of them."""
    if isinstance(value, TensorFile):
        yield value
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _tensors(getattr(value, field))
    elif isinstance(value, tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _moved(value: Any, folder: Path) -> Any:
    """A reference, or a part of one, with its raw files in a folder."""
    if isinstance(value, TensorFile):
        return msgspec.structs.replace(value, file=str(folder / Path(value.file).name))
    if isinstance(value, msgspec.Struct):
        parts = {field: _moved(getattr(value, field), folder) for field in value.__struct_fields__}
        return msgspec.structs.replace(value, **parts)
    if isinstance(value, dict):
        return {key: _moved(part, folder) for key, part in value.items()}
    return tuple(_moved(part, folder) for part in value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A campaign with its files in a folder of this host."""

    campaign: CampaignRecord
    record: campaign_record.JobRecord
    artifacts: tuple[Artifact, ...]
    folder: Path

    @property
    def references(self) -> dict[str, check_result.Reference]:
        """The references with their files where they lie here."""
        folder = self.folder / storage.REFERENCES
        return {name: _moved(reference, folder / name) for name, reference in self.record.references.items()}

    def targets(self) -> tuple[configs.Target, ...]:
        """The targets of the config, with libraries that were files where these lie here."""
        targets = []
        for target in self.record.config.targets:
            path = self.folder / _library_name(target.library) if target.library else None
            is_here = path is not None and path.is_file()
            targets.append(msgspec.structs.replace(target, library=str(path)) if is_here else target)
        return tuple(targets)

    @property
    def config(self) -> Config:
        """The config with its custom operators and plugins where they lie here."""
        config = self.record.config
        paths = {library.file: str(self.folder / library.place) for library in carried_libraries(config)}
        plugins = {name: tuple(paths[file] for file in files) for name, files in config.measure.plugins.items()}
        return msgspec.structs.replace(
            config,
            custom_ops=tuple(paths[file] for file in config.custom_ops),
            measure=msgspec.structs.replace(config.measure, plugins=plugins),
        )


def planned_here(carried: Carried, facts: DeviceFacts) -> list[campaign_planned.PlannedRun]:
    """What the campaign planned for a device, in its order: that decides which of equal runs counts.

    Custom operators are those that came with it, before any of the same name that an agent was started with.
    """
    record = carried.record
    positions = {run.id: position for position, run in enumerate(record.planned) if run.device == facts.name}
    measurable = [artifact for artifact in carried.artifacts if artifact.source in record.references]
    legal, _ = planning.plan_runs(record.config.runs, measurable, [facts], contexts=record.contexts, advised=False)
    runs = [
        replace(run, options=msgspec.structs.replace(run.options, custom_ops=carried.config.custom_ops))
        for run in planning.in_modes(legal, record.config.measure)
        if run.id in positions
    ]
    return sorted(runs, key=lambda run: positions[run.id])


def plan_here(
    carried: Carried, planned_runs: list[campaign_planned.PlannedRun], facts: DeviceFacts
) -> campaign_measure.CampaignPlan:
    """The plan of a device, with files where they lie on this host."""
    config, references = carried.config, carried.references
    models = {artifact.source: artifact.model for artifact in carried.artifacts}
    tables = carried.record.tables
    inputs = {}
    for source, reference in references.items():
        model = models.get(source, source)
        dimensions = tables[model].sizes if model in tables else {}
        inputs[source] = campaign_specs.inputs_of(references.get(model, reference), dimensions)
    predictions, _ = predict(
        planned_runs,
        {facts.name: facts},
        config.targets,
        carried.folder / storage.ARTIFACTS,
        core_progress.NoProgress(),
    )
    return campaign_plan(
        config,
        carried.campaign.id,
        planning.distinct(planned_runs),
        carried.folder,
        references=references,
        inputs=inputs,
        libraries=libraries_by_device({facts.name: facts}, carried.targets(), None),
        predictions=predictions,
    )
