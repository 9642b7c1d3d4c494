"""What the confirming rounds make of searches: a winner, the default where it was not beaten, an answer a class."""

from collections.abc import Mapping

import pytest

from device_runner.device import DeviceFacts
from device_runner.result import RunResult, Status
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.plan import recorded
from pipeline.campaign.planned import PlannedRun, run_of
from pipeline.campaign.record import CampaignRecord, Host, JobRecord, RunRecord
from pipeline.campaign.tuned import TunedModel, TuneOutcome, TuneReport
from pipeline.config import Config, ModelConfig, TuneConfig
from pipeline.features.tune.answers import tune_report
from tests.scripted_devices import ARTIFACT

DEFAULT, FAST, OTHER = 0, 2, 3
"""Configurations, by their number of threads."""
JITTER = (0.0, 0.004, -0.003, 0.002, -0.004, 0.003, 0.001, -0.002)


def planned_run(device: str, threads: int) -> PlannedRun:
    return run_of(device, ARTIFACT, RunOptions(intra_op_threads=threads))


def searched(device: str, winner: int, goals: tuple[str, ...] = ("latency",)) -> TunedModel:
    names = {threads: planned_run(device, threads).id for threads in (DEFAULT, FAST, OTHER)}
    return TunedModel(
        device=device, model="m", goals=goals, outcome=TuneOutcome.DECIDED, reason="decided",
        winner=names[winner], documented=names[DEFAULT], ort_default=names[DEFAULT], front=(names[winner],),
    )  # fmt: skip


def report(
    times: Mapping[str, Mapping[int, float]],
    winners: Mapping[str, int],
    tune: TuneConfig | None = None,
    goals: tuple[str, ...] = ("latency",),
) -> TuneReport:
    """The report on devices of chips named like them; `times` are milliseconds, which vary a little by round."""
    planned: list[PlannedRun] = []
    runs: list[RunRecord] = []
    for device, by_threads in times.items():
        for number, (threads, milliseconds) in enumerate(by_threads.items()):
            run = planned_run(device, threads)
            planned.append(run)
            runs += [record(run, index, milliseconds * (1 + JITTER[(index + 3 * number) % 8])) for index in range(8)]
    job = JobRecord(
        config=Config(name="c", models=(ModelConfig(path="m"),), tune=tune or TuneConfig()), host=Host(), versions={},
        models=(), planned=tuple(recorded(planned, None)), skipped=(), failures=(), warnings=(), checks={},
        tuned=tuple(searched(device, winner, goals) for device, winner in winners.items()),
    )  # fmt: skip
    facts = {name: DeviceFacts(name=name, platform="android", soc=name, abis=("arm64-v8a",)) for name in times}
    campaign = CampaignRecord(id="c1", name="c", created_at="", document=job)
    return tune_report(campaign, runs, [ARTIFACT], facts)


def record(run: PlannedRun, number: int, milliseconds: float) -> RunRecord:
    result = RunResult(spec_id="s", device=run.device, status=Status.OK, latencies_ns=(round(milliseconds * 1e6),) * 3,
                       first_run_ns=round(milliseconds * 5e6),
                       memory_peak_bytes=20_000_000 - 1_000_000 * run.options.intra_op_threads)  # fmt: skip
    return RunRecord(
        campaign="c1", planned=run.id, round=number, model="m", variant=run.variant,
        spec=RunSpec(id="s", model="m", options=run.options), result=result,
    )  # fmt: skip


def test_a_winner_is_compared_with_both_defaults_by_its_own_rounds() -> None:
    (answer,) = report({"a": {DEFAULT: 10.0, FAST: 8.0}}, {"a": FAST}).answers
    assert answer.run == "cpu+threads=2"
    assert answer.confirmed_rounds == 8
    assert answer.values.first_run_ns == pytest.approx(40e6, rel=0.01)
    assert [gain.than for gain in answer.gains] == ["documentation", "onnxruntime"]
    gain = answer.gains[0]
    assert gain.ratio == pytest.approx(0.8, rel=0.01)
    assert gain.low is not None
    assert gain.high is not None
    assert gain.low < gain.ratio < gain.high < 1


def test_the_default_stays_where_the_winner_is_not_confirmed_to_be_better() -> None:
    (answer,) = report({"a": {DEFAULT: 10.0, FAST: 10.0}}, {"a": FAST}).answers
    assert answer.run == "cpu"
    assert answer.gains == ()
    assert "basic-fixed/cpu+threads=2 was not confirmed to be better than the default" in answer.search.reason


def test_the_front_has_the_default_that_stays_in_the_winner_s_place() -> None:
    """The default is the answer, which no front of the search has, and is beaten by chance in a goal beside latency."""
    job = {"a": {DEFAULT: 10.0, FAST: 10.0}}
    (answer,) = report(job, {"a": FAST}, goals=("latency", "memory")).answers
    assert answer.run == "cpu"
    assert "cpu" in [point.run for point in answer.front]


def test_a_winner_that_breaks_a_constraint_when_confirmed_is_none() -> None:
    (answer,) = report({"a": {DEFAULT: 10.0, FAST: 8.0}}, {"a": FAST}, TuneConfig(max_latency_ms=7.0)).answers
    assert answer.variant == ""
    assert answer.search.outcome is TuneOutcome.NONE_POSSIBLE


def test_a_winner_whose_rounds_are_missing_is_none() -> None:
    (answer,) = report({"a": {DEFAULT: 10.0}}, {"a": FAST}).answers
    assert (answer.variant, answer.search.winner) == ("", "")
    assert answer.search.outcome is TuneOutcome.LOST


def test_classes_share_one_configuration_below_the_share_and_not_above() -> None:
    times = {
        "a": {DEFAULT: 10.0, FAST: 8.0, OTHER: 8.1},
        "b": {DEFAULT: 10.0, FAST: 9.0, OTHER: 7.0},
    }
    found = report(times, {"a": FAST, "b": OTHER}, TuneConfig(share_percent=2))
    (choice,) = found.choices
    assert choice.run == "cpu+threads=3"
    assert {one.chip for one in choice.classes} == {"a", "b"}
    assert choice.cost == pytest.approx(0.0125, abs=0.005)
    costs = {(one.device, one.winner_of): one.ratio for one in found.costs}
    assert costs["a", "b"] == pytest.approx(8.1 / 8.0, rel=0.005)
    assert costs["b", "a"] == pytest.approx(9.0 / 7.0, rel=0.005)
    apart = report(times, {"a": FAST, "b": OTHER}, TuneConfig(share_percent=1))
    assert {one.run: [each.chip for each in one.classes] for one in apart.choices} == {
        "cpu+threads=2": ["a"], "cpu+threads=3": ["b"]
    }  # fmt: skip
