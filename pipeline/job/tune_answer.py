"""From the confirming rounds of searches to their answer: gains, Pareto fronts, and what each class of devices runs.

Pure functions of what is stored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from device_runner.device import DeviceFacts
from device_runner.minimize import class_of
from device_runner.result import Status
from pipeline.campaign.record import CampaignRecord, JobRecord, RecordedRun, RunRecord
from pipeline.campaign.statistics import ratio_interval
from pipeline.campaign.tuned import (
    CandidateValues,
    ClassChoice,
    FrontPoint,
    Gain,
    SharedCost,
    TuneAnswer,
    TunedClass,
    TunedModel,
    TuneOutcome,
    TuneReport,
)
from pipeline.config import Goal, Target
from pipeline.core.variant import Artifact
from pipeline.job.tune_search import broken_limit, failure_of, medians, nondominated, value_of, values_of
from pipeline.release.choose import Choice, suits


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What the confirming rounds say of one configuration on one device, by round; none where a round failed."""

    run: RecordedRun
    rounds: Mapping[int, CandidateValues]

    @property
    def values(self) -> CandidateValues:
        """The medians of its rounds."""
        return medians(list(self.rounds.values()))


RatioBounds = tuple[float, float | None, float | None, int]
"""A ratio, its 95 % bounds (None where it was not measured, or too seldom) and the number of rounds."""

FEWEST_ROUNDS = 4
"""Rounds below which nothing is shown."""


def ratio_of(one: Confirmation, other: Confirmation, goal: Goal) -> RatioBounds | None:
    """The value of one relative to another's, by the rounds that both have, with 95 % bounds and their number.

    Bounds are None where nothing varies (sizes) or rounds are too few; None where a value is missing.
    """
    pairs = [
        (mine, theirs)
        for number, values in one.rounds.items()
        if number in other.rounds
        and (mine := value_of(values, goal)) and (theirs := value_of(other.rounds[number], goal))
    ]  # fmt: skip
    if not pairs:
        return None
    logs = np.log([mine / theirs for mine, theirs in pairs])
    found = ratio_interval(logs, 0.95) if float(np.ptp(logs)) > 0 else None
    if found is None:
        return float(np.exp(np.median(logs))), None, None, len(pairs)
    return found.ratio, found.low, found.high, len(pairs)


def tune_report(
    campaign: CampaignRecord,
    runs: Sequence[RunRecord],
    artifacts: Sequence[Artifact],
    devices: Mapping[str, DeviceFacts],
) -> TuneReport:
    """Everything that searches came to, from the campaign that confirmed them."""
    record = campaign.job()
    confirmed = _confirmed(record, runs, artifacts)
    answers = tuple(_answer(record, one, confirmed.get((one.device, one.model), {})) for one in record.tuned)
    costs = tuple(_costs(answers, confirmed))
    percent = record.config.tune.share_percent
    return TuneReport(
        name=campaign.name,
        campaign=campaign.id,
        answers=answers,
        choices=tuple(_choices(answers, costs, confirmed, devices, artifacts, percent / 100)),
        costs=costs,
        share_percent=percent,
    )


Place = tuple[str, str]


def _confirmed(
    record: JobRecord, runs: Iterable[RunRecord], artifacts: Sequence[Artifact]
) -> dict[Place, dict[str, Confirmation]]:
    """By device and model: what was confirmed, by the id of the planned run."""
    sizes = {(one.model, one.variant.name): one.size_bytes for one in artifacts}
    rounds: dict[str, dict[int, CandidateValues]] = {}
    failed: set[str] = set()
    goals = record.config.tune.goal_list
    for run in runs:
        if failure_of(run, goals) or run.result.status is not Status.OK:
            failed.add(run.planned)
        else:
            found = values_of(run.result, sizes[run.model, run.variant])
            rounds.setdefault(run.planned, {})[run.round] = found
    by_place: dict[Place, dict[str, Confirmation]] = {}
    for one in record.planned:
        name = one.same_as or one.id
        if name in rounds and name not in failed:
            by_place.setdefault((one.device, one.model), {})[one.id] = Confirmation(one, rounds[name])
    return by_place


