"""What a search is told and what it answers: observations, settings, proposals; and which candidates are out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.campaign.statistics import Interval
from pipeline.campaign.tune.space import Space


class SearchStage(StrEnum):
    """What a run is measured for."""

    RANDOM = "random part"
    MODEL = "best predicted"
    SAMPLED = "sampled by Optuna"
    RACE = "race"
    CONFIRM = "confirmation"
    GRID = "grid"
    DONE = "done"


class SearchStrategy(StrEnum):
    """How the next candidates are found: by the model, by Optuna's TPE sampler, or all of them `rounds` times."""

    MODEL = "model"
    OPTUNA = "optuna"
    GRID = "grid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One run of a candidate. `order` counts the runs of the device; `seconds` is what the run took of its time.

    `value` is what the search makes small, above 0 and in any unit; None: the run failed, and `reason` says how. With a
    value, `reason` says why the candidate may not be chosen all the same: it is over a limit.
    """

    candidate: int
    order: int
    value: float | None
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How to search. `within` is the share of the value that matters, `delta` how often the race may lose a better one.

    `budget_seconds` is what all runs may take together; without it a search ends when it is decided, or at `share` of
    the time that every candidate once would take. `rounds` are those of a space measured in the ordinary way. Without
    `confirm` a search ends with its race. All calls of one search need the same settings.
    """

    strategy: SearchStrategy = SearchStrategy.MODEL
    seed: int = 0
    within: float = 0.02
    delta: float = 0.1
    budget_seconds: float | None = None
    share: float = 0.3
    rounds: int = 5
    small: int = 40
    arms: int = 12
    most_rounds: int = 40
    reference_every: int = 7
    confirm: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to measure next, once each and in this order, and what is known so far.

    `leader` is the best so far, always measured; while candidates are measured once each, that is a guess. `compared`
    has its value relative to those of the defaults, as far as that is known. `dropped` has the reason of every
    candidate that is out. `done` is why the search ended, "" while it goes on; `uncertain`
    where that was for want of time or rounds, before it was sure of its answer.
    """

    candidates: tuple[int, ...]
    stage: SearchStage
    dropped: Mapping[int, str] = field(default_factory=dict)
    leader: int | None = None
    compared: Mapping[int, Interval] = field(default_factory=dict)
    done: str = ""
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Out:
    """When (after how many observations) a candidate could not be chosen any more, and why."""

    after: int
    reason: str


NOT_TRIED = "not tried"
"""How the reason of a candidate begins that is out for what another one did."""


def failures(space: Space, seen: Sequence[Observation]) -> dict[int, Out]:
    """The candidates that failed, are over a limit, or have what failed in common with one that did.

    A failure counts for its whole family (file, provider, flags) unless one of it has already run there.
    """
    out: dict[int, Out] = {}
    ran: set[int] = set()
    for after, one in enumerate(seen, start=1):
        family = space.family[one.candidate]
        if good_value(one) is not None:
            ran.add(family)
            if one.reason:
                out.setdefault(one.candidate, Out(after, one.reason))
            continue
        reason = one.reason or "the run failed"
        out.setdefault(one.candidate, Out(after, f"failed: {reason}"))
        if family not in ran:
            said = f"{NOT_TRIED}: {space.candidates[one.candidate].run_name}, the same file, provider and flags, failed"
            for other in space.families[family]:
                out.setdefault(other, Out(after, f"{said} ({reason})"))
    return out


def good_value(one: Observation) -> float | None:
    """The value, None where the run gave none that a logarithm could be taken of."""
    good = one.value is not None and math.isfinite(one.value) and one.value > 0
    return one.value if good else None
