"""Campaigns on devices that fail and in processes that are killed: nothing lost or doubled; and when rounds end."""

import contextlib
import dataclasses
import logging
import math
import multiprocessing
import platform
import random
import sqlite3
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from device_runner.result import FailureKind, RunResult, Status, epoch_ms, utc_now
from device_runner.spec import RunSpec
from pipeline.campaign.measure import GIVE_UP_AFTER, CampaignPlan, measure, runs_left, with_looks
from pipeline.campaign.plan import decision_rule
from pipeline.campaign.planned import PlannedRun
from pipeline.campaign.record import RunRecord
from pipeline.campaign.store import REPEATED, Store
from pipeline.config import MeasureConfig
from tests.scripted_devices import CAMPAIGN, ScriptedDevice, check_attribution, lanes_of, opened, plan_of

NAMES = ("one", "two", "three")
ROUNDS = 3


def wanted(plan: CampaignPlan) -> set[tuple[str, int]]:
    return {(lane.id, number) for lane in plan.planned_runs for number in range(plan.measure.timed_rounds)}


def test_runs_say_where_they_were_and_from_when_until_when(tmp_path: Path) -> None:
    device = ScriptedDevice("d", seconds=0.01)
    plan = plan_of(lanes_of(["d"], 1), rounds=2)
    began = epoch_ms(utc_now())
    with opened(tmp_path) as store:
        assert measure(plan, {"d": device}, store, tmp_path) == {}
        first, second = (run.result for run in store.runs(CAMPAIGN.id))
    ended = epoch_ms(utc_now())
    with contextlib.closing(sqlite3.connect(tmp_path / "results.sqlite")) as connection:
        rows = connection.execute("SELECT host, started_at_ms, ended_at_ms, median_ns FROM runs ORDER BY id").fetchall()
    assert [row[0] for row in rows] == [first.host, second.host] == [platform.node()] * 2
    times = [ms for row in rows for ms in row[1:3]]
    assert times == sorted(times)
    assert began is not None
    assert ended is not None
    assert began <= times[0] <= times[-1] <= ended + 1  # elapsed time is another clock's than the time of day
    assert all(end - start >= 10 for _, start, end, _ in rows)
    assert [row[3] for row in rows] == [one.median_ns for one in (first, second)]


def test_a_run_that_the_way_spoils_is_tried_again(tmp_path: Path) -> None:
    failures = iter([FailureKind.LOST_DEVICE, FailureKind.GARBAGE, None, FailureKind.DEVICE_ERROR])
    plan = plan_of(lanes_of(["one"], 2), 1)
    with opened(tmp_path) as store:
        assert measure(plan, {"one": ScriptedDevice("one", lambda _: next(failures, None))}, store, tmp_path) == {}
        assert [run.result.failure for run in store.runs(CAMPAIGN.id)] == [None, None]


def test_a_run_that_was_killed_from_outside_is_done_when_the_campaign_goes_on(tmp_path: Path) -> None:
    plan = plan_of(lanes_of(["one"], 2), ROUNDS)
    killed = iter([FailureKind.OUT_OF_MEMORY])
    device = ScriptedDevice("one", lambda _: next(killed, None), journal=tmp_path / "journal")
    with opened(tmp_path) as store:
        assert measure(plan, {"one": device}, store, tmp_path) == {}
        assert len((tmp_path / "journal").read_text().splitlines()) == 1 + ROUNDS, "not again in this campaign"
        assert measure(plan, {"one": device}, store, tmp_path) == {}
        assert store.finished(CAMPAIGN.id) == wanted(plan)
        check_attribution(store)


def test_a_device_that_is_lost_is_left_alone_and_the_others_go_on(tmp_path: Path) -> None:
    plan = plan_of(lanes_of(NAMES, 2), ROUNDS)
    devices = {name: ScriptedDevice(name) for name in NAMES}
    devices["two"] = ScriptedDevice("two", lambda _: FailureKind.LOST_DEVICE, journal=tmp_path / "journal")
    with opened(tmp_path) as store:
        assert list(measure(plan, devices, store, tmp_path)) == ["two"]
        assert len((tmp_path / "journal").read_text().splitlines()) == 1 + len(plan.pauses_seconds)
        assert store.finished(CAMPAIGN.id) == {key for key in wanted(plan) if not key[0].startswith("two/")}
        assert runs_left(plan, store) == {"two": 2 * ROUNDS}
        assert measure(plan, {"two": ScriptedDevice("two")}, store, tmp_path) == {}
        assert store.finished(CAMPAIGN.id) == wanted(plan)
        check_attribution(store)


