"""The search itself: from everything observed so far to what is measured next. A pure function, so resuming is free.

The usual search has four parts: candidates drawn at random; twice the best that the model predicts; a race of the best
dozen; the winner and the defaults once more, in rounds that did not choose it. Every seventh run is of the reference,
the default candidate. Spaces of at most `small` candidates race whole, at no more runs than `rounds` of each would
take. Each part is found again from the observations that came before it, wherever a search was interrupted.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pipeline.campaign.tune.model import Forecast, forecast
from pipeline.campaign.tune.observed import (
    Observation,
    Out,
    Proposal,
    SearchSettings,
    Stage,
    Strategy,
    failures,
    good_value,
)
from pipeline.campaign.tune.race import Bounds, Lap, RaceRules, Standing, levels, next_round, run_race
from pipeline.campaign.tune.space import Space

BATCH = 21
"""Candidates proposed at a time: the next failure is known early, and progress is seen."""

COST_KNOWN = 14
"""Observations from which the seconds of a run are estimated where a budget decides how many there are."""

LEAST_ROUNDS = 15
"""Rounds of a race that the share of the grid never ends: in spaces of some 100 it would leave none."""

CONFIRM_LOOKS = (8, 12, 16, 20, 30)
"""Rounds of the confirmation after which it may end."""


@dataclass(frozen=True, slots=True)
class _View:
    """What a search looks at: the observations in order, and what follows from them at once."""

    space: Space
    seen: tuple[Observation, ...]
    settings: SearchSettings
    out: Mapping[int, Out]
    spent: tuple[float, ...]
    """What the runs took until each observation: seconds, or runs where nobody measured seconds."""

    @property
    def reference(self) -> int:
        """The candidate of reference runs: the default, or where it cannot run the first that ran."""
        ran = [one.candidate for one in self.seen if good_value(one) is not None]
        return next((c for c in (self.space.default, *ran) if c not in self.out), self.space.default)

    @property
    def small(self) -> bool:
        """Whether every candidate is measured."""
        return len(self.space) <= self.settings.small

    def referenced(self, wanted: Sequence[int]) -> Iterator[int]:
        """The candidates with reference runs between, counted from the last one that was observed."""
        reference, every = self.reference, self.settings.reference_every
        past = [one.candidate for one in self.seen[-every:]] if every else []
        since = past[::-1].index(reference) if reference in past else every
        for candidate in wanted:
            if every and since >= every - 1 and candidate != reference:
                yield reference
                since = 0
            yield candidate
            since = 0 if candidate == reference else since + 1

    def shuffled(self, candidates: Sequence[int], *number: int) -> list[int]:
        """In an order that depends on the seed and on what the candidates are for."""
        order = np.random.default_rng([self.settings.seed, *number]).permutation(len(candidates))
        return [candidates[at] for at in order]


def propose(space: Space, observations: Sequence[Observation], settings: SearchSettings) -> Proposal:
    """What to measure next, in which order, and what is known; the same for the same arguments.

    Observations may come in any order and end anywhere, also in the middle of a proposal. Raises ValueError for an
    observation of a candidate that the space does not have.
    """
    view = _view(space, observations, settings)
    if len(view.out) == len(space):
        return replace(conclude(space, observations, settings, _all_out(view)), leader=None, compared={})
    if settings.budget_seconds is not None and view.seen and view.spent[-1] >= settings.budget_seconds:
        return conclude(space, observations, settings, f"the budget of {settings.budget_seconds:g} s is used up")
    if settings.strategy is Strategy.GRID:
        return _grid(view)
    stage, missing, cut = (Stage.RACE, [], 0) if view.small else _explore(view)
    return _ask(view, missing, stage) if missing else _finish(view, cut)


def _view(space: Space, observations: Sequence[Observation], settings: SearchSettings) -> _View:
    unknown = [one.candidate for one in observations if not 0 <= one.candidate < len(space)]
    if unknown:
        raise ValueError(f"the space has {len(space)} candidates, and none with number {unknown[0]}")
    seen = tuple(sorted(observations, key=lambda one: one.order))
    timed = any(one.seconds for one in seen) or settings.budget_seconds is not None
    costs = [one.seconds if timed and len(space) > settings.small else 1.0 for one in seen]
    spent = tuple(float(total) for total in np.cumsum(costs)) if seen else ()
    return _View(space, seen, settings, failures(space, seen), spent)


def _all_out(view: _View) -> str:
    reasons = list(dict.fromkeys(one.reason for one in view.out.values() if not one.reason.startswith("not tried")))
    return f"none of {len(view.space)} candidates can be chosen: {'; '.join(reasons[:3])}"


def _ask(view: _View, wanted: Sequence[int], stage: Stage) -> Proposal:
    """The next of the candidates, with reference runs, as many as the budget has time for."""
    candidates = tuple(view.referenced(wanted[:BATCH]))
    budget = view.settings.budget_seconds
    if budget is not None:
        left = (budget - view.spent[-1]) / (view.spent[-1] / len(view.spent)) if view.seen else 1
        candidates = candidates[: max(1, int(left))]
    return Proposal(
        candidates=candidates, stage=stage, leader=_guess(view),
        dropped=_reasons(view),
    )  # fmt: skip


def _reach(view: _View, wanted: Sequence[int], start: int) -> tuple[int, list[int]]:
    """How many observations there were when all wanted candidates had one or were out, and those that have none."""
    first = {one.candidate: number for number, one in reversed(list(enumerate(view.seen, start=1)))}
    known = {candidate: one.after for candidate, one in view.out.items()}
    ends = [min(first.get(c, math.inf), known.get(c, math.inf)) for c in wanted]
    missing = [candidate for candidate, end in zip(wanted, ends, strict=True) if end == math.inf]
    return (start, missing) if missing or not ends else (max(start, int(max(ends))), [])


def _explore(view: _View) -> tuple[Stage, list[int], int]:
    """The part before the race that is under way with what it still wants; or nothing wanted, and where it ended."""
    random_part, model_part = _sizes(view)
    ran = {one.candidate for one in view.seen if good_value(one) is not None}
    order = view.shuffled(list(range(len(view.space))), 0)
    usable = [candidate for candidate in order if candidate in ran or candidate not in view.out]
    cut, missing = _reach(view, [view.space.default, *usable[:random_part]], 0)
    if missing:
        return Stage.RANDOM, missing, cut
    for _ in range(2):
        best = _best_predicted(view, cut, model_part, measured=False)
        cut, missing = _reach(view, best, cut)
        if missing:
            return Stage.MODEL, missing, cut
    return Stage.RACE, [], cut


def _sizes(view: _View) -> tuple[int, int]:
    """Candidates of the random part, and of each of the two that the model proposes."""
    size, budget = len(view.space), view.settings.budget_seconds
    random_part, model_part = min(300, max(40, size // 8)), min(60, max(10, size // 40))
    if budget is not None and view.seen:
        known = min(COST_KNOWN, len(view.seen))
        runs = budget / max(view.spent[known - 1] / known, 1e-9)
        random_part, model_part = min(random_part, int(0.35 * runs)), min(model_part, int(0.08 * runs))
    return random_part, model_part


@lru_cache(maxsize=16)
def _forecast(space: Space, seen: tuple[Observation, ...]) -> Forecast:
    good = [(one, value) for one in seen if (value := good_value(one)) is not None]
    return forecast(
        space, [one.candidate for one, _ in good], np.log([value for _, value in good]), [one.order for one, _ in good]
    )


def _best_predicted(view: _View, cut: int, count: int, *, measured: bool) -> list[int]:
    """The best by the model of the first `cut` observations, of those that were measured by then or were not."""
    had = {one.candidate for one in view.seen[:cut]}
    out = {candidate for candidate, one in view.out.items() if one.after <= cut}
    if had <= out:
        return []
    mean = _forecast(view.space, view.seen[:cut]).mean
    order = [int(candidate) for candidate in np.argsort(mean, kind="stable")]
    return [candidate for candidate in order if candidate not in out and (candidate in had) is measured][:count]


def _race_arms(view: _View, cut: int) -> list[int]:
    if view.small:
        return list(range(len(view.space)))
    best = _best_predicted(view, cut, view.settings.arms, measured=True)
    default = view.space.default
    started_out = default in view.out and view.out[default].after <= cut
    return best if default in best or started_out else [*best, default]


def _limit(view: _View, cut: int) -> float:
    """What all runs may take until the race is over, in the unit of `spent`; the confirmation's share is taken off."""
    settings = view.settings
    pair = 2 * CONFIRM_LOOKS[0]
    if view.small:
        return max(settings.rounds * len(view.space) - pair, 1)
    a_run = view.spent[cut - 1] / cut
    grid = a_run * max(settings.share * len(view.space), cut + LEAST_ROUNDS * settings.arms)
    budget = settings.budget_seconds
    return (grid if budget is None else min(grid, budget)) - pair * a_run


