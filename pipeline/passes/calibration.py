"""Ranges of a model's values over calibration data, in memory that does not grow with the number of samples.

onnxruntime.quantization keeps every activation of every sample for entropy and percentile, and its reductions pass over
NaN (quantization Q.4). Here one walk over the samples finds the ranges, and a second one fills histograms of a fixed
number of bins inside them.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.ort_session import PREPACKING, HostSession, first_line, make_session, ort_errors
from pipeline.model.edit import copied
from pipeline.model.onnx_model import content_digest, loadable
from pipeline.model.signature import Array
from pipeline.passes.base import Feeds, Model
from pipeline.passes.edit import model_bytes

if TYPE_CHECKING:
    import onnx

FEW_SAMPLES = 8
"""Below this there is a warning: the extremes of so few samples say little (quantization Q.6)."""
BINS = 2048
"""Bins of a histogram of absolute values."""
LEVELS = 128
"""Magnitudes that an 8-bit number can have: entropy is the divergence from a histogram of this many bins."""
STRIDE = 16
"""Thresholds that entropy tries lie this many bins apart."""
IMPROBABLE = 1e-6
"""The least share of a bin: without one, a single value far out would forbid every threshold below it."""
GROUP_BYTES = 48 << 20
"""Activations that are held at a time, or half the model's own size if that is more: a model with more activations
goes over the samples several times."""
MOVES = frozenset({"Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators whose output has exactly the values of their first input: its range is known from there."""


class Method(StrEnum):
    """How a range follows from the values."""

    MINMAX = "minmax"
    """The smallest and the largest."""
    ENTROPY = "entropy"
    """The magnitude at which the histogram loses least information in 8 bits."""
    PERCENTILE = "percentile"
    """The magnitude that all but a share of the values stay below."""


class TensorRanges(msgspec.Struct, frozen=True, kw_only=True):
    """Ranges of values by name, as JSON too: quantizing again with other options needs no data.

    `model` and `data` are digests: of the graph and the weights in its message, and of all samples. `left` has the
    values that no range can be given, with the reason: what reads or makes them stays float.
    """

    model: str
    data: str
    method: Method
    percentile: float
    samples: int
    ranges: dict[str, tuple[float, float]]
    left: dict[str, str] = {}


def calibrate(
    model: Model,
    samples: Callable[[], Iterator[Feeds]],
    method: Method = Method.MINMAX,
    *,
    percentile: float = 99.999,
    op_types: frozenset[str] | None = None,
    where: str = "",
) -> TensorRanges:
    """Run a preprocessed model on every sample; one sample's activations are in memory at a time.

    Values of operators of `op_types` have ranges, by default of those with a quantized form. `percentile` (0 to
    100) is used by that method only. ConfigError for no samples and for NaN in an input, ModelError
    when the model fails on a sample; both name the sample by its number from 0.
    """
    values, same = calibrated(model.proto, op_types or quantizable())
    extremes = _extremes(model, samples, values, where)
    ranges = {name: (extremes.low[name], extremes.high[name]) for name in extremes.low if name not in extremes.left}
    if method is not Method.MINMAX:
        _narrow(ranges, _histograms(model, samples, extremes, ranges, where), method, percentile)
    for name, source in same.items():
        if source in ranges:
            ranges[name] = ranges[source]
        elif source in extremes.left:
            extremes.left[name] = extremes.left[source]
    return TensorRanges(
        model=content_digest(model, {}),
        data=extremes.digest.hexdigest(),
        method=method,
        percentile=percentile,
        samples=extremes.samples,
        ranges=dict(sorted(ranges.items())),
        left=dict(sorted(extremes.left.items())),
    )


