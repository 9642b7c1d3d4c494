"""Cold starts, sustained runs and MLPerf's rule: plans, the numbers, and series of which the answer is known."""

import dataclasses
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runner.result import (
    ColdStart,
    Conditions,
    DeviceSample,
    LatencyBin,
    RailReading,
    RunResult,
    Status,
    SustainedRun,
)
from device_runner.spec import RunOptions
from pipeline.campaign.plan import in_modes, recorded
from pipeline.campaign.planned import Inputs, PlannedRun
from pipeline.campaign.specs import spec_of
from pipeline.campaign.statistics.cold import cold_numbers
from pipeline.campaign.statistics.mlperf import early_stopping, mlperf_numbers
from pipeline.campaign.statistics.sustained import rail_uses, sustained_numbers, throttled_after
from pipeline.config import MeasureConfig, MeasureMode, MeasureRule
from tests.scripted_devices import plan_of
from tests.values import present

STEADY, COLD, SUSTAINED = MeasureMode


def planned(variant: str = "v") -> PlannedRun:
    return PlannedRun(
        device="d", model="m", variant=variant, source="m", file="m.ort", sha256=variant * 64, size_bytes=1,
        options=RunOptions(),
    )  # fmt: skip


def spec_in(mode: MeasureMode, measure: MeasureConfig) -> dict[str, object]:
    (run,) = in_modes([planned()], msgspec.structs.replace(measure, mode=mode))
    spec = spec_of(run, 0, model_file="m", library=None, inputs=Inputs(dimensions={}), measure=measure)
    return msgspec.structs.asdict(spec)


def test_modes_are_runs_of_their_own() -> None:
    measure = MeasureConfig(mode=(SUSTAINED, COLD, STEADY, COLD))
    runs = in_modes([planned("a"), planned("b")], measure)
    assert [run.mode for run in runs] == [STEADY, STEADY, COLD, COLD, SUSTAINED, SUSTAINED]
    assert len({run.id for run in runs}) == 6
    assert runs[0].id == planned("a").id, "as releases without modes called it"
    baselines = [(one.mode, one.variant) for one in recorded(runs, "b") if one.baseline]
    assert baselines == [(STEADY, "b"), (COLD, "b"), (SUSTAINED, "b")]


def test_a_cold_run_ends_with_its_first_inference() -> None:
    spec = spec_in(COLD, MeasureConfig(warmup=9, min_runs=50))
    assert (spec["cold"], spec["warmup"], spec["min_runs"], spec["min_seconds"]) == (True, 0, 0, 0.0)


def test_power_and_energy_of_an_inference_come_from_readings_around_a_run() -> None:
    lasting = curve([1.0] * 300)
    numbers = present(sustained_numbers(lasting))
    readings = {"gpu": (0, 0), "cpu": (10**6, 10**6), "anew": (9, 5), "once": (1, 1)}
    before = Conditions(rails={name: RailReading(at_ms=at, microjoules=used) for name, (at, used) in readings.items()})
    readings = {"gpu": (2000, 10**6), "cpu": (10**6 + 2000, 7 * 10**6), "anew": (2009, 4)}
    after = Conditions(rails={name: RailReading(at_ms=at, microjoules=used) for name, (at, used) in readings.items()})
    result = RunResult(spec_id="x", device="d", status=Status.OK, sustained=lasting, before=before, after=after)
    uses = rail_uses(result, numbers)
    assert [(use.name, use.watts) for use in uses] == [("cpu", 3.0), ("gpu", 0.5)]
    of_inference = 1e3 * numbers.length_ns / 1e9 / numbers.inferences
    assert [use.millijoules for use in uses] == [pytest.approx(3.0 * of_inference), pytest.approx(0.5 * of_inference)]


def test_a_sustained_run_has_the_time_that_it_needs() -> None:
    spec = spec_in(SUSTAINED, MeasureConfig(sustained_seconds=600.0))
    assert (spec["sustain_seconds"], spec["timeout_seconds"], spec["cold"]) == (600.0, 660.0, False)


