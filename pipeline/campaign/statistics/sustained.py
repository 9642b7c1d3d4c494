"""Sustained load: how much slower its end is than its beginning, and from when on."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import median

import msgspec

from device_runner import result as run_result

FRESH_SHARE, LATE_SHARE = 0.1, 0.2
"""The shares of a sustained run, at its beginning and its end, that are compared."""

LEAST_BINS = 10
"""With fewer bins nothing can be said of when latency rose."""

LEAST_RISE = 0.02
"""A device that is less than 2 % slower at the end is not said to throttle."""

RISE_LIMIT = 7.0
"""What the cumulative sum of the rise must exceed, in standard deviations of a bin's median."""


START_ROOM_CELSIUS = 2.0
"""Sustained runs whose battery was warmer or colder than usual by more than this at their start are not compared."""


class RailUse(msgspec.Struct, frozen=True, kw_only=True):
    """What flowed through a power rail in a run, and the share of an inference."""

    name: str
    watts: float
    millijoules: float


class SustainedNumbers(msgspec.Struct, frozen=True, kw_only=True):
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
    runs: int = 1
    """Sustained runs in all; the numbers are of the one whose end is the middle one."""
    curve: tuple[tuple[int, int], ...] = ()
    """Of each stretch of the run when it began, and the median of its inferences, in nanoseconds."""
    rails: tuple[RailUse, ...] = ()
    """By power, the highest first."""


def sustained_numbers(run: run_result.SustainedRun) -> SustainedNumbers | None:
    """What a sustained run says; None without bins."""
    bins = run.bins
    if not bins:
        return None
    length = bins[-1].start_ns + bins[-1].total_ns
    first, last = length * FRESH_SHARE, length * (1 - LATE_SHARE)
    fresh = int(median(part.median_ns for part in bins if part.start_ns <= first))
    late = int(median(part.median_ns for part in [part for part in bins if part.start_ns >= last] or bins[-1:]))
    early = [sample for sample in run.samples if sample.at_ns <= first]
    end = [sample for sample in run.samples if sample.at_ns >= last]

    def middle(values: Iterable[int]) -> int | None:
        numbers = [value for value in values if value]
        return int(median(numbers)) if numbers else None

    celsius = (middle(sample.millidegrees for sample in early), middle(sample.millidegrees for sample in end))
    return SustainedNumbers(
        length_ns=length,
        inferences=sum(part.inferences for part in bins),
        fresh_ns=fresh,
        late_ns=late,
        ratio=late / max(fresh, 1),
        throttled_after_ns=throttled_after(bins, fresh) if late > fresh * (1 + LEAST_RISE) else None,
        fresh_mhz=middle(sample.mhz for sample in early),
        late_mhz=middle(sample.mhz for sample in end),
        fresh_celsius=None if celsius[0] is None else celsius[0] / 1000,
        late_celsius=None if celsius[1] is None else celsius[1] / 1000,
        curve=tuple((part.start_ns, part.median_ns) for part in bins),
    )


def middle_of(results: Iterable[run_result.RunResult]) -> SustainedNumbers | None:
    """The numbers of the run whose end is in the middle of several; None without any."""
    numbers = [
        msgspec.structs.replace(of_run, rails=rail_uses(result, of_run))
        for result in results
        if result.sustained and (of_run := sustained_numbers(result.sustained))
    ]
    in_order = sorted(numbers, key=lambda of_run: of_run.late_ns)
    return msgspec.structs.replace(in_order[(len(in_order) - 1) // 2], runs=len(in_order)) if in_order else None


def rail_uses(result: run_result.RunResult, numbers: SustainedNumbers) -> tuple[RailUse, ...]:
    """Mean power between the readings before and after a run, and an inference's share of it, idle power included.

    A rail that was not read twice, or whose counter began anew between, is left out.
    """
    uses = []
    for name, before in result.before.rails.items():
        after = result.after.rails.get(name, before)
        if after.at_ms > before.at_ms and after.microjoules > before.microjoules:
            watts = (after.microjoules - before.microjoules) / 1e3 / (after.at_ms - before.at_ms)
            millijoules = watts * numbers.length_ns / 1e6 / max(numbers.inferences, 1)
            uses.append(RailUse(name=name, watts=watts, millijoules=millijoules))
    return tuple(sorted(uses, key=lambda use: -use.watts))


def late_ns(result: run_result.RunResult) -> tuple[int, ...]:
    """What of a sustained run its comparison is about, as a latency."""
    numbers = sustained_numbers(result.sustained) if result.sustained else None
    return (numbers.late_ns,) if numbers else ()


def usual_start(results: Iterable[run_result.RunResult]) -> float | None:
    """The temperature at which most of several runs began; None where no device says."""
    celsius = [result.before.battery_celsius for result in results if result.before.battery_celsius is not None]
    return median(celsius) if celsius else None


def began_as_usual(result: run_result.RunResult, usual_celsius: float | None) -> bool:
    """Whether a run began as warm as others and not throttled; what is not told counts as it should be."""
    celsius = result.before.battery_celsius
    is_near = None in (celsius, usual_celsius) or abs((celsius or 0) - (usual_celsius or 0)) <= START_ROOM_CELSIUS
    return is_near and run_result.Mark.THROTTLED not in result.marks


def throttled_after(bins: Sequence[run_result.LatencyBin], fresh_ns: int) -> int | None:
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
