"""Many models for providers, in worker processes; a kept answer is given without loading what judges."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.model.sources import SourceModel, find_models, source_bytes
from pipeline.partition.answer import NO_SIZES, SUFFIXES, ModelAnswer, Optimize, Settings
from pipeline.partition.qnn.kept import answer_entry, kept_answer, require_compilers

if TYPE_CHECKING:
    from pipeline.dataset import Dataset

SIMULATION_SECONDS = 1500.0
"""For one model with inferences in a simulator."""


def judge_paths(
    paths: Sequence[str | Path],
    settings: Settings | Sequence[Settings],
    optimize: Optimize,
    *,
    sizes: Mapping[str, int] = NO_SIZES,
    processes: int = 1,
    simulate: "Dataset | None" = None,
) -> Iterator[ModelAnswer]:
    """An answer for every model under files, folders and archives, in that order; `error` is set where there is none.

    With several settings all answers of the first come first. `sizes` are for dynamic dimensions. With `simulate` each
    says what the chip computes on that data. ConfigError when a path does not exist or holds no model, MissingError
    without the compiler of a chip that is asked about.
    """
    sources = find_models(paths, SUFFIXES)
    asked = (settings,) if isinstance(settings, Settings) else settings
    require_compilers(asked)
    questions = list(dict.fromkeys((source, row) for row in asked for source in sources))
    answers: dict[tuple[SourceModel, Settings], ModelAnswer] = {}
    for question in questions if simulate is None else ():
        entry = answer_entry(*question, optimize, sizes, likely=True)
        if answer := kept_answer(entry, question[0].name):
            answers[question] = answer
    left = [question for question in questions if question not in answers]
    if not left:
        yield from answers.values()
        return
    from pipeline.core.workers import Task, needed_bytes, run_tasks, time_limit
    from pipeline.partition.judge import PartitionRequest, failed_answer, judge

    tasks = {}
    for source, row in left:
        request = PartitionRequest(
            source=source, settings=row, optimize=optimize, sizes=dict(sizes), likely=True, simulate=simulate
        )
        memory = needed_bytes(source_bytes(source))
        tasks[Task(label=source.name, call=partial(judge, request), memory_bytes=memory)] = request
    limit = time_limit(source_bytes(source) for source, _ in left) if simulate is None else SIMULATION_SECONDS
    outcomes = run_tasks(tasks, processes=processes, timeout_seconds=limit)
    for question in questions:
        while question not in answers:
            outcome = next(outcomes)
            request = tasks[outcome.task]
            answers[request.source, request.settings] = outcome.value or failed_answer(request, outcome.error)
        yield answers.pop(question)
