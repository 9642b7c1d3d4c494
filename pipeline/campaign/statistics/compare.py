"""Whether groups differ from a baseline, by a rule whose errors are bounded (measuring S.3). Pure functions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np

from pipeline.campaign.statistics.groups import (
    LEAST_ROUNDS,
    Caution,
    Floats,
    Interval,
    PairedRatios,
    RunGroup,
    Statistics,
    Yardstick,
    cautions,
    comparable,
    describe,
    detectable,
    noise,
    p_value,
    paired_log_ratios,
    ratio_interval,
    rounds_needed,
)

DEFAULT_MARGIN, DEFAULT_LEAST = 0.05, 0.01
LOOKS = (5, 8, 12, 16, 20, 30)
"""Rounds after which verdicts are given where measuring ends as soon as all are."""
LATER_LOOKS = (45, 70, 100, 150)
"""Those of campaigns that may have more rounds: noisy devices, short runs."""

DIFFERENT_ERROR, SAME_ERROR = 0.008, 0.05
"""How often equal runs are called different, and those that differ by the margin the same.

Under 1 %, so that 1 % holds in simulation and where noise is not what a test takes it for (measuring S.3).
"""

TAIL_ERROR = 0.002
"""How often, besides, equal runs are called different by their means or 90th percentiles: 1 % in all.

It is little, since what stalls one inference in ten is large: 8 threads on 2 cores are the same by their medians and
take 8 times as long on average.
"""


class Verdict(StrEnum):
    """What a comparison with the baseline says."""

    FASTER = "faster"
    SLOWER = "slower"
    MIXED = "mixed"
    """One of median, mean and 90th percentile is faster, another slower."""
    SAME = "same"
    NOT_SHOWN = "no difference shown"


DIFFERENT_WAYS = frozenset({Verdict.FASTER, Verdict.SLOWER})


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """When runs are called different or the same. Shares: 0.01 is 1 %.

    `least` is the difference that matters at least, `margin` that within which two are the same. With `looks` verdicts
    are given after so many rounds, the first that decides counts, and each has its part of the allowed errors: those
    are spent as rounds are run, which leaves the last look most.
    """

    margin: float = DEFAULT_MARGIN
    least: float = DEFAULT_LEAST
    looks: tuple[int, ...] = ()

    def spent(self, look: int) -> float:
        """The share of the allowed errors that a look has: what was run since the one before, of all rounds."""
        before = max((earlier for earlier in self.looks if earlier < look), default=0)
        return (look - before) / self.looks[-1]

    @property
    def confidence(self) -> float:
        """Of the interval that excludes 1 where two are called different, at the last look."""
        return 1 - DIFFERENT_ERROR * (self.spent(self.looks[-1]) if self.looks else 1.0)


DEFAULT_RULE = DecisionRule()


class TailRatio(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio of means, or of 90th percentiles, of a round that is over the margin.

    `shown` where a difference is shown, with its interval; else the 90 % interval lies outside the margin, so that two
    runs are not called the same.
    """

    of: Yardstick
    ratio: float
    low: float
    high: float
    shown: bool = False


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Latency relative to the baseline's: 0.5 is twice as fast.

    `ratio` is that of the medians of a round, over the rounds that both have: the geometric mean below 8 rounds, the
    Hodges-Lehmann estimate from then on. `low` and `high` bound it with the `confidence` that decides, null below 4
    rounds: 0.9 where the verdict is "same", else at least 0.992, which is more the more is compared and the more often
    is looked, so that an interval without 1 is a difference and one with 1 is none. `p_value` is adjusted for all
    comparisons with this baseline (Holm) and for the looks taken. `least` is the difference that matters at least,
    `margin` that within which two are called the same. `detectable` is the difference that these rounds would show in
    95 of 100 cases, `rounds_needed` how many rounds show one as large as the margin (null: more than 10,000).
    `tails` are means and 90th percentiles that differ by more than the margin: one that is shown decides where medians
    do not, and two in opposite directions are "mixed".
    """

    baseline: str
    ratio: float
    low: float | None
    high: float | None
    rounds: int
    margin: float
    verdict: Verdict
    least: float = 0.0
    p_value: float = 1.0
    detectable: float | None = None
    rounds_needed: int | None = None
    confidence: float = 0.95
    tails: tuple[TailRatio, ...] = ()

    @property
    def decisive(self) -> TailRatio | None:
        """The mean or percentile that the verdict rests on; None where medians give it."""
        by_median = self.low is None or self.high is None or not self.low <= 1 <= self.high
        if by_median or self.verdict not in DIFFERENT_WAYS:
            return None
        return next((tail for tail in self.tails if tail.shown), None)

    @property
    def deciding_ratio(self) -> float:
        """What the verdict rests on: the ratio of medians, else of `decisive`."""
        return self.decisive.ratio if self.decisive else self.ratio


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the p value that it rests on; `settled`: more rounds are not needed.

    `confidence` is of the interval of the first `rounds` rounds that says the same.
    """

    verdict: Verdict = Verdict.NOT_SHOWN
    p_value: float = 1.0
    settled: bool = False
    confidence: float = 1 - DIFFERENT_ERROR
    rounds: int | None = None
    tails: tuple[TailRatio, ...] = ()


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number (Holm 1979): all below a level are wrong with that probability at most."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = worst
    return adjusted


