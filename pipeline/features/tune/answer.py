"""A search on a device: what it runs next, when it ends, the fate of every candidate, and what came of it.

The state is what was observed: a search that is read back from the store goes on as if it had never stopped.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import Mark, RunResult, Status
from pipeline.campaign.plan import PlannedRun, planned_id
from pipeline.campaign.record import (
    ANSWERED,
    CampaignRecord,
    CandidateValues,
    ClassChoice,
    Dropped,
    FrontPoint,
    Gain,
    JobRecord,
    RecordedRun,
    RunRecord,
    SharedCost,
    Skipped,
    TuneAnswer,
    TunedCandidate,
    TunedClass,
    TunedModel,
    TuneOutcome,
    TuneReport,
)
from pipeline.campaign.statistics import ratio_interval
from pipeline.campaign.store import REPEATED
from pipeline.config import Goal, TuneConfig
from pipeline.core.progress import duration_text
from pipeline.core.variant import Artifact
from pipeline.features.tune.search import COST_KNOWN, Observation, Proposal, SearchSettings, conclude, propose
from pipeline.features.tune.space import BYTES_PER_MB, Space
from pipeline.report import wording

CONFIRM_ROUNDS = 8
"""Rounds that confirm the winner: from 8 on the interval has exact bounds (measuring S.2)."""

MOST_FRONT = 6
"""Candidates of a Pareto front that are confirmed; those between the outermost are thinned out."""

CONFIRM_SHARE = 0.4
"""At most so much of the time is kept for confirming."""

FIELDS = {Goal.LATENCY: "latency_ns", Goal.P90: "p90_ns", Goal.MEMORY: "memory_bytes", Goal.SIZE: "size_bytes"}
"""Goals and the fields of CandidateValues that they are."""

TIMED = {Goal.LATENCY, Goal.P90}
"""Goals that mean nothing where a phone's library runs on another machine."""

TIME_IS_OVER = "the time was over before it was certain"

LIMITS: dict[str, tuple[Goal, float, float]] = {
    "max_latency_ms": (Goal.LATENCY, 1e6, 1.05),
    "max_p90_ms": (Goal.P90, 1e6, 1.05),
    "max_memory_mb": (Goal.MEMORY, BYTES_PER_MB, 1.0),
    "max_size_mb": (Goal.SIZE, BYTES_PER_MB, 1.0),
}
"""Constraints of [tune]: the goal that each bounds, its unit, and how far a single run may be above for its noise."""


def value_of(values: CandidateValues, goal: Goal) -> float | None:
    """The value of a goal."""
    value: float | None = getattr(values, FIELDS[goal])
    return value


def values_of(result: RunResult, size_bytes: int) -> CandidateValues:
    """What one run says for each goal."""
    latencies = np.asarray(result.latencies_ns, np.int64)
    if not len(latencies):
        return CandidateValues(size_bytes=size_bytes)
    return CandidateValues(
        latency_ns=float(np.median(latencies)),
        first_run_ns=result.first_run_ns or None,
        p90_ns=float(np.quantile(latencies, 0.9, method="inverted_cdf")),
        memory_bytes=result.memory_peak_bytes or None,
        size_bytes=size_bytes,
    )


def medians(values: Sequence[CandidateValues]) -> CandidateValues:
    """The median of each value over several runs."""
    middles = {}
    for name in CandidateValues.__struct_fields__:
        numbers = [value for each in values if (value := getattr(each, name)) is not None]
        middles[name] = float(np.median(numbers)) if numbers else None
    return CandidateValues(**middles)


def broken_limit(values: CandidateValues, tune: TuneConfig, *, single: bool = False) -> Dropped | None:
    """Which constraint values break, or None; those of a single run have some room for its noise."""
    for key, (goal, unit, room) in LIMITS.items():
        limit, value = getattr(tune, key), value_of(values, goal)
        if limit is not None and value is None:
            return Dropped(reason=f"{goal.value} was not measured, and {key} = {limit:g} cannot be checked")
        if limit is not None and value is not None and value > limit * unit * (room if single else 1.0):
            return Dropped(reason=f"{goal.value} is over {key} = {limit:g}", detail=f"{value / unit:.4g}")
    return None


