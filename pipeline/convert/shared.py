"""Weights of several sizes of one model in one file: ONNX files can have that, files in ORT format cannot.

ONNX Runtime looks for the file beside a model that is opened by its path. Its name has the first digits of its sha256:
the digest of a model's file stands for its weights, too, and equal weights of two variants are one file.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from pipeline.core.files import scratch, sha256_of, storage_errors, write_bytes
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact
from pipeline.core.workers import Task, memory_budget, needed_bytes, run_tasks, time_limit
from pipeline.model.onnx_model import load_model
from pipeline.model.sources import SourceModel
from pipeline.passes.base import NotApplicable, PassContext
from pipeline.passes.edit import save_model
from pipeline.passes.surgery import ExternalOptions, to_external

FIRST_NAME = "all.weights"
"""Of the file until all is in it."""


def shared_weights(
    groups: Iterable[tuple[str, Sequence[Artifact]]], output: Path, progress: Progress
) -> dict[str, Artifact]:
    """The artifacts whose weights are now in one file of the output folder, by their files.

    A group is the same ONNX variant of several sizes, with the name of the open model. One that has a file without a
    weight of 1,024 bytes stays as it is.
    """
    shared: dict[str, Artifact] = {}
    with scratch(output) as work:
        tasks = {}
        for name, artifacts in groups:
            folder = work / f"{name}.{artifacts[0].variant.name}"
            call = partial(share_weights, tuple(artifacts), name, str(output), str(folder))
            needed = needed_bytes(2 * max(artifact.size_bytes for artifact in artifacts))
            task = Task(label=f"{name} {artifacts[0].variant.name}", call=call, memory_bytes=needed)
            tasks[task] = (folder, sum(artifact.size_bytes for artifact in artifacts))
        limit = time_limit(size for _, size in tasks.values())
        with progress.stage("share weights", len(tasks)) as stage:
            for outcome in run_tasks(tasks, memory_bytes=memory_budget(), timeout_seconds=limit):
                if outcome.error:
                    raise outcome.error
                for name in dict.fromkeys(name for row in outcome.value or () for name in (row.weights, row.file)):
                    with storage_errors(output / name):
                        (tasks[outcome.task][0] / name).replace(output / name)
                shared |= {artifact.file: artifact for artifact in outcome.value or ()}
                stage.done()
    return shared


def share_weights(artifacts: tuple[Artifact, ...], name: str, output_folder: str, folder: str) -> tuple[Artifact, ...]:
    """Write the files of the artifacts to a folder of their own, with their weights in NAME-DIGEST.weights beside them.

    () where a file has no weight that is large enough.
    """
    from onnx import ModelProto

    place = Path(folder)
    place.mkdir()
    context = PassContext(folder=place, where=name)
    for artifact in artifacts:
        model = load_model(SourceModel(path=str(Path(output_folder, artifact.file))), place)
        try:
            save_model(to_external(model, ExternalOptions(), context), place / artifact.file, FIRST_NAME)
        except NotApplicable:
            return ()
    digest = sha256_of(place / FIRST_NAME)
    weights = (place / FIRST_NAME).rename(place / f"{name}-{digest[:12]}.weights")
    shared = []
    for artifact in artifacts:
        path = place / artifact.file
        proto = ModelProto.FromString(path.read_bytes())
        for entry in (entry for tensor in proto.graph.initializer for entry in tensor.external_data):
            if entry.key == "location":
                entry.value = weights.name
        write_bytes(path, proto.SerializeToString(deterministic=True))
        changed = msgspec.structs.replace(
            artifact, size_bytes=path.stat().st_size, sha256=sha256_of(path), weights=weights.name,
            weights_bytes=weights.stat().st_size, weights_sha256=digest,
        )  # fmt: skip
        shared.append(changed)
    return tuple(shared)
