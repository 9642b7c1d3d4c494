"""The rule of the numeric check: what is wrong fails, rounding passes, and what inputs cannot show is said so."""

import math

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.check.compare import (
    FLOORS,
    Array,
    OutputCheck,
    OutputPrecision,
    Tolerance,
    beside_simulator,
    compare_outputs,
    remedy_of,
    usual_tolerance,
)

Floats = npt.NDArray[np.float32]
PROBABILITY = Tolerance(
    max_relative_error=1e-3, floor=FLOORS[OutputPrecision.FLOAT32], spans={"y": 1.0}, random_inputs=True
)
NUMBERS = Tolerance(max_relative_error=1e-3, floor=FLOORS[OutputPrecision.FLOAT32], random_inputs=True)


def check(reference: Array, actual: Array, tolerance: Tolerance = NUMBERS) -> OutputCheck:
    return next(compare_outputs({"y": reference}, {"y": actual}, tolerance))


def state(reference: Array, actual: Array, tolerance: Tolerance = NUMBERS) -> str:
    found = check(reference, actual, tolerance)
    assert found.passed + found.failed + found.unknown == 1
    return "passed" if found.passed else "failed" if found.failed else "unknown"


def noise(shape: int = 64, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(values: Floats) -> Floats:
    return (1 / (1 + np.exp(-values.astype(np.float64)))).astype(np.float32)


def test_rounding_in_a_small_probability_passes() -> None:
    small = sigmoid(noise() - 12)
    assert small.max() < 1e-4
    found = check(small, small + np.float32(1.8e-7), PROBABILITY)
    assert found.passed
    assert found.max_rel_error is not None
    assert found.max_rel_error > 1e-3
    assert found.limit == pytest.approx(1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda y: np.zeros_like(y), id="zeros"),
        pytest.param(lambda y: np.full_like(y, y.mean()), id="mean"),
        pytest.param(lambda y: y[::-1].copy(), id="reversed"),
        pytest.param(lambda y: y * np.float32(1.3), id="scaled"),
        pytest.param(lambda y: np.ones_like(y), id="ones"),
        pytest.param(lambda y: y * np.float32("nan"), id="nan"),
    ],
)
@pytest.mark.parametrize("bias", [0, -9, 6])
def test_a_wrong_answer_fails_however_small_the_numbers(wrong: object, bias: float) -> None:
    right = sigmoid(noise() + bias)
    assert callable(wrong)
    assert state(right, wrong(right), PROBABILITY) == "failed"


def test_a_saturated_output_shows_nothing() -> None:
    right = sigmoid(noise() + 30)
    for actual in (right, right - np.float32(1e-7), np.full_like(right, right[0])):
        assert state(right, actual, PROBABILITY) == "unknown"
    found = check(right, right, PROBABILITY)
    assert found.reason.startswith("cannot judge on random inputs: the output is 1 everywhere")
    assert remedy_of(found).startswith("give test data")


@pytest.mark.parametrize("bias", [-40, -20])
def test_numbers_below_the_floor_show_nothing_but_when_they_are_repeated(bias: float) -> None:
    right = sigmoid(noise() + bias)
    assert state(right, right * np.float32(1.0001), PROBABILITY) == "passed"
    for actual in (right + np.float32(1e-7), np.zeros_like(right), np.full_like(right, 1e-8)):
        assert state(right, actual, PROBABILITY) == "unknown"


def test_a_saturated_output_that_is_elsewhere_altogether_fails() -> None:
    right = sigmoid(noise() - 40)
    assert state(right, 1 - right, PROBABILITY) == "failed"
    assert state(right, right + np.float32(0.01), PROBABILITY) == "failed"


def test_a_large_offset_does_not_hide_what_varies() -> None:
    right = (1000 + noise() / 100).astype(np.float32)
    assert state(right, np.full_like(right, 1000)) == "unknown"
    wide = (1000 + 100 * noise()).astype(np.float32)
    assert state(wide, wide + np.float32(1e-3)) == "passed"
    assert state(wide, np.full_like(wide, 1000)) == "failed"


