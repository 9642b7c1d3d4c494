"""The changes that tests.mutations makes of the product's lines."""

import ast

from tests import mutations, shape

PATH = "device_runner/options.py"


def test_every_change_is_a_module_that_differs_in_one_line() -> None:
    source = (shape.ROOT / PATH).read_text("utf-8")
    for mutation in mutations.sampled(10, "1", [PATH]):
        changed = mutation.applied(source)
        ast.parse(changed)
        before_and_after = enumerate(zip(source.splitlines(), changed.splitlines(), strict=True), 1)
        assert [line for line, (before, after) in before_and_after if before != after] == [mutation.line], mutation


def test_a_sample_is_the_same_each_time_and_has_one_change_of_a_line() -> None:
    sample = mutations.sampled(20, "1", [PATH])
    assert sample == mutations.sampled(20, "1", [PATH])
    assert len({mutation.line for mutation in sample}) == 20


def test_tests_are_taken_from_all_that_came_past() -> None:
    tests = [f"t{number}" for number in range(1000)]
    assert len(mutations.spread(tests)) <= mutations.MOST_TESTS
    assert mutations.spread(tests)[-1] > "t9"
    assert mutations.spread(tests[:5]) == tests[:5]
