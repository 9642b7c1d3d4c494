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

from pipeline import dataset as datasets
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
from pipeline.check import compare as output_compare
from pipeline.check import reference as check_reference
from pipeline.check import result as check_result
from pipeline.check.compare import OutputCheck
from pipeline.core import files as storage
from pipeline.core import providers as provider_rules
from pipeline.core import workers
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.dataset import Dataset
from pipeline.model import onnx_model, signature
from pipeline.model import session as model_session
from pipeline.model import sources as model_sources
from pipeline.model.onnx_model import LeanModel
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import graph as partition_graph
from pipeline.partition import judge
from pipeline.partition import subject as partition_subject
from pipeline.passes import base as passes_base
from pipeline.passes import edit as passes_edit
from pipeline.passes import precisions as passes_precisions
from pipeline.passes import registry, surgery
from pipeline.passes.base import NotApplicable

if TYPE_CHECKING:
    from onnx import ModelProto

NNAPI = frozenset({provider_rules.NNAPI})
COREML = frozenset({provider_rules.COREML_NN, provider_rules.COREML_MLPROGRAM})


MOST_SAMPLES = 64
"""Calibration samples of one trial: more change its ranges little (quantization Q.6)."""


def recipes_for(provider: str) -> tuple[passes_precisions.Recipe, ...]:
    """The precisions to try for a provider whose claims depend on a chip, the smallest first; none for others."""
    by_chip = provider_rules.PROVIDER_RULES[provider].by_chip
    return tuple(row for row in passes_precisions.RECIPES.values() if by_chip and row.provider == provider)


def in_precision(
    loaded: onnx_model.LoadedModel, precision: str, reference: check_result.Reference, data: Dataset, target: Path
) -> onnx_model.LoadedModel:
    """A float model in a precision, saved as `target`; calibrated on the data, without any on the reference's sample.

    Raises as the precision's passes do.
    """
    inputs = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.inputs}
    takes = signature.own_inputs(loaded.proto)

    limited = msgspec.structs.replace(data, limit=min(data.limit or MOST_SAMPLES, MOST_SAMPLES))

    def feeds() -> Iterator[passes_base.Feeds]:
        if data.test_data:
            yield from (sample.inputs for sample in datasets.samples(limited, takes))
        else:
            yield {info.name: inputs[info.name] for info in takes}

    context = passes_base.PassContext(folder=target.parent, where=loaded.source.name, samples=feeds)
    quantized = registry.run_passes(loaded, list(passes_precisions.PRECISIONS[precision].steps), context).model
    passes_edit.write_model(quantized, target)
    saved = onnx_model.load_model(SourceModel(path=str(target)), target.parent)
    return replace(saved, source=SourceModel(path=str(target)))


def _fix(
    row: passes_base.Pass,
    title: str,
    options: Callable[[passes_edit.GraphFacts], passes_base.Options],
    absent: str,
    since_ir: int = 0,
) -> passes_base.Pass:
    """A pass over the message alone as a fix, which must give equal numbers."""

    def edit(model: "ModelProto", facts: passes_edit.GraphFacts) -> "ModelProto | None":
        lean = LeanModel(proto=model, folder=Path(), weights={})
        if model.ir_version < since_ir:
            return None
        try:
            return row.apply(lean, options(facts), passes_base.PassContext(folder=Path(), where="the model")).proto
        except NotApplicable:
            return None

    return replace(row, title=title, effect=passes_base.Effect.EXACT, edit=edit, absent=absent)


def _opset(version: int, helps: frozenset[str] = surgery.OPSET.helps) -> passes_base.Pass:
    """The fix that is another opset, older ones too: the trial shows whether ONNX's converter can.

    Softmax of opset 11 and before may have any rank and axis for NNAPI (ep_rules D.4); 13 is the first whose Split
    NNAPI and CoreML take, 17 the newest before reductions, Pad, Resize and Split changed, 21 the newest that all
    supported releases take.
    """

    def edit(model: "ModelProto", facts: passes_edit.GraphFacts) -> "ModelProto | None":
        return None if facts.opset == version else surgery.converted(model, version)

    return replace(
        surgery.OPSET,
        name=f"opset-{version}",
        title=f"Convert to opset {version}.",
        edit=edit,
        helps=helps,
        absent=f"it is opset {version}",
    )


