"""Advice for models: each fix alone, then the best combination, each applied, judged and checked on outputs.

In worker processes: a crash costs one model.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.advice.verdict import (
    Advice,
    AdvisedAnswer,
    Combination,
    FixChoice,
    FixOutcome,
    FixResult,
    ProviderSupport,
    gain_of,
    improves,
    perfect,
    precision_of,
    preference,
    quantized_advice,
    standing_of,
    verdict,
)
from pipeline.check.compare import MAX_RELATIVE_ERROR, OutputCheck, OutputPrecision, compare_outputs, read_tensor
from pipeline.check.reference import make_reference
from pipeline.check.result import Reference
from pipeline.core import providers
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.core.files import copy_file, scratch
from pipeline.core.workers import Task, needed_bytes, run_tasks, time_limit
from pipeline.dataset import Dataset, given_sizes, samples
from pipeline.model.onnx_model import LeanModel, LoadedModel, load_model
from pipeline.model.session import ORIGINAL, Role, outputs_of
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel, find_models, source_bytes
from pipeline.partition.answer import SUFFIXES, ModelAnswer, Optimize, Settings
from pipeline.partition.graph import tensor_reader, view
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.subject import open_subject
from pipeline.partition.subject import write_model as write_lean
from pipeline.passes import surgery
from pipeline.passes.base import Effect, Feeds, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import IR_OF_CONSTANTS, GraphFacts, write_model
from pipeline.passes.precisions import PRECISIONS, RECIPES, Recipe
from pipeline.passes.registry import REWRITES, run_passes

if TYPE_CHECKING:
    from onnx import ModelProto

NNAPI = frozenset({providers.NNAPI})
COREML = frozenset({providers.COREML_NN, providers.COREML_MLPROGRAM})


MOST_SAMPLES = 64
"""Calibration samples of one trial: more change its ranges little (quantization Q.6)."""


def recipes_for(provider: str) -> tuple[Recipe, ...]:
    """The precisions to try for a provider whose claims depend on a chip, the smallest first; none for others."""
    by_chip = providers.PROVIDER_RULES[provider].by_chip
    return tuple(row for row in RECIPES.values() if by_chip and row.provider == provider)


def in_precision(loaded: LoadedModel, precision: str, reference: Reference, data: Dataset, target: Path) -> LoadedModel:
    """A float model in a precision, saved as `target`; calibrated on the data, without any on the reference's sample.

    Raises as the precision's passes do.
    """
    inputs = {tensor.name: read_tensor(tensor) for tensor in reference.inputs}
    takes = own_inputs(loaded.proto)

    limited = msgspec.structs.replace(data, limit=min(data.limit or MOST_SAMPLES, MOST_SAMPLES))

    def feeds() -> Iterator[Feeds]:
        if data.test_data:
            yield from (sample.inputs for sample in samples(limited, takes))
        else:
            yield {info.name: inputs[info.name] for info in takes}

    context = PassContext(folder=target.parent, where=loaded.source.name, samples=feeds)
    quantized = run_passes(loaded, list(PRECISIONS[precision].steps), context).model
    write_model(quantized, target)
    saved = load_model(SourceModel(path=str(target)), target.parent)
    return replace(saved, source=SourceModel(path=str(target)))


def _fix(row: Pass, title: str, options: Callable[[GraphFacts], Options], absent: str, since_ir: int = 0) -> Pass:
    """A pass over the message alone as a fix, which must give equal numbers."""

    def edit(model: "ModelProto", facts: GraphFacts) -> "ModelProto | None":
        lean = LeanModel(proto=model, folder=Path(), weights={})
        if model.ir_version < since_ir:
            return None
        try:
            return row.apply(lean, options(facts), PassContext(folder=Path(), where="the model")).proto
        except NotApplicable:
            return None

    return replace(row, title=title, effect=Effect.EXACT, edit=edit, absent=absent)


def _opset(version: int, helps: frozenset[str] = surgery.OPSET.helps) -> Pass:
    """The fix that is another opset, older ones too: the trial shows whether ONNX's converter can.

    Softmax of opset 11 and before may have any rank and axis for NNAPI (ep_rules D.4); 13 is the first whose Split
    NNAPI and CoreML take, 17 the newest before reductions, Pad, Resize and Split changed, 21 the newest that all
    supported releases take.
    """

    def edit(model: "ModelProto", facts: GraphFacts) -> "ModelProto | None":
        return None if facts.opset == version else surgery.converted(model, version)

    return replace(
        surgery.OPSET, name=f"opset-{version}", title=f"Convert to opset {version}.", edit=edit, helps=helps,
        absent=f"it is opset {version}",
    )  # fmt: skip


MODEL_FIXES = (
    _fix(surgery.FIXED_DIMENSIONS, "Fix open dimensions of the inputs.",
         lambda facts: surgery.DimensionOptions(sizes=dict(facts.sizes), rest=1), "every input dimension has a size"),
    # Before IR version 4 every initializer is listed as an input, and is a constant to providers all the same.
    _fix(surgery.CONSTANT_INITIALIZERS, "Take initializers out of the graph's inputs.", lambda _: Options(),
         "no initializer can be overridden as an input", since_ir=IR_OF_CONSTANTS),
    *REWRITES,
    _opset(11, NNAPI),
    _opset(13),
    _opset(17),
    _opset(21),
)  # fmt: skip
"""Fixes of the model, in the order in which they are tried."""


def _unchanged(model: Model, _options: Options, _context: PassContext) -> Model:
    return model


LEVEL_BASIC = Pass(
    name="level-basic", title="Optimize at level basic first.", apply=_unchanged, effect=Effect.EXACT,
    absent="it is that level",
)  # fmt: skip
OTHER_FORMAT = Pass(
    name="other-format", title="Use CoreML's other model format.", apply=_unchanged, effect=Effect.EXACT, helps=COREML,
    absent="only CoreML has formats",
)  # fmt: skip
INT64 = Pass(
    name="enable-int64", title="Set WebGPU's option enableInt64=1.", apply=_unchanged, effect=Effect.EXACT,
    helps=frozenset({providers.WEBGPU}), absent="it is set",
)  # fmt: skip
NCHW = Pass(
    name="keep-layout", title="Set WebGPU's option preferredLayout=NCHW.", apply=_unchanged, effect=Effect.EXACT,
    helps=frozenset({providers.WEBGPU}), absent="it is set",
)  # fmt: skip


def _asked_otherwise(fix: Pass, request: PartitionRequest) -> PartitionRequest | None:
    """The request with what a fix that leaves the model as it is asks for; None where that is asked already."""
    if fix is LEVEL_BASIC:
        basic = msgspec.structs.replace(request, optimize=Optimize.BASIC)
        return None if request.optimize is Optimize.BASIC else basic
    settings, options = request.settings, request.settings.webgpu
    if fix is INT64:
        if options.int64:
            return None
        settings = msgspec.structs.replace(settings, webgpu=msgspec.structs.replace(options, int64=True))
    elif fix is NCHW:
        if not settings.nhwc:
            return None
        settings = settings.in_nchw
    else:
        formats = {providers.COREML_NN: providers.COREML_MLPROGRAM, providers.COREML_MLPROGRAM: providers.COREML_NN}
        if settings.provider not in formats:
            return None
        settings = msgspec.structs.replace(settings, provider=formats[settings.provider])
    return msgspec.structs.replace(request, settings=settings)


ENABLERS = ("fixed-dimensions", "constant-initializers", "f32")
"""Fixes that may gain nothing alone because a provider asks for all of them at once."""


def fixes_for(provider: str) -> tuple[Pass, ...]:
    """The fixes that can matter to a provider."""
    return tuple(fix for fix in (*MODEL_FIXES, LEVEL_BASIC, OTHER_FORMAT, INT64, NCHW) if provider in fix.helps)


@dataclass(frozen=True, kw_only=True)
class State:
    """A model with some fixes, saved in the file that `request` names, judged; `error`: how far from the original.

    One in a `precision` was made from the model `floats`, to which further fixes apply.
    """

    loaded: LoadedModel
    request: PartitionRequest
    answer: ModelAnswer
    sizes: dict[str, int]
    error: float | None = None
    tolerance: float | None = None
    absolute_error: float | None = None
    limit: float | None = None
    precision: str = ""
    floats: LoadedModel | None = None

    @cached_property
    def standing(self) -> ProviderSupport:
        """How far the provider takes it."""
        return standing_of(self.answer)

    @property
    def faulty(self) -> frozenset[str]:
        """Operators that a chip's simulator computes otherwise; of a quantized model also unclaimed ones."""
        wrong = set[str]()
        if self.answer.simulated and self.standing.trouble:  # a crash names none: it may be any
            wrong = {self.answer.simulated.op_type or row.op_type for row in self.answer.decisions}
        unclaimed = {row.op_type for row in self.answer.decisions if not row.claimed and row.code != "border"}
        return frozenset(wrong | unclaimed if self.precision else wrong)

    @cached_property
    def known(self) -> GraphFacts:
        """What fixes ask of it; ModelError when ONNX Runtime refuses the model."""
        loaded = self.floats or self.loaded
        claimed = {row.outputs[0] for row in self.answer.decisions if row.claimed and row.op_type not in self.faulty}
        if self.floats:
            nodes = self.floats.proto.graph.node
            claimed = {name for node in nodes if node.op_type not in self.faulty for name in node.output}
        return GraphFacts(
            graph=view(loaded.proto, read=tensor_reader(loaded), outside=loaded.outside),
            settings=self.request.settings,
            claimed=frozenset(claimed),
            sizes=self.sizes,
        )


