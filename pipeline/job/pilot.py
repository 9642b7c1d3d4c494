"""A pilot of a config: the baseline of each device and model a few times against itself, before the campaign."""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeline.campaign.deny_list import known_denied
from pipeline.campaign.options import check_runs, options_name
from pipeline.campaign.pilot import PERCENTS, PILOT_ROUNDS, PilotAnswer, pilot_answer
from pipeline.campaign.plan import PlannedRun, baseline_of, decision_rule, distinct, in_modes, plan_runs, planned_id
from pipeline.campaign.store import Store, open_store
from pipeline.config import Config, MeasureMode
from pipeline.core.progress import Progress
from pipeline.job.campaign import CampaignJob, JobOptions
from pipeline.job.devices import libraries_by_device, measure_all, opened
from pipeline.job.gate import check_against_targets
from pipeline.job.prepare import find, prepare
from pipeline.job.record import new_campaign

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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared, _ = prepare(short, find(config), folder, folder, progress)
        artifacts = [artifact for one in prepared for artifact in one.artifacts]
        checked = check_against_targets(short, artifacts, folder)
        with open_store(f"sqlite:///{folder / 'pilot.sqlite'}") as store:
            job = CampaignJob(short, options, prepared, folder, store, checked)
            return _measured(job, config, store, progress, percents)


def _measured(job: CampaignJob, config: Config, store: Store, progress: Progress, percents: Sequence[float]) -> Pilot:
    measurable = [a for one in job.prepared for a in one.artifacts if a.source in one.references]
    with opened(job.device_names()) as field, tempfile.TemporaryDirectory() as work:
        legal, skipped = plan_runs(config.runs, measurable, list(field.facts.values()), known_denied())
        libraries = libraries_by_device(field.facts, config.targets, job.options.library)
        possible, refused = job.possible(legal, field.devices, libraries)
        first = {place: baseline_of(group, config.measure.baseline) for place, group in _by_place(possible).items()}
        pairs = {
            place: (run, dataclasses.replace(run, variant=f"{run.variant}{AGAIN}")) for place, run in first.items()
        }
        campaign = new_campaign(config.name)
        store.start(campaign)
        plan = job.plan(campaign.id, [run for pair in pairs.values() for run in pair], libraries, {})
        left = measure_all(dataclasses.replace(plan, judge=None), field.devices, store, Path(work), progress)
        groups = {place: distinct(in_modes(group, config.measure)) for place, group in _by_place(possible).items()}
        found = dict(_answers(pairs, groups, campaign.id, config, store, percents))
    return Pilot(
        answers=tuple(one for one in found.values() if isinstance(one, PilotAnswer)),
        missing=(
            *(one for one in found.values() if isinstance(one, str)),
            *(f"{one.device}: {one.reason}" for one in left),
            *(f"{one.device}: {one.text}" for one in (*field.unusable, *(() if pairs else (*skipped, *refused)))),
        ),
    )


Place = tuple[str, str]


def _by_place(runs: Sequence[PlannedRun]) -> dict[Place, list[PlannedRun]]:
    places: dict[Place, list[PlannedRun]] = {}
    for run in runs:
        places.setdefault((run.device, run.model), []).append(run)
    return places


def _answers(
    pairs: Mapping[Place, tuple[PlannedRun, PlannedRun]],
    groups: Mapping[Place, Sequence[PlannedRun]],
    campaign: str,
    config: Config,
    store: Store,
    percents: Sequence[float],
) -> Iterator[tuple[Place, PilotAnswer | str]]:
    records = store.runs(campaign)
    for place, (first, again) in pairs.items():
        own = [[record for record in records if record.planned == planned_id(run)] for run in (first, again)]
        lasting = sum(run.mode is MeasureMode.SUSTAINED for run in groups[place])
        answer = pilot_answer(
            *own,
            run=options_name(first.options),
            runs_in_round=len(groups[place]) - lasting,
            planned_rounds=config.measure.timed_rounds,
            lasting_seconds=lasting * config.measure.sustained_seconds,
            percents=percents,
            rule=decision_rule(config.measure),
        )
        failures = [record.result.failure.message for record in (*own[0], *own[1]) if record.result.failure]
        why = failures[-1] if failures else "too few of its rounds gave times"
        yield place, answer or f"{place[0]}: {place[1]}: {first.run_name}: {why}"