def _answer(record: JobRecord, found: TunedModel, confirmed: Mapping[str, Confirmation]) -> TuneAnswer:
    """The winner of a search as it was confirmed; one that breaks a constraint then is none."""
    winner = confirmed.get(found.winner)
    if winner is None:
        lost = "the rounds that confirm the winner were not measured: go on with --resume"
        return TuneAnswer(search=_without_winner(found, TuneOutcome.LOST, lost) if found.winner else found)
    goals = tuple(Goal(goal) for goal in found.goals)
    kept = {name: one for name in found.front if (one := confirmed.get(name)) and not _broken(record, one)}
    if _broken(record, winner):
        if not kept:
            return TuneAnswer(search=_without_winner(found, TuneOutcome.NONE_POSSIBLE, _broken(record, winner)))
        broken = _broken(record, winner)
        winner = min(kept.values(), key=lambda one: value_of(one.values, goals[0]) or float("inf"))
        found = _won_by(found, winner.run.id, broken)
    default = confirmed.get(found.documented)
    if default and default is not winner and not _broken(record, default):
        ratio = ratio_of(winner, default, goals[0])
        if ratio and not (ratio[2] < 1 if ratio[2] is not None else ratio[0] < 1 and ratio[3] >= FEWEST_ROUNDS):
            found = _in_default_s_favour(found, winner, ratio)
            winner = default
    numbers = dict(enumerate(kept.values()))
    best = nondominated({number: one.values for number, one in numbers.items()}, goals) if len(goals) > 1 else []
    return TuneAnswer(
        search=found,
        variant=winner.run.variant,
        run=winner.run.run,
        values=winner.values,
        confirmed_rounds=len(winner.rounds),
        gains=tuple(_gains(found, winner, confirmed, goals)),
        front=tuple(
            FrontPoint(variant=one.run.variant, run=one.run.run, values=one.values)
            for one in sorted((numbers[n] for n in best), key=lambda one: value_of(one.values, goals[0]) or 0.0)
        ),
    )


def _in_default_s_favour(found: TunedModel, winner: Confirmation, ratio: RatioBounds) -> TunedModel:
    """A search whose winner was not confirmed to be better: what the documentation advises stays."""
    name = f"{winner.run.variant}/{winner.run.run}"
    said = f"{name} was not confirmed to be better than the default: {ratio[0]:.3f} times its {found.goals[0]}"
    bounds = f" ({ratio[1]:.3f} to {ratio[2]:.3f})" if ratio[1] is not None and ratio[2] is not None else ""
    changed = _won_by(found, found.documented, said + bounds)
    return msgspec.structs.replace(changed, reason=f"{found.reason}; {said}{bounds}")


def _won_by(found: TunedModel, winner: str, why: str) -> TunedModel:
    """A search with another winner, "" for none; `why` the first one is none after all."""
    fates = {found.winner: why, winner: ""}
    candidates = (msgspec.structs.replace(one, dropped=fates.get(one.id, one.dropped)) for one in found.candidates)
    return msgspec.structs.replace(found, winner=winner, candidates=tuple(candidates))


def _broken(record: JobRecord, one: Confirmation) -> str:
    return broken_limit(one.values, record.config.tune)


def _without_winner(found: TunedModel, outcome: TuneOutcome, reason: str) -> TunedModel:
    return msgspec.structs.replace(_won_by(found, "", reason), outcome=outcome, reason=reason)


def _gains(
    found: TunedModel, winner: Confirmation, confirmed: Mapping[str, Confirmation], goals: Sequence[Goal]
) -> Iterator[Gain]:
    """How the winner compares with both defaults, for each goal."""
    names: tuple[tuple[Literal["documentation", "onnxruntime"], str], ...] = (
        ("documentation", found.documented),
        ("onnxruntime", found.ort_default),
    )
    for than, name in names:
        other = confirmed.get(name)
        for goal in goals if other and other is not winner else ():
            ratio = ratio_of(winner, other, goal) if other else None
            if ratio and other:
                yield Gain(
                    than=than, goal=goal.value, variant=other.run.variant, run=other.run.run, ratio=ratio[0],
                    low=ratio[1], high=ratio[2], rounds=ratio[3],
                )  # fmt: skip


def class_of_device(facts: DeviceFacts) -> TunedClass:
    """The class of a device."""
    known = class_of(facts)
    return TunedClass(chip=known.chip, api_level=known.api_level, abi=facts.abis[0] if facts.abis else "")


def _costs(
    answers: Sequence[TuneAnswer], confirmed: Mapping[Place, Mapping[str, Confirmation]]
) -> Iterator[SharedCost]:
    """What it costs each device to run the winner of another, where both were measured there."""
    won = [one for one in answers if one.variant]
    for here in won:
        place = confirmed[here.search.device, here.search.model]
        by_run = {(one.run.variant, one.run.run): one for one in place.values()}
        for there in won:
            other = by_run.get((there.variant, there.run))
            if there is here or there.search.model != here.search.model or other is None:
                continue
            ratio = ratio_of(other, by_run[here.variant, here.run], Goal(here.search.goals[0]))
            if ratio:
                yield SharedCost(
                    model=here.search.model, device=here.search.device, winner_of=there.search.device,
                    variant=there.variant, run=there.run, ratio=ratio[0], low=ratio[1], high=ratio[2],
                )  # fmt: skip


