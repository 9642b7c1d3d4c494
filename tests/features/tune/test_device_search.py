"""Searches on devices whose times are known: what they find, keep, and say when they cannot."""

import dataclasses
import itertools
import threading
import zlib
from pathlib import Path

import msgspec
import pytest

from device_runner.result import FailureKind, RunResult
from device_runner.spec import RunOptions, RunSpec
from pipeline.campaign.measure import measure
from pipeline.campaign.planned import PlannedRun, run_of
from pipeline.campaign.store import open_store
from pipeline.campaign.tuned import CandidateValues, Dropped, TunedClass, TunedModel, TuneOutcome
from pipeline.config import Goal, TuneConfig
from pipeline.features.tune.answers import cover
from pipeline.features.tune.job import goals_on
from pipeline.features.tune.model_search import DeviceSearch, ModelSearch, found_by
from pipeline.features.tune.search import Observation
from pipeline.features.tune.space import Space, beats, broken_limit, medians, nondominated, space_of
from tests.scripted_devices import ARTIFACT, CAMPAIGN, ScriptedDevice, plan_of

BEST = RunOptions(intra_op_threads=4, cpu_arena=False)


class TimedDevice(ScriptedDevice):
    """Its latency follows from the options alone; each run counts as one second."""

    def run(self, spec: RunSpec) -> RunResult:
        result = super().run(spec)
        if result.failure:
            return result
        options = spec.options
        microseconds = 1000 + 100 * abs(options.intra_op_threads - BEST.intra_op_threads) + 50 * options.cpu_arena
        noise = zlib.crc32(f"{self.name} {spec.id}".encode()) % 7
        latencies = tuple(1000 * microseconds + 100 * (noise + n) for n in range(20))
        memory = 1_000_000 * (30 if options.cpu_arena else 20)
        return msgspec.structs.replace(
            result, latencies_ns=latencies, memory_peak_bytes=memory, memory_private_bytes=memory // 2
        )


def space(device: str = "one") -> Space:
    planned = [
        run_of(device, ARTIFACT, RunOptions(intra_op_threads=threads, cpu_arena=arena))
        for threads, arena in itertools.product(range(9), (True, False))
    ]
    return space_of(planned)


def search(device: str = "one", goals: tuple[Goal, ...] = (Goal.LATENCY,), **tune: float) -> ModelSearch:
    return ModelSearch(space=space(device), tune=TuneConfig(**tune), goals=goals)  # type: ignore[arg-type]


def run_search(folder: Path, one: ModelSearch, device: ScriptedDevice, seconds: float = 1e6) -> str:
    """The search after its device had its way, and why that was left; read back from the store first."""
    schedule = DeviceSearch({"m": one}, seconds)
    plan = dataclasses.replace(plan_of(list(one.space.candidates), 1), schedules={device.name: schedule})
    with open_store(f"sqlite:///{folder / 'results.sqlite'}") as store:
        store.start(CAMPAIGN)
        schedule.replay(store.runs(CAMPAIGN.id))
        left = measure(plan, {device.name: device}, store, folder)
    return left.get(device.name, "")


def searched(folder: Path, one: ModelSearch, device: TimedDevice, seconds: float = 1e6) -> TunedModel:
    """What a search found that had so much time."""
    return found_by(one, "one", "m", run_search(folder, one, device, seconds=seconds))


def stored(folder: Path) -> list[tuple[str, int]]:
    with open_store(f"sqlite:///{folder / 'results.sqlite'}") as store:
        return [(run.planned, run.round) for run in store.runs(CAMPAIGN.id)]


def test_it_finds_the_best_and_says_of_every_candidate_why_it_is_not(tmp_path: Path) -> None:
    one = search()
    found = searched(tmp_path, one, TimedDevice("one"))
    assert found.outcome is TuneOutcome.DECIDED
    winner = next(each for each in found.candidates if each.id == found.winner)
    assert winner.run == "cpu+threads=4+memory_arena=off"
    assert winner.dropped is None
    assert all(each.dropped for each in found.candidates if each is not winner)
    assert winner.values.latency_ns == pytest.approx(1e6, rel=0.01)
    assert found.documented == one.space.candidates[one.space.default].id
    assert found.processes == len(stored(tmp_path)) == sum(each.processes for each in found.candidates)


