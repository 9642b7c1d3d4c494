"""One fix tried: applied, judged again, and its outputs compared."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.advice.fixes import INT64, LEVEL_BASIC, NCHW, in_precision
from pipeline.advice.verdict import (
    FixOutcome,
    FixResult,
    ProviderSupport,
    gain_of,
    improves,
    standing_of,
)
from pipeline.check import compare as output_compare
from pipeline.check import result as check_result
from pipeline.check.compare import OutputCheck
from pipeline.core import providers as provider_rules
from pipeline.core.errors import ModelError, PipelineError
from pipeline.dataset import Dataset
from pipeline.model import onnx_model
from pipeline.model import session as model_session
from pipeline.model.sources import SourceModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import graph as partition_graph
from pipeline.partition import judge
from pipeline.passes import base as passes_base
from pipeline.passes import edit as passes_edit

if TYPE_CHECKING:
    from onnx import ModelProto


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
            wrong = {self.answer.simulated.op_type or decision.op_type for decision in self.answer.decisions}
        unclaimed = {
            decision.op_type for decision in self.answer.decisions if not decision.claimed and decision.code != "border"
        }
        return frozenset(wrong | unclaimed if self.precision else wrong)

    @cached_property
    def known(self) -> passes_edit.GraphFacts:
        """What fixes ask of it; ModelError when ONNX Runtime refuses the model."""
        loaded = self.floats or self.loaded
        claimed = {
            decision.outputs[0]
            for decision in self.answer.decisions
            if decision.claimed and decision.op_type not in self.faulty
        }
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
        result = with_gain(result, state, fixed, bench)
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
            result, fixed = with_error(result, fixed, checks, tolerance)
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


def with_gain(result: FixResult, before: State, after: State, bench: TrialContext) -> FixResult:
    """The result with what the provider now takes, and whether that is better."""
    better = improves(after.standing, before.standing, bench.provider)
    return msgspec.structs.replace(
        result,
        outcome=FixOutcome.GAINS if better else FixOutcome.NO_GAIN,
        why="" if better else "neither fewer partitions nor fewer nodes on the CPU",
        after=after.standing,
        gain=gain_of(before.standing, after.standing, bench.provider),
    )


def with_error(
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
