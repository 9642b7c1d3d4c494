"""Bisections of every kind: a step, none, a slowdown that goes again, and positions that cannot be measured."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.features.pairs.bisection import Bracket, next_step
from pipeline.features.pairs.bisection_report import (
    BisectionEnd,
    BisectionReport,
    PositionStanding,
    bisection_headline,
    bisection_parts,
)
from pipeline.features.pairs.report import GatedRun, GateOutcome

GOOD, SLOWER, OPEN, SKIP = (
    PositionStanding.GOOD,
    PositionStanding.SLOWER,
    PositionStanding.UNDECIDED,
    PositionStanding.SKIPPED,
)


def bisected(truth: Mapping[int, PositionStanding], count: int) -> tuple[Bracket, int]:
    """The end of a bisection over what is true, and how many positions it measured."""
    known: dict[int, PositionStanding] = {}
    while not isinstance(place := (step := next_step(known, count)).next, BisectionEnd):
        assert place not in known
        known[place] = truth[place]
    return step, len(known)


@given(st.integers(2, 200).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count - 1))))
def test_one_step_is_found_in_logarithmic_time(case: tuple[int, int]) -> None:
    count, at = case
    step, measured = bisected({place: SLOWER if place >= at else GOOD for place in range(count)}, count)
    assert step == (at - 1, at, BisectionEnd.FOUND)
    assert measured <= count.bit_length() + 1


def test_without_a_difference_only_the_last_is_measured() -> None:
    assert bisected(dict.fromkeys(range(9), GOOD), 9) == ((0, 8, BisectionEnd.NO_DIFFERENCE), 1)


@pytest.mark.parametrize(("last", "end"), [(OPEN, BisectionEnd.NO_DIFFERENCE), (SKIP, BisectionEnd.NOT_MEASURABLE)])
def test_an_end_that_is_not_slower_for_sure_is_told_apart(last: PositionStanding, end: BisectionEnd) -> None:
    assert next_step({4: last}, 5).next is end


def test_positions_that_cannot_be_measured_leave_a_range() -> None:
    truth = {1: GOOD, 2: SKIP, 3: OPEN, 4: SLOWER, 5: SLOWER}
    assert bisected(truth, 6)[0] == (1, 4, BisectionEnd.RANGE)


def test_skipped_positions_next_to_the_step_do_not_hide_it() -> None:
    step, _ = bisected({1: GOOD, 2: GOOD, 3: SLOWER, 4: SKIP, 5: SLOWER}, 6)
    assert step == (2, 3, BisectionEnd.FOUND)


def test_a_slowdown_that_went_again_is_not_monotone() -> None:
    assert next_step({8: SLOWER, 4: GOOD, 2: SLOWER}, 9) == (4, 2, BisectionEnd.NOT_MONOTONE)


@pytest.mark.parametrize(
    ("outcome", "high", "said"),
    [
        (GateOutcome.NOT_SHOWN, 1.139, "No slowdown shown: b is at most 13.9% slower than a"),
        (GateOutcome.FASTER, 0.9, "No slowdown: b is faster than a"),
        (GateOutcome.UNCHANGED, None, "No difference: b is not slower than a"),
    ],
)
def test_an_end_that_may_be_slower_is_not_called_the_same(outcome: GateOutcome, high: float | None, said: str) -> None:
    step = GatedRun(device="local", model="m", base="", candidate="", outcome=outcome, ratio=high, low=high, high=high)
    report = BisectionReport(
        device="local", positions=("a", "b"), end=BisectionEnd.NO_DIFFERENCE, good="a", slower="b", rows=(), step=step
    )
    assert bisection_headline(report) == said
    assert bisection_parts(report)[0].head[-1] == "Standing"


def test_what_lies_between_and_was_not_measured_is_named() -> None:
    report = BisectionReport(
        device="local", positions=("a", "b", "c"), end=BisectionEnd.NO_DIFFERENCE, good="a", slower="c", rows=()
    )
    assert bisection_headline(report).endswith("c is not slower than a; 1 between them not measured")
    _, result = bisection_parts(report)
    assert [note.text for note in result.notes if note.title.startswith("not measured")] == ["b"]
