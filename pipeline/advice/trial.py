"""Fixes that advice tries: which may help which provider, what they give, and whether outputs stay the same."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.advice.verdict import FixOutcome, FixResult, ProviderSupport, gain_of, improves, standing_of
from pipeline.check.compare import MAX_RELATIVE_ERROR, OutputCheck, compare_outputs, read_tensor
from pipeline.check.result import Reference
from pipeline.core import providers
from pipeline.core.errors import ModelError, PipelineError
from pipeline.core.ort_session import HostSession, make_session
from pipeline.model.onnx_model import LeanModel, LoadedModel, load_model
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize
from pipeline.partition.input import tensor_reader
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.view import view
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.rewrites.facts import GraphFacts
from pipeline.passes.rewrites.table import REWRITES
from pipeline.passes.surgery import (
    CONSTANT_INITIALIZERS,
    FIXED_DIMENSIONS,
    OPSET,
    OVERRIDABLE_SINCE_IR,
    DimensionOptions,
    converted,
)

if TYPE_CHECKING:
    from onnx import ModelProto


NNAPI = frozenset({providers.NNAPI})
COREML = frozenset({providers.COREML_NN, providers.COREML_MLPROGRAM})


def other_format(request: PartitionRequest) -> PartitionRequest | None:
    """CoreML's other model format."""
    formats = {providers.COREML_NN: providers.COREML_MLPROGRAM, providers.COREML_MLPROGRAM: providers.COREML_NN}
    to = formats.get(request.settings.provider)
    if to is None:
        return None
    return msgspec.structs.replace(request, settings=msgspec.structs.replace(request.settings, provider=to))


def level_basic(request: PartitionRequest) -> PartitionRequest | None:
    """Optimization level basic before the provider is asked."""
    if request.optimize is Optimize.BASIC:
        return None
    return msgspec.structs.replace(request, optimize=Optimize.BASIC)


