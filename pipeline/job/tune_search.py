"""A search on a device: what it runs next, what came of it, when it ends, and what it found.

The state is what was observed: a search that is read back from the store goes on as if it had never stopped.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from device_runner.result import Mark, RunResult, Status
from pipeline.campaign.plan import PlannedRun, planned_id
from pipeline.campaign.record import RunRecord
from pipeline.campaign.store import REPEATED
from pipeline.campaign.tune.observed import Observation, Proposal, SearchSettings, SearchStrategy
from pipeline.campaign.tune.search import COST_KNOWN, propose
from pipeline.campaign.tune.space import Space
from pipeline.campaign.tuned import CandidateValues
from pipeline.config import Goal, TuneConfig, TuneStrategy
from pipeline.core.progress import duration_text
from pipeline.job.tune_space import BYTES_PER_MB
from pipeline.report import wording

CONFIRM_ROUNDS = 8
"""Rounds that confirm the winner: from 8 on the interval has exact bounds (measuring S.2)."""

MOST_FRONT = 6
"""Candidates of a Pareto front that are confirmed; those between the outermost are thinned out."""

CONFIRM_SHARE = 0.4
"""At most so much of the time is kept for confirming."""

STRATEGIES = {
    TuneStrategy.RIDGE: SearchStrategy.MODEL,
    TuneStrategy.OPTUNA: SearchStrategy.OPTUNA,
    TuneStrategy.GRID: SearchStrategy.GRID,
}

FIELDS = {Goal.LATENCY: "latency_ns", Goal.P90: "p90_ns", Goal.MEMORY: "memory_bytes", Goal.SIZE: "size_bytes"}
"""Goals and the fields of CandidateValues that they are."""

TIMED = {Goal.LATENCY, Goal.P90}
"""Goals that mean nothing where a phone's library runs on another machine."""

BUDGET_ENDED = "the budget is used up"
"""How a search is ended by the time alone."""

LIMITS: dict[str, tuple[Goal, float, float]] = {
    "max_latency_ms": (Goal.LATENCY, 1e6, 1.05),
    "max_p90_ms": (Goal.P90, 1e6, 1.05),
    "max_memory_mb": (Goal.MEMORY, BYTES_PER_MB, 1.0),
    "max_size_mb": (Goal.SIZE, BYTES_PER_MB, 1.0),
}
"""Constraints of [tune]: the goal that each bounds, its unit, and how far a single run may be above for its noise."""


def value_of(values: CandidateValues, goal: Goal) -> float | None:
    """The value of a goal."""
    found: float | None = getattr(values, FIELDS[goal])
    return found


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
    found = {}
    for name in FIELDS.values():
        known = [value for one in values if (value := getattr(one, name)) is not None]
        found[name] = float(np.median(known)) if known else None
    return CandidateValues(**found)


def broken_limit(values: CandidateValues, tune: TuneConfig, *, single: bool = False) -> str:
    """Which constraint values break, or ""; those of a single run have some room for its noise."""
    for key, (goal, unit, room) in LIMITS.items():
        limit, value = getattr(tune, key), value_of(values, goal)
        if limit is not None and value is None:
            return f"{goal.value} was not measured, and {key} = {limit:g} cannot be checked"
        if limit is not None and value is not None and value > limit * unit * (room if single else 1.0):
            return f"{goal.value} {value / unit:.4g} is over {key} = {limit:g}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One run of a candidate as the search looks at it; `failure` is why it has no values."""

    candidate: int
    order: int
    seconds: float
    values: CandidateValues
    failure: str = ""