def test_empty_outputs_and_outputs_of_nan_alone_show_nothing() -> None:
    empty = np.zeros((0, 4), np.float32)
    nan = np.full(4, np.nan, np.float32)
    assert state(empty, empty) == "unknown"
    assert state(nan, nan) == "unknown"
    assert state(nan, np.zeros(4, np.float32)) == "unknown"
    assert state(np.array([1, 2, np.nan], np.float32), np.array([1, 2, 3], np.float32)) == "unknown"
    assert state(noise(4), nan) == "failed"


def test_with_test_data_nan_in_other_places_fails() -> None:
    given_data = usual_tolerance(OutputPrecision.FLOAT32)
    assert state(np.array([1, np.nan], np.float32), np.array([np.nan, 1], np.float32), given_data) == "failed"
    constant = check(np.ones(4, np.float32), np.ones(4, np.float32), given_data)
    assert constant.reason.startswith("cannot judge on this test data")
    assert remedy_of(constant) == "give test data on which this output varies"


def test_equal_whole_numbers_are_right_however_few_there_are() -> None:
    ones = np.ones(4, np.int64)
    assert state(ones, ones) == "passed"
    assert state(ones, np.array([1, 1, 2, 1])) == "failed"
    assert state(np.array([True, True]), np.array([True, True])) == "passed"
    assert state(np.array([True, True]), np.array([True, False])) == "failed"


def test_another_shape_fails() -> None:
    assert "its shape is [3] instead of [4]" in check(noise(4), noise(3)).reason


def test_what_the_original_does_not_repeat_itself_is_unknown() -> None:
    tolerance = Tolerance(max_relative_error=1e-3, random_inputs=True, unsteady=("y",))
    assert state(noise(), noise(seed=1), tolerance) == "unknown"
    assert state(noise(4), noise(5), tolerance) == "unknown"
    assert state(noise(), noise(), tolerance) == "passed"
    assert check(noise(), noise(), tolerance).unsteady
    assert not check(noise(), noise()).unsteady


@pytest.mark.parametrize(
    ("phone", "error"), [([1.0, -4.0], 0.0), ([1.0, -3.0], 0.25), ([1.0, math.nan], None), ([1.0], None)]
)
def test_outputs_of_a_phone_are_compared_with_its_simulator(phone: list[float], error: float | None) -> None:
    checks = [OutputCheck(output="y", passed=True), OutputCheck(output="z", passed=True)]
    simulated = {"y": np.array([1, -4], np.float32)}
    found = beside_simulator(checks, simulated, {"y": np.array(phone, np.float32), "z": np.ones(1, np.float32)})
    assert [check.from_simulator for check in found] == [error, None]


def test_an_exact_comparison_has_no_floor() -> None:
    exact = usual_tolerance(OutputPrecision.FLOAT32, 0.0)
    right = sigmoid(noise() - 12)
    assert state(right, right, exact) == "passed"
    assert state(right, right + np.float32(1e-7), exact) == "failed"


def test_the_floor_of_a_quantized_output_is_two_steps() -> None:
    tolerance = Tolerance(max_relative_error=0.1, floor=FLOORS[OutputPrecision.QUANTIZED], spans={"y": 2.55})
    right = (np.array([0, 3, 0, 6], np.float32) * 0.01).astype(np.float32)
    assert state(right, right + np.float32(0.02), tolerance) == "passed"
    assert state(right, right + np.float32(0.031), tolerance) == "failed"
    assert state(right, np.zeros_like(right), tolerance) == "failed"


def test_remedies_name_test_data_before_tolerances() -> None:
    bad = remedy_of(check(noise(), 2 * noise()))
    assert bad.index("test data") < bad.index("max_relative_error")
    with_data = remedy_of(check(noise(), 2 * noise(), usual_tolerance(OutputPrecision.FLOAT32)))
    assert "test data" not in with_data


