"""The search itself: from everything observed so far to what is measured next. Pure functions, so resuming is free.

The usual search has three parts: candidates drawn at random; twice the best that the model predicts; a race of the best
dozen until it is decided. Every seventh run is of the reference, the default candidate. Spaces of at most 40 candidates
race whole. Each part is found again from the observations that came before it, wherever a search was interrupted. Time
is for whoever runs a search to look after: `conclude` ends it.

The model, apart from the device's drift: a value is (effects of the candidate) + (level of the device at that time) +
noise. Effects are those of each factor, of each variant with threads and with flags, and of threads with spinning. Each
kind of effect is shrunk by a ridge whose strength is estimated from the data (MacKay's evidence approximation), so that
kinds that are not there cost nothing. The level is a random walk, noise has heavy tails (Student's t by reweighting):
both are usual on phones.

A race measures each of the last candidates, its arms, once a round in random order until the best is known. The arms'
values and the device's level are fitted together over all rounds, so that an arm that met a warm device loses nothing.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pipeline import config as configs
from pipeline.campaign import tuned as campaign_tuned
from pipeline.campaign.statistics import groups as run_groups
from pipeline.features.tune.space import Space

Floats = npt.NDArray[np.float64]

DRIFT_STEP = 5
"""Runs between knots of the device's level: some 8 s, within which it changes less than one process differs."""

MOST_KNOTS = 200
"""Knots at most: a grid of thousands of runs needs none so close."""

DRIFT_VARIANCE = 1e-4
"""Where the variance of what the level rises in a step starts: 1 %."""

TAILS = 4.0
"""Degrees of freedom of the noise: weights fall to a half at two standard deviations."""

ITERATIONS = 8

SETTLED = 0.03
"""A fit is done when the estimate of the noise changes by less: by then no effect moves by a tenth of it."""

LARGE, SMALL = 4.0, 1e-9
"""Bounds of variances of log values: a factor of e², and nothing."""

Fit = tuple[Floats, Floats, float, Floats]
"""Means and covariance of all effects, block after block, the variance of a value's noise, the weight of each value."""


def fit(blocks: Sequence[Floats], starts: Sequence[float], values: Floats, *, fixed: int) -> Fit:
    """Effects that explain the values; those of the first columns are found at the same indices in the result.

    A block has columns whose effects share a variance, of which the estimate begins at its start; the first `fixed`
    blocks keep theirs.
    """
    columns = np.hstack(blocks)
    sizes = [block.shape[1] for block in blocks]
    edges = np.cumsum([0, *sizes])
    variances = list(starts)
    weights: Floats = np.ones(len(values))
    noise = max(float(np.var(values)) / 4, SMALL)
    mean: Floats = np.zeros(columns.shape[1])
    covariance: Floats = np.eye(columns.shape[1])
    for _ in range(ITERATIONS):
        weighted = columns * (weights / noise)[:, None]
        precision = weighted.T @ columns
        precision[np.diag_indices_from(precision)] += 1 / np.repeat(variances, sizes)
        covariance = np.asarray(np.linalg.inv(precision), np.float64)
        mean = covariance @ (weighted.T @ values)
        determined = 0.0
        for number in range(len(blocks)):
            part = slice(edges[number], edges[number + 1])
            degrees = sizes[number] - float(np.trace(covariance[part, part])) / variances[number]
            determined += degrees
            if number >= fixed:
                estimate = float(mean[part] @ mean[part]) / max(degrees, 1e-3)
                variances[number] = min(max(estimate, SMALL), LARGE)
        rest = values - columns @ mean
        before, noise = noise, max(float(weights @ rest**2) / max(len(values) - determined, 1.0), SMALL)
        weights = (TAILS + 1) / (TAILS + rest**2 / noise)
        if abs(noise / before - 1) < SETTLED:
            break
    return mean, covariance, noise, weights


