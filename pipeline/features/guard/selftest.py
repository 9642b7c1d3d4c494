"""The self-test of a model: a sample whose outputs tell a sound way from a bad one, with what each way must reach.

One tolerance for all ways is too lax and too strict: half precision costs one model 20 dB more than another, and one
sample more than the next. So limits are made at the desk, from what half precision costs this very file on this sample.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from device_runner import files as runner_files
from device_runner import providers as runner_providers
from device_runner import spec as run_spec
from device_runner.spec import ElementType, RunOptions
from pipeline.campaign import run_options
from pipeline.features.guard import corruptions
from pipeline.features.guard import sample as guard_sample
from pipeline.features.guard.order import Order, TriedFile
from pipeline.features.guard.sketch import MOST_DECIBELS, Sketch, decibels, drawn, sketch_of
from pipeline.model import ort_format
from pipeline.model import session as model_session
from pipeline.release import kept as kept_files
from pipeline.release import self_test

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Values: TypeAlias = "npt.NDArray[np.generic]"

EXACT_DECIBELS = 60.0
"""What ways in single precision must reach: a relative error of a thousandth."""

LEAST_DECIBELS = 20.0
"""What half precision must reach at least: an error of a tenth."""

HALF_MARGIN = 20.0
"""What half precision may be under the desk's. Sums in half precision cost 12 to 17 dB more than sums in single."""

OWN_MARGIN = 6.0
"""What a way may be under the CPU's own distance from the original: rounding of quantized models differs by kernels."""

SEEDS = range(1, 9)
EXACT_PROVIDERS = frozenset({runner_providers.CPU, "xnnpack"})
"""Providers that compute in the types of the model."""


