"""Models to artifacts in worker processes: each precision of a model is converted alone, and the results are joined."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.convert import convert_model
from pipeline.convert.precisions import ModelInPrecision, PrecisionSet
from pipeline.convert.request import ConvertRequest, ConvertResult, OptimizerPlatform, VariantFailure
from pipeline.convert.splice.edits import AwareSource
from pipeline.core.errors import PipelineError
from pipeline.core.files import scratch
from pipeline.core.variant import Artifact, Variant
from pipeline.core.workers import MODEL_FACTOR, Task, TaskOutcome, memory_budget, needed_bytes, run_tasks, time_limit
from pipeline.model.sources import NamedModel
from pipeline.partition.answer import Settings

LIBRARY_FACTOR = 3.0
"""The same where an Android library saves aware files: it holds all weights of the file (measured: 2.9)."""


def convert_all(
    requests: Sequence[tuple[NamedModel, ConvertRequest]], *, processes: int = 0
) -> Iterator[TaskOutcome[ConvertRequest, ConvertResult]]:
    """Convert models in worker processes; each outcome is a result or the error of that model alone."""
    tasks = [
        Task(label=model.source.name, request=request, memory_bytes=_needed(model, request))
        for model, request in requests
    ]
    yield from run_tasks(
        convert_model,
        ConvertResult,
        tasks,
        processes=processes,
        memory_bytes=memory_budget(),
        timeout_seconds=time_limit(model.size_bytes for model, _ in requests),
    )


def _needed(model: NamedModel, request: ConvertRequest) -> int:
    by_library = request.reference is not None and bool(request.reference.library)
    return needed_bytes(model.size_bytes, LIBRARY_FACTOR if by_library else MODEL_FACTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What became of one model in the variants that were asked for: a result, or the error that it met as a whole."""

    model: NamedModel
    variants: tuple[Variant, ...] = ()
    result: ConvertResult | None = None
    error: PipelineError | None = None

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts that it gave."""
        return self.result.artifacts if self.result else ()

    @property
    def failures(self) -> tuple[VariantFailure, ...]:
        """The variants that could not be made, rules of the releases included."""
        return self.result.failures if self.result else ()


def convert_models(
    sets: Sequence[PrecisionSet],
    variants: Callable[[str], tuple[Variant, ...]],
    *,
    output: Path,
    cache: Path | None,
    release: str,
    platform: OptimizerPlatform,
    aware: tuple[Settings, ...] = (),
    safe: bool = False,
    reference: AwareSource | None = None,
    processes: int = 0,
    done: Callable[[], None] = lambda: None,
) -> tuple[Converted, ...]:
    """Convert models to the `variants` of each precision in worker processes, in any order; results in their order.

    `done` is called as each precision of a model ends. Nothing half-written is left behind, also after Ctrl-C.
    """
    usable = [one for group in sets for one in group.models if not one.error]
    with scratch(output) as work:
        pairs = []
        for one in usable:
            folder = work / one.name
            folder.mkdir()
            request = ConvertRequest(
                source=one.model.source,
                variants=variants(one.precision),
                stem=one.model.name,
                output_folder=str(output),
                work_folder=str(folder),
                cache_folder=str(cache or ""),
                release=release,
                platform=platform,
                fixed_dimensions=one.model.dimensions,
                aware=aware,
                safe=safe,
                reference=reference,
            )
            pairs.append((one.model, request))
        found: dict[str, TaskOutcome[ConvertRequest, ConvertResult]] = {}
        for outcome in convert_all(pairs, processes=processes):
            found[Path(outcome.task.request.work_folder).name] = outcome
            done()
    return tuple(_joined(group, found, variants) for group in sets)


def _joined(
    group: PrecisionSet,
    outcomes: Mapping[str, TaskOutcome[ConvertRequest, ConvertResult]],
    variants: Callable[[str], tuple[Variant, ...]],
) -> Converted:
    """The results of a model's precisions as one; one that has none costs its variants, and all of them the model."""
    wanted = tuple(variant for one in group.models for variant in variants(one.precision))
    results: list[ConvertResult] = []
    lost: list[tuple[ModelInPrecision, PipelineError]] = []
    for one in group.models:
        outcome = outcomes.get(one.name)
        error = one.error or (outcome.error if outcome else None)
        if outcome and outcome.value:
            results.append(_named(outcome.value, group.model, one))
        elif error:
            lost.append((one, error))
    if not results:
        return Converted(model=group.model, variants=wanted, error=lost[0][1] if lost else None)
    failures = [
        VariantFailure(
            variant=variant,
            what=f"there is no {variant.name}",
            where=group.model.source.name,
            why=f"{error.what}: {error.why}" if error.why else error.what,
            remedy=error.remedy,
            skipped=error is one.error,
        )
        for one, error in lost
        for variant in variants(one.precision)
    ]
    whole = msgspec.structs.replace(
        results[0],
        artifacts=tuple(artifact for result in results for artifact in result.artifacts),
        failures=(*(failure for result in results for failure in result.failures), *failures),
        reused=sum(result.reused for result in results),
        timings_ns=dict(sum((Counter(result.timings_ns) for result in results), Counter())),
    )
    return Converted(model=group.model, variants=wanted, result=whole)


def _named(result: ConvertResult, model: NamedModel, one: ModelInPrecision) -> ConvertResult:
    """A result under the name of the model as it was given, with the steps that it went through and their warnings."""
    steps = tuple(step.text for step in one.steps) or msgspec.UNSET
    artifacts = [
        msgspec.structs.replace(made, model=model.source.name, steps=steps, notes=(*one.notes, *made.notes))
        for made in result.artifacts
    ]
    return msgspec.structs.replace(result, model=model.source.name, artifacts=tuple(artifacts))
