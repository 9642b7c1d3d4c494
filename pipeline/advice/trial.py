"""Tries a fix: applies it, judges the result by the same rules, and compares what it computes with the original."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pipeline.advice.fixes import Fix
from pipeline.advice.verdict import FixOutcome, FixResult, ProviderSupport, gain_of, improves, standing_of
from pipeline.check.compare import MAX_RELATIVE_ERROR, OutputCheck, compare_outputs, read_tensor
from pipeline.check.reference import Reference
from pipeline.core.errors import ModelError, PipelineError
from pipeline.core.ort_session import HostSession, make_session
from pipeline.model.onnx_model import LoadedModel, load_model
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer
from pipeline.partition.input import tensor_reader
from pipeline.partition.judge import PartitionRequest, judge
from pipeline.partition.onnx_view import view
from pipeline.passes.rewrites.facts import GraphFacts

if TYPE_CHECKING:
    from onnx import ModelProto


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
    made: int = 0

    def save(self, proto: "ModelProto") -> SourceModel:
        """Write a candidate beside the weights."""
        self.made += 1
        path = self.folder / f"candidate-{self.made}.onnx"
        path.write_bytes(proto.SerializeToString())
        return SourceModel(path=str(path))


def attempt(fix: Fix, state: State, bench: TrialContext, *, must_gain: bool = True) -> tuple[FixResult, State | None]:
    """What a fix gives, and the fixed state when it gains; whatever goes wrong stands in the result.

    Without `must_gain` a fix that only makes room for others passes too, when its outputs do.
    """
    result = FixResult(name=fix.name, title=fix.title, outcome=FixOutcome.NOT_APPLICABLE, why=fix.absent)
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


def _applied(fix: Fix, state: State, bench: TrialContext) -> State | None:
    """The judged state behind a fix; None when it does not apply, ModelError when the result cannot be judged."""
    request, loaded = state.request, state.loaded
    if fix.edit:
        edited = fix.edit(loaded.proto, state.known)
        if edited is None:
            return None
        source = bench.save(edited)
        request = msgspec.structs.replace(request, source=source)
        loaded = load_model(source, bench.folder)
    elif fix.change:
        changed = fix.change(request)
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
    fix: Fix, result: FixResult, before: State, after: State, bench: TrialContext
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
    told = "; ".join(f"output {check.output!r}: {check.reason}" for check in against[:3])
    return f"{told}; give test data (--test-data)" if against and all(check.unknown for check in against) else told
