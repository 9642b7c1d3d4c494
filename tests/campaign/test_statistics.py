"""Statistics: known answers, properties, and how often the verdicts are wrong on simulated phones."""

import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runner.result import Mark
from pipeline.campaign.plan import decision_rule
from pipeline.campaign.statistics.compare import (
    DEFAULT_RULE,
    LOOKS,
    Comparison,
    DecisionRule,
    Verdict,
    compare,
    compare_all,
    decide,
    holm,
    summarize,
    undecided,
)
from pipeline.campaign.statistics.groups import (
    ADVICE,
    MARKED,
    SMALLEST_SAMPLE,
    Doubt,
    PairedRatios,
    RunGroup,
    Statistics,
    cautions,
    describe,
    paired_log_ratios,
)
from pipeline.config import MeasureConfig
from tests.values import present


def group(*rounds: list[int], key: str = "a", marks: tuple[Mark, ...] = ()) -> RunGroup:
    return RunGroup(key=key, latencies_ns=dict(enumerate(map(tuple, rounds))), marks=marks * len(rounds))


def simulated(random: np.random.Generator, factor: float, shared: np.ndarray, noise: float, key: str) -> RunGroup:
    """Rounds of 20 latencies around 5 ms, times what the device does to everyone in a round, times its own luck."""
    own = np.exp(random.normal(0, noise, len(shared)))
    tails = 1 + random.gamma(0.5, 0.05, (len(shared), 20))
    times = 5e6 * factor * (shared * own)[:, None] * tails
    return group(*[[int(t) for t in row] for row in times], key=key)


def described(*rounds: list[int]) -> Statistics:
    return present(describe(group(*rounds)))


def test_known_answers() -> None:
    statistics = described([1, 2, 3], [10], [4])
    assert (statistics.samples, statistics.median_ns, statistics.mean_ns) == (5, 3.0, 4.0)
    assert statistics.sd_ns == pytest.approx(math.sqrt(12.5))
    assert (statistics.min_ns, statistics.max_ns) == (1, 10)
    assert statistics.round_medians_ns == (2.0, 10.0, 4.0)


def test_percentile_is_a_latency_that_was_measured() -> None:
    statistics = described(list(range(1000, 0, -1)))
    assert (statistics.p90_ns, statistics.p95_ns, statistics.p99_ns) == (900, 950, 990)


@pytest.mark.parametrize(("samples", "given_percentiles"), [(63, 0), (64, 1), (129, 1), (130, 2), (661, 2), (662, 3)])
def test_percentiles_only_from_enough_latencies(samples: int, given_percentiles: int) -> None:
    statistics = described(list(range(samples)))
    percentiles = [statistics.p90_ns, statistics.p95_ns, statistics.p99_ns]
    assert [value is not None for value in percentiles] == [n < given_percentiles for n in range(3)]


@pytest.mark.parametrize(("share", "samples"), SMALLEST_SAMPLE.items())
def test_smallest_samples_are_where_the_second_largest_bounds_the_percentile(share: float, samples: int) -> None:
    def missed(n: int) -> float:
        return share**n + n * share ** (n - 1) * (1 - share)

    assert missed(samples) <= 0.01 < missed(samples - 1)


@given(st.integers(1, 10**6), st.integers(2, 1000))
@settings(max_examples=30, deadline=None)
def test_a_constant_factor_is_found_exactly(base: int, factor: int) -> None:
    rounds = [[base * (n + 1)] for n in range(6)]
    comparison = present(compare(group(*[[t * factor for t in r] for r in rounds]), group(*rounds, key="b")))
    assert (comparison.ratio, comparison.low, comparison.high) == pytest.approx((factor, factor, factor))
    assert comparison.p_value == 0
    assert comparison.verdict is Verdict.SLOWER


def test_rounds_are_paired_by_number_not_by_place() -> None:
    ours = RunGroup(key="a", latencies_ns={n: (200 * 2**n,) for n in (3, 1, 2)})
    theirs = RunGroup(key="b", latencies_ns={n: (100 * 2**n,) for n in (1, 2, 4)})
    comparison = present(compare(ours, theirs))
    assert comparison.rounds == 2
    assert comparison.ratio == pytest.approx(2)


