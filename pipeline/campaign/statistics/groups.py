"""Rounds of runs: their statistics and cautions, and bounds of ratios and shares. Pure functions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from device_runner import result as run_result
from device_runner.problem import Problem

Floats = npt.NDArray[np.float64]

STEPS = 500
"""Of a continued fraction; it converges within some 5 * sqrt(max(a, b)) of them."""


def t_tail(t: float, freedom: float) -> float:
    """The probability that Student's t with so many degrees of freedom is further from 0 than `t`, on either side."""
    if math.isinf(t):
        return 0.0
    return beta_share(freedom / (freedom + t * t), freedom / 2, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: float) -> float:
    """The value that Student's t does not exceed with probability `share`, 0 < share < 1, to rounding."""
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    outside = 2 * (1 - share)
    power = (freedom + 1) / 2
    middle_density = math.exp(math.lgamma(power) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    # Newton's method: the tail is convex, so that no step from 0 on passes the value, and the last ones are rounding.
    value, further = -1.0, 0.0
    while further > value:
        value = further
        density = middle_density * (1 + value * value / freedom) ** -power
        further = value + (t_tail(value, freedom) - outside) / (2 * density)
    return value


def beta_share(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by the continued fraction of DLMF 8.17.22."""
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_share(1 - x, b, a)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    # 1 + d1 / (1 + d2 / (1 + …)) by Lentz's method
    value = c = 1.0
    d = 0.0
    for step in range(1, STEPS + 1):
        m = step // 2
        over = m * (b - m) if step % 2 == 0 else -(a + m) * (a + b + m)
        term = over * x / ((a + 2 * m - 1) * (a + 2 * m) if step % 2 == 0 else (a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d)
        c = 1 + term / c
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(front) / a / value


@lru_cache(maxsize=1024)
def rank_sums(count: int) -> Floats:
    """At place s: the probability that the signed-rank sum of so many values is at most s, where signs are chance."""
    shares = np.zeros(count * (count + 1) // 2 + 1)
    shares[0] = 1.0
    for rank in range(1, count + 1):
        shares[rank:] += shares[:-rank].copy()
        shares /= 2
    return np.cumsum(shares)


def rank_bound(count: int, outside: float) -> int | None:
    """The largest sum that is reached or undercut with at most probability `outside` / 2; None where not even 0 is."""
    bound = int(np.searchsorted(rank_sums(count), outside / 2 * (1 + 1e-12), side="right")) - 1
    return bound if bound >= 0 else None


@lru_cache(maxsize=1024)
def share_bounds(share: float, count: int) -> tuple[float, float]:
    """Clopper and Pearson's exact 95 % bounds of a share of so many draws; a part of a hit counts as such."""
    hits, outside = share * count, 0.025  # of the probability, on each side
    return (
        _where(lambda x: beta_share(x, hits, count - hits + 1), outside),
        _where(lambda x: beta_share(x, hits + 1, count - hits), 1 - outside),
    )


def _where(rising: Callable[[float], float], level: float) -> float:
    """Where a function that rises from 0 to 1 between 0 and 1 reaches a level."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if rising(middle) < level else (low, middle)
    return high


LEAST_ROUNDS = 4
"""Below, an interval at 99 % is wider than any difference that anybody looks for."""
RANKS_FROM, RANKS_TO = 8, 500
"""Rounds with signed ranks, which outliers do not widen: fewer have no bounds at 99 %, more need no such care."""
MOST_ROUNDS_NEEDED = 10_000
ROUNDING = 1e-13
POWER = 0.95
"""How often a difference that is called detectable is found."""
CAMPAIGNS, DRAWN_TO = 2000, 40
"""Campaigns that are drawn to know what so many rounds find, and up to how many rounds their ranks are: more are
normal enough for the ranks' efficiency."""
RANKS_COST = math.sqrt(math.pi / 3)
"""By how much ranks widen an interval of many normal values."""


class Interval(NamedTuple):
    """A ratio with the bounds that hold the true one with the confidence asked for."""

    ratio: float
    low: float
    high: float


def ratio_interval(log_ratios: Floats, confidence: float = 0.95) -> Interval | None:
    """The interval of a ratio from its logarithm in each round; None below LEAST_ROUNDS.

    Student's t of the mean below 8 rounds; from then on the Hodges-Lehmann estimate with exact bounds of the
    signed-rank test, or t where so few rounds have none at this confidence.
    """
    count = len(log_ratios)
    if count < LEAST_ROUNDS:
        return None
    bound = rank_bound(count, 1 - confidence) if RANKS_FROM <= count <= RANKS_TO else None
    if bound is None:
        middle = float(log_ratios.mean())
        reach = t_quantile((1 + confidence) / 2, count - 1) * _spread(log_ratios) / math.sqrt(count)
        logs = (middle, middle - reach, middle + reach)
    else:
        means = walsh_means(log_ratios)
        median = float(means[(len(means) - 1) // 2] + means[len(means) // 2]) / 2
        logs = (median, float(means[bound]), float(means[-1 - bound]))
    return Interval(*map(math.exp, logs))


def p_value(log_ratios: Floats) -> float:
    """How likely a difference at least so clear is, were both equally fast; 1 below LEAST_ROUNDS.

    At most `1 - c` exactly where the interval at confidence c excludes 1. Where all rounds agree in sign, which is
    the least that ranks can say, t decides: so small levels can be reached.
    """
    count = len(log_ratios)
    if count < LEAST_ROUNDS:
        return 1.0
    if not RANKS_FROM <= count <= RANKS_TO:
        return _t_p_value(log_ratios)
    means = walsh_means(log_ratios)
    beyond = min(int(np.sum(means <= 0)), int(np.sum(means >= 0)))
    by_ranks = min(1.0, 2 * float(rank_sums(count)[beyond]))
    return min(by_ranks, _t_p_value(log_ratios)) if beyond == 0 else by_ranks


def _t_p_value(values: Floats) -> float:
    middle, error = float(values.mean()), _spread(values) / math.sqrt(len(values))
    if error == 0:
        return float(abs(middle) < ROUNDING)
    return t_tail(middle / error, len(values) - 1)


def _spread(values: Floats) -> float:
    """The standard deviation; 0 where values differ by rounding only."""
    spread = float(values.std(ddof=1))
    return spread if spread > ROUNDING * (1 + abs(float(values.mean()))) else 0.0


def walsh_means(values: Floats) -> Floats:
    """The means of all pairs of values, each with itself too, sorted."""
    first, second = _pairs(len(values))
    means: Floats = np.sort((values[first] + values[second]) / 2)
    return means


@lru_cache(maxsize=64)
def _pairs(count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    first, second = np.triu_indices(count)
    return first, second


def noise(log_ratios: Floats) -> float:
    """The standard deviation of a log ratio that fits the 95 % interval, so that outliers weigh as much as they do
    there. At least LEAST_ROUNDS values.
    """
    interval = ratio_interval(log_ratios, 0.95)
    if interval is None:
        raise ValueError(f"{len(log_ratios)} rounds have no interval")
    count = len(log_ratios)
    return math.log(interval.high / interval.low) / 2 * math.sqrt(count) / t_quantile(0.975, count - 1)


def detectable(sd: float, rounds: int, confidence: float, known_from: int | None = None) -> float:
    """The difference, as a share (0.03 is 3 %), that so many rounds show at this confidence in 95 of 100 campaigns.

    `sd` is that of log ratios, about 1.4 times that of a lane's log round medians. `known_from` are the rounds of the
    pilot that it was estimated from: the 95 of 100 are then pilots with their campaigns. Infinite below LEAST_ROUNDS.
    """
    if rounds < LEAST_ROUNDS:
        return math.inf
    return math.expm1(min(700.0, sd * _least_shown(rounds, confidence, known_from)))


def rounds_needed(sd: float, effect: float, confidence: float, known_from: int | None = None) -> int | None:
    """The fewest rounds that show a difference of so large a share in 95 of 100 campaigns; None above 10,000.

    7 rounds may find what 8 do not: ranks need more rounds than t where there are few (measuring S.5).
    """

    def enough(rounds: int) -> bool:
        return detectable(sd, rounds, confidence, known_from) <= effect

    low, high = DRAWN_TO, MOST_ROUNDS_NEEDED
    if not enough(high):
        return None
    if enough(low):
        return next(rounds for rounds in range(LEAST_ROUNDS, low + 1) if enough(rounds))
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@lru_cache(maxsize=1024)
def _least_shown(rounds: int, confidence: float, known_from: int | None) -> float:
    """The log ratio, in its standard deviations, that is shown in 95 of 100 drawn campaigns with normal noise.

    A campaign shows what is larger than the lower bound of its noise is below 0: bounds move with the truth.
    """
    random = np.random.default_rng(rounds)
    if rounds <= DRAWN_TO:
        # How far below 0 the lower bound of each campaign's log ratios is, by the rule of `p_value`
        campaigns = random.standard_normal((CAMPAIGNS, rounds))
        t = t_quantile((1 + confidence) / 2, rounds - 1) / math.sqrt(rounds)
        below = t * campaigns.std(axis=1, ddof=1) - campaigns.mean(axis=1)
        if rounds >= RANKS_FROM:
            bound = rank_bound(rounds, 1 - confidence)
            first, second = _pairs(rounds)
            means = np.partition((campaigns[:, first] + campaigns[:, second]) / 2, bound or 0, axis=1)
            by_ranks = -means[:, bound or 0]
            below = by_ranks if bound is not None else np.maximum(below, by_ranks)
    else:
        spread = np.sqrt(random.chisquare(rounds - 1, CAMPAIGNS) / (rounds - 1))
        reach = t_quantile((1 + confidence) / 2, rounds - 1) * spread + random.standard_normal(CAMPAIGNS)
        below = reach / math.sqrt(rounds) * (RANKS_COST if rounds <= RANKS_TO else 1.0)
    if known_from:
        below = below / np.sqrt(random.chisquare(known_from - 1, CAMPAIGNS) / (known_from - 1))
    return float(np.quantile(below, POWER))


SMALLEST_SAMPLE = {0.90: 64, 0.95: 130, 0.99: 662}
"""Percentile to the number of latencies from which on it is given.

From MLPerf LoadGen's early stopping at 99 % confidence: the least n of which the second-largest bounds the percentile,
that is p**n + n * p**(n - 1) * (1 - p) <= 0.01. That takes inferences for independent, which those of a process are
not: it is the least for a percentile of the sample, and says nothing of other processes (measuring S.4).
"""


class RunGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of one artifact, run options and device, each a process; `key` is whatever tells the caller which.

    `latencies_ns` are by the number of a round, which counts from 0 and pairs it with those of other groups. `marks`
    has a mark once for each round that has it. `stretches` has, by round, a number that is another one after another
    campaign had the device.
    """

    key: str
    latencies_ns: dict[int, tuple[int, ...]]
    marks: tuple[run_result.Mark, ...] = ()
    stretches: dict[int, int] = {}

    @property
    def timed(self) -> dict[int, tuple[int, ...]]:
        """The rounds that timed anything, in order."""
        return {number: times for number, times in sorted(self.latencies_ns.items()) if times}


class Yardstick(StrEnum):
    """What of a round two runs are compared by: its median says how long an inference usually takes, its mean how many
    there are in an hour, its 90th percentile how long one in ten makes a user wait.
    """

    MEDIAN = "median"
    MEAN = "mean"
    P90 = "p90"


TAIL_INFERENCES = 10
"""Inferences of a process from which on its mean and 90th percentile say more than its median."""


def yardsticks(latencies_ns: Sequence[int]) -> dict[Yardstick, float]:
    """Those of one process; the median alone of fewer than TAIL_INFERENCES inferences."""
    ordered = np.sort(np.asarray(latencies_ns, np.float64))
    values = {Yardstick.MEDIAN: float(np.median(ordered))}
    if len(ordered) >= TAIL_INFERENCES:
        values |= {
            Yardstick.MEAN: float(ordered.mean()),
            Yardstick.P90: float(ordered[math.ceil(0.9 * len(ordered)) - 1]),
        }
    return values


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Of all latencies together. Percentiles are None where there are too few latencies for them.

    A percentile is the smallest latency that is not exceeded by that share of them (no interpolation). `p90_bounds_ns`
    and so on hold that of all processes with at least 95 % confidence; where they are null the percentile is of this
    sample only. `round_medians_ns`, `round_means_ns` and `round_p90s_ns` have a value for each round, the last two
    where its processes have inferences enough.
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
    round_means_ns: tuple[float, ...] = ()
    round_p90s_ns: tuple[float, ...] = ()

    def by_round(self) -> dict[Yardstick, tuple[float, ...]]:
        """What rounds are compared by; without means and percentiles where processes have too few inferences."""
        values = (self.round_medians_ns, self.round_means_ns, self.round_p90s_ns)
        return {of: numbers for of, numbers in zip(Yardstick, values, strict=True) if numbers}


def describe(group: RunGroup) -> Statistics | None:
    """Statistics of a group; None where no inference was timed."""
    rounds = group.timed.values()
    if not rounds:
        return None
    pooled = np.sort(np.concatenate([np.asarray(times, np.int64) for times in rounds]))
    bounds = {share: percentile_bounds(pooled, share, len(rounds)) for share in SMALLEST_SAMPLE}
    by_round = [yardsticks(times) for times in rounds]

    def of_rounds(of: Yardstick) -> tuple[float, ...]:
        return tuple(values[of] for values in by_round) if all(of in values for values in by_round) else ()

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
        round_medians_ns=of_rounds(Yardstick.MEDIAN),
        round_means_ns=of_rounds(Yardstick.MEAN),
        round_p90s_ns=of_rounds(Yardstick.P90),
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedRatios:
    """The numbers of the rounds that two groups both have, in order, and the logarithm of the ratio in each.

    `logs` is of medians, `tails` of means and 90th percentiles: nothing where a process has too few inferences.
    """

    numbers: tuple[int, ...]
    logs: Floats
    tails: Mapping[Yardstick, Floats] = field(default_factory=dict)

    def before(self, look: int) -> "PairedRatios":
        """Those of the rounds below a number."""
        count = sum(number < look for number in self.numbers)
        tails = {of: logs[:count] for of, logs in self.tails.items()}
        return PairedRatios(numbers=self.numbers[:count], logs=self.logs[:count], tails=tails)


def log_ratios(ours: Sequence[float], others: Sequence[float]) -> Floats:
    """Of what was measured in the same rounds. A clock may give 0 for what it cannot resolve: at least 1 ns."""
    logs: Floats = np.log(np.maximum(ours, 1.0)) - np.log(np.maximum(others, 1.0))
    return logs


def paired_log_ratios(group: RunGroup, baseline: RunGroup) -> PairedRatios:
    """The ratios of every round that both have; not where another campaign had the device between (facts, lab D.6)."""
    ours, others = group.timed, baseline.timed
    both = tuple(
        number
        for number in ours
        if number in others and group.stretches.get(number, 0) == baseline.stretches.get(number, 0)
    )
    values = [[yardsticks(side[number]) for number in both] for side in (ours, others)]
    ratios = {
        of: log_ratios(*([round_values[of] for round_values in side] for side in values))
        for of in Yardstick
        if all(of in round_values for side in values for round_values in side)
    }
    return PairedRatios(numbers=both, logs=ratios.pop(Yardstick.MEDIAN), tails=ratios)


UNRANKED = frozenset(
    {
        run_result.Mark.NOT_A_PHONE,
        run_result.Mark.EMULATED,
        run_result.Mark.SIMULATED,
        run_result.Mark.SOFTWARE_GPU,
        run_result.Mark.QUARANTINED,
    }
)


def comparable(group: RunGroup) -> bool:
    """Whether its times may be compared; `why_unranked` says why not."""
    return UNRANKED.isdisjoint(group.marks)


def why_unranked(group: RunGroup) -> str:
    """What a mark says of times of what only plays a phone, or has changed; "" for phones and `local`: they rank."""
    return next((reason for mark, (_, reason) in MARKED.items() if mark in UNRANKED and mark in group.marks), "")


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
    QUARANTINED = "quarantined"
    REPORTED = "reported"
    SHARED_PROCESS = "shared_process"


class Caution(Problem, frozen=True, kw_only=True):
    """A doubt about a run's numbers, with its reason in numbers and what to do about it."""

    code: Doubt = msgspec.field(name="doubt")
    what: str = msgspec.field(name="reason")
    remedy: str = msgspec.field(name="advice")


def cautions(group: RunGroup, statistics: Statistics | None, paired: int | None = None) -> tuple[Caution, ...]:
    """Every doubt about a group's numbers, in the order of `Doubt`; `paired`: rounds that were compared.

    Without statistics, as of what a simulator computed, those that marks raise.
    """
    counts = {mark: group.marks.count(mark) for mark in MARKED}
    total = len(group.latencies_ns)
    reasons: dict[Doubt, str] = {}
    if statistics:
        risen = drift(statistics.round_medians_ns)
        if abs(risen) > DRIFT_LIMIT:
            reasons[Doubt.DRIFT] = f"the median changes by {risen:+.0%} over the rounds"
        spread = statistics.sd_ns / max(statistics.mean_ns, 1.0)
        if spread > SPREAD_LIMIT:
            reasons[Doubt.SPREAD] = f"standard deviation is {spread:.0%} of the mean"
        middle = max(statistics.median_ns, 1.0)
        extremes = {"slowest": statistics.max_ns / middle, "fastest": statistics.min_ns / middle}
        reasons[Doubt.EXTREME] = " and ".join(
            f"the {name} inference is {x:{'.2g' if x < 10 else '.0f'}} times the median"
            for name, x in extremes.items()
            if not 1 - EXTREME_LIMIT < x < 1 + EXTREME_LIMIT
        )
        if statistics.min_ns < SHORT_NS:
            reasons[Doubt.SHORT_SAMPLES] = f"the fastest inference takes {statistics.min_ns / 1000:.3g} µs"
    reasons |= {MARKED[mark][0]: f"{MARKED[mark][1]} in {n} of {total} rounds" for mark, n in counts.items() if n}
    rounds = len(statistics.round_medians_ns) if statistics and paired is None else paired
    if statistics and rounds is not None and rounds < FEWEST_ROUNDS:
        reasons[Doubt.FEW_ROUNDS] = f"{rounds} of at least {FEWEST_ROUNDS} rounds that can be compared"
    return tuple(
        Caution(code=doubt, what=reasons[doubt], remedy=ADVICE[doubt]) for doubt in Doubt if reasons.get(doubt)
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


MARKED: dict[run_result.Mark, tuple[Doubt, str]] = {
    run_result.Mark.THROTTLED: (Doubt.THROTTLED, "the device throttled"),
    run_result.Mark.NOT_A_PHONE: (Doubt.NOT_A_PHONE, "these times are not a phone's"),
    run_result.Mark.EMULATED: (Doubt.NOT_A_PHONE, "an emulator computed, whose times are no processor's"),
    run_result.Mark.SIMULATED: (
        Doubt.NOT_A_PHONE,
        "a simulator of an accelerator computed, whose times are no phone's",
    ),
    run_result.Mark.SOFTWARE_GPU: (Doubt.NOT_A_PHONE, "a software GPU computed, whose times are no GPU's"),
    run_result.Mark.QUARANTINED: (
        Doubt.QUARANTINED,
        "the lab took the device out, which had drifted or failed since its last good check",
    ),
    run_result.Mark.CHARGING: (Doubt.CHARGING, "the battery was charging"),
    run_result.Mark.SHORT: (Doubt.CUT_SHORT, "the time limit came before the number of inferences asked for"),
    run_result.Mark.UNSETTLED: (Doubt.UNSETTLED, "inferences still became faster in the middle of what was timed"),
    run_result.Mark.CRASHED_AT_END: (
        Doubt.CRASHED_AT_END,
        "the process crashed after its last inference, giving memory back",
    ),
    run_result.Mark.CPU_FALLBACK: (Doubt.CPU_FALLBACK, "the CPU took nodes that another provider was asked to run"),
    run_result.Mark.UNRECORDED: (
        Doubt.CPU_FALLBACK,
        "what the provider took is not recorded of ORT format files: see the .onnx file",
    ),
    run_result.Mark.WRONG_SHAPE: (
        Doubt.WRONG_SHAPE,
        "an output does not have the shape that the model declares for it",
    ),
    run_result.Mark.REPORTED: (Doubt.REPORTED, "reported by a package, on a device that was not opened here"),
    run_result.Mark.SHARED_PROCESS: (
        Doubt.SHARED_PROCESS,
        "it ran in a process that others had used: its load, first inference and memory are not known",
    ),
    run_result.Mark.PERF_TEST: (Doubt.PERF_TEST, "onnxruntime_perf_test measured, and no outputs were compared"),
}
"""A mark of a run to the doubt that it raises and the reason."""


ADVICE: dict[Doubt, str] = {
    Doubt.DRIFT: "let the device rest before measuring, and between rounds",
    Doubt.SPREAD: "close what else runs, measure longer (min_seconds) and more rounds",
    Doubt.EXTREME: "close what else runs; judge by the median rather than the mean",
    Doubt.SHORT_SAMPLES: "interruptions weigh in below 1 ms: measure more rounds, trust only large differences",
    Doubt.FEW_ROUNDS: f"set rounds to {FEWEST_ROUNDS} or more",
    Doubt.THROTTLED: "let the device cool, measure fewer inferences at a time",
    Doubt.NOT_A_PHONE: "use them to see that it runs, never to choose: measure on a phone, for which files are made",
    Doubt.QUARANTINED: "measure on another device, or here once `ort-mobile lab release` has given it back",
    Doubt.REPORTED: "outputs were compared here; times are as good as who ran the package: docs/away.md",
    Doubt.SHARED_PROCESS: "start the app once for each turn, by its test or `run.sh`: then they are known",
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
