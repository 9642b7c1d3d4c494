"""Verdicts on the rounds of pairs, and what is said of those whose times rank nothing."""

import pytest

from device_runner.result import Mark
from pipeline.campaign.record import RunRecord
from pipeline.campaign.statistics.groups import MARKED
from pipeline.features.pairs.report import GatedRun, GateOutcome
from pipeline.features.pairs.rounds import with_verdict
from tests.report_samples import record

ROW = GatedRun(device="d", model="m", base="a/cpu", candidate="a/cpu", outcome=GateOutcome.NOT_COMPARED)


def rounds(nanoseconds: int, *marks: Mark) -> list[RunRecord]:
    return [record(number, (nanoseconds,) * 20, marks=marks) for number in range(8)]


@pytest.mark.parametrize("mark", [Mark.NOT_A_PHONE, Mark.EMULATED, Mark.SIMULATED, Mark.SOFTWARE_GPU, Mark.QUARANTINED])
def test_times_that_rank_nothing_have_no_verdict_and_the_reason_is_that_of_their_mark(mark: Mark) -> None:
    judged = with_verdict(ROW, rounds(1_000_000), rounds(2_000_000, Mark.CHARGING, mark), least=0.01, confidence=0.99)
    assert (judged.outcome, judged.ratio) == (GateOutcome.NOT_COMPARED, None)
    assert judged.note == f"its times rank nothing: {MARKED[mark][1]}"


def test_times_that_may_be_compared_have_a_verdict() -> None:
    judged = with_verdict(ROW, rounds(1_000_000), rounds(2_000_000, Mark.CHARGING), least=0.01, confidence=0.99)
    assert judged.outcome is GateOutcome.REGRESSION
