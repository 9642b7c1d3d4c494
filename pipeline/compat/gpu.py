"""Why a file cannot run on a GPU: the rules of the provider that computes there, asked of a file."""

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import cast

from pipeline.core import files as storage
from pipeline.core import providers as provider_rules
from pipeline.core import workers
from pipeline.core.errors import Finding, ModelError
from pipeline.core.releases import Release
from pipeline.model import onnx_model
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import claiming as partition_claiming
from pipeline.partition import file_graph, provider_claims
from pipeline.partition import graph as partition_graph
from pipeline.partition import types as partition_types


@lru_cache(maxsize=16)
def _graph(path: Path, _size_bytes: int, _modified_ns: int) -> partition_graph.Graph:
    """The graph of a file; a job asks about each with several settings.

    Many ONNX files have no types of inner values, which all rules about types and shapes need: a session knows them.
    """
    graph = file_graph.view_of_file(path)
    unknown = [
        node.first_output for node in graph.nodes.values() if graph.value(node.first_output) == partition_types.UNKNOWN
    ]
    if unknown and path.suffix.lower() != ".ort":
        (outcome,) = workers.run_tasks(
            [workers.Task(label=path.name, call=partial(_types, str(path)))], timeout_seconds=TYPES_SECONDS
        )
        types = outcome.value or {}
        cast(dict[str, partition_types.Value], graph.values).update(
            (name, types[name]) for name in unknown if name in types
        )
    return graph


TYPES_SECONDS = 120.0


def _types(path: str) -> dict[str, partition_types.Value]:
    with storage.scratch() as work:
        return partition_types.infer(onnx_model.load_model(SourceModel(path=path), work).proto)


def gpu_findings(
    path: Path, release: Release, options: Mapping[str, str], where: str, half: bool | None = None
) -> Iterator[Finding]:
    """Why a file cannot be run on a GPU with these options, each as an error. ModelError for a file that is no model.

    `half`: whether the GPU has shader-f16.
    """
    rules = next((rules for rules in provider_rules.PROVIDER_RULES.values() if rules.run.gpu), None)
    if rules is None:
        return
    facts = path.stat()
    settings = claim_answer.Settings(
        provider=rules.name, ort_release=release, webgpu=claim_answer.webgpu_settings(options)
    )
    graph = _graph(path, facts.st_size, facts.st_mtime_ns)
    ort_format = path.suffix.lower() == ".ort"
    run = provider_claims.FileRun(graph=graph, settings=settings, where=where, ort_format=ort_format, half=half)
    yield from partition_claiming.claims_of(settings).run_findings(run)


def first_on_gpu(path: Path, release: Release, options: Mapping[str, str]) -> Finding | None:
    """The first reason why a file cannot run on a GPU; None where none is known, or the file cannot be read."""
    try:
        return next(gpu_findings(path, release, options, path.name), None)
    except (ModelError, OSError):
        return None
