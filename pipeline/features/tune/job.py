"""The search for the best configuration as a job: searches on all devices, and the rounds that confirm what they found.

Two campaigns in the store: one whose runs the search decides, and then an ordinary one in rounds with the winners, the
defaults and the winners of other devices, which reports and releases are made of. The state of a search is what was
observed: one that is read back from the store goes on as if it had never stopped.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from device_runner.device import DeviceFacts
from pipeline import config as configs
from pipeline.campaign import denied as campaign_denied
from pipeline.campaign import measure as campaign_measure
from pipeline.campaign import plan as planning
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.config import Config
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core.errors import ConfigError, MissingError
from pipeline.core.progress import Progress
from pipeline.features.tune import lasting
from pipeline.features.tune.model_search import CONFIRM_ROUNDS, DeviceSearch, ModelSearch, found_by, left_out
from pipeline.features.tune.space import (
    TIMED,
    Lattice,
    distinct_candidates,
    lattice,
    space_of,
    without,
)
from pipeline.job import assemble, predicted, prepare
from pipeline.job import bench as job_bench
from pipeline.job import run as job_run

log = logging.getLogger(__name__)


DeviceModel = tuple[str, str]
"""A device and a model: what one search is of."""

NOT_A_PHONE = "android-host:"
"""Devices whose times say nothing of a phone's."""


def goals_on(device: str, tune_config: configs.TuneConfig) -> tuple[tuple[configs.Goal, ...], str]:
    """The goals that a device can measure, and why it cannot measure the others."""
    goals = tune_config.goal_list
    if device.startswith(NOT_A_PHONE) and TIMED & set(goals):
        return tuple(goal for goal in goals if goal not in TIMED), "its times are not a phone's"
    return goals, ""


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
    of_minutes: lasting.LastingPlan = lasting.NO_PLAN,
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
            searches[name, model] = ModelSearch(
                space=space_of(*space),
                tune=tune_config,
                goals=to_measure,
                lasting=of_minutes.candidates,
                facts=devices[name],
            )
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
    accuracy = next((accuracy for accuracy in prepared.accuracy if accuracy.variant == planned.variant), None)
    return accuracy.refused(config.accuracy.max_drop) if accuracy else ""


def tune(job: job_run.CampaignJob, work: Path, progress: Progress) -> assemble.EndedCampaign:
    """Search on every device at the same time, then confirm; returns the campaign of the confirmation.

    Raises MissingError where no device can measure the goals, and what opening devices raises.
    """
    of_minutes = lasting.plan_of(job.config, len(job.prepared))
    # Searches compare steady states: cold starts and minutes of load would take their time from the candidates.
    steady = msgspec.structs.replace(job.config.measure, mode=configs.MeasureMode.STEADY, profile=False)
    job = replace(job, config=msgspec.structs.replace(job.config, measure=steady))
    with job.bench(work, progress) as bench:
        libraries = job_bench.libraries_by_device(bench.facts, job.config.targets, job.options.library)
        spaces = search_spaces(job, bench, libraries)
        possible = [planned for candidates, _ in spaces.values() for planned in candidates]
        predictions, placements = predicted.predict(
            possible, bench.facts, job.config.targets, job.folder / storage.ARTIFACTS, bench.progress
        )
        searches, ended = searches_in(spaces, bench.facts, predictions, job.config.tune, of_minutes)

        candidates = [planned for search in searches.values() for planned in search.space.candidates]
        campaign = job.enter(bench.facts, candidates, bench.unusable, searching=True)
        # The plan of the runs that searches decide: short, as nothing of the labelled set is run
        plan = job.plan(campaign.id, planning.distinct(candidates), libraries, predictions)
        inputs = {name: replace(inputs, labelled=None) for name, inputs in plan.inputs.items()}
        plan = replace(plan, inputs=inputs)
        seconds = job.config.tune.minutes * 60 - of_minutes.seconds
        left = _searched(job, plan, searches, bench, seconds)
        tuned = [
            found_by(search, *device_and_model, left.get(device_and_model[0], ""))
            for device_and_model, search in searches.items()
        ] + ended

        confirmed = _to_confirm(tuned, searches)
        if of_minutes.candidates:
            both = (configs.MeasureMode.STEADY, configs.MeasureMode.SUSTAINED)
            minutes = msgspec.structs.replace(steady, mode=both, sustained_rounds=of_minutes.rounds)
            job = replace(job, config=msgspec.structs.replace(job.config, measure=minutes))
            last = {name for answer in tuned for name in answer.front}
            confirmed += [replace(run, mode=configs.MeasureMode.SUSTAINED) for run in confirmed if run.id in last]
        lost = [
            campaign_record.Skipped(device=answer.device, model=answer.model, what=answer.reason)
            for answer in tuned
            if not answer.winner
        ]
        campaign = job.enter(
            bench.facts, confirmed, [*bench.unusable, *lost], tuned=tuple(tuned), placements=placements
        )
        in_rounds = job.plan(campaign.id, planning.distinct(confirmed), libraries, predictions)
        rounds = msgspec.structs.replace(in_rounds.measure, rounds=CONFIRM_ROUNDS)
        later = bench.run(replace(in_rounds, measure=rounds))
        denied = bench.blame(plan) if job.options.blame else ()
        return assemble.EndedCampaign(campaign=campaign, left=left | later, denied=denied)


def _searched(
    job: job_run.CampaignJob,
    plan: campaign_measure.CampaignPlan,
    searches: Mapping[DeviceModel, ModelSearch],
    bench: campaign_measure.Bench,
    seconds: float,
) -> dict[str, str]:
    """Run the searches on all devices, from where the store says they are; an interruption says what is kept.

    Each device has so many seconds.

    Why devices could not finish.
    """
    runs = job.store.runs(plan.campaign)
    by_device = counting.grouped((device, (model, search)) for (device, model), search in searches.items())
    with bench.progress.stage("tune", len(by_device)) as stage:
        schedules = {}
        for device, models in by_device.items():
            line = stage.part(device, 1)
            schedule = DeviceSearch(dict(models), seconds, line.at, line.done)
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
    runs = {run.id: (run.model, run.way) for search in searches.values() for run in search.space.candidates}
    winners = {(answer.device, answer.model): runs[answer.winner] for answer in tuned if answer.winner}
    for answer in tuned:
        if answer.winner:
            candidates = {run.id: run for run in searches[answer.device, answer.model].space.candidates}
            by_run = {(run.model, run.way): name for name, run in candidates.items()}
            elsewhere = [by_run.get(run, "") for run in winners.values()]
            for name in (answer.ort_default, answer.documented, *answer.front, answer.winner, *elsewhere):
                if name in candidates:
                    chosen.setdefault(name, candidates[name])
    return list(chosen.values())
