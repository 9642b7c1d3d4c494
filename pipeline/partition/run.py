"""Judges many models in worker processes, where a crash of ONNX Runtime costs one model."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.model_sources import SourceModel, find_models
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.judge import PartitionRequest, failed_answer, judge
from pipeline.workers import Task, run_tasks

SUFFIXES = (".onnx", ".ort")
TIMEOUT_SECONDS = 120.0


def judge_paths(
    paths: Sequence[str | Path], settings: Settings, optimize: Optimize, *, processes: int = 1
) -> Iterator[ModelAnswer]:
    """An answer for every model under files, folders and archives, in that order; `error` is set where there is none.

    ConfigError when a path does not exist or holds no model.
    """
    sources = find_models(paths, SUFFIXES)
    tasks = [
        Task(label=source.name, request=PartitionRequest(source=source, settings=settings, optimize=optimize))
        for source in sources
    ]
    waiting: dict[SourceModel, ModelAnswer] = {}
    outstanding = iter(sources)
    expected = next(outstanding, None)
    for outcome in run_tasks(judge, ModelAnswer, tasks, processes=processes, timeout_seconds=TIMEOUT_SECONDS):
        request = outcome.task.request
        waiting[request.source] = outcome.value or failed_answer(request, outcome.error)
        while expected in waiting:
            yield waiting.pop(expected)
            expected = next(outstanding, None)
