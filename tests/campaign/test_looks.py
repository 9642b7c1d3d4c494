"""Rounds until every comparison is decided: who goes on, when it ends, and that a resumed campaign decides alike."""

import logging
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from device_runner.result import FailureKind, RunResult, Status
from device_runner.spec import RunSpec
from pipeline.campaign.measure import CampaignPlan, measure, with_looks
from pipeline.campaign.plan import PlannedRun, decision_rule, planned_id
from pipeline.campaign.store import Store
from pipeline.config import MeasureConfig
from tests.scripted_devices import CAMPAIGN, ScriptedDevice, lanes_of, opened, plan_of

LANES = lanes_of(["one"], 4)
FACTORS = {1: (1.0, 0.0), 2: (1.5, 0.001), 3: (1.0, 0.001), 4: (1.0, 0.2)}
"""Threads, which tell lanes apart, to latency and noise: the baseline, one slower, one equal, one noisy."""


class TimedDevice(ScriptedDevice):
    """Latencies as FACTORS say, the same for the same run."""

    def run(self, spec: RunSpec) -> RunResult:
        result = super().run(spec)
        if result.status is not Status.OK:
            return result
        number = int(spec.id.rpartition("#")[2])
        factor, noise = FACTORS[spec.options.intra_op_threads]
        random = np.random.default_rng([number, spec.options.intra_op_threads])
        latency = round(5e6 * factor * math.exp(noise * random.standard_normal()))
        return msgspec.structs.replace(result, latencies_ns=(latency,) * 5)


def automatic(most: int = 12, *, profile: bool = False) -> CampaignPlan:
    measuring = MeasureConfig(rounds="auto", most_rounds=most, profile=profile)
    return replace(plan_of(LANES, 1), measure=measuring)


def measured(plan: CampaignPlan, store: Store, folder: Path, device: ScriptedDevice | None = None) -> dict[str, int]:
    """Rounds that are stored by planned run after the campaign ran or went on."""
    plan = with_looks(plan, plan.planned_runs, store)
    measure(plan, {"one": device or TimedDevice("one")}, store, folder)
    return Counter(run.planned for run in store.runs(CAMPAIGN.id) if run.result.failure is None)


def rounds_of(lanes: list[PlannedRun], *counts: int) -> dict[str, int]:
    return {planned_id(lane): count for lane, count in zip(lanes, counts, strict=True)}


def test_only_what_is_undecided_goes_on_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store, caplog.at_level(logging.WARNING):
        assert measured(automatic(), store, tmp_path) == rounds_of(LANES, 12, 5, 5, 12)
        order = [(run.planned, run.round) for run in store.runs(CAMPAIGN.id)]
    assert len(set(order)) == len(order)
    assert [record.getMessage() for record in caplog.records] == [
        "one: 1 comparisons are open after 5 rounds of at most 12",
        "one: 1 comparisons are open after 8 rounds of at most 12",
    ]


def test_a_campaign_that_goes_on_decides_what_it_would_have_decided(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    with opened(whole) as store:
        expected = measured(automatic(), store, whole)
    with opened(parts) as store:
        for ends_at in (3, 9, 11):
            starts = iter(range(ends_at))

            def interrupted(_: RunSpec, starts: object = starts) -> FailureKind | None:
                if next(starts, None) is None:  # type: ignore[call-overload] # an iterator
                    raise KeyboardInterrupt
                return None

            with pytest.raises(KeyboardInterrupt):
                measured(automatic(), store, parts, TimedDevice("one", interrupted))
        assert measured(automatic(), store, parts) == expected


def test_what_is_decided_is_profiled_too(tmp_path: Path) -> None:
    plan = automatic(most=8, profile=True)
    with opened(tmp_path) as store:
        assert measured(plan, store, tmp_path) == rounds_of(LANES, 8, 5, 5, 8)
        profiled = [run.planned for run in store.runs(CAMPAIGN.id) if run.spec.profile]
    assert planned_id(LANES[1]) in profiled, "though its comparison was decided"


@pytest.mark.parametrize(("failing", "counts"), [(1, (0, 5, 5, 5)), (4, (5, 5, 5, 0))])
def test_what_fails_keeps_nothing_open(tmp_path: Path, failing: int, counts: tuple[int, ...]) -> None:
    """Without its baseline nothing can be decided; a lane that fails is not waited for."""
    device = TimedDevice(
        "one", lambda spec: FailureKind.PROVIDER_REFUSED if spec.options.intra_op_threads == failing else None
    )
    with opened(tmp_path) as store:
        found = measured(automatic(), store, tmp_path, device)
    assert found == {name: count for name, count in rounds_of(LANES, *counts).items() if count}


def test_the_rule_of_a_config() -> None:
    assert decision_rule(MeasureConfig()).looks == ()
    assert decision_rule(MeasureConfig(rounds="auto")).looks == (5, 8, 12, 16, 20, 30)
    rule = decision_rule(MeasureConfig(rounds="auto", most_rounds=10, margin_percent=3, least_percent=0.5))
    assert (rule.looks, rule.margin, rule.least) == ((5, 8, 10), 0.03, 0.005)