@pytest.mark.parametrize(
    ("kind", "tries", "stored"),
    [(FailureKind.NO_SPACE, GIVE_UP_AFTER, GIVE_UP_AFTER), (FailureKind.LOST_DEVICE, 3 * 3, 1)],
    ids=["full", "away, also after its quarantines"],
)
def test_a_device_that_keeps_failing_is_left_alone(tmp_path: Path, kind: FailureKind, tries: int, stored: int) -> None:
    plan = dataclasses.replace(plan_of(lanes_of(["one"], GIVE_UP_AFTER + 2), 1), quarantine_seconds=(0.0, 0.0))
    device = ScriptedDevice("one", lambda _: kind, journal=tmp_path / "journal")
    with opened(tmp_path) as store:
        left = measure(plan, {"one": device}, store, tmp_path)
        assert len(store.runs(CAMPAIGN.id)) == stored
    assert left == {"one": "as scripted"}
    assert len((tmp_path / "journal").read_text().splitlines()) == tries


def test_a_lost_device_that_comes_back_from_quarantine_finishes(tmp_path: Path) -> None:
    """Each time it answers again, it has the whole patience once more."""
    plan = dataclasses.replace(plan_of(lanes_of(NAMES, 2), ROUNDS), quarantine_seconds=(0.0, 0.0))
    tries = 1 + len(plan.pauses_seconds)
    away = iter([None, *[FailureKind.LOST_DEVICE] * (2 * tries + 1), None, *[FailureKind.LOST_DEVICE] * 2 * tries])
    devices = {name: ScriptedDevice(name) for name in NAMES}
    devices["two"] = ScriptedDevice("two", lambda _: next(away, None))
    with opened(tmp_path) as store:
        assert measure(plan, devices, store, tmp_path) == {}
        assert store.finished(CAMPAIGN.id) == wanted(plan)
        assert not [run for run in store.runs(CAMPAIGN.id) if run.result.failure]


def test_lanes_that_crash_cost_no_other_lane(tmp_path: Path) -> None:
    """Drivers that crash on many options in a row are no broken device."""
    plan = plan_of(lanes_of(["one"], GIVE_UP_AFTER + 2), ROUNDS)

    def script(spec: RunSpec) -> FailureKind | None:
        return FailureKind.CRASH if spec.options.intra_op_threads <= GIVE_UP_AFTER + 1 else None

    with opened(tmp_path) as store:
        assert measure(plan, {"one": ScriptedDevice("one", script)}, store, tmp_path) == {}
        runs = store.runs(CAMPAIGN.id)
    assert Counter(run.result.status.value for run in runs) == {"failed": GIVE_UP_AFTER + 1, "ok": ROUNDS}


FAULTS = (
    FailureKind.LOST_DEVICE, FailureKind.GARBAGE, FailureKind.DEVICE_ERROR, FailureKind.NO_SPACE, FailureKind.TIMEOUT,
    FailureKind.CRASH, FailureKind.OUT_OF_MEMORY, FailureKind.RUN_ERROR,
)  # fmt: skip


class Interrupted(BaseException):
    """What Ctrl-C is to a worker."""


def faulty(name: str, seed: int) -> ScriptedDevice:
    """A device with bursts of faults, and now and then something that ends the whole campaign."""
    chance = random.Random(f"{seed} {name}")
    burst: list[FailureKind] = []

    def script(_: RunSpec) -> FailureKind | None:
        if burst:
            return burst.pop()
        if chance.random() < 0.15:
            burst.extend([chance.choice(FAULTS)] * chance.randint(0, 6))
            return chance.choice(FAULTS)
        if chance.random() < 0.03:
            raise Interrupted
        return None

    return ScriptedDevice(name, script)


def put_off(store: Store) -> bool:
    """Whether a run is stored that a resumed campaign does again: lanes that failed for good it leaves."""
    given_up = store.failed(CAMPAIGN.id)
    runs = [run for run in store.runs(CAMPAIGN.id) if run.planned not in given_up]
    return any(run.result.failure and run.result.failure.code in REPEATED for run in runs)


