"""The latencies of a run in rounds, what describes them, and where the numbers doubt themselves. Pure functions."""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from device_runner.result import Mark, Struct
from pipeline.campaign.statistics.intervals import Floats, share_bounds

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
        kept = sum(each < number for each in self.numbers)
        return Pairs(self.numbers[:kept], self.logs[:kept])


def paired_log_ratios(group: RunGroup, baseline: RunGroup) -> Pairs:
    """The logarithm of median / median for every round that both have, in order."""
    ours, others = ({timed.number: timed for timed in timed_rounds(side)} for side in (group, baseline))
    both = [number for number in ours if number in others]
    # A clock may give 0 for what it cannot resolve: at least 1 ns, or the logarithm is lost.
    medians = [[max(1.0, float(np.median(side[number].latencies_ns))) for number in both] for side in (ours, others)]
    logs: Floats = np.log(np.array(medians))
    ratios: Floats = logs[0] - logs[1]
    return Pairs(tuple(both), ratios)


def ranks(group: RunGroup) -> bool:
    """Whether its times may be compared: those of another machine than the library's, or an emulator's, may not."""
    return all({Mark.NOT_A_PHONE, Mark.EMULATED}.isdisjoint(timed.marks) for timed in group.rounds)


FEWEST_ROUNDS = 5
"""Below, only large differences are shown: the interval at 99 % is three times as wide as at 8 rounds."""

DRIFT_LIMIT, DRIFT_CORRELATION = 0.05, 0.8
SPREAD_LIMIT, EXTREME_LIMIT = 0.10, 0.50
SHORT_NS = 1_000_000


class Doubt(StrEnum):
    """Why a number may not be what it seems."""

    DRIFT = "drift"
    SPREAD = "spread"
    EXTREME = "extreme"
    SHORT_SAMPLES = "short_samples"
    FEW_ROUNDS = "few_rounds"
    THROTTLED = "throttled"
    NOT_A_PHONE = "not_a_phone"
    CHARGING = "charging"
    CUT_SHORT = "cut_short"
    UNSETTLED = "unsettled"
    CRASHED_AT_END = "crashed_at_end"
    CPU_FALLBACK = "cpu_fallback"
    PERF_TEST = "perf_test"
    WRONG_SHAPE = "wrong_shape"


class Caution(Struct, frozen=True, kw_only=True):
    """A doubt with its reason in numbers and what to do about it."""

    doubt: Doubt
    reason: str
    advice: str


def cautions(group: RunGroup, statistics: Statistics, paired: int | None = None) -> tuple[Caution, ...]:
    """Every doubt about a group's numbers, in the order of `Doubt`; `paired`: rounds that were compared."""
    rounds = len(statistics.round_medians_ns) if paired is None else paired
    reasons = {**_doubts_in_numbers(statistics), **_doubts_in_marks(group)}
    if rounds < FEWEST_ROUNDS:
        reasons[Doubt.FEW_ROUNDS] = f"{rounds} of at least {FEWEST_ROUNDS} rounds that can be compared"
    return tuple(
        Caution(doubt=doubt, reason=reasons[doubt], advice=ADVICE[doubt]) for doubt in Doubt if reasons.get(doubt)
    )


def drift(round_medians_ns: Sequence[float]) -> float:
    """By what share of the median a straight line through the rounds rises; 0 where they do not follow a line."""
    medians = np.asarray(round_medians_ns)
    if len(medians) < FEWEST_ROUNDS or float(np.ptp(medians)) == 0.0:
        return 0.0
    number = np.arange(len(medians))
    if abs(float(np.corrcoef(number, medians)[0, 1])) < DRIFT_CORRELATION:
        return 0.0
    slope = float(np.polynomial.Polynomial.fit(number, medians, 1).convert().coef[1])
    return slope * (len(medians) - 1) / float(np.median(medians))


