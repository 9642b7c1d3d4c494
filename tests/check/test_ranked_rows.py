"""Rows that a model sorts by a score: another order where scores tie passes, every other one does not."""

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.check.compare import OutputCheck, OutputPrecision, compare_outputs, usual_tolerance

Boxes = npt.NDArray[np.float32]


@pytest.fixture
def boxes() -> Boxes:
    """What a detector gives: 20 boxes that it is sure of, 80 whose scores are noise, and [x, y, x, y, score, class]."""
    random = np.random.default_rng(5)
    scores = np.concatenate([np.linspace(0.95, 0.2, 20), np.full(80, 1e-6)])
    corners = random.uniform(0, 640, (100, 4))
    classes = random.integers(0, 80, 100)
    return np.column_stack([corners, scores, classes]).astype(np.float32)[None]


def judged(original: Boxes, actual: Boxes) -> OutputCheck:
    (check,) = compare_outputs({"boxes": original}, {"boxes": actual}, usual_tolerance(OutputPrecision.FLOAT32))
    return check


def in_order(boxes: Boxes, order: list[int]) -> Boxes:
    """The boxes in another order, with the scores where they were."""
    moved = boxes[:, order].copy()
    moved[..., 4] = boxes[..., 4]
    return moved


def swapped(first: int, second: int) -> list[int]:
    order = list(range(100))
    order[first], order[second] = second, first
    return order


def test_rows_whose_scores_tie_may_have_another_order(boxes: Boxes) -> None:
    check = judged(boxes, in_order(boxes, [*range(20), *range(99, 19, -1)]))
    assert (check.passed, check.ties) == (True, 80)
    assert check.max_rel_error == 0


def test_which_rows_come_last_may_be_decided_by_rounding(boxes: Boxes) -> None:
    others = boxes.copy()
    others[:, 90:, :4] = 7.0
    check = judged(boxes, others)
    assert (check.passed, check.ties) == (True, 10)


@pytest.mark.parametrize("order", [swapped(0, 1), swapped(3, 50), swapped(19, 20), list(range(99, -1, -1))])
def test_rows_without_a_tie_have_their_places(boxes: Boxes, order: list[int]) -> None:
    assert judged(boxes, boxes[:, order]).failed
    assert judged(boxes, in_order(boxes, order)).failed


def test_a_box_that_is_another_fails_whatever_the_order(boxes: Boxes) -> None:
    wrong = in_order(boxes, [*range(20), *range(99, 19, -1)])
    wrong[0, 5, 0] += 30.0
    assert judged(boxes, wrong).failed


def test_scores_that_are_scaled_fail(boxes: Boxes) -> None:
    wrong = in_order(boxes, [*range(20), *range(99, 19, -1)])
    wrong[..., 4] *= 0.5
    assert judged(boxes, wrong).failed


def test_numbers_that_are_in_no_order_are_compared_as_they_stand(boxes: Boxes) -> None:
    rows = boxes[:, np.random.default_rng(1).permutation(100)]
    assert judged(rows, rows[:, swapped(4, 9)]).failed
