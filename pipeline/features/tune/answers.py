"""What searches came to, from the campaign that confirmed them: winners, costs, and one choice for several devices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import msgspec

from device_runner.device import DeviceFacts
from device_runner.result import Status
from pipeline import config as configs
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import CampaignRecord, RunRecord
from pipeline.core.variant import Artifact
from pipeline.features.tune import lasting
from pipeline.features.tune.space import (
    beats,
    broken_limit,
    failure_of,
    medians,
    nondominated,
    ratio_of,
    tails_of,
    value_of,
    values_of,
)
from pipeline.report import wording


def tune_report(
    campaign: CampaignRecord,
    runs: Sequence[RunRecord],
    artifacts: Sequence[Artifact],
    devices: Mapping[str, DeviceFacts],
) -> campaign_tuned.TuneReport:
    """Everything that searches came to, from the campaign that confirmed them."""
    record = campaign.job()
    sizes = {(artifact.model, artifact.variant.name): artifact.total_bytes for artifact in artifacts}
    rounds: dict[str, dict[int, campaign_tuned.CandidateValues]] = {}
    failed: set[str] = set()
    goals = record.config.tune.goal_list
    steady = {run.id for run in record.planned if run.mode is configs.MeasureMode.STEADY}
    for run in runs:
        if run.planned not in steady:
            continue
        if failure_of(run, goals) or run.result.status is not Status.OK:
            failed.add(run.planned)
        else:
            values = values_of(run.result, sizes[run.model, run.variant])
            rounds.setdefault(run.planned, {})[run.round] = values
    confirmed: lasting.Confirmed = {
        planned.id: rounds[name]
        for planned in record.planned
        if (name := planned.same_as or planned.id) in rounds and name not in failed
    }
    confirmed = lasting.with_late_rounds(confirmed, record.planned, runs)
    answers = tuple(_answer(record, search, confirmed) for search in record.tuned)
    costs = tuple(_costs(answers, record.planned, confirmed))
    runs_confirmed = [planned for planned in record.planned if planned.id in confirmed]
    percent = record.config.tune.share_percent
    return campaign_tuned.TuneReport(
        name=campaign.name,
        campaign=campaign.id,
        answers=answers,
        choices=tuple(_choices(answers, costs, runs_confirmed, devices, artifacts, percent / 100)),
        costs=costs,
        share_percent=percent,
    )


def _answer(
    record: campaign_record.JobRecord, search: campaign_tuned.TunedModel, confirmed: lasting.Confirmed
) -> campaign_tuned.TuneAnswer:
    """The winner of a search as it was confirmed; one that breaks a constraint then is none."""
    if search.winner not in confirmed:
        if not search.winner:
            return campaign_tuned.TuneAnswer(search=search)
        left = campaign_tuned.Dropped(
            reason="the rounds that confirm the winner were not measured: go on with --resume"
        )
        lost = msgspec.structs.replace(
            _won_by(search, "", left), outcome=campaign_tuned.TuneOutcome.LOST, reason=left.text
        )
        return campaign_tuned.TuneAnswer(search=lost)
    goals = tuple(configs.Goal(goal) for goal in search.goals)
    if configs.Goal.SUSTAINED in goals:
        search = lasting.fastest_at_the_end(search, confirmed, record.config.measure.sustained_seconds)
    names = (search.winner, *search.front, search.documented, search.ort_default)
    values = {name: medians(list(confirmed[name].values())) for name in names if name in confirmed}
    limits = {name: broken_limit(value, record.config.tune) for name, value in values.items()}
    kept = [name for name in search.front if name in confirmed and not limits[name]]
    if broken := limits[search.winner]:
        if not kept:
            gone = _won_by(search, "", broken)
            gone = msgspec.structs.replace(gone, outcome=campaign_tuned.TuneOutcome.NONE_POSSIBLE, reason=broken.text)
            return campaign_tuned.TuneAnswer(search=gone)
        best = min(kept, key=lambda name: value_of(values[name], goals[0]) or float("inf"))
        search = _won_by(search, best, broken)
    runs = {planned.id: planned for planned in record.planned}
    default = search.documented
    if default in confirmed and default != search.winner and not limits[default]:
        ratio = ratio_of(confirmed[search.winner], confirmed[default], goals[0])
        if ratio and beats(confirmed[search.winner], confirmed[default], goals) is False:
            # A search whose winner was not confirmed to be better: what the documentation advises stays
            name = f"{runs[search.winner].variant}/{runs[search.winner].run}"
            why = (
                f"{name} was not confirmed to be better than the default: {ratio.ratio:.3f} times its {search.goals[0]}"
            )
            bounded = ratio.low is not None and ratio.high is not None
            bounds = f" ({ratio.low:.3f} to {ratio.high:.3f})" if bounded else ""
            tails = tails_of(confirmed[search.winner], confirmed[default], goals[0])
            worse = [tail for tail in tails if tail.ratio > 1]
            bounds += f", {wording.tails(worse)}" if worse else ""
            changed = _won_by(search, default, campaign_tuned.Dropped(reason=why + bounds))
            search = msgspec.structs.replace(changed, reason=f"{search.reason}; {why}{bounds}")
    defaults: dict[Literal["documentation", "onnxruntime"], str] = {
        "documentation": search.documented,
        "onnxruntime": search.ort_default,
    }
    # The winner is of it although another may have come out below it by chance: that was not shown
    within = {name: value for name, value in values.items() if not limits[name]}
    front = [*dict.fromkeys((search.winner, *nondominated(within, goals)))] if len(goals) > 1 else []
    front.sort(key=lambda name: value_of(values[name], goals[0]) or 0.0)
    return campaign_tuned.TuneAnswer(
        search=search,
        variant=runs[search.winner].variant,
        run=runs[search.winner].run,
        values=values[search.winner],
        confirmed_rounds=len(confirmed[search.winner]),
        gains=tuple(_gains(search.winner, defaults, runs, confirmed, goals)),
        front=tuple(
            campaign_tuned.FrontPoint(variant=runs[name].variant, run=runs[name].run, values=values[name])
            for name in front
        ),
    )


def _gains(
    winner: str,
    defaults: Mapping[Literal["documentation", "onnxruntime"], str],
    runs: Mapping[str, campaign_record.RecordedRun],
    confirmed: lasting.Confirmed,
    goals: Sequence[configs.Goal],
) -> Iterator[campaign_tuned.Gain]:
    """How a winner does beside the defaults in each goal, and in means and percentiles that say something else."""
    for than, name in defaults.items():
        if name not in confirmed or name == winner:
            continue
        both = confirmed[winner], confirmed[name]
        gain = partial(campaign_tuned.Gain, than=than, variant=runs[name].variant, run=runs[name].run)
        for goal in goals:
            if (ratio := ratio_of(*both, goal)) is None:
                continue
            yield gain(goal=goal.value, ratio=ratio.ratio, low=ratio.low, high=ratio.high, rounds=ratio.rounds)
            for tail in tails_of(*both, goal):
                alike = tail.ratio < 1 and ratio.shown_below
                if tail.shown and not alike and tail.of.value not in goals:
                    yield gain(goal=tail.of.value, ratio=tail.ratio, low=tail.low, high=tail.high, rounds=ratio.rounds)


def _won_by(search: campaign_tuned.TunedModel, winner: str, why: campaign_tuned.Dropped) -> campaign_tuned.TunedModel:
    """A search with another winner, "" for none; `why` the first one is none after all."""
    fates = {search.winner: why, winner: None}
    candidates = (
        msgspec.structs.replace(candidate, dropped=fates.get(candidate.id, candidate.dropped))
        for candidate in search.candidates
    )
    return msgspec.structs.replace(search, winner=winner, candidates=tuple(candidates))


def _costs(
    answers: Sequence[campaign_tuned.TuneAnswer],
    planned: Sequence[campaign_record.RecordedRun],
    confirmed: lasting.Confirmed,
) -> Iterator[campaign_tuned.SharedCost]:
    """What it costs each device to run the winner of another, where both were measured there."""
    rounds = {run.names: confirmed[run.id] for run in planned if run.id in confirmed}
    won = [answer for answer in answers if answer.variant]
    for winner in won:
        device, model = winner.search.device, winner.search.model
        for there in won:
            other = rounds.get((device, model, there.variant, there.run))
            if there is winner or there.search.model != model or other is None:
                continue
            ratio = ratio_of(
                other, rounds[device, model, winner.variant, winner.run], configs.Goal(winner.search.goals[0])
            )
            if ratio:
                yield campaign_tuned.SharedCost(
                    model=model,
                    device=device,
                    winner_of=there.search.device,
                    variant=there.variant,
                    run=there.run,
                    ratio=ratio.ratio,
                    low=ratio.low,
                    high=ratio.high,
                )


Configuration = tuple[str, str]
"""Variant and run."""


def _choices(
    answers: Sequence[campaign_tuned.TuneAnswer],
    costs: Sequence[campaign_tuned.SharedCost],
    confirmed: Sequence[campaign_record.RecordedRun],
    devices: Mapping[str, DeviceFacts],
    artifacts: Sequence[Artifact],
    share: float,
) -> Iterator[campaign_tuned.ClassChoice]:
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
        cost = {(loss.device, (loss.variant, loss.run)): loss.ratio - 1 for loss in costs if loss.model == model}
        cost |= dict.fromkeys(won.items(), 0.0)
        classes: dict[campaign_tuned.TunedClass, list[str]] = {}
        for device in won:
            classes.setdefault(campaign_tuned.TunedClass.of(devices[device]), []).append(device)
        for configuration, members in cover(classes, set(won.values()), cost, share).items():
            names = tuple(device for tuned_class in members for device in classes[tuned_class])
            worst = [cost.get((device, configuration)) for device in names]
            runs = (run for name in names for run in confirmed if run.names == (name, model, *configuration))
            yield campaign_tuned.ClassChoice(
                model=model,
                classes=tuple(members),
                devices=names,
                variant=configuration[0],
                file=files[model, configuration[0]],
                run=configuration[1],
                options=next(runs).options,
                cost=None if None in worst else max((loss for loss in worst if loss is not None), default=None),
            )


def cover(
    classes: Mapping[campaign_tuned.TunedClass, Sequence[str]],
    configurations: Iterable[Configuration],
    cost: Mapping[tuple[str, Configuration], float],
    share: float,
) -> dict[Configuration, list[campaign_tuned.TunedClass]]:
    """Configurations with the classes that run them; the one that serves most comes first. `cost` is by device."""

    def of_class(kind: campaign_tuned.TunedClass, configuration: Configuration) -> float:
        return max(cost.get((device, configuration), float("inf")) for device in classes[kind])

    left, candidates = list(classes), sorted(configurations)
    chosen: dict[Configuration, list[campaign_tuned.TunedClass]] = {}
    while left:
        serves = {c: [kind for kind in left if of_class(kind, c) <= share] for c in candidates}
        best = min(candidates, key=lambda c: (-len(serves[c]), sum(of_class(served, c) for served in serves[c]), c))
        if not serves[best]:
            kind = left[0]
            best = min(candidates, key=lambda c: (of_class(kind, c), c))
            serves[best] = [kind]
        chosen.setdefault(best, []).extend(serves[best])
        left = [kind for kind in left if kind not in serves[best]]
    return chosen
