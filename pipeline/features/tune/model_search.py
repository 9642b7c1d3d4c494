"""The search of one model on one device, the schedule of a device with several, and what was found."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from device_runner.device import DeviceFacts
from pipeline import config as configs
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import store as campaign_store
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import RunRecord
from pipeline.core import progress as core_progress
from pipeline.features.tune import lasting
from pipeline.features.tune.race import FIRST_LOOK, Proposal
from pipeline.features.tune.search import COST_KNOWN, WITHIN, Observation, Search
from pipeline.features.tune.space import (
    OF_MEMORY,
    Space,
    broken_limit,
    failure_of,
    medians,
    nondominated,
    value_of,
    values_of,
)
from pipeline.report import wording

CONFIRM_ROUNDS = 8
"""Rounds that confirm the winner: from 8 on the interval has exact bounds (measuring S.2)."""

MOST_FRONT = 6
"""Candidates of a Pareto front that are confirmed; those between the outermost are thinned out."""

FAR, NEAR = 1.5, 1.25
"""From how many times another's mean on a candidate is not kept for a median that is as good; and up to how many times
the least mean medians decide again."""

CONFIRM_SHARE = 0.4
"""At most so much of the time is kept for confirming."""

TIME_IS_OVER = "the time was over before it was certain"


@dataclass(slots=True, kw_only=True)
class ModelSearch:
    """The search for one model on one device: one after the other for each goal that needs runs, on all observations.

    `others` is how many further configurations the confirming rounds will have, `lasting` how many candidates run for
    minutes after it, where the goal is `sustained`: the search is for latency then, and on `facts` depends what heats.
    """

    space: Space
    tune: configs.TuneConfig
    goals: tuple[configs.Goal, ...]
    others: int = 0
    lasting: int = 0
    facts: DeviceFacts | None = None
    seen: list[Observation] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    proposals: dict[configs.Goal, Proposal] = field(default_factory=dict)
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
        found = MOST_FRONT if len(self.goals) > 1 else max(1, self.lasting)
        return self.budget_seconds - self._confirming_seconds(2 + found)

    def _confirming_seconds(self, configurations: int) -> float:
        confirming = (configurations + self.others) * CONFIRM_ROUNDS * self.run_seconds
        return min(confirming, CONFIRM_SHARE * self.budget_seconds)

    def _chosen_seconds(self) -> float:
        """What confirming takes where the search ends now: a winner that is a default needs no rounds of its own."""
        chosen = {self.space.default, self.space.ort_default, *self.front()} - {None}
        return self._confirming_seconds(len(chosen))

    @property
    def searched(self) -> tuple[configs.Goal, ...]:
        """Goals that runs are proposed for: sizes are known, and what runs for minutes is chosen by its latency."""
        timed = tuple(goal for goal in self.goals if goal not in (configs.Goal.SIZE, configs.Goal.SUSTAINED))
        return timed or (configs.Goal.LATENCY,)

    def next(self) -> campaign_planned.PlannedRun | None:
        """What is to be run now; None when the search has ended."""
        while goal := next((g for g in self.searched if g not in self.proposals or not self.proposals[g].done), None):
            # Of the time for searching goals have until one has ended, each as much as the others
            share = (self.searched.index(goal) + 1) / len(self.searched)
            # Over where one more run would take time of the next goal, or of the confirming rounds
            needed_seconds = self.spent_seconds + self.run_seconds
            over = bool(self.seen) and needed_seconds > share * self.search_seconds
            over = over and needed_seconds > share * (self.budget_seconds - self._chosen_seconds())
            if self.queue and not over:
                return self.space.candidates[self.queue[0]]
            seen = [
                replace(
                    run,
                    value=value_of(run.values, goal),
                    over=None if run.reason else broken_limit(run.values, self.tune, single=True),
                )
                for run in self.seen
            ]
            budget = max(self.search_seconds * share, 1e-3)
            search = Search(self.space, seen, self.tune, budget)
            self.proposals[goal] = search.conclude(TIME_IS_OVER) if over else search.propose()
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

    def values(self) -> dict[int, campaign_tuned.CandidateValues]:
        """Medians of every candidate that ran without a failure."""
        failed = {run.candidate for run in self.seen if run.reason}
        runs: dict[int, list[campaign_tuned.CandidateValues]] = {}
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
        leader = proposal.leader if proposal else None
        if leader not in measured:
            leader = min(measured, key=lambda c: value_of(measured[c], goal) or math.inf, default=None)
        return leader if leader is None or goal is not configs.Goal.LATENCY else self._steadiest(leader, measured)

    def _steadiest(self, leader: int, measured: Mapping[int, campaign_tuned.CandidateValues]) -> int:
        """The leader, or of those whose medians are as good one whose mean is far better: its inferences stall less.

        The confirming rounds say whether that is so.
        """
        processes = Counter(run.candidate for run in self.seen)
        usual, mean = (measured[leader].latency_ns or 0.0, measured[leader].mean_ns or 0.0)
        steadier = {
            candidate: values.mean_ns
            for candidate, values in measured.items()
            if values.mean_ns
            and values.latency_ns
            and processes[candidate] >= FIRST_LOOK
            and values.latency_ns <= usual * (1 + WITHIN)
            and values.mean_ns * FAR <= mean
        }
        least = min(steadier.values(), default=0.0)
        near = [candidate for candidate, value in steadier.items() if value <= least * NEAR]
        return min(near, key=lambda candidate: measured[candidate].latency_ns or math.inf, default=leader)

    def front(self) -> tuple[int, ...]:
        """Candidates that no other beats in all goals, the best of the first goal first; with one goal the best, or
        those that run for minutes.
        """
        best = self.best()
        if best is None or (len(self.goals) == 1 and not self.lasting):
            return () if best is None else (best,)
        kept = {c: v for c, v in self.values().items() if not broken_limit(v, self.tune)}
        if self.lasting:
            latencies_ns = {c: v.latency_ns for c, v in kept.items() if v.latency_ns is not None}
            return lasting.last_candidates(self.space.candidates, latencies_ns, best, self.facts, self.lasting)
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
            goal = self.searched[0]
            value = value_of(self.values()[best], goal)
            text = wording.size(int(value or 0)) if goal in OF_MEMORY else wording.duration(value)
            if goal in self.proposals and (bounds := self.proposals[goal].compared.get(self.space.default)):
                text += f", {bounds.low:.2f} to {bounds.high:.2f} times the advised"
            parts.append(f"leader {self.space.candidates[best].way} {text}")
        return f"{', '.join(parts)}; at most {core_progress.duration_text(left)} left"


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
            planned.id: (model, number)
            for model, search in searches.items()
            for number, planned in enumerate(search.space.candidates)
        }

    def due(self) -> tuple[campaign_planned.PlannedRun, int] | None:
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
                values=campaign_tuned.CandidateValues(size_bytes=size) if failure else values_of(run.result, size),
                reason=failure,
            )
        )

    def replay(self, runs: Iterable[RunRecord]) -> None:
        """Enter what the store has of this device; runs that failed for its sake are done again."""
        for run in runs:
            failure = run.result.failure
            self.order = max(self.order, run.round + 1)
            if run.planned in self._places and (failure is None or failure.code not in campaign_store.REPEATED):
                self.learn(run)


FEWEST_COMPARED = 2


def found_by(search: ModelSearch, device: str, model: str, left: str = "") -> campaign_tuned.TunedModel:
    """What a search found. `left` is why the device had to be left before the end, "" where it was not."""
    best = None if left else search.best()
    outcome, reason = _outcome(search, best, left)
    winner = best if outcome in campaign_tuned.ANSWERED else None
    space = search.space

    def name(candidate: int | None) -> str:
        return "" if candidate is None else space.candidates[candidate].id

    return campaign_tuned.TunedModel(
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


def _outcome(search: ModelSearch, best: int | None, left: str) -> tuple[campaign_tuned.TuneOutcome, str]:
    number, goal = len(search.seen), search.searched[0]
    spent = f"{number} {'run' if number == 1 else 'runs'} in {core_progress.duration_text(search.spent_seconds)}"
    if left:
        return campaign_tuned.TuneOutcome.LOST, f"{left}; {spent} are kept: go on with --resume"
    measured = search.values()
    last = next((run.reason for run in reversed(search.seen) if run.reason), "")
    end = search.proposals[goal]
    if not measured and search.seen and not end.uncertain:
        return campaign_tuned.TuneOutcome.ALL_FAILED, f"no candidate gave a result; the last: {last}"
    if len(measured) < min(FEWEST_COMPARED, len(search.space)) and end.uncertain:
        need = core_progress.duration_text(
            search.run_seconds * (FEWEST_COMPARED + 3 * CONFIRM_ROUNDS) / (1 - CONFIRM_SHARE)
        )
        failed = f"; no candidate gave a result, the last: {last}" if last and not measured else ""
        return (
            campaign_tuned.TuneOutcome.TOO_SMALL,
            f"{spent}: too few to compare anything; give at least {need}{failed}",
        )
    if best is None:
        # Why nothing that was measured may be chosen, by the candidate that is nearest to it
        nearest = sorted(measured.values(), key=lambda values: value_of(values, goal) or math.inf)
        broken = [limit for values in nearest if (limit := broken_limit(values, search.tune))]
        why = f"has a value for {goal.value}: the device gives none"
        if broken:
            why = f"keeps to the constraints; that of least {goal.value}: {broken[0].text}"
        return campaign_tuned.TuneOutcome.NONE_POSSIBLE, f"none of {len(measured)} measured {why}"
    if end.uncertain:
        kept = f"{core_progress.duration_text(search.reserved_seconds)} kept to confirm the answer"
        return campaign_tuned.TuneOutcome.BUDGET, f"{spent}, and {kept}: {end.done}"
    return campaign_tuned.TuneOutcome.DECIDED, f"{spent}: {end.done}"


def left_out(skipped: campaign_record.Skipped) -> campaign_tuned.TunedCandidate:
    """A candidate that was out before anything was measured."""
    why = campaign_tuned.Dropped(
        reason="; ".join(filter(None, (f"left out: {skipped.what}", skipped.remedy))), detail=skipped.why
    )
    return campaign_tuned.TunedCandidate(variant=skipped.variant, run=skipped.run, dropped=why)


def _candidates(search: ModelSearch, winner: int | None) -> Iterator[campaign_tuned.TunedCandidate]:
    """Every candidate with its fate: what ran first, then what was left out before."""
    dropped: dict[int, campaign_tuned.Dropped] = {}
    for goal in reversed(search.searched):
        if proposal := search.proposals.get(goal):
            dropped |= proposal.dropped
    values, runs = search.values(), Counter(run.candidate for run in search.seen)
    end = search.proposals.get(search.searched[0])
    unmeasured = "not measured: the search ended before" if winner is None else "not measured: others promised more"
    unmeasured = "not measured: the time was over" if end and end.uncertain else unmeasured
    measured = "measured; no winner was chosen" if winner is None else "measured, and not among the best"
    for number, planned in enumerate(search.space.candidates):
        broken = broken_limit(values[number], search.tune) if number in values else None
        usual = campaign_tuned.Dropped(reason=measured if number in runs else unmeasured)
        yield campaign_tuned.TunedCandidate(
            variant=planned.variant,
            run=planned.way.partition("/")[2],
            id=planned.id,
            processes=runs[number],
            values=values.get(number, campaign_tuned.CandidateValues(size_bytes=planned.size_bytes)),
            dropped=None if number == winner else dropped.get(number) or broken or usual,
        )
    yield from map(left_out, search.space.pruned)
