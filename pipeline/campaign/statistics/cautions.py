"""Where the numbers of a group doubt themselves, why, and what to do about it."""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from device_runner.result import Mark, Struct
from pipeline.campaign.statistics.groups import RunGroup, Statistics

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