@dataclass(slots=True, kw_only=True)
class ModelSearch:
    """The search for one model on one device: one after the other for each goal that needs runs, on all observations.

    `others` is how many further configurations the confirming rounds will have.
    """

    space: Space
    tune: TuneConfig
    goals: tuple[Goal, ...]
    others: int = 0
    seen: list[Observation] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    proposals: dict[Goal, Proposal] = field(default_factory=dict)
    budget_seconds: float = 0.0
    reserved_seconds: float = 0.0
    """Of the budget, for the confirming rounds; known at the end of the search."""

    @property
    def spent_seconds(self) -> float:
        """Time of all its runs."""
        return sum(run.seconds for run in self.seen)

    @property
    def run_seconds(self) -> float:
        """What a run usually takes, by the first: all calls of a search need one budget. 0 before any run."""
        return float(np.median([run.seconds for run in self.seen[:COST_KNOWN]])) if self.seen else 0.0

    @property
    def search_seconds(self) -> float:
        """What is left of the budget for searching in any case: both defaults and all winners may be confirmed."""
        return self.budget_seconds - self._confirming_seconds(2 + (1 if len(self.goals) == 1 else MOST_FRONT))

    def _confirming_seconds(self, configurations: int) -> float:
        confirming = (configurations + self.others) * CONFIRM_ROUNDS * self.run_seconds
        return min(confirming, CONFIRM_SHARE * self.budget_seconds)

    def _chosen_seconds(self) -> float:
        """What confirming takes where the search ends now: a winner that is a default needs no rounds of its own."""
        chosen = {self.space.default, self.space.ort_default, *self.front()} - {None}
        return self._confirming_seconds(len(chosen))

    @property
    def searched(self) -> tuple[Goal, ...]:
        """Goals that runs are proposed for: sizes are known, energy is refused before."""
        timed = tuple(goal for goal in self.goals if goal is not Goal.SIZE)
        return timed or (Goal.LATENCY,)

    def next(self) -> PlannedRun | None:
        """What is to be run now; None when the search has ended."""
        while goal := next((each for each in self.searched if not self._ended(each)), None):
            if self._time_is_over(goal):
                self.queue.clear()
                self.proposals[goal] = conclude(*self._asked(goal), TIME_IS_OVER)
            elif self.queue:
                return self.space.candidates[self.queue[0]]
            else:
                self.proposals[goal] = propose(*self._asked(goal))
                self.queue = list(self.proposals[goal].candidates)
        self.reserved_seconds = self._chosen_seconds()
        return None

    def learn(self, run: Observation) -> None:
        """What came of a run."""
        self.seen.append(run)
        if run.reason:  # others may fail with it: what comes next is decided anew
            self.queue.clear()
        elif self.queue and self.queue[0] == run.candidate:
            self.queue.pop(0)

    def _ended(self, goal: Goal) -> bool:
        return goal in self.proposals and bool(self.proposals[goal].done)

    def _time_is_over(self, goal: Goal) -> bool:
        """Whether one more run for a goal would take time of the next goal, or of the confirming rounds."""
        if not self.seen:
            return False
        needed_seconds, share = self.spent_seconds + self.run_seconds, self._share(goal)
        if needed_seconds <= share * self.search_seconds:
            return False
        return needed_seconds > share * (self.budget_seconds - self._chosen_seconds())

    def _share(self, goal: Goal) -> float:
        """Of the time for searching, what the goals have until one has ended, each as much as the others."""
        return (self.searched.index(goal) + 1) / len(self.searched)

    def _asked(self, goal: Goal) -> tuple[Space, tuple[Observation, ...], SearchSettings]:
        """What a search for a goal is asked with."""
        budget = max(self.search_seconds * self._share(goal), 1e-3)
        settings = SearchSettings(
            strategy=self.tune.strategy, seed=self.tune.seed, budget_seconds=budget
        )  # fmt: skip
        return self.space, tuple(self._observations(goal)), settings

    def _observations(self, goal: Goal) -> Iterator[Observation]:
        for run in self.seen:
            over = None if run.reason else broken_limit(run.values, self.tune, single=True)
            yield replace(run, value=value_of(run.values, goal), over=over)

    def values(self) -> dict[int, CandidateValues]:
        """Medians of every candidate that ran without a failure."""
        failed = {run.candidate for run in self.seen if run.reason}
        runs: dict[int, list[CandidateValues]] = {}
        for run in self.seen:
            if run.candidate not in failed:
                runs.setdefault(run.candidate, []).append(run.values)
        return {candidate: medians(values) for candidate, values in runs.items()}

    def best(self) -> int | None:
        """The candidate to choose: the leader, or the best measured that keeps to the constraints."""
        goal = self.searched[0]
        values = {c: v for c, v in self.values().items() if value_of(v, goal) is not None}
        measured = {c: v for c, v in values.items() if not broken_limit(v, self.tune)}
        proposal = self.proposals.get(goal)
        if proposal and proposal.leader in measured:
            return proposal.leader
        return min(measured, key=lambda c: value_of(measured[c], goal) or math.inf, default=None)

    def front(self) -> tuple[int, ...]:
        """Candidates that no other beats in all goals, the best of the first goal first; with one goal the best."""
        best = self.best()
        if best is None or len(self.goals) == 1:
            return () if best is None else (best,)
        kept = {c: v for c, v in self.values().items() if not broken_limit(v, self.tune)}
        rest = sorted(
            (c for c in nondominated(kept, self.goals) if c != best),
            key=lambda c: value_of(kept[c], self.goals[0]) or math.inf,
        )
        step = max(1, math.ceil(len(rest) / (MOST_FRONT - 1)))
        thinned = [*rest[:-1:step], *rest[-1:]][: MOST_FRONT - 1] if rest else []
        return (best, *thinned)

    def at(self) -> str:
        """Where it is, for people: stage, leader with interval, what remains."""
        proposal = next((last for goal in self.searched if (last := self.proposals.get(goal)) and not last.done), None)
        left = max(0.0, self.search_seconds - self.spent_seconds)
        parts = [proposal.stage.value if proposal else "end", f"{len(self.seen)} runs"]
        best = self.best() if proposal and proposal.leader is not None else None
        if best is not None:
            parts.append(f"leader {self.space.candidates[best].run_name} {self._leading(best)}")
        return f"{', '.join(parts)}; at most {duration_text(left)} left"

    def _leading(self, best: int) -> str:
        goal = self.searched[0]
        value = value_of(self.values()[best], goal)
        text = wording.size(int(value or 0)) if goal is Goal.MEMORY else wording.duration(value)
        bounds = self.proposals[goal].compared.get(self.space.default) if goal in self.proposals else None
        return f"{text}, {bounds.low:.2f} to {bounds.high:.2f} times the advised" if bounds else text


