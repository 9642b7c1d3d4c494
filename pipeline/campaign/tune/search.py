"""The search itself: from everything observed so far to what is measured next. A pure function, so resuming is free.

The usual search has four parts: candidates drawn at random; twice the best that the model predicts; a race of the best
dozen; the winner and the defaults once more, in rounds that did not choose it. Every seventh run is of the reference,
the default candidate. Spaces of at most `small` candidates race whole, at no more runs than `rounds` of each would
take. Each part is found again from the observations that came before it, wherever a search was interrupted.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.campaign.tune.observed import (
    NOT_TRIED,
    Observation,
    Proposal,
    SearchSettings,
    SearchStage,
    SearchStrategy,
    good_value,
)
from pipeline.campaign.tune.outcome import concluded, ended
from pipeline.campaign.tune.race import RaceForecast, RaceRules, RaceStanding, next_round, run_race
from pipeline.campaign.tune.sampler import ask
from pipeline.campaign.tune.space import Space
from pipeline.campaign.tune.view import (
    SearchView,
    best_guess,
    compared_with_defaults,
    defaults_of,
    forecast_of,
    laps_of,
    reasons_of,
    view_of,
)

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

LEAST_ROUNDS = 15
"""Rounds of a race that the share of the grid never ends: in spaces of some 100 it would leave none."""

CONFIRM_LOOKS = (8, 12, 16, 20, 30)
"""Rounds of the confirmation after which it may end."""


def propose(space: Space, observations: Sequence[Observation], settings: SearchSettings) -> Proposal:
    """What to measure next, in which order, and what is known; the same for the same arguments.

    Observations may come in any order and end anywhere, also in the middle of a proposal. Raises ValueError for an
    observation of a candidate that the space does not have.
    """
    view = view_of(space, observations, settings)
    budget = settings.budget_seconds
    if len(view.out) == len(space):
        said = dict.fromkeys(one.reason for one in view.out.values() if not one.reason.startswith(NOT_TRIED))
        return concluded(view, f"none of {len(space)} candidates can be chosen: {'; '.join(list(said)[:3])}")
    if budget is not None and view.seen and view.spent[-1] >= budget:
        return conclude(space, observations, settings, f"the budget of {budget:g} s is used up")
    if settings.strategy is SearchStrategy.GRID:
        return _grid(view)
    now = _now(view)
    if now.missing:
        return _ask(view, now.missing, now.stage)
    if now.standing and now.standing.ended:
        return _confirm(view, now, now.standing)
    return _race_on(view, now)


def conclude(space: Space, observations: Sequence[Observation], settings: SearchSettings, why: str) -> Proposal:
    """What can be said when a search ends before its time: the budget is used up, the device is gone, Ctrl-C.

    The leader is the default unless another candidate was shown to be better.
    """
    view = view_of(space, observations, settings)
    if settings.strategy is SearchStrategy.GRID or len(view.out) == len(space):
        return concluded(view, why, uncertain=True)
    now = _now(view, asking=False)
    return concluded(view, why, now.standing, now.cut, uncertain=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """Where a search is: the part before the race with what it still wants, or the race, which began at `cut`.

    `raced` is how many observations there were at the end of the race's last complete round.
    """

    stage: SearchStage
    missing: Sequence[int] = ()
    cut: int = 0
    arms: Sequence[int] = ()
    standing: RaceStanding | None = None
    raced: int = 0


def _now(view: SearchView, *, asking: bool = True) -> _Now:
    stage, missing, cut = (SearchStage.RACE, [], 0) if view.small else _explore(view, asking=asking)
    if missing:
        return _Now(stage=stage, missing=missing, cut=cut)
    arms, settings = _race_arms(view, cut), view.settings
    laps, known = laps_of(view, arms, cut)
    failed = {arm: sum(n <= view.out[arm].after for n in known) for arm in arms if arm in view.out}
    rules = RaceRules(
        delta=settings.delta, within=settings.within * RACE_SHARE, most_rounds=settings.most_rounds,
        most_laps=next((n for n, at in enumerate(known, start=1) if _is_over(view, cut, at)), None),
    )  # fmt: skip
    standing = run_race(arms, laps, failed, rules, _expected(view, arms, cut))
    raced = known[standing.complete - 1] if standing else cut
    return _Now(stage=SearchStage.RACE, cut=cut, arms=arms, standing=standing, raced=raced)


def _ask(view: SearchView, wanted: Sequence[int], stage: SearchStage) -> Proposal:
    """The next of the candidates, with reference runs, as many as the budget has time for."""
    candidates = tuple(view.referenced(wanted[:BATCH]))
    budget = view.settings.budget_seconds
    if budget is not None:
        left = (budget - view.spent[-1]) / max(view.spent[-1] / len(view.spent), 1e-9) if view.seen else 1
        candidates = candidates[: max(1, int(left))]
    return Proposal(candidates=candidates, stage=stage, leader=best_guess(view), dropped=reasons_of(view))


def _reach(view: SearchView, wanted: Sequence[int], start: int) -> tuple[int, list[int]]:
    """How many observations there were when all wanted candidates had one or were out, and those that have none."""
    first = {one.candidate: number for number, one in reversed(list(enumerate(view.seen, start=1)))}
    known = {candidate: one.after for candidate, one in view.out.items()}
    ends = [min(first.get(c, math.inf), known.get(c, math.inf)) for c in wanted]
    missing = [candidate for candidate, end in zip(wanted, ends, strict=True) if end == math.inf]
    return (start, missing) if missing or not ends else (max(start, int(max(ends))), [])


def _explore(view: SearchView, *, asking: bool) -> tuple[SearchStage, list[int], int]:
    """The part before the race that is under way with what it still wants; or nothing wanted, and where it ended."""
    random_part, model_part = _sizes(view)
    if view.settings.strategy is SearchStrategy.OPTUNA:
        return _sample(view, random_part + 2 * model_part, asking=asking)
    ran = {one.candidate for one in view.seen if good_value(one) is not None}
    order = view.shuffled(list(range(len(view.space))), 0)
    usable = [candidate for candidate in order if candidate in ran or candidate not in view.out]
    cut, missing = _reach(view, [view.space.default, *usable[: max(1, random_part)]], 0)
    if missing:
        return SearchStage.RANDOM, missing, cut
    for _ in range(2):
        best = _best_predicted(view, cut, model_part)
        cut, missing = _reach(view, best, cut)
        if missing:
            return SearchStage.MODEL, missing, cut
    return SearchStage.RACE, [], cut


def _sample(view: SearchView, count: int, *, asking: bool) -> tuple[SearchStage, list[int], int]:
    """As `_explore`, with candidates that Optuna asks for until so many have run, or all that can."""
    usable = {candidate for candidate in range(len(view.space)) if candidate not in view.out}
    ran: set[int] = set()
    for cut, one in enumerate(view.seen, start=1):
        ran |= {one.candidate} if good_value(one) is not None else set()
        if len(ran) >= count or usable <= ran:
            return SearchStage.RACE, [], cut
    if not view.seen or not asking:
        return SearchStage.SAMPLED, [view.space.default], 0
    good = [(one.candidate, math.log(value)) for one in view.seen if (value := good_value(one)) is not None]
    return SearchStage.SAMPLED, ask(view.space, good, sorted(usable - ran), BATCH, view.settings.seed), 0


def _sizes(view: SearchView) -> tuple[int, int]:
    """Candidates of the random part, and of each of the two that the model proposes."""
    size, budget = len(view.space), view.settings.budget_seconds
    random_part, model_part = min(500, max(40, size // 8)), min(90, max(10, size // 40))
    if budget is not None and view.seen:
        known = min(COST_KNOWN, len(view.seen))
        runs = budget / max(view.spent[known - 1] / known, 1e-9)
        random_part, model_part = min(random_part, int(0.35 * runs)), min(model_part, int(0.08 * runs))
    return random_part, model_part


def _best_predicted(view: SearchView, cut: int, count: int) -> list[int]:
    """The best that are not measured yet, by the model of the first `cut` observations."""
    had = {one.candidate for one in view.seen[:cut]} | _out_at(view, cut)
    ranked = np.argsort(forecast_of(view.space, view.seen[:cut]).mean, kind="stable").tolist()
    return [candidate for candidate in ranked if candidate not in had][:count]


def _out_at(view: SearchView, cut: int) -> set[int]:
    return {candidate for candidate, one in view.out.items() if one.after <= cut}


def _expected(view: SearchView, arms: Sequence[int], cut: int) -> list[RaceForecast]:
    """What the model of the first `cut` observations expects of the arms."""
    if view.small:
        return []
    found = forecast_of(view.space, view.seen[:cut])
    return [
        RaceForecast(arm, float(found.mean[arm]), max(float(found.deviation[arm]), LEAST_DEVIATION)) for arm in arms
    ]


def _race_arms(view: SearchView, cut: int) -> list[int]:
    """The best measured by the model, and the default: as many more as it cannot tell from the first of them."""
    if view.small:
        return list(range(len(view.space)))
    out, most = _out_at(view, cut), view.settings.arms
    found = forecast_of(view.space, view.seen[:cut])
    usable = sorted({one.candidate for one in view.seen[:cut]} - out, key=lambda one: (float(found.mean[one]), one))
    if not usable:
        return [one for one in range(len(view.space)) if one not in out]
    near = found.mean - found.deviation <= found.mean[usable[0]] + found.deviation[usable[0]]
    best = [*usable[:most], *(one for one in usable[most : round(MORE_ARMS * most)] if near[one])]
    default = view.space.default
    return best if default in best or default in out else [*best, default]


def _is_over(view: SearchView, cut: int, at: int) -> bool:
    """Whether so many observations leave the race no more time: what confirms the winner is taken off."""
    settings = view.settings
    pair = 2 * CONFIRM_LOOKS[0] if settings.confirm else 0
    budget = settings.budget_seconds
    if budget is not None and view.spent[at - 1] * (1 + pair / at) >= budget:
        return True
    if view.small:
        return at >= max(settings.rounds * len(view.space) - pair, 1)
    most = max(settings.share * len(view.space), cut + LEAST_ROUNDS * settings.arms)
    return view.spent[at - 1] >= view.spent[cut - 1] / cut * (most - pair)


def _race_on(view: SearchView, now: _Now) -> Proposal:
    """The next round of the race, with what is known of the leader and of those that are out."""
    laps, _ = laps_of(view, now.arms, now.cut)
    order = view.shuffled(next_round(now.arms, now.standing, laps, view.out.keys()), 1, len(laps) // len(now.arms))
    asked = _ask(view, order, SearchStage.RACE)
    if now.standing is None:
        return asked
    leader, dropped = now.standing.leader, {**asked.dropped, **now.standing.dropped}
    return replace(asked, leader=leader, dropped=dropped, compared=compared_with_defaults(view, leader, laps))


def _confirm(view: SearchView, now: _Now, standing: RaceStanding) -> Proposal:
    """The winner beside the defaults in rounds of their own, until it is shown to be better or that it is not."""
    ranked = sorted(standing.bounds, key=lambda arm: standing.bounds[arm].ratio)
    leader = next((arm for arm in ranked if arm not in view.out), None)
    defaults = [] if leader is None else defaults_of(view, leader)
    if leader is None or not defaults or not view.settings.confirm:
        return concluded(view, standing.ended, standing, now.cut, uncertain=standing.uncertain)
    laps, _ = laps_of(view, [leader, *defaults], now.raced)
    counts = Counter(lap.arm for lap in laps)
    rounds = min(counts[arm] for arm in (leader, *defaults))
    looks = CONFIRM_LOOKS[:1] if view.small else CONFIRM_LOOKS
    compared = compared_with_defaults(view, leader, laps)
    against = compared.get(view.space.default)
    shown = against is None or against.high < 1 or against.low > 1 - view.settings.within
    if rounds >= looks[-1] or (rounds in looks and shown):
        return ended(view, leader, standing.ended, compared, standing, now.cut, uncertain=standing.uncertain)
    missing = [arm for arm in (leader, *defaults) if counts[arm] == rounds]
    plain = replace(view, settings=replace(view.settings, reference_every=0))
    asked = _ask(plain, view.shuffled(missing, 2, rounds), SearchStage.CONFIRM)
    return replace(asked, leader=leader, dropped={**asked.dropped, **standing.dropped}, compared=compared)


def _grid(view: SearchView) -> Proposal:
    """Every candidate once in each round, every other round backwards."""
    counts = Counter(one.candidate for one in view.seen)
    left = [candidate for candidate in range(len(view.space)) if candidate not in view.out]
    number = min(counts[candidate] for candidate in left)
    if number >= view.settings.rounds:
        return concluded(view, f"every candidate was measured {view.settings.rounds} times")
    missing = [candidate for candidate in left if counts[candidate] == number]
    return _ask(view, missing if number % 2 == 0 else missing[::-1], SearchStage.GRID)
