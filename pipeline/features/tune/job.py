"""The search for the best configuration as a job: searches on all devices, and the rounds that confirm what they found.

Two campaigns in the store: one whose runs the search decides, and then an ordinary one in rounds with the winners, the
defaults and the winners of other devices, which reports and releases are made of.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from pipeline.campaign.measure import CampaignPlan, measure
from pipeline.campaign.plan import PlannedRun, distinct, known_denied, planned_id
from pipeline.campaign.record import CampaignRecord, Prediction, Skipped, TunedModel, TuneOutcome
from pipeline.config import Config, Goal, MeasureMode, TuneConfig, TuneStrategy
from pipeline.core.errors import ConfigError, MissingError
from pipeline.core.files import ARTIFACTS
from pipeline.core.progress import Progress
from pipeline.features.tune.answer import (
    CONFIRM_ROUNDS,
    TIMED,
    DeviceModel,
    DeviceSearch,
    ModelSearch,
    found_by,
    left_out,
)
from pipeline.features.tune.search import optuna_package
from pipeline.features.tune.space import Lattice, distinct_candidates, lattice, space_of, without
from pipeline.job.assemble import EndedCampaign
from pipeline.job.bench import Bench, libraries_by_device
from pipeline.job.prepare import Prepared, oldest_release, predict
from pipeline.job.run import CampaignJob
from pipeline.partition.placement import Placement

log = logging.getLogger(__name__)

NO_ENERGY = (
    "it measures no energy: batteries report whole percent, and a computer none; a run of seconds does not show in that"
)
NOT_A_PHONE = "android-host:"
"""Devices whose times say nothing of a phone's."""


@dataclass(slots=True)
class SearchField:
    """What is to be searched where: searches by device and model, what ended before it began, and what is predicted."""

    searches: dict[str, dict[str, ModelSearch]] = field(default_factory=dict)
    ended: list[TunedModel] = field(default_factory=list)
    predictions: dict[str, Prediction] = field(default_factory=dict)
    placements: tuple[Placement, ...] = ()

    @property
    def candidates(self) -> list[PlannedRun]:
        """All candidates of all searches."""
        models = [search for searches in self.searches.values() for search in searches.values()]
        return [planned for search in models for planned in search.space.candidates]


def goals_on(device: str, tune_config: TuneConfig) -> tuple[tuple[Goal, ...], str]:
    """The goals that a device can measure, and why it cannot measure the others."""
    goals = tuple(goal for goal in tune_config.goal_list if goal is not Goal.ENERGY)
    reasons = [] if len(goals) == len(tune_config.goal_list) else [NO_ENERGY]
    timed = TIMED & set(goals)
    if device.startswith(NOT_A_PHONE) and timed:
        goals = tuple(goal for goal in goals if goal not in timed)
        reasons.append("its times are not a phone's")
    return goals, "; ".join(reasons)


def search_field(job: CampaignJob, bench: Bench, libraries: Mapping[str, str | None]) -> SearchField:
    """The space of each model on each device.

    Raises MissingError where no device can measure a goal, or the strategy needs a package that is not there.
    """
    if job.config.tune.strategy is TuneStrategy.OPTUNA:
        optuna_package()
    searched = SearchField()
    spaces: dict[DeviceModel, Lattice] = {}
    refused: dict[str, str] = {}
    for name, facts in bench.facts.items():
        goals, refused[name] = goals_on(name, job.config.tune)
        if refused[name]:
            log.warning("%s: %s", name, refused[name])
        for prepared in job.prepared if goals else ():
            measurable = [artifact for artifact in prepared.artifacts if artifact.source in prepared.references]
            software_gpu = bench.devices[name].software_gpu
            space = lattice(job.config, measurable, facts, known_denied(), software_gpu=software_gpu)
            candidates, pruned = without(space, partial(_refusal, prepared, job.config))
            possible, refusals = job.possible(candidates, bench.devices, libraries)
            spaces[name, prepared.name] = list(possible), [*pruned, *refusals]
    if not any(goals_on(name, job.config.tune)[0] for name in bench.facts):
        raise MissingError(
            "no device can measure what is asked for", where=", ".join(bench.facts),
            why="; ".join(f"{name}: {reason}" for name, reason in refused.items()),
            remedy="choose among the goals latency, p90, memory and size, or other devices",
        )  # fmt: skip
    planned = [planned_run for candidates, _ in spaces.values() for planned_run in candidates]
    searched.predictions, searched.placements = predict(
        planned, bench.facts, oldest_release(job.config), job.folder / ARTIFACTS, bench.progress
    )
    for (name, model), space in spaces.items():
        _add(searched, job, distinct_candidates(space, bench.facts[name], searched.predictions), name, model)
    others = max(0, len(searched.searches) - 1)
    for searches in searched.searches.values():
        for search in searches.values():
            search.others = others
    return searched


def _add(searched: SearchField, job: CampaignJob, space: Lattice, device: str, model: str) -> None:
    """A search for a model on a device; where nothing is possible, that."""
    goals, _ = goals_on(device, job.config.tune)
    try:
        searchable = space_of(*_smallest(space, goals))
    except ConfigError as error:
        gone = tuple(map(left_out, space[1]))
        searched.ended.append(
            TunedModel(
                device=device, model=model, goals=tuple(goals), outcome=TuneOutcome.NONE_POSSIBLE,
                reason=f"{error.what}: {error.why}", candidates=gone,
            )
        )  # fmt: skip
        return
    searched.searches.setdefault(device, {})[model] = ModelSearch(space=searchable, tune=job.config.tune, goals=goals)


