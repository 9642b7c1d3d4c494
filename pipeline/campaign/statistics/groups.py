"""Raw latencies by round, and what they say of one group alone.

A latency is nanoseconds of one inference; a round is one fresh process; a group is every round of one artifact, run
options and device. Groups are measured in alternating rounds, so that the nth rounds of all groups meet the device in
about the same state: comparisons are paired by round.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from device_runner.result import Mark, Struct
from pipeline.campaign.statistics.distributions import Floats, share_bounds

SMALLEST_SAMPLE = {0.90: 64, 0.95: 130, 0.99: 662}
"""Percentile to the number of latencies from which on it is given.

From MLPerf LoadGen's early stopping at 99 % confidence: the least n of which the second-largest bounds the percentile,
that is p**n + n * p**(n - 1) * (1 - p) <= 0.01. That takes inferences for independent, which those of a process are
not: it is the least for a percentile of the sample, and says nothing of other processes (measuring S.4).
"""


class Round(Struct, frozen=True, kw_only=True):
    """The latencies of one process; `number` counts from 0 and pairs it with other groups' rounds."""

    number: int
    latencies_ns: tuple[int, ...]
    marks: tuple[Mark, ...] = ()


class RunGroup(Struct, frozen=True, kw_only=True):
    """All rounds of one artifact, run options and device; `key` is whatever tells the caller which."""

    key: str
    rounds: tuple[Round, ...]


class Statistics(Struct, frozen=True, kw_only=True):
    """Of all latencies together. Percentiles are None where there are too few latencies for them.

    A percentile is the smallest latency that is not exceeded by that share of them (no interpolation). `p90_bounds_ns`
    and so on hold that of all processes with at least 95 % confidence; where they are null the percentile is of this
    sample only.
    """

    samples: int
    median_ns: float
    mean_ns: float
    sd_ns: float
    min_ns: int
    max_ns: int
    p90_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None
    p90_bounds_ns: tuple[int, int] | None = None
    p95_bounds_ns: tuple[int, int] | None = None
    p99_bounds_ns: tuple[int, int] | None = None
    round_medians_ns: tuple[float, ...] = ()


def describe(group: RunGroup) -> Statistics | None:
    """Statistics of a group; None where no inference was timed."""
    rounds = timed_rounds(group)
    if not rounds:
        return None
    pooled = np.sort(np.concatenate([np.asarray(timed.latencies_ns, np.int64) for timed in rounds]))
    bounds = {share: percentile_bounds(pooled, share, len(rounds)) for share in SMALLEST_SAMPLE}
    return Statistics(
        samples=len(pooled),
        median_ns=float(np.median(pooled)),
        mean_ns=float(pooled.mean()),
        sd_ns=float(pooled.std(ddof=1)) if len(pooled) > 1 else 0.0,
        min_ns=int(pooled.min()),
        max_ns=int(pooled.max()),
        p90_ns=percentile(pooled, 0.90),
        p95_ns=percentile(pooled, 0.95),
        p99_ns=percentile(pooled, 0.99),
        p90_bounds_ns=bounds[0.90] and (int(bounds[0.90][0]), int(bounds[0.90][1])),
        p95_bounds_ns=bounds[0.95] and (int(bounds[0.95][0]), int(bounds[0.95][1])),
        p99_bounds_ns=bounds[0.99] and (int(bounds[0.99][0]), int(bounds[0.99][1])),
        round_medians_ns=tuple(float(np.median(timed.latencies_ns)) for timed in rounds),
    )


def percentile(latencies_ns: npt.NDArray[np.int64], share: float) -> int | None:
    """The smallest latency that `share` of them do not exceed; None below SMALLEST_SAMPLE[share]."""
    if len(latencies_ns) < SMALLEST_SAMPLE[share]:
        return None
    return int(np.quantile(latencies_ns, share, method="inverted_cdf"))


def percentile_bounds(pooled: npt.NDArray[np.int64] | Floats, share: float, rounds: int) -> tuple[float, float] | None:
    """Bounds of the percentile of all processes with at least 95 % confidence, from sorted latencies of so many rounds.

    A round counts as one draw, whatever its inferences have in common: exact binomial bounds of the share (Clopper and
    Pearson) and the latencies at these shares. None where the upper one lies beyond the largest latency.
    """
    low, high = share_bounds(share, rounds)
    top = math.floor(high * len(pooled))
    if len(pooled) < SMALLEST_SAMPLE[share] or top >= len(pooled):
        return None
    return pooled[math.floor(low * len(pooled))], pooled[top]


def timed_rounds(group: RunGroup) -> list[Round]:
    """The rounds that timed anything, in order."""
    return sorted((timed for timed in group.rounds if timed.latencies_ns), key=lambda timed: timed.number)


class Pairs(NamedTuple):
    """The rounds that two groups both have, in order, and the logarithm of median / median in each."""

    numbers: tuple[int, ...]
    logs: Floats

    def before(self, number: int) -> "Pairs":
        """Those of the rounds below a number."""
        kept = sum(one < number for one in self.numbers)
        return Pairs(self.numbers[:kept], self.logs[:kept])


def paired_log_ratios(group: RunGroup, baseline: RunGroup) -> Pairs:
    """The logarithm of median / median for every round that both have, in order."""
    ours, theirs = ({timed.number: timed for timed in timed_rounds(one)} for one in (group, baseline))
    both = [number for number in ours if number in theirs]
    # A clock may give 0 for what it cannot resolve: at least 1 ns, or the logarithm is lost.
    medians = [[max(1.0, float(np.median(side[number].latencies_ns))) for number in both] for side in (ours, theirs)]
    logs: Floats = np.log(np.array(medians))
    ratios: Floats = logs[0] - logs[1]
    return Pairs(tuple(both), ratios)


def ranks(group: RunGroup) -> bool:
    """Whether its times may be compared: those of another machine than the library's, or an emulator's, may not."""
    return all({Mark.NOT_A_PHONE, Mark.EMULATED}.isdisjoint(timed.marks) for timed in group.rounds)
