"""Advice for models: each fix alone, then the best combination; in worker processes, a crash costs one model."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from pipeline.advice.precisions import precision_of, quantized_advice
from pipeline.advice.trial import ENABLERS, OTHER_FORMAT, State, TrialContext, attempt, fixes_for, judged
from pipeline.advice.verdict import (
    Advice,
    AdviceRequest,
    AdvisedAnswer,
    Combination,
    FixResult,
    gain_of,
    improves,
    perfect,
    preference,
    verdict,
)
from pipeline.check.reference import ReferenceRequest, make_reference
from pipeline.check.result import Reference
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.core.files import copy_file, scratch
from pipeline.core.workers import Task, needed_bytes, run_tasks
from pipeline.dataset import Dataset, given_sizes
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.sources import SourceModel, find_models, source_bytes
from pipeline.partition.answer import SUFFIXES, ModelAnswer, Optimize, Settings
from pipeline.partition.input import open_subject
from pipeline.partition.input import write_model as write_lean
from pipeline.partition.judge import PartitionRequest
from pipeline.passes.base import Pass
from pipeline.passes.save import write_model

PATIENCE_SECONDS = 200.0
"""How long fixes of one model are tried: a model of thousands of nodes takes seconds for each."""

MOST_ROUNDS = 3
"""Passes over the fixes while the combination still improves: one fix may make room for another."""


def advise(request: AdviceRequest) -> Advice:
    """Try every fix on a model. What is wrong with the model stands in the advice.

    Raises ConfigError for sizes and data that are no input of the model, and for --fix's file.
    """
    with scratch() as folder:
        loaded = _loaded(request.source, folder)
        sizes = given_sizes(request.data, loaded.proto, request.sizes, request.source.name)
        reference = _reference(loaded, request.data, sizes, folder)
        if not isinstance(reference, str):  # dimensions that nobody gave a size have that of the reference's inputs
            sizes = reference.data.sizes | sizes
        deadline = time.monotonic() + PATIENCE_SECONDS
        bench = TrialContext(folder=folder, provider=request.settings.provider, reference=reference, deadline=deadline)
        asked = PartitionRequest(source=loaded.source, settings=request.settings, optimize=request.optimize)
        base = judged(loaded, asked, None, sizes)
        fixes = () if perfect(base.standing) else fixes_for(request.settings.provider)
        alone = [(fix, *attempt(fix, base, bench)) for fix in fixes]
        best, used = combined(base, alone, bench)
        combination = _combination(base, best, used, bench)
        changed = bool(combination) and not best.request.source.path.endswith("original.onnx")
        if request.write_to and changed:
            combination = _written(combination, best, request.write_to)
        elif request.write_to:
            _copy(request.source, folder, Path(request.write_to))
        return Advice(
            verdict=verdict(base.standing, bench.provider),
            before=base.standing,
            fixes=tuple(result for _, result, _ in alone),
            best=combination,
            checked_on=_checked_on(reference),
            copied=request.write_to if request.write_to and not changed else None,
            precision=quantized_advice(precision_of(loaded.proto), base.answer),
        )


def _loaded(source: SourceModel, folder: Path) -> LoadedModel:
    """The model as a file in `folder` with its weights' files beside it; ModelError when it cannot be changed."""
    subject = open_subject(source, folder)
    if subject.loaded is None:
        raise ModelError(
            "an ORT format file cannot be changed",
            where=source.name,
            remedy="name the ONNX model that it was made from",
        )
    path = folder / "original.onnx"
    write_lean(subject.loaded, path)
    return load_model(SourceModel(path=str(path)), folder)


def _reference(loaded: LoadedModel, data: Dataset, sizes: dict[str, int], folder: Path) -> Reference | str:
    """What the original computes on its data, or why it does not; ConfigError for data that are no input of it."""
    request = ReferenceRequest(
        source=loaded.source,
        fixed_dimensions=sizes,
        data=data,
        folder=str(folder / "reference"),
        work_folder=str(folder),
    )
    try:
        return make_reference(request)
    except PipelineError as error:
        if isinstance(error, ConfigError) and data.given:
            raise
        return error.reason
    except (ValueError, OverflowError, MemoryError) as error:
        return f"its inputs are too large to be made here: {error}"


def _checked_on(reference: Reference | str) -> str:
    if isinstance(reference, str):
        return f"nothing could be compared: {reference}"
    shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in reference.inputs)
    return f"{reference.data.source} ({shapes}), on the CPU without optimizations"