def test_mlperf_asks_for_more_and_never_for_less() -> None:
    spec = spec_in(STEADY, MeasureConfig(rule=MeasureRule.MLPERF))
    assert (spec["min_runs"], spec["min_seconds"], spec["max_seconds"]) == (1024, 60.0, 600.0)
    assert spec["timeout_seconds"] == 660.0
    more = spec_in(STEADY, MeasureConfig(rule=MeasureRule.MLPERF, min_runs=5000, min_seconds=600.0))
    assert (more["min_runs"], more["min_seconds"], more["max_seconds"]) == (5000, 600.0, 6000.0)
    assert spec_in(STEADY, MeasureConfig())["min_runs"] == 20


def test_sustained_load_comes_last_and_once_and_only_the_steady_state_is_profiled() -> None:
    measure = MeasureConfig(mode=(STEADY, COLD, SUSTAINED), rounds=2, profile=True)
    runs = in_modes([planned("a"), planned("b")], measure)
    plan = dataclasses.replace(plan_of(runs, 2), measure=measure)
    turns = [(run.mode, number) for run, number in plan.turns(runs)]
    assert [number for mode, number in turns if mode is COLD] == [0, 0, 1, 1]
    assert [number for mode, number in turns if mode is STEADY] == [0, 0, 1, 1, 2, 2]
    assert turns[-2:] == [(SUSTAINED, 0), (SUSTAINED, 0)]


def test_sustained_runs_have_rounds_of_their_own_in_alternating_order() -> None:
    measure = MeasureConfig(mode=SUSTAINED, rounds=1, sustained_rounds=3)
    runs = in_modes([planned("a"), planned("b")], measure)
    turns = list(dataclasses.replace(plan_of(runs, 1), measure=measure).turns(runs))
    assert [(run.variant, number) for run, number in turns] == [
        ("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2),
    ]  # fmt: skip


def cold_result(load_ns: int, *, cold: bool = True, library: int | None = 0) -> RunResult:
    start = ColdStart(cold=cold, how="x" if cold else "5 of 9 bytes stayed", library_resident_bytes=library)
    times = {"open_ns": 7, "load_ns": load_ns, "first_run_ns": 10}
    return RunResult(spec_id="x", device="d", status=Status.OK, cold=start, **times)  # type: ignore[arg-type]


def test_cold_starts_are_load_and_first_run_and_say_which_were_cold() -> None:
    failed = RunResult(spec_id="x", device="d", status=Status.FAILED)
    numbers = present(
        cold_numbers([cold_result(100), failed, cold_result(300, cold=False, library=None), cold_result(200)])
    )
    assert (numbers.rounds, numbers.cold_rounds, numbers.library_rounds) == (3, 2, 2)
    assert (numbers.load_ns, numbers.total_ns, numbers.totals_ns) == (200, 210, (110, 310, 210))
    assert numbers.why == "5 of 9 bytes stayed"
    assert cold_numbers([failed]) is None


def curve(levels: list[float], seed: int = 0, noise: float = 0.01) -> SustainedRun:
    """Bins of a second with medians around 10 ms times a level."""
    draw = random.Random(seed)
    bins = []
    for second, level in enumerate(levels):
        middle = round(1e7 * level * math.exp(draw.gauss(0, noise)))
        bins.append(
            LatencyBin(
                start_ns=second * 10**9, inferences=100, total_ns=10**9, min_ns=1, median_ns=middle, max_ns=10**9
            )
        )
    samples = [
        DeviceSample(at_ns=s * 10**9, mhz=2000 - 4 * s, millidegrees=30_000 + 100 * s) for s in range(len(levels))
    ]
    return SustainedRun(bins=tuple(bins), samples=tuple(samples))


def ramp(began: int, top: float, length: int = 300) -> list[float]:
    return [1 + (top - 1) * min(max(second - began, 0) / 60, 1) for second in range(length)]


@pytest.mark.parametrize("seed", range(20))
def test_a_device_that_throttles_is_found_when_it_does(seed: int) -> None:
    numbers = present(sustained_numbers(curve(ramp(90, 1.4), seed)))
    assert numbers.ratio == pytest.approx(1.4, rel=0.01)
    assert numbers.throttled_after_ns is not None
    assert 90e9 <= numbers.throttled_after_ns <= 125e9
    step = present(sustained_numbers(curve([1.0] * 100 + [1.2] * 200, seed)))
    assert step.throttled_after_ns is not None
    assert abs(step.throttled_after_ns - 100e9) <= 1e9


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.1])
def test_a_steady_device_does_not_throttle(noise: float) -> None:
    found = [sustained_numbers(curve([1.0] * 300, seed, noise)) for seed in range(200)]
    assert sum(one is not None and one.throttled_after_ns is not None for one in found) <= 2


