"""The search itself: from everything observed so far to what is measured next. Pure functions, so resuming is free.

The usual search has three parts: candidates drawn at random; twice the best that the model predicts; a race of the best
dozen until it is decided. Every seventh run is of the reference, the default candidate. Spaces of at most 40 candidates
race whole. Each part is found again from the observations that came before it, wherever a search was interrupted. Time
is for whoever runs a search to look after: `conclude` ends it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipeline import config as configs
from pipeline.campaign import tuned as campaign_tuned
from pipeline.features.tune.effects import Floats, forecast
from pipeline.features.tune.race import ArmForecast, Lap, Proposal, SearchStage, arm_ratio, next_round, run_race
from pipeline.features.tune.space import Space

NO_VALUES = campaign_tuned.CandidateValues()


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
    values: campaign_tuned.CandidateValues = NO_VALUES
    seconds: float = 0.0
    reason: str = ""
    over: campaign_tuned.Dropped | None = None

    @property
    def good(self) -> float | None:
        """The value, None where the run gave none that a logarithm could be taken of."""
        return self.value if self.value is not None and math.isfinite(self.value) and self.value > 0 else None


class Out(NamedTuple):
    """After how many observations a candidate could not be chosen any more, why, and by which one's run."""

    after: int
    why: campaign_tuned.Dropped
    by: int


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
                out.setdefault(run.candidate, Out(after, run.over, run.candidate))
            continue
        reason = run.reason or "the run failed"
        failed = campaign_tuned.Dropped(reason=f"failed: {reason}")
        out.setdefault(run.candidate, Out(after, failed, run.candidate))
        if family not in ran:
            common = f"not tried: another with the same file, provider and flags failed: {reason}"
            why = campaign_tuned.Dropped(reason=common, detail=space.candidates[run.candidate].way)
            for other in space.families[family]:
                out.setdefault(other, Out(after, why, run.candidate))
    return out


WITHIN, LOST_SHARE = 0.02, 0.1
"""The share of the value that matters, and how often the race may lose a better candidate."""

SMALL_SPACE, ARMS, GRID_ROUNDS = 40, 12, 5
"""Candidates that race without a search before, arms of a race else, and rounds of a grid."""

REFERENCE_EVERY = 7
"""One of so many runs is the reference."""

BATCH = 21
"""Candidates proposed at a time: the next failure is known early, and progress is seen."""

COST_KNOWN = 14
"""Observations from which the seconds of a run are estimated where a budget decides how many there are."""


@lru_cache(maxsize=16)
def forecast_of(space: Space, seen: tuple[Observation, ...]) -> tuple[Floats, Floats]:
    """What the observations say of all candidates (`forecast`); nothing where none has a value."""
    good = [(run, value) for run in seen if (value := run.good) is not None]
    if not good:
        return np.zeros(len(space)), np.zeros(len(space))
    return forecast(
        space, [run.candidate for run, _ in good], np.log([value for _, value in good]), [run.order for run, _ in good]
    )


MODEL_FROM = 20
"""Observations from which the model says more than the mean of each candidate."""

MORE_ARMS = 4 / 3
"""How many times the usual arms a race has at most, where the model cannot tell more candidates from the best."""

RACE_SHARE = 0.5
"""Share of what matters that a race may leave open: the best candidate may not be among its arms."""

LEAST_DEVIATION = 0.02
"""What a candidate may differ from the model at least, however sure that is of itself."""

ALL_OUT = "every one of the last candidates failed or is over a limit"


class _Part(NamedTuple):
    """The part of a search that is under way, the candidates that it still needs, and after how many observations the
    parts before it ended.
    """

    stage: SearchStage
    missing: list[int]
    cut: int


class _Race(NamedTuple):
    """The arms of a race, its laps, and how it stands."""

    arms: list[int]
    laps: list[Lap]
    standing: Proposal | None


