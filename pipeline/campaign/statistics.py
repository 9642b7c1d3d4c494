"""Statistics of raw latencies: what they say, how sure it is, and where the numbers doubt themselves.

Pure functions. A latency is nanoseconds of one inference; a round is one fresh process; a group is every round of one
artifact, run options and device. Groups were measured in alternating rounds, so that the nth rounds of all groups met
the device in about the same state: comparisons are paired by round.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from device_runner.result import Mark, Struct

Floats = npt.NDArray[np.float64]

SMALLEST_SAMPLE = {0.90: 64, 0.95: 130, 0.99: 662}
"""Percentile to the number of latencies from which on it is given.

From MLPerf LoadGen's early stopping at 99 % confidence: the least n of which the second-largest bounds the percentile,
that is p**n + n * p**(n - 1) * (1 - p) <= 0.01. Takes inferences for independent of one another.
"""

FEWEST_ROUNDS = 5
"""Below, even the range of all rounds holds the true ratio in less than 93 of 100 cases (1 - 2 * 0.5**rounds)."""

CONFIDENCE = 0.95
RESAMPLES = 10_000
DRAWN_AT_ONCE = 1 << 20
"""Values drawn at a time: memory does not grow with the rounds. The numbers are those of one draw of all."""

DEFAULT_MARGIN = 0.05
DRIFT_LIMIT, DRIFT_CORRELATION = 0.05, 0.8
SPREAD_LIMIT, EXTREME_LIMIT = 0.10, 0.50
SHORT_NS = 1_000_000


class Verdict(StrEnum):
    """What a comparison with the baseline says."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    CANNOT_TELL = "cannot tell"


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
    CRASHED_AT_END = "crashed_at_end"
    CPU_FALLBACK = "cpu_fallback"
    PERF_TEST = "perf_test"


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

    A percentile is the smallest latency that is not exceeded by that share of them (no interpolation).
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
    round_medians_ns: tuple[float, ...] = ()


class Comparison(Struct, frozen=True, kw_only=True):
    """Latency relative to the baseline's: 0.5 is twice as fast.

    `ratio` is the geometric mean over the rounds that both have of median / median; `low` and `high` bound it with
    95 % confidence; `margin` is the share within which two are called the same.
    """

    baseline: str
    ratio: float
    low: float
    high: float
    rounds: int
    margin: float
    verdict: Verdict


class Caution(Struct, frozen=True, kw_only=True):
    """A doubt with its reason in numbers and what to do about it."""

    doubt: Doubt
    reason: str
    advice: str


class Summary(Struct, frozen=True, kw_only=True):
    """What is known of one group; `comparison` is None for the baseline itself and where nothing can be compared."""

    key: str
    statistics: Statistics | None = None
    comparison: Comparison | None = None
    cautions: tuple[Caution, ...] = ()


def describe(group: RunGroup) -> Statistics | None:
    """Statistics of a group; None where no inference was timed."""
    rounds = timed_rounds(group)
    if not rounds:
        return None
    pooled = np.concatenate([np.asarray(timed.latencies_ns, np.int64) for timed in rounds])
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
        round_medians_ns=tuple(float(np.median(timed.latencies_ns)) for timed in rounds),
    )


def percentile(latencies_ns: npt.NDArray[np.int64], share: float) -> int | None:
    """The smallest latency that `share` of them do not exceed; None below SMALLEST_SAMPLE[share]."""
    if len(latencies_ns) < SMALLEST_SAMPLE[share]:
        return None
    return int(np.quantile(latencies_ns, share, method="inverted_cdf"))


def timed_rounds(group: RunGroup) -> list[Round]:
    """The rounds that timed anything, in order."""
    return sorted((timed for timed in group.rounds if timed.latencies_ns), key=lambda timed: timed.number)


def paired_log_ratios(group: RunGroup, baseline: RunGroup) -> Floats:
    """The logarithm of median / median for every round that both have, in order."""
    ours, theirs = ({timed.number: timed for timed in timed_rounds(one)} for one in (group, baseline))
    both = [number for number in ours if number in theirs]
    # A clock may give 0 for what it cannot resolve: at least 1 ns, or the logarithm is lost.
    medians = [[max(1.0, float(np.median(side[number].latencies_ns))) for number in both] for side in (ours, theirs)]
    logs: Floats = np.log(np.array(medians))
    ratios: Floats = logs[0] - logs[1]
    return ratios


def student_quantile(share: float, freedom: int) -> float:
    """Student's t by Abramowitz and Stegun 26.7.5, to 0.2 % from 5 degrees of freedom at the shares used here."""
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def tail(rounds: int) -> float:
    """The share of resampled means to leave out on each side of the interval.

    Hesterberg's expanded percentile interval: a plain percentile bootstrap of few values is too narrow, by the
    divisor n instead of n - 1 and the normal instead of Student's distribution.
    """
    quantile = student_quantile((1 + CONFIDENCE) / 2, rounds - 1)
    return NormalDist().cdf(-math.sqrt(rounds / (rounds - 1)) * quantile)


