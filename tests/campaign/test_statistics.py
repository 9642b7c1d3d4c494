"""Statistics: known answers, properties, and how often the verdicts are wrong on simulated phones."""

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runner.result import Mark
from pipeline.campaign import statistics as summary
from pipeline.campaign.statistics import Doubt, Round, RunGroup, Verdict

latencies = st.integers(1, 10**11)


def group(*rounds: list[int], key: str = "a", marks: tuple[Mark, ...] = ()) -> RunGroup:
    numbered = enumerate(rounds)
    return RunGroup(
        key=key, rounds=tuple(Round(number=n, latencies_ns=tuple(times), marks=marks) for n, times in numbered)
    )


def simulated(random: np.random.Generator, factor: float, shared: np.ndarray, noise: float, key: str) -> RunGroup:
    """Rounds of 20 latencies around 5 ms, times what the device does to everyone in a round, times its own luck."""
    own = np.exp(random.normal(0, noise, len(shared)))
    tails = 1 + random.gamma(0.5, 0.05, (len(shared), 20))
    times = 5e6 * factor * (shared * own)[:, None] * tails
    return group(*[[int(t) for t in row] for row in times], key=key)


def verdicts(factor: float, noise: float, rounds: int, margin: float, trials: int = 300) -> Counter[Verdict]:
    random = np.random.default_rng(7)
    found: Counter[Verdict] = Counter()
    for seed in range(trials):
        heat = np.linspace(1, random.uniform(1, 1.4), rounds)
        baseline = simulated(random, 1.0, heat, noise, "baseline")
        comparison = summary.compare(simulated(random, factor, heat, noise, "b"), baseline, margin, seed)
        assert comparison is not None
        found[comparison.verdict] += 1
    return found


def describe(*rounds: list[int]) -> summary.Statistics:
    statistics = summary.describe(group(*rounds))
    assert statistics is not None
    return statistics


def test_known_answers() -> None:
    statistics = describe([1, 2, 3], [10], [4])
    assert (statistics.samples, statistics.median_ns, statistics.mean_ns) == (5, 3.0, 4.0)
    assert statistics.sd_ns == pytest.approx(math.sqrt(12.5))
    assert (statistics.min_ns, statistics.max_ns) == (1, 10)
    assert statistics.round_medians_ns == (2.0, 10.0, 4.0)


def test_percentile_is_a_latency_that_was_measured() -> None:
    statistics = describe(list(range(1000, 0, -1)))
    assert (statistics.p90_ns, statistics.p95_ns, statistics.p99_ns) == (900, 950, 990)


@pytest.mark.parametrize(("samples", "given_percentiles"), [(63, 0), (64, 1), (129, 1), (130, 2), (661, 2), (662, 3)])
def test_percentiles_only_from_enough_latencies(samples: int, given_percentiles: int) -> None:
    statistics = describe(list(range(samples)))
    percentiles = [statistics.p90_ns, statistics.p95_ns, statistics.p99_ns]
    assert [value is not None for value in percentiles] == [n < given_percentiles for n in range(3)]


@pytest.mark.parametrize(("share", "samples"), summary.SMALLEST_SAMPLE.items())
def test_smallest_samples_are_where_the_second_largest_bounds_the_percentile(share: float, samples: int) -> None:
    def missed(n: int) -> float:
        return share**n + n * share ** (n - 1) * (1 - share)

    assert missed(samples) <= 0.01 < missed(samples - 1)


