"""`ort-mobile check`: how far each provider supports one model, as it is and with sizes for its dimensions."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from device_runner.providers import CPU
from pipeline.advice.precisions import precision_of, quantized_advice
from pipeline.advice.verdict import AdviceVerdict, FixChoice, Help, ProviderSupport, helps_of, standing_of, verdict
from pipeline.core.errors import ModelError, PipelineError
from pipeline.core.ort_session import HostSession, make_session, ort_errors
from pipeline.core.providers import PROVIDER_RULES
from pipeline.core.releases import Release, rules_of
from pipeline.core.variant import Level
from pipeline.core.workers import Task, run_tasks
from pipeline.model.sources import SourceModel, find_models
from pipeline.partition.answer import SUFFIXES, ModelAnswer, Optimize, Settings
from pipeline.partition.input import PartitionInput, resized
from pipeline.partition.judge import (
    TIMEOUT_SECONDS,
    Views,
    judge_views,
    open_views,
    reason_of,
    scratch_folder,
)
from pipeline.partition.ort_view import refused
from pipeline.partition.sizes import likely_sizes, unnamed

ANSWERS = {FixChoice.USE: "yes", FixChoice.MEASURE: "maybe", FixChoice.CPU: "no"}
"""The verdicts in one word, as ONNX Runtime's mobile usability checker gives them."""


class ProviderFit(msgspec.Struct, frozen=True, kw_only=True):
    """How far one provider supports a model: `verdict` is yes, maybe or no, `reason` says why.

    `partitions` is None for what computes on the CPU, where a border costs nothing.
    """

    nodes: int
    supported: int
    partitions: int | None = None
    verdict: str
    reason: str


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's answers: the model as it is, and with sizes where dimensions are dynamic."""

    ep: str
    as_is: ProviderFit
    fixed: ProviderFit | None = None


