"""What cold and sustained runs say, and p90 by MLPerf's rule: numbers from stored results. Pure functions."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import median

from device_runner.result import LatencyBin, RunResult, Status, Struct, SustainedRun
from pipeline.campaign.plan import MLPERF_RUNS, MLPERF_SECONDS
from pipeline.campaign.statistics import Comparison, Round

FRESH_SHARE, LATE_SHARE = 0.1, 0.2
"""The shares of a sustained run, at its beginning and its end, that are compared."""

LEAST_BINS = 10
"""With fewer bins nothing can be said of when latency rose."""

LEAST_RISE = 0.02
"""A device that is less than 2 % slower at the end is not said to throttle."""

RISE_LIMIT = 7.0
"""What the cumulative sum of the rise must exceed, in standard deviations of a bin's median."""


class ColdNumbers(Struct, frozen=True, kw_only=True):
    """First starts of an app: medians over rounds, each a new process; `total_ns` is load and first run together.

    `cold_rounds` counts those of which the system confirmed that the model's file was not in memory; `library_rounds`
    the same of the library's, whose loading `open_ns` is. `why` says what was wrong with the others.
    """

    rounds: int
    cold_rounds: int
    library_rounds: int
    open_ns: int
    load_ns: int
    first_run_ns: int
    total_ns: int
    totals_ns: tuple[int, ...]
    why: str = ""
    comparison: Comparison | None = None


class SustainedNumbers(Struct, frozen=True, kw_only=True):
    """Latency under load for minutes. `ratio` is late over fresh; 1.2 is a fifth slower than at the beginning.

    `throttled_after_ns` is when latency began to rise for good, None where it did not. Clocks and temperatures are of
    the same first and last parts, None where the device does not say.
    """

    length_ns: int
    inferences: int
    fresh_ns: int
    late_ns: int
    ratio: float
    throttled_after_ns: int | None = None
    fresh_mhz: int | None = None
    late_mhz: int | None = None
    fresh_celsius: float | None = None
    late_celsius: float | None = None
    curve: tuple[tuple[int, int], ...] = ()
    """Of each stretch of the run when it began, and the median of its inferences, in nanoseconds."""


class MlperfNumbers(Struct, frozen=True, kw_only=True):
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


def cold_numbers(results: Iterable[RunResult], comparison: Comparison | None = None) -> ColdNumbers | None:
    """The numbers of cold runs; None where none went well."""
    good = [result for result in results if result.status is Status.OK and result.cold]
    if not good:
        return None
    cold = [result.cold for result in good if result.cold]
    totals = tuple(result.load_ns + result.first_run_ns for result in good)
    return ColdNumbers(
        rounds=len(good),
        cold_rounds=sum(each.cold for each in cold),
        library_rounds=sum(each.library_resident_bytes == 0 for each in cold),
        open_ns=int(median(result.open_ns for result in good)),
        load_ns=int(median(result.load_ns for result in good)),
        first_run_ns=int(median(result.first_run_ns for result in good)),
        total_ns=int(median(totals)),
        totals_ns=totals,
        why="; ".join(dict.fromkeys(each.how for each in cold if not each.cold)),
        comparison=comparison,
    )


def cold_round(number: int, result: RunResult) -> Round:
    """A cold run as a round of one value, so that cold starts are compared as latencies are: by round, in pairs."""
    return Round(number=number, latencies_ns=(result.load_ns + result.first_run_ns,), marks=result.marks)


def sustained_numbers(run: SustainedRun) -> SustainedNumbers | None:
    """What a sustained run says; None without bins."""
    bins = run.bins
    if not bins:
        return None
    length = bins[-1].start_ns + bins[-1].total_ns
    first, last = length * FRESH_SHARE, length * (1 - LATE_SHARE)
    fresh, late = (
        _level([part for part in bins if part.start_ns <= first]),
        _level([part for part in bins if part.start_ns >= last] or bins[-1:]),
    )
    early = [sample for sample in run.samples if sample.at_ns <= first]
    end = [sample for sample in run.samples if sample.at_ns >= last]
    return SustainedNumbers(
        length_ns=length,
        inferences=sum(part.inferences for part in bins),
        fresh_ns=fresh,
        late_ns=late,
        ratio=late / max(fresh, 1),
        throttled_after_ns=throttled_after(bins, fresh) if late > fresh * (1 + LEAST_RISE) else None,
        fresh_mhz=_median_of(sample.mhz for sample in early),
        late_mhz=_median_of(sample.mhz for sample in end),
        fresh_celsius=_celsius(_median_of(sample.millidegrees for sample in early)),
        late_celsius=_celsius(_median_of(sample.millidegrees for sample in end)),
        curve=tuple((part.start_ns, part.median_ns) for part in bins),
    )


def _level(bins: Sequence[LatencyBin]) -> int:
    return int(median(part.median_ns for part in bins))


def _median_of(values: Iterable[int]) -> int | None:
    numbers = [value for value in values if value]
    return int(median(numbers)) if numbers else None


def _celsius(millidegrees: int | None) -> float | None:
    return None if millidegrees is None else millidegrees / 1000


def throttled_after(bins: Sequence[LatencyBin], fresh_ns: int) -> int | None:
    """When latency rose above its fresh level for good: the change point of Page's cumulative sum.

    It has risen where it is a quarter of the way to its level at the end. The noise of a bin is that between
    neighbours, which a slow rise or a step does not enlarge. None where the sum never exceeds its limit, or latency
    came back to where it was.
    """
    if len(bins) < LEAST_BINS:
        return None
    logs = [math.log(max(part.median_ns, 1) / max(fresh_ns, 1)) for part in bins]
    steps = sorted(abs(after - before) for before, after in pairwise(logs))
    scale = max(1.4826 * median(steps) / math.sqrt(2), LEAST_RISE / 4)
    risen = max(LEAST_RISE / 2, median(logs[-math.ceil(len(logs) * LATE_SHARE) :]) / 4)
    over = [(value - risen) / scale - 0.5 for value in logs]
    sums = list(accumulate(over, lambda total, value: max(0.0, total + value), initial=0.0))[1:]
    if sums[-1] <= RISE_LIMIT:
        return None
    began = max((number for number, total in enumerate(sums) if total == 0.0), default=-1) + 1
    return bins[began].start_ns


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


def early_stopping(latencies_ns: Sequence[int], share: float = 0.9, confidence: float = 0.99) -> int | None:
    """LoadGen's early stopping estimate of a percentile of one run (measuring M.1); None for too few inferences.

    The t-th highest latency, for the largest t with P(at most t of n exceed the percentile) < 1 - confidence.
    """
    count = len(latencies_ns)
    discarded, below = 0, 0.0
    while True:
        below += _binomial(count, discarded, 1 - share)
        if below >= 1 - confidence or discarded > count:
            break
        discarded += 1
    if discarded < 2:
        return None
    return sorted(latencies_ns)[count - (discarded - 1)]


def _binomial(count: int, number: int, chance: float) -> float:
    """The probability of exactly so many of `count` independent events."""
    if number > count:
        return 0.0
    choose = math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)
    return math.exp(choose + number * math.log(chance) + (count - number) * math.log1p(-chance))
