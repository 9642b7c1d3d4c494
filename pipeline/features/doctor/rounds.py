"""Rounds of a diagnosis: remedies beside the start, until a time, and without those that are decided."""

import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from pipeline.campaign.measure import OpenTurns, measure
from pipeline.campaign.plan import Inputs, PlannedRun, planned_id
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import DecisionRule
from pipeline.campaign.statistics.compare import LOOKS
from pipeline.campaign.store import Store
from pipeline.core.progress import Stage
from pipeline.features.doctor.bench import DoctorBench, OutputsOfStart, RemedyTrial
from pipeline.features.doctor.diagnosis import MeasuredRemedy, latency_comparisons, measured, open_remedies
from pipeline.job.record import new_campaign

FEWEST, MOST = LOOKS[0], LOOKS[-1]
"""Rounds: fewer give no verdict, and more are not worth the device's time."""


NO_RANKS = "these times cannot be compared: they are not those of a phone"


def seconds_of(runs: Iterable[RunRecord]) -> float:
    """The device's time that runs took."""
    return sum(run.result.elapsed_ns for run in runs) / 1e9


class Rounds:
    """Measures remedies beside the start in rounds, until a time or until all are decided."""

    def __init__(self, bench: DoctorBench, store: Store, inputs: Inputs, judge: OutputsOfStart) -> None:
        self.bench = bench
        self.store = store
        self.inputs = inputs
        self.judge = judge
        self.of_start: list[RunRecord] = []
        self.reason = ""
        self.number = 0
        self.seconds_needed = 0.0
        self.seconds_stored = 0.0

    def measured(
        self, start: PlannedRun, tried: RemedyTrial, until: float, name: str, rule: DecisionRule, *, least: int
    ) -> dict[str, MeasuredRemedy]:
        """Every remedy with its numbers, by name; at least so many rounds, also when the time is over.

        With looks in the rule, remedies that are decided are not measured any more.
        """
        self.judge.lossy |= {planned_id(run) for key, run in tried.runs.items() if tried.shells[key].remedy.lossy}
        runs = [start, *tried.runs.values()]
        campaign = self._campaign(name, runs)
        self.seconds_stored += seconds_of(self.store.runs(campaign))
        with self.bench.progress.stage(name, len(runs) * FEWEST) as stage:
            self._run(campaign, runs, until - self.seconds_stored, stage, rule, least)
        records = self._records(campaign)
        self.of_start = records.get(planned_id(start), [])
        others = {key: records.get(planned_id(run), []) for key, run in tried.runs.items()}
        compared = latency_comparisons(self.of_start, others, rule)
        results = {}
        for key, shell in tried.shells.items():
            records_of = others.get(key, [])
            remedy = measured(shell, self.of_start, records_of, compared.get(key), rule)
            few = self.reason or f"the time was over before {FEWEST} rounds"
            why = few if remedy.rounds < FEWEST else "" if remedy.latency else NO_RANKS
            results[key] = msgspec.structs.replace(remedy, why=remedy.why or why)
        return results

    def _campaign(self, name: str, runs: Sequence[PlannedRun]) -> str:
        """The campaign to go on with, where that is asked for and it has a whole first round; else a new one.

        Without the first round's start there is nothing that the other outputs could be compared with.
        """
        bench = self.bench
        library = bench.device.library_for(bench.order.library).sha256
        what = (bench.device.name, library, runs[0].sha256, [run.key for run in runs], bench.order.measure)
        wanted = f"doctor-{name}-{hashlib.sha256(msgspec.json.encode(what, order='sorted')).hexdigest()[:24]}"
        campaign = new_campaign(wanted)
        stored = self.store.campaigns(wanted) if bench.order.resume else []
        for known in reversed(stored):
            turns = OpenTurns([(run, 0) for run in runs], self.store, known.id)
            if turns.due() is None:
                return known.id
        self.store.start(campaign, [bench.facts])
        return campaign.id

    def _run(
        self, campaign: str, going: list[PlannedRun], until: float, stage: Stage, rule: DecisionRule, least: int
    ) -> None:
        seconds = 0.0
        for self.number in range(1, MOST + 1):
            began = time.monotonic()
            if self.number > least and began + seconds > until:
                self.number -= 1
                return
            self.reason = self._one_round(campaign, going, stage)
            if self.reason:
                return
            seconds = max(time.monotonic() - began, seconds_of(self.store.runs(campaign, number=self.number - 1)))
            if self.number == 1:
                self.seconds_needed = FEWEST * seconds
                going = self._affordable(campaign, going, seconds, until) if least < FEWEST else going
            if self.number in rule.looks:
                going = self._undecided(campaign, going, rule)
            if len(going) < 2:
                return

    def _one_round(self, campaign: str, going: Sequence[PlannedRun], stage: Stage) -> str:
        """Run one round more of what goes on; why the device had to be left, or ""."""
        plan = self.bench.plan(campaign, going, self.inputs)
        plan = replace(
            plan,
            measure=msgspec.structs.replace(plan.measure, rounds=self.number, profile=False),
            judge=self.judge if self.number == 1 else None,
        )
        device = self.bench.device

        def show(_device: str, run: PlannedRun, number: int) -> None:
            stage.at(f"round {number + 1}: {run.run_name}")
            if number < FEWEST:
                stage.done()

        left = measure(plan, {device.name: device}, self.store, self.bench.work, show)
        return left[0].reason if left else ""

    def _records(self, campaign: str) -> dict[str, list[RunRecord]]:
        groups: dict[str, list[RunRecord]] = {}
        for record in self.store.runs(campaign):
            groups.setdefault(record.planned, []).append(record)
        return groups

    def _affordable(self, campaign: str, going: Sequence[PlannedRun], seconds: float, until: float) -> list[PlannedRun]:
        """The start and as many of the fastest as FEWEST rounds have time for; always one."""
        left = max(0.0, until - time.monotonic())
        count = max(2, int(left / max(seconds, 1e-9) * len(going) / (FEWEST - 1)))
        medians = {run.planned: run.result.median_ns for run in self.store.runs(campaign, number=0)}
        kept = [going[0], *sorted(going[1:], key=lambda run: medians.get(planned_id(run)) or math.inf)[: count - 1]]
        return [run for run in going if run in kept]

    def _undecided(self, campaign: str, going: Sequence[PlannedRun], rule: DecisionRule) -> list[PlannedRun]:
        """Without the remedies of which it is known whether they are faster."""
        records = self._records(campaign)
        others = {planned_id(run): records.get(planned_id(run), []) for run in going[1:]}
        kept = open_remedies(records.get(planned_id(going[0]), []), others, rule)
        return [going[0], *(run for run in going[1:] if planned_id(run) in kept)]