def nondominated(values: Mapping[int, CandidateValues], goals: Sequence[Goal]) -> list[int]:
    """The candidates that no other beats: none is at most as large in every goal and smaller in one."""
    points = {c: tuple(value_of(v, goal) for goal in goals) for c, v in values.items()}
    whole = {c: tuple(x for x in point if x is not None) for c, point in points.items() if None not in point}
    return [
        c
        for c, point in whole.items()
        if not any(other != point and all(map(float.__le__, other, point)) for other in whole.values())
    ]


class DeviceSearch:
    """The schedule of a device: its models one after the other, each with an equal share of the time that is left."""

    def __init__(
        self,
        searches: Mapping[str, ModelSearch],
        budget_seconds: float,
        show: Callable[[str], None] = lambda _: None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.searches = searches
        self.budget_seconds = budget_seconds
        self.order = 0
        self._show, self._done = show, done
        self._places = {
            planned_id(planned): (model, number)
            for model, search in searches.items()
            for number, planned in enumerate(search.space.candidates)
        }

    def due(self) -> tuple[PlannedRun, int] | None:
        """The next run of the first model that has not ended."""
        spent, models = 0.0, len(self.searches)
        for number, (model, search) in enumerate(self.searches.items()):
            search.budget_seconds = (self.budget_seconds - spent) / (models - number)
            if planned := search.next():
                self._show(f"{model}: {search.at()}")
                return planned, self.order
            spent += search.spent_seconds + search.reserved_seconds
        self._done()
        return None

    def learn(self, run: RunRecord) -> None:
        """Enter what came of a run, from the device or from the store."""
        self.order = max(self.order, run.round + 1)
        model, number = self._places[run.planned]
        search = self.searches[model]
        size = search.space.candidates[number].size_bytes
        failure = failure_of(run, search.goals)
        search.learn(
            Observation(
                candidate=number,
                order=run.round,
                seconds=run.result.elapsed_ns / 1e9,
                values=CandidateValues(size_bytes=size) if failure else values_of(run.result, size),
                reason=failure,
            )
        )

    def replay(self, runs: Iterable[RunRecord]) -> None:
        """Enter what the store has of this device; runs that failed for its sake are done again."""
        for run in runs:
            failure = run.result.failure
            self.order = max(self.order, run.round + 1)
            if run.planned in self._places and (failure is None or failure.kind not in REPEATED):
                self.learn(run)


def failure_of(run: RunRecord, goals: Iterable[Goal]) -> str:
    """Why a run says nothing for goals: it failed, its outputs are wrong, its times are not this device's; or ""."""
    result = run.result
    if result.status is not Status.OK:
        return result.failure.message.partition("\n")[0][:300] if result.failure else result.status.value
    if wrong := [check for check in run.checks if check.failed]:
        return f"output {wrong[0].output} differs from the original's: {wrong[0].reason or 'out of tolerance'}"
    if Mark.SOFTWARE_GPU in result.marks:
        return "a software GPU computed: its times and memory are no GPU's"
    if {Mark.NOT_A_PHONE, Mark.SIMULATED} & set(result.marks) and TIMED & set(goals):
        return "its times are not a phone's"
    return "" if result.latencies_ns else "it timed nothing"


FEWEST_COMPARED = 2


def found_by(search: ModelSearch, device: str, model: str, left: str = "") -> TunedModel:
    """What a search found. `left` is why the device had to be left before the end, "" where it was not."""
    best = None if left else search.best()
    outcome, reason = _outcome(search, best, left)
    winner = best if outcome in ANSWERED else None
    space = search.space

    def name(candidate: int | None) -> str:
        return "" if candidate is None else planned_id(space.candidates[candidate])

    return TunedModel(
        device=device,
        model=model,
        goals=tuple(goal.value for goal in search.goals),
        outcome=outcome,
        reason=reason,
        winner=name(winner),
        documented=name(space.default),
        ort_default=name(space.ort_default),
        front=tuple(map(name, search.front())) if winner is not None else (),
        processes=len(search.seen),
        spent_seconds=round(search.spent_seconds, 3),
        budget_seconds=round(search.budget_seconds, 3),
        strategy=search.tune.strategy.value,
        seed=search.tune.seed,
        candidates=tuple(_candidates(search, winner)),
    )


def _outcome(search: ModelSearch, best: int | None, left: str) -> tuple[TuneOutcome, str]:
    number = len(search.seen)
    spent = f"{number} {'run' if number == 1 else 'runs'} in {duration_text(search.spent_seconds)}"
    if left:
        return TuneOutcome.LOST, f"{left}; {spent} are kept: go on with --resume"
    measured = search.values()
    last = next((run.reason for run in reversed(search.seen) if run.reason), "")
    end = search.proposals[search.searched[0]]
    if not measured and search.seen and not end.uncertain:
        return TuneOutcome.ALL_FAILED, f"no candidate gave a result; the last: {last}"
    if len(measured) < min(FEWEST_COMPARED, len(search.space)) and end.uncertain:
        need = duration_text(search.run_seconds * (FEWEST_COMPARED + 3 * CONFIRM_ROUNDS) / (1 - CONFIRM_SHARE))
        failed = f"; no candidate gave a result, the last: {last}" if last and not measured else ""
        return TuneOutcome.TOO_SMALL, f"{spent}: too few to compare anything; give at least {need}{failed}"
    if best is None:
        return TuneOutcome.NONE_POSSIBLE, _why_impossible(search, measured)
    if end.uncertain:
        kept = f"{duration_text(search.reserved_seconds)} kept to confirm the answer"
        return TuneOutcome.BUDGET, f"{spent}, and {kept}: {end.done}"
    return TuneOutcome.DECIDED, f"{spent}: {end.done}"


def _why_impossible(search: ModelSearch, measured: Mapping[int, CandidateValues]) -> str:
    """Why nothing that was measured may be chosen, by the candidate that is nearest to it."""
    goal = search.searched[0]
    nearest = sorted(measured.values(), key=lambda values: value_of(values, goal) or math.inf)
    broken = [limit for values in nearest if (limit := broken_limit(values, search.tune))]
    if not broken:
        return f"none of {len(measured)} measured has a value for {goal.value}: the device gives none"
    return f"none of {len(measured)} measured keeps to the constraints; that of least {goal.value}: {broken[0].text}"


def _usual_fate(search: ModelSearch, ran: bool, winner: int | None) -> str:
    if ran:
        return "measured; no winner was chosen" if winner is None else "measured, and not among the best"
    if (end := search.proposals.get(search.searched[0])) and end.uncertain:
        return "not measured: the time was over"
    return "not measured: the search ended before" if winner is None else "not measured: others promised more"


def left_out(skipped: Skipped) -> TunedCandidate:
    """A candidate that was out before anything was measured."""
    why = Dropped(reason="; ".join(filter(None, (f"left out: {skipped.what}", skipped.remedy))), detail=skipped.why)
    return TunedCandidate(variant=skipped.variant, run=skipped.run, dropped=why)


def _candidates(search: ModelSearch, winner: int | None) -> Iterator[TunedCandidate]:
    """Every candidate with its fate: what ran first, then what was left out before."""
    dropped: dict[int, Dropped] = {}
    for goal in reversed(search.searched):
        if proposal := search.proposals.get(goal):
            dropped |= proposal.dropped
    values = search.values()
    runs: dict[int, int] = {}
    for run in search.seen:
        runs[run.candidate] = runs.get(run.candidate, 0) + 1
    for number, planned in enumerate(search.space.candidates):
        measured = values.get(number, CandidateValues(size_bytes=planned.size_bytes))
        broken = broken_limit(measured, search.tune) if number in values else None
        usual = Dropped(reason=_usual_fate(search, number in runs, winner))
        fate = None if number == winner else dropped.get(number) or broken or usual
        yield TunedCandidate(
            variant=planned.variant, run=planned.run_name.partition("/")[2], id=planned_id(planned),
            processes=runs.get(number, 0), values=measured, dropped=fate,
        )  # fmt: skip
    for skipped in search.space.pruned:
        yield left_out(skipped)


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What the confirming rounds say of one configuration on one device, by round; none where a round failed."""

    run: RecordedRun
    rounds: Mapping[int, CandidateValues]

    @property
    def values(self) -> CandidateValues:
        """The medians of its rounds."""
        return medians(list(self.rounds.values()))


RatioBounds = tuple[float, float | None, float | None, int]
"""A ratio, its 95 % bounds (None where it was not measured, or too seldom) and the number of rounds."""

FEWEST_ROUNDS = 4
"""Rounds below which nothing is shown."""


def ratio_of(
    rounds: Mapping[int, CandidateValues], other: Mapping[int, CandidateValues], goal: Goal
) -> RatioBounds | None:
    """The value of one relative to another's, by the rounds that both have, with 95 % bounds and their number.

    Bounds are None where nothing varies (sizes) or rounds are too few; None where a value is missing.
    """
    pairs = [
        (value, base)
        for number, values in rounds.items()
        if number in other
        and (value := value_of(values, goal)) and (base := value_of(other[number], goal))
    ]  # fmt: skip
    if not pairs:
        return None
    logs = np.log([value / base for value, base in pairs])
    bounds = ratio_interval(logs, 0.95) if float(np.ptp(logs)) > 0 else None
    if bounds is None:
        return float(np.exp(np.median(logs))), None, None, len(pairs)
    return bounds.ratio, bounds.low, bounds.high, len(pairs)


def shown_below(ratio: RatioBounds) -> bool:
    """Whether rounds show a ratio to be below 1; where nothing varies, a few of them do."""
    value, _, high, rounds = ratio
    return high < 1 if high is not None else value < 1 and rounds >= FEWEST_ROUNDS


def tune_report(
    campaign: CampaignRecord,
    runs: Sequence[RunRecord],
    artifacts: Sequence[Artifact],
    devices: Mapping[str, DeviceFacts],
) -> TuneReport:
    """Everything that searches came to, from the campaign that confirmed them."""
    record = campaign.job()
    confirmed = _confirmed(record, runs, artifacts)
    answers = tuple(
        _answer(record, search, confirmed.get((search.device, search.model), {})) for search in record.tuned
    )
    costs = tuple(_costs(answers, confirmed))
    percent = record.config.tune.share_percent
    return TuneReport(
        name=campaign.name,
        campaign=campaign.id,
        answers=answers,
        choices=tuple(_choices(answers, costs, confirmed, devices, artifacts, percent / 100)),
        costs=costs,
        share_percent=percent,
    )


DeviceModel = tuple[str, str]
"""A device and a model: what one search is of."""


def _confirmed(
    record: JobRecord, runs: Iterable[RunRecord], artifacts: Sequence[Artifact]
) -> dict[DeviceModel, dict[str, Confirmation]]:
    """By device and model: what was confirmed, by the id of the planned run."""
    sizes = {(artifact.model, artifact.variant.name): artifact.total_bytes for artifact in artifacts}
    rounds: dict[str, dict[int, CandidateValues]] = {}
    failed: set[str] = set()
    goals = record.config.tune.goal_list
    for run in runs:
        if failure_of(run, goals) or run.result.status is not Status.OK:
            failed.add(run.planned)
        else:
            values = values_of(run.result, sizes[run.model, run.variant])
            rounds.setdefault(run.planned, {})[run.round] = values
    by_place: dict[DeviceModel, dict[str, Confirmation]] = {}
    for planned in record.planned:
        name = planned.same_as or planned.id
        if name in rounds and name not in failed:
            by_place.setdefault((planned.device, planned.model), {})[planned.id] = Confirmation(planned, rounds[name])
    return by_place


def _answer(record: JobRecord, search: TunedModel, confirmed: Mapping[str, Confirmation]) -> TuneAnswer:
    """The winner of a search as it was confirmed; one that breaks a constraint then is none."""
    winner = confirmed.get(search.winner)
    if winner is None:
        lost = "the rounds that confirm the winner were not measured: go on with --resume"
        left = Dropped(reason=lost)
        return TuneAnswer(search=_without_winner(search, TuneOutcome.LOST, left) if search.winner else search)
    goals = tuple(Goal(goal) for goal in search.goals)
    kept = {
        name: confirmation
        for name in search.front
        if (confirmation := confirmed.get(name)) and not _broken(record, confirmation)
    }
    if broken := _broken(record, winner):
        if not kept:
            return TuneAnswer(search=_without_winner(search, TuneOutcome.NONE_POSSIBLE, broken))
        winner = min(kept.values(), key=lambda confirmation: value_of(confirmation.values, goals[0]) or float("inf"))
        search = _won_by(search, winner.run.id, broken)
    default = confirmed.get(search.documented)
    if default and default is not winner and not _broken(record, default):
        ratio = ratio_of(winner.rounds, default.rounds, goals[0])
        if ratio and not shown_below(ratio):
            # A search whose winner was not confirmed to be better: what the documentation advises stays
            name = f"{winner.run.variant}/{winner.run.run}"
            why = f"{name} was not confirmed to be better than the default: {ratio[0]:.3f} times its {search.goals[0]}"
            bounds = f" ({ratio[1]:.3f} to {ratio[2]:.3f})" if ratio[1] is not None and ratio[2] is not None else ""
            changed = _won_by(search, search.documented, Dropped(reason=why + bounds))
            search = msgspec.structs.replace(changed, reason=f"{search.reason}; {why}{bounds}")
            winner = default
    numbers = dict(enumerate(kept.values()))
    best = (
        nondominated({number: confirmation.values for number, confirmation in numbers.items()}, goals)
        if len(goals) > 1
        else []
    )
    return TuneAnswer(
        search=search,
        variant=winner.run.variant,
        run=winner.run.run,
        values=winner.values,
        confirmed_rounds=len(winner.rounds),
        gains=tuple(_gains(search, winner, confirmed, goals)),
        front=tuple(
            FrontPoint(variant=confirmation.run.variant, run=confirmation.run.run, values=confirmation.values)
            for confirmation in sorted(
                (numbers[n] for n in best), key=lambda confirmation: value_of(confirmation.values, goals[0]) or 0.0
            )
        ),
    )


def _won_by(search: TunedModel, winner: str, why: Dropped) -> TunedModel:
    """A search with another winner, "" for none; `why` the first one is none after all."""
    fates = {search.winner: why, winner: None}
    candidates = (
        msgspec.structs.replace(confirmation, dropped=fates.get(confirmation.id, confirmation.dropped))
        for confirmation in search.candidates
    )
    return msgspec.structs.replace(search, winner=winner, candidates=tuple(candidates))


def _broken(record: JobRecord, confirmation: Confirmation) -> Dropped | None:
    return broken_limit(confirmation.values, record.config.tune)


def _without_winner(search: TunedModel, outcome: TuneOutcome, why: Dropped) -> TunedModel:
    return msgspec.structs.replace(_won_by(search, "", why), outcome=outcome, reason=why.text)


def _gains(
    search: TunedModel, winner: Confirmation, confirmed: Mapping[str, Confirmation], goals: Sequence[Goal]
) -> Iterator[Gain]:
    """How the winner compares with both defaults, for each goal."""
    names: tuple[tuple[Literal["documentation", "onnxruntime"], str], ...] = (
        ("documentation", search.documented),
        ("onnxruntime", search.ort_default),
    )
    for than, name in names:
        other = confirmed.get(name)
        for goal in goals if other and other is not winner else ():
            ratio = ratio_of(winner.rounds, other.rounds, goal) if other else None
            if ratio and other:
                yield Gain(
                    than=than, goal=goal.value, variant=other.run.variant, run=other.run.run, ratio=ratio[0],
                    low=ratio[1], high=ratio[2], rounds=ratio[3],
                )  # fmt: skip


def _costs(
    answers: Sequence[TuneAnswer], confirmed: Mapping[DeviceModel, Mapping[str, Confirmation]]
) -> Iterator[SharedCost]:
    """What it costs each device to run the winner of another, where both were measured there."""
    won = [answer for answer in answers if answer.variant]
    for winner in won:
        place = confirmed[winner.search.device, winner.search.model]
        by_run = {(confirmation.run.variant, confirmation.run.run): confirmation for confirmation in place.values()}
        for there in won:
            other = by_run.get((there.variant, there.run))
            if there is winner or there.search.model != winner.search.model or other is None:
                continue
            ratio = ratio_of(other.rounds, by_run[winner.variant, winner.run].rounds, Goal(winner.search.goals[0]))
            if ratio:
                yield SharedCost(
                    model=winner.search.model, device=winner.search.device, winner_of=there.search.device,
                    variant=there.variant, run=there.run, ratio=ratio[0], low=ratio[1], high=ratio[2],
                )  # fmt: skip


Configuration = tuple[str, str]
"""Variant and run."""


def _choices(
    answers: Sequence[TuneAnswer],
    costs: Sequence[SharedCost],
    confirmed: Mapping[DeviceModel, Mapping[str, Confirmation]],
    devices: Mapping[str, DeviceFacts],
    artifacts: Sequence[Artifact],
    share: float,
) -> Iterator[ClassChoice]:
    """For each model the fewest configurations with which no class loses more than the share, as far as measured.

    Greedily: the configuration that serves most classes, at the least cost, then the rest. A class whose devices have
    no such configuration in common runs the one that costs its worst device least.
    """
    files = {(artifact.model, artifact.variant.name): artifact.file for artifact in artifacts}
    for model in dict.fromkeys(answer.search.model for answer in answers if answer.variant):
        won = {
            answer.search.device: (answer.variant, answer.run)
            for answer in answers
            if answer.search.model == model and answer.variant
        }
        cost = {(row.device, (row.variant, row.run)): row.ratio - 1 for row in costs if row.model == model}
        cost |= dict.fromkeys(won.items(), 0.0)
        classes: dict[TunedClass, list[str]] = {}
        for device in won:
            classes.setdefault(TunedClass.of(devices[device]), []).append(device)
        for configuration, members in cover(classes, set(won.values()), cost, share).items():
            names = tuple(device for each in members for device in classes[each])
            worst = [cost.get((device, configuration)) for device in names]
            run = next(
                confirmation.run
                for device in names
                for confirmation in confirmed[device, model].values()
                if (confirmation.run.variant, confirmation.run.run) == configuration
            )
            yield ClassChoice(
                model=model, classes=tuple(members), devices=names, variant=configuration[0],
                file=files[model, configuration[0]], run=configuration[1], options=run.options,
                cost=None if None in worst else max((loss for loss in worst if loss is not None), default=None),
            )  # fmt: skip


def cover(
    classes: Mapping[TunedClass, Sequence[str]],
    configurations: Iterable[Configuration],
    cost: Mapping[tuple[str, Configuration], float],
    share: float,
) -> dict[Configuration, list[TunedClass]]:
    """Configurations with the classes that run them; the one that serves most comes first. `cost` is by device."""

    def of_class(kind: TunedClass, configuration: Configuration) -> float:
        return max(cost.get((device, configuration), float("inf")) for device in classes[kind])

    left, candidates = list(classes), sorted(configurations)
    chosen: dict[Configuration, list[TunedClass]] = {}
    while left:
        serves = {c: [kind for kind in left if of_class(kind, c) <= share] for c in candidates}
        best = min(candidates, key=lambda c: (-len(serves[c]), sum(of_class(each, c) for each in serves[c]), c))
        if not serves[best]:
            kind = left[0]
            best = min(candidates, key=lambda c: (of_class(kind, c), c))
            serves[best] = [kind]
        chosen.setdefault(best, []).extend(serves[best])
        left = [kind for kind in left if kind not in serves[best]]
    return chosen