def test_a_search_that_was_killed_goes_on_with_what_is_stored(tmp_path: Path) -> None:
    """The same winner as without the interruption, and no run is done twice."""
    whole, half = tmp_path / "whole", tmp_path / "half"
    whole.mkdir()
    half.mkdir()
    straight = search()
    run_search(whole, straight, TimedDevice("one"))

    counted = itertools.count()
    stop = RuntimeError("killed")

    class Killed(TimedDevice):
        def run(self, spec: RunSpec) -> RunResult:
            if next(counted) == 23:
                raise stop
            return super().run(spec)

    with pytest.raises(RuntimeError, match="killed"):
        run_search(half, search(), Killed("one"))
    assert len(stored(half)) == 23
    again = search()
    run_search(half, again, TimedDevice("one"))
    assert stored(half)[:23] == stored(whole)[:23]
    assert [number for _, number in stored(half)] == list(range(len(stored(half)))), "nothing lost, nothing twice"
    assert found_by(again, "one", "m").winner == found_by(straight, "one", "m").winner


def test_a_device_that_vanishes_has_no_winner_and_loses_nothing(tmp_path: Path) -> None:
    counted = itertools.count()
    device = TimedDevice("one", lambda _: FailureKind.LOST_DEVICE if next(counted) >= 30 else None)
    one = search()
    left = run_search(tmp_path, one, device)
    found = found_by(one, "one", "m", left)
    assert (found.outcome, found.winner) == (TuneOutcome.LOST, "")
    assert "30 runs" in found.reason
    assert "--resume" in found.reason
    back = search()
    left = run_search(tmp_path, back, TimedDevice("one"))
    assert not left
    assert found_by(back, "one", "m").winner


def test_where_every_candidate_fails_that_is_said_and_nothing_is_chosen(tmp_path: Path) -> None:
    found = searched(tmp_path, search(), TimedDevice("one", lambda _: FailureKind.MODEL_LOAD))
    assert (found.outcome, found.winner) == (TuneOutcome.ALL_FAILED, "")
    assert "as scripted" in found.reason
    assert len(stored(tmp_path)) == 1, "what failed with the same file and provider is not tried again"


def test_one_that_fails_costs_no_other(tmp_path: Path) -> None:
    one = search()
    run_search(
        tmp_path, one, TimedDevice("one", lambda s: FailureKind.CRASH if s.options.intra_op_threads == 3 else None)
    )
    found = found_by(one, "one", "m")
    assert found.outcome is TuneOutcome.DECIDED
    broken = [each for each in found.candidates if "threads=3" in each.run]
    assert all(each.dropped and each.dropped.reason == "failed: as scripted" for each in broken)


def test_a_budget_too_small_to_compare_anything_is_said(tmp_path: Path) -> None:
    found = searched(tmp_path, search(), TimedDevice("one", seconds=0.05), seconds=0.06)
    assert (found.outcome, found.winner) == (TuneOutcome.TOO_SMALL, "")
    assert "give at least" in found.reason


def test_a_budget_ends_a_search_with_the_best_so_far(tmp_path: Path) -> None:
    found = searched(tmp_path, search(), TimedDevice("one", seconds=0.02), seconds=0.5)
    assert found.outcome is TuneOutcome.BUDGET
    assert found.winner
    assert found.spent_seconds <= 0.5
    assert "kept to confirm the answer: the time was over before it was certain" in found.reason


def test_time_is_kept_for_what_is_confirmed_and_for_nothing_else() -> None:
    """Where the best is the default, for rounds of that alone: the race has the rest."""
    for best, configurations in ((RunOptions(), 1), (BEST, 2)):
        one = search()
        one.budget_seconds = 100.0
        while planned := one.next():
            noise = zlib.crc32(f"{planned.way} {len(one.seen)}".encode()) % 400
            values = CandidateValues(latency_ns=1e6 * (1 + noise / 1000 + 0.1 * (planned.run_options != best)))
            number = one.space.candidates.index(planned)
            one.learn(Observation(candidate=number, order=len(one.seen), seconds=1.0, values=values))
        found = found_by(one, "one", "m")
        assert found.outcome is TuneOutcome.BUDGET
        assert found.winner.endswith(run_of("one", ARTIFACT, best).id.rpartition("/")[2])
        assert one.reserved_seconds == 8 * configurations
        assert found.spent_seconds == 100 - one.reserved_seconds
        assert f"and {8 * configurations} s kept to confirm the answer" in found.reason


def test_an_end_is_told_by_what_it_was_and_not_by_its_words(tmp_path: Path) -> None:
    one = search()
    run_search(tmp_path, one, TimedDevice("one"))
    assert not one.proposals[Goal.LATENCY].uncertain
    ended = dataclasses.replace(one.proposals[Goal.LATENCY], done="after 5 rounds budget-model/cpu cannot be beaten")
    one.proposals[Goal.LATENCY] = ended
    assert found_by(one, "one", "m").outcome is TuneOutcome.DECIDED
    one.proposals[Goal.LATENCY] = dataclasses.replace(ended, uncertain=True)
    assert found_by(one, "one", "m").outcome is TuneOutcome.BUDGET