def drift_columns(positions: Sequence[int]) -> Floats:
    """One column for each stretch of runs: what the level rises on it counts for all that come after."""
    at = np.asarray(positions, np.float64)
    at = at - at.min()
    step = max(DRIFT_STEP, at.max() / MOST_KNOTS)
    knots = np.arange(0, at.max() + step, step)
    columns: Floats = np.clip((at[:, None] - knots[None, :]) / step, 0.0, 1.0)
    return columns


VARIANT = ("level", "style", "precision", "providers")


@lru_cache(maxsize=4)
def candidate_columns(space: Space) -> list[Floats]:
    """The columns of all candidates, one matrix for each kind of effect; the first is the level of all.

    Kinds are sets of factors whose values make a column together: factors alone; the variant; the variant with threads,
    and with the provider's flags and options; threads with spinning; each part of the variant with threads and flags.
    """
    rows = space.factors
    names = list(dict.fromkeys(name for row in rows for name in row))
    flags = ("provider", "flags", *(name for name in names if name.startswith("options.")))
    kinds: list[list[tuple[str, ...]]] = [
        [(name,) for name in names],
        [VARIANT],
        [(*VARIANT, "threads")],
        [(*VARIANT, *flags)],
        [("threads", "spinning")],
        [(part, other) for part in VARIANT for other in ("threads", "flags")],
    ]
    columns = [np.ones((len(rows), 1))]
    for sets in kinds:
        blocks = []
        for factors in sets:  # a column for each combination of their values; sets with only one have none
            values = [tuple(row.get(name, "") for name in factors) for row in rows]
            numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
            if len(numbers) > 1:
                blocks.append(np.eye(len(numbers))[[numbers[value] for value in values]])
        columns += [np.hstack(blocks)] if blocks else []
    return columns


START = (LARGE, 0.05, 0.05, *[0.005] * 4)
"""Where the variances of the kinds of effects start: the level of all, factors, variants, and what acts together."""


def forecast(space: Space, candidates: Sequence[int], values: Floats, orders: Sequence[int]) -> tuple[Floats, Floats]:
    """What all candidates are expected to have, from the log values of some; the same level counts for all of them.

    The expected log value of each and its standard deviation, both without noise. What the effects do not explain of
    a candidate is partly its own: as much as candidates differ more from the model than runs of one candidate differ
    from each other.
    """
    columns, rows, count = candidate_columns(space), np.asarray(candidates), len(space)
    middle = float(np.median(values))
    blocks = [*(kind[rows] for kind in columns), drift_columns(orders)]
    effect, covariance, noise, weights = fit(blocks, [*START[: len(columns)], DRIFT_VARIANCE], values - middle, fixed=1)
    everything = np.hstack(columns)
    size = everything.shape[1]
    mean = everything @ effect[:size]
    variance = np.einsum("ij,ij->i", everything @ covariance[:size, :size], everything)
    # What each candidate has beside its effects, shrunk, and the variance that it may still have there
    rest = values - middle - np.hstack(blocks) @ effect
    weight = np.bincount(rows, weights, count)
    average = np.bincount(rows, weights * rest, count) / np.maximum(weight, SMALL)
    repeated = np.bincount(rows, minlength=count)[rows] > 1
    within = weights[repeated] @ (rest - average[rows])[repeated] ** 2
    freedom = int(repeated.sum()) - len(np.unique(rows[repeated]))
    process = float(within) / freedom if freedom > 5 else noise / 2
    between = max(noise - process, 0.0)
    share = between / (between + process / np.maximum(weight, SMALL)) if between else np.zeros(count)
    return mean + share * average + middle, np.sqrt(np.maximum(variance + between * (1 - share), 0.0))


FIRST_LOOK = 3
"""Rounds before the first arm may be dropped: of two runs both may be outliers."""

LOOK_STEP = 1.1
"""How many times the rounds of a look the next one has at least: each is a fit of all laps, of thousands in an hour."""

Lap = tuple[int, float, int]
"""One run: of which arm, its logarithmic value, and which run of the device it was."""

ArmForecast = tuple[int, float, float]
"""An arm with the log value that it is expected to have before the race, and the standard deviation of that."""


