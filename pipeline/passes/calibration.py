"""Ranges of a model's values over calibration data, in memory that does not grow with the number of samples.

onnxruntime.quantization keeps every activation of every sample for entropy and percentile, and its reductions pass over
NaN (quantization Q.4). Here one walk over the samples finds the ranges, and a second one fills histograms of a fixed
number of bins inside them.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from pipeline.core import ort_session
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model
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
    import numpy as np

    # Float values that nodes of these types read or make, and those of them that only move another's values, by name
    # with the value that has the same range
    graph, types = model.proto.graph, op_types or quantizable()
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
    extremes, counts = _extremes(model, samples, [name for name in values if name not in same], where)
    ranges, left = extremes.ranges, extremes.left
    if method is not Method.MINMAX:
        # Cut at the magnitude that the method finds; no range becomes wider
        for name, bins in _histograms(model, samples, counts, ranges, where).items():
            low, high = ranges[name]
            most = max(-low, high)
            if method is Method.ENTROPY:
                kept = entropy_bins(bins)
            else:  # so many bins hold that share of what was counted; at least one
                cumulated = np.cumsum(bins)
                kept = min(int(np.searchsorted(cumulated, cumulated[-1] * percentile / 100.0)) + 1, len(bins))
            ranges[name] = (max(low, -most * kept / BINS), min(high, most * kept / BINS))
    for name, source in same.items():
        if source in ranges:
            ranges[name] = ranges[source]
        elif source in left:
            left[name] = left[source]
    return msgspec.structs.replace(extremes, ranges=dict(sorted(ranges.items())), left=dict(sorted(left.items())))


def quantizable() -> frozenset[str]:
    """The operator types that have a quantized form in the installed onnxruntime."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return frozenset(QDQRegistry) | frozenset(QLinearOpsRegistry)


REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceSum", "Size")
"""Minimum and maximum pass over NaN in ONNX Runtime unless it comes first; the sum never does (quantization Q.4)."""


def _extremes(
    model: Model, samples: Callable[[], Iterator[Feeds]], values: list[str], where: str
) -> tuple[TensorRanges, dict[str, int]]:
    """Least and greatest of each value, reduced inside the model so that no activation leaves the session.

    Beside them the most elements that each value has in a sample. ConfigError for NaN in a float input.
    """
    import math

    import numpy as np

    low, high, counts, left = dict[str, float](), dict[str, float](), dict[str, int](), dict[str, str]()
    digest, number = hashlib.sha256(), -1
    proto = onnx_edit.copied(onnx_model.loadable(model))
    for name in reversed(values):  # the last leaf runs first: each value is reduced and freed before the next is made
        for reduction in REDUCTIONS:
            proto.graph.node.add(op_type=reduction, input=[name], output=[_reduced(name, reduction)])
            proto.graph.output.add().name = _reduced(name, reduction)
    session = _session(model, proto, where)
    asked = [_reduced(name, reduction) for name in values for reduction in REDUCTIONS]
    for number, feeds in enumerate(samples()):
        for name in sorted(feeds):
            array = np.ascontiguousarray(feeds[name])
            if array.dtype.kind == "f" and np.isnan(array).any():
                raise ConfigError(
                    f"calibration sample {number} has NaN in the input {name!r}",
                    where=where,
                    remedy="correct or remove that sample",
                )
            digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            digest.update(array.data if array.dtype.kind in "fiub" and array.size else str(array.tolist()).encode())
        answers = iter(_run(session, asked, feeds, number, where))
        for name in values:
            lowest, highest, total, size = (array.ravel()[:1] for array in (next(answers) for _ in REDUCTIONS))
            if not (count := int(size[0])):
                continue
            least, most = float(lowest[0]), float(highest[0])
            if not (math.isfinite(least) and math.isfinite(most)) or math.isnan(total[0]):
                left.setdefault(name, f"not finite in calibration sample {number}")
                continue
            low[name], high[name] = min(least, low.get(name, least)), max(most, high.get(name, most))
            counts[name] = max(count, counts.get(name, 0))
    if number < 0:
        raise ConfigError("there are no calibration samples", where=where, remedy="give data with at least one sample")
    zero = {name: "zero in all calibration samples" for name in low if low[name] == 0 == high[name]}
    left = {name: "empty in all calibration samples" for name in values if name not in low} | zero | left
    ranges = TensorRanges(
        model=onnx_model.content_digest(model, {}),
        data=digest.hexdigest(),
        samples=number + 1,
        ranges={name: (low[name], high[name]) for name in low if name not in left},
        left=left,
    )
    return ranges, counts


def _reduced(name: str, reduction: str) -> str:
    return f"ort-mobile/{reduction} of {name}"


def _session(model: Model, proto: "onnx.ModelProto", where: str) -> Any:
    try:
        return ort_session.make_session(proto.SerializeToString(), ort_session.session_options(weights=model.folder))
    except ort_session.ort_errors() as error:
        raise ModelError(
            "the model does not run on this computer's CPU",
            where=where,
            why=ort_session.first_line(error),
            remedy="calibration runs it: fix the model",
        ) from error


def _run(session: Any, asked: list[str], feeds: Feeds, number: int, where: str) -> list[Array]:
    try:
        arrays: list[Array] = session.run(asked, dict(feeds))
    except Exception as error:
        why = str(error).strip().partition("\n")[0][:300]
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
        raise ModelError(
            f"the model fails on calibration sample {number}",
            where=where,
            why=f"{why}; inputs: {shapes}",
            remedy="correct or remove that sample",
        ) from error
    return arrays


def _histograms(
    model: Model,
    samples: Callable[[], Iterator[Feeds]],
    counts: Mapping[str, int],
    ranges: Mapping[str, tuple[float, float]],
    where: str,
) -> dict[str, Array]:
    """How often each of BINS magnitudes up to the greatest occurs, by value."""
    import numpy as np

    histograms = {name: np.zeros(BINS, np.int64) for name in ranges}
    most = max(GROUP_BYTES, model_bytes(model) // 2)
    for group in _groups({name: 4 * counts[name] for name in ranges}, most):
        # The model with these values as its outputs, up to the node that makes the last of them
        proto = onnx_edit.copied(onnx_model.loadable(model))
        graph = proto.graph
        declared = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        makers = (index for index, node in enumerate(graph.node) if not set(group).isdisjoint(node.output))
        del graph.node[max(makers, default=0) + 1 :]
        del graph.output[:]
        graph.output.extend(declared[name] for name in group)
        session = _session(model, proto, where)
        for number, feeds in enumerate(samples()):
            arrays = _run(session, group, feeds, number, where)
            while arrays:
                name = group[len(arrays) - 1]
                _count(histograms[name], arrays.pop(), max(-ranges[name][0], ranges[name][1]))
    return histograms


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
    divergences = []
    for count in candidates:
        # Of the kept bins with the tail in the last one from the same in LEVELS wide bins, where nothing is impossible
        kept = counts[:count]
        groups = np.arange(count) * LEVELS // count
        filled = kept > 0
        shares = np.bincount(groups, kept, LEVELS) / np.maximum(np.bincount(groups[filled], minlength=LEVELS), 1)
        reference, given = kept.copy(), np.where(filled, shares[groups], 0)
        reference[-1] += tails[count - 1]
        given = np.maximum(given, IMPROBABLE * reference.sum())
        some = reference > 0
        reference, given = reference[some] / reference.sum(), given[some] / given.sum()
        divergences.append(float(np.sum(reference * np.log(reference / given))))
    best: int = candidates[divergences.index(min(divergences))]
    return best
