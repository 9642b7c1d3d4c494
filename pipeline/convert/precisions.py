"""Models in the precisions that are asked for: passes before conversion, and what `auto` finds by the rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipeline.advice import precision_choice
from pipeline.compat import contexts as npu_contexts
from pipeline.config import tables as config_tables
from pipeline.convert.request import ConvertResult, VariantFailure
from pipeline.core import abis as core_abis
from pipeline.core import variant as core_variant
from pipeline.core import workers
from pipeline.core.errors import ModelError, PipelineError
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact, Variant
from pipeline.dataset import Dataset
from pipeline.model import sources as model_sources
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import judge
from pipeline.passes import base as passes_base
from pipeline.passes import precisions as passes_precisions
from pipeline.passes import registry
from pipeline.passes import run as passes_run

MODEL_FILE = "model.onnx"

AutoProviders = Mapping[str, claim_answer.Settings | None]
"""Providers that `auto` chooses a precision for; those of the CPU (cpu-arm64, cpu-x86_64) have no settings."""


def _candidates(providers: AutoProviders) -> dict[str, tuple[str, ...]]:
    """What is tried for each provider, best first."""
    return {
        name: passes_precisions.candidates(name, settings.api_level if settings else None)
        for name, settings in providers.items()
    }


def cpu_of_abi(abi: str) -> str:
    """The name of the CPU provider of an ABI's processors among the recipes."""
    return "cpu-arm64" if abi in core_abis.ARM_ABIS else "cpu-x86_64"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInPrecision:
    """A model as passes left it, under the name that it had; `error` says why there is none."""

    model: model_sources.NamedModel
    precision: str = ""
    steps: tuple[config_tables.Step, ...] = ()
    error: PipelineError | None = None
    search: passes_base.MixedSearch | None = None
    """What was measured to decide what stays float."""
    notes: tuple[str, ...] = ()
    """Warnings of the passes."""

    @property
    def name(self) -> str:
        """The name of the model in this precision."""
        return core_variant.in_precision(self.model.name, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """A model on its way: as it was given, what is asked of it, itself in each precision, and what it became.

    It has a `result`, or the `error` that it met as a whole; both are of all precisions.
    """

    model: model_sources.NamedModel
    base: ModelInPrecision
    """The model behind its transforms, whether or not its own precision is among `models`."""
    precisions: tuple[str, ...] = ("",)
    """Those wanted: "" for its own, AUTO to choose."""
    data: Dataset = field(default_factory=Dataset)
    """What ranges are taken from; without any, precisions that need data are left out."""
    api_level: int | None = None
    """NNAPI's, 27 to 31, at which a search counts partitions; None for the newest."""
    keep_float: tuple[str, ...] = ()
    """Names of nodes that stay float in every precision."""
    models: tuple[ModelInPrecision, ...] = ()
    verdicts: tuple[precision_choice.PrecisionVerdict, ...] = ()
    """Why `auto` kept or dropped each that it tried."""
    variants: tuple[Variant, ...] = ()
    """Those that were asked for."""
    result: ConvertResult | None = None
    error: PipelineError | None = None
    contexts: tuple[npu_contexts.NpuContext, ...] = ()
    without_context: tuple[VariantFailure, ...] = ()
    """Why there is no context for a chip in a precision."""

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts that it gave."""
        return self.result.artifacts if self.result else ()

    @property
    def failures(self) -> tuple[VariantFailure, ...]:
        """The variants that could not be made, rules of the releases included."""
        return (*(self.result.failures if self.result else ()), *self.without_context)

    @property
    def nothing_made(self) -> bool:
        """Whether every variant was left out, for a reason of its own."""
        return not (self.error or self.artifacts or self.contexts) and bool(self.failures)

    def original_of(self, form: ModelInPrecision) -> SourceModel | None:
        """The float model that a form is compared with, None where it is that itself.

        Transforms may cost accuracy as well: what they made is then compared with the model as it was given, unless
        they changed its inputs or outputs.
        """
        effects = {registry.find_pass(step.do).effect for step in self.base.steps}
        given = passes_base.Effect.LOSSY in effects and passes_base.Effect.INTERFACE not in effects
        original = self.model.source if given else self.base.model.source
        return None if original == form.model.source else original


def make_precisions(
    orders: Sequence[Conversion],
    providers: AutoProviders,
    work: Path,
    cache: Path | None,
    progress: Progress,
) -> list[Conversion]:
    """Run the passes of every model in worker processes, in files under `work`, and judge what `auto` tries.

    The `base` of each has the transforms that are to go first as its steps. A precision that fails or does not apply
    has its `error` and costs no other; transforms that fail cost the model. Without precisions and transforms nothing
    is done.
    """
    first = [_Steps(order.base, order.base.steps, order.data) for order in orders]
    transformed = _transformed(first, work, cache, progress)
    second = [
        _Steps(replace(base, precision=name, steps=(*base.steps, *steps)), steps, order.data)
        for order, base in zip(orders, transformed, strict=True)
        for name in _wanted(order, providers)
        for steps in [passes_precisions.steps_at(name, order.api_level, order.keep_float)]
    ]
    forms = {
        (form.model.name, form.precision): form for form in (*transformed, *_transformed(second, work, cache, progress))
    }
    verdicts = _verdicts(
        [order for order in orders if passes_precisions.AUTO in order.precisions], forms, providers, progress
    )
    return [_chosen(order, forms, verdicts.get(order.model.name, ())) for order in orders]


def _wanted(order: Conversion, providers: AutoProviders) -> Iterable[str]:
    """Precisions that need passes: those named, and what `auto` tries for any provider."""
    tried = (
        [name for names in _candidates(providers).values() for name in names]
        if passes_precisions.AUTO in order.precisions
        else []
    )
    return dict.fromkeys(name for name in (*order.precisions, *tried) if name not in ("", passes_precisions.AUTO))


def _chosen(
    order: Conversion,
    forms: Mapping[tuple[str, str], ModelInPrecision],
    verdicts: Sequence[precision_choice.PrecisionVerdict],
) -> Conversion:
    names: list[str] = []
    for name in order.precisions:
        names += precision_choice.kept_precisions(verdicts) if name == passes_precisions.AUTO else [name]
    models = tuple(forms[order.model.name, name] for name in dict.fromkeys(names))
    base = forms[order.model.name, ""]
    return replace(order, base=base, models=models, verdicts=tuple(verdicts))


@dataclass(frozen=True, slots=True)
class _Steps:
    """A model, the steps that are still to be run on it, and the data that these take."""

    form: ModelInPrecision
    steps: tuple[config_tables.Step, ...]
    data: Dataset


def _transformed(
    pending: Sequence[_Steps],
    work: Path,
    cache: Path | None,
    progress: Progress,
) -> list[ModelInPrecision]:
    """The models behind steps, given the data for these; those without, and those that failed before, as they were."""
    forms = [todo.form for todo in pending]
    tasks = [
        workers.Task(
            label=todo.form.name,
            call=partial(
                passes_run.transform,
                todo.form.model.source,
                todo.steps,
                str(work / "passes" / todo.form.name),
                MODEL_FILE,
                data=todo.data,
                check=False,
                cache=str(cache.resolve()) if cache else "",
            ),
            memory_bytes=passes_run.passes_bytes(todo.form.model.size_bytes, todo.data),
        )
        for todo in pending
        if todo.steps and not todo.form.error
    ]
    if not tasks:
        return forms
    numbers = {form.name: number for number, form in enumerate(forms)}
    with progress.stage("passes", len(tasks)) as stage:
        for outcome in workers.run_tasks(
            tasks,
            memory_bytes=workers.memory_budget(),
            timeout_seconds=workers.time_limit(form.model.size_bytes for form in forms),
            heard=lambda task, text: stage.at(f"{task.label}: {text}"),
        ):
            number = numbers[outcome.task.label]
            form, report = forms[number], outcome.value
            if report is None:
                error = outcome.error or ModelError("no answer", where=form.model.source.name)
                forms[number] = replace(form, error=error)
            else:
                called = form.model.source.name + (f" in {form.precision}" if form.precision else "")
                path = work / "passes" / form.name / report.saved.file
                source = SourceModel(path=str(path), called=called)
                size = report.saved.size_bytes + report.saved.data_bytes
                model = replace(form.model, source=source, size_bytes=size)
                forms[number] = replace(form, model=model, search=report.search, notes=(*form.notes, *report.notes))
            stage.done()
    return forms


def _verdicts(
    orders: Sequence[Conversion],
    forms: Mapping[tuple[str, str], ModelInPrecision],
    providers: AutoProviders,
    progress: Progress,
) -> dict[str, tuple[precision_choice.PrecisionVerdict, ...]]:
    """By model, what each provider keeps."""
    tried = _candidates(providers)
    asked = {
        _Asked(order.model.name, provider, name): forms[order.model.name, name]
        for order in orders
        for provider, names in tried.items()
        for name in ("", *names)
    }
    answers = _answers(asked, providers, progress)
    by_model = {}
    for order in orders:
        verdicts: list[precision_choice.PrecisionVerdict] = []
        for provider, names in tried.items():
            model = order.model.name
            by_name = {name: forms[model, name].error or answers.get(_Asked(model, provider, name)) for name in names}
            before = answers.get(_Asked(model, provider, ""))
            verdicts += precision_choice.choose_precision(provider, before, by_name, has_data=order.data.given)
        by_model[order.model.name] = tuple(verdicts)
    return by_model


class _Asked(NamedTuple):
    """What the rules are asked of: a model for a provider, in a precision or as it is."""

    model: str
    provider: str
    precision: str


def _answers(
    asked: Mapping[_Asked, ModelInPrecision], settings: AutoProviders, progress: Progress
) -> dict[_Asked, claim_answer.ModelAnswer]:
    """What the rules say; nothing for the CPU and for what could not be made."""
    keys = {}
    for key, form in asked.items():
        rules = settings[key.provider]
        if rules is not None and not form.error:
            request = judge.PartitionRequest(
                source=form.model.source,
                settings=rules,
                optimize=claim_answer.Optimize.BASIC,
                sizes=form.model.dimensions,
            )
            needed = workers.needed_bytes(form.model.size_bytes)
            keys[workers.Task(label=" ".join(key), call=partial(judge.judge, request), memory_bytes=needed)] = key
    answers: dict[_Asked, claim_answer.ModelAnswer] = {}
    if not keys:
        return answers
    with progress.stage("choose precisions", len(keys)) as stage:
        limit = workers.time_limit(form.model.size_bytes for form in asked.values())
        for outcome in workers.run_tasks(keys, memory_bytes=workers.memory_budget(), timeout_seconds=limit):
            error = outcome.error.reason if outcome.error else ""
            settled = outcome.value or claim_answer.ModelAnswer(
                path=outcome.task.label, ep="", ort_release="", error=error
            )
            answers[keys[outcome.task]] = settled
            stage.done()
    return answers
