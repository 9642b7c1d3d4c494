"""Whether groups differ from a baseline, by a rule whose errors are bounded (measuring S.3). Pure functions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from device_runner.result import Struct
from pipeline.campaign.statistics.groups import (
    LEAST_ROUNDS,
    Caution,
    Interval,
    Pairs,
    RunGroup,
    Statistics,
    cautions,
    describe,
    detectable,
    noise,
    p_value,
    paired_log_ratios,
    ranks,
    ratio_interval,
    rounds_needed,
)

DEFAULT_MARGIN, DEFAULT_LEAST = 0.05, 0.01
LOOKS = (5, 8, 12, 16, 20, 30)
"""Rounds after which verdicts are given where measuring ends as soon as all are."""
LATER_LOOKS = (45, 70, 100, 150)
"""Those of campaigns that may have more rounds: noisy devices, short runs."""

DIFFERENT, SAME = 0.008, 0.05
"""How often equal runs are called different, and those that differ by the margin the same.

Under 1 %, so that 1 % holds in simulation and where noise is not what a test takes it for (measuring S.3).
"""


class Verdict(StrEnum):
    """What a comparison with the baseline says."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    NOT_SHOWN = "no difference shown"


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
        return 1 - DIFFERENT * (self.spent(self.looks[-1]) if self.looks else 1.0)


DEFAULT_RULE = DecisionRule()


class Comparison(Struct, frozen=True, kw_only=True):
    """Latency relative to the baseline's: 0.5 is twice as fast.

    `ratio` is that of the medians of a round, over the rounds that both have: the geometric mean below 8 rounds, the
    Hodges-Lehmann estimate from then on. `low` and `high` bound it with the `confidence` that decides, null below 4
    rounds: 0.9 where the verdict is "same", else at least 0.992, which is more the more is compared and the more often
    is looked, so that an interval without 1 is a difference and one with 1 is none. `p_value` is adjusted for all
    comparisons with this baseline (Holm) and for the looks taken. `least` is the difference that matters at least,
    `margin` that within which two are called the same. `detectable` is the difference that these rounds would show in
    95 of 100 cases, `rounds_needed` how many rounds show one as large as the margin (null: more than 10,000).
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


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the p value that it rests on; `settled`: more rounds are not needed.

    `confidence` is of the interval of the first `rounds` rounds that says the same.
    """

    verdict: Verdict = Verdict.NOT_SHOWN
    p_value: float = 1.0
    settled: bool = False
    confidence: float = 1 - DIFFERENT
    rounds: int | None = None


def looks_until(most_rounds: int) -> tuple[int, ...]:
    """The looks of a campaign that ends after so many rounds at the latest, where it looks the last time."""
    return (*(look for look in (*LOOKS, *LATER_LOOKS) if look < most_rounds), most_rounds)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number (Holm 1979): all below a level are wrong with that probability at most."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, worst = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[index]))
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


def decide(sets: Sequence[Pairs], rule: DecisionRule) -> list[Judgement]:
    """The decision on each of several comparisons with one baseline."""
    if not rule.looks:
        return _looked(sets, [Judgement()] * len(sets), rule, 1.0)
    decisions = [Judgement()] * len(sets)
    rounds = max((pairs.numbers[-1] + 1 for pairs in sets if pairs.numbers), default=0)
    for look in rule.looks:
        if look <= rounds:
            decisions = _looked([pairs.before(look) for pairs in sets], decisions, rule, rule.spent(look))
    return decisions


