"""Advice for models: each fix alone, then the best combination, each applied, judged and checked on outputs.

In worker processes: a crash costs one model.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from pipeline import dataset as datasets
from pipeline.advice.climb import Tried, combined, with_forms
from pipeline.advice.fixes import (
    fixes_for,
)
from pipeline.advice.precision_choice import precision_of, quantized_advice
from pipeline.advice.trial import State, TrialContext, attempt, judged
from pipeline.advice.verdict import Advice, AdvisedAnswer, Combination, gain_of, perfect, verdict
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check import result as check_result
from pipeline.core import files as storage
from pipeline.core import workers
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.dataset import Dataset
from pipeline.model import onnx_model
from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import judge
from pipeline.partition import subject as partition_subject
from pipeline.passes import base as passes_base
from pipeline.passes import saving as passes_saving

PATIENCE_SECONDS = 200.0
"""How long fixes of one model are tried: a model of thousands of nodes takes seconds for each."""

SIMULATED_FACTOR = 6
"""Factor of that time where a simulator runs each candidate."""


def advise(
    source: SourceModel,
    settings: claim_answer.Settings,
    optimize: claim_answer.Optimize,
    sizes: dict[str, int],
    data: Dataset,
    *,
    simulate: bool = False,
    write_to: str = "",
) -> Advice:
    """Try every fix on a model for a provider. What is wrong with the model stands in the advice.

    Outputs are compared on the first sample of `data`, whose shapes also give `sizes` that are not asked for. With
    `simulate` the chip's simulator runs each candidate, too. The fixed model goes to the file `write_to`.

    Raises ConfigError for sizes and data that are no input of the model, and for --fix's file.
    """
    with storage.scratch() as folder:
        # The model as a file in `folder` with its weights' files beside it
        subject = partition_subject.open_subject(source, folder)
        if isinstance(subject, Path):
            raise ModelError(
                "an ORT format file cannot be changed",
                where=source.name,
                remedy="name the ONNX model that it was made from",
            )
        path = folder / "original.onnx"
        partition_subject.write_model(subject, path)
        loaded = onnx_model.load_model(SourceModel(path=str(path)), folder)
        sizes = datasets.given_sizes(data, loaded.proto, sizes, source.name)
        reference = _reference(loaded.source, sizes, data, folder)
        if not isinstance(reference, str):  # what nobody gave a size has that of the reference's inputs
            sizes = reference.data.sizes | sizes
        deadline = time.monotonic() + PATIENCE_SECONDS * (SIMULATED_FACTOR if simulate else 1)
        bench = TrialContext(
            folder=folder, provider=settings.provider, reference=reference, data=data, deadline=deadline
        )
        asked = judge.PartitionRequest(
            source=loaded.source, settings=settings, optimize=optimize, simulate=data if simulate else None
        )
        base = judged(loaded, asked, None, sizes)
        # Where a chip has no floats at all, fixes of a float model change nothing before it is quantized
        form, load = precision_of(loaded.proto), base.answer.load
        only_floats = bool(load and load.code == "float" and not form)
        fixes = () if perfect(base.standing) or only_floats else fixes_for(bench.provider)
        alone = [Tried(fix, *attempt(fix, base, bench)) for fix in fixes]
        forms = with_forms(combined(base, alone, bench), bench)
        best = forms.best.state
        combination = _combination(base, best, forms.best.used, bench)
        changed = bool(combination) and not best.request.source.path.endswith("original.onnx")
        if write_to and combination and changed:
            passes_saving.write_model(best.loaded, Path(write_to))
            combination = msgspec.structs.replace(combination, written=write_to)
        elif write_to:  # unchanged: its own bytes, or with its weights inside where these lie in other files
            original = onnx_model.load_model(source, folder)
            if original.outside:
                passes_saving.write_model(original, Path(write_to))
            else:
                storage.copy_file(original.path, Path(write_to))
        if isinstance(reference, str):
            checked_on = f"nothing could be compared: {reference}"
        else:
            shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in reference.inputs)
            checked_on = f"{reference.data.source} ({shapes}), on the CPU without optimizations"
        return Advice(
            verdict=verdict(base.standing, bench.provider),
            before=base.standing,
            fixes=(*(tried.result for tried in alone), *forms.results),
            best=combination,
            checked_on=checked_on,
            copied=write_to if write_to and not changed else None,
            precision=quantized_advice(form, base.answer),
        )


def _reference(source: SourceModel, sizes: dict[str, int], data: Dataset, folder: Path) -> check_result.Reference | str:
    """What the original computes on its data, or why it does not; ConfigError for data that are no input of it."""
    try:
        return check_reference.make_reference(source, sizes, data, str(folder / "reference"), str(folder))
    except PipelineError as error:
        if isinstance(error, ConfigError) and data.given:
            raise
        return error.reason
    except (ValueError, OverflowError, MemoryError) as error:
        return f"its inputs are too large to be made here: {error}"


def _combination(base: State, best: State, used: Sequence[passes_base.Pass], bench: TrialContext) -> Combination | None:
    if not used:
        return None
    words = []
    if best.request.settings.provider is not base.request.settings.provider:
        words.append(f"--ep {best.request.settings.provider}")
    was, now = base.request.settings.webgpu, best.request.settings.webgpu
    options = ["enableInt64=1"] * (now.int64 and not was.int64) + ["preferredLayout=NCHW"] * (now.layout != was.layout)
    if options:
        words.append(f"--webgpu-options {','.join(options)}")
    if (
        best.request.optimize is claim_answer.Optimize.BASIC
        and base.request.optimize is not claim_answer.Optimize.BASIC
    ):
        words.append("--optimize basic")
    share = output_compare.MAX_RELATIVE_ERROR[output_compare.OutputPrecision.QUANTIZED]
    far = bool(best.precision) and (best.error or 0.0) > share  # what its further fixes were allowed says nothing
    return Combination(
        fixes=tuple(fix.name for fix in used),
        gain=gain_of(base.standing, best.standing, bench.provider),
        after=best.standing,
        verdict=verdict(best.standing, best.request.settings.provider),
        error=best.error,
        tolerance=share if far else best.tolerance,
        absolute_error=best.absolute_error,
        limit=None if far else best.limit,
        settings=tuple(words),
        simulated=best.answer.simulated,
    )


TIMEOUT_SECONDS = 300.0
"""Over the patience of `advise`: what a hostile model never stops computing is ended, and costs its advice only."""


def advise_answers(
    paths: Sequence[str | Path],
    answers: Sequence[claim_answer.ModelAnswer],
    settings: claim_answer.Settings,
    optimize: claim_answer.Optimize,
    sizes: Mapping[str, int],
    *,
    data: Dataset | None = None,
    simulate: bool = False,
    write_to: str = "",
    processes: int = 1,
) -> tuple[claim_answer.ModelAnswer, ...]:
    """The answers for the models under `paths`, in their order, with advice; those with an error stay as they are.

    `data` is what outputs are compared on: random inputs without it.
    """
    tasks = [
        workers.Task(
            label=source.name,
            call=partial(
                advise, source, settings, optimize, dict(sizes), data or Dataset(), simulate=simulate, write_to=write_to
            ),
            memory_bytes=workers.needed_bytes(2 * model_sources.source_bytes(source)),
        )
        for source, answer in zip(model_sources.find_models(paths, claim_answer.SUFFIXES), answers, strict=True)
        if not answer.error
    ]
    advice: dict[str, Advice] = {}
    patience = TIMEOUT_SECONDS * (SIMULATED_FACTOR if simulate else 1)
    limit = max(
        patience,
        workers.time_limit(
            model_sources.source_bytes(source) for source in model_sources.find_models(paths, claim_answer.SUFFIXES)
        ),
    )
    for outcome in workers.run_tasks(tasks, processes=processes, timeout_seconds=limit):
        error = outcome.error
        why = error.text if error else "no advice"
        advice[outcome.task.label] = outcome.value or Advice(error=why)
    return tuple(
        AdvisedAnswer(**msgspec.structs.asdict(answer), advice=advice[answer.path]) if answer.path in advice else answer
        for answer in answers
    )
