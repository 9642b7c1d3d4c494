"""The search itself: from everything observed so far to what is measured next. A pure function, so resuming is free.

The usual search has three parts: candidates drawn at random; twice the best that the model predicts; a race of the best
dozen until it is decided. Every seventh run is of the reference, the default candidate. Spaces of at most `small`
candidates race whole. Each part is found again from the observations that came before it, wherever a search was
interrupted. Time is for whoever runs a search to look after: `conclude` ends it. Optuna's TPE sampler can stand in the
place of the model: it knows that numbers have an order, so it suits spaces of long ranges.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.campaign.record import CandidateValues, Dropped
from pipeline.campaign.statistics import Interval
from pipeline.config import TuneStrategy
from pipeline.core.errors import MissingError, install_extra
from pipeline.features.tune.model import (
    ArmForecast,
    Floats,
    Lap,
    RaceStanding,
    arm_ratio,
    forecast,
    next_round,
    run_race,
)
from pipeline.features.tune.space import Factors, Space


class SearchStage(StrEnum):
    """What a run is measured for."""

    RANDOM = "random part"
    MODEL = "best predicted"
    SAMPLED = "sampled by Optuna"
    RACE = "race"
    GRID = "grid"
    DONE = "done"


NO_VALUES = CandidateValues()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One run of a candidate. `order` counts the runs of the device; `seconds` is what the run took of its time.

    `value` is what the search makes small, above 0 and in any unit; None: the run failed, and `reason` says how. With a
    value, `over` says why the candidate may not be chosen all the same: the limit that it is over. `values` are those
    of all goals, of which a search makes one small after the other.
    """

    candidate: int
    order: int
    value: float | None = None
    values: CandidateValues = NO_VALUES
    seconds: float = 0.0
    reason: str = ""
    over: Dropped | None = None

    @property
    def good(self) -> float | None:
        """The value, None where the run gave none that a logarithm could be taken of."""
        return self.value if self.value is not None and math.isfinite(self.value) and self.value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How to search. `within` is the share of the value that matters, `delta` how often the race may lose a better one.

    `budget_seconds` is what all runs may take together: the parts before the race are sized for it, and whoever runs
    the search ends it in time (`conclude`). `rounds` are those of a grid. All calls of one search need the same
    settings.
    """

    strategy: TuneStrategy = TuneStrategy.RIDGE
    seed: int = 0
    within: float = 0.02
    delta: float = 0.1
    budget_seconds: float | None = None
    rounds: int = 5
    small: int = 40
    arms: int = 12
    reference_every: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to measure next, once each and in this order, and what is known so far.

    `leader` is the best so far, always measured; while candidates are measured once each, that is a guess. `compared`
    has its value relative to those of the defaults, as far as a race knows that. `dropped` has the reason of every
    candidate that is out. `done` is why the search ended, "" while it goes on; `uncertain` where `conclude` ended it,
    before it was sure of its answer.
    """

    candidates: tuple[int, ...]
    stage: SearchStage
    dropped: Mapping[int, Dropped] = field(default_factory=dict)
    leader: int | None = None
    compared: Mapping[int, Interval] = field(default_factory=dict)
    done: str = ""
    uncertain: bool = False


Out = tuple[int, Dropped, int]
"""After how many observations a candidate could not be chosen any more, why, and by which one's run."""


def failures(space: Space, seen: Sequence[Observation]) -> dict[int, Out]:
    """The candidates that failed, are over a limit, or have what failed in common with one that did.

    A failure counts for its whole family (file, provider, flags) unless one of it has already run there.
    """
    out: dict[int, Out] = {}
    ran: set[int] = set()
    for after, run in enumerate(seen, start=1):
        family = space.family[run.candidate]
        if run.good is not None:
            ran.add(family)
            if run.over:
                out.setdefault(run.candidate, (after, run.over, run.candidate))
            continue
        reason = run.reason or "the run failed"
        out.setdefault(run.candidate, (after, Dropped(reason=f"failed: {reason}"), run.candidate))
        if family not in ran:
            common = f"not tried: another with the same file, provider and flags failed: {reason}"
            why = Dropped(reason=common, detail=space.candidates[run.candidate].run_name)
            for other in space.families[family]:
                out.setdefault(other, (after, why, run.candidate))
    return out