@dataclass(slots=True)
class TrialContext:
    """Where trials take place: a folder with the weights, and what the original computes.

    `reference` is why nothing can be compared when the original does not run here. Nothing is tried after `deadline`,
    on the clock of time.monotonic.
    """

    folder: Path
    provider: str
    reference: Reference | str
    data: Dataset = field(default_factory=Dataset)
    deadline: float = math.inf
    saved: int = 0

    def save(self, proto: "ModelProto") -> SourceModel:
        """Write a candidate beside the weights."""
        path = self.new_path()
        path.write_bytes(proto.SerializeToString())
        return SourceModel(path=str(path))

    def new_path(self) -> Path:
        """Where the next candidate goes."""
        self.saved += 1
        return self.folder / f"candidate-{self.saved}.onnx"

    def formed(self, loaded: LoadedModel, precision: str) -> LoadedModel:
        """A float model in a precision; ModelError where nothing can be compared, else as its passes raise."""
        if isinstance(self.reference, str):
            raise ModelError("it cannot be calibrated", why=self.reference)
        return in_precision(loaded, precision, self.reference, self.data, self.new_path())


def attempt(fix: Pass, state: State, bench: TrialContext, *, must_gain: bool = True) -> tuple[FixResult, State | None]:
    """What a fix gives, and the fixed state when it gains; whatever goes wrong stands in the result.

    Without `must_gain` a fix that only makes room for others passes too, when its outputs do.
    """
    result = FixResult(name=fix.name, title=fix.task, outcome=FixOutcome.NOT_APPLICABLE, why=fix.absent)
    if time.monotonic() > bench.deadline:
        return msgspec.structs.replace(result, why="not tried: the time for advice on this model ran out"), None
    try:
        fixed = _applied(fix, state, bench)
        if fixed is None:
            return result, None
        result = _gain(result, state, fixed, bench)
        if must_gain and result.outcome is FixOutcome.NO_GAIN:
            return result, None
        if fix.edit is None:
            return result, fixed
        if isinstance(bench.reference, str):
            why = f"it cannot be checked: {bench.reference}"
        else:
            # An exact fix after one that rounds must not add to the error; so the looser tolerance of the two holds
            tolerance = max(state.tolerance or 0.0, 0.0 if fix.exact else MAX_RELATIVE_ERROR[bench.reference.precision])
            checks = difference(fixed.loaded, bench.reference, tolerance)
            result, fixed = _with_error(result, fixed, checks, tolerance)
            why = _objection(checks, tolerance if state.precision else 0.0 if fix.exact else None)
            if not why:
                return result, fixed
    except PipelineError as error:
        why = error.reason
    except Exception as error:  # noqa: BLE001 - a hostile model may break one fix, and must not cost the others
        why = f"the fix failed: {type(error).__name__}: {error}"[:300]
    return msgspec.structs.replace(result, outcome=FixOutcome.REJECTED, why=why), None