def _smallest(space: Lattice, goals: Sequence[Goal]) -> Lattice:
    """Where the size alone decides, the smallest files: no run is needed to know them."""
    if goals[0] is not Goal.SIZE or len(goals) > 1:
        return space
    least = min((planned.size_bytes for planned in space[0]), default=0)
    return without(
        space, lambda planned: f"its file is larger than {least} bytes" if planned.size_bytes > least else ""
    )


def _refusal(prepared: Prepared, config: Config, planned: PlannedRun) -> str:
    """Why an artifact may not ship however fast it is: its outputs, or its accuracy; or ""."""
    if any(check.failed for check in prepared.checks.get(planned.variant, ())):
        return "it failed the numeric check on this computer"
    accuracy = next((row for row in prepared.accuracy if row.variant == planned.variant), None)
    return accuracy.refused(config.accuracy.max_drop) if accuracy else ""


def tune(job: CampaignJob, work: Path, progress: Progress) -> EndedCampaign:
    """Search on every device at the same time, then confirm; returns the campaign of the confirmation.

    Raises MissingError where no device can measure the goals, and what opening devices raises.
    """
    # Searches compare steady states: cold starts and minutes of load would take their time from the candidates.
    steady = msgspec.structs.replace(job.config.measure, mode=MeasureMode.STEADY, profile=False)
    job = replace(job, config=msgspec.structs.replace(job.config, measure=steady))
    with job.bench(work, progress) as bench:
        libraries = libraries_by_device(bench.facts, job.config.targets, job.options.library)
        searched = search_field(job, bench, libraries)
        campaign = job.enter(bench.facts, searched.candidates, bench.unusable, searching=True)
        # The plan of the runs that searches decide: short, as nothing of the labelled set is run
        plan = job.plan(campaign.id, distinct(searched.candidates), libraries, searched.predictions)
        inputs = {name: replace(inputs, labelled=None) for name, inputs in plan.inputs.items()}
        plan = replace(plan, inputs=inputs)
        left = _searched(job, plan, searched, bench)
        tuned = [
            found_by(search, device, model, left.get(device, ""))
            for device, searches in searched.searches.items()
            for model, search in searches.items()
        ]
        confirmed, later = _confirmed(job, (*tuned, *searched.ended), searched, bench, libraries)
        denied = bench.blame(plan) if job.options.blame else ()
        return confirmed, left | later, denied


def _searched(job: CampaignJob, plan: CampaignPlan, searched: SearchField, bench: Bench) -> dict[str, str]:
    """Run the searches on all devices, from where the store says they are; an interruption says what is kept."""
    runs = job.store.runs(plan.campaign)
    with bench.progress.stage("tune", len(searched.searches)) as stage:
        schedules = {}
        for device, searches in searched.searches.items():
            line = stage.part(device, 1)
            schedule = DeviceSearch(searches, job.config.tune.minutes * 60, line.at, line.done)
            schedule.replay(run for run in runs if run.result.device == device)
            schedules[device] = schedule
        plan = replace(plan, schedules=schedules)
        try:
            return measure(plan, {name: bench.devices[name] for name in schedules}, job.store, bench.work)
        except KeyboardInterrupt as error:
            kept = len(job.store.finished(plan.campaign))
            raise KeyboardInterrupt(f"{kept} runs of the search are kept; nothing was chosen yet") from error


def _confirmed(
    job: CampaignJob,
    tuned: Sequence[TunedModel],
    searched: SearchField,
    bench: Bench,
    libraries: Mapping[str, str | None],
) -> tuple[CampaignRecord, dict[str, str]]:
    """Measure winners, defaults and the winners of the other devices in rounds; the campaign of that, in any case, and
    why devices could not finish.
    """
    left_out = [
        Skipped(device=search.device, model=search.model, what=search.reason) for search in tuned if not search.winner
    ]
    planned = list(_to_confirm(tuned, searched))
    campaign = job.enter(
        bench.facts, planned, [*bench.unusable, *left_out],
        tuned=tuple(tuned), placements=searched.placements,
    )  # fmt: skip
    plan = job.plan(campaign.id, distinct(planned), libraries, searched.predictions)
    plan = replace(plan, measure=msgspec.structs.replace(plan.measure, rounds=CONFIRM_ROUNDS))
    return campaign, bench.run(plan)


def _to_confirm(tuned: Sequence[TunedModel], searched: SearchField) -> list[PlannedRun]:
    """By device and model: the defaults first, as baselines, then what was found there and on other devices."""
    planned: dict[str, PlannedRun] = {}
    runs = {planned_id(each): (each.model, each.run_name) for each in searched.candidates}
    winners = {(search.device, search.model): runs[search.winner] for search in tuned if search.winner}
    for search in tuned:
        if search.winner:
            candidates = {
                planned_id(each): each for each in searched.searches[search.device][search.model].space.candidates
            }
            by_run = {(each.model, each.run_name): name for name, each in candidates.items()}
            elsewhere = [by_run.get(winners[other.device, other.model], "") for other in tuned if other.winner]
            for name in (search.ort_default, search.documented, *search.front, search.winner, *elsewhere):
                if name in candidates:
                    planned.setdefault(name, candidates[name])
    return list(planned.values())
