"""Outputs that are numbers: how far they are from the original's."""

import math
from enum import IntEnum

import numpy as np

from pipeline.accuracy.outputs import Counts, Floats, Outputs, mean, the_output
from pipeline.check import compare as output_compare


class Powers(IntEnum):
    """The columns of what `powers` gives: of the product, squares of both and of their difference, the largest
    difference, the original's range, the number of elements, and the original's sum.
    """

    PRODUCT = 0
    OURS = 1
    REFERENCE = 2
    ERROR = 3
    LARGEST_ERROR = 4
    LOW = 5
    HIGH = 6
    COUNT = 7
    SUM = 8


def powers(outputs: Outputs, expected: Outputs) -> tuple[float, ...]:
    """What the measures of error are made of, for one output, in the order of `Powers`. A NaN stays one."""
    ours, reference = the_output(outputs).astype(np.float64).ravel(), the_output(expected).astype(np.float64).ravel()
    if ours.shape != reference.shape or not ours.size:
        return (np.nan,) * len(Powers)
    with np.errstate(invalid="ignore", over="ignore"):
        error = ours - reference
        return (
            float(ours @ reference),
            float(ours @ ours),
            float(reference @ reference),
            float(error @ error),
            float(np.abs(error).max()),
            float(reference.min()),
            float(reference.max()),
            float(ours.size),
            float(reference.sum()),
        )


def equal_share(outputs: Outputs, expected: Outputs) -> float:
    """The share of elements that are the original's; 0 for another shape, 1 where neither has any."""
    ours, reference = the_output(outputs), the_output(expected)
    if ours.shape != reference.shape:
        return 0.0
    return 1 - len(output_compare.unequal_places(reference, ours)) / reference.size if reference.size else 1.0


NO_VARIANCE = 1e-9
"""A share of the power below which what is left beside the mean is rounding."""


def r2(powers: Floats, weights: Counts) -> float:
    """The coefficient of determination over all elements of all samples: 1 less the squared error by the original's
    squared deviation from its mean. Of an original that is the same everywhere, by its power.
    """
    error, power, total = (
        float(weights @ powers[:, column]) for column in (Powers.ERROR, Powers.REFERENCE, Powers.SUM)
    )
    spread = power - total**2 / float(weights @ powers[:, Powers.COUNT])
    signal = spread if spread > NO_VARIANCE * power else power
    if signal > 0 or math.isnan(signal):
        return 1 - error / signal
    return 1.0 if error == 0 else -math.inf


def cosine(powers: Floats, weights: Counts) -> float:
    """The mean of the samples' cosines: 1 where both are 0 everywhere, 0 where one is."""
    norms = np.sqrt(powers[:, Powers.OURS] * powers[:, Powers.REFERENCE])
    same = (powers[:, Powers.ERROR] == 0) & (norms == 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return mean(np.where(same, 1.0, np.where(norms == 0, 0.0, powers[:, Powers.PRODUCT] / norms)), weights)


def sqnr(powers: Floats, weights: Counts) -> float:
    """The signal to the noise of all samples together, in dB."""
    return output_compare.decibel(
        float(weights @ powers[:, Powers.REFERENCE]), float(weights @ powers[:, Powers.ERROR])
    )


def psnr(powers: Floats, weights: Counts) -> float:
    """By the range of the original's output over all samples."""
    counted = powers[weights > 0]
    span = float(counted[:, Powers.HIGH].max() - counted[:, Powers.LOW].min())
    return output_compare.decibel(
        span**2, float(weights @ powers[:, Powers.ERROR]) / float(weights @ powers[:, Powers.COUNT])
    )