def follow_schedule(folder: Path, seed: int) -> None:
    """Run a small campaign to its end through faults; check what is stored after it."""
    folder.mkdir()
    plan = plan_of(lanes_of(NAMES, 3), ROUNDS)
    devices = {name: faulty(name, seed) for name in NAMES}
    with opened(folder) as store:
        for _ in range(200):
            with contextlib.suppress(Interrupted):
                if not measure(plan, devices, store, folder) and not put_off(store):
                    break
        else:
            pytest.fail(f"the campaign of seed {seed} does not end")
        runs = store.runs(CAMPAIGN.id)
        check_attribution(store)
    assert max(Counter((run.spec.id, run.round) for run in runs).values()) == 1
    for lane in plan.planned_runs:
        own = [run for run in runs if run.planned == lane.id]
        failures = [run.result.failure.code for run in own if run.result.failure]
        final = [kind for kind in failures if kind not in REPEATED]
        assert len(final) == 1 or (len(own) == ROUNDS and not failures)


@pytest.mark.parametrize("seed", range(15))
def test_schedules_of_faults_lose_double_and_mix_up_nothing(tmp_path: Path, seed: int) -> None:
    follow_schedule(tmp_path / "campaign", seed)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("first", [0, *range(1000, 2000, 100)])
def test_a_thousand_schedules_of_faults(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 100):
        follow_schedule(tmp_path / str(seed), seed)


KILLS = 20


def campaign_in_child(folder: Path) -> None:
    """What the killed processes do: the whole of a campaign, from what is stored."""
    devices = {name: ScriptedDevice(name, seconds=0.005, journal=folder / name) for name in NAMES}
    with opened(folder) as store:
        measure(plan_of(lanes_of(NAMES, 10), 15), devices, store, folder)


def begun(folder: Path) -> int:
    return sum(len((folder / name).read_text().splitlines()) for name in NAMES if (folder / name).exists())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_kill_9_at_any_point_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """A killed process costs at most the run that each device was in."""
    context = multiprocessing.get_context("fork")
    plan, chance, kills = plan_of(lanes_of(NAMES, 10), 15), random.Random(7), 0
    for _ in range(KILLS):
        child = context.Process(target=campaign_in_child, args=(tmp_path,))
        child.start()
        until = begun(tmp_path) + chance.randint(0, 30)
        while begun(tmp_path) < until and child.is_alive():
            time.sleep(0.001)
        time.sleep(chance.random() * 0.02)
        kills += child.is_alive()
        child.kill()
        child.join()
    assert kills == KILLS
    campaign_in_child(tmp_path)
    with opened(tmp_path) as store:
        runs = store.runs(CAMPAIGN.id)
        assert Counter((run.planned, run.round) for run in runs) == Counter(wanted(plan))
        check_attribution(store)
    assert begun(tmp_path) <= len(wanted(plan)) + KILLS * len(NAMES)


class Twice:
    """Runs its first lane twice, then the one that its results point to; waits for what it has not learned."""

    def __init__(self, lanes: list[PlannedRun]) -> None:
        self.lanes = lanes
        self.learned: list[RunRecord] = []

    def due(self) -> tuple[PlannedRun, int] | None:
        number = len(self.learned)
        if number == 3:
            return None
        return self.lanes[0 if number < 2 else 1 + self.learned[0].result.latencies_ns[0] % 2], number

    def learn(self, run: RunRecord) -> None:
        self.learned.append(run)


def test_a_schedule_decides_what_a_device_runs_by_what_came_of_the_runs_before(tmp_path: Path) -> None:
    lanes = lanes_of(["one"], 3)
    schedule = Twice(lanes)
    plan = dataclasses.replace(plan_of(lanes, ROUNDS), schedules={"one": schedule})
    failures = iter([None, FailureKind.LOST_DEVICE, FailureKind.LOST_DEVICE, FailureKind.LOST_DEVICE])
    device = ScriptedDevice("one", lambda _: next(failures, None))
    with opened(tmp_path) as store:
        left = measure(plan, {"one": device}, store, tmp_path)
        assert left == {"one": "as scripted"}
        assert len(schedule.learned) == 1, "a lost device says nothing of the run"
        assert measure(plan, {"one": device}, store, tmp_path) == {}
        assert [run.round for run in schedule.learned] == [0, 1, 2]
        assert [run.planned for run in schedule.learned[:2]] == [lanes[0].id] * 2
        assert schedule.learned[2].planned != lanes[0].id
        assert all(run.result.elapsed_ns > 0 for run in store.runs(CAMPAIGN.id))
        check_attribution(store)


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
    return {lane.id: count for lane, count in zip(lanes, counts, strict=True)}


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
    assert LANES[1].id in profiled, "though its comparison was decided"


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
