"""The search for the best configuration as a job: searches on all devices, the rounds that confirm what they found, and
what came of it.

Two campaigns in the store: one whose runs the search decides, and then an ordinary one in rounds with the winners, the
defaults and the winners of other devices, which reports and releases are made of. The state of a search is what was
observed: one that is read back from the store goes on as if it had never stopped.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import Status
from pipeline import config as configs
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import store as campaign_store
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.config import Config
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core import progress as core_progress
from pipeline.core.errors import ConfigError, MissingError
from pipeline.core.progress import Progress
from pipeline.core.variant import Artifact
from pipeline.features.tune.race import FIRST_LOOK, Proposal
from pipeline.features.tune.search import COST_KNOWN, WITHIN, Observation, Search
from pipeline.features.tune.space import (
    OF_MEMORY,
    TIMED,
    Lattice,
    Space,
    beats,
    broken_limit,
    distinct_candidates,
    failure_of,
    lattice,
    medians,
    nondominated,
    ratio_of,
    space_of,
    tails_of,
    value_of,
    values_of,
    without,
)
from pipeline.job import assemble, predicted, prepare
from pipeline.job import bench as job_bench
from pipeline.job import run as job_run
from pipeline.job import targets as job_targets
from pipeline.report import wording

log = logging.getLogger(__name__)

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

    `others` is how many further configurations the confirming rounds will have.
    """

    space: Space
    tune: configs.TuneConfig
    goals: tuple[configs.Goal, ...]
    others: int = 0
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
        return self.budget_seconds - self._confirming_seconds(2 + (1 if len(self.goals) == 1 else MOST_FRONT))

    def _confirming_seconds(self, configurations: int) -> float:
        confirming = (configurations + self.others) * CONFIRM_ROUNDS * self.run_seconds
        return min(confirming, CONFIRM_SHARE * self.budget_seconds)

    def _chosen_seconds(self) -> float:
        """What confirming takes where the search ends now: a winner that is a default needs no rounds of its own."""
        chosen = {self.space.default, self.space.ort_default, *self.front()} - {None}
        return self._confirming_seconds(len(chosen))

    @property
    def searched(self) -> tuple[configs.Goal, ...]:
        """Goals that runs are proposed for: sizes are known, energy is refused before."""
        timed = tuple(goal for goal in self.goals if goal is not configs.Goal.SIZE)
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
            goal = self.searched[0]
            value = value_of(self.values()[best], goal)
            text = wording.size(int(value or 0)) if goal in OF_MEMORY else wording.duration(value)
            if goal in self.proposals and (bounds := self.proposals[goal].compared.get(self.space.default)):
                text += f", {bounds.low:.2f} to {bounds.high:.2f} times the advised"
            parts.append(f"leader {self.space.candidates[best].run_name} {text}")
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
            run=planned.run_name.partition("/")[2],
            id=planned.id,
            processes=runs[number],
            values=values.get(number, campaign_tuned.CandidateValues(size_bytes=planned.size_bytes)),
            dropped=None if number == winner else dropped.get(number) or broken or usual,
        )
    yield from map(left_out, search.space.pruned)


DeviceModel = tuple[str, str]
"""A device and a model: what one search is of."""

NO_ENERGY = (
    "it measures no energy: batteries report whole percent, and a computer none; a run of seconds does not show in that"
)

NOT_A_PHONE = "android-host:"
"""Devices whose times say nothing of a phone's."""


def goals_on(device: str, tune_config: configs.TuneConfig) -> tuple[tuple[configs.Goal, ...], str]:
    """The goals that a device can measure, and why it cannot measure the others."""
    goals = tuple(goal for goal in tune_config.goal_list if goal is not configs.Goal.ENERGY)
    reasons = [] if len(goals) == len(tune_config.goal_list) else [NO_ENERGY]
    timed = TIMED & set(goals)
    if device.startswith(NOT_A_PHONE) and timed:
        goals = tuple(goal for goal in goals if goal not in timed)
        reasons.append("its times are not a phone's")
    return goals, "; ".join(reasons)


