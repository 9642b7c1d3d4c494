"""The needs of artifacts where they lie: files, folders and zip archives."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from pipeline.core.errors import ModelError
from pipeline.model.ort_format import OrtModel, read_ort
from pipeline.model.sources import SourceModel, Spool, find_models
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
    read: list[_Read] = []
    errors: list[ModelError] = []
    for source in find_models(paths, SUFFIXES):
        try:
            read.append(_needs_either_way(source, providers))
        except ModelError as error:
            errors.append(ModelError(error.what, where=source.name, why=error.why, remedy=error.remedy))
    extended = extended or bool(providers) or any(artifact.replays for artifact in read)
    found = [
        ArtifactNeeds(name=artifact.name, needs=artifact.extended if extended else artifact.plain) for artifact in read
    ]
    return found, errors


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    """The needs in both kinds of build, because the last artifact may decide which kind it is."""

    name: str
    replays: bool
    plain: Needs
    extended: Needs


def _needs_either_way(source: SourceModel, providers: Sequence[str]) -> _Read:
    model = _read(source)
    return _Read(
        name=source.name,
        replays=replays(model),
        plain=needs_of(model, providers=providers),
        extended=needs_of(model, providers=providers, extended=True),
    )


def _read(source: SourceModel) -> OrtModel:
    """Read a file, or a member of an archive by way of a temporary file (so that weights never fill the memory)."""
    if not source.member:
        return read_ort(Path(source.path))
    with tempfile.TemporaryDirectory(prefix="ort-mobile-") as folder:
        return read_ort(Spool(source, Path(folder)).fetch_model())