VALUES = st.integers(0, 2**32 - 1).map(lambda seed: noise(32, seed))


@given(values=VALUES, exponent=st.integers(-4, 8), bounded=st.booleans())
def test_rounding_never_fails(values: Floats, exponent: int, bounded: bool) -> None:
    """Errors as large as 50 units in the last place of the largest value, at any scale down to the floor."""
    right = (values * 10.0**exponent).astype(np.float32)
    error = np.float32(50 * np.finfo(np.float32).eps * np.abs(right).max())
    span = {"y": 20 * 10.0**exponent} if bounded else {}
    tolerance = Tolerance(max_relative_error=1e-3, floor=1e-6, spans=span, random_inputs=True)
    assert state(right, right + error, tolerance) == "passed"


@given(values=VALUES, bias=st.floats(-60, 60))
def test_rounding_before_a_sigmoid_never_fails(values: Floats, bias: float) -> None:
    """Whatever the bias: files may differ in the rounding of the logits."""
    logits = (values + np.float32(bias)).astype(np.float32)
    shifted = (logits + np.float32(1e-6 * (1 + abs(bias)) / 60)).astype(np.float32)
    assert not check(sigmoid(logits), sigmoid(shifted), PROBABILITY).failed


@given(values=VALUES, scale=st.floats(1e-5, 1e5), share=st.floats(0.01, 10))
def test_an_error_of_a_per_cent_of_the_largest_value_never_passes(values: Floats, scale: float, share: float) -> None:
    right = (values * scale).astype(np.float32)
    wrong = right.copy()
    wrong[7] += np.float32(share * max(np.abs(right).max(), 2e-4))
    assert state(right, wrong) == "failed"


@pytest.mark.parametrize("positives", [True, False])
def test_scores_that_are_0_beside_exact_boxes_fail_beside_the_float_original(positives: bool) -> None:
    random = np.random.default_rng(0)
    boxes, scores = random.uniform(0, 640, (4, 100)), random.uniform(0, 0.02, (2, 100))
    scores[:, :5] += 0.7 * positives
    original = np.concatenate([boxes, scores])[None].astype(np.float32)
    zeroed = original.copy()
    zeroed[:, 4:] = 0
    tolerance = usual_tolerance(OutputPrecision.QUANTIZED)
    (check,) = compare_outputs({"y": zeroed}, {"y": zeroed}, tolerance, {"y": original})
    assert check.failed
    assert check.reason.startswith("in channels 4, 5 it is 0 everywhere")
    assert isinstance(check.sqnr_db, float)
    assert (check.sqnr_db < 1) is positives  # without a detection that part has no ratio
    steps = np.where(np.arange(6) < 4, 640, 1)[None, :, None] / 255
    by_branch = np.round(original / steps) * steps
    (check,) = compare_outputs({"y": by_branch}, {"y": by_branch}, tolerance, {"y": original})
    assert check.passed
    assert isinstance(check.sqnr_db, float)
    assert check.sqnr_db > 20


@pytest.mark.parametrize("kind", ["f4", "u1"])
@pytest.mark.parametrize(("random", "state"), [(False, "failed"), (True, "unknown")])
def test_nothing_in_a_form_where_the_float_original_gives_numbers(kind: str, random: bool, state: str) -> None:
    original, nothing = np.ones((257, 3), kind), np.ones((257, 0), kind)
    tolerance = msgspec.structs.replace(usual_tolerance(OutputPrecision.FLOAT16), random_inputs=random)
    (check,) = compare_outputs({"y": nothing}, {"y": nothing}, tolerance, {"y": original})
    assert (check.failed, check.unknown) == (state == "failed", state == "unknown")
    assert "it is empty [257, 0], and [257, 3] in the float original" in check.reason
    (check,) = compare_outputs({"y": nothing}, {"y": nothing}, tolerance, {"y": nothing})
    assert check.unknown, "what finds nothing in both shows nothing"
    assert check.reason.endswith("the output is empty")
