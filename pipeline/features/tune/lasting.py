"""The goal `sustained`: which candidates of a search run for minutes, how often, and which is the fastest at the end.

A run of minutes is no part of a search: only the last two or three candidates have some, in rounds from equal starts.
The search is for latency, and what may overtake its leader when the device is warm is what heats it less.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from device_runner import device as runner_device
from device_runner.device import DeviceFacts
from pipeline import config as configs
from pipeline.campaign import planned as campaign_planned
from pipeline.campaign import record as campaign_record
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import sustained as sustained_load
from pipeline.core.errors import ConfigError
from pipeline.features.tune.report import ratio_text
from pipeline.features.tune.space import RoundsRatio, medians, ratio_of

FEWEST, MOST = 2, 3
"""Candidates that run for minutes."""

LEAST_ROUNDS, MOST_ROUNDS = 4, 8
"""Rounds of them: four have an interval, eight exact bounds (measuring S.2)."""

LASTING_SHARE = 0.8
"""At most so much of the time of a search is for runs of minutes."""

LOADING_SHARE, LOADING_SECONDS = 0.05, 5.0
"""What a run of minutes takes besides: loading, its first inferences, outputs."""

SLOWEST = 2.0
"""How many times the leader's latency a candidate may have when fresh: phones that throttle lose as much
(microsoft/MegaDetector issue 34: 196 to 400 ms in 30 minutes)."""

ERRORS = 0.05
"""How often one that is not the fastest at the end may be called that, over all comparisons of an answer."""

SAME = 0.02
"""A difference at the end that does not matter: either of two may be the answer."""


NOT_TOLD = "not told apart from the winner under load"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingPlan:
    """How many candidates of each model run for minutes, in how many rounds, and the seconds of all on a device."""

    candidates: int
    rounds: int
    seconds: float


NO_PLAN = LastingPlan(candidates=0, rounds=0, seconds=0.0)


def plan_of(config: configs.Config, models: int) -> LastingPlan:
    """What the time of a search allows; nothing without the goal. Raises ConfigError where it is too little.

    More candidates go before more rounds: a difference that four rounds do not show is seldom a large one.
    """
    if configs.Goal.SUSTAINED not in config.tune.goal_list:
        return NO_PLAN
    if config.tune.goal_list != (configs.Goal.SUSTAINED,):
        raise ConfigError(
            "the goal sustained stands alone",
            where="[tune] goals",
            why="runs of minutes are only made of the last candidates, which another goal would choose otherwise",
            remedy='goals = "sustained", and limits for the rest: max_memory_mb, max_size_mb, max_latency_ms',
        )
    one_run = config.measure.sustained_seconds * (1 + LOADING_SHARE) + LOADING_SECONDS
    time_seconds = LASTING_SHARE * 60 * config.tune.minutes
    least = max(LEAST_ROUNDS, config.measure.sustained_rounds)
    candidates = min(MOST, int(time_seconds / (models * least * one_run)))
    if candidates < FEWEST:
        need = FEWEST * models * least * one_run / LASTING_SHARE / 60
        raise ConfigError(
            "the time is too short for the goal sustained",
            where="[tune] minutes, [measure] sustained_seconds",
            why=f"{FEWEST} candidates of {models} models in {least} rounds of {config.measure.sustained_seconds:g} s "
            f"need {need:.0f} minutes with the search, and minutes = {config.tune.minutes:g}",
            remedy=f"give minutes = {math.ceil(need)}, or less sustained_seconds where the device is warm before",
        )
    rounds = min(max(least, MOST_ROUNDS), int(time_seconds / (models * candidates * one_run)))
    return LastingPlan(candidates=candidates, rounds=rounds, seconds=models * candidates * rounds * one_run)


def last_candidates(
    candidates: Sequence[campaign_planned.PlannedRun],
    latencies_ns: Mapping[int, float],
    leader: int,
    facts: DeviceFacts | None,
    most: int,
) -> tuple[int, ...]:
    """The leader of a search, and the fastest that may heat less: of another provider, of at most half its threads,
    then of other threads or of another precision. `latencies_ns` are of those that may be chosen.

    What differs from one of them in nothing of that heats as much: the search has decided between the two.
    """
    cores = (runner_device.core_count(facts) if facts else 0) or 1

    def threads(candidate: int) -> int:
        return candidates[candidate].options.intra_op_threads or cores

    def heat(candidate: int) -> tuple[str, int, str]:
        planned = candidates[candidate]
        return planned.options.provider, threads(candidate), planned.source

    ranked = sorted(
        (c for c in latencies_ns if c != leader and latencies_ns[c] <= SLOWEST * latencies_ns[leader]),
        key=lambda c: (latencies_ns[c], c),
    )
    provider = candidates[leader].options.provider
    elsewhere = [c for c in ranked if candidates[c].options.provider != provider]
    cooler = [c for c in ranked if candidates[c].options.provider == provider and 2 * threads(c) <= threads(leader)]
    firsts = sorted((kind[0] for kind in (elsewhere, cooler) if kind), key=lambda c: latencies_ns[c])
    by_heat: dict[tuple[str, int, str], int] = {}
    for candidate in (leader, *firsts, *ranked):
        by_heat.setdefault(heat(candidate), candidate)
    return tuple(by_heat.values())[:most]


Confirmed = Mapping[str, Mapping[int, campaign_tuned.CandidateValues]]
"""What rounds say of configurations, by planned run and round."""


def with_late_rounds(
    confirmed: Confirmed, planned: Sequence[campaign_record.RecordedRun], runs: Sequence[RunRecord]
) -> Confirmed:
    """With what inferences took at the end of runs of minutes, of those that began as warm as most of their model did.

    A configuration of which a run of minutes failed has none.
    """
    of_minutes = {run.id: run for run in planned if run.mode is configs.MeasureMode.SUSTAINED}
    steady = {run.names: run.id for run in planned if run.mode is configs.MeasureMode.STEADY}
    by_model: dict[tuple[str, str], list[RunRecord]] = {}
    for record in runs:
        if record.planned in of_minutes:
            by_model.setdefault((record.result.device, record.model), []).append(record)
    late = {name: dict(rounds) for name, rounds in confirmed.items()}
    for records in by_model.values():
        failed = {record.planned for record in records if not record.result.sustained}
        usual = sustained_load.usual_start(record.result for record in records)
        for record in records:
            name, times = steady[of_minutes[record.planned].names], sustained_load.late_ns(record.result)
            if name in late and record.planned not in failed and sustained_load.began_as_usual(record.result, usual):
                values = late[name].get(record.round, campaign_tuned.CandidateValues())
                late[name][record.round] = msgspec.structs.replace(values, sustained_ns=float(times[0]))
    return late


def fastest_at_the_end(
    search: campaign_tuned.TunedModel, confirmed: Confirmed, seconds: float
) -> campaign_tuned.TunedModel:
    """The search with the fastest of its last candidates at the end of runs of so many seconds.

    Where rounds cannot tell, the leader of the search stays unless it was shown to be slower; the reason says so.
    """
    middles = {name: medians(list(confirmed[name].values())).sustained_ns for name in search.front if name in confirmed}
    ended = {name: value for name, value in middles.items() if value is not None}
    if search.front == (search.winner,):
        alone = f"no other that heats less takes less than {SLOWEST:g} times its latency"
        return msgspec.structs.replace(search, reason=f"{search.reason}; {alone}")
    if len(ended) < FEWEST:
        why = f"cannot tell which is the fastest after {seconds:g} s: {len(ended)} of its candidates ran so long"
        return msgspec.structs.replace(
            search, outcome=campaign_tuned.TuneOutcome.BUDGET, reason=f"{search.reason}; {why}"
        )
    best = min(ended, key=lambda name: ended[name])
    confidence = 1 - ERRORS / (len(ended) * (len(ended) - 1) / 2)
    others = {name: _late_ratio(confirmed, name, best, confidence) for name in ended if name != best}
    open_names = [name for name, ratio in others.items() if not _is_settled(ratio)]
    winner = search.winner if search.winner in open_names else best
    runs = {candidate.id: f"{candidate.variant}/{candidate.run}" for candidate in search.candidates}
    at_end = f"after {seconds:g} s {runs[best]} is the fastest"
    outcome = search.outcome
    if open_names:
        outcome = campaign_tuned.TuneOutcome.BUDGET
        at_end = f"cannot tell which is the fastest after {seconds:g} s"
    texts = [f"{runs[name]} takes {_text(ratio)} of {runs[best]}" for name, ratio in others.items()]
    fates: dict[str, campaign_tuned.Dropped | None] = {
        name: _fate(ratio, name in open_names) for name, ratio in others.items()
    }
    if winner != best:
        fates[best] = campaign_tuned.Dropped(reason=NOT_TOLD)
    fates[winner] = None
    return msgspec.structs.replace(
        search,
        winner=winner,
        outcome=outcome,
        reason=f"{search.reason}; {at_end}: {', '.join(texts)}",
        candidates=tuple(
            msgspec.structs.replace(candidate, dropped=fates.get(candidate.id, candidate.dropped))
            for candidate in search.candidates
        ),
    )


def _late_ratio(confirmed: Confirmed, name: str, other: str, confidence: float) -> RoundsRatio | None:
    return ratio_of(confirmed[name], confirmed[other], configs.Goal.SUSTAINED, confidence)


def _is_settled(ratio: RoundsRatio | None) -> bool:
    """Whether rounds show one to be slower than the least, or by how little at most."""
    if ratio is None or ratio.rounds < LEAST_ROUNDS:
        return False
    if ratio.low is None or ratio.high is None:  # nothing varies
        return True
    return ratio.low > 1 or ratio.high < 1 + SAME


def _text(ratio: RoundsRatio | None) -> str:
    return "an unknown share" if ratio is None else ratio_text(ratio.ratio, ratio.low, ratio.high)


def _fate(ratio: RoundsRatio | None, is_open: bool) -> campaign_tuned.Dropped:
    above = (ratio.low - 1, ratio.high - 1) if ratio and ratio.low is not None and ratio.high is not None else None
    return campaign_tuned.Dropped(reason=NOT_TOLD if is_open else "slower at the end of runs of minutes", above=above)
