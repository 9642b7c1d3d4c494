"""The search for the best configuration as a job: searches on all devices, and the rounds that confirm what they found.

Two campaigns in the store: one whose runs the search decides, and then an ordinary one in rounds with the winners, the
defaults and the winners of other devices, which reports and releases are made of.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from pipeline.campaign.measure import CampaignPlan, UnfinishedDevice, measure
from pipeline.campaign.plan import PlannedRun, distinct, planned_id
from pipeline.campaign.record import CampaignRecord, Skipped
from pipeline.campaign.tuned import TunedModel
from pipeline.config import MeasureMode
from pipeline.core.progress import Progress
from pipeline.job.campaign import CampaignJob
from pipeline.job.devices import EndedCampaign, OpenDevices, blame_crashes, libraries_by_device, measure_all, opened
from pipeline.job.tune_field import SearchField, search_field
from pipeline.job.tune_found import found_by
from pipeline.job.tune_search import CONFIRM_ROUNDS, DeviceSearch


def measured(job: CampaignJob, work: Path, progress: Progress) -> EndedCampaign:
    """The campaign of a job: nothing measured, a search, or everything in rounds, as its options say."""
    if job.options.convert_only:
        return job.enter_unmeasured()
    if not job.options.tune:
        return job.measure(work, progress)
    # Searches compare steady states: cold starts and minutes of load would take their time from the candidates.
    measure_config = msgspec.structs.replace(job.config.measure, mode=MeasureMode.STEADY, profile=False)
    return tune(replace(job, config=msgspec.structs.replace(job.config, measure=measure_config)), work, progress)


def tune(job: CampaignJob, work: Path, progress: Progress) -> EndedCampaign:
    """Search on every device at the same time, then confirm; returns the campaign of the confirmation.

    Raises MissingError where no device can measure the goals, and what opening devices raises.
    """
    with opened(job.device_names(), job.options.wait_seconds) as devices:
        libraries = libraries_by_device(devices.facts, job.config.targets, job.options.library)
        found = search_field(job, devices, libraries, progress)
        campaign = job.enter(
            devices.facts, found.candidates, devices.unusable, lambda one: msgspec.structs.replace(one, searching=True)
        )
        plan = _search_plan(job, campaign, found, libraries)
        left = _searched(job, plan, found, devices, work, progress)
        reasons = {one.device: one.reason for one in left}
        tuned = [
            found_by(search, device, model, reasons.get(device, ""))
            for device, searches in found.searches.items()
            for model, search in searches.items()
        ]
        ended = _confirmed(job, (*tuned, *found.ended), found, devices, libraries, work, progress)
        denied = blame_crashes(plan, devices.devices, devices.facts, job.store, progress) if job.options.blame else ()
        lost = {one.device: one for one in (*left, *ended.left)}
        return replace(ended, left=tuple(lost.values()), denied=denied)


def _search_plan(
    job: CampaignJob, campaign: CampaignRecord, found: SearchField, libraries: Mapping[str, str | None]
) -> CampaignPlan:
    """The plan of the runs that searches decide: short, as nothing of the labelled set is run."""
    plan = job.plan(campaign.id, distinct(found.candidates), libraries, found.predicted.by_run)
    inputs = {name: replace(inputs, labelled=None) for name, inputs in plan.inputs.items()}
    return replace(plan, inputs=inputs)


def _searched(
    job: CampaignJob, plan: CampaignPlan, found: SearchField, devices: OpenDevices, work: Path, progress: Progress
) -> list[UnfinishedDevice]:
    """Run the searches on all devices, from where the store says they are; an interruption says what is kept."""
    runs = job.store.runs(plan.campaign)
    with progress.stage("tune", len(found.searches)) as stage:
        schedules = {}
        for device, searches in found.searches.items():
            line = stage.part(device, 1)
            schedule = DeviceSearch(searches, job.config.tune.minutes * 60, line.at, line.done)
            schedule.replay(run for run in runs if run.result.device == device)
            schedules[device] = schedule
        plan = replace(plan, schedules=schedules)
        try:
            return measure(plan, {name: devices.devices[name] for name in schedules}, job.store, work)
        except KeyboardInterrupt as error:
            kept = len(job.store.finished(plan.campaign))
            raise KeyboardInterrupt(f"{kept} runs of the search are kept; nothing was chosen yet") from error


def _confirmed(
    job: CampaignJob,
    tuned: Sequence[TunedModel],
    found: SearchField,
    devices: OpenDevices,
    libraries: Mapping[str, str | None],
    work: Path,
    progress: Progress,
) -> EndedCampaign:
    """Measure winners, defaults and the winners of the other devices in rounds; the campaign of that, in any case."""
    left_out = [Skipped(device=one.device, model=one.model, what=one.reason) for one in tuned if not one.winner]
    planned = list(_to_confirm(tuned, found))
    campaign = job.enter(
        devices.facts, planned, [*devices.unusable, *left_out],
        lambda one: msgspec.structs.replace(one, tuned=tuple(tuned), placements=found.predicted.placements),
    )  # fmt: skip
    plan = job.plan(campaign.id, distinct(planned), libraries, found.predicted.by_run)
    plan = replace(plan, measure=msgspec.structs.replace(plan.measure, rounds=CONFIRM_ROUNDS))
    measured = {run.device: devices.devices[run.device] for run in planned}
    return EndedCampaign(campaign=campaign, left=tuple(measure_all(plan, measured, job.store, work, progress)))


def _to_confirm(tuned: Sequence[TunedModel], found: SearchField) -> list[PlannedRun]:
    """By device and model: the defaults first, as baselines, then what was found there and on other devices."""
    planned: dict[str, PlannedRun] = {}
    runs = {planned_id(each): (each.model, each.run_name) for each in found.candidates}
    winners = {(one.device, one.model): runs[one.winner] for one in tuned if one.winner}
    for one in tuned:
        if one.winner:
            own = {planned_id(each): each for each in found.searches[one.device][one.model].space.candidates}
            by_run = {(each.model, each.run_name): name for name, each in own.items()}
            elsewhere = [by_run.get(winners[other.device, other.model], "") for other in tuned if other.winner]
            for name in (one.ort_default, one.documented, *one.front, one.winner, *elsewhere):
                if name in own:
                    planned.setdefault(name, own[name])
    return list(planned.values())