def _applied(fix: Pass, state: State, bench: TrialContext) -> State | None:
    """The judged state behind a fix; None when it does not apply, ModelError when the result cannot be judged."""
    request, loaded, floats = state.request, state.loaded, state.floats
    if fix.edit:
        edited = fix.edit((floats or loaded).proto, state.known)
        if edited is None:
            return None
        loaded = load_model(bench.save(edited), bench.folder)
        if floats:
            floats, loaded = loaded, bench.formed(loaded, state.precision)
        request = msgspec.structs.replace(request, source=loaded.source)
    else:
        changed = _asked_otherwise(fix, request)
        if changed is None:
            return None
        request = changed
    return replace(judged(loaded, request, state), precision=state.precision, floats=floats)


def judged(
    loaded: LoadedModel, request: PartitionRequest, before: "State | None", sizes: dict[str, int] | None = None
) -> State:
    """A state of a saved model; ModelError when it cannot be judged.

    The simulator is asked only where its answer counts: of what was wrong before, and of what is taken better.
    """
    answer = judge(msgspec.structs.replace(request, simulate=None))
    if answer.error:
        raise ModelError("the changed model cannot be judged", why=answer.error)
    provider = request.settings.provider
    better = before is None or before.standing.trouble or improves(standing_of(answer), before.standing, provider)
    if request.simulate and better:
        answer = judge(request)
    if before is None:
        return State(loaded=loaded, request=request, answer=answer, sizes=sizes or {})
    return replace(before, loaded=loaded, request=request, answer=answer, precision="", floats=None)


