"""Intervals of drops: known values, and in simulation as many that hold the truth as they say."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.accuracy import intervals
from pipeline.accuracy.result import DropVerdict
from tests.values import present


def likeliest_gain(lost: int, gained: int, count: int, drop: float) -> float:
    """The share of samples that are gained under which the counts are likeliest, given the drop: by trying all."""
    shares = np.linspace(max(0.0, -drop), (1 - drop) / 2, 400_001)[1:-1]
    same = count - lost - gained
    logs = lost * np.log(shares + drop) + gained * np.log(shares) + same * np.log(1 - 2 * shares - drop)
    return float(shares[logs.argmax()])


@pytest.mark.parametrize(("lost", "gained", "count"), [(1, 0, 54), (9, 3, 60), (30, 40, 200), (2, 5, 11), (7, 1, 400)])
def test_at_its_bounds_a_drop_is_just_refuted_by_the_score(lost: int, gained: int, count: int) -> None:
    for bound, z in zip(intervals.paired_interval(lost, gained, count), (1.959964, -1.959964), strict=True):
        share = likeliest_gain(lost, gained, count, bound)
        deviation = np.sqrt(count * (2 * share + bound * (1 - bound)))
        assert (lost - gained - count * bound) / deviation == pytest.approx(z, abs=2e-3)


def test_without_a_difference_the_interval_is_that_of_a_share_of_none() -> None:
    """Wilson's upper bound of 0 in n is z² / (n + z²)."""
    z_squared = 1.959964**2
    for count in (1, 10, 100, 1000):
        low, high = intervals.paired_interval(0, 0, count)
        assert (low, high) == pytest.approx(
            (-z_squared / (count + z_squared), z_squared / (count + z_squared)), abs=1e-6
        )


@pytest.mark.parametrize(
    ("lost", "gained", "p"), [(0, 0, 1), (5, 5, 1), (5, 0, 2 / 32), (8, 2, 2 * (1 + 10 + 45) / 1024), (0, 5, 2 / 32)]
)
def test_mcnemar_exactly(lost: int, gained: int, p: float) -> None:
    assert intervals.mcnemar(lost, gained) == pytest.approx(p)


def mean_drop(ours: npt.NDArray[np.float64]) -> Callable[[npt.NDArray[np.int64]], float]:
    return lambda weights: float(weights @ ours / weights.sum())


def test_bootstrap_intervals_hold_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        drops = generator.exponential(0.02, 80) - 0.01
        found = present(intervals.bootstrap_interval(mean_drop(drops), len(drops), resamples=400))
        held += found[0] <= 0.01 <= found[1]
    assert 0.90 <= held / 400 <= 0.98


def test_a_bootstrap_is_the_same_each_time_and_sure_of_nothing_that_it_never_saw() -> None:
    drops = np.random.default_rng(1).normal(0.01, 0.05, 60)
    assert intervals.bootstrap_interval(mean_drop(drops), 60) == intervals.bootstrap_interval(mean_drop(drops), 60)
    assert intervals.bootstrap_interval(mean_drop(drops[:9]), 9) is None
    assert intervals.bootstrap_interval(mean_drop(np.full(20, np.nan)), 20) is None
    equal = present(intervals.bootstrap_interval(mean_drop(np.zeros(100)), 100))
    assert equal[1] == pytest.approx(1 - 0.025 ** (1 / 100))
    wide = present(intervals.bootstrap_interval(mean_drop(np.zeros(100)), 100, span=100.0))
    assert wide[1] == pytest.approx(100 * equal[1])


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((-0.01, 0.01), DropVerdict.WITHIN),
        ((-0.02, 0.0101), DropVerdict.CANNOT_TELL),
        ((0.01, 0.02), DropVerdict.CANNOT_TELL),
        ((0.0101, 0.02), DropVerdict.OVER),
        (None, DropVerdict.CANNOT_TELL),
    ],
)
def test_verdicts(interval: intervals.DropInterval | None, verdict: DropVerdict) -> None:
    assert intervals.verdict_of(interval, 0.01) is verdict


@given(st.integers(10, 400), st.data(), st.sampled_from([0.005, 0.01, 0.05]))
def test_so_many_samples_tell_and_fewer_do_not(count: int, data: st.DataObject, max_drop: float) -> None:
    lost = data.draw(st.integers(0, 6))
    gained = data.draw(st.integers(0, 4))
    needed = intervals.paired_samples_needed(lost, gained, count, max_drop)
    if needed is None:
        assert abs((lost - gained) / count - max_drop) < 1e-3
        return
    at, before = (
        intervals.verdict_of(intervals.paired_interval(lost * n / count, gained * n / count, n), max_drop)
        for n in (needed, needed - 1)
    )
    assert at is not DropVerdict.CANNOT_TELL
    if needed > count // 2 + 1:
        assert before is DropVerdict.CANNOT_TELL


def test_samples_for_a_bootstrap_by_the_root_of_their_number() -> None:
    assert intervals.samples_needed(0.0, (-0.02, 0.02), 100, 0.01, 1.0) == 401
    assert (
        intervals.samples_needed(0.03, (0.0, 0.06), 100, 0.01, 1.0) == 227
    )  # (0.03 / 0.02)² times 100, and one for what is cut off, whatever the last digit
    assert intervals.samples_needed(0.01, (0.0, 0.02), 100, 0.01, 1.0) is None
    assert intervals.samples_needed(0.0, None, 5, 0.01, 1.0) is None


@pytest.mark.parametrize(("count", "max_drop"), [(29, 0.02), (40, 0.01), (15, 0.1)])
def test_samples_where_none_differed_are_as_many_as_keep_the_budget(count: int, max_drop: float) -> None:
    equal = present(intervals.bootstrap_interval(mean_drop(np.zeros(count)), count))
    needed = present(intervals.samples_needed(0.0, equal, count, max_drop, span=1.0))
    enough, few = (present(intervals.bootstrap_interval(mean_drop(np.zeros(n)), n)) for n in (needed, needed - 1))
    assert enough[1] <= max_drop < few[1]
