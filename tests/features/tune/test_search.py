"""The search finds the best of simulated tables, resumes anywhere, and ends in a stated way whatever a device does."""

import itertools
from collections.abc import Callable

import pytest

from pipeline.campaign.tuned import Dropped
from pipeline.config import TuneConfig, TuneStrategy
from pipeline.features.tune.race import Proposal, SearchStage
from pipeline.features.tune.search import ALL_OUT, REFERENCE_EVERY, Observation, Search, failures
from tests.features.tune.simulated import NOISES, SimulatedDevice, Table, campaign, ours, simulated_table

TUNE = TuneConfig()


@pytest.fixture(scope="module")
def small() -> Table:
    return simulated_table(24, 0, most=20)


@pytest.fixture(scope="module")
def middle() -> Table:
    return simulated_table(24, 1, most=120)


def run(
    world: Table,
    tune: TuneConfig,
    value: Callable[[int], float | None],
    budget_seconds: float | None = None,
) -> tuple[Proposal, list[Observation]]:
    """The end of a search on a device whose values do not vary."""
    seen: list[Observation] = []
    while True:
        proposal = Search(world.space, seen, tune, budget_seconds).propose()
        if proposal.done:
            return proposal, seen
        assert proposal.candidates
        for candidate in proposal.candidates:
            seen.append(Observation(candidate=candidate, order=len(seen), value=value(candidate), seconds=1.5))
        assert len(seen) < 5000


def true_value(world: Table) -> Callable[[int], float | None]:
    return lambda candidate: None if world.failing[candidate] else float(world.seconds[candidate])


@pytest.mark.parametrize("strategy", [TuneStrategy.RIDGE, TuneStrategy.GRID])
def test_without_noise_the_best_is_found(middle: Table, strategy: TuneStrategy) -> None:
    proposal, seen = run(middle, TuneConfig(strategy=strategy), true_value(middle))
    assert proposal.leader is not None
    assert middle.seconds[proposal.leader] <= middle.best * 1.02
    assert proposal.leader in {one.candidate for one in seen}


@pytest.mark.long
def test_a_search_that_is_interrupted_in_every_batch_ends_the_same(middle: Table) -> None:
    device = SimulatedDevice(middle, NOISES["usual"], 0)
    seen: list[Observation] = []
    while not (proposal := Search(middle.space, seen, TUNE).propose()).done:
        for candidate in proposal.candidates[: 1 + len(seen) % 3]:
            value, seconds = device.run(candidate)
            seen.append(Observation(candidate=candidate, order=len(seen), value=value, seconds=seconds))
    assert proposal.leader is not None
    assert middle.seconds[proposal.leader] <= middle.best * 1.05


def test_a_small_space_races_whole_until_it_is_decided(small: Table) -> None:
    for number in range(4):
        ended = campaign(small, NOISES["usual"], number, ours(TuneConfig()))
        assert "no candidate left can be more than 1% better" in ended.why
        assert not ended.worse


def test_the_command_searches_and_confirms_within_its_budget(middle: Table) -> None:
    """The simulation runs what the command runs; what confirming does not need is raced on with."""
    ended = campaign(middle, NOISES["high"], 2, ours(TuneConfig(minutes=3)))
    assert "the time was over before it was certain; after 4 rounds of the last candidates 2 are left" in ended.why
    assert 0.95 * 180 <= ended.seconds <= 180


@pytest.mark.parametrize("minutes", [0.3, 1, 2])
def test_time_that_is_too_short_ends_a_search_with_the_default_or_better(middle: Table, minutes: float) -> None:
    ended = campaign(middle, NOISES["high"], 2, ours(TuneConfig(minutes=minutes)))
    assert "the time was over" in ended.why
    assert not ended.worse


@pytest.mark.long
def test_the_usual_search_takes_less_than_the_grid_and_is_within_two_percent() -> None:
    world = simulated_table(24, 3)
    ended = campaign(world, NOISES["usual"], 3, ours(TuneConfig()))
    assert ended.regret <= 0.02
    assert ended.seconds <= 0.3 * ended.grid_seconds