class ModelFit(msgspec.Struct, frozen=True, kw_only=True):
    """One model's answer. `sizes` are those of the dynamic dimensions, `guessed` those that nobody gave.

    `optimize` is the level that was judged: basic, or none where ONNX Runtime cannot make a session on the CPU. With
    `error` set, nothing else is known.
    """

    path: str
    nodes: int = 0
    opset: int | None = None
    dynamic: tuple[str, ...] = ()
    sizes: dict[str, int] = {}
    guessed: tuple[str, ...] = ()
    optimize: Optimize = Optimize.BASIC
    rows: tuple[FitRow, ...] = ()
    helps: tuple[Help, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    remedy: str | None = None


class FitDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole JSON document of `ort-mobile check`; `rules_release` decided where `ort_release` has no rules."""

    ort_release: str
    rules_release: str
    models: tuple[ModelFit, ...]
    version: int = 1


class FitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A model, the providers with their settings, and the sizes that the user gave."""

    source: SourceModel
    settings: tuple[Settings, ...]
    sizes: dict[str, int] = {}


def fit(request: FitRequest) -> ModelFit:
    """The answer for one model; what is wrong with it stands in `error`."""
    try:
        with scratch_folder(request.source) as folder:
            return _fit(request, folder)
    except PipelineError as error:
        return failed_fit(request.source, error)


def failed_fit(source: SourceModel, error: PipelineError | None) -> ModelFit:
    """The answer where nothing is known but what went wrong."""
    text, remedy = reason_of(error)
    return ModelFit(path=source.name, error=text, remedy=remedy)


def _fit(request: FitRequest, folder: Path) -> ModelFit:
    as_is = folder / "as-is"
    as_is.mkdir()
    views = open_views(request.source, Optimize.BASIC, as_is, {})
    cpu = _cpu_error(views)
    before = _answers(views, request.settings)
    dynamic = before[0].dynamic
    sizes = _sizes(views.subject, request.sizes) if dynamic or request.sizes else None
    fixed, fixed_cpu = (None, "") if sizes is None else _fixed(views, sizes, request.settings, folder)
    now = fixed or before
    return ModelFit(
        path=request.source.name,
        nodes=before[0].nodes,
        opset=_opset(views.subject),
        dynamic=dynamic,
        sizes=sizes or {},
        guessed=_guessed(views.subject, request.sizes),
        optimize=views.optimize,
        rows=tuple(_rows(before, fixed, cpu, fixed_cpu)),
        helps=helps_of(before, fixed, sizes or {}),
        notes=(*_notes(now, cpu, dynamic, sizes), *_precision_notes(views.subject, now)),
    )


def _answers(views: Views, settings: tuple[Settings, ...]) -> tuple[ModelAnswer, ...]:
    return tuple(judge_views(views, one) for one in settings)


def _cpu_error(views: Views) -> str:
    """Why no session can be made on the CPU, "" when one can; the model is then judged without optimization."""
    if views.subject.loaded is None:
        views.optimize = Optimize.NONE
        return _load_error(views.subject.path)
    try:
        views.basic()
    except ModelError as error:
        views.optimize = Optimize.NONE
        return error.why or error.what
    return ""


def _load_error(path: Path) -> str:
    """Why onnxruntime does not load an ORT format file, "" when it does."""
    try:
        make_session(path, HostSession(level=Level.ALL))
    except ort_errors() as error:
        return refused(error).why
    return ""


def _sizes(subject: PartitionInput, given: Mapping[str, int]) -> dict[str, int] | None:
    """Sizes for every dynamic dimension, those given first; None where none were found."""
    return likely_sizes(subject.loaded, given) if subject.loaded else None


def _guessed(subject: PartitionInput, given: Mapping[str, int]) -> tuple[str, ...]:
    return unnamed(subject.loaded.proto, given) if subject.loaded else ()


def _fixed(
    views: Views, sizes: Mapping[str, int], settings: tuple[Settings, ...], folder: Path
) -> tuple[tuple[ModelAnswer, ...] | None, str]:
    """The answers with sizes, and why the CPU then has no session; no answers where the sizes do not fit."""
    loaded = views.subject.loaded
    if loaded is None:
        return None, ""
    place = folder / "fixed"
    place.mkdir()
    resized_model = resized(loaded, sizes, place)
    subject = PartitionInput(source=loaded.source, path=resized_model.path, loaded=resized_model)
    fixed = Views(subject=subject, optimize=Optimize.BASIC, folder=place)
    cpu = _cpu_error(fixed)
    return _answers(fixed, settings), cpu


def _rows(
    before: tuple[ModelAnswer, ...], fixed: tuple[ModelAnswer, ...] | None, cpu: str, fixed_cpu: str
) -> list[FitRow]:
    rows = [
        FitRow(ep=now.ep, as_is=_of(now), fixed=_of(then) if then else None)
        for now, then in zip(before, fixed or (None,) * len(before), strict=True)
    ]
    last = FitRow(
        ep=CPU, as_is=_on_cpu(before[0].nodes, cpu), fixed=_on_cpu(fixed[0].nodes, fixed_cpu) if fixed else None
    )
    return [*rows, last]


def _of(answer: ModelAnswer) -> ProviderFit:
    standing, provider = standing_of(answer), answer.ep
    found: AdviceVerdict = verdict(standing, provider)
    return ProviderFit(
        nodes=standing.nodes,
        supported=standing.claimed,
        partitions=None if PROVIDER_RULES[provider].on_cpu else standing.partitions,
        verdict=ANSWERS[found.choice],
        reason=_load_failure(standing) or found.reason,
    )


def _load_failure(standing: ProviderSupport) -> str:
    return f"no session can be made on the phone: {standing.load_error}" if standing.load_error else ""


def _on_cpu(nodes: int, error: str) -> ProviderFit:
    if error:
        return ProviderFit(nodes=nodes, supported=0, verdict="no", reason=error)
    return ProviderFit(nodes=nodes, supported=nodes, verdict="yes", reason="every node has a kernel on the CPU")


def _opset(subject: PartitionInput) -> int | None:
    if subject.loaded is None:
        return None
    versions = [entry.version for entry in subject.loaded.proto.opset_import if entry.domain in ("", "ai.onnx")]
    return versions[0] if versions else None


def _notes(
    answers: tuple[ModelAnswer, ...], cpu: str, dynamic: tuple[str, ...], sizes: Mapping[str, int] | None
) -> tuple[str, ...]:
    notes = [warning for answer in answers for warning in answer.warnings]
    if cpu:
        notes.append("judged without optimization, because no session can be made on the CPU")
    if dynamic and sizes is None:
        notes.append(f"no sizes were found that fit {', '.join(dynamic)}: give them with --dimension NAME=N")
    return tuple(dict.fromkeys(notes))


def _precision_notes(subject: PartitionInput, answers: tuple[ModelAnswer, ...]) -> Iterator[str]:
    """Which precisions providers want, where nodes are refused for the model's own."""
    form = precision_of(subject.loaded.proto) if subject.loaded else ""
    for advice in dict.fromkeys(quantized_advice(form, answer) for answer in answers):
        if advice:
            yield advice


def check_models(
    paths: Sequence[str | Path], settings: tuple[Settings, ...], sizes: Mapping[str, int], *, processes: int = 1
) -> FitDocument:
    """The answers for every model under files, folders and archives, each judged in a worker process.

    ConfigError when a path does not exist or holds no model.
    """
    sources = find_models(paths, SUFFIXES)
    tasks = [
        Task(label=source.name, request=FitRequest(source=source, settings=settings, sizes=dict(sizes)))
        for source in sources
    ]
    found = {
        outcome.task.request.source: outcome.value or failed_fit(outcome.task.request.source, outcome.error)
        for outcome in run_tasks(fit, ModelFit, tasks, processes=processes, timeout_seconds=TIMEOUT_SECONDS)
    }
    asked = settings[0].ort_release
    return FitDocument(
        ort_release=str(Release(*asked)),
        rules_release=str(rules_of(asked)),
        models=tuple(found[source] for source in sources),
    )
