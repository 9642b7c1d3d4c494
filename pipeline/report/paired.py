"""The verdict on a base and a candidate whose rounds alternated."""

from collections.abc import Sequence

import msgspec

from pipeline.campaign.provenance import changes, facts_of_run
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics import describe, ranks, ratio_interval
from pipeline.campaign.statistics.groups import Pairs, paired_log_ratios
from pipeline.report.regression import GatedRun, GateOutcome
from pipeline.report.rows import MeasuredRow, run_group


def gated_run(
    device: str,
    model: str,
    base: Sequence[RunRecord],
    candidate: Sequence[RunRecord],
    *,
    least: float,
    confidence: float,
) -> GatedRun:
    """The row of two planned runs: slower where the interval of the ratio lies above 1 by more than `least`.

    Rounds count that both have; where they are too few, or times are not a phone's, it is not compared.
    """
    ours, theirs = (
        run_group(MeasuredRow(device=device, model=model, variant=role, run="", runs=runs))
        for role, runs in (("base", base), ("candidate", candidate))
    )
    numbers = [describe(group) for group in (ours, theirs)]
    row = GatedRun(
        device=device,
        model=model,
        base="",
        candidate="",
        outcome=GateOutcome.NOT_COMPARED,
        base_median_ns=numbers[0].median_ns if numbers[0] else None,
        candidate_median_ns=numbers[1].median_ns if numbers[1] else None,
        changes=changes(facts_of_run(base[0]), facts_of_run(candidate[0])) if base and candidate else (),
    )
    if not (ranks(ours) and ranks(theirs)):
        return msgspec.structs.replace(row, note="a phone's library ran on another machine: its times rank nothing")
    return _judged(row, paired_log_ratios(theirs, ours), _failure(base, candidate), least, confidence)


def _judged(row: GatedRun, pairs: Pairs, failure: str, least: float, confidence: float) -> GatedRun:
    rounds, found = len(pairs.logs), ratio_interval(pairs.logs, confidence)
    if found is None:
        outcome = GateOutcome.FAILED if failure else GateOutcome.NOT_COMPARED
        note = failure or f"{rounds} rounds are too few for an interval"
        return msgspec.structs.replace(row, outcome=outcome, rounds=rounds, note=note)
    slower, faster = found.low > 1 + least, found.high < 1 - least
    outcome = GateOutcome.REGRESSION if slower else GateOutcome.FASTER if faster else GateOutcome.NOT_SHOWN
    notes = [] if slower or faster else [f"at most {max(0.0, found.high - 1):.1%} slower"]
    notes += [f"some rounds failed: {failure}"] if failure else []
    return msgspec.structs.replace(
        row, outcome=outcome, rounds=rounds, ratio=found.ratio, low=found.low, high=found.high, note="; ".join(notes)
    )


def _failure(base: Sequence[RunRecord], candidate: Sequence[RunRecord]) -> str:
    """The first failure of either, or ""."""
    for role, records in (("base", base), ("candidate", candidate)):
        for record in records:
            if record.result.failure:
                return f"{role}: {record.result.failure.kind.value}: {record.result.failure.message}"
    return ""
