"""What the paths of a gate have to measure: model files, bundles and output folders as runs of no device yet."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runner import files as runner_files
from device_runner.spec import RunOptions, TensorFile
from pipeline import config as configs
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import run_options
from pipeline.campaign import specs as campaign_specs
from pipeline.core import files as storage
from pipeline.core import variant as core_variant
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Artifact
from pipeline.job import file_runs
from pipeline.job import stored as job_stored
from pipeline.release import manifest as bundle_manifest

log = logging.getLogger(__name__)

MODEL_FILES = (".ort", ".onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSource:
    """What a path has: the runs of what ships, by model and target, and every planned run, by model and run.

    They are of no device yet. `library` is libonnxruntime to run with; without one phones have that of the first of
    `targets` that is like them.
    """

    path: Path
    shipped: dict[tuple[str, str], campaign_planned.PlannedRun]
    planned: dict[tuple[str, str], campaign_planned.PlannedRun] = field(default_factory=dict)
    targets: tuple[configs.Target, ...] = ()
    library: str | None = None

    @property
    def by_run(self) -> dict[tuple[str, str], campaign_planned.PlannedRun]:
        """Every planned run by model and run; of a bundle, which has no plan, what ships."""
        return self.planned or {(run.model, run.way): run for run in self.shipped.values()}


def model_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those of some paths that are model files by their names."""
    return tuple(path for path in paths if path.is_file() and path.suffix.lower() in MODEL_FILES)


def read_sources(
    paths: Sequence[Path], files: file_runs.FilesOnData, options: Sequence[RunOptions], work: Path
) -> tuple[PairSource, ...]:
    """Each path as what can be measured: a bundle or an output folder with its own options and inputs, a model file,
    which is one of `files`, with these options and with inputs made in `work`, which must stay while they are run.
    Guessed sizes of inputs are logged.

    Raises ConfigError for what cannot be measured, CheckFailed for a bundle that was changed.
    """
    inputs = file_runs.inputs_of_files(files, work)
    for finding in file_runs.guess_warnings(file_runs.guessed_sizes(files, inputs)):
        log.warning("%s: %s", finding.where, finding.text)
    inputs = {name: given for name, given in inputs.items() if given != campaign_planned.Inputs()}
    return tuple(_source(path, options, inputs.get(str(path))) for path in paths)


def _source(path: Path, options: Sequence[RunOptions], inputs: campaign_planned.Inputs | None) -> PairSource:
    if path.is_dir():
        if (path / bundle_manifest.MANIFEST_FILE).is_file():
            return _bundle_source(path)
        if job_stored.has_campaigns(path):
            return _folder_source(path)
    elif model_files([path]):
        digest = runner_files.sha256(path)
        # Two files have no models or targets in common: their options are what pairs them.
        runs = {
            ("", run_options.options_name(way)): _planned_run(path.name, path.stem, path, digest, way, inputs)
            for way in options
        }
        return PairSource(path=path, shipped=runs)
    raise ConfigError(
        "there is nothing to measure",
        where=str(path),
        why="it is no model file (.ort, .onnx), no bundle and no output folder of `ort-mobile run`"
        if path.exists()
        else "no file or folder has this name",
        remedy="name a model file, OUTPUT/bundle, or OUTPUT with its artifacts",
    )


def _planned_run(
    name: str, variant: str, file: Path, digest: str, options: RunOptions, inputs: campaign_planned.Inputs | None
) -> campaign_planned.PlannedRun:
    return campaign_planned.PlannedRun(
        device="",
        model=name,
        variant=variant,
        source=name,
        file=str(file.resolve()),
        sha256=digest,
        size_bytes=file.stat().st_size,
        options=options,
        inputs=inputs,
    )


def _bundle_source(folder: Path) -> PairSource:
    manifest = bundle_manifest.verify_bundle(folder)
    digests = {file.path: file.sha256 for file in manifest.files}
    custom_ops = bundle_manifest.bundled_libraries(folder)
    references = {reference.model: reference for reference in manifest.references}
    sizes = {model.model: model.dimensions for model in manifest.content.models}
    runs = {}
    for ships in manifest.content.ships:
        kept = references.get(core_variant.in_precision(ships.model, ships.variant.precision))
        tensors = tuple(
            TensorFile(
                name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, file=str((folder / tensor.path).resolve())
            )
            for tensor in (kept.inputs if kept else ())
        )
        inputs = (
            campaign_planned.Inputs(tensors=tensors)
            if tensors
            else campaign_planned.Inputs(dimensions=sizes.get(ships.model, {}))
        )
        runs[ships.model, ships.target] = _planned_run(
            ships.model,
            ships.variant.name,
            folder / ships.file,
            digests[ships.file],
            msgspec.structs.replace(ships.runs[0], custom_ops=custom_ops),
            inputs if inputs != campaign_planned.Inputs() else None,
        )
    return PairSource(path=folder, shipped=runs)


def _folder_source(folder: Path) -> PairSource:
    campaign = job_stored.stored(folder, None, None)
    record = campaign.record
    # Of one name the first is loaded: that of the bundle was measured, the config's may have been built again since.
    custom_ops = (
        *bundle_manifest.bundled_libraries(folder / storage.BUNDLE),
        *filter(os.path.isfile, record.config.custom_ops),
    )

    def inputs(source: str) -> campaign_planned.Inputs | None:
        """Those of the model's check, where the folder has them now: it may have been moved since."""
        reference, table = record.references.get(source), record.tables.get(source.partition("@")[0])
        tensors = reference.inputs if reference else ()
        files = [folder / storage.REFERENCES / source / Path(tensor.file).name for tensor in tensors]
        if reference is None or not all(path.is_file() for path in files):
            return campaign_planned.Inputs(dimensions=table.sizes) if table and table.sizes else None
        moved = tuple(
            msgspec.structs.replace(tensor, file=str(path.resolve()))
            for tensor, path in zip(tensors, files, strict=True)
        )
        return replace(campaign_specs.inputs_of(reference, {}), tensors=moved, labelled=None)

    def planned_run(artifact: Artifact, options: RunOptions) -> campaign_planned.PlannedRun:
        file = str((folder / storage.ARTIFACTS / artifact.file).resolve())
        options = msgspec.structs.replace(options, custom_ops=custom_ops)
        return replace(campaign_planned.run_of("", artifact, options), file=file, inputs=inputs(artifact.source))

    shipped = {
        (choice.artifact.model, choice.target.name): planned_run(choice.artifact, choice.options)
        for choice in campaign.choices
    }
    artifacts = {(artifact.model, artifact.variant.name): artifact for artifact in campaign.report.artifacts}
    runs = [
        planned_run(artifacts[planned.model, planned.variant], planned.options)
        for planned in record.planned
        if (planned.model, planned.variant) in artifacts and planned.mode is configs.MeasureMode.STEADY
    ]
    by_run = {(planned.model, planned.way): planned for planned in runs}
    return PairSource(path=folder, shipped=shipped, planned=by_run, targets=record.config.targets)