def test_a_round_that_another_campaign_cut_in_two_is_no_pair() -> None:
    """Its parts were measured at two times; other rounds after the cut are pairs as before."""
    ours = msgspec.structs.replace(group([10], [20], [30], key="a"), stretches={0: 0, 1: 4, 2: 4})
    others = msgspec.structs.replace(group([1], [2], [3], key="b"), stretches={0: 0, 1: 0, 2: 4})
    assert paired_log_ratios(ours, others).numbers == (0, 2)


def test_nothing_measured_is_no_statistics_and_no_comparison() -> None:
    quiet = group([], [], key="quiet")
    assert summarize([quiet, group([1], [1])], baseline="a")["quiet"] == (None, None, ())
    assert describe(RunGroup(key="none", latencies_ns={})) is None


@pytest.mark.parametrize("rounds", [2, 3])
def test_below_four_rounds_there_is_a_ratio_and_nothing_that_says_how_sure_it_is(rounds: int) -> None:
    found = present(compare(group(*[[5]] * rounds), group(*[[10]] * rounds, key="b")))
    assert found.ratio == pytest.approx(0.5)
    assert (found.low, found.high, found.detectable) == (None, None, None)
    assert (found.verdict, found.p_value) == (Verdict.NOT_SHOWN, 1.0)


@pytest.mark.parametrize("rule", [DEFAULT_RULE, DecisionRule(looks=(5, 8, 12))])
@pytest.mark.parametrize("rounds", [5, 12])
def test_the_interval_beside_a_verdict_is_the_one_that_decides(rule: DecisionRule, rounds: int) -> None:
    """At 95 % alone, intervals without 1 stood beside "no difference shown"."""
    random = np.random.default_rng(3)
    said = Counter[Verdict]()
    for _ in range(40):
        heat = np.ones(rounds)
        others = [simulated(random, factor, heat, 0.03, str(factor)) for factor in (0.9, 0.95, 0.98, 1.0, 1.06, 1.2)]
        for found in compare_all(others, simulated(random, 1.0, heat, 0.03, "baseline"), rule):
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            said[found.verdict] += 1
            shown = not found.low <= 1 <= found.high
            if found.verdict is Verdict.SAME:
                assert 1 - rule.margin <= found.low <= found.high <= 1 + rule.margin
            else:
                by_median = found.verdict in (Verdict.FASTER, Verdict.SLOWER) and not found.decisive
                assert shown is by_median or found.verdict is Verdict.MIXED or abs(found.ratio - 1) < rule.least
    assert set(said) == set(Verdict) - {Verdict.MIXED}


def compared(logs: list[float], rule: DecisionRule = DEFAULT_RULE) -> Comparison:
    """Of rounds with these logarithms of ratios."""
    rounds = [[round(1e9 * math.exp(x))] for x in logs]
    return present(compare(group(*rounds), group(*[[10**9]] * len(logs), key="b"), rule))


STEADY_LOGS = [0.001, -0.001, 0.002, -0.002, 0.0]


@pytest.mark.parametrize(
    ("shift", "rule", "verdict"),
    [
        (0.0, DecisionRule(), Verdict.SAME),
        (0.0, DecisionRule(margin=0.001), Verdict.NOT_SHOWN),
        (0.03, DecisionRule(), Verdict.SLOWER),
        (-0.03, DecisionRule(), Verdict.FASTER),
        (0.008, DecisionRule(), Verdict.SAME),  # surely slower, by less than what matters
        (0.008, DecisionRule(least=0.005), Verdict.SLOWER),
        (0.008, DecisionRule(margin=0.005), Verdict.NOT_SHOWN),
    ],
)
def test_verdict_rule(shift: float, rule: DecisionRule, verdict: Verdict) -> None:
    assert compared([x + shift for x in STEADY_LOGS], rule).verdict is verdict


def test_what_is_not_shown_says_what_would_be_and_with_how_many_rounds() -> None:
    found = compared([0.06, -0.05, 0.05, -0.02, 0.02])
    assert found.verdict is Verdict.NOT_SHOWN
    assert found.detectable is not None
    assert 0.1 < found.detectable < 0.2
    assert found.rounds_needed is not None
    assert 10 < found.rounds_needed < 25
    assert compared([x / 1000 for x in STEADY_LOGS]).rounds_needed == 4
    assert compared([3, -3, 2, -2, 1]).rounds_needed is None


