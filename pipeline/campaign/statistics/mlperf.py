"""p90 of latencies by the rule of MLPerf's LoadGen."""

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from device_runner.result import RunResult, Status

MLPERF_RUNS, MLPERF_SECONDS = 1024, 60.0
"""The least that MLPerf's single-stream scenario runs on phones (measuring M.1)."""


class MlperfNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """p90 by the single-stream rule of MLPerf's LoadGen: its early stopping estimate, of every round by itself.

    `valid` where each round had the inferences and seconds that the rule wants; `queries` and `seconds` are the least.
    """

    p90_ns: int
    lowest_ns: int
    highest_ns: int
    rounds: int
    queries: int
    seconds: float
    valid: bool


def mlperf_numbers(results: Iterable[RunResult]) -> MlperfNumbers | None:
    """p90 by LoadGen's rule over rounds: the median of the rounds' estimates; None where none has enough inferences."""
    timed = [result.latencies_ns for result in results if result.status is Status.OK and result.latencies_ns]
    estimates = [estimate for latencies in timed if (estimate := early_stopping(latencies)) is not None]
    if not estimates:
        return None
    queries, seconds = min(map(len, timed)), min(map(sum, timed)) / 1e9
    return MlperfNumbers(
        p90_ns=int(median(estimates)),
        lowest_ns=min(estimates),
        highest_ns=max(estimates),
        rounds=len(estimates),
        queries=queries,
        seconds=seconds,
        valid=len(estimates) == len(timed) and queries >= MLPERF_RUNS and seconds >= MLPERF_SECONDS,
    )


def early_stopping(latencies_ns: Sequence[int]) -> int | None:
    """LoadGen's early stopping estimate of the p90 of one run (measuring M.1); None for too few inferences.

    The t-th highest latency, for the largest t with P(at most t of n exceed the percentile) < 1 - 0.99.
    """
    count, above = len(latencies_ns), 1 - 0.9
    discarded, below = 0, 0.0
    while True:
        if discarded <= count:  # the probability that exactly so many of the independent inferences exceed it
            ways = math.lgamma(count + 1) - math.lgamma(discarded + 1) - math.lgamma(count - discarded + 1)
            below += math.exp(ways + discarded * math.log(above) + (count - discarded) * math.log1p(-above))
        if below >= 1 - 0.99 or discarded > count:
            break
        discarded += 1
    if discarded < 2:
        return None
    return sorted(latencies_ns)[count - (discarded - 1)]
