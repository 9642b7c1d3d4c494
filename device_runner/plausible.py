"""Whether a result can be true. A device, a driver or a library may answer anything that has the right form."""

import math
from collections import Counter
from collections.abc import Iterator
from statistics import median_low

from device_runner.result import Failure, FailureKind, RunResult, Status
from device_runner.spec import ELEMENT_BYTES, RunSpec, TensorFile

FASTEST_NS = 100
"""No inference is faster: entering and leaving ONNX Runtime's Run alone takes longer on any processor."""

OVERTIME_NS = 30_000_000_000
"""What the parts of a run may take beyond its time limit, in which it is killed."""


def implausible(spec: RunSpec, result: RunResult) -> Failure | None:
    """A `garbage` failure for numbers and outputs that no run of the spec can give; None for a result to keep."""
    reasons = "; ".join((*_of_times(spec, result), *_of_outputs(spec, result)))
    if not reasons:
        return None
    return Failure(
        kind=FailureKind.GARBAGE,
        message=f"the device reports what cannot be: {reasons}",
        cause="the device, its driver or the library is broken, or something answers in its place",
        remedy="run it again; if it stays, exclude this device and look at its log",
    )


def _of_times(spec: RunSpec, result: RunResult) -> Iterator[str]:
    if result.status is not Status.OK:
        return
    bins = result.sustained.bins if result.sustained else ()
    total = sum((*result.latencies_ns, *result.warmup_ns, result.load_ns, result.first_run_ns))
    total += sum(each.total_ns for each in bins)
    if total > spec.timeout_seconds * 1e9 + OVERTIME_NS:
        yield f"{total / 1e9:.3g} s of work in a run that is limited to {spec.timeout_seconds:g} s"
    if result.latencies_ns and median_low(result.latencies_ns) < FASTEST_NS:
        yield f"half of its {len(result.latencies_ns)} inferences took less than {FASTEST_NS} ns"
    if not result.latencies_ns and not bins and (spec.sustain_seconds or (spec.min_runs and spec.max_seconds)):
        yield "it ended well, and timed no inference"
    if any(not each.min_ns <= each.median_ns <= each.max_ns or not each.inferences for each in bins):
        yield "a stretch of the sustained run whose median is not between its extremes"


def _of_outputs(spec: RunSpec, result: RunResult) -> Iterator[str]:
    tensors = [*result.outputs, *([result.labelled_outputs] if result.labelled_outputs else [])]
    if sum(map(_extent, tensors)) > spec.outputs_limit_bytes:
        yield f"outputs of more than {spec.outputs_limit_bytes} bytes, the most that this model has"
    names = Counter(tensor.name for tensor in result.outputs) + Counter(tensor.file for tensor in tensors)
    if twice := [name for name, count in names.items() if count > 1]:
        yield f"an output twice: {twice[0][:100]!r}"


def _extent(tensor: TensorFile) -> int:
    """Bytes of a tensor, an empty dimension counted as one: arrays of none may not be endless in another direction."""
    return math.prod(max(1, size) for size in tensor.shape) * ELEMENT_BYTES[tensor.dtype]