def test_holm_against_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_one_of_many_needs_more_than_one_alone() -> None:
    logs = [0.02, 0.035, 0.025, 0.04, 0.03]
    baseline = group(*[[10**9]] * 5, key="b")
    others = [group(*[[10**9]] * 5, key=f"equal {n}") for n in range(39)]
    lone = group(*[[round(1e9 * math.exp(x))] for x in logs], key="lone")
    alone, among = present(compare(lone, baseline)), present(compare_all([*others, lone], baseline)[-1])
    assert (alone.verdict, among.verdict) == (Verdict.SLOWER, Verdict.SAME)
    assert among.p_value == pytest.approx(40 * alone.p_value)


def test_the_first_look_that_decides_counts() -> None:
    rule = DecisionRule(looks=LOOKS)
    clear, later = [0.05 + x for x in STEADY_LOGS], [0.0, 0.5, -0.4, 0.3, -0.6]
    assert compared(clear, rule).verdict is Verdict.SLOWER
    assert compared(clear[:4], rule).verdict is Verdict.NOT_SHOWN, "before the first look"
    assert compared(clear + later, rule).verdict is Verdict.SLOWER
    assert compared(later + clear, rule).verdict is Verdict.NOT_SHOWN
    assert compared(clear, rule).p_value == pytest.approx(6 * compared(clear).p_value)


def test_the_same_is_no_reason_to_stop_while_the_ratio_is_off_by_more_than_matters() -> None:
    rule = DecisionRule(margin=0.3, looks=LOOKS)
    wide = PairedRatios(numbers=tuple(range(5)), logs=np.array([0.05, 0.0, 0.07, 0.01, 0.03]))
    near = PairedRatios(numbers=tuple(range(5)), logs=np.array([0.02, -0.02, 0.01, -0.01, 0.005]))
    assert [(one.verdict, one.settled) for one in decide([wide, near], rule)] == [
        (Verdict.SAME, False), (Verdict.SAME, True),
    ]  # fmt: skip


def stalling(rounds: int, times: float, usual: int = 1000, key: str = "a") -> RunGroup:
    """Processes of 20 inferences of which three take so many times as long, with a little jitter between rounds."""
    made = [
        [usual + number % 5] * 17 + [round(usual * times * (1 + 0.02 * (number % 3)))] * 3 for number in range(rounds)
    ]
    return group(*made, key=key)


@pytest.mark.parametrize("rounds", [5, 8, 20])
def test_stalls_that_no_median_shows_are_slower(rounds: int) -> None:
    """8 threads on 2 cores: the median of one thread, and 8 times its mean."""
    found = present(compare(stalling(rounds, 60), stalling(rounds, 1, key="b")))
    assert found.verdict is Verdict.SLOWER
    assert found.ratio == pytest.approx(1)
    assert found.deciding_ratio == pytest.approx(10, rel=0.1)
    assert {tail.of.value for tail in found.tails} == {"mean", "p90"}
    back = present(compare(stalling(rounds, 1), stalling(rounds, 60, key="b")))
    assert back.verdict is Verdict.FASTER


def test_a_faster_median_with_stalls_is_mixed() -> None:
    assert present(compare(stalling(8, 60, usual=900), stalling(8, 1, key="b"))).verdict is Verdict.MIXED


def test_a_mean_that_is_apart_without_being_shown_is_not_the_same() -> None:
    """Five rounds with means 6 to 60 % larger: too few for a difference, too many for equality."""
    rounds = [[1000] * 17 + [round(1000 * (1 + 4 * extra))] * 3 for extra in (0.1, 0.9, 0.5, 0.3, 1.0)]
    found = present(compare(group(*rounds), stalling(5, 1, key="b")))
    assert found.verdict is Verdict.NOT_SHOWN
    assert not any(tail.shown for tail in found.tails)
    few = present(compare(group(*[times[-4:] for times in rounds]), group(*[[1000] * 4] * 5, key="b")))
    assert few.tails == (), "four inferences of a process have no mean besides"


