"""A search on a device: what it runs next, what came of it, when it ends, and the fate of every candidate.

The state is what was observed: a search that is read back from the store goes on as if it had never stopped.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from device_runner.result import Mark, RunResult, Status
from pipeline.campaign.plan import PlannedRun, planned_id
from pipeline.campaign.record import RunRecord, Skipped
from pipeline.campaign.store import REPEATED
from pipeline.campaign.tuned import ANSWERED, CandidateValues, Dropped, TunedCandidate, TunedModel, TuneOutcome
from pipeline.config import Goal, TuneConfig
from pipeline.core.progress import duration_text
from pipeline.features.tune.search import (
    COST_KNOWN,
    Observation,
    Proposal,
    SearchSettings,
    conclude,
    propose,
)
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
        p90_ns=float(np.quantile(latencies, 0.9, method="inverted_cdf")),
        memory_bytes=result.memory_peak_bytes or None,
        size_bytes=size_bytes,
    )


def medians(values: Sequence[CandidateValues]) -> CandidateValues:
    """The median of each value over several runs."""
    middles = {}
    for name in FIELDS.values():
        known = [value for each in values if (value := getattr(each, name)) is not None]
        middles[name] = float(np.median(known)) if known else None
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
        wanted, share = self.spent_seconds + self.run_seconds, self._share(goal)
        if wanted <= share * self.search_seconds:
            return False
        return wanted > share * (self.budget_seconds - self._chosen_seconds())

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
        known = {c: v for c, v in self.values().items() if value_of(v, goal) is not None}
        measured = {c: v for c, v in known.items() if not broken_limit(v, self.tune)}
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
    if Mark.NOT_A_PHONE in result.marks and TIMED & set(goals):
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
