"""Intervals and p values: against published tables, brute force, and how often they hold the truth."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.campaign.statistics.groups import (
    RANKS_TO,
    Floats,
    beta_share,
    detectable,
    noise,
    p_value,
    rank_bound,
    rank_sums,
    ratio_interval,
    rounds_needed,
    share_bounds,
    t_quantile,
    t_tail,
)
from tests.values import present

logs = st.lists(st.integers(-1_000_000, 1_000_000).map(lambda x: x / 1e6), min_size=4, max_size=24).map(np.array)


@pytest.mark.parametrize(
    ("share", "freedom", "expected"),
    [
        (0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.995, 3, 5.84091), (0.975, 4, 2.77645), (0.995, 4, 4.60409),
        (0.9995, 4, 8.61030), (0.995, 7, 3.49948), (0.975, 9, 2.26216), (0.995, 29, 2.75639), (0.975, 120, 1.97993),
    ],
)  # fmt: skip
def test_quantiles_of_t_are_those_of_published_tables(share: float, freedom: int, expected: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(expected, rel=2e-6)
    assert t_quantile(1 - share, freedom) == pytest.approx(-expected, rel=2e-6)


@given(st.floats(0.5001, 0.99999), st.integers(1, 20_000))
@settings(max_examples=60, deadline=None)
def test_quantiles_and_tails_agree(share: float, freedom: int) -> None:
    assert t_tail(t_quantile(share, freedom), freedom) == pytest.approx(2 * (1 - share), rel=1e-7)


@given(st.integers(0, 40), st.integers(1, 40), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_binomial_sums_are_those_of_the_definition(hits: int, count: int, share: float) -> None:
    expected = sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(min(hits, count) + 1))
    if hits < count:
        assert beta_share(1 - share, count - hits, hits + 1) == pytest.approx(expected, rel=1e-9)
    assert beta_share(0.0, 2, 3) == 0
    assert beta_share(1.0, 2, 3) == 1


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(0.5, 10, (0.1871, 0.8129)), (0.9, 20, (0.6830, 0.9877)), (0.9, 100, (0.8238, 0.9510))],
)
def test_bounds_of_a_share_are_those_of_published_tables(
    share: float, count: int, expected: tuple[float, float]
) -> None:
    assert share_bounds(share, count) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("count", [1, 4, 8, 11])
def test_rank_sums_are_those_of_all_signs(count: int) -> None:
    sums = [sum(rank for rank, positive in enumerate(signs, 1) if positive)
            for signs in itertools.product((False, True), repeat=count)]  # fmt: skip
    expected = [np.mean(np.array(sums) <= s) for s in range(count * (count + 1) // 2 + 1)]
    assert rank_sums(count) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("count", "outside", "bound"),
    [(5, 0.05, None), (6, 0.05, 0), (8, 0.05, 3), (8, 0.01, 0), (10, 0.05, 8), (12, 0.01, 7), (20, 0.05, 52),
     (20, 0.01, 37), (30, 0.05, 137)],
)  # fmt: skip
def test_rank_bounds_are_those_of_published_tables(count: int, outside: float, bound: int | None) -> None:
    """The critical values of Wilcoxon's signed-rank test, two-sided."""
    assert rank_bound(count, outside) == bound


def test_a_worked_example_of_each_estimate() -> None:
    few = np.array([0.01, 0.03, 0.02, 0.05, 0.04])
    found = present(ratio_interval(few))
    reach = 2.776445 * math.sqrt(0.00025 / 5)
    assert found == pytest.approx((math.exp(0.03), math.exp(0.03 - reach), math.exp(0.03 + reach)), rel=1e-6)
    many = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 7.0])
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(many, 2))
    found = present(ratio_interval(many))
    assert found == pytest.approx([math.exp(x) for x in (np.median(means), means[3], means[-4])])
    assert found.ratio < math.exp(0.5), "one outlier moves it little"


def test_below_four_rounds_there_is_none() -> None:
    assert ratio_interval(np.zeros(3)) is None
    assert p_value(np.ones(3)) == 1
    with pytest.raises(ValueError, match="3 rounds"):
        noise(np.zeros(3))


@given(logs, st.sampled_from([0.5, 0.9, 0.95, 0.99, 1 - 0.01 / 6]))
@settings(max_examples=100, deadline=None)
def test_intervals_hold_the_ratio_and_turn_over_with_it(values: Floats, confidence: float) -> None:
    forth, back = present(ratio_interval(values, confidence)), present(ratio_interval(-values, confidence))
    assert forth.low <= forth.ratio * (1 + 1e-12)
    assert forth.ratio <= forth.high * (1 + 1e-12)
    assert (1 / back.ratio, 1 / back.high, 1 / back.low) == pytest.approx(forth, rel=1e-9)


