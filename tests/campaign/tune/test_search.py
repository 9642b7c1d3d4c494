"""The search finds the best of simulated tables, resumes anywhere, and ends in a stated way whatever a device does."""

import itertools
import sys
from collections.abc import Callable

import pytest

from benchmarks.simulate.searches import campaign, ours
from benchmarks.simulate.tables import NOISES, SimulatedDevice, Table, simulated_table
from pipeline.campaign.tune.observed import Observation, Proposal, SearchSettings, SearchStage, SearchStrategy, failures
from pipeline.campaign.tune.search import conclude, propose
from pipeline.core.errors import MissingError

SETTINGS = SearchSettings()


@pytest.fixture(scope="module")
def small() -> Table:
    return simulated_table(24, 0, most=20)


@pytest.fixture(scope="module")
def middle() -> Table:
    return simulated_table(24, 1, most=120)


def run(
    world: Table, settings: SearchSettings, value: Callable[[int], float | None], most: int = 5000
) -> tuple[Proposal, list[Observation]]:
    """The end of a search on a device whose values do not vary."""
    seen: list[Observation] = []
    while True:
        proposal = propose(world.space, seen, settings)
        if proposal.done:
            return proposal, seen
        assert proposal.candidates
        for candidate in proposal.candidates:
            seen.append(Observation(candidate=candidate, order=len(seen), value=value(candidate), seconds=1.5))
        assert len(seen) < most


def true_value(world: Table) -> Callable[[int], float | None]:
    return lambda candidate: None if world.failing[candidate] else float(world.seconds[candidate])


@pytest.mark.parametrize("strategy", [SearchStrategy.MODEL, SearchStrategy.GRID])
def test_without_noise_the_best_is_found(middle: Table, strategy: SearchStrategy) -> None:
    settings = SearchSettings(strategy=strategy, rounds=2)
    proposal, seen = run(middle, settings, true_value(middle))
    assert proposal.leader is not None
    assert middle.seconds[proposal.leader] <= middle.best * 1.02
    assert proposal.leader in {one.candidate for one in seen}


def test_optunas_sampler_ends_with_the_best_that_it_measured(middle: Table) -> None:
    pytest.importorskip("optuna")
    proposal, seen = run(middle, SearchSettings(strategy=SearchStrategy.OPTUNA), true_value(middle))
    ran = {one.candidate for one in seen if one.value is not None}
    assert proposal.leader in ran
    assert len(ran) < len(middle.space)
    assert middle.seconds[proposal.leader] <= 1.02 * min(middle.seconds[candidate] for candidate in ran)
    assert middle.seconds[proposal.leader] < middle.seconds[middle.space.default]


def test_the_same_observations_give_the_same_proposal_in_any_order(middle: Table) -> None:
    _, seen = run(middle, SETTINGS, true_value(middle))
    for count in (0, 1, 13, 50, 77, len(seen) - 1):
        some = seen[:count]
        assert propose(middle.space, some, SETTINGS) == propose(middle.space, some[::-1], SETTINGS)


@pytest.mark.long
def test_a_search_that_is_interrupted_in_every_batch_ends_the_same(middle: Table) -> None:
    device = SimulatedDevice(middle, NOISES["usual"], 0)
    seen: list[Observation] = []
    while not (proposal := propose(middle.space, seen, SETTINGS)).done:
        for candidate in proposal.candidates[: 1 + len(seen) % 3]:
            value, seconds = device.run(candidate)
            seen.append(Observation(candidate=candidate, order=len(seen), value=value, seconds=seconds))
    assert proposal.leader is not None
    assert middle.seconds[proposal.leader] <= middle.best * 1.05


def test_a_small_space_costs_no_more_than_measuring_it(small: Table) -> None:
    for number in range(4):
        ended = campaign(small, NOISES["usual"], number, ours(SETTINGS))
        assert ended.runs <= SETTINGS.rounds * len(small.space)
        assert not ended.worse


@pytest.mark.long
def test_the_usual_search_takes_less_than_the_grid_and_is_within_two_percent() -> None:
    world = simulated_table(24, 3)
    ended = campaign(world, NOISES["usual"], 3, ours(SETTINGS))
    assert ended.regret <= 0.02
    assert ended.seconds <= 0.3 * ended.grid_seconds