def _gain(result: FixResult, before: State, after: State, bench: TrialContext) -> FixResult:
    """The result with what the provider now takes, and whether that is better."""
    better = improves(after.standing, before.standing, bench.provider)
    return msgspec.structs.replace(
        result,
        outcome=FixOutcome.GAINS if better else FixOutcome.NO_GAIN,
        why="" if better else "neither fewer partitions nor fewer nodes on the CPU",
        after=after.standing,
        gain=gain_of(before.standing, after.standing, bench.provider),
    )


def _with_error(
    result: FixResult, state: State, checks: Sequence[OutputCheck], tolerance: float
) -> tuple[FixResult, State]:
    """Both with how far outputs are from the original's."""

    def nearness(check: OutputCheck) -> float:
        """How much of what is allowed an error takes."""
        return (check.max_abs_error or 0.0) / check.limit if check.limit else check.max_abs_error or 0.0

    worst = max(checks, key=nearness, default=None)
    error = max((check.max_rel_error for check in checks if check.max_rel_error is not None), default=None)
    absolute, limit = (worst.max_abs_error, worst.limit) if worst else (None, None)
    figures: dict[str, Any] = {"error": error, "tolerance": tolerance, "absolute_error": absolute, "limit": limit}
    return msgspec.structs.replace(result, **figures), replace(state, **figures)