def tuned_choices(
    tuned: TuneReport | msgspec.UnsetType,
    devices: Mapping[str, DeviceFacts],
    target: Target,
    model: str,
    allowed: Sequence[Artifact],
) -> Iterator[Choice]:
    """What a search chose of a model for devices like a target, what serves most classes first; none without one."""
    artifacts = {artifact.variant.name: artifact for artifact in allowed}
    for one in tuned.choices if tuned else ():
        alike = [name for name in one.devices if suits(target, devices[name])]
        if one.model == model and alike and one.variant in artifacts:
            classes = dict.fromkeys(class_of_device(devices[name]) for name in alike)
            yield Choice(
                target=target, artifact=artifacts[one.variant], options=one.options,
                reason=f"tuned on {', '.join(alike)}", measured=True, classes=tuple(classes),
            )  # fmt: skip


def why_none(
    tuned: TuneReport | msgspec.UnsetType, devices: Mapping[str, DeviceFacts], target: Target, model: str
) -> str:
    """Why searches on devices like a target found nothing of a model that may ship there; "" where none was made."""
    reasons = (
        f"{one.search.outcome.value} on {one.search.device}: {one.search.reason}"
        for one in (tuned.answers if tuned else ())
        if one.search.model == model and not one.variant and suits(target, devices[one.search.device])
    )
    return "; ".join(reasons)


Configuration = tuple[str, str]
"""Variant and run."""


def _choices(
    answers: Sequence[TuneAnswer],
    costs: Sequence[SharedCost],
    confirmed: Mapping[Place, Mapping[str, Confirmation]],
    devices: Mapping[str, DeviceFacts],
    artifacts: Sequence[Artifact],
    share: float,
) -> Iterator[ClassChoice]:
    """For each model the fewest configurations with which no class loses more than the share, as far as measured.

    Greedily: the configuration that serves most classes, at the least cost, then the rest. A class whose devices have
    no such configuration in common runs the one that costs its worst device least.
    """
    files = {(one.model, one.variant.name): one.file for one in artifacts}
    for model in dict.fromkeys(one.search.model for one in answers if one.variant):
        won = {
            one.search.device: (one.variant, one.run) for one in answers if one.search.model == model and one.variant
        }
        cost = {(one.device, (one.variant, one.run)): one.ratio - 1 for one in costs if one.model == model}
        cost |= dict.fromkeys(won.items(), 0.0)
        classes: dict[TunedClass, list[str]] = {}
        for device in won:
            classes.setdefault(class_of_device(devices[device]), []).append(device)
        for configuration, members in cover(classes, set(won.values()), cost, share).items():
            names = tuple(device for one in members for device in classes[one])
            worst = [cost.get((device, configuration)) for device in names]
            run = next(
                one.run
                for device in names
                for one in confirmed[device, model].values()
                if (one.run.variant, one.run.run) == configuration
            )
            yield ClassChoice(
                model=model, classes=tuple(members), devices=names, variant=configuration[0],
                file=files[model, configuration[0]], run=configuration[1], options=run.options,
                cost=None if None in worst else max((one for one in worst if one is not None), default=None),
            )  # fmt: skip


def cover(
    classes: Mapping[TunedClass, Sequence[str]],
    configurations: Iterable[Configuration],
    cost: Mapping[tuple[str, Configuration], float],
    share: float,
) -> dict[Configuration, list[TunedClass]]:
    """Configurations with the classes that run them; the one that serves most comes first. `cost` is by device."""

    def of_class(one: TunedClass, configuration: Configuration) -> float:
        return max(cost.get((device, configuration), float("inf")) for device in classes[one])

    left, known = list(classes), sorted(configurations)
    found: dict[Configuration, list[TunedClass]] = {}
    while left:
        serves = {c: [one for one in left if of_class(one, c) <= share] for c in known}
        best = min(known, key=lambda c: (-len(serves[c]), sum(of_class(one, c) for one in serves[c]), c))
        if not serves[best]:
            one = left[0]
            best = min(known, key=lambda c: (of_class(one, c), c))
            serves[best] = [one]
        found.setdefault(best, []).extend(serves[best])
        left = [one for one in left if one not in serves[best]]
    return found