def combined(
    base: State, alone: Sequence[tuple[Pass, FixResult, State | None]], bench: TrialContext
) -> tuple[State, tuple[Pass, ...]]:
    """Fixes together, those that gain most alone first, as long as each still improves the whole.

    A second climb starts from what makes room for others, gain or not, and counts when it ends better. CoreML's other
    format is taken only where nothing else is left that helps.
    """
    tried = {fix: state for fix, _, state in alone}
    order = sorted(tried, key=lambda fix: _rank(tried[fix], bench.provider), reverse=True)
    asked = [fix for fix in order if fix is not OTHER_FORMAT]
    best = _climb(base, asked, tried, bench)
    if not perfect(best[0].standing):
        start, enabling = _enabled(base, asked, bench)
        end, more = _climb(start, [fix for fix in asked if fix not in enabling], {}, bench) if enabling else (base, ())
        if improves(end.standing, best[0].standing, bench.provider):
            best = end, (*enabling, *more)
    return _with_other_format(*best, asked, bench) if OTHER_FORMAT in tried else best


def _enabled(base: State, fixes: Sequence[Pass], bench: TrialContext) -> tuple[State, tuple[Pass, ...]]:
    """The state with every fix that makes room for others."""
    current, applied = base, list[Pass]()
    for fix in fixes:
        state = attempt(fix, current, bench, must_gain=False)[1] if fix.name in ENABLERS else None
        if state is not None:
            current = state
            applied.append(fix)
    return current, tuple(applied)


def _with_other_format(
    current: State, used: tuple[Pass, ...], fixes: Sequence[Pass], bench: TrialContext
) -> tuple[State, tuple[Pass, ...]]:
    """What CoreML's other format adds, with the fixes that then still gain."""
    if perfect(current.standing):
        return current, used
    changed = attempt(OTHER_FORMAT, current, bench)[1]
    if changed is None:
        return current, used
    final, last = _climb(changed, [fix for fix in fixes if fix not in used], {}, bench)
    return final, (*used, OTHER_FORMAT, *last)


def _climb(
    start: State, fixes: Sequence[Pass], tried: Mapping[Pass, State | None], bench: TrialContext
) -> tuple[State, tuple[Pass, ...]]:
    """Apply fixes in order, again and again while one improves; `tried` has what is known of the start with each."""
    current, used = start, list[Pass]()
    for _ in range(MOST_ROUNDS):
        before = len(used)
        for fix in fixes:
            if fix in used or perfect(current.standing):
                continue
            known = current is start and fix in tried
            state = tried[fix] if known else attempt(fix, current, bench)[1]
            if state is not None:
                current = state
                used.append(fix)
        if len(used) == before:
            break
    return current, tuple(used)


def _rank(state: State | None, provider: str) -> tuple[bool, tuple[bool, int, int, float]]:
    """Gains first; among equal ones sorting keeps the table's order."""
    return state is not None, preference(state.standing, provider) if state else (False, 0, 0, 0.0)


def _combination(base: State, best: State, used: Sequence[Pass], bench: TrialContext) -> Combination | None:
    if not used:
        return None
    return Combination(
        fixes=tuple(fix.name for fix in used),
        gain=gain_of(base.standing, best.standing, bench.provider),
        after=best.standing,
        verdict=verdict(best.standing, best.request.settings.provider),
        error=best.error,
        tolerance=best.tolerance,
        absolute_error=best.absolute_error,
        limit=best.limit,
        settings=tuple(_settings(base.request, best.request)),
    )


def _settings(before: PartitionRequest, after: PartitionRequest) -> list[str]:
    words = []
    if after.settings.provider is not before.settings.provider:
        words.append(f"--ep {after.settings.provider}")
    if after.optimize is Optimize.BASIC and before.optimize is not Optimize.BASIC:
        words.append("--optimize basic")
    return words


def _written(combination: Combination | None, best: State, destination: str) -> Combination | None:
    """Write the model that a fix changed."""
    if combination is None:
        return None
    write_model(best.loaded, Path(destination))
    return msgspec.structs.replace(combination, written=destination)


def _copy(source: SourceModel, folder: Path, destination: Path) -> None:
    """Write the model unchanged: its own bytes, or with its weights inside where these lie in other files."""
    original = load_model(source, folder)
    if original.outside:
        write_model(original, destination)
    else:
        copy_file(original.path, destination)


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
    tasks = [
        Task(label=request.source.name, request=request, memory_bytes=needed_bytes(2 * source_bytes(request.source)))
        for request in good
    ]
    advice: dict[str, Advice] = {}
    for outcome in run_tasks(advise, Advice, tasks, processes=processes, timeout_seconds=TIMEOUT_SECONDS):
        error = outcome.error
        why = error.text if error else "no advice"
        advice[outcome.task.label] = outcome.value or Advice(error=why)
    return tuple(_advised(answer, advice.get(answer.path)) for answer in answers)


def _advised(answer: ModelAnswer, advice: Advice | None) -> ModelAnswer:
    return AdvisedAnswer(**msgspec.structs.asdict(answer), advice=advice) if advice else answer
