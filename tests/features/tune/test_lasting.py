"""The goal `sustained`: what runs for minutes, and which is called the fastest at the end, also on simulated phones."""

import pytest

from device_runner.spec import RunOptions
from pipeline.campaign.planned import PlannedRun, run_of
from pipeline.campaign.tuned import CandidateValues, TunedCandidate, TunedModel, TuneOutcome
from pipeline.config import Config, Goal, MeasureConfig, ModelConfig, TuneConfig
from pipeline.core.errors import ConfigError
from pipeline.features.tune import lasting
from tests.features.tune.thermal import FACTS, search_on
from tests.scripted_devices import ARTIFACT

CAMPAIGNS = 120


def config(**tune: object) -> Config:
    return Config(
        name="c", models=(ModelConfig(path="m.onnx"),), measure=MeasureConfig(sustained_seconds=300),
        tune=TuneConfig(**{"goals": Goal.SUSTAINED, **tune}),  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_time_decides_how_many_candidates_run_for_minutes_and_how_often() -> None:
    plans = {minutes: lasting.plan_of(config(minutes=minutes), 1) for minutes in (60, 90, 240)}
    assert {minutes: (plan.candidates, plan.rounds) for minutes, plan in plans.items()} == {
        60: (2, 4), 90: (3, 4), 240: (3, 8),
    }  # fmt: skip
    assert all(plan.seconds <= minutes * 60 * 0.8 for minutes, plan in plans.items())
    assert lasting.plan_of(config(goals=Goal.LATENCY), 1) == lasting.NO_PLAN


def test_too_little_time_and_other_goals_beside_it_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the time is too short.* need 107 minutes") as short:
        lasting.plan_of(config(minutes=60), 2)
    assert "give minutes = 107" in short.value.remedy
    with pytest.raises(ConfigError, match="stands alone"):
        lasting.plan_of(config(goals=(Goal.SUSTAINED, Goal.SIZE)), 1)


def planned(provider: str, threads: int) -> PlannedRun:
    return run_of("phone", ARTIFACT, RunOptions(provider=provider, intra_op_threads=threads))


def test_what_heats_less_than_the_leader_runs_for_minutes_beside_it() -> None:
    candidates = [planned("cpu", threads) for threads in (8, 6, 4, 2, 1)] + [planned("xnnpack", 2), planned("cpu", 0)]
    times = dict(enumerate((1.0, 1.1, 1.4, 1.9, 3.0, 1.8, 1.05)))
    assert lasting.last_candidates(candidates, times, 0, FACTS, 3) == (0, 2, 5)
    del times[5]
    assert lasting.last_candidates(candidates, times, 0, FACTS, 3) == (0, 2, 1)  # 0 threads are all 8
    assert lasting.last_candidates(candidates, {0: 1.0, 4: 3.0, 6: 1.05}, 0, FACTS, 3) == (0,)


def found(names: tuple[str, ...]) -> TunedModel:
    return TunedModel(
        device="phone", model="m", goals=("sustained",), outcome=TuneOutcome.DECIDED, reason="9 runs", winner=names[0],
        front=names, candidates=tuple(TunedCandidate(variant=name, run="cpu", id=name) for name in names),
    )  # fmt: skip


def rounds(*late: float) -> dict[int, CandidateValues]:
    return {number: CandidateValues(latency_ns=1e6, sustained_ns=value) for number, value in enumerate(late)}


def test_what_overtakes_the_leader_is_the_answer_and_what_may_not_have_is_not() -> None:
    shown = {"fresh": rounds(2e6, 2.1e6, 2.05e6, 2.02e6), "cool": rounds(1.5e6, 1.52e6, 1.49e6, 1.51e6)}
    answer = lasting.fastest_at_the_end(found(("fresh", "cool")), shown, 300)
    assert (answer.winner, answer.outcome) == ("cool", TuneOutcome.DECIDED)
    assert "after 300 s cool/cpu is the fastest: fresh/cpu takes 1.35" in answer.reason
    assert answer.candidates[0].dropped
    assert "slower at the end" in answer.candidates[0].dropped.text
    open_rounds = {"fresh": rounds(2e6, 1.2e6, 1.9e6, 1.6e6), "cool": rounds(1.5e6, 1.52e6, 1.49e6, 1.51e6)}
    answer = lasting.fastest_at_the_end(found(("fresh", "cool")), open_rounds, 300)
    assert (answer.winner, answer.outcome) == ("fresh", TuneOutcome.BUDGET)
    assert "cannot tell which is the fastest after 300 s" in answer.reason


@pytest.mark.parametrize("late", [(), (1e6, 1e6, 1e6)])
def test_three_rounds_tell_nothing(late: tuple[float, ...]) -> None:
    few = {"fresh": rounds(2e6, 2.01e6, 2.02e6), "cool": rounds(*late)}
    answer = lasting.fastest_at_the_end(found(("fresh", "cool")), few, 300)
    assert (answer.winner, answer.outcome) == ("fresh", TuneOutcome.BUDGET)
    assert "cannot tell" in answer.reason


def test_a_leader_that_nothing_cooler_comes_near_is_the_answer() -> None:
    answer = lasting.fastest_at_the_end(found(("fresh",)), {"fresh": rounds()}, 300)
    assert (answer.winner, answer.outcome) == ("fresh", TuneOutcome.DECIDED)
    assert "no other that heats less" in answer.reason


@pytest.mark.slow
def test_what_is_said_of_minute_5_on_phones_that_heat_up_is_right() -> None:
    """Right is what is at most 2 % slower at the end than any that ran so long. docs/numbers.md has the figures."""
    ends = [search_on(number, (60, 90, 120)[number % 3]) for number in range(CAMPAIGNS)]
    assert [end for end in ends if end.is_told and end.regret > 0.02] == []
    assert sum(end.regret <= 0.02 for end in ends) >= 0.95 * CAMPAIGNS
    assert sum(end.is_told for end in ends) >= 0.75 * CAMPAIGNS
    assert sum(end.overtaken for end in ends) >= 5
    assert max(end.time_share for end in ends) <= 1
