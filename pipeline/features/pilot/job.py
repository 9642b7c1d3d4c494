"""A pilot of a config: the baseline of each device and model a few times against itself, before the campaign."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pipeline.campaign.options import check_runs, options_name
from pipeline.campaign.plan import (
    PlannedRun,
    baseline_of,
    decision_rule,
    distinct,
    in_modes,
    known_denied,
    plan_runs,
    planned_id,
)
from pipeline.config import Config, MeasureMode
from pipeline.core.progress import Progress
from pipeline.features.pilot.rounds import PERCENTS, PILOT_ROUNDS, PilotAnswer, pilot_answer
from pipeline.job.bench import Bench, bench, libraries_by_device, opened, require_library
from pipeline.job.campaign import CampaignJob, JobOptions
from pipeline.job.prepare import find, prepare
from pipeline.job.record import new_campaign
from pipeline.job.ship import check_against_targets

AGAIN = " again"
"""Behind the variant of the baseline's second run in a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """What is known before a campaign, and which devices and models gave no answer, with the reason."""

    answers: tuple[PilotAnswer, ...]
    missing: tuple[str, ...]


def pilot(config: Config, options: JobOptions, progress: Progress, percents: Sequence[float] = PERCENTS) -> Pilot:
    """Measure the baselines of a config in a few rounds; nothing is kept but what conversion caches.

    Raises what `run_job` raises before it measures.
    """
    check_runs(config.runs)
    steady = msgspec.structs.replace(
        config.measure, rounds=PILOT_ROUNDS, profile=False, mode=MeasureMode.STEADY, perf_test=None
    )
    short = msgspec.structs.replace(config, measure=steady)
    # Devices come first: what they lack would otherwise be told after minutes of conversion.
    with bench(opened(options.devices or config.devices, options.wait_seconds), None, progress) as here:
        require_library(here.devices.values(), options.library)
        prepared, _ = prepare(short, find(config), here.work, here.work, progress)
        artifacts = [artifact for model in prepared for artifact in model.artifacts]
        checked = check_against_targets(short, artifacts, here.work)
        return _measured(CampaignJob(short, options, prepared, here.work, here.store, checked), config, here, percents)


def _measured(job: CampaignJob, config: Config, here: Bench, percents: Sequence[float]) -> Pilot:
    measurable = [
        artifact for model in job.prepared for artifact in model.artifacts if artifact.source in model.references
    ]
    legal, skipped = plan_runs(config.runs, measurable, list(here.facts.values()), known_denied())
    libraries = libraries_by_device(here.facts, config.targets, job.options.library)
    possible, refused = job.possible(legal, here.devices, libraries)
    places: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in possible:
        places.setdefault((run.device, run.model), []).append(run)
    pairs = []
    for group in places.values():
        baseline = baseline_of(group, config.measure.baseline)
        pairs.append((baseline, dataclasses.replace(baseline, variant=f"{baseline.variant}{AGAIN}")))
    campaign = new_campaign(config.name)
    plan = job.plan(campaign.id, [run for pair in pairs for run in pair], libraries, {})
    records, left = here.measure(campaign, dataclasses.replace(plan, judge=None))
    answers, missing = [], []
    for (first, again), group in zip(pairs, places.values(), strict=True):
        twice = records.get(planned_id(first), []), records.get(planned_id(again), [])
        in_round = distinct(in_modes(group, config.measure))
        lasting = sum(run.mode is MeasureMode.SUSTAINED for run in in_round)
        answer = pilot_answer(
            *twice,
            run=options_name(first.options),
            runs_in_round=len(in_round) - lasting,
            planned_rounds=config.measure.timed_rounds,
            lasting_seconds=lasting * config.measure.sustained_seconds,
            percents=percents,
            rule=decision_rule(config.measure),
        )
        if answer:
            answers.append(answer)
            continue
        failures = [run.result.failure.message for runs in twice for run in runs if run.result.failure]
        why = failures[-1] if failures else "too few of its rounds gave times"
        missing.append(f"{first.device}: {first.model}: {first.run_name}: {why}")
    missing += [f"{device.device}: {device.reason}" for device in left]
    unusable = (*here.unusable, *(() if pairs else (*skipped, *refused)))
    missing += [f"{reason.device}: {reason.text}" for reason in unusable]
    return Pilot(answers=tuple(answers), missing=tuple(missing))
