"""A sample of what `nox -s claims_fuzz` asks by the thousand."""

import pytest

from tests.partition.fuzzing import Batch, answer_all
from tests.random_graphs import odd_quantization

SAMPLE = 50


@pytest.mark.parametrize("part", range(5))
def test_odd_quantization_never_ends_in_an_internal_error(part: int) -> None:
    verdict = answer_all(Batch(seeds=tuple(range(part, SAMPLE, 5)), settings=5))
    assert verdict.wrong == ()
    assert verdict.claims > verdict.answers / 4


def test_graphs_are_the_same_for_the_same_seed() -> None:
    assert odd_quantization(7) == odd_quantization(7) != odd_quantization(8)