def quantizable() -> frozenset[str]:
    """The operator types that have a quantized form in the installed onnxruntime."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return frozenset(QDQRegistry) | frozenset(QLinearOpsRegistry)


def calibrated(proto: "onnx.ModelProto", types: frozenset[str]) -> tuple[list[str], dict[str, str]]:
    """Float values that nodes of these `types` read or make, and those of them that only move another's values.

    The second is by name with the value that has the same range.
    """
    graph = proto.graph
    typed = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output, *graph.input)}
    constants = {tensor.name for tensor in graph.initializer}
    values: dict[str, None] = {}
    same: dict[str, str] = {}
    for node in graph.node:
        if node.op_type not in types:
            continue
        floats = [n for n in (*node.input, *node.output) if typed.get(n) == 1 and n not in constants]
        values |= dict.fromkeys(floats)
        if node.op_type in MOVES and node.input[0] in values and node.output[0] in values:
            same[node.output[0]] = same.get(node.input[0], node.input[0])
    return [name for name in values if name not in same], same


@dataclass(slots=True)
class _Extremes:
    """What the first walk over the samples found."""

    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    samples: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def take(self, name: str, low: float, high: float, count: int, *, sound: bool) -> None:
        """Widen a value's range by what one sample gave, or leave it out for good."""
        if not sound:
            self.left.setdefault(name, f"not finite in calibration sample {self.samples}")
        elif count:
            self.low[name] = min(low, self.low.get(name, low))
            self.high[name] = max(high, self.high.get(name, high))
            self.counts[name] = max(count, self.counts.get(name, 0))


REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceSum", "Size")
"""Minimum and maximum pass over NaN in ONNX Runtime unless it comes first; the sum never does (quantization Q.4)."""


def _extremes(model: Model, samples: Callable[[], Iterator[Feeds]], values: list[str], where: str) -> _Extremes:
    """Least and greatest of each value, reduced inside the model so that no activation leaves the session."""
    import math

    extremes = _Extremes()
    proto = _copy(model)
    for name in reversed(values):  # the last leaf runs first: each value is reduced and freed before the next is made
        for reduction in REDUCTIONS:
            proto.graph.node.add(op_type=reduction, input=[name], output=[_reduced(name, reduction)])
            proto.graph.output.add().name = _reduced(name, reduction)
    session = _session(model, proto, where)
    asked = [_reduced(name, reduction) for name in values for reduction in REDUCTIONS]
    for feeds in samples():
        _check_feeds(feeds, extremes, where)
        answers = iter(_run(session, asked, feeds, extremes.samples, where))
        for name in values:
            low, high, total, count = (array.ravel() for array in (next(answers) for _ in REDUCTIONS))
            size = int(count[0])
            least, most = (float(low[0]), float(high[0])) if size else (0.0, 0.0)
            sound = math.isfinite(least) and math.isfinite(most) and not (size and math.isnan(total[0]))
            extremes.take(name, least, most, size, sound=sound)
        extremes.samples += 1
    if not extremes.samples:
        raise ConfigError("there are no calibration samples", where=where, remedy="give data with at least one sample")
    for name in values:
        if name not in extremes.left and name not in extremes.low:
            extremes.left[name] = "empty in all calibration samples"
        elif extremes.low.get(name) == 0 == extremes.high.get(name):
            extremes.left.setdefault(name, "zero in all calibration samples")
    return extremes


def _reduced(name: str, reduction: str) -> str:
    return f"ort-mobile/{reduction} of {name}"


def _copy(model: Model) -> "onnx.ModelProto":

    return copied(loadable(model))


def _session(model: Model, proto: "onnx.ModelProto", where: str) -> Any:
    settings = HostSession(weights=model.folder, config=PREPACKING)
    try:
        return make_session(proto.SerializeToString(), settings)
    except ort_errors() as error:
        raise ModelError("the model does not run on this computer's CPU", where=where, why=first_line(error),
                         remedy="calibration runs it: fix the model") from error  # fmt: skip


def _check_feeds(feeds: Feeds, extremes: _Extremes, where: str) -> None:
    """ConfigError for NaN in a float input; the sample goes into the digest of the data."""
    import numpy as np

    for name in sorted(feeds):
        array = np.ascontiguousarray(feeds[name])
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise ConfigError(f"calibration sample {extremes.samples} has NaN in the input {name!r}", where=where,
                              remedy="correct or remove that sample")  # fmt: skip
        extremes.digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        extremes.digest.update(
            array.data if array.dtype.kind in "fiub" and array.size else str(array.tolist()).encode()
        )


def _run(session: Any, asked: list[str], feeds: Feeds, number: int, where: str) -> list[Array]:
    try:
        arrays: list[Array] = session.run(asked, dict(feeds))
    except Exception as error:
        why = str(error).strip().partition("\n")[0][:300]
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
        raise ModelError(f"the model fails on calibration sample {number}", where=where,
                         why=f"{why}; inputs: {shapes}",
                         remedy="correct or remove that sample") from error  # fmt: skip
    return arrays