def difference(loaded: LoadedModel, reference: Reference, tolerance: float) -> tuple[OutputCheck, ...]:
    """How far a model's outputs are from the reference's on its inputs, by the rule of every numeric check.

    On as many threads as the reference's: with another number of them sums are rounded otherwise.
    """
    feeds = {tensor.name: read_tensor(tensor) for tensor in reference.inputs}
    given = outputs_of(loaded, feeds, replace(ORIGINAL, role=Role.CHANGED))
    expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
    return tuple(compare_outputs(expected, given, reference.tolerance(tolerance)))


def _objection(checks: Iterable[OutputCheck], most: float | None) -> str:
    """Why a fixed model is not accepted, "" where it is.

    What inputs cannot show counts against a fix that rounds, but for an error up to `most`: 0 for an exact fix, which
    is the same by its definition, and for one of a form what that may have, whose own error may be as large as outputs.
    """

    def taken(check: OutputCheck) -> bool:
        return most is not None and check.max_rel_error is not None and check.max_rel_error <= most

    against = [check for check in checks if check.failed or (check.unknown and not taken(check))]
    reasons = "; ".join(f"output {check.output!r}: {check.reason}" for check in against[:3])
    return (
        f"{reasons}; give test data (--test-data)" if against and all(check.unknown for check in against) else reasons
    )


PATIENCE_SECONDS = 200.0
"""How long fixes of one model are tried: a model of thousands of nodes takes seconds for each."""

SIMULATED_FACTOR = 6
"""Factor of that time where a simulator runs each candidate."""

MOST_ROUNDS = 3
"""Passes over the fixes while the combination still improves: one fix may make room for another."""


def advise(
    source: SourceModel,
    settings: Settings,
    optimize: Optimize,
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
    with scratch() as folder:
        # The model as a file in `folder` with its weights' files beside it
        subject = open_subject(source, folder)
        if isinstance(subject, Path):
            raise ModelError(
                "an ORT format file cannot be changed",
                where=source.name,
                remedy="name the ONNX model that it was made from",
            )
        path = folder / "original.onnx"
        write_lean(subject, path)
        loaded = load_model(SourceModel(path=str(path)), folder)
        sizes = given_sizes(data, loaded.proto, sizes, source.name)
        reference: Reference | str  # what the original computes on its data, or why it does not
        try:
            reference = make_reference(loaded.source, sizes, data, str(folder / "reference"), str(folder))
            sizes = reference.data.sizes | sizes  # what nobody gave a size has that of the reference's inputs
        except PipelineError as error:
            if isinstance(error, ConfigError) and data.given:  # data that are no input of it
                raise
            reference = error.reason
        except (ValueError, OverflowError, MemoryError) as error:
            reference = f"its inputs are too large to be made here: {error}"
        deadline = time.monotonic() + PATIENCE_SECONDS * (SIMULATED_FACTOR if simulate else 1)
        bench = TrialContext(
            folder=folder, provider=settings.provider, reference=reference, data=data, deadline=deadline
        )
        asked = PartitionRequest(
            source=loaded.source, settings=settings, optimize=optimize, simulate=data if simulate else None
        )
        base = judged(loaded, asked, None, sizes)
        # Where a chip has no floats at all, fixes of a float model change nothing before it is quantized
        form, load = precision_of(loaded.proto), base.answer.load
        only_floats = bool(load and load.code == "float" and not form)
        fixes = () if perfect(base.standing) or only_floats else fixes_for(bench.provider)
        alone = [(fix, *attempt(fix, base, bench)) for fix in fixes]
        best, used = combined(base, alone, bench)
        formed, best, used = with_forms(best, used, bench)
        combination = _combination(base, best, used, bench)
        changed = bool(combination) and not best.request.source.path.endswith("original.onnx")
        if write_to and combination and changed:
            write_model(best.loaded, Path(write_to))
            combination = msgspec.structs.replace(combination, written=write_to)
        elif write_to:  # unchanged: its own bytes, or with its weights inside where these lie in other files
            original = load_model(source, folder)
            if original.outside:
                write_model(original, Path(write_to))
            else:
                copy_file(original.path, Path(write_to))
        if isinstance(reference, str):
            checked_on = f"nothing could be compared: {reference}"
        else:
            shapes = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in reference.inputs)
            checked_on = f"{reference.data.source} ({shapes}), on the CPU without optimizations"
        return Advice(
            verdict=verdict(base.standing, bench.provider),
            before=base.standing,
            fixes=(*(result for _, result, _ in alone), *formed),
            best=combination,
            checked_on=checked_on,
            copied=write_to if write_to and not changed else None,
            precision=quantized_advice(form, base.answer),
        )


