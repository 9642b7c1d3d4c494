"""Rounds that end when every comparison is decided (`rounds = "auto"`): what is decided at a look is not run any more.

A schedule of its device, whose answers follow from the runs that are stored: a campaign that goes on decides the same.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from device_runner.result import Status
from pipeline.campaign.measure import CampaignPlan, Schedule
from pipeline.campaign.plan import PlannedRun, baselines, decision_rule, planned_id
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import Round, RunGroup
from pipeline.campaign.statistics.compare import undecided
from pipeline.campaign.store import Store
from pipeline.config import MeasureMode

log = logging.getLogger(__name__)

Turn = tuple[PlannedRun, int]
"""A planned run and the number of its round."""


def looking(plan: CampaignPlan, planned_runs: Sequence[PlannedRun], store: Store) -> dict[str, Schedule]:
    """The schedule of each device; `planned_runs` are all, also those that run the same as another."""
    compared = baselines(planned_runs, plan.measure.baseline)
    stored = [run for run in store.runs(plan.campaign) if run.result.failure is None]
    return {
        device: RoundsWithLooks(plan, device, compared, stored, store)
        for device in {planned.device for planned in plan.planned_runs}
    }


class OpenTurns:
    """The turns of one device that are not stored yet, in their order; a run that failed has no more of them."""

    def __init__(self, turns: Iterable[Turn], store: Store, campaign: str) -> None:
        self.turns = tuple(turns)
        self.done = set(store.finished(campaign))
        self.given_up = set(store.failed(campaign))

    def is_open(self, planned: PlannedRun, number: int) -> bool:
        """Whether a turn is to be run, as far as is known now."""
        name = planned_id(planned)
        return name not in self.given_up and (name, number) not in self.done

    def due(self) -> Turn | None:
        """The first turn that is open."""
        return next((turn for turn in self.turns if self.is_open(*turn)), None)

    def learn(self, run: RunRecord) -> None:
        """A run that failed is not due again."""
        self.done.add((run.planned, run.round))
        if run.result.failure is not None:
            self.given_up.add(run.planned)


class RoundsWithLooks(OpenTurns):
    """The rounds of one device, of which fewer and fewer runs are left."""

    def __init__(
        self,
        plan: CampaignPlan,
        device: str,
        compared: Mapping[str, str],
        stored: Iterable[RunRecord],
        store: Store,
    ) -> None:
        super().__init__(plan.turns([run for run in plan.planned_runs if run.device == device]), store, plan.campaign)
        self.plan = plan
        self.device = device
        self.compared = compared
        self.runs = {planned_id(run): run for run in plan.planned_runs if run.device == device}
        self.rounds: dict[str, list[Round]] = {name: [] for name in self.runs}
        self.open: dict[int, set[str]] = {}
        for run in stored:
            if run.planned in self.runs:
                self._keep(run)

    def is_open(self, planned: PlannedRun, number: int) -> bool:
        """Whether a turn is to be run, and the last look has not decided it."""
        return super().is_open(planned, number) and planned_id(planned) in self._wanted(number)

    def learn(self, run: RunRecord) -> None:
        """What a run measured counts at the next look."""
        super().learn(run)
        if run.result.failure is None:
            self._keep(run)

    def _keep(self, run: RunRecord) -> None:
        if run.result.status is Status.OK and not run.spec.profile:
            timed = Round(number=run.round, latencies_ns=run.result.latencies_ns, marks=run.result.marks)
            self.rounds[run.planned].append(timed)

    def _wanted(self, number: int) -> Collection[str]:
        """What runs in a round: all before the first look and with the profiler, else what the last look left open."""
        looks = decision_rule(self.plan.measure).looks
        look = max((look for look in looks if look <= number), default=0)
        if not look or self.plan.is_profiled(number):
            return self.runs
        if look not in self.open:
            self.open[look] = self._undecided(look)
        return self.open[look]

    def _undecided(self, look: int) -> set[str]:
        """The runs whose comparison more rounds may decide, and their baselines; says so once. Cold starts have no more
        rounds: nothing is decided by them.
        """
        left: set[str] = set()
        count = 0
        steady = [name for name, run in self.runs.items() if run.mode is MeasureMode.STEADY]
        for baseline in dict.fromkeys(self.compared[name] for name in steady):
            others = [name for name in steady if name != baseline and self.compared[name] == baseline]
            groups = [self._group(name, look) for name in others if name not in self.given_up]
            found = undecided(groups, self._group(baseline, look), decision_rule(self.plan.measure))
            open_names = {group.key for group in found} if baseline not in self.given_up else set()
            left |= open_names | ({baseline} if open_names else set())
            count += len(open_names)
        if count:
            most = self.plan.measure.timed_rounds
            log.warning("%s: %d comparisons are open after %d rounds of at most %d", self.device, count, look, most)
        return left

    def _group(self, name: str, look: int) -> RunGroup:
        return RunGroup(key=name, rounds=tuple(timed for timed in self.rounds[name] if timed.number < look))