@dataclass(frozen=True, slots=True)
class SearchView:
    """What a search looks at: the observations in order, and what follows from them at once."""

    space: Space
    seen: tuple[Observation, ...]
    settings: SearchSettings
    out: Mapping[int, Out]

    @property
    def reference(self) -> int:
        """The candidate of reference runs: the default, or where it cannot run the first that ran."""
        ran = [run.candidate for run in self.seen if run.good is not None]
        return next((c for c in (self.space.default, *ran) if c not in self.out), self.space.default)

    @property
    def small(self) -> bool:
        """Whether every candidate is measured."""
        return len(self.space) <= self.settings.small

    def referenced(self, candidates: Sequence[int]) -> Iterator[int]:
        """The candidates with reference runs between, counted from the last one that was observed."""
        reference, every = self.reference, self.settings.reference_every
        past = [run.candidate for run in self.seen[-every:]] if every else []
        since = past[::-1].index(reference) if reference in past else every
        for candidate in candidates:
            if every and since >= every - 1 and candidate != reference:
                yield reference
                since = 0
            yield candidate
            since = 0 if candidate == reference else since + 1

    def shuffled(self, candidates: Sequence[int], *number: int) -> list[int]:
        """In an order that depends on the seed and on what the candidates are for."""
        order = np.random.default_rng([self.settings.seed, *number]).permutation(len(candidates))
        return [candidates[at] for at in order]


def view_of(space: Space, observations: Sequence[Observation], settings: SearchSettings) -> SearchView:
    """The view of a search; raises ValueError for an observation of a candidate that the space does not have."""
    unknown = [run.candidate for run in observations if not 0 <= run.candidate < len(space)]
    if unknown:
        raise ValueError(f"the space has {len(space)} candidates, and none with number {unknown[0]}")
    seen = tuple(sorted(observations, key=lambda run: run.order))
    return SearchView(space, seen, settings, failures(space, seen))


def reasons_of(view: SearchView) -> dict[int, Dropped]:
    """Why candidates cannot be chosen: they failed, or are over a limit."""
    return {candidate: why for candidate, (_, why, _) in view.out.items()}


def laps_of(view: SearchView, arms: Sequence[int], cut: int) -> tuple[list[Lap], list[int]]:
    """The race's laps after `cut`, and after how many observations each was known."""
    racing = set(arms)
    laps = [
        ((run.candidate, math.log(value), run.order), number)
        for number, run in enumerate(view.seen[cut:], start=cut + 1)
        if run.candidate in racing and (value := run.good) is not None
    ]
    return [lap for lap, _ in laps], [number for _, number in laps]


@lru_cache(maxsize=16)
def forecast_of(space: Space, seen: tuple[Observation, ...]) -> tuple[Floats, Floats]:
    """What the observations say of all candidates (`forecast`); nothing where none has a value."""
    good = [(run, value) for run in seen if (value := run.good) is not None]
    if not good:
        return np.zeros(len(space)), np.zeros(len(space))
    return forecast(
        space, [run.candidate for run, _ in good], np.log([value for _, value in good]), [run.order for run, _ in good]
    )


def compared_with_defaults(view: SearchView, leader: int, laps: Sequence[Lap]) -> dict[int, Interval]:
    """The leader's value relative to those of the defaults that have laps."""
    had = {arm for arm, _, _ in laps}
    both = dict.fromkeys((view.space.default, view.space.ort_default))
    defaults = [base for base in both if base in had and base != leader and base not in view.out]
    if leader not in had or not defaults:
        return {}
    shared = [lap for lap in laps if lap[0] in {leader, *defaults}]
    return {base: arm_ratio(shared, leader, base, view.settings.delta) for base in defaults}