def search_spaces(
    job: job_run.CampaignJob, bench: campaign_measure.Bench, libraries: Mapping[str, str | None]
) -> dict[DeviceModel, Lattice]:
    """What can be tried of each model on each device that measures any goal, and what cannot.

    Raises MissingError where no device can measure a goal.
    """
    spaces: dict[DeviceModel, Lattice] = {}
    goals = {name: goals_on(name, job.config.tune) for name in bench.facts}
    for name, facts in bench.facts.items():
        if goals[name][1]:
            log.warning("%s: %s", name, goals[name][1])
        for prepared in job.prepared if goals[name][0] else ():
            measurable = [artifact for artifact in prepared.artifacts if artifact.source in prepared.references]
            software_gpu = bench.devices[name].software_gpu
            space = lattice(job.config, measurable, facts, campaign_denied.known_denied(), software_gpu=software_gpu)
            candidates, pruned = without(space, partial(_refusal, prepared, job.config))
            possible, refusals = job.possible(candidates, bench.devices, libraries)
            spaces[name, prepared.name] = Lattice(list(possible), [*pruned, *refusals])
    if not any(measured for measured, _ in goals.values()):
        raise MissingError(
            "no device can measure what is asked for",
            where=", ".join(bench.facts),
            why="; ".join(f"{name}: {reason}" for name, (_, reason) in goals.items()),
            remedy="choose among the goals latency, p90, memory and size, or other devices",
        )
    return spaces


def searches_in(
    spaces: Mapping[DeviceModel, Lattice],
    devices: Mapping[str, DeviceFacts],
    predictions: Mapping[str, campaign_record.Prediction],
    tune_config: configs.TuneConfig,
) -> tuple[dict[DeviceModel, ModelSearch], list[campaign_tuned.TunedModel]]:
    """The searches to run, and those that ended before they began, as nothing is possible."""
    searches: dict[DeviceModel, ModelSearch] = {}
    ended = []
    for (name, model), whole in spaces.items():
        space, to_measure = distinct_candidates(whole, devices[name], predictions), goals_on(name, tune_config)[0]
        if to_measure == (configs.Goal.SIZE,):  # the smallest files: no run is needed to know them
            least = min((planned.size_bytes for planned in space.kept), default=0)
            space = without(space, partial(_larger, least))
        try:
            searches[name, model] = ModelSearch(space=space_of(*space), tune=tune_config, goals=to_measure)
        except ConfigError as error:
            ended.append(
                campaign_tuned.TunedModel(
                    device=name,
                    model=model,
                    goals=to_measure,
                    outcome=campaign_tuned.TuneOutcome.NONE_POSSIBLE,
                    reason=f"{error.what}: {error.why}",
                    candidates=tuple(map(left_out, space[1])),
                )
            )
    for search in searches.values():
        search.others = len({device for device, _ in searches}) - 1
    return searches, ended


def _larger(least: int, planned: campaign_planned.PlannedRun) -> str:
    return f"its file is larger than {least} bytes" if planned.size_bytes > least else ""


def _refusal(prepared: prepare.Prepared, config: Config, planned: campaign_planned.PlannedRun) -> str:
    """Why an artifact may not ship however fast it is: its outputs, or its accuracy; or ""."""
    if any(check.failed for check in prepared.checks.get(planned.variant, ())):
        return "it failed the numeric check on this computer"
    accuracy = next((row for row in prepared.accuracy if row.variant == planned.variant), None)
    return accuracy.refused(config.accuracy.max_drop) if accuracy else ""


def tune(job: job_run.CampaignJob, work: Path, progress: Progress) -> assemble.EndedCampaign:
    """Search on every device at the same time, then confirm; returns the campaign of the confirmation.

    Raises MissingError where no device can measure the goals, and what opening devices raises.
    """
    # Searches compare steady states: cold starts and minutes of load would take their time from the candidates.
    steady = msgspec.structs.replace(job.config.measure, mode=configs.MeasureMode.STEADY, profile=False)
    job = replace(job, config=msgspec.structs.replace(job.config, measure=steady))
    with job.bench(work, progress) as bench:
        libraries = job_bench.libraries_by_device(bench.facts, job.config.targets, job.options.library)
        spaces = search_spaces(job, bench, libraries)
        possible = [planned for candidates, _ in spaces.values() for planned in candidates]
        release, artifacts = job_targets.oldest_release(job.config.targets), job.folder / storage.ARTIFACTS
        predictions, placements = predicted.predict(possible, bench.facts, release, artifacts, bench.progress)
        searches, ended = searches_in(spaces, bench.facts, predictions, job.config.tune)

        candidates = [planned for search in searches.values() for planned in search.space.candidates]
        campaign = job.enter(bench.facts, candidates, bench.unusable, searching=True)
        # The plan of the runs that searches decide: short, as nothing of the labelled set is run
        plan = job.plan(campaign.id, planning.distinct(candidates), libraries, predictions)
        inputs = {name: replace(inputs, labelled=None) for name, inputs in plan.inputs.items()}
        plan = replace(plan, inputs=inputs)
        left = _searched(job, plan, searches, bench)
        tuned = [found_by(search, *place, left.get(place[0], "")) for place, search in searches.items()] + ended

        confirmed = _to_confirm(tuned, searches)
        lost = [
            campaign_record.Skipped(device=row.device, model=row.model, what=row.reason)
            for row in tuned
            if not row.winner
        ]
        campaign = job.enter(
            bench.facts, confirmed, [*bench.unusable, *lost], tuned=tuple(tuned), placements=placements
        )
        in_rounds = job.plan(campaign.id, planning.distinct(confirmed), libraries, predictions)
        rounds = msgspec.structs.replace(in_rounds.measure, rounds=CONFIRM_ROUNDS)
        later = bench.run(replace(in_rounds, measure=rounds))
        denied = bench.blame(plan) if job.options.blame else ()
        return campaign, left | later, denied


