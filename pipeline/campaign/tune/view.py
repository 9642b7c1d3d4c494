"""What a search looks at: the observations in order, and what follows from them at once."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipeline.campaign.statistics import Interval
from pipeline.campaign.tune.model import Forecast, forecast
from pipeline.campaign.tune.observed import Observation, Out, SearchSettings, failures, good_value
from pipeline.campaign.tune.race import Lap, levels
from pipeline.campaign.tune.space import Space


@dataclass(frozen=True, slots=True)
class SearchView:
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


def view_of(space: Space, observations: Sequence[Observation], settings: SearchSettings) -> SearchView:
    """The view of a search; raises ValueError for an observation of a candidate that the space does not have."""
    unknown = [one.candidate for one in observations if not 0 <= one.candidate < len(space)]
    if unknown:
        raise ValueError(f"the space has {len(space)} candidates, and none with number {unknown[0]}")
    seen = tuple(sorted(observations, key=lambda one: one.order))
    timed = any(one.seconds for one in seen) or settings.budget_seconds is not None
    costs = [one.seconds if timed else 1.0 for one in seen]
    spent = tuple(float(total) for total in np.cumsum(costs)) if seen else ()
    return SearchView(space, seen, settings, failures(space, seen), spent)


def reasons_of(view: SearchView) -> dict[int, str]:
    """Why candidates cannot be chosen: they failed, or are over a limit."""
    return {candidate: one.reason for candidate, one in view.out.items()}


def laps_of(view: SearchView, arms: Sequence[int], cut: int) -> tuple[list[Lap], list[int]]:
    """The race's laps after `cut`, and after how many observations each was known."""
    wanted = set(arms)
    found = [
        (Lap(one.candidate, math.log(value), one.order), number)
        for number, one in enumerate(view.seen[cut:], start=cut + 1)
        if one.candidate in wanted and (value := good_value(one)) is not None
    ]
    return [lap for lap, _ in found], [number for _, number in found]


@lru_cache(maxsize=16)
def forecast_of(space: Space, seen: tuple[Observation, ...]) -> Forecast:
    """What the observations say of all candidates; nothing where none has a value."""
    good = [(one, value) for one in seen if (value := good_value(one)) is not None]
    if not good:
        return Forecast(np.zeros(len(space)), np.zeros(len(space)))
    return forecast(
        space, [one.candidate for one, _ in good], np.log([value for _, value in good]), [one.order for one, _ in good]
    )


def defaults_of(view: SearchView, leader: int) -> list[int]:
    """The defaults that can be compared with a leader."""
    both = (view.space.default, view.space.ort_default)
    return [c for c in dict.fromkeys(both) if c is not None and c != leader and c not in view.out]


def compared_with_defaults(view: SearchView, leader: int, laps: Sequence[Lap], among: int = 1) -> dict[int, Interval]:
    """The leader's value relative to those of the defaults that have laps; `among` is how many it was picked from."""
    had = {lap.arm for lap in laps}
    defaults = [base for base in defaults_of(view, leader) if base in had]
    if leader not in had or not defaults:
        return {}
    found = levels(tuple(lap for lap in laps if lap.arm in {leader, *defaults}))
    return {base: found.between(leader, base, view.settings.delta / among) for base in defaults}


def best_guess(view: SearchView) -> int | None:
    """The measured candidate with the lowest mean, with the level of the reference runs taken off."""
    laps, _ = laps_of(view, range(len(view.space)), 0)
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