class Search:
    """What a search looks at: the observations in order, and what follows from them; the same for the same arguments.

    Observations may come in any order and end anywhere, also in the middle of a proposal. `budget_seconds` is what all
    runs may take together, None for any time: the parts before the race are sized for it, and all calls of one search
    need the same. Raises ValueError for an observation of a candidate that the space does not have.
    """

    def __init__(
        self,
        space: Space,
        observations: Sequence[Observation],
        tune: configs.TuneConfig,
        budget_seconds: float | None = None,
    ) -> None:
        unknown = [run.candidate for run in observations if not 0 <= run.candidate < len(space)]
        if unknown:
            raise ValueError(f"the space has {len(space)} candidates, and none with number {unknown[0]}")
        self.space, self.tune, self.budget_seconds = space, tune, budget_seconds
        self.seen = tuple(sorted(observations, key=lambda run: run.order))
        self.out = failures(space, self.seen)

    @property
    def reference(self) -> int:
        """The candidate of reference runs: the default, or where it cannot run the first that ran."""
        ran = [run.candidate for run in self.seen if run.good is not None]
        return next((c for c in (self.space.default, *ran) if c not in self.out), self.space.default)

    @property
    def small(self) -> bool:
        """Whether every candidate is measured."""
        return len(self.space) <= SMALL_SPACE

    @property
    def reasons(self) -> dict[int, campaign_tuned.Dropped]:
        """Why candidates cannot be chosen: they failed, or are over a limit."""
        return {candidate: out.why for candidate, out in self.out.items()}

    def shuffled(self, candidates: Sequence[int], *number: int) -> list[int]:
        """In an order that depends on the seed and on what the candidates are for."""
        order = np.random.default_rng([self.tune.seed, *number]).permutation(len(candidates))
        return [candidates[at] for at in order]

    def propose(self) -> Proposal:
        """What to measure next, in which order, and what is known."""
        space = self.space
        if len(self.out) == len(space):
            reasons = dict.fromkeys(out.why.text for candidate, out in self.out.items() if out.by == candidate)
            return self._concluded(f"none of {len(space)} candidates can be chosen: {'; '.join(list(reasons)[:3])}")
        if self.tune.strategy is configs.TuneStrategy.GRID:
            # Every candidate once in each round, every other round backwards
            ran = Counter(run.candidate for run in self.seen)
            left = [candidate for candidate in range(len(space)) if candidate not in self.out]
            number = min(ran[candidate] for candidate in left)
            if number >= GRID_ROUNDS:
                return self._concluded(f"every candidate was measured {GRID_ROUNDS} times")
            missing = [candidate for candidate in left if ran[candidate] == number]
            return self._ask(missing if number % 2 == 0 else missing[::-1], SearchStage.GRID)
        part = self._explore()
        if part.missing:
            return self._ask(part.missing, part.stage)
        cut, race = part.cut, self._race(part.cut)
        arms, laps, standing = race.arms, race.laps, race.standing
        if standing and standing.done:
            return self._concluded(standing.done, standing, cut)
        order = self.shuffled(next_round(arms, standing, laps, self.out.keys()), 1, len(laps) // len(arms))
        asked = self._ask(order, SearchStage.RACE)
        if not asked.candidates:
            return self._concluded(ALL_OUT, standing, cut)
        if standing is None or standing.leader is None:
            return asked
        # The leader's value relative to those of the defaults that have laps
        leader, had = standing.leader, {lap.arm for lap in laps}
        both = dict.fromkeys((space.default, space.ort_default)) if leader in had else {}
        defaults = [base for base in both if base in had and base != leader and base not in self.out]
        shared = [lap for lap in laps if lap.arm in {leader, *defaults}]
        return replace(
            asked,
            leader=leader,
            dropped={**asked.dropped, **standing.dropped},
            compared={base: arm_ratio(shared, leader, base, LOST_SHARE) for base in defaults},
        )

    def conclude(self, why: str) -> Proposal:
        """What can be said where a search ends before it is decided, as by its time; the leader is the best so far."""
        if self.tune.strategy is configs.TuneStrategy.GRID or len(self.out) == len(self.space):
            return self._concluded(why, uncertain=True)
        part = self._explore()
        standing = None if part.missing else self._race(part.cut).standing
        if standing:
            why += (
                f"; after {standing.rounds} rounds of the last candidates {len(standing.bounds)} are left, of which "
                f"one may be {standing.could:.1%} better"
            )
        return self._concluded(why, standing, part.cut, uncertain=True)

    def _concluded(
        self, why: str, standing: Proposal | None = None, cut: int = 0, *, uncertain: bool = False
    ) -> Proposal:
        """The end of a search with what was measured until now; `standing` is that of its race, which began at `cut`.

        Whether its choice is better than the defaults is for rounds to say that did not choose it.
        """
        ranked = sorted(standing.bounds, key=lambda arm: standing.bounds[arm].ratio) if standing else []
        leader = next((arm for arm in ranked if arm not in self.out), None)
        if leader is None and sum(run.good is not None for run in self.seen) < MODEL_FROM:
            leader = self._best_guess()
        elif leader is None:
            mean = forecast_of(self.space, self.seen)[0]
            usable = sorted({run.candidate for run in self.seen if run.good is not None} - self.out.keys())
            leader = min(usable, key=lambda candidate: float(mean[candidate]), default=None)
        fates = dict(self._fates(leader, standing, cut)) if leader is not None else {}
        dropped = {**fates, **(standing.dropped if standing else {}), **self.reasons}
        return Proposal(
            candidates=(),
            stage=SearchStage.DONE,
            leader=leader,
            done=why,
            uncertain=uncertain,
            dropped={candidate: reason for candidate, reason in dropped.items() if candidate != leader},
        )

    def _fates(self, leader: int, standing: Proposal | None, cut: int) -> Iterator[tuple[int, campaign_tuned.Dropped]]:
        """Why each candidate but the leader was not chosen, where neither a failure nor the race has said so."""
        seen = self.seen[: cut or None]
        has_model = sum(run.good is not None for run in seen) >= MODEL_FROM
        counts = Counter(run.candidate for run in self.seen)
        mean = forecast_of(self.space, seen)[0] if has_model else np.zeros(len(self.space))
        for candidate in range(len(self.space)):
            if standing and candidate in standing.bounds:
                bounds = standing.bounds[candidate]
                yield (
                    candidate,
                    campaign_tuned.Dropped(
                        reason="not told apart from the best when the search ended",
                        above=(bounds.low - 1, bounds.high - 1),
                    ),
                )
            elif not has_model:
                reason = "measured, and not among the best" if counts[candidate] else "not measured"
                yield candidate, campaign_tuned.Dropped(reason=reason)
            else:
                above = math.exp(float(mean[candidate] - mean[leader])) - 1
                did = "measured" if counts[candidate] else "not measured"
                reason = f"{did}: above the winner, as estimated from {len(seen)} runs"
                yield candidate, campaign_tuned.Dropped(reason=reason, above=(above, above))

    def _best_guess(self) -> int | None:
        """The measured candidate with the lowest mean, with the level of the reference runs taken off."""
        laps, _ = self._laps(range(len(self.space)), 0)
        if not laps:
            return None
        reference = self.reference
        at, level = zip(*[(lap.order, lap.value) for lap in laps if lap.arm == reference] or [(0, 0.0)], strict=True)
        arms = [lap.arm for lap in laps]
        values = np.array([lap.value for lap in laps]) - np.interp([lap.order for lap in laps], at, level)
        counts = np.bincount(arms, minlength=len(self.space))
        means = np.bincount(arms, values, len(self.space)) / np.maximum(counts, 1)
        means[[c for c in range(len(self.space)) if c in self.out or not counts[c]]] = np.inf
        return int(np.argmin(means)) if np.isfinite(means).any() else None

    def _laps(self, arms: Sequence[int], cut: int) -> tuple[list[Lap], list[int]]:
        """The race's laps after `cut`, and after how many observations each was known."""
        racing = set(arms)
        laps = [
            (Lap(run.candidate, math.log(value), run.order), number)
            for number, run in enumerate(self.seen[cut:], start=cut + 1)
            if run.candidate in racing and (value := run.good) is not None
        ]
        return [lap for lap, _ in laps], [number for _, number in laps]

    def _race(self, cut: int) -> _Race:
        """The race that began at `cut`.

        Arms are the best measured by the model of the first `cut` observations, and the default: as many more as it
        cannot tell from the first of them. Of a small space all.
        """
        arms, expected = list(range(len(self.space))), []
        if not self.small:
            out = self._out_at(cut)
            mean, deviation = forecast_of(self.space, self.seen[:cut])
            usable = sorted({run.candidate for run in self.seen[:cut]} - out, key=lambda arm: (float(mean[arm]), arm))
            if usable:
                near = mean - deviation <= mean[usable[0]] + deviation[usable[0]]
                arms = [*usable[:ARMS], *(arm for arm in usable[ARMS : round(MORE_ARMS * ARMS)] if near[arm])]
                arms += [] if self.space.default in out or self.space.default in arms else [self.space.default]
            else:
                arms = [candidate for candidate in arms if candidate not in out]
            expected = [ArmForecast(arm, float(mean[arm]), max(float(deviation[arm]), LEAST_DEVIATION)) for arm in arms]
        laps, numbers = self._laps(arms, cut)
        failed = {arm: sum(n <= self.out[arm].after for n in numbers) for arm in arms if arm in self.out}
        standing = run_race(arms, laps, failed, expected, delta=LOST_SHARE, within=WITHIN * RACE_SHARE)
        return _Race(arms, laps, standing)

    def _ask(self, candidates: Sequence[int], stage: SearchStage) -> Proposal:
        """The next of the candidates, with reference runs; where time counts, one alone until its time is known."""
        first = self.budget_seconds is not None and not self.seen
        reference = self.reference
        past = [run.candidate for run in self.seen[-REFERENCE_EVERY:]]
        since = past[::-1].index(reference) if reference in past else REFERENCE_EVERY
        due = []
        for candidate in candidates[: 1 if first else BATCH]:
            if since >= REFERENCE_EVERY - 1 and candidate != reference:
                due.append(reference)
                since = 0
            due.append(candidate)
            since = 0 if candidate == reference else since + 1
        return Proposal(candidates=tuple(due), stage=stage, leader=self._best_guess(), dropped=self.reasons)

    def _reach(self, candidates: Sequence[int], start: int) -> tuple[int, list[int]]:
        """How many observations there were when all candidates had one or were out, and those that have none."""
        first = {run.candidate: number for number, run in reversed(list(enumerate(self.seen, start=1)))}
        left_after = {candidate: out.after for candidate, out in self.out.items()}
        ends = [min(first.get(c, math.inf), left_after.get(c, math.inf)) for c in candidates]
        missing = [candidate for candidate, end in zip(candidates, ends, strict=True) if end == math.inf]
        return (start, missing) if missing or not ends else (max(start, int(max(ends))), [])

    def _explore(self) -> _Part:
        """The part before the race that is under way, or the race."""
        if self.small:
            return _Part(SearchStage.RACE, [], 0)
        random_part, model_part = self._sizes()
        ran = {run.candidate for run in self.seen if run.good is not None}
        order = self.shuffled(list(range(len(self.space))), 0)
        usable = [candidate for candidate in order if candidate in ran or candidate not in self.out]
        cut, missing = self._reach([self.space.default, *usable[: max(1, random_part)]], 0)
        if missing:
            return _Part(SearchStage.RANDOM, missing, cut)
        for _ in range(2):
            # The best that are not measured yet, by the model of the first `cut` observations
            had = {run.candidate for run in self.seen[:cut]} | self._out_at(cut)
            ranked = np.argsort(forecast_of(self.space, self.seen[:cut])[0], kind="stable").tolist()
            best = [candidate for candidate in ranked if candidate not in had][:model_part]
            cut, missing = self._reach(best, cut)
            if missing:
                return _Part(SearchStage.MODEL, missing, cut)
        return _Part(SearchStage.RACE, [], cut)

    def _sizes(self) -> tuple[int, int]:
        """Candidates of the random part, and of each of the two that the model proposes."""
        size, budget = len(self.space), self.budget_seconds
        random_part, model_part = min(500, max(40, size // 8)), min(90, max(10, size // 40))
        if budget is not None and self.seen:
            first = self.seen[:COST_KNOWN]
            runs = budget * len(first) / max(sum(run.seconds for run in first), 1e-9)
            random_part, model_part = min(random_part, int(0.35 * runs)), min(model_part, int(0.08 * runs))
        return random_part, model_part

    def _out_at(self, cut: int) -> set[int]:
        return {candidate for candidate, out in self.out.items() if out.after <= cut}
