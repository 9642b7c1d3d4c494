"""The model of a search: from the values of some candidates to those of all, apart from the device's drift.

A value is (effects of the candidate) + (level of the device at that time) + noise. Effects are those of each factor, of
each variant with threads and with flags, and of threads with spinning. Each kind of effect is shrunk by a ridge whose
strength is estimated from the data (MacKay's evidence approximation), so that kinds that are not there cost nothing.
The level is a random walk, noise has heavy tails (Student's t by reweighting): both are usual on phones.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.features.tune.space import Space

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


class EffectFit(NamedTuple):
    """Means and covariance of all effects, block after block, the variance of a value's noise, each value's weight."""

    means: Floats
    covariance: Floats
    noise: float
    weights: Floats


def fit(blocks: Sequence[Floats], starts: Sequence[float], values: Floats, *, fixed: int) -> EffectFit:
    """Effects that explain the values; those of the first columns are found at the same indices in the result.

    A block has columns whose effects share a variance, of which the estimate begins at its start; the first `fixed`
    blocks keep theirs.
    """
    columns = np.hstack(blocks)
    sizes = [block.shape[1] for block in blocks]
    edges = np.cumsum([0, *sizes])
    variances = list(starts)
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
        for number in range(len(blocks)):
            part = slice(edges[number], edges[number + 1])
            degrees = sizes[number] - float(np.trace(covariance[part, part])) / variances[number]
            determined += degrees
            if number >= fixed:
                estimate = float(mean[part] @ mean[part]) / max(degrees, 1e-3)
                variances[number] = min(max(estimate, SMALL), LARGE)
        rest = values - columns @ mean
        before, noise = noise, max(float(weights @ rest**2) / max(len(values) - determined, 1.0), SMALL)
        weights = (TAILS + 1) / (TAILS + rest**2 / noise)
        if abs(noise / before - 1) < SETTLED:
            break
    return EffectFit(mean, covariance, noise, weights)


def drift_columns(positions: Sequence[int]) -> Floats:
    """One column for each stretch of runs: what the level rises on it counts for all that come after."""
    at = np.asarray(positions, np.float64)
    at = at - at.min()
    step = max(DRIFT_STEP, at.max() / MOST_KNOTS)
    knots = np.arange(0, at.max() + step, step)
    columns: Floats = np.clip((at[:, None] - knots[None, :]) / step, 0.0, 1.0)
    return columns


VARIANT = ("level", "style", "precision", "providers")


@lru_cache(maxsize=4)
def candidate_columns(space: Space) -> list[Floats]:
    """The columns of all candidates, one matrix for each kind of effect; the first is the level of all.

    Kinds are sets of factors whose values make a column together: factors alone; the variant; the variant with threads,
    and with the provider's flags and options; threads with spinning; each part of the variant with threads and flags.
    """
    rows = space.factors
    names = list(dict.fromkeys(name for row in rows for name in row))
    flags = ("provider", "flags", *(name for name in names if name.startswith("options.")))
    kinds: list[list[tuple[str, ...]]] = [
        [(name,) for name in names],
        [VARIANT],
        [(*VARIANT, "threads")],
        [(*VARIANT, *flags)],
        [("threads", "spinning")],
        [(part, other) for part in VARIANT for other in ("threads", "flags")],
    ]
    columns = [np.ones((len(rows), 1))]
    for sets in kinds:
        blocks = []
        for factors in sets:  # a column for each combination of their values; sets with only one have none
            values = [tuple(row.get(name, "") for name in factors) for row in rows]
            numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
            if len(numbers) > 1:
                blocks.append(np.eye(len(numbers))[[numbers[value] for value in values]])
        columns += [np.hstack(blocks)] if blocks else []
    return columns


START = (LARGE, 0.05, 0.05, *[0.005] * 4)
"""Where the variances of the kinds of effects start: the level of all, factors, variants, and what acts together."""


def forecast(space: Space, candidates: Sequence[int], values: Floats, orders: Sequence[int]) -> tuple[Floats, Floats]:
    """What all candidates are expected to have, from the log values of some; the same level counts for all of them.

    The expected log value of each and its standard deviation, both without noise. What the effects do not explain of
    a candidate is partly its own: as much as candidates differ more from the model than runs of one candidate differ
    from each other.
    """
    columns, rows, count = candidate_columns(space), np.asarray(candidates), len(space)
    middle = float(np.median(values))
    blocks = [*(kind[rows] for kind in columns), drift_columns(orders)]
    fitted = fit(blocks, [*START[: len(columns)], DRIFT_VARIANCE], values - middle, fixed=1)
    effect, weights = fitted.means, fitted.weights
    everything = np.hstack(columns)
    size = everything.shape[1]
    mean = everything @ effect[:size]
    variance = np.einsum("ij,ij->i", everything @ fitted.covariance[:size, :size], everything)
    # What each candidate has beside its effects, shrunk, and the variance that it may still have there
    rest = values - middle - np.hstack(blocks) @ effect
    weight = np.bincount(rows, weights, count)
    average = np.bincount(rows, weights * rest, count) / np.maximum(weight, SMALL)
    repeated = np.bincount(rows, minlength=count)[rows] > 1
    within = weights[repeated] @ (rest - average[rows])[repeated] ** 2
    freedom = int(repeated.sum()) - len(np.unique(rows[repeated]))
    process = float(within) / freedom if freedom > 5 else fitted.noise / 2
    between = max(fitted.noise - process, 0.0)
    share = between / (between + process / np.maximum(weight, SMALL)) if between else np.zeros(count)
    return mean + share * average + middle, np.sqrt(np.maximum(variance + between * (1 - share), 0.0))