def with_forms(
    best: State, used: tuple[Pass, ...], bench: TrialContext
) -> tuple[list[FixResult], State, tuple[Pass, ...]]:
    """Each precision for a chip's NPU, with the fixes that then still gain; where the model as it is, is not for it.

    The first form that is within the tolerance of quantized models is taken, else the nearest: what it costs is shown.
    """
    usable = verdict(best.standing, bench.provider).choice is FixChoice.USE
    fixes = [fix for fix in fixes_for(bench.provider) if fix.edit]
    if usable or not recipes_for(bench.provider):
        return [], best, used
    start, enabling = _enabled(best, [fix for fix in fixes if fix not in used], bench)
    if precision_of(start.loaded.proto):
        return [], best, used
    used = (*used, *enabling)
    results, states = list[FixResult](), list[tuple[State, tuple[Pass, ...]]]()
    for recipe in recipes_for(bench.provider):
        form = Pass(name=recipe.name, title=f"Quantize every operator: {recipe.title}.", apply=_unchanged,
                    effect=Effect.LOSSY)  # fmt: skip
        result, state = _attempt_form(form, recipe.precision, start, bench)
        results.append(result)
        if state is None:
            continue
        end, more = _climb(state, [fix for fix in fixes if fix not in used], {}, bench)
        states.append((end, (*used, form, *more)))
        near = (end.error or 0.0) <= MAX_RELATIVE_ERROR[OutputPrecision.QUANTIZED]
        if near and not end.standing.trouble:
            break
    if not states:
        return results, best, used[: len(used) - len(enabling)]
    return results, *max(states, key=lambda pair: (preference(pair[0].standing, bench.provider), -(pair[0].error or 0)))


def _attempt_form(form: Pass, precision: str, state: State, bench: TrialContext) -> tuple[FixResult, State | None]:
    """What a precision gives, and the state in it when it gains; an error of its outputs is shown, not judged."""
    result = FixResult(name=form.name, title=form.task, outcome=FixOutcome.REJECTED)
    try:
        loaded = bench.formed(state.loaded, precision)
        original = bench.reference if isinstance(bench.reference, Reference) else None
        request = msgspec.structs.replace(state.request, source=loaded.source, original=original)
        formed = replace(judged(loaded, request, state), precision=precision, floats=state.loaded)
        result = _gain(result, state, formed, bench)
        if result.outcome is FixOutcome.NO_GAIN or isinstance(bench.reference, str):
            return result, None
        share = MAX_RELATIVE_ERROR[OutputPrecision.QUANTIZED]
        checks = difference(loaded, bench.reference, share)
    except PipelineError as error:
        return msgspec.structs.replace(result, outcome=FixOutcome.REJECTED, why=error.reason), None
    result, formed = _with_error(result, formed, checks, share)
    return result, replace(formed, tolerance=max(share, (formed.error or 0.0) * MORE))


MORE = 1.2
"""Factor by which the error of a quantized model may grow with a fix, which changes what is rounded."""


