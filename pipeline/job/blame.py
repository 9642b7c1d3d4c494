"""Which options are to blame for the crashes of a campaign: the devices are asked again, with fewer and fewer."""

from collections.abc import Mapping

from device_runner.device import Device, DeviceFacts
from device_runner.minimize import Denied
from device_runner.result import FailureKind, RunResult
from pipeline.campaign.deny_list import blame
from pipeline.campaign.measure import CampaignPlan
from pipeline.campaign.plan import lane_id
from pipeline.campaign.store import Store
from pipeline.core.progress import Progress


def blame_crashes(
    plan: CampaignPlan,
    devices: Mapping[str, Device],
    facts: Mapping[str, DeviceFacts],
    store: Store,
    progress: Progress,
) -> tuple[Denied, ...]:
    """What is newly denied for lanes that crashed in any round, also before this process; one device at a time."""
    crashes = _crashes(store, plan.campaign)
    lanes = [lane for lane in plan.lanes if lane_id(lane) in crashes and lane.device in devices]
    found = []
    with progress.stage("blame", len(lanes)) as stage:
        for lane in lanes:
            stage.at(lane.key)
            entry = blame(devices[lane.device], facts[lane.device], plan.spec(lane, 0), crashes[lane_id(lane)])
            found += [entry] if entry else []
            stage.done()
    return tuple(found)


def _crashes(store: Store, campaign: str) -> dict[str, RunResult]:
    """The last crash of each lane that crashed, by lane id."""
    return {
        run.spec.id.rpartition("#")[0]: run.result
        for run in store.runs(campaign)
        if run.result.failure and run.result.failure.kind is FailureKind.CRASH
    }