MODEL_FIXES = (
    _fix(
        surgery.FIXED_DIMENSIONS,
        "Fix open dimensions of the inputs.",
        lambda facts: surgery.DimensionOptions(sizes=dict(facts.sizes), rest=1),
        "every input dimension has a size",
    ),
    # Before IR version 4 every initializer is listed as an input, and is a constant to providers all the same.
    _fix(
        surgery.CONSTANT_INITIALIZERS,
        "Take initializers out of the graph's inputs.",
        lambda _: passes_base.Options(),
        "no initializer can be overridden as an input",
        since_ir=passes_edit.IR_OF_CONSTANTS,
    ),
    *registry.REWRITES,
    _opset(11, NNAPI),
    _opset(13),
    _opset(17),
    _opset(21),
)
"""Fixes of the model, in the order in which they are tried."""


def _unchanged(
    model: passes_base.Model, _options: passes_base.Options, _context: passes_base.PassContext
) -> passes_base.Model:
    return model


LEVEL_BASIC = passes_base.Pass(
    name="level-basic",
    title="Optimize at level basic first.",
    apply=_unchanged,
    effect=passes_base.Effect.EXACT,
    absent="it is that level",
)
OTHER_FORMAT = passes_base.Pass(
    name="other-format",
    title="Use CoreML's other model format.",
    apply=_unchanged,
    effect=passes_base.Effect.EXACT,
    helps=COREML,
    absent="only CoreML has formats",
)
INT64 = passes_base.Pass(
    name="enable-int64",
    title="Set WebGPU's option enableInt64=1.",
    apply=_unchanged,
    effect=passes_base.Effect.EXACT,
    helps=frozenset({provider_rules.WEBGPU}),
    absent="it is set",
)
NCHW = passes_base.Pass(
    name="keep-layout",
    title="Set WebGPU's option preferredLayout=NCHW.",
    apply=_unchanged,
    effect=passes_base.Effect.EXACT,
    helps=frozenset({provider_rules.WEBGPU}),
    absent="it is set",
)


def _asked_otherwise(fix: passes_base.Pass, request: judge.PartitionRequest) -> judge.PartitionRequest | None:
    """The request with what a fix that leaves the model as it is asks for; None where that is asked already."""
    if fix is LEVEL_BASIC:
        basic = msgspec.structs.replace(request, optimize=claim_answer.Optimize.BASIC)
        return None if request.optimize is claim_answer.Optimize.BASIC else basic
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
        formats = {
            provider_rules.COREML_NN: provider_rules.COREML_MLPROGRAM,
            provider_rules.COREML_MLPROGRAM: provider_rules.COREML_NN,
        }
        if settings.provider not in formats:
            return None
        settings = msgspec.structs.replace(settings, provider=formats[settings.provider])
    return msgspec.structs.replace(request, settings=settings)


ENABLERS = ("fixed-dimensions", "constant-initializers", "f32")
"""Fixes that may gain nothing alone because a provider asks for all of them at once."""


def fixes_for(provider: str) -> tuple[passes_base.Pass, ...]:
    """The fixes that can matter to a provider."""
    return tuple(fix for fix in (*MODEL_FIXES, LEVEL_BASIC, OTHER_FORMAT, INT64, NCHW) if provider in fix.helps)


