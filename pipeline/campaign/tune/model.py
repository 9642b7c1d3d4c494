"""A linear model of log values over a space's factors, fitted with the device's drift in one step. numpy only.

A value is (effects of the candidate) + (level of the device at that time) + noise. Effects are those of each factor, of
each variant with threads and with flags, and of threads with spinning. Each kind of effect is shrunk by a ridge whose
strength is estimated from the data (MacKay's evidence approximation), so that kinds that are not there cost nothing.
The level is a random walk, noise has heavy tails (Student's t by reweighting): both are usual on phones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pipeline.campaign.tune.space import Factors, Space

Floats = npt.NDArray[np.float64]

DRIFT_STEP = 5
"""Runs between knots of the device's level: some 8 s, within which it changes less than one process differs."""

MOST_KNOTS = 200
"""Knots at most: a grid of thousands of runs needs none so close."""

DRIFT_VARIANCE = 1e-4
"""Where the variance of what the level rises in a step starts: 1 %."""

TAILS = 4.0
"""Degrees of freedom of the noise: weights fall to a half at two standard deviations."""

ITERATIONS = 8
SETTLED = 0.03
"""A fit is done when the estimate of the noise changes by less: by then no effect moves by a tenth of it."""
LARGE, SMALL = 4.0, 1e-9
"""Bounds of variances of log values: a factor of e², and nothing."""


@dataclass(frozen=True, slots=True)
class Block:
    """Columns whose effects share a variance. `variance` is where its estimate starts; `fixed` keeps it there."""

    columns: Floats
    variance: float
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class LinearFit:
    """Means and covariance of all effects, block after block, and the variance of one value's noise."""

    mean: Floats
    covariance: Floats
    noise: float
    weights: Floats


def fit(blocks: Sequence[Block], values: Floats) -> LinearFit:
    """Effects that explain the values; those of the first columns are found at the same indices in the result."""
    columns = np.hstack([block.columns for block in blocks])
    sizes = [block.columns.shape[1] for block in blocks]
    edges = np.cumsum([0, *sizes])
    variances = [block.variance for block in blocks]
    weights: Floats = np.ones(len(values))
    noise = max(float(np.var(values)) / 4, SMALL)
    mean: Floats = np.zeros(columns.shape[1])
    covariance: Floats = np.eye(columns.shape[1])
    for _ in range(ITERATIONS):
        weighted = columns * (weights / noise)[:, None]
        precision = weighted.T @ columns
        precision[np.diag_indices_from(precision)] += 1 / np.repeat(variances, sizes)
        covariance = np.asarray(np.linalg.inv(precision), np.float64)
        mean = covariance @ (weighted.T @ values)
        determined = 0.0
        for number, block in enumerate(blocks):
            part = slice(edges[number], edges[number + 1])
            known = sizes[number] - float(np.trace(covariance[part, part])) / variances[number]
            determined += known
            if not block.fixed:
                estimate = float(mean[part] @ mean[part]) / max(known, 1e-3)
                variances[number] = min(max(estimate, SMALL), LARGE)
        rest = values - columns @ mean
        before, noise = noise, max(float(weights @ rest**2) / max(len(values) - determined, 1.0), SMALL)
        weights = (TAILS + 1) / (TAILS + rest**2 / noise)
        if abs(noise / before - 1) < SETTLED:
            break
    return LinearFit(mean, covariance, noise, weights)


def drift_columns(positions: Sequence[int]) -> Floats:
    """One column for each stretch of runs: what the level rises on it counts for all that come after."""
    at = np.asarray(positions, np.float64)
    at = at - at.min()
    step = max(DRIFT_STEP, at.max() / MOST_KNOTS)
    knots = np.arange(0, at.max() + step, step)
    columns: Floats = np.clip((at[:, None] - knots[None, :]) / step, 0.0, 1.0)
    return columns


VARIANT = ("level", "style", "precision", "providers")


def _kinds(names: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """Kinds of effects, each as the sets of factors whose values make a column together.

    Factors alone; the variant; the variant with threads, and with the provider's flags and options; threads with
    spinning; each part of the variant with threads and with flags.
    """
    flags = ("provider", "flags", *(name for name in names if name.startswith("options.")))
    return [
        [(name,) for name in names],
        [VARIANT],
        [(*VARIANT, "threads")],
        [(*VARIANT, *flags)],
        [("threads", "spinning")],
        [(part, other) for part in VARIANT for other in ("threads", "flags")],
    ]


def _one_hot(rows: Sequence[Factors], sets: Sequence[tuple[str, ...]]) -> Floats:
    """A column for each combination of values that a set of factors has; sets with only one have none."""
    found = [np.zeros((len(rows), 0))]
    for names in sets:
        values = [tuple(row.get(name, "") for name in names) for row in rows]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        if len(numbers) > 1:
            found.append(np.eye(len(numbers))[[numbers[value] for value in values]])
    return np.hstack(found)


@lru_cache(maxsize=4)
def candidate_columns(space: Space) -> list[Floats]:
    """The columns of all candidates, one matrix for each kind of effect; the first is the level of all."""
    rows = space.factors
    kinds = [_one_hot(rows, sets) for sets in _kinds(list(dict.fromkeys(name for row in rows for name in row)))]
    return [np.ones((len(rows), 1)), *(kind for kind in kinds if kind.shape[1])]


START = (LARGE, 0.05, 0.05, *[0.005] * 4)
"""Where the variances of the kinds of effects start: the level of all, factors, variants, and what acts together."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected log value of every candidate of a space, and its standard deviation, both without noise."""

    mean: Floats
    deviation: Floats


def forecast(space: Space, candidates: Sequence[int], values: Floats, orders: Sequence[int]) -> Forecast:
    """What all candidates are expected to have, from the log values of some; the same level counts for all of them.

    What the effects do not explain of a candidate is partly its own: as much as candidates differ more from the model
    than runs of one candidate differ from each other.
    """
    columns = candidate_columns(space)
    rows = np.asarray(candidates)
    middle = float(np.median(values))
    blocks = [Block(kind[rows], START[n], fixed=n == 0) for n, kind in enumerate(columns)]
    found = fit([*blocks, Block(drift_columns(orders), DRIFT_VARIANCE)], values - middle)
    everything = np.hstack(columns)
    size = everything.shape[1]
    mean = everything @ found.mean[:size]
    variance = np.einsum("ij,ij->i", everything @ found.covariance[:size, :size], everything)
    explained = np.hstack([block.columns for block in blocks] + [drift_columns(orders)]) @ found.mean
    own, left = _own_effects(len(space), rows, values - middle - explained, found)
    return Forecast(mean + own + middle, np.sqrt(np.maximum(variance + left, 0.0)))


def _own_effects(size: int, rows: npt.NDArray[np.int64], rest: Floats, found: LinearFit) -> tuple[Floats, Floats]:
    """What each candidate has beside its effects, shrunk, and the variance that it may still have there."""
    weight = np.bincount(rows, found.weights, size)
    summed = np.bincount(rows, found.weights * rest, size)
    average = summed / np.maximum(weight, SMALL)
    repeated = np.bincount(rows, minlength=size)[rows] > 1
    within = found.weights[repeated] @ (rest - average[rows])[repeated] ** 2
    freedom = int(repeated.sum()) - len(np.unique(rows[repeated]))
    process = float(within) / freedom if freedom > 5 else found.noise / 2
    between = max(found.noise - process, 0.0)
    share = between / (between + process / np.maximum(weight, SMALL)) if between else np.zeros(size)
    return share * average, between * (1 - share)