@dataclass(slots=True, kw_only=True)
class ModelSearch:
    """The search for one model on one device: one after the other for each goal that needs runs, on all observations.

    `others` is how many further configurations the confirming rounds will have.
    """

    space: Space
    tune: TuneConfig
    goals: tuple[Goal, ...]
    others: int = 0
    seen: list[Seen] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    proposals: dict[Goal, Proposal] = field(default_factory=dict)
    budget_seconds: float = 0.0
    ended: str = ""

    @property
    def spent_seconds(self) -> float:
        """Time of all its runs."""
        return sum(one.seconds for one in self.seen)

    @property
    def run_seconds(self) -> float:
        """What a run usually takes, by the first: all calls of a search need one budget. 0 before any run."""
        return float(np.median([one.seconds for one in self.seen[:COST_KNOWN]])) if self.seen else 0.0

    @property
    def search_seconds(self) -> float:
        """What is left of the budget for searching when the confirming rounds have their share."""
        front = 0 if len(self.goals) == 1 else MOST_FRONT - 1
        confirming = (3 + front + self.others) * CONFIRM_ROUNDS * self.run_seconds
        return self.budget_seconds - min(confirming, CONFIRM_SHARE * self.budget_seconds)

    @property
    def searched(self) -> tuple[Goal, ...]:
        """Goals that runs are proposed for: sizes are known, energy is refused before."""
        timed = tuple(goal for goal in self.goals if goal is not Goal.SIZE)
        return timed or (Goal.LATENCY,)

    def next(self) -> PlannedRun | None:
        """What is to be run now; None when the search has ended."""
        while not self.ended:
            if self.seen and self.spent_seconds + self.run_seconds > self.search_seconds:
                self.proposals[self.searched[0]] = self._proposal(self.searched[0], 1.0)
                self.ended = BUDGET_ENDED
            elif self.queue:
                return self.space.candidates[self.queue[0]]
            else:
                self._propose()
        return None

    def learn(self, one: Seen) -> None:
        """What came of a run."""
        self.seen.append(one)
        if one.failure:  # others may fail with it: what comes next is decided anew
            self.queue.clear()
        elif self.queue and self.queue[0] == one.candidate:
            self.queue.pop(0)

    def _propose(self) -> None:
        """Ask for each goal in turn what to measure; the end when none wants anything."""
        for number, goal in enumerate(self.searched):
            known = self.proposals.get(goal)
            if known is None or not known.done:
                found = self._proposal(goal, (number + 1) / len(self.searched))
                self.proposals[goal] = found
                if not found.done and found.candidates:
                    self.queue = list(found.candidates)
                    return
        self.ended = self.proposals[self.searched[0]].done or "nothing is left to measure"

    def _proposal(self, goal: Goal, share: float) -> Proposal:
        # A small space is measured whole, in rounds: only the time ends that, and `next` looks after it.
        budget = None if len(self.space) <= SearchSettings().small else max(self.search_seconds * share, 1e-3)
        strategy = STRATEGIES[self.tune.strategy]
        settings = SearchSettings(strategy=strategy, seed=self.tune.seed, budget_seconds=budget, confirm=False)
        return propose(self.space, tuple(self._observations(goal)), settings)

    def _observations(self, goal: Goal) -> Iterator[Observation]:
        for one in self.seen:
            value = value_of(one.values, goal)
            reason = one.failure or broken_limit(one.values, self.tune, single=True)
            yield Observation(candidate=one.candidate, order=one.order, value=value, seconds=one.seconds, reason=reason)

    def values(self) -> dict[int, CandidateValues]:
        """Medians of every candidate that ran without a failure."""
        failed = {one.candidate for one in self.seen if one.failure}
        runs: dict[int, list[CandidateValues]] = {}
        for one in self.seen:
            if one.candidate not in failed:
                runs.setdefault(one.candidate, []).append(one.values)
        return {candidate: medians(found) for candidate, found in runs.items()}

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
        found = {c: v for c, v in self.values().items() if not broken_limit(v, self.tune)}
        rest = sorted(
            (c for c in nondominated(found, self.goals) if c != best),
            key=lambda c: value_of(found[c], self.goals[0]) or math.inf,
        )
        step = max(1, math.ceil(len(rest) / (MOST_FRONT - 1)))
        thinned = [*rest[:-1:step], *rest[-1:]][: MOST_FRONT - 1] if rest else []
        return (best, *thinned)

    def at(self) -> str:
        """Where it is, for people: stage, leader with interval, what remains."""
        proposal = next((one for goal in self.searched if (one := self.proposals.get(goal)) and not one.done), None)
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
            spent += search.spent_seconds + (search.budget_seconds - search.search_seconds)
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
            Seen(
                candidate=number,
                order=run.round,
                seconds=run.result.elapsed_ns / 1e9,
                values=CandidateValues(size_bytes=size) if failure else values_of(run.result, size),
                failure=failure,
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
