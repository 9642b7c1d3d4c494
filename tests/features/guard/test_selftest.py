"""The sample that phones try ways with: what it accepts, what it refuses, and when there is none."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.features.guard.corruptions import corrupted
from pipeline.features.guard.sample import MOST_BYTES
from pipeline.features.guard.selftest import halved_constants
from pipeline.features.guard.sketch import LEAST_DECIBELS, MOST_DECIBELS, decibels, mixed, sketch_of
from pipeline.model import session as model_session
from tests.features.android.samples import CPU, NNAPI
from tests.features.guard.models import desk


def test_numbers_are_those_of_splitmix64() -> None:
    """The first of the seed 1234567, as its author's C gives them."""
    assert [int(number) for number in mixed(3, 1234567)] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
    ]  # fmt: skip


@pytest.mark.parametrize("wanted", [20.0, 40.0, 60.0])
def test_a_sketch_estimates_how_far_a_tensor_is_off(wanted: float) -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=5000)
    kept, errors = sketch_of(values), []
    for _ in range(200):
        noise = random.normal(size=5000) * 10 ** (-wanted / 20)
        errors.append(decibels(kept, values + noise) - wanted)
    assert min(errors) > -5
    assert max(errors) < 8
    assert abs(np.mean(errors)) < 0.8
    assert decibels(kept, values) == MOST_DECIBELS
    assert decibels(kept, values[:-1]) == LEAST_DECIBELS


def test_the_desk_makes_a_sample_that_refuses_what_drivers_do(tmp_path: Path) -> None:
    found = desk(tmp_path, (NNAPI, CPU))
    assert found.test.none == ""
    assert 0 < len(found.test.data) <= MOST_BYTES
    kept = sketch_of(found.outputs)
    (tmp_path / "half").mkdir()
    half = halved_constants(found.file, tmp_path / "half")
    assert half
    rounded = model_session.outputs_of(half, {"x": np.fromfile(tmp_path / "x", np.float32).reshape(1, 1, 8, 8)})["y"]
    assert 50 < decibels(kept, rounded) < 90
    assert {name: decibels(kept, bad) < 20 for name, bad in corrupted(found.outputs)} == {
        name: True for name, _ in corrupted(found.outputs)
    }


def test_outputs_that_tell_nothing_make_no_sample(tmp_path: Path) -> None:
    found = desk(tmp_path, (NNAPI, CPU), scale=0.0)
    assert found.test.data == b""
    assert found.test.none


def test_random_inputs_are_replaced_by_a_seed_where_they_tell_nothing(tmp_path: Path) -> None:
    found = desk(tmp_path, (NNAPI, CPU), scale=0.0, random=True)
    assert found.test.none == ""
    assert len(found.test.data) < 600