def made(order: Order) -> self_test.SelfTest:
    """The self-test of a model: the first sample that tells sound outputs from bad ones."""
    reasons = []
    for candidate in _candidates(order):
        reason, sample = _judged(order, candidate)
        if sample is not None:
            data = guard_sample.encoded(sample)
            if len(data) <= guard_sample.MOST_BYTES:
                return self_test.SelfTest(model=order.model, data=data)
            reason = f"its sample has {len(data):,} bytes"
        reasons.append(reason)
    why = reasons[0] if reasons else "no output of real numbers is compared"
    return self_test.SelfTest(model=order.model, none=why)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs that may be the sample's, raw or by a seed, and outputs, where the original's are known."""

    inputs: tuple[kept_files.KeptTensor, ...]
    seed: int = 0


def _candidates(order: Order) -> Iterator[Candidate]:
    kept = order.reference.inputs
    yield Candidate(inputs=kept)
    if order.reference.tolerance.random_inputs and all(tensor.dtype is ElementType.FLOAT32 for tensor in kept):
        yield from (Candidate(inputs=kept, seed=seed) for seed in SEEDS)


def _tensor(order: Order, tensor: kept_files.KeptTensor) -> Values:
    import numpy as np

    raw = (Path(order.bundle) / tensor.path).read_bytes()
    return np.frombuffer(raw, dtype=np.dtype(tensor.dtype.value)).reshape(tensor.shape)


def _feeds(order: Order, candidate: Candidate) -> dict[str, Values]:
    feeds = {tensor.name: _tensor(order, tensor) for tensor in candidate.inputs}
    for name, values in feeds.items() if candidate.seed else ():
        low, high = float(values.min(initial=0)), float(values.max(initial=1))
        feeds[name] = drawn(values.shape, candidate.seed, low, high)
    return feeds


def _judged(order: Order, candidate: Candidate) -> tuple[str, guard_sample.TrialSample | None]:
    """Why a sample tells nothing, or the sample."""
    if unfit := [tensor.dtype.value for tensor in candidate.inputs if tensor.dtype not in guard_sample.JAVA_TYPES]:
        return f"an input is of type {unfit[0]}", None
    feeds = _feeds(order, candidate)
    measured = [_Measured(order, file, feeds) for file in order.files]
    wanted = _wanted(order, candidate, measured[0].own)
    if not wanted:
        return "no output of real numbers is compared", None
    kept = {name: sketch_of(values) for name, values in wanted.items()}
    limits = []
    for measurement in measured:
        for options in measurement.file.runs:
            least = tuple(measurement.limit(options, name, kept[name]) for name in wanted)
            way = run_options.options_name(options)
            limits.append(guard_sample.WayLimits(digests=measurement.file.digests, way=way, decibels=least))
    laxest = {name: min(limit.decibels[index] for limit in limits) for index, name in enumerate(wanted)}
    for name, values in wanted.items():
        for corruption, corrupted in corruptions.corrupted(values):
            if decibels(kept[name], corrupted) >= laxest[name]:
                return f"the output {name} with {corruption} would pass", None
    others = tuple(min(LEAST_DECIBELS, least) for least in laxest.values())
    limits.append(guard_sample.WayLimits(digests=guard_sample.ANY, way=guard_sample.ANY, decibels=others))
    return "", guard_sample.TrialSample(
        inputs=tuple(_input(tensor, candidate, feeds[tensor.name], order) for tensor in candidate.inputs),
        outputs=tuple(guard_sample.SampleOutput(place=order.outputs.index(name), sketch=kept[name]) for name in wanted),
        limits=tuple(limits),
    )


def _wanted(order: Order, candidate: Candidate, own: Mapping[str, Values]) -> dict[str, Values]:
    """Outputs by which ways are judged: those of real numbers that repeat themselves."""
    import numpy as np

    tolerance = order.reference.tolerance
    left_out = {*tolerance.unsteady, *tolerance.drawn, *tolerance.categorical, *tolerance.sorted_rows}
    kept = {tensor.name: tensor for tensor in order.reference.outputs}
    wanted = {
        name: own[name] if candidate.seed else _tensor(order, tensor)
        for name, tensor in kept.items()
        if tensor.dtype is ElementType.FLOAT32 and name not in left_out and name in order.outputs
        and (not candidate.seed or name in own)
    }  # fmt: skip
    return {name: values for name, values in wanted.items() if np.isfinite(values).all() and values.any()}


def _input(
    tensor: kept_files.KeptTensor, candidate: Candidate, values: Values, order: Order
) -> guard_sample.SampleInput:
    if not candidate.seed:
        return guard_sample.SampleInput(
            name=tensor.name, dtype=guard_sample.JAVA_TYPES[tensor.dtype], shape=tensor.shape, content=values.tobytes()
        )
    given = _tensor(order, tensor)
    return guard_sample.SampleInput(
        name=tensor.name, dtype=guard_sample.JAVA_TYPES[tensor.dtype], shape=tensor.shape, seed=candidate.seed,
        low=float(given.min(initial=0)), high=float(given.max(initial=1)),
    )  # fmt: skip


class _Measured:
    """What a file gives on this computer for a sample, as it ships and with all of its constants in half precision."""

    def __init__(self, order: Order, file: TriedFile, feeds: Mapping[str, Values]) -> None:
        path = Path(order.bundle) / file.path
        settings = model_session.CpuSettings(role=model_session.Role.ARTIFACT)
        self.file = file
        self.own = model_session.outputs_of(path, feeds, settings)
        with runner_files.scratch_folder() as work:
            halved = halved_constants(path, work)
            rounded = {name: _halved(values) for name, values in feeds.items()}
            self.half = model_session.outputs_of(halved, rounded, settings) if halved else {}

    def reached(self, name: str, kept: Sketch) -> float:
        """How near the file is to the original here."""
        return decibels(kept, self.own[name]) if name in self.own else MOST_DECIBELS

    def limit(self, options: RunOptions, name: str, kept: Sketch) -> float:
        """What an output must reach with these session options."""
        own = self.reached(name, kept) - OWN_MARGIN
        if options.provider in EXACT_PROVIDERS:
            return min(EXACT_DECIBELS, own)
        half = decibels(kept, self.half[name]) - HALF_MARGIN if name in self.half else LEAST_DECIBELS
        return min(own, max(LEAST_DECIBELS, half))


def _halved(values: Values) -> Values:
    """Numbers in single precision as half precision has them."""
    import numpy as np

    if values.dtype != np.float32:
        return values
    most = np.finfo(np.float16).max
    return np.clip(values.astype(np.float32), -most, most).astype(np.float16).astype(np.float32)


def halved_constants(file: Path, folder: Path) -> Path | None:
    """A copy of an ORT format file whose constants in single precision are rounded to half; None of another file."""
    import numpy as np

    if file.suffix != ".ort":
        return None
    content = bytearray(file.read_bytes())
    graph = ort_format.read_ort(file).graph
    for inner in graph.walk():
        for tensor in inner.initializers.values():
            if tensor.data_type == run_spec.ONNX_CODES[ElementType.FLOAT32] and tensor.length:
                values = np.frombuffer(content, np.float32, tensor.length // 4, tensor.offset)
                content[tensor.offset : tensor.offset + tensor.length] = _halved(values).tobytes()
    copy = folder / file.name
    copy.write_bytes(content)
    return copy