def _doubts_in_numbers(numbers: Statistics) -> dict[Doubt, str]:
    """Doubt to its reason, "" where there is none."""
    risen = drift(numbers.round_medians_ns)
    spread = numbers.sd_ns / max(numbers.mean_ns, 1.0)
    middle = max(numbers.median_ns, 1.0)
    extremes = {"slowest": numbers.max_ns / middle, "fastest": numbers.min_ns / middle}
    far = [
        f"the {name} inference is {x:{'.2g' if x < 10 else '.0f'}} times the median"
        for name, x in extremes.items()
        if not 1 - EXTREME_LIMIT < x < 1 + EXTREME_LIMIT
    ]
    return {
        Doubt.DRIFT: f"the median changes by {risen:+.0%} over the rounds" if abs(risen) > DRIFT_LIMIT else "",
        Doubt.SPREAD: f"standard deviation is {spread:.0%} of the mean" if spread > SPREAD_LIMIT else "",
        Doubt.EXTREME: " and ".join(far),
        Doubt.SHORT_SAMPLES: f"the fastest inference takes {numbers.min_ns / 1000:.3g} µs"
        if numbers.min_ns < SHORT_NS
        else "",
    }


MARKED: dict[Mark, tuple[Doubt, str]] = {
    Mark.THROTTLED: (Doubt.THROTTLED, "the device throttled"),
    Mark.NOT_A_PHONE: (Doubt.NOT_A_PHONE, "these times are not a phone's"),
    Mark.EMULATED: (Doubt.NOT_A_PHONE, "an emulator computed: these times are no processor's"),
    Mark.CHARGING: (Doubt.CHARGING, "the battery was charging"),
    Mark.SHORT: (Doubt.CUT_SHORT, "the time limit came before the number of inferences asked for"),
    Mark.UNSETTLED: (Doubt.UNSETTLED, "inferences still became faster in the middle of what was timed"),
    Mark.CRASHED_AT_END: (Doubt.CRASHED_AT_END, "the process crashed after its last inference, giving memory back"),
    Mark.CPU_FALLBACK: (Doubt.CPU_FALLBACK, "the CPU took nodes that another provider was asked to run"),
    Mark.WRONG_SHAPE: (Doubt.WRONG_SHAPE, "an output does not have the shape that the model declares for it"),
    Mark.PERF_TEST: (Doubt.PERF_TEST, "onnxruntime_perf_test measured, and no outputs were compared"),
}
"""A mark of a run to the doubt that it raises and the reason."""


def _doubts_in_marks(group: RunGroup) -> dict[Doubt, str]:
    counts = {mark: sum(mark in timed.marks for timed in group.rounds) for mark in MARKED}
    total = len(group.rounds)
    return {MARKED[mark][0]: f"{MARKED[mark][1]} in {n} of {total} rounds" for mark, n in counts.items() if n}


ADVICE: dict[Doubt, str] = {
    Doubt.DRIFT: "let the device rest before measuring, and between rounds",
    Doubt.SPREAD: "close what else runs, measure longer (min_seconds) and more rounds",
    Doubt.EXTREME: "close what else runs; judge by the median rather than the mean",
    Doubt.SHORT_SAMPLES: "interruptions weigh in below 1 ms: measure more rounds, trust only large differences",
    Doubt.FEW_ROUNDS: f"set rounds to {FEWEST_ROUNDS} or more",
    Doubt.THROTTLED: "let the device cool, measure fewer inferences at a time",
    Doubt.NOT_A_PHONE: "use them to see that it runs, never to choose: measure on a phone, for which files are made",
    Doubt.CHARGING: "charging warms a phone: measure with the battery over half full and the charger off",
    Doubt.CUT_SHORT: "raise max_seconds, or ask for fewer inferences (min_runs)",
    Doubt.UNSETTLED: "warm-up did not end: measure longer (min_seconds, min_runs), so that half of it is steady",
    Doubt.CRASHED_AT_END: "the times hold; an app that closes its session would crash: try another release or provider",
    Doubt.PERF_TEST: "measure once with the probe to compare outputs; the first inference is known to the millisecond",
    Doubt.WRONG_SHAPE: "the times hold; correct the shape in the model's graph.output: apps that give memory for that "
    "output (pinned outputs, IoBinding) fail, and providers may size it wrongly",
    Doubt.CPU_FALLBACK: "ask `ort-mobile partition` which nodes the provider refuses and why",
}
"""What to do about each doubt."""