def judge(differs: bool, likely: Interval, rule: DecisionRule) -> Verdict:
    """The verdict on a ratio; `differs`: the test of "no difference" excludes it, with all that is compared in mind.

    Faster or slower: it differs, and the ratio is at least `least` off 1. The same: two one-sided tests at 5 % exclude
    the margin, that is `likely`, the 90 % interval, lies inside it.
    """
    if differs and abs(likely.ratio - 1) >= rule.least:
        return Verdict.FASTER if likely.ratio < 1 else Verdict.SLOWER
    inside = likely.low >= 1 - rule.margin and likely.high <= 1 + rule.margin
    return Verdict.SAME if inside else Verdict.NOT_SHOWN


def tail_ratios(
    logs: Mapping[Yardstick, Floats], level: float, *, margin: float = DEFAULT_MARGIN, spent: float = 1.0
) -> list[TailRatio]:
    """Means and percentiles that differ by more than the margin, of logarithms of the ratio in each round.

    `level` is the error that medians beside them are judged at: each of them has its part of what is allowed besides,
    and a difference is shown at that. `spent` is the share of the allowed errors that a look has, by which two runs
    are not the same. Nothing is said where rounds are too few for an interval.
    """
    shown, apart = level * TAIL_ERROR / DIFFERENT_ERROR / max(1, len(logs)), 2 * SAME_ERROR * spent
    tails = []
    for of, tail_logs in logs.items():
        sure, likely = ratio_interval(tail_logs, 1 - shown), ratio_interval(tail_logs, 1 - apart)
        if sure is None or likely is None:
            continue
        differs = not sure.low <= 1 <= sure.high and abs(likely.ratio - 1) >= margin
        if differs or likely.low > 1 + margin or likely.high < 1 - margin:
            low, high = (sure if differs else likely)[1:]
            tails.append(TailRatio(of=of, ratio=likely.ratio, low=low, high=high, shown=differs))
    return tails


def with_tails(by_medians: Verdict, tails: Sequence[TailRatio]) -> Verdict:
    """The verdict on two runs: what medians say, unless means or percentiles say more, or otherwise."""
    ways = {Verdict.FASTER if tail.ratio < 1 else Verdict.SLOWER for tail in tails if tail.shown}
    ways |= {by_medians} & DIFFERENT_WAYS
    if len(ways) > 1:
        return Verdict.MIXED
    if ways:
        return ways.pop()
    return Verdict.NOT_SHOWN if tails else by_medians


def decide(sets: Sequence[PairedRatios], rule: DecisionRule) -> list[Judgement]:
    """The decision on each of several comparisons with one baseline."""
    if not rule.looks:
        return _looked(sets, [Judgement()] * len(sets), rule, 1.0)
    decisions = [Judgement()] * len(sets)
    rounds = max((ratios.numbers[-1] + 1 for ratios in sets if ratios.numbers), default=0)
    for look in rule.looks:
        if look <= rounds:
            decisions = _looked([ratios.before(look) for ratios in sets], decisions, rule, rule.spent(look))
    return decisions


