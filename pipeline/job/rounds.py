"""The rounds of a campaign: those that choose what ships, and fresh ones that say how good the choice is.

What looks best of many is partly lucky: in the rounds that chose it its interval holds the truth too rarely (measuring
S.3). So the choice and what it is compared with run again, in rounds that choose nothing.
"""

from collections.abc import Iterator, Sequence
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
) -> list[UnfinishedDevice]:
    """Run the rounds of a plan, then the fresh ones of what was chosen; devices that ended early have none."""
    if plan.measure.rounds == "auto":
        plan = replace(plan, schedules=looking(plan, planned_runs, store))
    left = measure_all(plan, field.devices, store, work, progress)
    ended = {one.device for one in left}
    again = [run for run in _to_confirm(plan.planned_runs, campaign, store) if run.device not in ended]
    if again:
        devices = {run.device for run in again}
        rounds = {name: [run for run in again if run.device == name] for name in devices}
        schedules = {
            name: OpenTurns(
                ((run, FRESH_FROM + number) for number in range(FRESH_ROUNDS) for run in order_of_round(runs, number)),
                store,
                campaign.id,
            )
            for name, runs in rounds.items()
        }
        fresh = replace(plan, planned_runs=again, schedules=schedules)
        opened = {name: field.devices[name] for name in sorted(devices)}
        left += measure_all(fresh, opened, store, work, progress)
    return left


def _to_confirm(planned_runs: Sequence[PlannedRun], campaign: CampaignRecord, store: Store) -> Iterator[PlannedRun]:
    """The runs of every choice that rests on a comparison."""
    found = assemble(store, campaign)
    names = {run.id for choice in found.choices for run in compared_runs(found.record, choice, found.report.rows)}
    yield from (run for run in planned_runs if planned_id(run) in names)
