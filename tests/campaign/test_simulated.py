"""A small part of `nox -s simulations`: false differences, power and coverage where the truth is known."""

import numpy as np
import pytest

from benchmarks.noise import MODELS, NoiseModel, campaigns, yardsticks
from benchmarks.verdicts import Found, Trials, fixed, markdown, percentiles, simulated
from pipeline.campaign.statistics.groups import Yardstick

SMALL = Trials(equal=400, slower=100, looks=60, many=30, percentiles=150, plans=40)
BY_NAME = {model.name: model for model in MODELS}


@pytest.mark.parametrize("name", ["normal, 1 %", "10 % of processes +15 %", "everything at once"])
def test_equal_lanes_are_rarely_different_and_intervals_hold(name: str) -> None:
    found = Found(name=name)
    fixed(BY_NAME[name], found, SMALL)
    assert sum(found.false.values()) / len(found.false) < 0.02
    assert found.stalled[20] > 0.8
    assert found.stalled_same[20] < 0.02
    assert all(share > 0.92 for share in found.held.values())


def test_three_per_cent_is_found_and_fresh_rounds_are_honest() -> None:
    found = simulated(0, SMALL)
    assert found.slower[20] > 0.95
    assert found.slower[0] > 0.95
    assert found.rounds_used < 12
    assert found.held_again > 0.9 > found.held_by_choosing
    assert found.planned[0] < 12
    assert found.planned[2] > 0.9
    assert found.false_of_many <= 2 / SMALL.many


@pytest.mark.parametrize("name", ["normal, 2 %", "10 % of processes +15 %", "correlated inferences"])
def test_the_true_percentile_is_inside_its_interval(name: str) -> None:
    found = Found(name=name)
    percentiles(BY_NAME[name], found, SMALL)
    assert [held > 0.93 for _, held in found.percentile.values()] == [True, True]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_model_gives_campaigns_of_its_shape(model: NoiseModel) -> None:
    parts = list(campaigns(model, np.random.default_rng(1), 7, 4))
    assert sum(len(part) for part in parts) == 7
    assert all(part.shape[1:] == (4, 2, 20) and (part > 0).all() for part in parts)
    again = list(campaigns(model, np.random.default_rng(1), 7, 4))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_drift_slows_the_last_process_as_much_as_it_says() -> None:
    model = NoiseModel(name="d", processes=lambda random, shape: np.zeros(shape), drift=0.1)
    drawn = np.concatenate(list(campaigns(model, np.random.default_rng(1), 300, 6)))
    logs = yardsticks(drawn)[Yardstick.MEDIAN].mean(axis=0)
    assert logs[-1, 0] - logs[0, 0] == pytest.approx(np.log(1.1 / 1.0) * 11 / 12, abs=0.01)
    assert logs[1, 1] < logs[1, 0], "every other round goes backwards"


def test_markdown() -> None:
    assert markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
