"""Class numbers, indices and truth values: compared by the share of elements that differ."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from pipeline.check.categorical import categorical_of, origins
from pipeline.check.compare import (
    Categorical,
    OutputCheck,
    OutputPrecision,
    Tie,
    Tolerance,
    compare_outputs,
    usual_tolerance,
)
from pipeline.check.reference import make_reference
from pipeline.dataset import Dataset
from pipeline.model.sources import SourceModel

SIDE, CLASSES = 40, 4
random = np.random.default_rng(0)
SCORES = random.standard_normal((1, CLASSES, SIDE, SIDE)).astype(np.float32)
SCORES[0, 1, 3, 5], SCORES[0, 2, 3, 5] = 9, 9 - 1e-5  # a tie
CLASSES_OF = SCORES.argmax(1)
SEGMENTATION = "a = ArgMax <axis = 1, keepdims = 0> (x) y = Identity (a)"


def graph(nodes: str, head: str = f"(float[1,{CLASSES},{SIDE},{SIDE}] x, bool b) => (int64[N] y)") -> onnx.GraphProto:
    return onnx.parser.parse_graph(f"g {head} {{ {nodes} }}")


def checked(actual: Any, scores: Any = SCORES, precision: OutputPrecision = OutputPrecision.FLOAT32) -> OutputCheck:
    """The check of some classes beside those that scores have."""
    expected = {"y": scores.argmax(1)}
    categorical = categorical_of(graph(SEGMENTATION), expected, precision, lambda _: {"x": scores})
    return one(expected, actual, categorical)


def one(expected: Mapping[str, Any], actual: Any, categorical: dict[str, Categorical]) -> OutputCheck:
    tolerance = msgspec.structs.replace(usual_tolerance(OutputPrecision.FLOAT32), categorical=categorical)
    (check,) = compare_outputs(expected, {"y": actual}, tolerance)
    return check


def test_a_pixel_at_a_tie_passes_and_is_counted() -> None:
    given = CLASSES_OF.copy()
    given[0, 3, 5] = 2
    check = checked(given)
    assert (check.passed, check.unequal, check.ties, check.limit) == (True, 1, 1, None)
    given[0, 3, 5] = 3  # not one of the two
    given[0, 7:9] = (given[0, 7:9] + 1) % CLASSES
    assert checked(given).failed


@pytest.mark.parametrize("shift", [1, 2])
def test_shifted_classes_fail_however_small_the_numbers(shift: int) -> None:
    check = checked((CLASSES_OF + shift) % CLASSES)
    assert check.failed
    assert "1600 of 1600 elements differ" in check.reason


def test_the_usual_class_everywhere_fails() -> None:
    """An image of which all but 2 % are background."""
    scores = SCORES.copy()
    scores[0, 0, :39] += 99
    assert checked(np.zeros_like(CLASSES_OF), scores).failed
    assert checked(scores.argmax(1), scores).passed


def test_ties_everywhere_show_nothing() -> None:
    scores = SCORES * 1e-9
    scores[0, 0, 0, 0] = 1
    check = checked((scores.argmax(1) + 1) % CLASSES, scores)
    assert not check.passed
    few = np.array([[0.5, 0.50001, 0.1]], np.float32)
    nodes, first = "y = ArgMax <axis = 1> (x)", {"y": np.array([[1]])}
    categorical = categorical_of(graph(nodes), first, OutputPrecision.FLOAT32, lambda _: {"x": few})
    assert one(first, np.array([[0]]), categorical).unknown
    assert one(first, np.array([[2]]), categorical).failed


def test_indices_of_the_best_may_change_places_where_scores_are_near() -> None:
    scores = np.array([[9, 5, 5.00001, 2] + [0] * 400], np.float32)
    nodes = "k = Constant <value = int64[1] {3}> () v, y = TopK (x, k)"
    expected = {"y": np.tile([[0, 2, 1]], (1, 1))}
    categorical = categorical_of(graph(nodes), expected, OutputPrecision.FLOAT32, lambda _: {"x": scores})
    assert categorical["y"].ties == (Tie(1, (1,)), Tie(2, (2,)))


@pytest.mark.parametrize(
    ("nodes", "origin"),
    [
        (SEGMENTATION, (True, False)),
        ("a = ArgMax (x) y = Cast <to = 1> (a)", (True, False)),
        ("a = ArgMax (x) c = Cast <to = 1> (a) y = Mul (c, x)", (True, True)),
        ("v, i = TopK (x, k) y = Mod (i, n)", (True, True)),
        ("c = Greater (x, t) y = Where (c, x, t)", None),
        ("a = ArgMax (x) c = Cast <to = 1> (a) y = Concat <axis = 1> (x, c)", None),
        ("r = Round (x) y = Cast <to = 7> (r)", (False, False)),
        ("q = QuantizeLinear (x, s) y = Reshape (q, n)", (False, False)),
    ],
)
def test_what_is_categorical_is_seen_in_the_graph(nodes: str, origin: tuple[bool, bool] | None) -> None:
    found = origins(graph(nodes)).get("y")
    assert ((found.categorical, found.computed) if found else None) == origin


def test_long_chains_and_operators_of_others_end_in_an_answer() -> None:
    chain = " ".join(f"v{number} = Identity (v{number - 1})" for number in range(1, 2000))
    assert origins(graph(f"v0 = ArgMax (x) {chain} y = Identity (v1999)")) == {}
    assert origins(graph("y = own.Concat ()")) == {}


def test_numbers_on_a_scale_may_differ_by_a_step(tmp_path: Path) -> None:
    nodes = "{ r = Round (x) y = Cast <to = 7> (r) a = ArgMax <axis = 1> (x) }"
    text = f'<ir_version: 8, opset_import: ["" : 15]> g (float[1,9] x) => (int64[1,9] y, int64[1,1] a) {nodes}'
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    made = make_reference(SourceModel(path=str(path)), {}, Dataset(), str(tmp_path / "r"), str(tmp_path))
    assert (made.scales, set(made.categorical)) == (("y",), {"a"})
    assert made.tolerance().categories_of("y", np.zeros((1, 9), np.int64)) is None


def test_two_that_change_places_pass_and_another_does_not() -> None:
    categorical = {"y": Categorical(elements=5, ties=(Tie(1, (7,)), Tie(2, (3,))), all_ties=True)}
    expected = {"y": np.array([9, 3, 7, 1, 4])}
    assert one(expected, np.array([9, 7, 3, 1, 4]), categorical).passed
    assert one(expected, np.array([9, 7, 3, 1, 5]), categorical).failed


def test_what_is_known_of_categories_travels_as_json(tmp_path: Path) -> None:
    categorical = Categorical(elements=5, ties=(Tie(1, (7,)),), all_ties=True)
    tolerance = msgspec.structs.replace(usual_tolerance(OutputPrecision.FLOAT32), categorical={"y": categorical})
    text = msgspec.json.encode(tolerance, order="deterministic")
    assert msgspec.json.decode(text, type=Tolerance) == tolerance
