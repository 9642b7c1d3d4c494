"""Compares what a changed model computes with its original: the same inputs, the outputs that both have."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pipeline.check.compare import Array, OutputCheck, compare_outputs, read_tensor
from pipeline.check.reference import ReferenceRequest, make_reference
from pipeline.check.result import Reference
from pipeline.core.errors import ConfigError, ModelError, PipelineError
from pipeline.core.files import make_folder
from pipeline.dataset import Dataset, TensorInfo
from pipeline.dataset.candidates import open_session, run_session
from pipeline.model.onnx_model import LoadedModel, PreparedModel, load_model
from pipeline.model.signature import own_inputs
from pipeline.model.sources import SourceModel
from pipeline.passes.base import Effect
from pipeline.passes.save import write_model
from pipeline.passes.surgery import expose

MOST_BATCHES = 64
"""Up to so many runs of the smaller model are compared with one of the larger."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """How far the outputs of a changed model are from the original's.

    `checks` has the outputs that both have, `data` says on what inputs; with `why` nothing was compared, for that
    reason. `judged` is false where a pass changes the numbers by design: then errors are shown and nothing fails.
    """

    checks: tuple[OutputCheck, ...] = ()
    data: str = ""
    why: str = ""
    judged: bool = True

    @property
    def failed(self) -> bool:
        """Whether an output was shown to be wrong."""
        return self.judged and any(check.failed for check in self.checks)


def verify(original: SourceModel, changed: Path, effects: Iterable[Effect], data: Dataset, work: Path) -> Verification:
    """Run both models on this computer's CPU without optimizations and compare them by the rule of every check.

    Exact passes must give equal numbers. ModelError when the changed model does not load or run; ConfigError for data
    that are no input of the original.
    """
    make_folder(work)
    loaded, result = load_model(original, work), load_model(SourceModel(path=str(changed)), work)
    kinds = set(effects)
    judged = Effect.LOSSY not in kinds
    try:
        pair = _Pair(_with_outputs_of(loaded, result, work), result, data, work)
    except _IncomparableError as error:
        return Verification(why=str(error), judged=judged)
    try:
        reference = pair.reference()
    except ConfigError:
        raise
    except PipelineError as error:
        return Verification(why=error.reason, judged=judged)
    tolerance = reference.tolerance(0.0 if kinds <= {Effect.EXACT} else None)
    checks = compare_outputs(*pair.outputs(reference), tolerance)
    return Verification(checks=tuple(checks), data=reference.data.source, judged=judged)


class _IncomparableError(Exception):
    """Why two models cannot be run on the same inputs."""


def _with_outputs_of(original: LoadedModel, changed: LoadedModel, work: Path) -> LoadedModel:
    """The original, with those inner values as outputs that the changed model gives."""
    outputs = {value.name for value in original.proto.graph.output}
    inner = {name for node in original.proto.graph.node for name in node.output if name}
    wanted = [value.name for value in changed.proto.graph.output if value.name not in outputs]
    if lost := [name for name in wanted if name not in inner]:
        raise _IncomparableError(f"the original has no value {lost[0]!r}")
    if not wanted:
        return original
    path = work / "exposed.onnx"
    write_model(expose(original, tuple(wanted)), path)
    return replace(load_model(SourceModel(path=str(path)), work), source=SourceModel(path=str(path)))


class _Pair:
    """An original and a changed model; where an axis of the inputs differs, it is the batch."""

    def __init__(self, original: LoadedModel, changed: LoadedModel, data: Dataset, work: Path) -> None:
        self.original, self.changed, self.data, self.work = original, changed, data, work
        takes = {info.name: info for info in own_inputs(original.proto)}
        self.wanted = own_inputs(changed.proto)
        self.fixed: dict[str, int] = {}
        self.batch: dict[str, int] = {}
        self.times = 1
        for info in self.wanted:
            if info.name not in takes:
                raise _IncomparableError(f"the original has no input {info.name!r}")
            self._compare_shapes(takes[info.name], info)

    def _compare_shapes(self, before: TensorInfo, after: TensorInfo) -> None:
        if before.shape is None or after.shape is None:
            return
        if len(before.shape) != len(after.shape) or before.dtype != after.dtype:
            raise _IncomparableError(f"the input {after.name!r} has another type or rank")
        for axis, (old, new) in enumerate(zip(before.shape, after.shape, strict=True)):
            if not isinstance(new, int) or old == new:
                continue
            if not isinstance(old, int):
                self.fixed[f"{after.name}[{axis}]"] = new
            elif new % old or not old or new // old > MOST_BATCHES or self.times not in (1, new // old):
                raise _IncomparableError(f"{new} samples are not whole batches of the original, which takes {old}")
            else:
                self.batch[after.name] = axis
                self.times = new // old

    def reference(self) -> Reference:
        """What the original computes; errors as `make_reference` raises them."""
        request = ReferenceRequest(
            source=self.original.source, fixed_dimensions=self.fixed, data=self.data,
            folder=str(self.work / "reference"), work_folder=str(self.work),
        )  # fmt: skip
        return make_reference(request)

    def outputs(self, reference: Reference) -> tuple[dict[str, Array], dict[str, Array]]:
        """What the original gives, and the changed model, by the names of outputs that both have."""
        feeds = {tensor.name: read_tensor(tensor) for tensor in reference.inputs}
        expected = {tensor.name: read_tensor(tensor) for tensor in reference.outputs}
        parts = [_rolled(feeds, self.batch, number) for number in range(self.times)]
        session = _session_of(self.changed)
        given = run_session(session, self._joined(parts), self.changed.source.name)
        if self.times > 1:
            expected = self._batched(parts, given)
        return {name: array for name, array in expected.items() if name in given}, given

    def _joined(self, parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """What the changed model is given: one batch of all parts."""
        import numpy as np

        names = [info.name for info in self.wanted]
        return {
            name: np.concatenate([part[name] for part in parts], self.batch[name])
            if name in self.batch
            else parts[0][name]
            for name in names
        }

    def _batched(self, parts: Sequence[Mapping[str, Array]], given: Mapping[str, Array]) -> dict[str, Array]:
        """What the original gives for one part after the other, joined where the changed model's output is longer."""
        import numpy as np

        session = _session_of(self.original)
        runs = [run_session(session, part, self.original.source.name) for part in parts]
        joined = {}
        for name in runs[0]:
            longer = [a for a, (x, y) in enumerate(zip(runs[0][name].shape, given[name].shape, strict=False)) if x != y]
            joined[name] = np.concatenate([run[name] for run in runs], longer[0]) if longer else runs[0][name]
        return joined


def _session_of(model: LoadedModel) -> Any:
    """A session without optimizations; ModelError when the model does not load."""
    prepared = PreparedModel(
        source=model.source, path=model.path, folder=model.folder, proto=model.proto, weights=model.weights,
        outside=model.outside,
    )  # fmt: skip
    try:
        return open_session(prepared)
    except ModelError as error:
        raise ModelError("the changed model does not load", where=model.source.name, why=error.why) from error


def _rolled(feeds: Mapping[str, Array], batch: Mapping[str, int], number: int) -> dict[str, Array]:
    """Another sample for each number: the values of what has a batch, moved on by so many places."""
    import numpy as np

    return {
        name: np.roll(array.reshape(-1), number).reshape(array.shape) if name in batch else array
        for name, array in feeds.items()
    }
