"""Operator configs of artifacts: what a build needs to run all that a folder has."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pipeline.convert.onnx_needs import onnx_needs, unproven
from pipeline.convert.request import (
    FileNeeds,
)
from pipeline.core import files as storage
from pipeline.core.variant import Artifact

log = logging.getLogger(__name__)


def write_configs(
    output: Path, artifacts: Sequence[Artifact], needs: Mapping[str, FileNeeds], abis: Sequence[str], release: str
) -> tuple[Path, ...]:
    """Write the operator configs, with and without types, that a build needs to run all artifacts of the folder.

    Those of earlier conversions into it count, too: the app that takes the folder takes them all.
    """
    files = [output / Path(artifact.file).name for artifact in artifacts]
    earlier = [file for file in sorted(output.rglob("*.ort")) if file not in set(files)]
    read = {str(output / name): file for name, file in needs.items()}
    texts = config_texts(files, earlier=earlier, read=read, abis=abis)
    if open_question := unproven(files, [release]):
        log.warning("%s: %s", open_question.where, open_question.text)
    for name, text in texts.items():
        storage.write_text(output / name, text)
    return tuple(output / name for name in texts)


def config_texts(
    files: Sequence[Path],
    providers: Sequence[str] = (),
    *,
    extended: bool = False,
    earlier: Sequence[Path] = (),
    read: Mapping[str, FileNeeds] = {},
    abis: Collection[str] = (),
) -> dict[str, str]:
    """Both operator configs of some artifacts by their file names: the union of what each needs.

    With an ONNX file among them the build is a full one, for `abis` (all, where none is named). `extended`: the build
    is no plain minimal one, whatever the artifacts ask for. `earlier`: more artifacts, which are left out with a
    warning where they cannot be read; one of `files` that cannot is an error. `read`, by path, need not be read again.
    """
    from pipeline import required_ops

    distinct = {
        (file.stat().st_dev, file.stat().st_ino): file for file in (*earlier, *files)
    }  # equal ones are one file
    limited = [file for file in distinct.values() if file.suffix.lower() == ".ort"]
    optimized = [file for file in distinct.values() if file.suffix.lower() == ".onnx"]
    replays = any(needs.facts.replays for needs in read.values())
    seen = {path: (dict.fromkeys(needs.minimal, ()), dict.fromkeys(needs.extended, ())) for path, needs in read.items()}
    wide_build = extended or replays or bool(optimized)
    needs_by_file, failed = (
        required_ops.needs_of_artifacts(limited, providers=providers, extended=wide_build, cached=seen)
        if limited
        else ({}, [])
    )
    ours = {str(file) for file in files}
    for error in failed:
        if error.where in ours:
            raise error
        log.warning("%s is not in the operator config: %s: %s", error.where, error.what, error.why)
    of_onnx, unknown = onnx_needs(optimized, abis=abis, providers=providers) if optimized else ({}, [])
    needs_by_file |= of_onnx
    for error in unknown:
        log.warning("operator config: %s: %s", error.where, error.text)
    needs = {need for needs in needs_by_file.values() for need in needs}
    kinds = {storage.CONFIG_FILE: False, storage.TYPED_CONFIG_FILE: True}
    return {name: required_ops.render(required_ops.from_needs(needs, types=types)) for name, types in kinds.items()}
