"""Advice for many models in worker processes, where a crash of ONNX Runtime costs one model's advice."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from pipeline.advice.advise import advise
from pipeline.advice.answer import Advice, AdviceRequest, AdvisedAnswer
from pipeline.core.workers import Task, run_tasks
from pipeline.dataset import Dataset
from pipeline.model.sources import find_models
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.judge import SUFFIXES

TIMEOUT_SECONDS = 300.0
"""Over the patience of `advise`: what a hostile model never stops computing is ended, and costs its advice only."""


def advise_answers(
    paths: Sequence[str | Path],
    answers: Sequence[ModelAnswer],
    settings: Settings,
    optimize: Optimize,
    sizes: Mapping[str, int],
    *,
    data: Dataset | None = None,
    write_to: str = "",
    processes: int = 1,
) -> tuple[ModelAnswer, ...]:
    """The answers for the models under `paths`, in their order, with advice; those with an error stay as they are.

    `data` is what outputs are compared on: random inputs without it.
    """
    requests = [
        AdviceRequest(
            source=source,
            settings=settings,
            optimize=optimize,
            sizes=dict(sizes),
            data=data or Dataset(),
            write_to=write_to,
        )
        for source in find_models(paths, SUFFIXES)
    ]
    good = [request for request, answer in zip(requests, answers, strict=True) if not answer.error]
    tasks = [Task(label=request.source.name, request=request) for request in good]
    found: dict[str, Advice] = {}
    for outcome in run_tasks(advise, Advice, tasks, processes=processes, timeout_seconds=TIMEOUT_SECONDS):
        error = outcome.error
        why = error.text if error else "no advice"
        found[outcome.task.label] = outcome.value or Advice(error=why)
    return tuple(_advised(answer, found.get(answer.path)) for answer in answers)


def _advised(answer: ModelAnswer, advice: Advice | None) -> ModelAnswer:
    return AdvisedAnswer(**msgspec.structs.asdict(answer), advice=advice) if advice else answer