def _searched(
    job: job_run.CampaignJob,
    plan: campaign_measure.CampaignPlan,
    searches: Mapping[DeviceModel, ModelSearch],
    bench: campaign_measure.Bench,
) -> dict[str, str]:
    """Run the searches on all devices, from where the store says they are; an interruption says what is kept.

    Why devices could not finish.
    """
    runs = job.store.runs(plan.campaign)
    by_device = counting.grouped((device, (model, search)) for (device, model), search in searches.items())
    with bench.progress.stage("tune", len(by_device)) as stage:
        schedules = {}
        for device, models in by_device.items():
            line = stage.part(device, 1)
            schedule = DeviceSearch(dict(models), job.config.tune.minutes * 60, line.at, line.done)
            schedule.replay(run for run in runs if run.result.device == device)
            schedules[device] = schedule
        plan = replace(plan, schedules=schedules)
        try:
            return campaign_measure.measure(
                plan, {name: bench.devices[name] for name in schedules}, job.store, bench.work
            )
        except KeyboardInterrupt as error:
            kept = len(job.store.finished(plan.campaign))
            raise KeyboardInterrupt(f"{kept} runs of the search are kept; nothing was chosen yet") from error


def _to_confirm(
    tuned: Sequence[campaign_tuned.TunedModel], searches: Mapping[DeviceModel, ModelSearch]
) -> list[campaign_planned.PlannedRun]:
    """What is measured in rounds, each device and model after the other: the defaults first, as baselines, then what
    was found there and on other devices.
    """
    chosen: dict[str, campaign_planned.PlannedRun] = {}
    runs = {run.id: (run.model, run.run_name) for search in searches.values() for run in search.space.candidates}
    winners = {(row.device, row.model): runs[row.winner] for row in tuned if row.winner}
    for row in tuned:
        if row.winner:
            candidates = {run.id: run for run in searches[row.device, row.model].space.candidates}
            by_run = {(run.model, run.run_name): name for name, run in candidates.items()}
            elsewhere = [by_run.get(run, "") for run in winners.values()]
            for name in (row.ort_default, row.documented, *row.front, row.winner, *elsewhere):
                if name in candidates:
                    chosen.setdefault(name, candidates[name])
    return list(chosen.values())


Confirmed = Mapping[str, Mapping[int, campaign_tuned.CandidateValues]]
"""What the confirming rounds say of configurations, by planned run and round; none of which a round failed."""


def tune_report(
    campaign: CampaignRecord,
    runs: Sequence[RunRecord],
    artifacts: Sequence[Artifact],
    devices: Mapping[str, DeviceFacts],
) -> campaign_tuned.TuneReport:
    """Everything that searches came to, from the campaign that confirmed them."""
    record = campaign.job()
    sizes = {(artifact.model, artifact.variant.name): artifact.total_bytes for artifact in artifacts}
    rounds: dict[str, dict[int, campaign_tuned.CandidateValues]] = {}
    failed: set[str] = set()
    goals = record.config.tune.goal_list
    for run in runs:
        if failure_of(run, goals) or run.result.status is not Status.OK:
            failed.add(run.planned)
        else:
            values = values_of(run.result, sizes[run.model, run.variant])
            rounds.setdefault(run.planned, {})[run.round] = values
    confirmed = {
        planned.id: rounds[name]
        for planned in record.planned
        if (name := planned.same_as or planned.id) in rounds and name not in failed
    }
    answers = tuple(_answer(record, search, confirmed) for search in record.tuned)
    costs = tuple(_costs(answers, record.planned, confirmed))
    runs_confirmed = [planned for planned in record.planned if planned.id in confirmed]
    percent = record.config.tune.share_percent
    return campaign_tuned.TuneReport(
        name=campaign.name,
        campaign=campaign.id,
        answers=answers,
        choices=tuple(_choices(answers, costs, runs_confirmed, devices, artifacts, percent / 100)),
        costs=costs,
        share_percent=percent,
    )


