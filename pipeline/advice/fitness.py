"""`ort-mobile check`: how far each provider supports one model, as it is and with sizes for its dimensions."""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from device_runner import providers as runner_providers
from pipeline.advice.precision_choice import precision_of, quantized_advice
from pipeline.advice.verdict import AdviceVerdict, FixChoice, Help, helps_of, standing_of, verdict
from pipeline.check import many as check_many
from pipeline.core import errors as core_errors
from pipeline.core import ort_session, workers
from pipeline.core import providers as provider_rules
from pipeline.core import releases as ort_releases
from pipeline.core.errors import ModelError
from pipeline.core.releases import Release
from pipeline.core.variant import Level
from pipeline.dataset import Dataset
from pipeline.model import edit as onnx_edit
from pipeline.model import guards
from pipeline.model import sources as model_sources
from pipeline.model.onnx_model import LeanModel
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import judge, kept
from pipeline.partition import subject as partition_subject
from pipeline.partition import types as partition_types

ANSWERS = {FixChoice.USE: "yes", FixChoice.MEASURE: "maybe", FixChoice.CPU: "no"}
"""The verdicts in one word, as ONNX Runtime's mobile usability checker gives them."""


class ProviderFit(msgspec.Struct, frozen=True, kw_only=True):
    """How far one provider supports a model: `verdict` is yes, maybe or no, `reason` says why.

    The CPU's is "unknown" where no session was made of a model with many nodes. `partitions` is None for what computes
    on the CPU, where a border costs nothing, and for what is judged by `copies`; `refused` counts the nodes that are
    not supported by operator, with its domain where that is not ONNX's own.
    """

    nodes: int
    supported: int
    partitions: int | None = None
    copies: int | None = None
    verdict: str
    reason: str
    refused: dict[str, int] = {}


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One provider's answers: the model as it is, and with sizes where dimensions are dynamic.

    `level` is the API level or Core ML version, where it is not the document's, or the layout in which alone WebGPU
    runs the model; `chip` whose NPU was asked.
    """

    ep: str
    as_is: ProviderFit
    fixed: ProviderFit | None = None
    level: str = ""
    chip: str = ""

    @property
    def fit(self) -> ProviderFit:
        """What counts: the answer with sizes, where there is one."""
        return self.fixed or self.as_is


class FirstChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What to try on a kind of phone, the best first: providers by name (none: the CPU), and why.

    `ask` is the option that has the command ask about them, where they were not asked.
    """

    phones: str
    providers: tuple[str, ...] = ()
    reason: str = ""
    ask: str = ""


class PhoneKind(NamedTuple):
    """Phones with their providers, those that ONNX Runtime develops before those that it keeps; why so, and the option
    that asks about them.
    """

    phones: str
    providers: tuple[str, ...]
    reason: str
    ask: str


PHONES = (
    PhoneKind(
        "iPhones",
        (provider_rules.COREML_MLPROGRAM, provider_rules.COREML_NN),
        "CoreML reaches GPU and Neural Engine",
        "",
    ),
    PhoneKind(
        "Android phones",
        (provider_rules.WEBGPU, provider_rules.NNAPI, provider_rules.XNNPACK),
        "WebGPU is in ONNX Runtime's Android package and runs on GPUs of all makers; Android 15 deprecated NNAPI",
        "",
    ),
    PhoneKind("Snapdragons", (provider_rules.QNN,), "QNN reaches the NPU", "--chip SM8650"),
)
"""Sources: docs/gpu.md, docs/npu.md."""

WORTH = ("yes", "maybe")
"""Verdicts of what is tried, the better first."""

QUANTIZED = "the CPU has fast kernels for quantized models; CoreML and GPUs take float ones: start from the float model"


def first_choices(rows: Sequence[FitRow], *, quantized: bool = False) -> tuple[FirstChoice, ...]:
    """What to try first on which phones: the better verdict, then the order of `PHONES`; beside each is the CPU."""
    nothing = QUANTIZED if quantized else "no provider takes enough of the model"
    choices = []
    for phones, names, about, ask in PHONES:
        rows_here = [row for name in names for row in rows if row.ep == name]
        if not rows_here:
            about += ", which is made for quantized models" if quantized else ""
            choices.append(FirstChoice(phones=phones, reason=about, ask=ask))
            continue
        good_rows = sorted(
            (row for row in rows_here if row.fit.verdict in WORTH), key=lambda row: WORTH.index(row.fit.verdict)
        )
        reason = f"{good_rows[0].fit.reason}. {about}" if good_rows else nothing
        providers = tuple(dict.fromkeys(row.ep for row in good_rows))
        choices.append(FirstChoice(phones=phones, providers=providers[:MOST_FIRST], reason=reason))
    return tuple(choices)


