"""Rows that a model sorts by a score: another order where scores tie passes, every other one does not."""

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from onnx.parser import parse_graph

from pipeline.check.categorical import sorted_by_score
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


def judged(original: Boxes, actual: Boxes, *, is_sorted: bool = True) -> OutputCheck:
    tolerance = usual_tolerance(OutputPrecision.FLOAT32)
    tolerance = msgspec.structs.replace(tolerance, sorted_rows=("boxes",) if is_sorted else ())
    (check,) = compare_outputs({"boxes": original}, {"boxes": actual}, tolerance)
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


def test_an_output_that_no_topk_sorts_is_compared_as_it_stands(boxes: Boxes) -> None:
    """A column falls in many outputs: a mask of 1 and 0, a state of two layers."""
    assert judged(boxes, in_order(boxes, [*range(20), *range(99, 19, -1)]), is_sorted=False).failed


def test_where_nothing_is_found_all_rows_are_noise(boxes: Boxes) -> None:
    """The largest score is 2e-4 then, and a thousandth of it less than what a sigmoid's rounding gives."""
    boxes[..., 4] *= 3e-4
    others = boxes.copy()
    others[:, 95:, :4] = 7.0
    check = judged(boxes, others)
    assert (check.passed, check.ties) == (True, 5)


def test_a_last_row_with_a_score_is_not_left_out(boxes: Boxes) -> None:
    two = boxes[:, [0, 19]]
    wrong = two.copy()
    wrong[0, 1, :4] += 50.0
    assert judged(two, wrong).failed


@pytest.mark.parametrize(
    ("text", "sorted_outputs"),
    [
        ("s, i = TopK (x, k)  u = Unsqueeze (s, a)  y = Concat <axis = 2> (u, z)", {"y"}),
        ("s, i = TopK (x, k)  y = GatherElements <axis = 1> (x, i)", {"y"}),
        ("s, i = TopK <largest = 0> (x, k)  y = Identity (s)", set()),
        ("s, i = TopK <sorted = 0> (x, k)  y = Identity (s)", set()),
        ("s, i = TopK (x, k)  y = MatMul (s, z)", set()),
        ("y = Concat <axis = 2> (x, z)", set()),
    ],
)
def test_the_graph_says_which_rows_are_sorted(text: str, sorted_outputs: set[str]) -> None:
    graph = parse_graph(f"g (float[1, 9] x, int64[1] k, int64[1] a, float[1, 9, 4] z) => (float[N] y) {{ {text} }}")
    assert sorted_by_score(graph) == sorted_outputs