def _laps(view: _View, arms: Sequence[int], cut: int) -> tuple[list[Lap], list[int]]:
    """The race's laps after `cut`, and after how many observations each was known."""
    wanted = set(arms)
    found = [
        (Lap(one.candidate, math.log(value), one.order), number)
        for number, one in enumerate(view.seen[cut:], start=cut + 1)
        if one.candidate in wanted and (value := good_value(one)) is not None
    ]
    return [lap for lap, _ in found], [number for _, number in found]


def _finish(view: _View, cut: int) -> Proposal:
    """The race, and what follows it."""
    arms, settings = _race_arms(view, cut), view.settings
    laps, known = _laps(view, arms, cut)
    failed = {arm: sum(n <= view.out[arm].after for n in known) for arm in arms if arm in view.out}
    limit = _limit(view, cut)
    most_laps = next((n for n, at in enumerate(known) if view.spent[at - 1] >= limit), None)
    rules = RaceRules(
        delta=settings.delta, within=settings.within, most_rounds=settings.most_rounds, most_laps=most_laps
    )
    standing = run_race(arms, laps, failed, rules)
    if standing and standing.ended:
        return _confirm(view, standing, known[standing.complete - 1])
    if most_laps is not None and standing is None:
        return _concluded(view, "the budget ended before the first look of the race")
    order = view.shuffled(next_round(arms, standing, laps, failed.keys()), 1, len(laps) // max(len(arms), 1))
    asked = _ask(view, order, Stage.RACE)
    return asked if standing is None else replace(
        asked, leader=standing.leader, dropped={**asked.dropped, **standing.dropped},
        compared=_compared(view, standing.leader, laps),
    )  # fmt: skip


def _defaults(view: _View, leader: int) -> list[int]:
    """The defaults that can be compared with a leader."""
    both = (view.space.default, view.space.ort_default)
    return [c for c in dict.fromkeys(both) if c is not None and c != leader and c not in view.out]


def _compared(view: _View, leader: int, laps: Sequence[Lap]) -> dict[int, Bounds]:
    """The leader's value relative to those of the defaults that have laps."""
    had = {lap.arm for lap in laps}
    defaults = [base for base in _defaults(view, leader) if base in had]
    if leader not in had or not defaults:
        return {}
    found = levels(tuple(lap for lap in laps if lap.arm in {leader, *defaults}))
    return {base: found.between(leader, base, view.settings.delta) for base in defaults}


def _confirm(view: _View, standing: Standing, cut: int) -> Proposal:
    """The winner beside the defaults in rounds of their own, until it is shown to be better or that it is not."""
    ranked = sorted(standing.bounds, key=lambda arm: standing.bounds[arm].ratio)
    leader = next((arm for arm in ranked if arm not in view.out), None)
    dropped = {**_reasons(view), **standing.dropped}
    if leader is None:
        return _concluded(view, standing.ended)
    defaults = _defaults(view, leader)
    if not defaults:
        return Proposal(candidates=(), stage=Stage.DONE, dropped=dropped, leader=leader, done=standing.ended)
    laps, _ = _laps(view, [leader, *defaults], cut)
    counts = Counter(lap.arm for lap in laps)
    rounds = min(counts[arm] for arm in (leader, *defaults))
    compared = _compared(view, leader, laps) if rounds >= CONFIRM_LOOKS[0] else {}
    against = compared.get(view.space.default)
    decided = against is not None and (against.high < 1 or against.low > 1 - view.settings.within)
    looks = CONFIRM_LOOKS[:1] if view.small else CONFIRM_LOOKS
    if rounds >= looks[-1] or (rounds in looks and (decided or view.space.default not in defaults)):
        better = against is None or against.high < 1
        chosen = leader if better else view.space.default
        why = standing.ended if better else f"{standing.ended}; it was not shown to be better than the default"
        return Proposal(candidates=(), stage=Stage.DONE, dropped=dropped, leader=chosen, compared=compared, done=why)
    missing = [arm for arm in (leader, *defaults) if counts[arm] == rounds]
    plain = replace(view, settings=replace(view.settings, reference_every=0))
    asked = _ask(plain, view.shuffled(missing, 2, rounds), Stage.CONFIRM)
    return replace(asked, leader=leader, dropped=dropped, compared=_compared(view, leader, laps))


def _reasons(view: _View) -> dict[int, str]:
    return {candidate: one.reason for candidate, one in view.out.items()}


def conclude(space: Space, observations: Sequence[Observation], settings: SearchSettings, why: str) -> Proposal:
    """What can be said when a search ends before its time: the budget is used up, the device is gone, Ctrl-C.

    The leader is the default unless another candidate was shown to be better.
    """
    return _concluded(_view(space, observations, settings), why)


def _concluded(view: _View, why: str) -> Proposal:
    space = view.space
    leader = _guess(view)
    default = space.default if space.default not in view.out else None
    laps, _ = _laps(view, range(len(space)), 0)
    compared: dict[int, Bounds] = {}
    if leader is not None and default is not None and len(laps) >= 4:
        compared = _compared(view, leader, laps)
        shown = default in compared and compared[default].high < 1
        leader = leader if shown or default not in {lap.arm for lap in laps} else default
    return Proposal(
        candidates=(), stage=Stage.DONE, dropped=_reasons(view), leader=leader, done=why,
        compared=compared if leader != default else {},
    )  # fmt: skip


def _guess(view: _View) -> int | None:
    """The measured candidate with the lowest mean, with the level of the reference runs taken off."""
    laps, _ = _laps(view, range(len(view.space)), 0)
    if not laps:
        return None
    reference = view.reference
    at, level = zip(*[(lap.order, lap.value) for lap in laps if lap.arm == reference] or [(0, 0.0)], strict=True)
    values = [lap.value for lap in laps] - np.interp([lap.order for lap in laps], at, level)
    arms = [lap.arm for lap in laps]
    counts = np.bincount(arms, minlength=len(view.space))
    means = np.bincount(arms, values, len(view.space)) / np.maximum(counts, 1)
    means[[c for c in range(len(view.space)) if c in view.out or not counts[c]]] = np.inf
    return int(np.argmin(means)) if np.isfinite(means).any() else None


def _grid(view: _View) -> Proposal:
    """Every candidate once in each round, every other round backwards."""
    counts = Counter(one.candidate for one in view.seen)
    left = [candidate for candidate in range(len(view.space)) if candidate not in view.out]
    number = min(counts[candidate] for candidate in left)
    if number >= view.settings.rounds:
        return _concluded(view, f"every candidate was measured {view.settings.rounds} times")
    missing = [candidate for candidate in left if counts[candidate] == number]
    return _ask(view, missing if number % 2 == 0 else missing[::-1], Stage.GRID)