def _histograms(
    model: Model,
    samples: Callable[[], Iterator[Feeds]],
    extremes: _Extremes,
    ranges: Mapping[str, tuple[float, float]],
    where: str,
) -> dict[str, Array]:
    """How often each of BINS magnitudes up to the greatest occurs, by value."""
    import numpy as np

    histograms = {name: np.zeros(BINS, np.int64) for name in ranges}
    most = max(GROUP_BYTES, model_bytes(model) // 2)
    for group in _groups({name: 4 * extremes.counts[name] for name in ranges}, most):
        session = _session(model, _giving(model, group), where)
        for number, feeds in enumerate(samples()):
            arrays = _run(session, group, feeds, number, where)
            while arrays:
                name = group[len(arrays) - 1]
                _count(histograms[name], arrays.pop(), max(-ranges[name][0], ranges[name][1]))
    return histograms


def _giving(model: Model, values: list[str]) -> "onnx.ModelProto":
    """The model with these values as its outputs, up to the node that makes the last of them."""
    proto = _copy(model)
    graph = proto.graph
    values_by_name = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    last = max((place for place, node in enumerate(graph.node) if not set(values).isdisjoint(node.output)), default=0)
    del graph.node[last + 1 :]
    del graph.output[:]
    graph.output.extend(values_by_name[name] for name in values)
    return proto


def _groups(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Values that one walk over the samples may give together, of at most so many bytes."""
    groups: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if total and total + size > most:
            groups.append([])
            total = 0
        groups[-1].append(name)
        total += size
    return groups


def _count(bins: Array, values: Array, most: float) -> None:
    """Add magnitudes to a histogram, in pieces that stay in a processor's cache."""
    import numpy as np

    flat = values.reshape(-1)
    scale = np.float32(BINS / most)
    for start in range(0, flat.size, 1 << 16):
        magnitudes = np.abs(flat[start : start + (1 << 16)])
        magnitudes *= scale
        places = magnitudes.astype(np.intp)  # what bincount would make of any other type
        np.minimum(places, BINS - 1, out=places)
        bins += np.bincount(places, minlength=BINS)


def _narrow(
    ranges: dict[str, tuple[float, float]], counts: Mapping[str, Array], method: Method, percentile: float
) -> None:
    """Cut ranges, in place, at the magnitude that the method finds; no range becomes wider."""
    for name, bins in counts.items():
        low, high = ranges[name]
        most = max(-low, high)
        kept = entropy_bins(bins) if method is Method.ENTROPY else percentile_bins(bins, percentile)
        ranges[name] = (max(low, -most * kept / BINS), min(high, most * kept / BINS))


def percentile_bins(bins: Array, percentile: float) -> int:
    """How many bins hold that share (0 to 100) of what was counted; at least one."""
    import numpy as np

    cumulated = np.cumsum(bins)
    return min(int(np.searchsorted(cumulated, cumulated[-1] * percentile / 100.0)) + 1, len(bins))


def entropy_bins(bins: Array) -> int:
    """How many bins to keep so that the rest, cut off at the last, diverges least from LEVELS wide bins.

    Kullback-Leibler divergence, as in S. Migacz, 8-bit inference with TensorRT (2017). The first bin counts as the
    second: what a Relu made zero is exact in any scale.
    """
    import numpy as np

    counts = bins.astype(np.float64)
    counts[0] = counts[1]
    if not counts.any():
        return len(bins)
    candidates = [*range(LEVELS, len(bins), STRIDE), len(bins)]
    tails = counts.sum() - np.cumsum(counts)
    divergences = [_divergence(counts[:keep], tails[keep - 1]) for keep in candidates]
    best: int = candidates[divergences.index(min(divergences))]
    return best


def _divergence(kept: Array, tail: float) -> float:
    """Of the kept bins with the tail in the last one from the same in LEVELS wide bins, where nothing is impossible."""
    import numpy as np

    groups = np.arange(len(kept)) * LEVELS // len(kept)
    filled = kept > 0
    shares = np.bincount(groups, kept, LEVELS) / np.maximum(np.bincount(groups[filled], minlength=LEVELS), 1)
    reference, given = kept.copy(), np.where(filled, shares[groups], 0)
    reference[-1] += tail
    given = np.maximum(given, IMPROBABLE * reference.sum())
    some = reference > 0
    reference, given = reference[some] / reference.sum(), given[some] / given.sum()
    return float(np.sum(reference * np.log(reference / given)))
