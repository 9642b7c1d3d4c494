"""Many models for providers, in worker processes; a kept answer is given without loading what judges."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel
from pipeline.partition import kept
from pipeline.partition.answer import NO_SIZES, SUFFIXES, ModelAnswer, Optimize, Settings

if TYPE_CHECKING:
    from pipeline.dataset import Dataset

SIMULATION_SECONDS = 1500.0
"""For one model with inferences in a simulator."""


def judge_by_provider(
    paths: Sequence[str | Path],
    settings: Sequence[Settings],
    optimize: Optimize,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    processes: int = 1,
    simulate: "Dataset | None" = None,
) -> list[tuple[ModelAnswer, ...]]:
    """For each of the settings, which differ, the answers for all models under files, folders and archives, in order.

    `error` is set where there is none. `sizes` are for dynamic dimensions. With `simulate` each says what the chip
    computes on that data. ConfigError when a path does not exist or holds no model, MissingError without the compiler
    of a chip that is asked about.
    """
    sources = model_sources.find_models(paths, SUFFIXES)
    kept.require_compilers(settings)
    questions = [(source, of_provider) for of_provider in settings for source in sources]
    answers = _judged(questions, optimize, sizes, processes, simulate)
    return [tuple(itertools.islice(answers, len(sources))) for _ in settings]


def _judged(
    questions: Sequence[tuple[SourceModel, Settings]],
    optimize: Optimize,
    sizes: Mapping[str, int],
    processes: int,
    simulate: "Dataset | None",
) -> Iterator[ModelAnswer]:
    """The answers to questions that differ, in their order; parameters as in `judge_by_provider`."""
    answers: dict[tuple[SourceModel, Settings], ModelAnswer] = {}
    for question in questions if simulate is None else ():
        entry = kept.entry_of_chip_answer(*question, optimize, sizes, likely=True)  # other answers are not kept
        if answer := kept.kept_answer(entry, question[0].name):
            answers[question] = answer
    left = [question for question in questions if question not in answers]
    if not left:
        yield from answers.values()
        return
    from pipeline.core import workers
    from pipeline.partition.judge import PartitionRequest, failed_answer, judge

    tasks = {}
    for source, of_provider in left:
        request = PartitionRequest(
            source=source, settings=of_provider, optimize=optimize, sizes=dict(sizes), likely=True, simulate=simulate
        )
        memory = workers.needed_bytes(model_sources.source_bytes(source))
        tasks[workers.Task(label=source.name, call=partial(judge, request), memory_bytes=memory)] = request
    limit = (
        workers.time_limit(model_sources.source_bytes(source) for source, _ in left)
        if simulate is None
        else SIMULATION_SECONDS
    )
    outcomes = workers.run_tasks(tasks, processes=processes, timeout_seconds=limit)
    for question in questions:
        while question not in answers:
            outcome = next(outcomes)
            request = tasks[outcome.task]
            answers[request.source, request.settings] = outcome.value or failed_answer(request, outcome.error)
        yield answers.pop(question)