@given(logs, st.sampled_from([0.9, 0.95, 0.99]), st.floats(-0.3, 0.3))
@settings(max_examples=200, deadline=None)
def test_p_values_are_small_exactly_where_the_interval_excludes_1(
    values: Floats, confidence: float, shift: float
) -> None:
    moved = values + shift
    found = present(ratio_interval(moved, confidence))
    excludes = not found.low <= 1 <= found.high
    p = p_value(moved)
    if abs(p - (1 - confidence)) > 1e-9:
        assert excludes == (p < 1 - confidence)


def test_where_all_rounds_agree_small_levels_can_be_reached() -> None:
    assert p_value(np.array([0.3, 0.31, 0.3, 0.29, 0.3, 0.32, 0.28, 0.3])) < 1e-6
    assert p_value(np.array([0.3, 0.31, 0.3, 0.29, 0.3, 0.32, 0.28, -0.01])) == 4 / 256


def test_many_rounds_cost_no_more_than_their_mean() -> None:
    values = np.random.default_rng(3).normal(0.1, 0.2, 20_000)
    found, at = present(ratio_interval(values)), present(ratio_interval(values[:RANKS_TO]))
    assert found.low < math.exp(0.1) < found.high
    assert at.high - at.low > 4 * (found.high - found.low)


@pytest.mark.parametrize(
    ("sd", "effect", "exact"), [(0.005, 0.02, 6), (0.005, 0.03, 5), (0.005, 0.05, 4), (0.01, 0.05, 5)]
)
def test_below_eight_rounds_those_needed_are_of_the_noncentral_distribution(
    sd: float, effect: float, exact: int
) -> None:
    """Exact values by the noncentral t at 99 % (measuring S.5); sd of one lane's round medians."""
    assert rounds_needed(math.sqrt(2) * sd, effect, 0.99) == pytest.approx(exact, abs=1)


SHOWN = 0.992
"""The confidence at which a verdict shows a difference."""


def share_found(sd: float, effect: float, rounds: int, campaigns: int = 700) -> float:
    """How often so many rounds with normal noise show a difference."""
    draw = np.random.default_rng([rounds, 7]).normal(math.log1p(effect), sd, (campaigns, rounds))
    return float(np.mean([p_value(logs) <= 1 - SHOWN for logs in draw]))


@pytest.mark.parametrize(
    ("sd", "effect"), [(0.007, 0.02), (0.014, 0.03), (0.021, 0.03), (0.028, 0.03), (0.028, 0.05), (0.042, 0.03)]
)
def test_the_rounds_needed_find_the_difference_in_95_of_100_campaigns(sd: float, effect: float) -> None:
    rounds = present(rounds_needed(sd, effect, SHOWN))
    assert share_found(sd, effect, rounds) > 0.93
    fewer = round(0.7 * rounds)
    assert fewer < 4 or share_found(sd, effect, fewer) < 0.95, "and not many more than that"
    assert detectable(sd, rounds, SHOWN) <= effect


def test_rounds_by_the_noise_of_a_pilot_find_it_in_95_of_100_too() -> None:
    draw, pilot, count = np.random.default_rng(4), 5, 250
    found = plain = 0
    for _ in range(count):
        known = noise(draw.normal(0, 0.02, pilot))
        logs = draw.normal(math.log(1.03), 0.02, 200)
        found += p_value(logs[: rounds_needed(known, 0.03, SHOWN, pilot)]) <= 1 - SHOWN
        plain += p_value(logs[: rounds_needed(known, 0.03, SHOWN)]) <= 1 - SHOWN
    assert found > 0.93 * count
    assert plain < 0.9 * count, "a pilot that happens to be quiet would name too few"


def test_what_is_drawn_goes_over_into_what_many_rounds_find() -> None:
    shares = [detectable(0.01, rounds, SHOWN) for rounds in (36, 40, 41, 46)]
    assert shares == sorted(shares, reverse=True)
    assert shares[2] == pytest.approx(shares[1], rel=0.04)


def test_too_much_noise_is_said() -> None:
    assert rounds_needed(2.0, 0.01, 0.99) is None
    assert math.isinf(detectable(0.01, 3, 0.99))
