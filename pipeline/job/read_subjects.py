"""Reading what is measured in pairs: model files, bundles and output folders."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from device_runner.files import sha256
from device_runner.spec import NnapiFlag, RunOptions, TensorFile
from pipeline.campaign.options import options_name
from pipeline.campaign.plan import Inputs
from pipeline.config import MeasureMode
from pipeline.core.errors import ConfigError
from pipeline.core.variant import Artifact, in_precision
from pipeline.job.judge import inputs_of
from pipeline.job.perf_files import PerfOrder, inputs_of_files
from pipeline.job.prepare import ARTIFACTS, REFERENCES
from pipeline.job.stored import has_campaigns, stored
from pipeline.job.subjects import Subject, SubjectSource
from pipeline.release.manifest import MANIFEST_FILE, Manifest, Shipped, verify_bundle

MODEL_FILES = (".ort", ".onnx")


def model_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those of some paths that are model files by their names."""
    return tuple(path for path in paths if path.is_file() and path.suffix.lower() in MODEL_FILES)


def read_sources(paths: Sequence[Path], order: PerfOrder, work: Path) -> tuple[SubjectSource, ...]:
    """Each path as what can be measured: a bundle or an output folder with its own options and inputs, a model file
    with those of the order, made in `work`, which must stay while they are run.

    Raises ConfigError for what cannot be measured, CheckFailed for a bundle that was changed.
    """
    inputs = inputs_of_files(order, work) if order.dimensions or order.data.given else {}
    return tuple(_source(path, order.options, inputs.get(str(path))) for path in paths)


def _source(path: Path, options: Sequence[RunOptions], inputs: Inputs | None) -> SubjectSource:
    if path.is_dir():
        if (path / MANIFEST_FILE).is_file():
            return _of_bundle(path)
        if has_campaigns(path):
            return _of_folder(path)
    elif model_files([path]):
        return _of_file(path, options, inputs)
    raise ConfigError(
        "there is nothing to measure", where=str(path),
        why="it is no model file (.ort, .onnx), no bundle and no output folder of `ort-mobile run`" if path.exists()
        else "no file or folder has this name",
        remedy="name a model file, OUTPUT/bundle, or OUTPUT with its artifacts",
    )  # fmt: skip


def _of_file(path: Path, options: Sequence[RunOptions], inputs: Inputs | None) -> SubjectSource:
    """A file: what stands for its target is the name of the options, what stands for its model nothing."""
    digest = sha256(path)
    found = {
        ("", options_name(one)): Subject(
            model=path.name,
            run=f"{path.stem}/{options_name(one)}",
            file=path.resolve(),
            sha256=digest,
            options=one,
            inputs=inputs,
        )
        for one in options
    }
    return SubjectSource(path=path, shipped=found)


def _of_bundle(folder: Path) -> SubjectSource:
    manifest = verify_bundle(folder)
    digests = {file.path: file.sha256 for file in manifest.files}
    shipped = {
        (one.model, one.target): Subject(
            model=one.model,
            run=f"{one.variant.name}/{options_name(_options(one))}",
            file=(folder / one.file).resolve(),
            sha256=digests[one.file],
            options=_options(one),
            inputs=_kept_inputs(manifest, folder, one),
        )
        for one in manifest.content.ships
    }
    return SubjectSource(path=folder, shipped=shipped)


def _options(one: Shipped) -> RunOptions:
    """The chosen way to run: bundles of version 1 have it in their own fields alone."""
    if one.runs:
        return one.runs[0]
    return RunOptions(
        provider=one.provider, provider_options=one.provider_options, session_config=one.session_config,
        flags=tuple(NnapiFlag(flag) for flag in one.flags),
    )  # fmt: skip


def _kept_inputs(manifest: Manifest, folder: Path, one: Shipped) -> Inputs | None:
    source = in_precision(one.model, one.variant.precision)
    kept = next((each for each in manifest.references if each.model == source and each.inputs), None)
    dimensions = next((each.dimensions for each in manifest.content.models if each.model == one.model), {})
    tensors = tuple(
        TensorFile(name=one.name, dtype=one.dtype, shape=one.shape, file=str((folder / one.path).resolve()))
        for one in (kept.inputs if kept else ())
    )
    return Inputs(tensors=tensors, dimensions={} if tensors else dimensions) if tensors or dimensions else None


def _of_folder(folder: Path) -> SubjectSource:
    known = stored(folder, None, None)
    artifacts = {(one.model, one.variant.name): one for one in known.report.artifacts}

    def inputs(source: str) -> Inputs | None:
        """Those of the model's check, where the folder has them now: it may have been moved since."""
        reference, table = known.record.references.get(source), known.record.tables.get(source.partition("@")[0])
        files = [folder / REFERENCES / source / Path(one.file).name for one in (reference.inputs if reference else ())]
        if reference is None or not all(path.is_file() for path in files):
            return Inputs(dimensions=dict(table.dimensions)) if table and table.dimensions else None
        tensors = tuple(
            msgspec.structs.replace(tensor, file=str(path.resolve()))
            for tensor, path in zip(reference.inputs, files, strict=True)
        )
        return replace(inputs_of(reference, {}), tensors=tensors, labelled=None)

    def subject(artifact: Artifact, options: RunOptions) -> Subject:
        whole = {**artifact.session_options, **options.session_config}
        return Subject(
            model=artifact.model,
            run=f"{artifact.variant.name}/{options_name(options)}",
            file=(folder / ARTIFACTS / artifact.file).resolve(),
            sha256=artifact.sha256,
            options=msgspec.structs.replace(options, session_config=whole),
            inputs=inputs(artifact.source),
            targets=known.record.config.targets,
        )

    shipped = {(c.artifact.model, c.target.name): subject(c.artifact, c.options) for c in known.choices}
    planned = (
        subject(artifacts[run.model, run.variant], run.options)
        for run in known.record.planned
        if (run.model, run.variant) in artifacts and run.mode is MeasureMode.STEADY
    )
    return SubjectSource(path=folder, shipped=shipped, planned={(one.model, one.run): one for one in planned})
