"""The needs of artifacts where they lie: files, folders and zip archives."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from pipeline.errors import ModelError
from pipeline.model_sources import SourceModel, Spool, find_models
from pipeline.ort_format import OrtModel, read_ort
from pipeline.required_ops.needs import Needs, needs_of, replays

SUFFIXES = (".ort",)


class ArtifactNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What one artifact needs; `name` as in find_models."""

    name: str
    needs: Needs


def needs_of_artifacts(
    paths: Iterable[str | Path], *, providers: Sequence[str] = (), extended: bool = False
) -> tuple[list[ArtifactNeeds], list[ModelError]]:
    """The needs of all artifacts under paths that one build is to run, and the errors of those that cannot be read.

    One artifact with saved optimizations makes the build an extended one, and so for all. Raises ConfigError for
    paths without artifacts.
    """
    models: list[tuple[str, OrtModel]] = []
    errors: list[ModelError] = []
    for source in find_models(paths, SUFFIXES):
        try:
            models.append((source.name, _read(source)))
        except ModelError as error:
            errors.append(error)
    extended = extended or bool(providers) or any(replays(model) for _, model in models)
    found = []
    for name, model in models:
        try:
            found.append(ArtifactNeeds(name=name, needs=needs_of(model, providers=providers, extended=extended)))
        except ModelError as error:
            errors.append(ModelError(error.what, where=name, why=error.why, remedy=error.remedy))
    return found, errors


def _read(source: SourceModel) -> OrtModel:
    """Read a file, or a member of an archive by way of a temporary file (so that weights never fill the memory)."""
    if not source.member:
        return read_ort(Path(source.path))
    with tempfile.TemporaryDirectory(prefix="ort-mobile-") as folder:
        try:
            return read_ort(Spool(source, Path(folder)).fetch_model())
        except ModelError as error:
            raise ModelError(error.what, where=source.name, why=error.why, remedy=error.remedy) from error
