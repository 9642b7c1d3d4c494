"""From the confirming rounds of searches to their answer: gains, Pareto fronts, and what each class of devices runs.

Pure functions of what is stored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from device_runner.device import DeviceFacts
from device_runner.result import Status
from pipeline.campaign.record import CampaignRecord, JobRecord, RecordedRun, RunRecord
from pipeline.campaign.statistics import ratio_interval
from pipeline.campaign.tuned import (
    CandidateValues,
    ClassChoice,
    Dropped,
    FrontPoint,
    Gain,
    SharedCost,
    TuneAnswer,
    TunedClass,
    TunedModel,
    TuneOutcome,
    TuneReport,
)
from pipeline.config import Goal
from pipeline.core.variant import Artifact
from pipeline.features.tune.device_search import broken_limit, failure_of, medians, nondominated, value_of, values_of


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


def ratio_of(
    rounds: Mapping[int, CandidateValues], other: Mapping[int, CandidateValues], goal: Goal
) -> RatioBounds | None:
    """The value of one relative to another's, by the rounds that both have, with 95 % bounds and their number.

    Bounds are None where nothing varies (sizes) or rounds are too few; None where a value is missing.
    """
    pairs = [
        (value, base)
        for number, values in rounds.items()
        if number in other
        and (value := value_of(values, goal)) and (base := value_of(other[number], goal))
    ]  # fmt: skip
    if not pairs:
        return None
    logs = np.log([value / base for value, base in pairs])
    bounds = ratio_interval(logs, 0.95) if float(np.ptp(logs)) > 0 else None
    if bounds is None:
        return float(np.exp(np.median(logs))), None, None, len(pairs)
    return bounds.ratio, bounds.low, bounds.high, len(pairs)


def shown_below(ratio: RatioBounds) -> bool:
    """Whether rounds show a ratio to be below 1; where nothing varies, a few of them do."""
    value, _, high, rounds = ratio
    return high < 1 if high is not None else value < 1 and rounds >= FEWEST_ROUNDS


def tune_report(
    campaign: CampaignRecord,
    runs: Sequence[RunRecord],
    artifacts: Sequence[Artifact],
    devices: Mapping[str, DeviceFacts],
) -> TuneReport:
    """Everything that searches came to, from the campaign that confirmed them."""
    record = campaign.job()
    confirmed = _confirmed(record, runs, artifacts)
    answers = tuple(
        _answer(record, search, confirmed.get((search.device, search.model), {})) for search in record.tuned
    )
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


DeviceModel = tuple[str, str]
"""A device and a model: what one search is of."""


def _confirmed(
    record: JobRecord, runs: Iterable[RunRecord], artifacts: Sequence[Artifact]
) -> dict[DeviceModel, dict[str, Confirmation]]:
    """By device and model: what was confirmed, by the id of the planned run."""
    sizes = {(artifact.model, artifact.variant.name): artifact.size_bytes for artifact in artifacts}
    rounds: dict[str, dict[int, CandidateValues]] = {}
    failed: set[str] = set()
    goals = record.config.tune.goal_list
    for run in runs:
        if failure_of(run, goals) or run.result.status is not Status.OK:
            failed.add(run.planned)
        else:
            values = values_of(run.result, sizes[run.model, run.variant])
            rounds.setdefault(run.planned, {})[run.round] = values
    by_place: dict[DeviceModel, dict[str, Confirmation]] = {}
    for planned in record.planned:
        name = planned.same_as or planned.id
        if name in rounds and name not in failed:
            by_place.setdefault((planned.device, planned.model), {})[planned.id] = Confirmation(planned, rounds[name])
    return by_place


def _answer(record: JobRecord, search: TunedModel, confirmed: Mapping[str, Confirmation]) -> TuneAnswer:
    """The winner of a search as it was confirmed; one that breaks a constraint then is none."""
    winner = confirmed.get(search.winner)
    if winner is None:
        lost = "the rounds that confirm the winner were not measured: go on with --resume"
        left = Dropped(reason=lost)
        return TuneAnswer(search=_without_winner(search, TuneOutcome.LOST, left) if search.winner else search)
    goals = tuple(Goal(goal) for goal in search.goals)
    kept = {
        name: confirmation
        for name in search.front
        if (confirmation := confirmed.get(name)) and not _broken(record, confirmation)
    }
    if broken := _broken(record, winner):
        if not kept:
            return TuneAnswer(search=_without_winner(search, TuneOutcome.NONE_POSSIBLE, broken))
        winner = min(kept.values(), key=lambda confirmation: value_of(confirmation.values, goals[0]) or float("inf"))
        search = _won_by(search, winner.run.id, broken)
    default = confirmed.get(search.documented)
    if default and default is not winner and not _broken(record, default):
        ratio = ratio_of(winner.rounds, default.rounds, goals[0])
        if ratio and not shown_below(ratio):
            search = _in_default_s_favour(search, winner, ratio)
            winner = default
    numbers = dict(enumerate(kept.values()))
    best = (
        nondominated({number: confirmation.values for number, confirmation in numbers.items()}, goals)
        if len(goals) > 1
        else []
    )
    return TuneAnswer(
        search=search,
        variant=winner.run.variant,
        run=winner.run.run,
        values=winner.values,
        confirmed_rounds=len(winner.rounds),
        gains=tuple(_gains(search, winner, confirmed, goals)),
        front=tuple(
            FrontPoint(variant=confirmation.run.variant, run=confirmation.run.run, values=confirmation.values)
            for confirmation in sorted(
                (numbers[n] for n in best), key=lambda confirmation: value_of(confirmation.values, goals[0]) or 0.0
            )
        ),
    )


def _in_default_s_favour(search: TunedModel, winner: Confirmation, ratio: RatioBounds) -> TunedModel:
    """A search whose winner was not confirmed to be better: what the documentation advises stays."""
    name = f"{winner.run.variant}/{winner.run.run}"
    why = f"{name} was not confirmed to be better than the default: {ratio[0]:.3f} times its {search.goals[0]}"
    bounds = f" ({ratio[1]:.3f} to {ratio[2]:.3f})" if ratio[1] is not None and ratio[2] is not None else ""
    changed = _won_by(search, search.documented, Dropped(reason=why + bounds))
    return msgspec.structs.replace(changed, reason=f"{search.reason}; {why}{bounds}")


def _won_by(search: TunedModel, winner: str, why: Dropped) -> TunedModel:
    """A search with another winner, "" for none; `why` the first one is none after all."""
    fates = {search.winner: why, winner: None}
    candidates = (
        msgspec.structs.replace(confirmation, dropped=fates.get(confirmation.id, confirmation.dropped))
        for confirmation in search.candidates
    )
    return msgspec.structs.replace(search, winner=winner, candidates=tuple(candidates))


def _broken(record: JobRecord, confirmation: Confirmation) -> Dropped | None:
    return broken_limit(confirmation.values, record.config.tune)


def _without_winner(search: TunedModel, outcome: TuneOutcome, why: Dropped) -> TunedModel:
    return msgspec.structs.replace(_won_by(search, "", why), outcome=outcome, reason=why.text)


def _gains(
    search: TunedModel, winner: Confirmation, confirmed: Mapping[str, Confirmation], goals: Sequence[Goal]
) -> Iterator[Gain]:
    """How the winner compares with both defaults, for each goal."""
    names: tuple[tuple[Literal["documentation", "onnxruntime"], str], ...] = (
        ("documentation", search.documented),
        ("onnxruntime", search.ort_default),
    )
    for than, name in names:
        other = confirmed.get(name)
        for goal in goals if other and other is not winner else ():
            ratio = ratio_of(winner.rounds, other.rounds, goal) if other else None
            if ratio and other:
                yield Gain(
                    than=than, goal=goal.value, variant=other.run.variant, run=other.run.run, ratio=ratio[0],
                    low=ratio[1], high=ratio[2], rounds=ratio[3],
                )  # fmt: skip


def _costs(
    answers: Sequence[TuneAnswer], confirmed: Mapping[DeviceModel, Mapping[str, Confirmation]]
) -> Iterator[SharedCost]:
    """What it costs each device to run the winner of another, where both were measured there."""
    won = [answer for answer in answers if answer.variant]
    for here in won:
        place = confirmed[here.search.device, here.search.model]
        by_run = {(confirmation.run.variant, confirmation.run.run): confirmation for confirmation in place.values()}
        for there in won:
            other = by_run.get((there.variant, there.run))
            if there is here or there.search.model != here.search.model or other is None:
                continue
            ratio = ratio_of(other.rounds, by_run[here.variant, here.run].rounds, Goal(here.search.goals[0]))
            if ratio:
                yield SharedCost(
                    model=here.search.model, device=here.search.device, winner_of=there.search.device,
                    variant=there.variant, run=there.run, ratio=ratio[0], low=ratio[1], high=ratio[2],
                )  # fmt: skip


Configuration = tuple[str, str]
"""Variant and run."""


def _choices(
    answers: Sequence[TuneAnswer],
    costs: Sequence[SharedCost],
    confirmed: Mapping[DeviceModel, Mapping[str, Confirmation]],
    devices: Mapping[str, DeviceFacts],
    artifacts: Sequence[Artifact],
    share: float,
) -> Iterator[ClassChoice]:
    """For each model the fewest configurations with which no class loses more than the share, as far as measured.

    Greedily: the configuration that serves most classes, at the least cost, then the rest. A class whose devices have
    no such configuration in common runs the one that costs its worst device least.
    """
    files = {(artifact.model, artifact.variant.name): artifact.file for artifact in artifacts}
    for model in dict.fromkeys(answer.search.model for answer in answers if answer.variant):
        won = {
            answer.search.device: (answer.variant, answer.run)
            for answer in answers
            if answer.search.model == model and answer.variant
        }
        cost = {(row.device, (row.variant, row.run)): row.ratio - 1 for row in costs if row.model == model}
        cost |= dict.fromkeys(won.items(), 0.0)
        classes: dict[TunedClass, list[str]] = {}
        for device in won:
            classes.setdefault(TunedClass.of(devices[device]), []).append(device)
        for configuration, members in cover(classes, set(won.values()), cost, share).items():
            names = tuple(device for each in members for device in classes[each])
            worst = [cost.get((device, configuration)) for device in names]
            run = next(
                confirmation.run
                for device in names
                for confirmation in confirmed[device, model].values()
                if (confirmation.run.variant, confirmation.run.run) == configuration
            )
            yield ClassChoice(
                model=model, classes=tuple(members), devices=names, variant=configuration[0],
                file=files[model, configuration[0]], run=configuration[1], options=run.options,
                cost=None if None in worst else max((loss for loss in worst if loss is not None), default=None),
            )  # fmt: skip


def cover(
    classes: Mapping[TunedClass, Sequence[str]],
    configurations: Iterable[Configuration],
    cost: Mapping[tuple[str, Configuration], float],
    share: float,
) -> dict[Configuration, list[TunedClass]]:
    """Configurations with the classes that run them; the one that serves most comes first. `cost` is by device."""

    def of_class(kind: TunedClass, configuration: Configuration) -> float:
        return max(cost.get((device, configuration), float("inf")) for device in classes[kind])

    left, known = list(classes), sorted(configurations)
    chosen: dict[Configuration, list[TunedClass]] = {}
    while left:
        serves = {c: [kind for kind in left if of_class(kind, c) <= share] for c in known}
        best = min(known, key=lambda c: (-len(serves[c]), sum(of_class(each, c) for each in serves[c]), c))
        if not serves[best]:
            kind = left[0]
            best = min(known, key=lambda c: (of_class(kind, c), c))
            serves[best] = [kind]
        chosen.setdefault(best, []).extend(serves[best])
        left = [kind for kind in left if kind not in serves[best]]
    return chosen