def test_latency_that_comes_back_is_no_throttling() -> None:
    numbers = present(sustained_numbers(curve([1.0] * 100 + [1.5] * 40 + [1.0] * 160)))
    assert numbers.throttled_after_ns is None


def test_clocks_and_temperatures_are_of_the_same_parts() -> None:
    numbers = present(sustained_numbers(curve(ramp(90, 1.4))))
    assert (numbers.fresh_mhz, numbers.late_mhz) == (1940, 922)
    assert (numbers.fresh_celsius, numbers.late_celsius) == (31.5, 56.95)
    bare = present(sustained_numbers(SustainedRun(bins=curve([1.0]).bins, samples=(DeviceSample(at_ns=1),))))
    assert (bare.fresh_mhz, bare.late_celsius, bare.throttled_after_ns) == (None, None, None)
    assert sustained_numbers(SustainedRun(bins=())) is None


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_any_curve_has_an_answer(medians: list[int]) -> None:
    bins = tuple(
        LatencyBin(start_ns=n * 10**9, inferences=1, total_ns=m, min_ns=m, median_ns=m, max_ns=m)
        for n, m in enumerate(medians)
    )
    numbers = present(sustained_numbers(SustainedRun(bins=bins)))
    assert numbers.ratio >= 0
    began = throttled_after(bins, numbers.fresh_ns)
    assert began is None or 0 <= began < len(medians) * 10**9


LOADGEN = [(64, 1), (65, 1), (100, 3), (200, 10), (662, 48), (1024, 80), (1500, 123), (2000, 168), (4000, 355)]
"""Queries, and t as loadgen/early_stopping.cc itself computed it for p = 0.9, c = 0.99, d = 0 (measuring M.1)."""


@pytest.mark.parametrize(("queries", "discarded"), LOADGEN)
def test_early_stopping_is_loadgens(queries: int, discarded: int) -> None:
    shuffled = random.Random(queries).sample(range(queries), queries)
    assert early_stopping(shuffled) == queries - discarded


@pytest.mark.parametrize("queries", [0, 1, 43, 44, 63])
def test_too_few_queries_have_no_estimate(queries: int) -> None:
    assert early_stopping(range(queries)) is None


def test_mlperf_is_of_each_round_and_valid_when_all_ran_long_enough() -> None:
    def result(latency: int, count: int) -> RunResult:
        return RunResult(spec_id="x", device="d", status=Status.OK, latencies_ns=(latency,) * count)

    numbers = present(mlperf_numbers([result(10**8, 1024), result(2 * 10**8, 1024), result(3 * 10**8, 2000)]))
    assert (numbers.p90_ns, numbers.lowest_ns, numbers.highest_ns) == (2 * 10**8, 10**8, 3 * 10**8)
    assert (numbers.valid, numbers.rounds, numbers.queries) == (True, 3, 1024)
    short = present(mlperf_numbers([result(10**8, 1024), result(10**8, 500)]))
    assert not short.valid
    assert mlperf_numbers([result(1, 10)]) is None
