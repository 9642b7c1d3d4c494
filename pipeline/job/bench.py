"""What measuring needs: devices that are ready, an open store, a scratch folder and progress, whatever it is for."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.campaign.measure import CampaignPlan, UnfinishedDevice
from pipeline.campaign.plan import PlannedRun, planned_id
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.campaign.store import Store, open_store
from pipeline.core.files import scratch
from pipeline.core.output import DATABASE
from pipeline.core.progress import Progress
from pipeline.job.devices import OpenDevices, measure_all
from pipeline.job.folder import locked


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is stored of a campaign, by the id of the planned run, and the devices that could not finish."""

    campaign: CampaignRecord
    records: Mapping[str, Sequence[RunRecord]]
    left: Sequence[UnfinishedDevice]

    def of(self, run: PlannedRun) -> Sequence[RunRecord]:
        """The records of one run."""
        return self.records.get(planned_id(run), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(OpenDevices):
    """Open devices with a store of what they measured."""

    store: Store
    work: Path
    progress: Progress

    def measure(self, campaign: CampaignRecord, plan: CampaignPlan) -> Measured:
        """Run what of a plan is not stored yet; everything that is stored then."""
        self.store.start(campaign, self.facts.values())
        left = measure_all(plan, self.devices, self.store, self.work, self.progress) if plan.planned_runs else []
        records: dict[str, list[RunRecord]] = {}
        for record in self.store.runs(campaign.id):
            records.setdefault(record.planned, []).append(record)
        return Measured(campaign=self.store.campaign(campaign.id), records=records, left=left)


@contextlib.contextmanager
def bench(
    opening: contextlib.AbstractContextManager[OpenDevices], folder: Path | None, progress: Progress
) -> Iterator[Bench]:
    """The devices of `opened` or `opened_alone`, and the store of a folder that no other job may use meanwhile.

    Without a folder nothing is kept.
    """
    with contextlib.ExitStack() as stack:
        if folder:
            stack.enter_context(locked(folder))
        work = stack.enter_context(scratch(folder))
        store = stack.enter_context(open_store(f"sqlite:///{(folder or work) / DATABASE}"))
        field = stack.enter_context(opening)
        yield Bench(
            devices=field.devices, facts=field.facts, unusable=field.unusable, store=store, work=work, progress=progress
        )
