"""Conversion of many models: every precision and variant in worker processes, and contexts for chips."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from pipeline.convert.precisions import (
    Conversion,
    ModelInPrecision,
)
from pipeline.convert.request import (
    AwareSpec,
    ConvertRequest,
    ConvertResult,
    OptimizerPlatform,
    VariantFailure,
    convert_model,  # by way of `convert.engine`, which its own process loads
)
from pipeline.core import files as storage
from pipeline.core import workers
from pipeline.core.errors import PipelineError
from pipeline.core.progress import Progress
from pipeline.core.variant import Variant
from pipeline.model import sources as model_sources

LIBRARY_FACTOR = 3.0
"""As MODEL_FACTOR, where an Android library saves aware files: it holds all weights of the file (measured: 2.9)."""


def convert_models(
    conversions: Sequence[Conversion],
    variants: Callable[[str], tuple[Variant, ...]],
    *,
    output: Path,
    cache: Path | None,
    release: str,
    platform: OptimizerPlatform,
    aware: AwareSpec,
    preflight: bool = False,
    processes: int = 0,
    done: Callable[[], None] = lambda: None,
) -> tuple[Conversion, ...]:
    """Convert models to the `variants` of each precision in worker processes, in any order; results in their order.

    `done` is called as each precision of a model ends. Nothing half-written is left behind, also after Ctrl-C.
    """
    usable = [form for conversion in conversions for form in conversion.models if not form.error]
    with storage.scratch(output) as work:
        forms = {}
        for form in usable:
            folder = work / form.name
            folder.mkdir()
            request = ConvertRequest(
                source=form.model.source,
                variants=variants(form.precision),
                stem=form.model.name,
                output_folder=str(output),
                work_folder=str(folder),
                cache_folder=str(cache or ""),
                release=release,
                platform=platform,
                fixed_dimensions=form.model.dimensions,
                optional_inputs=form.model.optional_inputs,
                aware=aware,
                preflight=preflight,
            )
            needed = workers.needed_bytes(
                form.model.size_bytes, LIBRARY_FACTOR if aware.library else workers.MODEL_FACTOR
            )
            task = workers.Task(label=form.model.source.name, call=partial(convert_model, request), memory_bytes=needed)
            forms[task] = form
        outcomes: dict[str, workers.TaskOutcome[ConvertResult]] = {}
        limit = workers.time_limit(form.model.size_bytes for form in usable)
        for outcome in workers.run_tasks(
            forms, processes=processes, memory_bytes=workers.memory_budget(), timeout_seconds=limit
        ):
            outcomes[forms[outcome.task].name] = outcome
            done()
    return tuple(_joined(conversion, outcomes, variants) for conversion in conversions)


def require_compiler(chips: Sequence[str]) -> None:
    """MissingError where contexts are wanted and the compiler is not installed, before anything is converted."""
    if chips:
        from pipeline.partition import kept

        kept.compiler_name()


def with_contexts(
    converted: Sequence[Conversion],
    chips: Sequence[str],
    output: Path,
    progress: Progress,
    *,
    sizes: Mapping[str, str],
    share: bool,
) -> tuple[Conversion, ...]:
    """The same with contexts for chips, of every precision that they can have.

    `sizes` and `share` are as for `make_contexts`.
    """
    if not chips:
        return tuple(converted)
    from pipeline.convert.contexts import make_contexts  # with the compiler's side of claims, which few need

    by_model = make_contexts(
        [conversion.models for conversion in converted], chips, output, progress, sizes=sizes, share=share
    )
    return tuple(
        replace(conversion, contexts=contexts, without_context=failures)
        for conversion, (contexts, failures) in zip(converted, by_model, strict=True)
    )


def _joined(
    conversion: Conversion,
    outcomes: Mapping[str, workers.TaskOutcome[ConvertResult]],
    variants: Callable[[str], tuple[Variant, ...]],
) -> Conversion:
    """The results of a model's precisions as one; one that has none costs its variants, and all of them the model."""
    asked = tuple(variant for form in conversion.models for variant in variants(form.precision))
    results: list[ConvertResult] = []
    lost: list[tuple[ModelInPrecision, PipelineError]] = []
    for form in conversion.models:
        outcome = outcomes.get(form.name)
        error = form.error or (outcome.error if outcome else None)
        if outcome and outcome.value:
            results.append(_named(outcome.value, conversion.model, form))
        elif error:
            lost.append((form, error))
    if not results:
        return replace(conversion, variants=asked, error=lost[0][1] if lost else None)
    failures = [
        VariantFailure(
            variant=variant,
            what=f"there is no {variant.name}",
            where=conversion.model.source.name,
            why=f"{error.what}: {error.why}" if error.why else error.what,
            remedy=error.remedy,
            skipped=error is form.error,
        )
        for form, error in lost
        for variant in variants(form.precision)
    ]
    whole = msgspec.structs.replace(
        results[0],
        artifacts=tuple(artifact for result in results for artifact in result.artifacts),
        failures=(*(failure for result in results for failure in result.failures), *failures),
        reused=sum(result.reused for result in results),
        needs={name: needs for result in results for name, needs in result.needs.items()},
        timings_ns=dict(sum((Counter(result.timings_ns) for result in results), Counter())),
    )
    return replace(conversion, variants=asked, result=whole)


def _named(result: ConvertResult, model: model_sources.NamedModel, form: ModelInPrecision) -> ConvertResult:
    """A result under the name of the model as it was given, with the steps that it went through and their warnings."""
    steps = tuple(step.text for step in form.steps)
    artifacts = [
        msgspec.structs.replace(artifact, model=model.source.name, steps=steps, notes=(*form.notes, *artifact.notes))
        for artifact in result.artifacts
    ]
    return msgspec.structs.replace(result, model=model.source.name, artifacts=tuple(artifacts))