def test_constraints_rule_candidates_out_with_the_reason(tmp_path: Path) -> None:
    found = searched(tmp_path, search(max_memory_mb=25), TimedDevice("one"))
    assert next(each.run for each in found.candidates if each.id == found.winner) == "cpu+threads=4+memory_arena=off"
    heavy = [each for each in found.candidates if each.processes and "memory_arena" not in each.run]
    assert heavy
    assert all(each.dropped and each.dropped.text == "memory is over max_memory_mb = 25: 30" for each in heavy)


def test_private_memory_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """Half of the peak here: what a limit on the peak would rule out may well fit."""
    found = searched(tmp_path, search(max_private_mb=12, max_memory_mb=35), TimedDevice("one"))
    heavy = [each for each in found.candidates if each.processes and "memory_arena" not in each.run]
    assert heavy
    assert all(each.dropped and each.dropped.text == "private-memory is over max_private_mb = 12: 15" for each in heavy)


@pytest.mark.parametrize("one", [search(max_memory_mb=25), search(goals=(Goal.MEMORY,))], ids=["limit", "goal"])
def test_what_a_device_does_not_measure_has_no_winner(tmp_path: Path, one: ModelSearch) -> None:
    """With a limit on memory nothing shows that it is kept; with memory as the goal nothing was made small."""

    class Silent(TimedDevice):
        def run(self, spec: RunSpec) -> RunResult:
            return msgspec.structs.replace(super().run(spec), memory_peak_bytes=0)

    found = searched(tmp_path, one, Silent("one"))
    assert (found.outcome, found.winner) == (TuneOutcome.NONE_POSSIBLE, "")
    assert "memory" in found.reason


def test_a_budget_that_failed_runs_used_up_names_their_failure(tmp_path: Path) -> None:
    found = searched(tmp_path, search(), TimedDevice("one", lambda _: FailureKind.TIMEOUT, seconds=0.05), seconds=0.01)
    assert (found.outcome, found.winner) == (TuneOutcome.TOO_SMALL, "")
    assert found.reason.startswith("1 run in ")
    assert "the last: as scripted" in found.reason
    fates = {each.dropped.reason for each in found.candidates if each.dropped and not each.processes}
    assert not any("promised" in fate for fate in fates)


def test_constraints_that_nothing_keeps_are_no_answer(tmp_path: Path) -> None:
    found = searched(tmp_path, search(max_latency_ms=0.1), TimedDevice("one"))
    assert (found.outcome, found.winner) == (TuneOutcome.NONE_POSSIBLE, "")
    assert "max_latency_ms = 0.1" in found.reason
    assert "that of least latency: latency is over max_latency_ms = 0.1: 1" in found.reason


def test_several_goals_give_a_front(tmp_path: Path) -> None:
    found = searched(tmp_path, search(goals=(Goal.MEMORY, Goal.LATENCY)), TimedDevice("one"))
    best = next(each for each in found.candidates if each.id == found.winner)
    assert best.values.memory_bytes == 20e6
    assert found.front[0] == found.winner
    by_id = {each.id: each for each in found.candidates}
    assert {by_id[name].values.memory_bytes for name in found.front} == {20e6}
    assert {by_id[name].values.private_bytes for name in found.front} == {10e6}
    assert min(by_id[name].values.latency_ns or 0 for name in found.front) == pytest.approx(1e6, rel=0.01)


def test_nondominated_are_those_that_no_other_beats_in_all() -> None:
    points = {0: (1.0, 9.0), 1: (2.0, 2.0), 2: (3.0, 2.0), 3: (9.0, 1.0), 4: (1.0, 9.0)}
    values = {number: CandidateValues(latency_ns=a, memory_bytes=b) for number, (a, b) in points.items()}
    assert nondominated(values, (Goal.LATENCY, Goal.MEMORY)) == [0, 1, 3, 4]
    assert nondominated({**values, 5: CandidateValues(latency_ns=0.5)}, (Goal.LATENCY, Goal.MEMORY)) == [0, 1, 3, 4]


def test_limits_have_room_for_the_noise_of_one_run_but_not_of_many() -> None:
    values = CandidateValues(latency_ns=1.02e6, memory_bytes=1.0)
    tune = TuneConfig(max_latency_ms=1.0)
    assert broken_limit(values, tune, single=True) is None
    broken = broken_limit(medians([values, values]), tune)
    assert broken == Dropped(reason="latency is over max_latency_ms = 1", detail="1.02")