def _looked(
    sets: Sequence[PairedRatios], before: Sequence[Judgement], rule: DecisionRule, spent: float
) -> list[Judgement]:
    """The decisions after one look, which has this share of the allowed errors; those that were settled before stay.

    What was called different leaves its part of the level to the others (Maurer and Bretz 2013).
    """
    tested = [index for index, ratios in enumerate(sets) if len(ratios.logs) >= LEAST_ROUNDS]
    decided = [index for index in tested if before[index].settled]
    p_decided = {index: 1.0 if before[index].verdict is Verdict.SAME else 0.0 for index in decided}
    alone = [p_decided.get(index, p_value(sets[index].logs)) for index in tested]
    decisions = list(before)
    for index, p_alone, p in zip(tested, alone, holm(alone), strict=True):
        if not before[index].settled:
            share, logs = min(1.0, p / spent), sets[index].logs
            weight = p / p_alone if p_alone else len(tested)  # Holm's factor; any below it would exclude 1 as well
            likely = ratio_interval(logs, 1 - 2 * SAME_ERROR * spent)
            if likely is not None:
                level = DIFFERENT_ERROR * spent / len(tested)  # Bonferroni
                tails = tuple(tail_ratios(sets[index].tails, level, margin=rule.margin, spent=spent))
                verdict = with_tails(judge(share <= DIFFERENT_ERROR, likely, rule), tails)
                # Else measuring ends with 3 % as "the same within 5 %" in 4 to 7 % of campaigns (measuring S.3).
                half, near = rule.margin / 2, abs(likely.ratio - 1) < rule.least
                nearly_equal = near and 1 - half <= likely.low and likely.high <= 1 + half
                settled = nearly_equal if verdict is Verdict.SAME else verdict is not Verdict.NOT_SHOWN
                level = 2 * SAME_ERROR * spent if verdict is Verdict.SAME else DIFFERENT_ERROR * spent / weight
                decisions[index] = Judgement(verdict, share, settled, 1 - level, len(logs), tails)
    return decisions


def compare(group: RunGroup, baseline: RunGroup, rule: DecisionRule = DEFAULT_RULE) -> Comparison | None:
    """The group against the baseline alone; None without two rounds in common, or where times are not comparable."""
    return compare_all([group], baseline, rule)[0]


def compare_all(
    groups: Sequence[RunGroup], baseline: RunGroup, rule: DecisionRule = DEFAULT_RULE
) -> list[Comparison | None]:
    """Each group against the baseline, where p values are adjusted for their number."""
    sets = [
        paired_log_ratios(group, baseline)
        if comparable(group) and comparable(baseline)
        else PairedRatios(numbers=(), logs=np.empty(0))
        for group in groups
    ]
    comparisons: list[Comparison | None] = []
    for logs, decision in zip((ratios.logs for ratios in sets), decide(sets, rule), strict=True):
        if len(logs) < 2:
            comparisons.append(None)
            continue
        comparison = Comparison(
            baseline=baseline.key,
            ratio=math.exp(float(logs.mean())),
            low=None,
            high=None,
            rounds=len(logs),
            margin=rule.margin,
            verdict=decision.verdict,
            least=rule.least,
            p_value=decision.p_value,
            tails=decision.tails,
        )
        interval = ratio_interval(logs)
        deciding = ratio_interval(logs[: decision.rounds], decision.confidence)
        if interval and deciding:
            sd = noise(logs)
            comparison = msgspec.structs.replace(
                comparison,
                ratio=interval.ratio,
                low=deciding.low,
                high=deciding.high,
                detectable=detectable(sd, len(logs), rule.confidence),
                rounds_needed=rounds_needed(sd, rule.margin, rule.confidence),
                confidence=decision.confidence,
            )
        comparisons.append(comparison)
    return comparisons


def undecided(groups: Sequence[RunGroup], baseline: RunGroup, rule: DecisionRule) -> list[RunGroup]:
    """The groups whose comparison more rounds may decide."""
    sets = [paired_log_ratios(group, baseline) for group in groups]
    return [group for group, decision in zip(groups, decide(sets, rule), strict=True) if not decision.settled]


class GroupSummary(NamedTuple):
    """What is known of a group; no comparison for the baseline, and where nothing can be compared."""

    statistics: Statistics | None
    comparison: Comparison | None
    cautions: tuple[Caution, ...]


def summarize(
    groups: Sequence[RunGroup], baseline: str | None = None, rule: DecisionRule = DEFAULT_RULE
) -> dict[str, GroupSummary]:
    """What is known of each group by its key, each compared with the group of the key `baseline` (None: with none).

    Raises ValueError when no group has that key or two groups share one.
    """
    by_key = {group.key: group for group in groups}
    if len(by_key) < len(groups):
        raise ValueError("two groups have the same key")
    if baseline is not None and baseline not in by_key:
        raise ValueError(f"no group has the baseline's key {baseline!r}")
    others = [group for group in groups if baseline is not None and group.key != baseline]
    comparisons = compare_all(others, by_key[baseline], rule) if baseline is not None else []
    by_group = dict(zip((group.key for group in others), comparisons, strict=True))
    summaries = {}
    for group in groups:
        statistics, comparison = describe(group), by_group.get(group.key)
        paired = None if comparison is None else comparison.rounds
        summaries[group.key] = GroupSummary(statistics, comparison, cautions(group, statistics, paired))
    return summaries