def test_only_what_is_undecided_needs_more_rounds() -> None:
    random = np.random.default_rng(3)
    baseline = simulated(random, 1.0, np.ones(5), 0.01, "b")
    twice, noisy = simulated(random, 2.0, np.ones(5), 0.01, "twice"), simulated(random, 1.0, np.ones(5), 0.3, "noisy")
    assert [one.key for one in undecided([twice, noisy], baseline, DecisionRule(looks=LOOKS))] == ["noisy"]


@pytest.mark.parametrize(
    ("most", "looks"), [(30, LOOKS), (5, (5,)), (3, (3,)), (14, (5, 8, 12, 14)), (31, (*LOOKS, 31))]
)
def test_looks_end_with_the_last_round(most: int, looks: tuple[int, ...]) -> None:
    assert decision_rule(MeasureConfig(rounds="auto", most_rounds=most)).looks == looks


def test_unknown_baseline_and_repeated_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="'z'"):
        summarize([group([1])], baseline="z")
    with pytest.raises(ValueError, match="same key"):
        summarize([group([1]), group([2])])


def doubts(one: RunGroup) -> dict[Doubt, str]:
    statistics = present(describe(one))
    return {caution.code: caution.what for caution in cautions(one, statistics)}


STEADY = [5_000_000, 5_100_000, 5_200_000]


def test_a_quiet_series_raises_no_doubt() -> None:
    assert doubts(group(*[STEADY] * 5)) == {}


@pytest.mark.parametrize(
    ("rounds", "doubt", "part"),
    [
        ([[int(t * (1 + 0.03 * n)) for t in STEADY] for n in range(6)], Doubt.DRIFT, "+1"),
        ([[t, int(t * 1.4)] for t in STEADY * 2], Doubt.SPREAD, "%"),
        ([*[STEADY * 20] * 5, [9_000_000]], Doubt.EXTREME, "slowest inference is 1.8"),
        ([*[STEADY * 20] * 5, [2_000_000]], Doubt.EXTREME, "fastest inference is 0.39"),
        ([[900_000] * 3] * 5, Doubt.SHORT_SAMPLES, "900 µs"),
        ([STEADY] * 4, Doubt.FEW_ROUNDS, "4 of at least 5"),
    ],
)
def test_doubts_in_numbers(rounds: list[list[int]], doubt: Doubt, part: str) -> None:
    found = doubts(group(*rounds))
    assert set(found) == {doubt}
    assert part in found[doubt]


def test_far_extremes_are_told_in_whole_numbers() -> None:
    found = doubts(group(*[STEADY] * 5, [5_100_000_000]))
    assert found[Doubt.EXTREME] == "the slowest inference is 1000 times the median"


@pytest.mark.parametrize("mark", list(Mark))
def test_every_mark_of_a_run_raises_a_doubt_with_advice(mark: Mark) -> None:
    one = group(*[STEADY] * 5, marks=(mark,))
    statistics = present(describe(one))
    (caution,) = cautions(one, statistics)
    assert caution.code is MARKED[mark][0]
    assert "5 of 5 rounds" in caution.what
    assert caution.remedy


def test_times_that_are_not_a_phones_never_rank() -> None:
    phone = group(*[STEADY] * 5)
    other = group(*[[t // 9 for t in STEADY]] * 5, key="b", marks=(Mark.NOT_A_PHONE,))
    assert compare(other, phone) is None
    assert compare(phone, other) is None


def test_every_mark_and_every_doubt_is_provided_for() -> None:
    assert set(MARKED) == set(Mark)
    assert set(ADVICE) == set(Doubt)


def test_what_has_no_times_says_why() -> None:
    (statistics, comparison, doubts) = summarize([group([], [], key="npu", marks=(Mark.SIMULATED,))])["npu"]
    assert (statistics, comparison) == (None, None)
    assert [(row.code, row.what) for row in doubts] == [
        (Doubt.NOT_A_PHONE, "a simulator of an accelerator computed, whose times are no phone's in 2 of 2 rounds")
    ]
    assert summarize([group([], key="failed")])["failed"] == (None, None, ())