def _fix(row: Pass, title: str, options: Callable[[GraphFacts], Options], absent: str, since_ir: int = 0) -> Pass:
    """A pass over the message alone as a fix, which must give equal numbers."""

    def edit(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
        lean = LeanModel(proto=model, folder=Path(), weights={})
        if model.ir_version < since_ir:
            return None
        try:
            return row.apply(lean, options(known), PassContext(folder=Path(), where="the model")).proto
        except NotApplicable:
            return None

    return replace(row, title=title, effect=Effect.EXACT, edit=edit, absent=absent)


def _opset(version: int, helps: frozenset[str] = OPSET.helps) -> Pass:
    """The fix that is another opset, older ones too: the trial shows whether ONNX's converter can.

    Softmax of opset 11 and before may have any rank and axis for NNAPI (ep_rules D.4); 13 is the first whose Split
    NNAPI and CoreML take, 17 the newest before reductions, Pad, Resize and Split changed, 21 the newest that all
    supported releases take.
    """

    def edit(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
        return None if known.opset == version else converted(model, version)

    return replace(
        OPSET, name=f"opset-{version}", title=f"Convert to opset {version}.", edit=edit, helps=helps,
        absent=f"it is opset {version}",
    )  # fmt: skip


MODEL_FIXES = (
    _fix(FIXED_DIMENSIONS, "Fix open dimensions of the inputs.",
         lambda known: DimensionOptions(sizes=dict(known.sizes), rest=1), "every input dimension has a size"),
    # Before IR version 4 every initializer is listed as an input, and is a constant to providers all the same.
    _fix(CONSTANT_INITIALIZERS, "Take initializers out of the graph's inputs.", lambda _: Options(),
         "no initializer can be overridden as an input", since_ir=OVERRIDABLE_SINCE_IR),
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
CHANGES = {LEVEL_BASIC: level_basic, OTHER_FORMAT: other_format}
"""Fixes that leave the model as it is and ask for other settings."""

ENABLERS = ("fixed-dimensions", "constant-initializers", "f32")
"""Fixes that may gain nothing alone because a provider asks for all of them at once."""


def fixes_for(provider: str) -> tuple[Pass, ...]:
    """The fixes that can matter to a provider."""
    return tuple(fix for fix in (*MODEL_FIXES, LEVEL_BASIC, OTHER_FORMAT) if provider in fix.helps)


@dataclass(frozen=True, kw_only=True)
class State:
    """A model with some fixes, saved in the file that `request` names, judged; `error`: how far from the original."""

    loaded: LoadedModel
    request: PartitionRequest
    answer: ModelAnswer
    sizes: dict[str, int]
    error: float | None = None
    tolerance: float | None = None
    absolute_error: float | None = None
    limit: float | None = None

    @cached_property
    def standing(self) -> ProviderSupport:
        """How far the provider takes it."""
        return standing_of(self.answer)

    @cached_property
    def known(self) -> GraphFacts:
        """What fixes ask of it; ModelError when ONNX Runtime refuses the model."""
        return GraphFacts(
            graph=view(self.loaded.proto, read=tensor_reader(self.loaded), outside=self.loaded.outside),
            settings=self.request.settings,
            claimed=frozenset(name for group in self.answer.partitions for name in group),
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
    deadline: float = math.inf
    saved: int = 0

    def save(self, proto: "ModelProto") -> SourceModel:
        """Write a candidate beside the weights."""
        self.saved += 1
        path = self.folder / f"candidate-{self.saved}.onnx"
        path.write_bytes(proto.SerializeToString())
        return SourceModel(path=str(path))


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
        return _compared(fix, result, state, fixed, bench)
    except PipelineError as error:
        why = error.reason
    except Exception as error:  # noqa: BLE001 - a hostile model may break one fix, and must not cost the others
        why = f"the fix failed: {type(error).__name__}: {error}"[:300]
    return msgspec.structs.replace(result, outcome=FixOutcome.REJECTED, why=why), None


def _applied(fix: Pass, state: State, bench: TrialContext) -> State | None:
    """The judged state behind a fix; None when it does not apply, ModelError when the result cannot be judged."""
    request, loaded = state.request, state.loaded
    if fix.edit:
        edited = fix.edit(loaded.proto, state.known)
        if edited is None:
            return None
        source = bench.save(edited)
        request = msgspec.structs.replace(request, source=source)
        loaded = load_model(source, bench.folder)
    else:
        changed = CHANGES[fix](request)
        if changed is None:
            return None
        request = changed
    return judged(loaded, request, state)


def judged(
    loaded: LoadedModel, request: PartitionRequest, before: "State | None", sizes: dict[str, int] | None = None
) -> State:
    """A state of a saved model; ModelError when it cannot be judged."""
    answer = judge(request)
    if answer.error:
        raise ModelError("the changed model cannot be judged", why=answer.error)
    if before is None:
        return State(loaded=loaded, request=request, answer=answer, sizes=sizes or {})
    return State(
        loaded=loaded, request=request, answer=answer, sizes=before.sizes, error=before.error,
        tolerance=before.tolerance, absolute_error=before.absolute_error, limit=before.limit,
    )  # fmt: skip


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


def _compared(
    fix: Pass, result: FixResult, before: State, after: State, bench: TrialContext
) -> tuple[FixResult, State | None]:
    """The result with the numeric error, and the state when it is small enough."""
    if fix.edit is None:
        return result, after
    if isinstance(bench.reference, str):
        why = f"it cannot be checked: {bench.reference}"
        return msgspec.structs.replace(result, outcome=FixOutcome.REJECTED, why=why), None
    # An exact fix after one that rounds must not add to the error; so the looser tolerance of the two holds.
    tolerance = max(before.tolerance or 0.0, 0.0 if fix.exact else MAX_RELATIVE_ERROR[bench.reference.precision])
    checks = difference(Path(after.request.source.path), bench.reference, tolerance)
    worst = max(checks, key=_nearness, default=None)
    error = max((check.max_rel_error for check in checks if check.max_rel_error is not None), default=None)
    absolute, limit = (worst.max_abs_error, worst.limit) if worst else (None, None)
    result = msgspec.structs.replace(result, error=error, tolerance=tolerance, absolute_error=absolute, limit=limit)
    if why := _objection(checks, exact=fix.exact):
        return msgspec.structs.replace(result, outcome=FixOutcome.REJECTED, why=why), None
    checked = State(
        loaded=after.loaded, request=after.request, answer=after.answer, sizes=after.sizes,
        error=error, tolerance=tolerance, absolute_error=absolute, limit=limit,
    )  # fmt: skip
    return result, checked


def difference(path: Path, reference: Reference, tolerance: float) -> tuple[OutputCheck, ...]:
    """How far a model's outputs are from the reference's on its inputs, by the rule of every numeric check."""
    feeds = {tensor.name: read_tensor(tensor) for tensor in reference.inputs}
    session = make_session(path, HostSession())
    wanted = {value.name for value in session.get_inputs()}
    names = [tensor.name for tensor in reference.outputs]
    values = session.run(names, {name: array for name, array in feeds.items() if name in wanted})
    expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
    return tuple(compare_outputs(expected, dict(zip(names, values, strict=True)), reference.tolerance(tolerance)))


def _nearness(check: OutputCheck) -> float:
    """How much of what is allowed an error takes."""
    return (check.max_abs_error or 0.0) / check.limit if check.limit else check.max_abs_error or 0.0


def _objection(checks: Iterable[OutputCheck], *, exact: bool) -> str:
    """Why a fixed model is not accepted, "" where it is.

    What inputs cannot show counts against a fix that rounds; an exact one is the same by its definition, and has given
    equal numbers here.
    """
    against = [
        check for check in checks if check.failed or (check.unknown and not (exact and check.max_abs_error == 0))
    ]
    reasons = "; ".join(f"output {check.output!r}: {check.reason}" for check in against[:3])
    return (
        f"{reasons}; give test data (--test-data)" if against and all(check.unknown for check in against) else reasons
    )