def _answer(
    record: campaign_record.JobRecord, search: campaign_tuned.TunedModel, confirmed: Confirmed
) -> campaign_tuned.TuneAnswer:
    """The winner of a search as it was confirmed; one that breaks a constraint then is none."""
    if search.winner not in confirmed:
        if not search.winner:
            return campaign_tuned.TuneAnswer(search=search)
        left = campaign_tuned.Dropped(
            reason="the rounds that confirm the winner were not measured: go on with --resume"
        )
        lost = msgspec.structs.replace(
            _won_by(search, "", left), outcome=campaign_tuned.TuneOutcome.LOST, reason=left.text
        )
        return campaign_tuned.TuneAnswer(search=lost)
    goals = tuple(configs.Goal(goal) for goal in search.goals)
    names = (search.winner, *search.front, search.documented, search.ort_default)
    values = {name: medians(list(confirmed[name].values())) for name in names if name in confirmed}
    limits = {name: broken_limit(value, record.config.tune) for name, value in values.items()}
    kept = [name for name in search.front if name in confirmed and not limits[name]]
    if broken := limits[search.winner]:
        if not kept:
            gone = _won_by(search, "", broken)
            gone = msgspec.structs.replace(gone, outcome=campaign_tuned.TuneOutcome.NONE_POSSIBLE, reason=broken.text)
            return campaign_tuned.TuneAnswer(search=gone)
        best = min(kept, key=lambda name: value_of(values[name], goals[0]) or float("inf"))
        search = _won_by(search, best, broken)
    runs = {planned.id: planned for planned in record.planned}
    default = search.documented
    if default in confirmed and default != search.winner and not limits[default]:
        ratio = ratio_of(confirmed[search.winner], confirmed[default], goals[0])
        if ratio and beats(confirmed[search.winner], confirmed[default], goals) is False:
            # A search whose winner was not confirmed to be better: what the documentation advises stays
            name = f"{runs[search.winner].variant}/{runs[search.winner].run}"
            why = (
                f"{name} was not confirmed to be better than the default: {ratio.ratio:.3f} times its {search.goals[0]}"
            )
            bounded = ratio.low is not None and ratio.high is not None
            bounds = f" ({ratio.low:.3f} to {ratio.high:.3f})" if bounded else ""
            tails = tails_of(confirmed[search.winner], confirmed[default], goals[0])
            worse = [tail for tail in tails if tail.ratio > 1]
            bounds += f", {wording.tails(worse)}" if worse else ""
            changed = _won_by(search, default, campaign_tuned.Dropped(reason=why + bounds))
            search = msgspec.structs.replace(changed, reason=f"{search.reason}; {why}{bounds}")
    defaults: dict[Literal["documentation", "onnxruntime"], str] = {
        "documentation": search.documented,
        "onnxruntime": search.ort_default,
    }
    # The winner is of it although another may have come out below it by chance: that was not shown
    within = {name: value for name, value in values.items() if not limits[name]}
    front = [*dict.fromkeys((search.winner, *nondominated(within, goals)))] if len(goals) > 1 else []
    front.sort(key=lambda name: value_of(values[name], goals[0]) or 0.0)
    return campaign_tuned.TuneAnswer(
        search=search,
        variant=runs[search.winner].variant,
        run=runs[search.winner].run,
        values=values[search.winner],
        confirmed_rounds=len(confirmed[search.winner]),
        gains=tuple(_gains(search.winner, defaults, runs, confirmed, goals)),
        front=tuple(
            campaign_tuned.FrontPoint(variant=runs[name].variant, run=runs[name].run, values=values[name])
            for name in front
        ),
    )