def bootstrap_interval(values: Floats, seed: int) -> tuple[float, float]:
    """Bounds of the mean of at least two values, from RESAMPLES means of as many drawn with replacement."""
    generator = np.random.default_rng(seed)
    rows = max(1, DRAWN_AT_ONCE // len(values))
    means = [
        values[generator.integers(0, len(values), (min(rows, RESAMPLES - start), len(values)))].mean(axis=1)
        for start in range(0, RESAMPLES, rows)
    ]
    share = tail(len(values))
    low, high = np.quantile(np.concatenate(means), [share, 1 - share])
    return float(low), float(high)


def judge(low: float, high: float, rounds: int, margin: float) -> Verdict:
    """The verdict on an interval of the ratio to the baseline.

    Entirely below 1 - margin is faster, entirely above 1 + margin slower, entirely between the two the same; an
    interval over one of these borders, or from fewer than FEWEST_ROUNDS rounds, cannot tell.
    """
    if rounds < FEWEST_ROUNDS:
        return Verdict.CANNOT_TELL
    if high < 1 - margin:
        return Verdict.FASTER
    if low > 1 + margin:
        return Verdict.SLOWER
    return Verdict.SAME if low >= 1 - margin and high <= 1 + margin else Verdict.CANNOT_TELL


def compare(group: RunGroup, baseline: RunGroup, margin: float = DEFAULT_MARGIN, seed: int = 0) -> Comparison | None:
    """The group against the baseline; None without two rounds in common, or where times are not a phone's.

    `margin` is a share (0.05 is 5 %); the same seed gives the same interval.
    """
    logs = paired_log_ratios(group, baseline)
    if len(logs) < 2 or not (ranks(group) and ranks(baseline)):
        return None
    low, high = (math.exp(bound) for bound in bootstrap_interval(logs, seed))
    return Comparison(
        baseline=baseline.key,
        ratio=math.exp(float(logs.mean())),
        low=low,
        high=high,
        rounds=len(logs),
        margin=margin,
        verdict=judge(low, high, len(logs), margin),
    )


def ranks(group: RunGroup) -> bool:
    """Whether its times may be compared: those of a phone's library on another machine may not."""
    return not any(Mark.NOT_A_PHONE in timed.marks for timed in group.rounds)


def summarize(
    groups: Sequence[RunGroup], baseline: str | None = None, margin: float = DEFAULT_MARGIN, seed: int = 0
) -> tuple[Summary, ...]:
    """One summary per group, in order, each compared with the group whose key is `baseline` (None compares nothing).

    Raises ValueError when no group has that key or two groups share one.
    """
    by_key = {group.key: group for group in groups}
    if len(by_key) < len(groups):
        raise ValueError("two groups have the same key")
    if baseline is not None and baseline not in by_key:
        raise ValueError(f"no group has the baseline's key {baseline!r}")
    reference = None if baseline is None else by_key[baseline]
    return tuple(_summary(group, reference, margin, seed) for group in groups)


def _summary(group: RunGroup, baseline: RunGroup | None, margin: float, seed: int) -> Summary:
    statistics = describe(group)
    other = baseline is not None and baseline.key != group.key
    comparison = compare(group, baseline, margin, seed) if baseline is not None and other else None
    doubts = () if statistics is None else cautions(group, statistics, comparison)
    return Summary(key=group.key, statistics=statistics, comparison=comparison, cautions=doubts)


def cautions(group: RunGroup, statistics: Statistics, comparison: Comparison | None = None) -> tuple[Caution, ...]:
    """Every doubt about a group's numbers, in the order of `Doubt`."""
    rounds = len(statistics.round_medians_ns) if comparison is None else comparison.rounds
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
        if _extreme(x)
    ]
    return {
        Doubt.DRIFT: f"the median changes by {risen:+.0%} over the rounds" if abs(risen) > DRIFT_LIMIT else "",
        Doubt.SPREAD: f"standard deviation is {spread:.0%} of the mean" if spread > SPREAD_LIMIT else "",
        Doubt.EXTREME: " and ".join(far),
        Doubt.SHORT_SAMPLES: f"the fastest inference takes {numbers.min_ns / 1000:.3g} µs"
        if numbers.min_ns < SHORT_NS
        else "",
    }


def _extreme(ratio: float) -> bool:
    return not 1 - EXTREME_LIMIT < ratio < 1 + EXTREME_LIMIT


MARKED: dict[Mark, tuple[Doubt, str]] = {
    Mark.THROTTLED: (Doubt.THROTTLED, "the device throttled"),
    Mark.NOT_A_PHONE: (Doubt.NOT_A_PHONE, "these times are not a phone's"),
    Mark.CHARGING: (Doubt.CHARGING, "the battery was charging"),
    Mark.SHORT: (Doubt.CUT_SHORT, "the time limit came before the number of inferences asked for"),
    Mark.CRASHED_AT_END: (Doubt.CRASHED_AT_END, "the process crashed after its last inference, giving memory back"),
    Mark.CPU_FALLBACK: (Doubt.CPU_FALLBACK, "the CPU took nodes that another provider was asked to run"),
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
    Doubt.NOT_A_PHONE: "use them to see that it runs, never to choose: measure on a phone",
    Doubt.CHARGING: "charging warms a phone: measure with the battery over half full and the charger off",
    Doubt.CUT_SHORT: "raise max_seconds, or ask for fewer inferences (min_runs)",
    Doubt.CRASHED_AT_END: "the times hold; an app that closes its session would crash: try another release or provider",
    Doubt.PERF_TEST: "measure once with the probe to compare outputs; the first inference is known to the millisecond",
    Doubt.CPU_FALLBACK: "ask `ort-mobile partition` which nodes the provider refuses and why",
}
"""What to do about each doubt."""
