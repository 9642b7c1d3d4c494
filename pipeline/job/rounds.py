"""The rounds of a campaign: those that choose what ships, and fresh ones that say how good the choice is.

What looks best of many is partly lucky: in the rounds that chose it its interval holds the truth too rarely (measuring
S.3). So the choice and what it is compared with run again, in rounds that choose nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.campaign.looks import OpenTurns, looking
from pipeline.campaign.measure import CampaignPlan, UnfinishedDevice
from pipeline.campaign.plan import PlannedRun, order_of_round, planned_id
from pipeline.campaign.record import FRESH_FROM, FRESH_ROUNDS, CampaignRecord
from pipeline.campaign.store import Store
from pipeline.core.progress import Progress
from pipeline.job.assemble import assemble, compared_runs
from pipeline.job.devices import OpenDevices, measure_all


def measure_and_confirm(
    plan: CampaignPlan,
    planned_runs: Sequence[PlannedRun],
    campaign: CampaignRecord,
    field: OpenDevices,
    store: Store,
    work: Path,
    progress: Progress,
    shorter: str = "",
    here_seconds: float | None = None,
) -> list[UnfinishedDevice]:
    """Run the rounds of a plan, then the fresh ones of what was chosen; devices that ended early have none."""
    looks = with_looks(plan, planned_runs, store)
    left = measure_all(looks, field.devices, store, work, progress, shorter, here_seconds)
    ended = {one.device for one in left}
    chosen = to_confirm(campaign, store)
    again = [run for run in plan.planned_runs if run.device not in ended and planned_id(run) in chosen]
    if again:
        opened = {name: field.devices[name] for name in sorted({run.device for run in again})}
        left += measure_all(fresh_plan(plan, again, store), opened, store, work, progress)
    return left


def with_looks(plan: CampaignPlan, planned_runs: Sequence[PlannedRun], store: Store) -> CampaignPlan:
    """The plan with schedules that end rounds early, where that is asked for."""
    return replace(plan, schedules=looking(plan, planned_runs, store)) if plan.measure.rounds == "auto" else plan


def fresh_plan(plan: CampaignPlan, again: Sequence[PlannedRun], store: Store) -> CampaignPlan:
    """The plan of the fresh rounds of some runs."""
    rounds = {name: [run for run in again if run.device == name] for name in {run.device for run in again}}
    schedules = {
        name: OpenTurns(
            ((run, FRESH_FROM + number) for number in range(FRESH_ROUNDS) for run in order_of_round(runs, number)),
            store,
            plan.campaign,
        )
        for name, runs in rounds.items()
    }
    return replace(plan, planned_runs=again, schedules=schedules)


def to_confirm(campaign: CampaignRecord, store: Store) -> dict[str, str]:
    """The runs of every choice that rests on a comparison: ids of planned runs with their devices."""
    found = assemble(store, campaign)
    return {
        run.id: run.device for choice in found.choices for run in compared_runs(found.record, choice, found.report.rows)
    }
