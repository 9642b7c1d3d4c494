"""The weights of one model's sizes once, in a file beside their ONNX files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version as installed_version
from pathlib import Path

import msgspec

from pipeline.convert.precisions import Conversion
from pipeline.core import files as storage
from pipeline.core import releases as ort_releases
from pipeline.core import workers
from pipeline.core.progress import Progress
from pipeline.core.releases import Release
from pipeline.core.variant import Artifact, Style
from pipeline.model.sources import SourceModel
from pipeline.passes import base as passes_base
from pipeline.passes.base import NotApplicable

SHARED_SINCE = Release(1, 23)
"""Providers of earlier releases refuse nodes whose weights are in another file (ep_rules D.2.6)."""


def with_shared_weights(
    converted: Sequence[Conversion], sizes: Mapping[str, str], output: Path, release: str, progress: Progress
) -> tuple[Conversion, ...]:
    """The same, where the ONNX files of one variant of several sizes have their weights once, in a file beside them.

    `sizes` has, by the names of models of one size, the open model that they are of. A model that has a file without a
    weight of 1,024 bytes stays as it is; files in ORT format have their weights in them.
    """
    groups: dict[tuple[str, str], list[Artifact]] = {}
    can_share = ort_releases.line_of(release or installed_version("onnxruntime")) >= SHARED_SINCE
    for conversion in converted if can_share else ():
        for artifact in conversion.artifacts:
            if artifact.variant.style is Style.ONNX:
                key = (sizes.get(conversion.model.name, conversion.model.name), artifact.variant.name)
                groups.setdefault(key, []).append(artifact)
    several = {key: artifacts for key, artifacts in groups.items() if len(artifacts) > 1}
    if not several:
        return tuple(converted)
    shared: dict[str, Artifact] = {}
    with storage.scratch(output) as work, progress.stage("share weights", len(several)) as stage:
        tasks = {}
        for (name, variant), artifacts in several.items():
            folder = work / f"{name}.{variant}"
            call = partial(share_weights, tuple(artifacts), name, str(output), str(folder))
            needed = workers.needed_bytes(2 * max(artifact.size_bytes for artifact in artifacts))
            tasks[workers.Task(label=f"{name} {variant}", call=call, memory_bytes=needed)] = folder
        limit = workers.time_limit(sum(artifact.size_bytes for artifact in artifacts) for artifacts in several.values())
        for outcome in workers.run_tasks(tasks, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
            if outcome.error:
                raise outcome.error
            for file in dict.fromkeys(
                file for artifact in outcome.value or () for file in (artifact.weights, artifact.file)
            ):
                with storage.storage_errors(output / file):
                    (tasks[outcome.task] / file).replace(output / file)
            shared |= {artifact.file: artifact for artifact in outcome.value or ()}
            stage.done()
    changed = [
        tuple(shared.get(artifact.file, artifact) for artifact in conversion.artifacts) for conversion in converted
    ]
    return tuple(
        replace(
            conversion, result=conversion.result and msgspec.structs.replace(conversion.result, artifacts=artifacts)
        )
        for conversion, artifacts in zip(converted, changed, strict=True)
    )


FIRST_NAME = "all.weights"
"""Of the file of weights until all is in it."""


def share_weights(artifacts: tuple[Artifact, ...], name: str, output_folder: str, folder: str) -> tuple[Artifact, ...]:
    """Write the files of the artifacts to a folder of their own, with their weights in NAME-DIGEST.weights beside them.

    ONNX Runtime looks for the file beside a model that is opened by its path. Its name has the first digits of its
    sha256: the digest of a model's file stands for its weights, too, and equal weights of two variants are one file.
    () where a file has no weight of 1,024 bytes.
    """
    from onnx import ModelProto

    from pipeline.model import onnx_model
    from pipeline.passes import saving as passes_saving
    from pipeline.passes import surgery

    target_folder = Path(folder)
    target_folder.mkdir()
    context = passes_base.PassContext(folder=target_folder, where=name)
    for artifact in artifacts:
        model = onnx_model.load_model(SourceModel(path=str(Path(output_folder, artifact.file))), target_folder)
        try:
            passes_saving.save_model(
                surgery.to_external(model, surgery.ExternalOptions(), context),
                target_folder / artifact.file,
                FIRST_NAME,
            )
        except NotApplicable:
            return ()
    digest = storage.sha256_of(target_folder / FIRST_NAME)
    weights = (target_folder / FIRST_NAME).rename(target_folder / f"{name}-{digest[:12]}.weights")
    shared = []
    for artifact in artifacts:
        path = target_folder / artifact.file
        proto = ModelProto.FromString(path.read_bytes())
        for entry in (entry for tensor in proto.graph.initializer for entry in tensor.external_data):
            if entry.key == "location":
                entry.value = weights.name
        storage.write_bytes(path, proto.SerializeToString(deterministic=True))
        changed = msgspec.structs.replace(
            artifact,
            size_bytes=path.stat().st_size,
            sha256=storage.sha256_of(path),
            weights=weights.name,
            weights_bytes=weights.stat().st_size,
            weights_sha256=digest,
        )
        shared.append(changed)
    return tuple(shared)
