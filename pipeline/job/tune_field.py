"""What a search chooses from on each device: the spaces of all models, and the goals that a device can measure."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pipeline.campaign.deny_list import known_denied
from pipeline.campaign.plan import PlannedRun
from pipeline.campaign.tune.sampler import optuna_package
from pipeline.campaign.tune.space import space_of
from pipeline.campaign.tuned import TunedCandidate, TunedModel, TuneOutcome
from pipeline.config import Config, Goal, TuneConfig, TuneStrategy
from pipeline.core.errors import ConfigError, MissingError
from pipeline.core.progress import Progress
from pipeline.job.campaign import CampaignJob
from pipeline.job.devices import OpenDevices
from pipeline.job.predict import Predicted, predict
from pipeline.job.prepare import ARTIFACTS, Prepared
from pipeline.job.tune_search import TIMED, ModelSearch
from pipeline.job.tune_space import Lattice, distinct_candidates, lattice, without

log = logging.getLogger(__name__)

Place = tuple[str, str]
"""Device and model."""

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
    predicted: Predicted = field(default_factory=Predicted)

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


def search_field(
    job: CampaignJob, devices: OpenDevices, libraries: Mapping[str, str | None], progress: Progress
) -> SearchField:
    """The space of each model on each device.

    Raises MissingError where no device can measure a goal, or the strategy needs a package that is not there.
    """
    if job.config.tune.strategy is TuneStrategy.OPTUNA:
        optuna_package()
    found = SearchField()
    spaces: dict[Place, Lattice] = {}
    refused: dict[str, str] = {}
    for name, facts in devices.facts.items():
        goals, refused[name] = goals_on(name, job.config.tune)
        if refused[name]:
            log.warning("%s: %s", name, refused[name])
        for one in job.prepared if goals else ():
            measurable = [artifact for artifact in one.artifacts if artifact.source in one.references]
            space = without(lattice(job.config, measurable, facts, known_denied()), partial(_refusal, one, job.config))
            possible, refusals = job.possible(space.candidates, devices.devices, libraries)
            spaces[name, one.model.name] = Lattice(candidates=tuple(possible), pruned=(*space.pruned, *refusals))
    if not any(goals_on(name, job.config.tune)[0] for name in devices.facts):
        raise MissingError(
            "no device can measure what is asked for", where=", ".join(devices.facts),
            why="; ".join(f"{name}: {reason}" for name, reason in refused.items()),
            remedy="choose among the goals latency, p90, memory and size, or other devices",
        )  # fmt: skip
    planned = [one for space in spaces.values() for one in space.candidates]
    found.predicted = predict(planned, devices.facts, job.checked.release, job.folder / ARTIFACTS, progress)
    for (name, model), space in spaces.items():
        _add(found, job, distinct_candidates(space, devices.facts[name], found.predicted.by_run), name, model)
    others = max(0, len(found.searches) - 1)
    for searches in found.searches.values():
        for search in searches.values():
            search.others = others
    return found


def _add(found: SearchField, job: CampaignJob, space: Lattice, device: str, model: str) -> None:
    """A search for a model on a device; where nothing is possible, that."""
    goals, _ = goals_on(device, job.config.tune)
    try:
        made = space_of(_smallest(space, goals).candidates, _smallest(space, goals).pruned)
    except ConfigError as error:
        gone = tuple(
            TunedCandidate(variant=one.variant, run=one.run, dropped=f"left out: {one.text}") for one in space.pruned
        )
        found.ended.append(
            TunedModel(
                device=device, model=model, goals=tuple(goals), outcome=TuneOutcome.NONE_POSSIBLE,
                reason=f"{error.what}: {error.why}", candidates=gone,
            )
        )  # fmt: skip
        return
    found.searches.setdefault(device, {})[model] = ModelSearch(space=made, tune=job.config.tune, goals=goals)


def _smallest(space: Lattice, goals: Sequence[Goal]) -> Lattice:
    """Where the size alone decides, the smallest files: no run is needed to know them."""
    if goals[0] is not Goal.SIZE or len(goals) > 1:
        return space
    least = min((planned.size_bytes for planned in space.candidates), default=0)
    return without(space, lambda one: f"its file is larger than {least} bytes" if one.size_bytes > least else "")


def _refusal(one: Prepared, config: Config, planned: PlannedRun) -> str:
    """Why an artifact may not ship however fast it is: its outputs, or its accuracy; or ""."""
    if any(check.failed for check in one.checks.get(planned.variant, ())):
        return "it failed the numeric check on this computer"
    accuracy = next((found for found in one.accuracy if found.variant == planned.variant), None)
    return accuracy.refused(config.accuracy.max_drop) if accuracy else ""
