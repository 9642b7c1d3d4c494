"""How far outputs are from the original model's, and whether that is near enough. Pure functions over arrays."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from device_runner.spec import ElementType, TensorFile
from pipeline.errors import ModelError
from pipeline.summary import OutputCheck

Array = npt.NDArray[np.generic]


class Precision(StrEnum):
    """What a model computes in; decides how far outputs may differ."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    QUANTIZED = "quantized"


MAX_RELATIVE_ERROR = {Precision.FLOAT32: 1e-3, Precision.FLOAT16: 2e-2, Precision.QUANTIZED: 0.1}
"""Largest difference relative to the reference output's largest magnitude.

Float: fusions reorder sums over some thousands of terms. Half: rounding at 2**-11 adds up over the layers. Quantized:
a step or two of 255 where rounding falls the other way.
"""

NUMPY_TYPES: dict[ElementType, str] = {
    kind: "uint16" if kind is ElementType.BFLOAT16 else kind.value for kind in ElementType if kind != ElementType.STRING
}
"""Element type to the numpy type of its raw file; bfloat16 has none and is widened by `read_tensor`."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """What still passes."""

    max_relative_error: float
    min_top1_agreement: float | None = None


def read_tensor(tensor: TensorFile) -> Array:
    """A raw tensor file as an array of its shape; ModelError when its size does not fit."""
    dtype = np.dtype(NUMPY_TYPES[tensor.dtype]).newbyteorder("<")
    data = Path(tensor.file).read_bytes()
    expected = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    if len(data) != expected:
        raise ModelError(f"the tensor {tensor.name!r} has {len(data)} bytes instead of {expected}", where=tensor.file)
    array = np.frombuffer(data, dtype)
    if tensor.dtype is ElementType.BFLOAT16:
        array = (array.astype("<u4") << 16).view("<f4")
    return array.reshape(tensor.shape)


def compare_outputs(
    reference: Mapping[str, Array], actual: Mapping[str, Array], tolerance: Tolerance
) -> Iterator[OutputCheck]:
    """A check for each output of the reference, in its order; an output that is not there fails."""
    for name, expected in reference.items():
        if name not in actual:
            yield OutputCheck(output=name, passed=False, reason="the run did not give this output")
        else:
            yield compare_output(name, expected, actual[name], tolerance)


def compare_output(name: str, reference: Array, actual: Array, tolerance: Tolerance) -> OutputCheck:
    """One output against its reference. NaN and infinity must stand where the reference has them."""
    if reference.shape != actual.shape:
        reason = f"its shape is {list(actual.shape)} instead of {list(reference.shape)}"
        return OutputCheck(output=name, passed=False, reason=reason)
    if reference.size == 0:
        return OutputCheck(output=name, passed=True, max_abs_error=0.0, max_rel_error=0.0)
    if reference.dtype.kind not in "fiub":
        same = bool(np.array_equal(reference, actual))
        return OutputCheck(output=name, passed=same, reason="" if same else "it differs")
    return _compare_numbers(name, reference.astype(np.float64), actual.astype(np.float64), tolerance)


def _compare_numbers(
    name: str, reference: npt.NDArray[np.float64], actual: npt.NDArray[np.float64], tolerance: Tolerance
) -> OutputCheck:
    finite = np.isfinite(reference)
    if not np.array_equal(reference[~finite], actual[~finite], equal_nan=True) or not np.isfinite(actual[finite]).all():
        return OutputCheck(
            output=name, passed=False, reason="NaN or infinity where the original has numbers, or otherwise"
        )
    expected, got = reference[finite], actual[finite]
    largest = float(np.abs(expected).max(initial=0.0))
    error = float(np.abs(expected - got).max(initial=0.0))
    relative = error / largest if largest else error
    norms = float(np.linalg.norm(expected) * np.linalg.norm(got))
    passed = relative <= tolerance.max_relative_error
    return OutputCheck(
        output=name,
        passed=passed,
        max_abs_error=error,
        max_rel_error=relative,
        cosine=float(expected.ravel() @ got.ravel()) / norms if norms else None,
        reason="" if passed else f"relative error {relative:.2g} is over {tolerance.max_relative_error:.2g}",
    )


def top1_check(output: str, reference: Array, actual: Array, tolerance: Tolerance) -> OutputCheck:
    """Agreement on a labelled set: the share of samples (first axis) whose largest element is the reference's."""
    if reference.shape != actual.shape:
        return OutputCheck(output=output, passed=False, reason="the labelled set gave outputs of another shape")
    answers, expected = _answers(actual), _answers(reference)
    share = float((answers == expected).mean())
    least = tolerance.min_top1_agreement
    passed = least is None or share >= least
    reason = "" if passed else f"top-1 agreement {share:.1%} is under {least:.1%}"
    return OutputCheck(output=output, passed=passed, top1_agreement=share, reason=reason)


def _answers(outputs: Array) -> npt.NDArray[np.intp]:
    answers: npt.NDArray[np.intp] = outputs.reshape(len(outputs), -1).argmax(axis=1)
    return answers