def test_times_of_a_phone_s_library_here_are_refused_with_the_reason() -> None:
    assert goals_on("local", TuneConfig(goals=Goal.LATENCY)) == ((Goal.LATENCY,), "")
    goals, reason = goals_on("android-host:1.29.0", TuneConfig(goals=(Goal.LATENCY, Goal.SIZE)))
    assert goals == (Goal.SIZE,)
    assert "not a phone's" in reason


def test_classes_share_a_configuration_where_that_costs_little() -> None:
    def chip(name: str) -> TunedClass:
        return TunedClass(chip=name, api_level=33, abi="arm64-v8a")

    a, b, c = chip("a"), chip("b"), chip("c")
    fast, slow = ("all", "cpu+threads=4"), ("all", "cpu+threads=1")
    classes = {a: ["1"], b: ["2", "3"], c: ["4"]}
    cost = {("1", fast): 0.0, ("1", slow): 0.3, ("2", fast): 0.01, ("2", slow): 0.0, ("3", fast): 0.015,
            ("3", slow): 0.2, ("4", slow): 0.0}  # fmt: skip
    assert cover(classes, [fast, slow], cost, 0.02) == {fast: [a, b], slow: [c]}
    assert cover(classes, [fast, slow], cost, 0.001) == {fast: [a, b], slow: [c]}, "of two evils the smaller"


def test_two_devices_are_searched_at_the_same_time(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=20)
    searches = {name: search(name) for name in ("one", "two")}
    schedules = {name: DeviceSearch({"m": one}, 1e6) for name, one in searches.items()}
    planned: list[PlannedRun] = [each for one in searches.values() for each in one.space.candidates]
    plan = dataclasses.replace(plan_of(planned, 1), schedules=schedules)
    counts = {name: itertools.count() for name in searches}

    def meet(spec: RunSpec) -> None:
        if next(counts[spec.id.partition("/")[0]]) < 5:
            both.wait()

    devices = {name: TimedDevice(name, meet) for name in searches}
    with open_store(f"sqlite:///{tmp_path / 'results.sqlite'}") as store:
        store.start(CAMPAIGN)
        assert measure(plan, devices, store, tmp_path) == {}
        assert {run.result.device for run in store.runs(CAMPAIGN.id)} == {"one", "two"}
    assert all(found_by(one, name, "m").winner.startswith(f"{name}/") for name, one in searches.items())


def test_of_equal_medians_the_one_whose_mean_is_far_better_is_chosen() -> None:
    one = search()
    for number, (candidate, mean) in enumerate([(0, 900_000.0), (2, 200_000.0)] * 4):
        values = CandidateValues(latency_ns=100_000.0 + 500 * (candidate > 0), mean_ns=mean, p90_ns=2 * mean)
        one.learn(Observation(candidate=candidate, order=number, seconds=1, values=values))
    assert one.best() == 2
    one.learn(Observation(candidate=2, order=9, seconds=1, values=CandidateValues(), reason="it crashed"))
    assert one.best() == 0


def rounds_of(latency: float, mean: float) -> dict[int, CandidateValues]:
    jitter = (0.0, 0.004, -0.003, 0.002, -0.004, 0.003, 0.001, -0.002)
    return {
        number: CandidateValues(latency_ns=latency * (1 + part), mean_ns=mean * (1 - part), p90_ns=mean, size_bytes=9.0)
        for number, part in enumerate(jitter)
    }


@pytest.mark.parametrize(
    ("winner", "goals", "better"),
    [
        ((100.0, 100.0), (Goal.LATENCY,), True),  # equal medians, a tenth of the mean
        ((95.0, 5_000.0), (Goal.LATENCY,), False),  # a median 5 % better with a mean five times as long
        ((95.0, 1_000.0), (Goal.LATENCY,), True),
        ((100.0, 1_000.0), (Goal.LATENCY,), False),
        ((95.0, 1_000.0), (Goal.SIZE, Goal.LATENCY), True),  # equal sizes: the next goal decides
        ((95.0, 1_000.0), (Goal.SIZE,), False),
        ((95.0, 1_000.0), (Goal.MEMORY,), None),
    ],
)
def test_what_confirming_rounds_call_better(
    winner: tuple[float, float], goals: tuple[Goal, ...], better: bool | None
) -> None:
    assert beats(rounds_of(*winner), rounds_of(100.0, 1_000.0), goals) is better
