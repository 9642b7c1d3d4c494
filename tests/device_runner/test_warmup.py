"""Warm-up found in latencies: synthetic series with a known change point, noise without one, and recorded series."""

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runner.result import FEWEST, LEFT_OUT, find_warmup

Noise = dict[str, list[float]]


def noises(count: int, seed: int) -> Noise:
    """Factors around 1 of the kinds that devices show."""
    draw = random.Random(seed)
    normal = [draw.gauss(0, 0.01) for _ in range(count)]
    follows = list(accumulate(normal, lambda before, now: 0.8 * before + 0.6 * now))
    return {
        "normal": [1 + value for value in normal],
        "follows": [1 + value for value in follows],
        "interrupted": [1 + value + (draw.random() < 0.03) * draw.uniform(0.5, 3) for value in normal],
        "bimodal": [1 + value / 5 + (draw.random() < 0.3) * 0.04 for value in normal],
        "skewed": [draw.lognormvariate(0, 0.02) for _ in range(count)],
    }


KINDS = tuple(noises(1, 0))


@pytest.mark.long
@pytest.mark.parametrize("count", [20, 150, 1000, pytest.param(5000, marks=pytest.mark.nightly)])
def test_noise_alone_has_no_warmup(count: int) -> None:
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for seed in range(200):
        for kind, noise in noises(count, seed).items():
            found[kind].append(find_warmup([round(1e6 * x) for x in noise]).inferences)
    for kind, numbers in found.items():
        assert sum(map(bool, numbers)) <= 10, kind  # 5 %
        assert all(number <= count / 2 for number in numbers), kind


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "slow", "ratio"),
    [(60, 10, 1.3), (150, 30, 1.25), (1000, 200, 1.15), pytest.param(5000, 1000, 1.1, marks=pytest.mark.nightly)],
)
def test_a_known_change_is_found(count: int, slow: int, ratio: float) -> None:
    near = dict.fromkeys(KINDS, 0)
    for seed in range(100):
        for kind, noise in noises(count, seed).items():
            series = [round(1e6 * x * (ratio if at < slow else 1)) for at, x in enumerate(noise)]
            near[kind] += abs(find_warmup(series).inferences - slow) <= max(2, count // 50)
    for kind, number in near.items():
        assert number >= (70 if kind == "follows" and count < 100 else 94), kind


def test_a_ramp_is_cut_where_it_no_longer_matters() -> None:
    series = [round(1e6 * (1 + 0.5 * 0.9**at)) for at in range(200)]
    found = find_warmup(series)
    assert 25 <= found.inferences <= 60
    assert series[found.inferences] < 1.04e6
    assert found.settled


def test_a_series_that_never_settles_says_so() -> None:
    found = find_warmup([round(2e6 - 5e3 * at) for at in range(200)])
    assert found.inferences == 100
    assert not found.settled
    assert "had not settled" in found.why


def test_neither_a_faster_beginning_nor_one_interruption_is_a_warmup() -> None:
    assert find_warmup([900_000] * 30 + [1_000_000] * 70).inferences == 0
    assert find_warmup([90_000_000 if at == 9 else 1_000_000 + 1000 * (at % 7) for at in range(40)]).inferences == 0


RECORDED = [
    341, 118, 97, 96, 95, 96, 94, 95, 97, 96, 95, 94, 95, 95, 96, 94, 95, 95, 94, 96, 95, 95, 94, 95, 96, 97, 95, 94,
    95, 96, 94, 95, 95, 97, 94, 95, 96, 95, 94, 95,
]  # fmt: skip
"""Microseconds of a small model right after its first inference, on a computer at rest."""


def test_a_recorded_series_loses_its_first_inferences() -> None:
    found = find_warmup([1000 * value for value in RECORDED])
    assert found.inferences == 2
    assert found.why == "the first 2 of 40 inferences take 1.24 times as long as the later ones"


@given(st.lists(st.integers(0, 10**12), max_size=300))
def test_any_series_has_an_answer(series: list[int]) -> None:
    found = find_warmup(series)
    assert 0 <= found.inferences <= len(series) / 2
    assert found.why
    if len(series) < FEWEST:
        assert found.inferences == min(LEFT_OUT, len(series) // 2)


@settings(max_examples=50)
@given(st.integers(0, 99), st.sampled_from(KINDS), st.integers(2, 1000))
def test_the_unit_of_time_does_not_matter(seed: int, kind: str, factor: int) -> None:
    series = [round(1e6 * x * (1.2 if at < 20 else 1)) for at, x in enumerate(noises(100, seed)[kind])]
    assert find_warmup([factor * x for x in series]).inferences == find_warmup(series).inferences
