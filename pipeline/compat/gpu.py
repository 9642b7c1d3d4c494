"""Why a file cannot run with WebGPU: the rules of pipeline/partition/webgpu_runs.py, asked of a file."""

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import cast

from pipeline.core.errors import Finding, ModelError
from pipeline.core.files import scratch
from pipeline.core.providers import WEBGPU
from pipeline.core.releases import Release
from pipeline.core.workers import Task, run_tasks
from pipeline.model.onnx_model import load_model
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import Settings, webgpu_settings
from pipeline.partition.graph import Graph, view_of_file
from pipeline.partition.types import UNKNOWN, Value, infer
from pipeline.partition.webgpu_runs import run_findings


@lru_cache(maxsize=16)
def _graph(path: Path, _size_bytes: int, _modified_ns: int) -> Graph:
    """The graph of a file; a job asks about each with several settings.

    Many ONNX files have no types of inner values, which all rules about types and shapes need: a session knows them.
    """
    graph = view_of_file(path)
    unknown = [node.first_output for node in graph.nodes.values() if graph.value(node.first_output) == UNKNOWN]
    if unknown and path.suffix.lower() != ".ort":
        (outcome,) = run_tasks([Task(label=path.name, call=partial(_types, str(path)))], timeout_seconds=TYPES_SECONDS)
        types = outcome.value or {}
        cast(dict[str, Value], graph.values).update((name, types[name]) for name in unknown if name in types)
    return graph


TYPES_SECONDS = 120.0


def _types(path: str) -> dict[str, Value]:
    with scratch() as work:
        return infer(load_model(SourceModel(path=path), work).proto)


def gpu_findings(
    path: Path, release: Release, options: Mapping[str, str], where: str, half: bool | None = None
) -> Iterator[Finding]:
    """Why a file cannot be run with WebGPU and its options, each as an error. ModelError for a file that is no model.

    `half`: whether the GPU has shader-f16.
    """
    facts = path.stat()
    settings = Settings(provider=WEBGPU, ort_release=release, webgpu=webgpu_settings(options))
    graph = _graph(path, facts.st_size, facts.st_mtime_ns)
    ort_format = path.suffix.lower() == ".ort"
    yield from run_findings(graph, settings, where, ort_format=ort_format, half=half)


def first_on_gpu(path: Path, release: Release, options: Mapping[str, str]) -> Finding | None:
    """The first reason why a file cannot run with WebGPU; None where none is known, or the file cannot be read."""
    try:
        return next(gpu_findings(path, release, options, path.name), None)
    except (ModelError, OSError):
        return None