def combined(
    base: State, alone: Sequence[tuple[Pass, FixResult, State | None]], bench: TrialContext
) -> tuple[State, tuple[Pass, ...]]:
    """Fixes together, those that gain most alone first, as long as each still improves the whole.

    A second climb starts from what makes room for others, gain or not, and counts when it ends better. CoreML's other
    format is taken only where nothing else is left that helps.
    """
    tried = {fix: state for fix, _, state in alone}

    def rank(fix: Pass) -> tuple[bool, tuple[int, int, int, float]]:
        """Gains first; among equal ones sorting keeps the table's order."""
        state = tried[fix]
        return state is not None, preference(state.standing, bench.provider) if state else (0, 0, 0, 0.0)

    order = sorted(tried, key=rank, reverse=True)
    asked = [fix for fix in order if fix is not OTHER_FORMAT]
    best = _climb(base, asked, tried, bench)
    if not perfect(best[0].standing):
        start, enabling = _enabled(base, asked, bench)
        end, more = _climb(start, [fix for fix in asked if fix not in enabling], {}, bench) if enabling else (base, ())
        if improves(end.standing, best[0].standing, bench.provider):
            best = end, (*enabling, *more)
    current, used = best
    if OTHER_FORMAT in tried and not perfect(current.standing):
        changed = attempt(OTHER_FORMAT, current, bench)[1]
        if changed is not None:
            final, last = _climb(changed, [fix for fix in asked if fix not in used], {}, bench)
            best = final, (*used, OTHER_FORMAT, *last)
    return best


def _enabled(base: State, fixes: Sequence[Pass], bench: TrialContext) -> tuple[State, tuple[Pass, ...]]:
    """The state with every fix that makes room for others."""
    current, applied = base, list[Pass]()
    for fix in fixes:
        state = attempt(fix, current, bench, must_gain=False)[1] if fix.name in ENABLERS else None
        if state is not None:
            current = state
            applied.append(fix)
    return current, tuple(applied)


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
            is_tried = current is start and fix in tried
            state = tried[fix] if is_tried else attempt(fix, current, bench)[1]
            if state is not None:
                current = state
                used.append(fix)
        if len(used) == before:
            break
    return current, tuple(used)


def _combination(base: State, best: State, used: Sequence[Pass], bench: TrialContext) -> Combination | None:
    if not used:
        return None
    words = []
    if best.request.settings.provider is not base.request.settings.provider:
        words.append(f"--ep {best.request.settings.provider}")
    was, now = base.request.settings.webgpu, best.request.settings.webgpu
    options = ["enableInt64=1"] * (now.int64 and not was.int64) + ["preferredLayout=NCHW"] * (now.layout != was.layout)
    if options:
        words.append(f"--webgpu-options {','.join(options)}")
    if best.request.optimize is Optimize.BASIC and base.request.optimize is not Optimize.BASIC:
        words.append("--optimize basic")
    share = MAX_RELATIVE_ERROR[OutputPrecision.QUANTIZED]
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
    answers: Sequence[ModelAnswer],
    settings: Settings,
    optimize: Optimize,
    sizes: Mapping[str, int],
    *,
    data: Dataset | None = None,
    simulate: bool = False,
    write_to: str = "",
    processes: int = 1,
) -> tuple[ModelAnswer, ...]:
    """The answers for the models under `paths`, in their order, with advice; those with an error stay as they are.

    `data` is what outputs are compared on: random inputs without it.
    """
    tasks = [
        Task(
            label=source.name,
            call=partial(
                advise, source, settings, optimize, dict(sizes), data or Dataset(), simulate=simulate, write_to=write_to
            ),
            memory_bytes=needed_bytes(2 * source_bytes(source)),
        )
        for source, answer in zip(find_models(paths, SUFFIXES), answers, strict=True)
        if not answer.error
    ]
    advice: dict[str, Advice] = {}
    patience = TIMEOUT_SECONDS * (SIMULATED_FACTOR if simulate else 1)
    limit = max(patience, time_limit(source_bytes(source) for source in find_models(paths, SUFFIXES)))
    for outcome in run_tasks(tasks, processes=processes, timeout_seconds=limit):
        error = outcome.error
        why = error.text if error else "no advice"
        advice[outcome.task.label] = outcome.value or Advice(error=why)
    return tuple(
        AdvisedAnswer(**msgspec.structs.asdict(answer), advice=advice[answer.path]) if answer.path in advice else answer
        for answer in answers
    )