@dataclass(frozen=True, kw_only=True)
class State:
    """A model with some fixes, saved in the file that `request` names, judged; `error`: how far from the original.

    One in a `precision` was made from the model `floats`, to which further fixes apply.
    """

    loaded: onnx_model.LoadedModel
    request: judge.PartitionRequest
    answer: claim_answer.ModelAnswer
    sizes: dict[str, int]
    error: float | None = None
    tolerance: float | None = None
    absolute_error: float | None = None
    limit: float | None = None
    precision: str = ""
    floats: onnx_model.LoadedModel | None = None

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
    def known(self) -> passes_edit.GraphFacts:
        """What fixes ask of it; ModelError when ONNX Runtime refuses the model."""
        loaded = self.floats or self.loaded
        claimed = {row.outputs[0] for row in self.answer.decisions if row.claimed and row.op_type not in self.faulty}
        if self.floats:
            nodes = self.floats.proto.graph.node
            claimed = {name for node in nodes if node.op_type not in self.faulty for name in node.output}
        return passes_edit.GraphFacts(
            graph=partition_graph.view(
                loaded.proto, read=partition_graph.tensor_reader(loaded), outside=loaded.outside
            ),
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
    reference: check_result.Reference | str
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

    def formed(self, loaded: onnx_model.LoadedModel, precision: str) -> onnx_model.LoadedModel:
        """A float model in a precision; ModelError where nothing can be compared, else as its passes raise."""
        if isinstance(self.reference, str):
            raise ModelError("it cannot be calibrated", why=self.reference)
        return in_precision(loaded, precision, self.reference, self.data, self.new_path())


def attempt(
    fix: passes_base.Pass, state: State, bench: TrialContext, *, must_gain: bool = True
) -> tuple[FixResult, State | None]:
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
            tolerance = max(
                state.tolerance or 0.0,
                0.0 if fix.exact else output_compare.MAX_RELATIVE_ERROR[bench.reference.precision],
            )
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


def _applied(fix: passes_base.Pass, state: State, bench: TrialContext) -> State | None:
    """The judged state behind a fix; None when it does not apply, ModelError when the result cannot be judged."""
    request, loaded, floats = state.request, state.loaded, state.floats
    if fix.edit:
        edited = fix.edit((floats or loaded).proto, state.known)
        if edited is None:
            return None
        loaded = onnx_model.load_model(bench.save(edited), bench.folder)
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
    loaded: onnx_model.LoadedModel,
    request: judge.PartitionRequest,
    before: "State | None",
    sizes: dict[str, int] | None = None,
) -> State:
    """A state of a saved model; ModelError when it cannot be judged.

    The simulator is asked only where its answer counts: of what was wrong before, and of what is taken better.
    """
    answer = judge.judge(msgspec.structs.replace(request, simulate=None))
    if answer.error:
        raise ModelError("the changed model cannot be judged", why=answer.error)
    provider = request.settings.provider
    better = before is None or before.standing.trouble or improves(standing_of(answer), before.standing, provider)
    if request.simulate and better:
        answer = judge.judge(request)
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


def difference(
    loaded: onnx_model.LoadedModel, reference: check_result.Reference, tolerance: float
) -> tuple[OutputCheck, ...]:
    """How far a model's outputs are from the reference's on its inputs, by the rule of every numeric check.

    On as many threads as the reference's: with another number of them sums are rounded otherwise.
    """
    feeds = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.inputs}
    given = model_session.outputs_of(loaded, feeds, replace(model_session.ORIGINAL, role=model_session.Role.CHANGED))
    expected = {tensor.name: output_compare.read_tensor(tensor) for tensor in reference.outputs}
    return tuple(output_compare.compare_outputs(expected, given, reference.tolerance(tolerance)))


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
        reference: check_result.Reference | str  # what the original computes on its data, or why it does not
        try:
            reference = check_reference.make_reference(
                loaded.source, sizes, data, str(folder / "reference"), str(folder)
            )
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
        asked = judge.PartitionRequest(
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
            passes_edit.write_model(best.loaded, Path(write_to))
            combination = msgspec.structs.replace(combination, written=write_to)
        elif write_to:  # unchanged: its own bytes, or with its weights inside where these lie in other files
            original = onnx_model.load_model(source, folder)
            if original.outside:
                passes_edit.write_model(original, Path(write_to))
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
            fixes=(*(result for _, result, _ in alone), *formed),
            best=combination,
            checked_on=checked_on,
            copied=write_to if write_to and not changed else None,
            precision=quantized_advice(form, base.answer),
        )