def test_reference_runs_come_every_seventh_and_dropped_arms_say_when_and_by_how_much(middle: Table) -> None:
    proposal, seen = run(middle, TUNE, true_value(middle))
    default = middle.space.default
    at = [one.order for one in seen if one.candidate == default]
    assert max(later - one for one, later in itertools.pairwise(at)) <= REFERENCE_EVERY
    raced = [why for why in proposal.dropped.values() if "in round" in why.detail]
    assert raced
    assert all(why.above and why.above[0] > 0 for why in raced)


def test_what_failed_is_not_tried_again_nor_what_has_its_file_and_flags(middle: Table) -> None:
    space = middle.space
    family = next(members for members in space.families if len(members) > 2 and space.default not in members)
    one = Observation(candidate=family[0], order=0, value=None, reason="crashed")
    out = failures(space, [one])
    assert set(out) == set(family)
    assert "crashed" in out[family[1]][1].reason
    before = Observation(candidate=family[1], order=0, value=0.1)
    assert set(failures(space, [before, one])) == {family[0]}


def test_a_candidate_over_a_limit_is_out_alone(middle: Table) -> None:
    one = Observation(candidate=5, order=0, value=0.1, over=Dropped(reason="over 300 MB", detail="512"))
    assert {candidate: out[1] for candidate, out in failures(middle.space, [one]).items()} == {5: one.over}


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), 0.0, -1.0])
def test_when_all_fail_that_is_the_outcome(middle: Table, bad: float | None) -> None:
    proposal, _ = run(middle, TUNE, lambda _: bad)
    assert proposal.leader is None
    assert "none of 120 candidates can be chosen" in proposal.done
    assert set(proposal.dropped) == set(range(len(middle.space)))


@pytest.mark.long
def test_a_failing_default_does_not_keep_the_search(middle: Table) -> None:
    default = middle.space.default
    family = middle.space.families[middle.space.family[default]]
    proposal, _ = run(middle, TUNE, lambda c: None if c in family else true_value(middle)(c))
    assert proposal.leader is not None
    assert proposal.leader not in family


def test_when_all_that_race_fail_the_search_ends_with_what_ran_before(middle: Table) -> None:
    """As where a device's memory is used up: what ran once fails when it runs again."""
    runs: set[int] = set()

    def value(candidate: int) -> float | None:
        again = candidate in runs
        runs.add(candidate)
        return None if again and candidate != middle.space.default else true_value(middle)(candidate)

    default = middle.space.default
    proposal, _ = run(middle, TUNE, lambda c: None if runs and c == default and len(runs) > 60 else value(c))
    assert proposal.done == ALL_OUT
    assert proposal.leader is not None
    assert proposal.leader not in {c for c, why in proposal.dropped.items() if why.reason.startswith("failed")}


def test_a_device_that_is_gone_leaves_what_was_shown(middle: Table) -> None:
    proposal = Search(middle.space, [], TUNE).conclude("adb:1 is gone")
    assert (proposal.leader, proposal.done, proposal.stage) == (None, "adb:1 is gone", SearchStage.DONE)
    one = Observation(candidate=3, order=0, value=0.1)
    assert Search(middle.space, [one], TUNE).conclude("adb:1 is gone").leader == 3


def test_an_observation_of_another_space_is_refused(middle: Table) -> None:
    with pytest.raises(ValueError, match="none with number 120"):
        Search(middle.space, [Observation(candidate=120, order=0, value=1.0)], TUNE).propose()


@pytest.mark.long
def test_every_candidate_but_the_chosen_one_has_its_reason(middle: Table, small: Table) -> None:
    for world, budget_seconds in ((middle, None), (small, None), (middle, 90)):
        proposal, _ = run(world, TUNE, true_value(world), budget_seconds)
        assert set(proposal.dropped) == set(range(len(world.space))) - {proposal.leader}