def best_guess(view: SearchView) -> int | None:
    """The measured candidate with the lowest mean, with the level of the reference runs taken off."""
    laps, _ = laps_of(view, range(len(view.space)), 0)
    if not laps:
        return None
    reference = view.reference
    at, level = zip(*[(order, value) for arm, value, order in laps if arm == reference] or [(0, 0.0)], strict=True)
    arms, logs, orders = zip(*laps, strict=True)
    values = np.array(logs) - np.interp(orders, at, level)
    counts = np.bincount(arms, minlength=len(view.space))
    means = np.bincount(arms, values, len(view.space)) / np.maximum(counts, 1)
    means[[c for c in range(len(view.space)) if c in view.out or not counts[c]]] = np.inf
    return int(np.argmin(means)) if np.isfinite(means).any() else None


MODEL_FROM = 20
"""Observations from which the model says more than the mean of each candidate."""


def concluded(
    view: SearchView, why: str, standing: RaceStanding | None = None, cut: int = 0, *, uncertain: bool = False
) -> Proposal:
    """The end of a search with what was measured until now; `standing` is that of its race, which began at `cut`.

    Whether its choice is better than the defaults is for rounds to say that did not choose it.
    """
    ranked = sorted(standing.bounds, key=lambda arm: standing.bounds[arm].ratio) if standing else []
    leader = next((arm for arm in ranked if arm not in view.out), None)
    if leader is None:
        ran = {run.candidate for run in view.seen if run.good is not None}
        measured = sum(run.good is not None for run in view.seen) >= MODEL_FROM
        mean = forecast_of(view.space, view.seen)[0] if measured else None
        usable = sorted(ran - view.out.keys())
        leader = (
            best_guess(view)
            if mean is None
            else min(usable, key=lambda candidate: float(mean[candidate]), default=None)
        )
    fates = dict(_fates(view, leader, standing, cut)) if leader is not None else {}
    dropped = {**fates, **(standing.dropped if standing else {}), **reasons_of(view)}
    return Proposal(
        candidates=(), stage=SearchStage.DONE, leader=leader, done=why, uncertain=uncertain,
        dropped={candidate: reason for candidate, reason in dropped.items() if candidate != leader},
    )  # fmt: skip


def _fates(view: SearchView, leader: int, standing: RaceStanding | None, cut: int) -> Iterator[tuple[int, Dropped]]:
    """Why each candidate but the leader was not chosen, where neither a failure nor the race has said so."""
    seen = view.seen[: cut or None]
    has_model = sum(run.good is not None for run in seen) >= MODEL_FROM
    counts = Counter(run.candidate for run in view.seen)
    mean = forecast_of(view.space, seen)[0] if has_model else np.zeros(len(view.space))
    for candidate in range(len(view.space)):
        if standing and candidate in standing.bounds:
            bounds = standing.bounds[candidate]
            yield (
                candidate,
                Dropped(
                    reason="left at the end of the race, beside the leader", above=(bounds.low - 1, bounds.high - 1)
                ),
            )
        elif not has_model:
            reason = "measured, and not among the best" if counts[candidate] else "not measured"
            yield candidate, Dropped(reason=reason)
        else:
            above = math.exp(float(mean[candidate] - mean[leader])) - 1
            did = "measured, expected" if counts[candidate] else "not measured, predicted"
            yield candidate, Dropped(reason=f"{did} after {len(seen)} runs, beside the winner", above=(above, above))


STARTUP_TRIALS = 60
"""Candidates that are drawn at random before the sampler says anything: Optuna's 10 are few for so many factors."""