def _looked(sets: Sequence[Pairs], before: Sequence[Judgement], rule: DecisionRule, spent: float) -> list[Judgement]:
    """The decisions after one look, which has this share of the allowed errors; those that were settled before stay.

    What was called different leaves its part of the level to the others (Maurer and Bretz 2013).
    """
    tested = [index for index, pairs in enumerate(sets) if len(pairs.logs) >= LEAST_ROUNDS]
    decided = [index for index in tested if before[index].settled]
    p_decided = {index: 1.0 if before[index].verdict is Verdict.SAME else 0.0 for index in decided}
    alone = [p_decided.get(index, p_value(sets[index].logs)) for index in tested]
    decisions = list(before)
    for index, p_alone, p in zip(tested, alone, holm(alone), strict=True):
        if not before[index].settled:
            share = min(1.0, p / spent)
            weight = p / p_alone if p_alone else len(tested)  # Holm's factor; any below it would exclude 1 as well
            likely = ratio_interval(sets[index].logs, 1 - 2 * SAME * spent)
            if likely is not None:
                verdict = judge(share <= DIFFERENT, likely, rule)
                # Else measuring ends with 3 % as "the same within 5 %" in 4 to 7 % of campaigns (measuring S.3).
                half, near = rule.margin / 2, abs(likely.ratio - 1) < rule.least
                nearly_equal = near and 1 - half <= likely.low and likely.high <= 1 + half
                settled = nearly_equal if verdict is Verdict.SAME else verdict is not Verdict.NOT_SHOWN
                level = 2 * SAME * spent if verdict is Verdict.SAME else DIFFERENT * spent / weight
                decisions[index] = Judgement(verdict, share, settled, 1 - level, len(sets[index].logs))
    return decisions


def compare(group: RunGroup, baseline: RunGroup, rule: DecisionRule = DEFAULT_RULE) -> Comparison | None:
    """The group against the baseline alone; None without two rounds in common, or where times are not a phone's."""
    return compare_all([group], baseline, rule)[0]


def compare_all(
    groups: Sequence[RunGroup], baseline: RunGroup, rule: DecisionRule = DEFAULT_RULE
) -> list[Comparison | None]:
    """Each group against the baseline, where p values are adjusted for their number."""
    sets = [
        paired_log_ratios(group, baseline) if ranks(group) and ranks(baseline) else Pairs((), np.empty(0))
        for group in groups
    ]
    decisions = decide(sets, rule)
    return [
        _comparison(baseline.key, pairs, decision, rule) if len(pairs.logs) > 1 else None
        for pairs, decision in zip(sets, decisions, strict=True)
    ]


def _comparison(baseline: str, pairs: Pairs, decision: Judgement, rule: DecisionRule) -> Comparison:
    comparison = Comparison(
        baseline=baseline,
        ratio=math.exp(float(pairs.logs.mean())),
        low=None,
        high=None,
        rounds=len(pairs.logs),
        margin=rule.margin,
        verdict=decision.verdict,
        least=rule.least,
        p_value=decision.p_value,
    )
    interval = ratio_interval(pairs.logs)
    deciding = ratio_interval(pairs.logs[: decision.rounds], decision.confidence)
    if interval is None or deciding is None:
        return comparison
    sd = noise(pairs.logs)
    return msgspec.structs.replace(
        comparison,
        ratio=interval.ratio,
        low=deciding.low,
        high=deciding.high,
        detectable=detectable(sd, len(pairs.logs), rule.confidence),
        rounds_needed=rounds_needed(sd, rule.margin, rule.confidence),
        confidence=decision.confidence,
    )


def undecided(groups: Sequence[RunGroup], baseline: RunGroup, rule: DecisionRule) -> list[RunGroup]:
    """The groups whose comparison more rounds may decide."""
    sets = [paired_log_ratios(group, baseline) for group in groups]
    return [group for group, decision in zip(groups, decide(sets, rule), strict=True) if not decision.settled]


def summarize(
    groups: Sequence[RunGroup], baseline: str | None = None, rule: DecisionRule = DEFAULT_RULE
) -> dict[str, tuple[Statistics | None, Comparison | None, tuple[Caution, ...]]]:
    """What is known of each group by its key, each compared with the group of the key `baseline` (None: with none).

    The comparison is None for the baseline itself, too, and where nothing can be compared.
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
        summaries[group.key] = statistics, comparison, cautions(group, statistics, paired)
    return summaries
