"""Answers for many models: each is judged in a worker process, so a crash costs one."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.core.workers import Task, run_tasks
from pipeline.model.sources import SourceModel, find_models
from pipeline.partition.answer import SUFFIXES, ModelAnswer, Optimize, Settings
from pipeline.partition.input import NO_SIZES
from pipeline.partition.judge import TIMEOUT_SECONDS, PartitionRequest, failed_answer, judge


def judge_paths(
    paths: Sequence[str | Path],
    settings: Settings | Sequence[Settings],
    optimize: Optimize,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    processes: int = 1,
) -> Iterator[ModelAnswer]:
    """An answer for every model under files, folders and archives, in that order; `error` is set where there is none.

    With several settings all answers of the first come first. `sizes` are for dynamic dimensions. ConfigError when a
    path does not exist or holds no model.
    """
    sources = find_models(paths, SUFFIXES)
    asked = (settings,) if isinstance(settings, Settings) else settings
    requests = [
        PartitionRequest(source=source, settings=one, optimize=optimize, sizes=dict(sizes), likely=True)
        for one in asked
        for source in sources
    ]
    tasks = [Task(label=request.source.name, request=request) for request in requests]
    waiting: dict[tuple[SourceModel, Settings], ModelAnswer] = {}
    outstanding = iter([(request.source, request.settings) for request in requests])
    expected = next(outstanding, None)
    for outcome in run_tasks(judge, ModelAnswer, tasks, processes=processes, timeout_seconds=TIMEOUT_SECONDS):
        request = outcome.task.request
        waiting[request.source, request.settings] = outcome.value or failed_answer(request, outcome.error)
        while expected in waiting:
            yield waiting.pop(expected)
            expected = next(outstanding, None)