def _gains(
    winner: str,
    defaults: Mapping[Literal["documentation", "onnxruntime"], str],
    runs: Mapping[str, campaign_record.RecordedRun],
    confirmed: Confirmed,
    goals: Sequence[configs.Goal],
) -> Iterator[campaign_tuned.Gain]:
    """How a winner does beside the defaults in each goal, and in means and percentiles that say something else."""
    for than, name in defaults.items():
        if name not in confirmed or name == winner:
            continue
        both = confirmed[winner], confirmed[name]
        gain = partial(campaign_tuned.Gain, than=than, variant=runs[name].variant, run=runs[name].run)
        for goal in goals:
            if (ratio := ratio_of(*both, goal)) is None:
                continue
            yield gain(goal=goal.value, ratio=ratio.ratio, low=ratio.low, high=ratio.high, rounds=ratio.rounds)
            for tail in tails_of(*both, goal):
                alike = tail.ratio < 1 and ratio.shown_below
                if tail.shown and not alike and tail.of.value not in goals:
                    yield gain(goal=tail.of.value, ratio=tail.ratio, low=tail.low, high=tail.high, rounds=ratio.rounds)


def _won_by(search: campaign_tuned.TunedModel, winner: str, why: campaign_tuned.Dropped) -> campaign_tuned.TunedModel:
    """A search with another winner, "" for none; `why` the first one is none after all."""
    fates = {search.winner: why, winner: None}
    candidates = (
        msgspec.structs.replace(candidate, dropped=fates.get(candidate.id, candidate.dropped))
        for candidate in search.candidates
    )
    return msgspec.structs.replace(search, winner=winner, candidates=tuple(candidates))


def _costs(
    answers: Sequence[campaign_tuned.TuneAnswer], planned: Sequence[campaign_record.RecordedRun], confirmed: Confirmed
) -> Iterator[campaign_tuned.SharedCost]:
    """What it costs each device to run the winner of another, where both were measured there."""
    rounds = {run.names: confirmed[run.id] for run in planned if run.id in confirmed}
    won = [answer for answer in answers if answer.variant]
    for winner in won:
        device, model = winner.search.device, winner.search.model
        for there in won:
            other = rounds.get((device, model, there.variant, there.run))
            if there is winner or there.search.model != model or other is None:
                continue
            ratio = ratio_of(
                other, rounds[device, model, winner.variant, winner.run], configs.Goal(winner.search.goals[0])
            )
            if ratio:
                yield campaign_tuned.SharedCost(
                    model=model,
                    device=device,
                    winner_of=there.search.device,
                    variant=there.variant,
                    run=there.run,
                    ratio=ratio.ratio,
                    low=ratio.low,
                    high=ratio.high,
                )


Configuration = tuple[str, str]
"""Variant and run."""


def _choices(
    answers: Sequence[campaign_tuned.TuneAnswer],
    costs: Sequence[campaign_tuned.SharedCost],
    confirmed: Sequence[campaign_record.RecordedRun],
    devices: Mapping[str, DeviceFacts],
    artifacts: Sequence[Artifact],
    share: float,
) -> Iterator[campaign_tuned.ClassChoice]:
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
        classes: dict[campaign_tuned.TunedClass, list[str]] = {}
        for device in won:
            classes.setdefault(campaign_tuned.TunedClass.of(devices[device]), []).append(device)
        for configuration, members in cover(classes, set(won.values()), cost, share).items():
            names = tuple(device for each in members for device in classes[each])
            worst = [cost.get((device, configuration)) for device in names]
            runs = (run for name in names for run in confirmed if run.names == (name, model, *configuration))
            yield campaign_tuned.ClassChoice(
                model=model,
                classes=tuple(members),
                devices=names,
                variant=configuration[0],
                file=files[model, configuration[0]],
                run=configuration[1],
                options=next(runs).options,
                cost=None if None in worst else max((loss for loss in worst if loss is not None), default=None),
            )


def cover(
    classes: Mapping[campaign_tuned.TunedClass, Sequence[str]],
    configurations: Iterable[Configuration],
    cost: Mapping[tuple[str, Configuration], float],
    share: float,
) -> dict[Configuration, list[campaign_tuned.TunedClass]]:
    """Configurations with the classes that run them; the one that serves most comes first. `cost` is by device."""

    def of_class(kind: campaign_tuned.TunedClass, configuration: Configuration) -> float:
        return max(cost.get((device, configuration), float("inf")) for device in classes[kind])

    left, candidates = list(classes), sorted(configurations)
    chosen: dict[Configuration, list[campaign_tuned.TunedClass]] = {}
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
