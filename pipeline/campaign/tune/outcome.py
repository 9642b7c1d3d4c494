"""How a search ends: with which candidate, how sure that is, and why every other was not chosen."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.campaign.statistics import Interval
from pipeline.campaign.tune.observed import Proposal, SearchStage, good_value
from pipeline.campaign.tune.race import RaceStanding
from pipeline.campaign.tune.view import (
    SearchView,
    best_guess,
    compared_with_defaults,
    forecast_of,
    laps_of,
    reasons_of,
)

MODEL_FROM = 20
"""Observations from which the model says more than the mean of each candidate."""


def concluded(
    view: SearchView, why: str, standing: RaceStanding | None = None, cut: int = 0, *, uncertain: bool = False
) -> Proposal:
    """The end of a search with what was measured until now; `standing` is that of its race, which began at `cut`.

    The more candidates the best was picked from, the clearer it must be better than the default.
    """
    laps, _ = laps_of(view, range(len(view.space)), 0)
    ran = {lap.arm for lap in laps}
    ranked = sorted(standing.bounds, key=lambda arm: standing.bounds[arm].ratio) if standing else []
    leader = next((arm for arm in ranked if arm not in view.out), None)
    if leader is None:
        mean = forecast_of(view.space, view.seen).mean if len(laps) >= MODEL_FROM else None
        usable = sorted(ran - view.out.keys())
        leader = best_guess(view) if mean is None else min(usable, key=lambda one: float(mean[one]), default=None)
        compared = {} if leader is None else compared_with_defaults(view, leader, laps, among=len(ran))
    else:
        compared = compared_with_defaults(view, leader, laps_of(view, list(ran), cut)[0])
    return ended(view, leader, why, compared, standing, cut, uncertain=uncertain)


def ended(
    view: SearchView,
    leader: int | None,
    why: str,
    compared: Mapping[int, Interval],
    standing: RaceStanding | None,
    cut: int,
    *,
    uncertain: bool,
) -> Proposal:
    """The last proposal. The leader gives way to the default where it was not shown to be better than it."""
    default = view.space.default
    ran = any(one.candidate == default for one in view.seen) and default not in view.out
    if leader is not None and leader != default and ran and not (default in compared and compared[default].high < 1):
        leader, compared = default, {}
        why = f"{why}; no other candidate was shown to be better than the default"
    fates = dict(_fates(view, leader, standing, cut)) if leader is not None else {}
    dropped = {**fates, **(standing.dropped if standing else {}), **reasons_of(view)}
    return Proposal(
        candidates=(), stage=SearchStage.DONE, leader=leader, compared=compared, done=why,
        uncertain=uncertain,
        dropped={candidate: reason for candidate, reason in dropped.items() if candidate != leader},
    )  # fmt: skip


def _fates(view: SearchView, leader: int, standing: RaceStanding | None, cut: int) -> Iterator[tuple[int, str]]:
    """Why each candidate but the leader was not chosen, where neither a failure nor the race has said so."""
    seen = view.seen[: cut or None]
    known = sum(good_value(one) is not None for one in seen) >= MODEL_FROM
    counts = Counter(one.candidate for one in view.seen)
    mean = forecast_of(view.space, seen).mean if known else np.zeros(len(view.space))
    for candidate in range(len(view.space)):
        if standing and candidate in standing.bounds:
            one = standing.bounds[candidate]
            yield candidate, f"left at the end of the race, at {one.low - 1:+.1%} to {one.high - 1:+.1%} of the leader"
        elif not known:
            yield candidate, "measured, and not among the best" if counts[candidate] else "not measured"
        else:
            above = math.exp(float(mean[candidate] - mean[leader])) - 1
            times = "once" if counts[candidate] == 1 else f"{counts[candidate]} times"
            did = f"measured {times}, expected" if counts[candidate] else "not measured, predicted"
            yield candidate, f"{did} at {above:+.1%} of the winner after {len(seen)} runs"
