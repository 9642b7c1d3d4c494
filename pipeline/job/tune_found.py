"""What a search on a device came to: its outcome with the reason, and the fate of every candidate."""

import math
from collections.abc import Iterator, Mapping

from pipeline.campaign.plan import planned_id
from pipeline.campaign.tuned import ANSWERED, CandidateValues, TunedCandidate, TunedModel, TuneOutcome
from pipeline.core.progress import duration_text
from pipeline.job.tune_search import (
    BUDGET_ENDED,
    CONFIRM_ROUNDS,
    CONFIRM_SHARE,
    ModelSearch,
    broken_limit,
    value_of,
)

FEWEST_COMPARED = 2


def found_by(search: ModelSearch, device: str, model: str, left: str = "") -> TunedModel:
    """What a search found. `left` is why the device had to be left before the end, "" where it was not."""
    best = None if left else search.best()
    outcome, reason = _outcome(search, best, left)
    winner = best if outcome in ANSWERED else None
    space = search.space

    def name(candidate: int | None) -> str:
        return "" if candidate is None else planned_id(space.candidates[candidate])

    return TunedModel(
        device=device,
        model=model,
        goals=tuple(goal.value for goal in search.goals),
        outcome=outcome,
        reason=reason,
        winner=name(winner),
        documented=name(space.default),
        ort_default=name(space.ort_default),
        front=tuple(map(name, search.front())) if winner is not None else (),
        processes=len(search.seen),
        spent_seconds=round(search.spent_seconds, 3),
        budget_seconds=round(search.budget_seconds, 3),
        strategy=search.tune.strategy.value,
        seed=search.tune.seed,
        candidates=tuple(_candidates(search, winner)),
    )


def _outcome(search: ModelSearch, best: int | None, left: str) -> tuple[TuneOutcome, str]:
    number = len(search.seen)
    spent = f"{number} {'run' if number == 1 else 'runs'} in {duration_text(search.spent_seconds)}"
    if left:
        return TuneOutcome.LOST, f"{left}; {spent} are kept: go on with --resume"
    measured = search.values()
    last = next((one.failure for one in reversed(search.seen) if one.failure), "")
    if not measured and search.seen and search.ended != BUDGET_ENDED:
        return TuneOutcome.ALL_FAILED, f"no candidate gave a result; the last: {last}"
    if len(measured) < min(FEWEST_COMPARED, len(search.space)) and search.ended == BUDGET_ENDED:
        need = duration_text(search.run_seconds * (FEWEST_COMPARED + 3 * CONFIRM_ROUNDS) / (1 - CONFIRM_SHARE))
        failed = f"; no candidate gave a result, the last: {last}" if last and not measured else ""
        return TuneOutcome.TOO_SMALL, f"{spent}: too few to compare anything; give at least {need}{failed}"
    if best is None:
        return TuneOutcome.NONE_POSSIBLE, _why_impossible(search, measured)
    if search.ended == BUDGET_ENDED:
        return TuneOutcome.BUDGET, f"{spent}: the time was over before the answer was certain"
    if search.proposals[search.searched[0]].uncertain:
        return TuneOutcome.BUDGET, f"{spent}: {search.ended}"
    return TuneOutcome.DECIDED, f"{spent}: {search.ended}"


def _why_impossible(search: ModelSearch, measured: Mapping[int, CandidateValues]) -> str:
    """Why nothing that was measured may be chosen, by the candidate that is nearest to it."""
    goal = search.searched[0]
    nearest = sorted(measured.values(), key=lambda values: value_of(values, goal) or math.inf)
    broken = [found for values in nearest if (found := broken_limit(values, search.tune))]
    if not broken:
        return f"none of {len(measured)} measured has a value for {goal.value}: the device gives none"
    return f"none of {len(measured)} measured keeps to the constraints; that of least {goal.value}: {broken[0]}"


def _usual_fate(search: ModelSearch, ran: bool, winner: int | None) -> str:
    if ran:
        return "measured; no winner was chosen" if winner is None else "measured, and not among the best"
    if search.ended == BUDGET_ENDED:
        return "not measured: the time was over"
    return "not measured: the search ended before" if winner is None else "not measured: others promised more"


def _candidates(search: ModelSearch, winner: int | None) -> Iterator[TunedCandidate]:
    """Every candidate with its fate: what ran first, then what was left out before."""
    dropped: dict[int, str] = {}
    for goal in reversed(search.searched):
        if proposal := search.proposals.get(goal):
            dropped |= proposal.dropped
    values = search.values()
    runs: dict[int, int] = {}
    for one in search.seen:
        runs[one.candidate] = runs.get(one.candidate, 0) + 1
    for number, planned in enumerate(search.space.candidates):
        found = values.get(number, CandidateValues(size_bytes=planned.size_bytes))
        broken = broken_limit(found, search.tune) if number in values else ""
        fate = "" if number == winner else dropped.get(number) or broken or _usual_fate(search, number in runs, winner)
        yield TunedCandidate(
            variant=planned.variant, run=planned.run_name.partition("/")[2], id=planned_id(planned),
            processes=runs.get(number, 0), values=found, dropped=fate,
        )  # fmt: skip
    for skipped in search.space.pruned:
        yield TunedCandidate(variant=skipped.variant, run=skipped.run, dropped=f"left out: {skipped.text}")