def ask_optuna(space: Space, ran: Sequence[tuple[int, float]], left: Sequence[int], count: int, seed: int) -> list[int]:
    """Up to `count` of the candidates `left`, the first that the sampler would have measured next.

    `ran` has the candidates that ran with their log values. What it asks for need not exist: the nearest of those that
    are left is taken, in numbers by their distance. Raises MissingError without Optuna.
    """
    optuna = optuna_package()
    ranges = _distributions(optuna, space.factors)
    sampler = optuna.samplers.TPESampler(
        seed=seed * 100_003 + len(ran), n_startup_trials=STARTUP_TRIALS, multivariate=True, constant_liar=True
    )
    study = optuna.create_study(sampler=sampler)
    numbers = {name for name, range_ in ranges.items() if hasattr(range_, "high")}
    rows = [
        {name: int(row[name]) if name in numbers else row.get(name, "") for name in ranges} for row in space.factors
    ]
    study.add_trials(
        [
            optuna.trial.create_trial(params=rows[candidate], distributions=ranges, value=value)
            for candidate, value in ran
        ]
    )
    waiting = list(left)
    asked: list[int] = []
    while waiting and len(asked) < count:
        suggestion = study.ask(ranges).params
        nearest = min(waiting, key=lambda candidate: (_distance(rows[candidate], suggestion, ranges), candidate))
        waiting.remove(nearest)
        asked.append(nearest)
    return asked