MOST_FIRST = 2
"""Beyond so many, measuring says more than rules."""


class ModelFit(msgspec.Struct, frozen=True, kw_only=True):
    """One model's answer. `sizes` are those of the dynamic dimensions, `guessed` those that nobody gave.

    `nodes` are the model's own, and `ends` those beside them that make tensors of an app's data and back.
    `oldest` has the rows whose verdict is another one on the oldest systems that ONNX Runtime's packages allow.
    `optimize` is the level that was judged: basic, or none where ONNX Runtime cannot make a session on the CPU, or was
    not asked for one since the model has too many nodes. With `error` set, nothing else is known.
    """

    path: str
    nodes: int = 0
    ends: int = 0
    opset: int | None = None
    dynamic: tuple[str, ...] = ()
    sizes: dict[str, int] = {}
    guessed: tuple[str, ...] = ()
    optimize: claim_answer.Optimize = claim_answer.Optimize.BASIC
    rows: tuple[FitRow, ...] = ()
    oldest: tuple[FitRow, ...] = ()
    first: tuple[FirstChoice, ...] = ()
    helps: tuple[Help, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    remedy: str | None = None


class FitDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole JSON document of `ort-mobile check`; `rules_release` decided where `ort_release` has no rules.

    `levels` are the API level and the Core ML version of the rows, in words and by provider.
    """

    ort_release: str
    rules_release: str
    levels: dict[str, str] = {}
    models: tuple[ModelFit, ...]
    version: int = 1


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles: a graph is millions of objects without any, and looking took a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class WithSizes:
    """A model with sizes for its dynamic dimensions, None without; why no session can be made with the last that were
    tried on the CPU, "" if one can.
    """

    sizes: dict[str, int] | None = None
    views: partition_subject.Views | None = None
    cpu: str = ""


def _with_sizes(
    views: partition_subject.Views, likely: Iterable[dict[str, int]], folder: Path, *, tried: bool
) -> WithSizes:
    """The model with the first likely sizes; where they are `tried`, with the first of which a session can be made.

    Shape inference accepts guesses that a session refuses once constants are folded.
    """
    cpu = ""
    for number, sizes in enumerate(likely):
        (fixed_folder := folder / f"fixed-{number}").mkdir()
        sized = views.resized(sizes, fixed_folder, claim_answer.Optimize.BASIC)
        cpu = _cpu_error(sized)
        if not (cpu and tried):
            return WithSizes(sizes=sizes, views=sized, cpu=cpu)
    return WithSizes(cpu=cpu)


@_uncollected()  # around the call: where it ends, the graphs are gone
def fit(
    source: SourceModel,
    settings: tuple[claim_answer.Settings, ...],
    oldest: tuple[claim_answer.Settings, ...],
    given: dict[str, int],
) -> ModelFit:
    """The answer for one model and some providers; raises what is wrong with it.

    `oldest` are the settings of the oldest systems, for providers that are asked of them as well; `given` are the sizes
    that the user gave.
    """
    with partition_subject.scratch_folder(source) as folder:
        as_is = folder / "as-is"
        as_is.mkdir()
        views = partition_subject.open_views(source, claim_answer.Optimize.BASIC, as_is, {})
        workers.still_at_work()
        cpu = _cpu_error(views)
        workers.still_at_work()
        lacking_errors = () if cpu else core_errors.errors(views.lacking(settings[0], runner_providers.CPU))
        lacking = "; ".join(dict.fromkeys(f"{error.what}: {error.remedy}" for error in lacking_errors))
        before = _answers(views, settings)
        dynamic = before[0].dynamic
        guessed = partition_subject.unnamed(views.loaded.proto, given) if views.loaded and dynamic else ()
        likely = partition_subject.likely_sizes(views.loaded, given) if views.loaded and (dynamic or given) else ()
        with_sizes = _with_sizes(views, likely, folder, tried=bool(guessed) and not cpu)
        sizes, sized, fixed_cpu = with_sizes.sizes, with_sizes.views, with_sizes.cpu
        fixed = _answers(sized, settings) if sized else None
        judged = [
            _in_nchw(provider, asked, views, sized) or provider
            for provider, asked in zip(_judged(before, fixed), settings, strict=True)
        ]
        rows = tuple(provider.row for provider in judged)
        before = tuple(provider.as_is for provider in judged)
        fixed = tuple(provider.fixed for provider in judged if provider.fixed) or None
        now = fixed or before
        on_cpu = _on_cpu(views, fixed[0].nodes, fixed_cpu or lacking) if fixed else None
        form = precision_of(views.loaded.proto) if views.loaded else ""
        unsuited = quantized_advice(form, *now)
        on_gpu = any(provider_rules.PROVIDER_RULES[row.ep].run.gpu and row.fit.supported for row in rows)
        runs = on_gpu and _asks(views)
        loss = (
            check_many.gpu_loss_alone(views.loaded, sizes or {}, Dataset(), folder) if views.loaded and runs else None
        )
        differing = []  # the rows whose verdict is another one on the oldest systems
        for row, asked, older in zip(rows, settings, oldest or settings, strict=True):
            if older.system != asked.system:
                then = _answers(sized, (older,)) if sized else None
                (oldest_judged,) = _judged(_answers(views, (older,)), then, older.system)
                at_oldest = oldest_judged.row
                if (at_oldest.as_is.verdict, at_oldest.fit.verdict) != (row.as_is.verdict, row.fit.verdict):
                    differing.append(at_oldest)
        return ModelFit(
            path=source.name,
            nodes=before[0].nodes,
            ends=len(before[0].ends),
            opset=onnx_edit.onnx_opset(views.loaded.proto) or None if views.loaded else None,
            dynamic=dynamic,
            sizes=sizes or {},
            guessed=guessed,
            optimize=views.optimize,
            rows=(
                *rows,
                FitRow(ep=runner_providers.CPU, as_is=_on_cpu(views, before[0].nodes, cpu or lacking), fixed=on_cpu),
            ),
            oldest=tuple(differing),
            first=first_choices(rows, quantized=form not in ("", "fp16") and not form.startswith("w")),
            helps=helps_of(before, fixed, sizes or {}, unsuited),
            notes=(
                *_notes(now, cpu, dynamic if sizes is None else (), fixed_cpu),
                *(() if _asks(views) else (UNASKED_NOTE.format(views.nodes, partition_subject.MOST_NODES),)),
                *([_four_bits(views.loaded)] if views.loaded and guards.four_bit_constants(views.loaded.proto) else ()),
                *(
                    note
                    for note in dict.fromkeys(quantized_advice(form, answer) for answer in now)
                    if note and not unsuited
                ),
                *([loss.text] if loss else ()),
            ),
        )


def _answers(
    views: partition_subject.Views, settings: tuple[claim_answer.Settings, ...]
) -> tuple[claim_answer.ModelAnswer, ...]:
    answers = []
    for asked in settings:
        workers.still_at_work()
        answers.append(judge.judge_views(views, asked, brief=True))
    return tuple(answers)


def _asks(views: partition_subject.Views) -> bool:
    """Whether sessions are made of the model, to know what they would be; not of one with too many nodes."""
    return views.nodes <= partition_subject.MOST_NODES


UNASKED = "not judged: ONNX Runtime makes no session of more than {:,} nodes here; ort-mobile convert makes one"
UNASKED_NOTE = (
    "not judged: what level basic makes of {:,} nodes, and whether a session can be made on the CPU. Beyond {:,} nodes "
    "providers are judged of the model as it is; ort-mobile partition --optimize basic judges what ships"
)


def _cpu_error(views: partition_subject.Views) -> str:
    """Why no session can be made on the CPU, "" when one can or none is asked for (`_asks`).

    Unless one can, the model is judged without optimization.
    """
    if not _asks(views):
        views.optimize = claim_answer.Optimize.NONE
        return ""
    if isinstance(views.subject, Path):
        views.optimize = claim_answer.Optimize.NONE
        # Why onnxruntime does not load an ORT format file, "" when it does
        try:
            ort_session.make_session(
                views.subject, ort_session.session_options(Level.ALL, config=ort_session.NO_PREPACKING)
            )
        except ort_session.ort_errors() as error:
            return partition_types.refused(error).why
        return ""
    try:
        views.basic()
    except ModelError as error:
        views.optimize = claim_answer.Optimize.NONE
        return error.why or error.what
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The answers for one provider, and the row that they make."""

    as_is: claim_answer.ModelAnswer
    fixed: claim_answer.ModelAnswer | None
    row: FitRow


def _judged(
    before: Sequence[claim_answer.ModelAnswer], fixed: Sequence[claim_answer.ModelAnswer] | None, level: str = ""
) -> Iterator[_Judged]:
    for now, then in zip(before, fixed or (None,) * len(before), strict=True):
        row = FitRow(ep=now.ep, as_is=_of(now), fixed=_of(then) if then else None, level=level, chip=now.chip)
        yield _Judged(as_is=now, fixed=then, row=row)


NCHW = "preferredLayout=NCHW"


def _in_nchw(
    judged: _Judged, asked: claim_answer.Settings, views: partition_subject.Views, sized: partition_subject.Views | None
) -> _Judged | None:
    """WebGPU in its other layout, where it runs the model in that alone; None for any other provider."""
    row = judged.row
    moves = bool(asked.rules.run.layout_key) and asked.nhwc
    if not moves or row.fit.verdict in WORTH or not row.fit.supported:
        return None
    there = (asked.in_nchw,)
    (moved,) = _judged(_answers(views, there), _answers(sized, there) if sized else None, NCHW)
    fit = moved.row.fit
    if fit.verdict not in WORTH:
        return None
    told = msgspec.structs.replace(fit, reason=f"{fit.reason}, with {NCHW} alone: else {row.fit.reason}")
    return replace(moved, row=msgspec.structs.replace(moved.row, **{"fixed" if moved.fixed else "as_is": told}))


def _of(answer: claim_answer.ModelAnswer) -> ProviderFit:
    standing, provider = standing_of(answer), answer.ep
    rules = provider_rules.PROVIDER_RULES[provider]
    advised: AdviceVerdict = verdict(standing, provider)
    return ProviderFit(
        nodes=standing.nodes,
        supported=standing.claimed,
        partitions=None if rules.on_cpu or rules.copies else standing.partitions,
        copies=standing.copies,
        verdict=ANSWERS[advised.choice],
        reason=(answer.load.why_not if answer.load else "") or advised.reason,
        refused=answer.refused_operators,
    )


def _on_cpu(views: partition_subject.Views, nodes: int, error: str) -> ProviderFit:
    if error:
        return ProviderFit(nodes=nodes, supported=0, verdict="no", reason=error)
    if not _asks(views):
        return ProviderFit(
            nodes=nodes, supported=0, verdict="unknown", reason=UNASKED.format(partition_subject.MOST_NODES)
        )
    return ProviderFit(nodes=nodes, supported=nodes, verdict="yes", reason="every node has a kernel on the CPU")


def _four_bits(model: LeanModel) -> str:
    """That ORT format files of some levels only can hold a model's weights."""
    first = guards.four_bit_constants(model.proto)[0]
    return (
        f"the ORT format has no type for {first!r}, so levels none and basic give no file that loads; {guards.PACKED}"
    )


def _notes(
    answers: tuple[claim_answer.ModelAnswer, ...], cpu: str, unsized: tuple[str, ...], refusal: str
) -> tuple[str, ...]:
    """Warnings of the rules, and how the model was judged; `refusal` says why the last sizes tried made no session."""
    notes = [warning for answer in answers for warning in answer.warnings]
    if cpu:
        notes.append("judged without optimization, because no session can be made on the CPU")
    if unsized:
        only = "" if cpu else ", so it may be one that loads with open dimensions only"
        why = f" ({refusal})" if refusal else ""
        notes.append(
            f"no sizes were found for {', '.join(unsized)} with which ONNX Runtime takes the model{why}{only}; "
            "if your app has sizes, try them with --dimension NAME=N"
        )
    return tuple(dict.fromkeys(notes))


def check_models(
    paths: Sequence[str | Path],
    settings: tuple[claim_answer.Settings, ...],
    sizes: Mapping[str, int],
    *,
    oldest: tuple[claim_answer.Settings, ...] = (),
    processes: int = 1,
) -> FitDocument:
    """The answers for every model under files, folders and archives, each judged in a worker process.

    `oldest` are the same providers' settings on the oldest systems that are asked about.
    ConfigError when a path does not exist or holds no model, MissingError without the compiler of a chip.
    """
    sources = model_sources.find_models(paths, claim_answer.SUFFIXES)
    kept.require_compilers(settings)
    asked_of = {
        workers.Task(
            label=source.name,
            call=partial(fit, source, settings, oldest, dict(sizes)),
            memory_bytes=workers.needed_bytes(2 * model_sources.source_bytes(source)),
        ): source
        for source in sources
    }
    fits = {}
    limit = workers.time_limit(model_sources.source_bytes(source) for source in sources)
    for outcome in workers.run_tasks(asked_of, processes=processes, timeout_seconds=limit):
        source, (error, remedy) = asked_of[outcome.task], judge.reason_of(outcome.error)
        fits[source] = outcome.value or ModelFit(path=source.name, error=error, remedy=remedy)
    asked = settings[0].ort_release
    return FitDocument(
        ort_release=str(Release(*asked)),
        rules_release=str(ort_releases.rules_of(asked)),
        levels={setting.provider: setting.system for setting in settings if setting.system and not setting.chip},
        models=tuple(fits[source] for source in sources),
    )