def test_reference_runs_come_every_seventh(middle: Table) -> None:
    _, seen = run(middle, SETTINGS, true_value(middle))
    default = middle.space.default
    at = [one.order for one in seen if one.candidate == default]
    assert max(later - one for one, later in itertools.pairwise(at)) <= SETTINGS.reference_every


def test_what_failed_is_not_tried_again_nor_what_has_its_file_and_flags(middle: Table) -> None:
    space = middle.space
    family = next(members for members in space.families if len(members) > 2 and space.default not in members)
    one = Observation(candidate=family[0], order=0, value=None, reason="crashed")
    out = failures(space, [one])
    assert set(out) == set(family)
    assert "crashed" in out[family[1]].reason
    before = Observation(candidate=family[1], order=0, value=0.1)
    assert set(failures(space, [before, one])) == {family[0]}


def test_a_candidate_over_a_limit_is_out_alone(middle: Table) -> None:
    one = Observation(candidate=5, order=0, value=0.1, reason="memory 512 MB, at most 300 are allowed")
    assert {candidate: out.reason for candidate, out in failures(middle.space, [one]).items()} == {5: one.reason}


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), 0.0, -1.0])
def test_when_all_fail_that_is_the_outcome(middle: Table, bad: float | None) -> None:
    proposal, _ = run(middle, SETTINGS, lambda _: bad)
    assert proposal.leader is None
    assert "none of 120 candidates can be chosen" in proposal.done
    assert set(proposal.dropped) == set(range(len(middle.space)))


@pytest.mark.long
def test_a_failing_default_does_not_keep_the_search(middle: Table) -> None:
    default = middle.space.default
    family = middle.space.families[middle.space.family[default]]
    proposal, _ = run(middle, SETTINGS, lambda c: None if c in family else true_value(middle)(c))
    assert proposal.leader is not None
    assert proposal.leader not in family


@pytest.mark.long
@pytest.mark.parametrize("budget", [0.1, 3.0, 20.0, 60.0])
def test_a_budget_that_is_too_small_ends_with_the_default_or_better(middle: Table, budget: float) -> None:
    proposal, seen = run(middle, SearchSettings(budget_seconds=budget), true_value(middle))
    assert proposal.done
    assert sum(one.seconds for one in seen) < budget + 1.5
    assert proposal.leader in {one.candidate for one in seen}
    assert middle.seconds[proposal.leader] <= middle.seconds[middle.space.default]


def test_a_device_that_is_gone_leaves_what_was_shown(middle: Table) -> None:
    proposal = conclude(middle.space, [], SETTINGS, "adb:1 is gone")
    assert (proposal.leader, proposal.done, proposal.stage) == (None, "adb:1 is gone", SearchStage.DONE)
    one = Observation(candidate=3, order=0, value=0.1)
    assert conclude(middle.space, [one], SETTINGS, "adb:1 is gone").leader == 3


def test_an_observation_of_another_space_is_refused(middle: Table) -> None:
    with pytest.raises(ValueError, match="none with number 120"):
        propose(middle.space, [Observation(candidate=120, order=0, value=1.0)], SETTINGS)


def test_every_arm_that_the_race_dropped_says_when_and_by_how_much(middle: Table) -> None:
    proposal, _ = run(middle, SETTINGS, true_value(middle))
    raced = [reason for reason in proposal.dropped.values() if "dropped in round" in reason]
    assert raced
    assert all("above the leader" in reason for reason in raced)


@pytest.mark.long
def test_every_candidate_but_the_chosen_one_has_its_reason(middle: Table, small: Table) -> None:
    for world, settings in ((middle, SETTINGS), (small, SETTINGS), (middle, SearchSettings(budget_seconds=90))):
        proposal, _ = run(world, settings, true_value(world))
        assert set(proposal.dropped) == set(range(len(world.space))) - {proposal.leader}


def test_without_optuna_its_sampler_names_the_extra(middle: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    first = Observation(candidate=middle.space.default, order=0, value=0.1)
    with pytest.raises(MissingError) as caught:
        propose(middle.space, [first], SearchSettings(strategy=SearchStrategy.OPTUNA))
    assert "ort-mobile-pipeline[optuna]" in caught.value.remedy


def test_another_seed_draws_other_candidates(middle: Table) -> None:
    first, second = (propose(middle.space, [], SearchSettings(seed=seed)).candidates for seed in (0, 1))
    assert first != second