@given(st.lists(st.lists(latencies, min_size=1, max_size=300), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_statistics_are_ordered(rounds: list[list[int]]) -> None:
    found = describe(*rounds)
    known = [found.median_ns, found.p90_ns, found.p95_ns, found.p99_ns, found.max_ns]
    ladder = [value for value in known if value is not None]
    assert ladder == sorted(ladder)
    assert found.min_ns <= found.median_ns
    assert found.min_ns <= found.mean_ns * (1 + 1e-12)
    assert found.mean_ns <= found.max_ns * (1 + 1e-12)
    assert found.sd_ns >= 0


@given(st.lists(latencies, min_size=2, max_size=12), st.lists(latencies, min_size=2, max_size=12))
@settings(max_examples=60, deadline=None)
def test_interval_holds_the_ratio_and_turns_over_with_it(ours: list[int], theirs: list[int]) -> None:
    a, b = group(*[[t] for t in ours], key="a"), group(*[[t] for t in theirs], key="b")
    forth, back = summary.compare(a, b), summary.compare(b, a)
    assert forth is not None
    assert back is not None
    assert forth.rounds == min(len(ours), len(theirs))
    assert forth.low <= forth.ratio * (1 + 1e-9)
    assert forth.ratio <= forth.high * (1 + 1e-9)
    assert forth.ratio * back.ratio == pytest.approx(1)


@given(st.integers(1, 10**6), st.integers(2, 1000))
@settings(max_examples=30, deadline=None)
def test_a_constant_factor_is_found_exactly(base: int, factor: int) -> None:
    rounds = [[base * (n + 1)] for n in range(6)]
    comparison = summary.compare(group(*[[t * factor for t in r] for r in rounds]), group(*rounds, key="b"))
    assert comparison is not None
    assert (comparison.ratio, comparison.low, comparison.high) == pytest.approx((factor, factor, factor))
    assert comparison.verdict is Verdict.SLOWER


def test_the_same_input_gives_the_same_interval() -> None:
    random = np.random.default_rng(1)
    a, b = (simulated(random, 1.0, np.ones(7), 0.05, key) for key in "ab")
    assert summary.compare(a, b, seed=3) == summary.compare(a, b, seed=3)


@pytest.mark.parametrize("rounds", [5, 6, 10])
@pytest.mark.parametrize(("noise", "margin"), [(0.01, 0.01), (0.03, 0.02), (0.05, 0.05), (0.15, 0.05)])
def test_equal_variants_are_rarely_called_different(rounds: int, noise: float, margin: float) -> None:
    found = verdicts(1.0, noise, rounds, margin)
    assert found[Verdict.FASTER] + found[Verdict.SLOWER] < 0.05 * found.total()


@pytest.mark.parametrize(
    ("factor", "expected"), [(0.5, Verdict.FASTER), (0.85, Verdict.FASTER), (1.0, Verdict.SAME), (1.2, Verdict.SLOWER)]
)
def test_known_ratios_are_found(factor: float, expected: Verdict) -> None:
    found = verdicts(factor, 0.02, 10, 0.05, trials=150)
    assert found[expected] > 0.95 * found.total()


def test_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    random, held, trials = np.random.default_rng(11), 0, 1000
    for seed in range(trials):
        low, high = summary.bootstrap_interval(random.normal(0.3, 0.1, 8), seed)
        held += low <= 0.3 <= high
    assert 0.93 < held / trials < 0.97


@pytest.mark.parametrize(
    ("low", "high", "rounds", "verdict"),
    [
        (0.80, 0.94, 5, Verdict.FASTER),
        (0.80, 0.96, 5, Verdict.CANNOT_TELL),
        (1.06, 1.40, 5, Verdict.SLOWER),
        (1.04, 1.40, 5, Verdict.CANNOT_TELL),
        (0.95, 1.05, 5, Verdict.SAME),
        (0.90, 1.10, 5, Verdict.CANNOT_TELL),
        (0.10, 0.11, 4, Verdict.CANNOT_TELL),
    ],
)
def test_verdict_rule(low: float, high: float, rounds: int, verdict: Verdict) -> None:
    assert summary.judge(low, high, rounds, 0.05) is verdict


@pytest.mark.parametrize(("freedom", "expected"), [(5, 2.5706), (9, 2.2622), (30, 2.0423)])
def test_student_quantile_against_tables(freedom: int, expected: float) -> None:
    assert summary.student_quantile(0.975, freedom) == pytest.approx(expected, rel=2e-3)


def test_rounds_are_paired_by_number_not_by_place() -> None:
    ours = RunGroup(key="a", rounds=tuple(Round(number=n, latencies_ns=(200 * 2**n,)) for n in (3, 1, 2)))
    theirs = RunGroup(key="b", rounds=tuple(Round(number=n, latencies_ns=(100 * 2**n,)) for n in (1, 2, 4)))
    comparison = summary.compare(ours, theirs)
    assert comparison is not None
    assert comparison.rounds == 2
    assert comparison.ratio == pytest.approx(2)


def test_nothing_measured_is_no_statistics_and_no_comparison() -> None:
    quiet = group([], [], key="quiet")
    found = summary.summarize([quiet, group([1], [1])], baseline="a")
    assert found[0] == summary.Summary(key="quiet")
    assert summary.describe(RunGroup(key="none", rounds=())) is None


def test_a_group_is_not_compared_with_itself() -> None:
    first, second = summary.summarize([group([5]), group([7], key="b")], baseline="a")
    assert first.comparison is None
    assert second.comparison is None  # one round in common says nothing
    third = summary.summarize([group([5], [5]), group([7], [7], key="b")], baseline="a")[1]
    assert third.comparison is not None
    assert third.comparison.verdict is Verdict.CANNOT_TELL


def test_unknown_baseline_and_repeated_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="'z'"):
        summary.summarize([group([1])], baseline="z")
    with pytest.raises(ValueError, match="same key"):
        summary.summarize([group([1]), group([2])])


def doubts(one: RunGroup) -> dict[Doubt, str]:
    statistics = summary.describe(one)
    assert statistics is not None
    return {caution.doubt: caution.reason for caution in summary.cautions(one, statistics)}


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
    statistics = summary.describe(one)
    assert statistics is not None
    (caution,) = summary.cautions(one, statistics)
    assert caution.doubt is summary.MARKED[mark][0]
    assert "5 of 5 rounds" in caution.reason
    assert caution.advice


def test_few_rounds_in_common_are_a_doubt_too() -> None:
    ours = group(*[STEADY] * 6)
    found = summary.summarize([group(*[STEADY] * 3, key="b"), ours], baseline="b")[1]
    assert [caution.doubt for caution in found.cautions] == [Doubt.FEW_ROUNDS]


def test_times_that_are_not_a_phones_never_rank() -> None:
    phone = group(*[STEADY] * 5)
    other = group(*[[t // 9 for t in STEADY]] * 5, key="b", marks=(Mark.NOT_A_PHONE,))
    assert summary.compare(other, phone) is None
    assert summary.compare(phone, other) is None


def test_every_mark_and_every_doubt_is_provided_for() -> None:
    assert set(summary.MARKED) == set(Mark)
    assert set(summary.ADVICE) == set(Doubt)


@pytest.mark.parametrize("rounds", [2, 5, 300, 20_000])
def test_an_interval_is_that_of_one_draw_of_all_resamples_in_bounded_memory(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "RESAMPLES", 500)
    values = np.random.default_rng(3).normal(0.1, 0.2, rounds)
    drawn = np.random.default_rng(11).integers(0, rounds, (500, rounds))
    share = summary.tail(rounds)
    expected = np.quantile(values[drawn].mean(axis=1), [share, 1 - share])
    del drawn
    tracemalloc.start()
    try:
        assert summary.bootstrap_interval(values, 11) == pytest.approx(tuple(expected), rel=1e-12)
        assert tracemalloc.get_traced_memory()[1] < 40 * summary.DRAWN_AT_ONCE
    finally:
        tracemalloc.stop()