def optuna_package() -> Any:
    """The package; raises MissingError that names the extra where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise MissingError(
            "the sampler `optuna` needs the package optuna",
            why=str(error),
            remedy=f"{install_extra('optuna')}, or leave out the strategy: the model needs no package",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distributions(optuna: Any, rows: Sequence[Factors]) -> dict[str, Any]:
    """A range for each factor that varies in whole numbers, and a choice for each other that varies."""
    ranges = {}
    for name in sorted({name for row in rows for name in row}):
        values = sorted({row.get(name, "") for row in rows})
        if len(values) > 2 and all(value.isdecimal() for value in values):
            numbers = [int(value) for value in values]
            ranges[name] = optuna.distributions.IntDistribution(min(numbers), max(numbers))
        elif len(values) > 1:
            ranges[name] = optuna.distributions.CategoricalDistribution(values)
    return ranges


def _distance(row: dict[str, Any], suggestion: dict[str, Any], ranges: dict[str, Any]) -> float:
    """How far a candidate is from a suggestion: 1 for a choice that differs, a share of the range for a number."""
    far = 0.0
    for name, value in suggestion.items():
        if isinstance(value, int):
            far += abs(row[name] - value) / (ranges[name].high - ranges[name].low)
        else:
            far += row[name] != value
    return far


BATCH = 21
"""Candidates proposed at a time: the next failure is known early, and progress is seen."""

COST_KNOWN = 14
"""Observations from which the seconds of a run are estimated where a budget decides how many there are."""

MORE_ARMS = 4 / 3
"""How many times the usual arms a race has at most, where the model cannot tell more candidates from the best."""

RACE_SHARE = 0.5
"""Share of what matters that a race may leave open: the best candidate may not be among its arms."""

LEAST_DEVIATION = 0.02
"""What a candidate may differ from the model at least, however sure that is of itself."""

ALL_OUT = "every one of the last candidates failed or is over a limit"


def propose(space: Space, observations: Sequence[Observation], settings: SearchSettings) -> Proposal:
    """What to measure next, in which order, and what is known; the same for the same arguments.

    Observations may come in any order and end anywhere, also in the middle of a proposal. Raises ValueError for an
    observation of a candidate that the space does not have.
    """
    view = view_of(space, observations, settings)
    if len(view.out) == len(space):
        reasons = dict.fromkeys(why.text for candidate, (_, why, run) in view.out.items() if run == candidate)
        return concluded(view, f"none of {len(space)} candidates can be chosen: {'; '.join(list(reasons)[:3])}")
    if settings.strategy is TuneStrategy.GRID:
        return _grid(view)
    stage, missing, cut = _explore(view, asking=True)
    if missing:
        return _ask(view, missing, stage)
    arms, standing = _race(view, cut)
    if standing and standing.ended:
        return concluded(view, standing.ended, standing, cut)
    asked = _race_on(view, cut, arms, standing)
    return asked if asked.candidates else concluded(view, ALL_OUT, standing, cut)


def conclude(space: Space, observations: Sequence[Observation], settings: SearchSettings, why: str) -> Proposal:
    """What can be said where a search is ended before it is decided, as by its time; the leader is the best so far."""
    view = view_of(space, observations, settings)
    if settings.strategy is TuneStrategy.GRID or len(view.out) == len(space):
        return concluded(view, why, uncertain=True)
    _, missing, cut = _explore(view, asking=False)
    standing = None if missing else _race(view, cut)[1]
    why = f"{why}; {standing.open_end}" if standing else why
    return concluded(view, why, standing, cut, uncertain=True)


def _race(view: SearchView, cut: int) -> tuple[list[int], RaceStanding | None]:
    """The arms of the race that began at `cut`, and how it stands."""
    arms, settings = _race_arms(view, cut), view.settings
    laps, failures = laps_of(view, arms, cut)
    failed = {arm: sum(n <= view.out[arm][0] for n in failures) for arm in arms if arm in view.out}
    standing = run_race(
        arms, laps, failed, _expected(view, arms, cut), delta=settings.delta, within=settings.within * RACE_SHARE
    )
    return arms, standing


def _ask(view: SearchView, candidates: Sequence[int], stage: SearchStage) -> Proposal:
    """The next of the candidates, with reference runs; where time counts, one alone until it is known what it takes."""
    first = view.settings.budget_seconds is not None and not view.seen
    due = tuple(view.referenced(candidates[: 1 if first else BATCH]))
    return Proposal(candidates=due, stage=stage, leader=best_guess(view), dropped=reasons_of(view))


def _reach(view: SearchView, candidates: Sequence[int], start: int) -> tuple[int, list[int]]:
    """How many observations there were when all candidates had one or were out, and those that have none."""
    first = {run.candidate: number for number, run in reversed(list(enumerate(view.seen, start=1)))}
    left_after = {candidate: after for candidate, (after, *_) in view.out.items()}
    ends = [min(first.get(c, math.inf), left_after.get(c, math.inf)) for c in candidates]
    missing = [candidate for candidate, end in zip(candidates, ends, strict=True) if end == math.inf]
    return (start, missing) if missing or not ends else (max(start, int(max(ends))), [])


def _explore(view: SearchView, *, asking: bool) -> tuple[SearchStage, list[int], int]:
    """The part before the race that is under way with what it still wants; or nothing wanted, and where it ended."""
    if view.small:
        return SearchStage.RACE, [], 0
    random_part, model_part = _sizes(view)
    if view.settings.strategy is TuneStrategy.OPTUNA:
        return _sample(view, random_part + 2 * model_part, asking=asking)
    ran = {run.candidate for run in view.seen if run.good is not None}
    order = view.shuffled(list(range(len(view.space))), 0)
    usable = [candidate for candidate in order if candidate in ran or candidate not in view.out]
    cut, missing = _reach(view, [view.space.default, *usable[: max(1, random_part)]], 0)
    if missing:
        return SearchStage.RANDOM, missing, cut
    for _ in range(2):
        # The best that are not measured yet, by the model of the first `cut` observations
        had = {run.candidate for run in view.seen[:cut]} | _out_at(view, cut)
        ranked = np.argsort(forecast_of(view.space, view.seen[:cut])[0], kind="stable").tolist()
        best = [candidate for candidate in ranked if candidate not in had][:model_part]
        cut, missing = _reach(view, best, cut)
        if missing:
            return SearchStage.MODEL, missing, cut
    return SearchStage.RACE, [], cut


def _sample(view: SearchView, count: int, *, asking: bool) -> tuple[SearchStage, list[int], int]:
    """As `_explore`, with candidates that Optuna asks for until so many have run, or all that can."""
    usable = {candidate for candidate in range(len(view.space)) if candidate not in view.out}
    ran: set[int] = set()
    for cut, run in enumerate(view.seen, start=1):
        ran |= {run.candidate} if run.good is not None else set()
        if len(ran) >= count or usable <= ran:
            return SearchStage.RACE, [], cut
    if not view.seen or not asking:
        return SearchStage.SAMPLED, [view.space.default], 0
    good = [(run.candidate, math.log(value)) for run in view.seen if (value := run.good) is not None]
    return SearchStage.SAMPLED, ask_optuna(view.space, good, sorted(usable - ran), BATCH, view.settings.seed), 0


def _sizes(view: SearchView) -> tuple[int, int]:
    """Candidates of the random part, and of each of the two that the model proposes."""
    size, budget = len(view.space), view.settings.budget_seconds
    random_part, model_part = min(500, max(40, size // 8)), min(90, max(10, size // 40))
    if budget is not None and view.seen:
        first = view.seen[:COST_KNOWN]
        runs = budget * len(first) / max(sum(run.seconds for run in first), 1e-9)
        random_part, model_part = min(random_part, int(0.35 * runs)), min(model_part, int(0.08 * runs))
    return random_part, model_part


def _out_at(view: SearchView, cut: int) -> set[int]:
    return {candidate for candidate, (after, *_) in view.out.items() if after <= cut}


def _expected(view: SearchView, arms: Sequence[int], cut: int) -> list[ArmForecast]:
    """What the model of the first `cut` observations expects of the arms."""
    if view.small:
        return []
    mean, deviation = forecast_of(view.space, view.seen[:cut])
    return [(arm, float(mean[arm]), max(float(deviation[arm]), LEAST_DEVIATION)) for arm in arms]


def _race_arms(view: SearchView, cut: int) -> list[int]:
    """The best measured by the model, and the default: as many more as it cannot tell from the first of them."""
    if view.small:
        return list(range(len(view.space)))
    out, most = _out_at(view, cut), view.settings.arms
    mean, deviation = forecast_of(view.space, view.seen[:cut])
    usable = sorted({run.candidate for run in view.seen[:cut]} - out, key=lambda arm: (float(mean[arm]), arm))
    if not usable:
        return [candidate for candidate in range(len(view.space)) if candidate not in out]
    near = mean - deviation <= mean[usable[0]] + deviation[usable[0]]
    best = [*usable[:most], *(candidate for candidate in usable[most : round(MORE_ARMS * most)] if near[candidate])]
    default = view.space.default
    return best if default in best or default in out else [*best, default]


def _race_on(view: SearchView, cut: int, arms: Sequence[int], standing: RaceStanding | None) -> Proposal:
    """The next round of the race, with what is known of the leader and of those that are out."""
    laps, _ = laps_of(view, arms, cut)
    order = view.shuffled(next_round(arms, standing, laps, view.out.keys()), 1, len(laps) // len(arms))
    asked = _ask(view, order, SearchStage.RACE)
    if standing is None:
        return asked
    leader, dropped = standing.leader, {**asked.dropped, **standing.dropped}
    return replace(asked, leader=leader, dropped=dropped, compared=compared_with_defaults(view, leader, laps))


def _grid(view: SearchView) -> Proposal:
    """Every candidate once in each round, every other round backwards."""
    counts = Counter(run.candidate for run in view.seen)
    left = [candidate for candidate in range(len(view.space)) if candidate not in view.out]
    number = min(counts[candidate] for candidate in left)
    if number >= view.settings.rounds:
        return concluded(view, f"every candidate was measured {view.settings.rounds} times")
    missing = [candidate for candidate in left if counts[candidate] == number]
    return _ask(view, missing if number % 2 == 0 else missing[::-1], SearchStage.GRID)