class SearchStage(StrEnum):
    """What a run is measured for."""

    RANDOM = "random part"
    MODEL = "best predicted"
    RACE = "race"
    GRID = "grid"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to measure next, once each and in this order, and what is known so far.

    `leader` is the best so far, always measured; while candidates are measured once each, that is a guess. `compared`
    has its value relative to those of the defaults, as far as a race knows that. `dropped` has the reason of every
    candidate that is out. `done` is why the search ended, "" while it goes on; `uncertain` where `conclude` ended it,
    before it was sure of its answer.

    Of a race: where it was at its last look, after so many `rounds`; `bounds` compares the arms that are left with the
    leader.
    """

    candidates: tuple[int, ...] = ()
    stage: SearchStage
    dropped: Mapping[int, campaign_tuned.Dropped] = field(default_factory=dict)
    leader: int | None = None
    compared: Mapping[int, run_groups.Interval] = field(default_factory=dict)
    done: str = ""
    uncertain: bool = False
    rounds: int = 0
    bounds: Mapping[int, run_groups.Interval] = field(default_factory=dict)

    @property
    def could(self) -> float:
        """By what share of its value an arm that is left may be better than the leader."""
        return max(1 / bound.low - 1 for bound in self.bounds.values())


def run_race(
    arms: Sequence[int],
    laps: Sequence[Lap],
    failed: Mapping[int, int],
    expected: Sequence[ArmForecast] = (),
    *,
    delta: float,
    within: float,
) -> Proposal | None:
    """The standing at the last look, or at the one that ended the race; None before the first.

    `failed` is how many laps had been run when an arm failed, `expected` what the model says of arms. `delta` is the
    share of races in which a better arm may be lost, `within` the share of the value that matters.
    """
    dropped: dict[int, campaign_tuned.Dropped] = {}
    standing, number = None, FIRST_LOOK
    while number <= len(laps):
        alive = [arm for arm in arms if arm not in dropped]
        complete = _end_of_round(number, alive, laps, failed)
        if complete is None:
            break
        alive = [arm for arm in alive if failed.get(arm, complete + 1) > complete]
        if not alive:
            break
        bounds = compare_arms(alive, laps[:complete], delta, expected)
        dropped |= {
            arm: campaign_tuned.Dropped(
                reason="worse than the best so far, in rounds beside it",
                detail=f"in round {number}",
                above=(interval.low - 1, interval.high - 1),
            )
            for arm, interval in bounds.items()
            if interval.low > 1
        }
        standing = Proposal(
            stage=SearchStage.RACE,
            leader=min(bounds, key=lambda arm: bounds[arm].ratio),
            dropped=dict(dropped),
            rounds=number,
            bounds={arm: interval for arm, interval in bounds.items() if arm not in dropped},
        )
        if standing.could <= within:
            return replace(
                standing, done=f"after {number} rounds no candidate left can be more than {within:.0%} better"
            )
        number = max(number + 1, math.ceil(number * LOOK_STEP))
    return standing


def _end_of_round(number: int, alive: Sequence[int], laps: Sequence[Lap], failed: Mapping[int, int]) -> int | None:
    """How many laps had been run when every arm that is left had so many; None where one has not."""
    waiting = set(alive)
    counted: Counter[int] = Counter()
    for complete, (ran, _, _) in enumerate(laps, start=1):
        counted[ran] += 1
        if counted[ran] >= number:
            waiting.discard(ran)
        if all(failed.get(arm, complete + 1) <= complete for arm in waiting):
            return complete
    return len(laps) if all(arm in failed for arm in waiting) else None


def arm_ratio(
    laps: Sequence[Lap], arm: int, base: int, error: float, expected: Sequence[ArmForecast] = ()
) -> run_groups.Interval:
    """By what factor the arm's value is the base's; outside of the bounds with a probability of `error`."""
    rows, mean, covariance, freedom = levels(tuple(laps), tuple(expected))
    row, other = rows[arm], rows[base]
    difference = float(mean[row] - mean[other])
    variance = float(covariance[row, row] + covariance[other, other] - 2 * covariance[row, other])
    reach = run_groups.t_quantile(1 - error / 2, freedom) * math.sqrt(max(variance, 0.0))
    return run_groups.Interval(*map(math.exp, (difference, difference - reach, difference + reach)))


@lru_cache(maxsize=256)
def levels(
    laps: tuple[Lap, ...], expected: tuple[ArmForecast, ...] = ()
) -> tuple[Mapping[int, int], Floats, Floats, int]:
    """The arms' levels and the device's, fitted together; where nothing is expected of an arm, only its laps count.

    The row of each arm, the log values of the rows, their covariance, and the degrees of freedom that are left.
    """
    arms = list(dict.fromkeys(arm for arm, _, _ in laps))
    rows = {arm: number for number, arm in enumerate(arms)}
    forecasts = {arm: (mean, deviation) for arm, mean, deviation in expected}
    before = np.array([forecasts[arm][0] if arm in forecasts else 0.0 for arm in arms])
    scale = np.array([forecasts[arm][1] if arm in forecasts else math.sqrt(LARGE) for arm in arms])
    at = [rows[arm] for arm, _, _ in laps]
    values = np.array([value for _, value, _ in laps]) - before[at]
    of_arms, of_all = (np.eye(len(arms)) * scale)[at], np.ones((len(laps), 1))
    drift = drift_columns([order for _, _, order in laps])
    mean, covariance, _, _ = fit(
        [of_arms, of_all, drift], [1.0, LARGE, DRIFT_VARIANCE], values - float(np.median(values)), fixed=2
    )
    size = len(arms)
    scaled = covariance[:size, :size] * np.outer(scale, scale)
    return rows, before + scale * mean[:size], scaled, max(len(laps) - size, 2)


def compare_arms(
    alive: Sequence[int], laps: Sequence[Lap], delta: float, expected: Sequence[ArmForecast] = ()
) -> dict[int, run_groups.Interval]:
    """Each arm against the one with the lowest value, at a confidence that holds for all of them together."""
    rows, mean, _, _ = levels(tuple(laps), tuple(expected))
    leader = min(alive, key=lambda arm: float(mean[rows[arm]]))
    return {arm: arm_ratio(laps, arm, leader, delta / max(len(alive) - 1, 1), expected) for arm in alive}


def next_round(
    arms: Sequence[int], standing: Proposal | None, laps: Sequence[Lap], failed: AbstractSet[int]
) -> list[int]:
    """Arms that are still to run in the round that is under way, in the order of the arms."""
    out = standing.dropped if standing else {}
    left = [arm for arm in arms if arm not in failed and arm not in out]
    counted = Counter(arm for arm, _, _ in laps)
    number = min((counted[arm] for arm in left), default=0)
    return [arm for arm in left if counted[arm] == number]


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


Out = tuple[int, campaign_tuned.Dropped, int]
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
        out.setdefault(run.candidate, (after, campaign_tuned.Dropped(reason=f"failed: {reason}"), run.candidate))
        if family not in ran:
            common = f"not tried: another with the same file, provider and flags failed: {reason}"
            why = campaign_tuned.Dropped(reason=common, detail=space.candidates[run.candidate].run_name)
            for other in space.families[family]:
                out.setdefault(other, (after, why, run.candidate))
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
        return {candidate: why for candidate, (_, why, _) in self.out.items()}

    def shuffled(self, candidates: Sequence[int], *number: int) -> list[int]:
        """In an order that depends on the seed and on what the candidates are for."""
        order = np.random.default_rng([self.tune.seed, *number]).permutation(len(candidates))
        return [candidates[at] for at in order]

    def propose(self) -> Proposal:
        """What to measure next, in which order, and what is known."""
        space = self.space
        if len(self.out) == len(space):
            reasons = dict.fromkeys(why.text for candidate, (_, why, run) in self.out.items() if run == candidate)
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
        stage, missing, cut = self._explore()
        if missing:
            return self._ask(missing, stage)
        arms, laps, standing = self._race(cut)
        if standing and standing.done:
            return self._concluded(standing.done, standing, cut)
        order = self.shuffled(next_round(arms, standing, laps, self.out.keys()), 1, len(laps) // len(arms))
        asked = self._ask(order, SearchStage.RACE)
        if not asked.candidates:
            return self._concluded(ALL_OUT, standing, cut)
        if standing is None or standing.leader is None:
            return asked
        # The leader's value relative to those of the defaults that have laps
        leader, had = standing.leader, {arm for arm, _, _ in laps}
        both = dict.fromkeys((space.default, space.ort_default)) if leader in had else {}
        defaults = [base for base in both if base in had and base != leader and base not in self.out]
        shared = [lap for lap in laps if lap[0] in {leader, *defaults}]
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
        _, missing, cut = self._explore()
        standing = None if missing else self._race(cut)[2]
        if standing:
            why += (
                f"; after {standing.rounds} rounds of the last candidates {len(standing.bounds)} are left, of which "
                f"one may be {standing.could:.1%} better"
            )
        return self._concluded(why, standing, cut, uncertain=True)

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
        at, level = zip(*[(order, value) for arm, value, order in laps if arm == reference] or [(0, 0.0)], strict=True)
        arms, logs, orders = zip(*laps, strict=True)
        values = np.array(logs) - np.interp(orders, at, level)
        counts = np.bincount(arms, minlength=len(self.space))
        means = np.bincount(arms, values, len(self.space)) / np.maximum(counts, 1)
        means[[c for c in range(len(self.space)) if c in self.out or not counts[c]]] = np.inf
        return int(np.argmin(means)) if np.isfinite(means).any() else None

    def _laps(self, arms: Sequence[int], cut: int) -> tuple[list[Lap], list[int]]:
        """The race's laps after `cut`, and after how many observations each was known."""
        racing = set(arms)
        laps = [
            ((run.candidate, math.log(value), run.order), number)
            for number, run in enumerate(self.seen[cut:], start=cut + 1)
            if run.candidate in racing and (value := run.good) is not None
        ]
        return [lap for lap, _ in laps], [number for _, number in laps]

    def _race(self, cut: int) -> tuple[list[int], list[Lap], Proposal | None]:
        """The arms of the race that began at `cut`, its laps, and how it stands.

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
            expected = [(arm, float(mean[arm]), max(float(deviation[arm]), LEAST_DEVIATION)) for arm in arms]
        laps, numbers = self._laps(arms, cut)
        failed = {arm: sum(n <= self.out[arm][0] for n in numbers) for arm in arms if arm in self.out}
        return arms, laps, run_race(arms, laps, failed, expected, delta=LOST_SHARE, within=WITHIN * RACE_SHARE)

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
        left_after = {candidate: after for candidate, (after, *_) in self.out.items()}
        ends = [min(first.get(c, math.inf), left_after.get(c, math.inf)) for c in candidates]
        missing = [candidate for candidate, end in zip(candidates, ends, strict=True) if end == math.inf]
        return (start, missing) if missing or not ends else (max(start, int(max(ends))), [])

    def _explore(self) -> tuple[SearchStage, list[int], int]:
        """The part before the race that is under way with what it still needs; or nothing, and where it ended."""
        if self.small:
            return SearchStage.RACE, [], 0
        random_part, model_part = self._sizes()
        ran = {run.candidate for run in self.seen if run.good is not None}
        order = self.shuffled(list(range(len(self.space))), 0)
        usable = [candidate for candidate in order if candidate in ran or candidate not in self.out]
        cut, missing = self._reach([self.space.default, *usable[: max(1, random_part)]], 0)
        if missing:
            return SearchStage.RANDOM, missing, cut
        for _ in range(2):
            # The best that are not measured yet, by the model of the first `cut` observations
            had = {run.candidate for run in self.seen[:cut]} | self._out_at(cut)
            ranked = np.argsort(forecast_of(self.space, self.seen[:cut])[0], kind="stable").tolist()
            best = [candidate for candidate in ranked if candidate not in had][:model_part]
            cut, missing = self._reach(best, cut)
            if missing:
                return SearchStage.MODEL, missing, cut
        return SearchStage.RACE, [], cut

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
        return {candidate for candidate, (after, *_) in self.out.items() if after <= cut}