def with_forms(
    best: State, used: tuple[passes_base.Pass, ...], bench: TrialContext
) -> tuple[list[FixResult], State, tuple[passes_base.Pass, ...]]:
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
    results, states = list[FixResult](), list[tuple[State, tuple[passes_base.Pass, ...]]]()
    for recipe in recipes_for(bench.provider):
        form = passes_base.Pass(
            name=recipe.name,
            title=f"Quantize every operator: {recipe.title}.",
            apply=_unchanged,
            effect=passes_base.Effect.LOSSY,
        )
        result, state = _attempt_form(form, recipe.precision, start, bench)
        results.append(result)
        if state is None:
            continue
        end, more = _climb(state, [fix for fix in fixes if fix not in used], {}, bench)
        states.append((end, (*used, form, *more)))
        near = (end.error or 0.0) <= output_compare.MAX_RELATIVE_ERROR[output_compare.OutputPrecision.QUANTIZED]
        if near and not end.standing.trouble:
            break
    if not states:
        return results, best, used[: len(used) - len(enabling)]
    return results, *max(states, key=lambda pair: (preference(pair[0].standing, bench.provider), -(pair[0].error or 0)))


def _attempt_form(
    form: passes_base.Pass, precision: str, state: State, bench: TrialContext
) -> tuple[FixResult, State | None]:
    """What a precision gives, and the state in it when it gains; an error of its outputs is shown, not judged."""
    result = FixResult(name=form.name, title=form.task, outcome=FixOutcome.REJECTED)
    try:
        loaded = bench.formed(state.loaded, precision)
        original = bench.reference if isinstance(bench.reference, check_result.Reference) else None
        request = msgspec.structs.replace(state.request, source=loaded.source, original=original)
        formed = replace(judged(loaded, request, state), precision=precision, floats=state.loaded)
        result = _gain(result, state, formed, bench)
        if result.outcome is FixOutcome.NO_GAIN or isinstance(bench.reference, str):
            return result, None
        share = output_compare.MAX_RELATIVE_ERROR[output_compare.OutputPrecision.QUANTIZED]
        checks = difference(loaded, bench.reference, share)
    except PipelineError as error:
        return msgspec.structs.replace(result, outcome=FixOutcome.REJECTED, why=error.reason), None
    result, formed = _with_error(result, formed, checks, share)
    return result, replace(formed, tolerance=max(share, (formed.error or 0.0) * MORE))


MORE = 1.2
"""Factor by which the error of a quantized model may grow with a fix, which changes what is rounded."""


def combined(
    base: State, alone: Sequence[tuple[passes_base.Pass, FixResult, State | None]], bench: TrialContext
) -> tuple[State, tuple[passes_base.Pass, ...]]:
    """Fixes together, those that gain most alone first, as long as each still improves the whole.

    A second climb starts from what makes room for others, gain or not, and counts when it ends better. CoreML's other
    format is taken only where nothing else is left that helps.
    """
    tried = {fix: state for fix, _, state in alone}

    def rank(fix: passes_base.Pass) -> tuple[bool, tuple[int, int, int, float]]:
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


def _enabled(
    base: State, fixes: Sequence[passes_base.Pass], bench: TrialContext
) -> tuple[State, tuple[passes_base.Pass, ...]]:
    """The state with every fix that makes room for others."""
    current, applied = base, list[passes_base.Pass]()
    for fix in fixes:
        state = attempt(fix, current, bench, must_gain=False)[1] if fix.name in ENABLERS else None
        if state is not None:
            current = state
            applied.append(fix)
    return current, tuple(applied)


def _climb(
    start: State, fixes: Sequence[passes_base.Pass], tried: Mapping[passes_base.Pass, State | None], bench: TrialContext
) -> tuple[State, tuple[passes_base.Pass, ...]]:
    """Apply fixes in order, again and again while one improves; `tried` has what is known of the start with each."""
    current, used = start, list[passes_base.Pass]()
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
