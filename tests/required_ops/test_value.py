"""RequiredOps is a lattice: what the union, difference and intersection must be, whatever the values."""

import pytest
from hypothesis import given

from pipeline.core.errors import ConfigError
from pipeline.required_ops import EMPTY, RequiredOps, union_of
from tests.required_ops.required_ops_strategies import few, required_ops

CAST = ("ai.onnx", "Cast")
IN0, OUT0 = ("inputs", 0), ("outputs", 0)


def cast(inputs: str = "", outputs: str = "") -> RequiredOps:
    types = {slot: frozenset(names.split()) for slot, names in ((IN0, inputs), (OUT0, outputs)) if names}
    return RequiredOps(operators={("ai.onnx", 13): frozenset({"Cast"})}, types={CAST: types} if types else {})


@few
@given(required_ops(), required_ops(), required_ops())
def test_union_is_associative(a: RequiredOps, b: RequiredOps, c: RequiredOps) -> None:
    assert a.union(b).union(c) == a.union(b.union(c)) == union_of([a, b, c])


@few
@given(required_ops(), required_ops())
def test_union_is_commutative_and_contains_both(a: RequiredOps, b: RequiredOps) -> None:
    union = a.union(b)
    assert union == b.union(a)
    assert union.contains(a)
    assert union.contains(b)


@few
@given(required_ops())
def test_union_is_idempotent_with_a_neutral_value(a: RequiredOps) -> None:
    assert a.union(a) == a
    assert a.union(EMPTY) == EMPTY.union(a) == a


@few
@given(required_ops(), required_ops())
def test_difference_is_what_is_missing(a: RequiredOps, b: RequiredOps) -> None:
    assert b.union(a.difference(b)).contains(a)
    assert (a.difference(b) == EMPTY) == b.contains(a)


@few
@given(required_ops("plain typed"), required_ops("plain typed"))
def test_difference_of_types_by_operator_adds_nothing_else(a: RequiredOps, b: RequiredOps) -> None:
    assert b.union(a.difference(b)) == a.union(b)


@few
@given(required_ops(), required_ops())
def test_intersection_is_in_both(a: RequiredOps, b: RequiredOps) -> None:
    if (a.types and b.global_types is not None) or (b.types and a.global_types is not None):
        with pytest.raises(ConfigError, match="in common"):
            a.intersection(b)
        return
    common = a.intersection(b)
    assert a.contains(common)
    assert b.contains(common)
    assert a.intersection(a) == a
    assert common == b.intersection(a)


OLDER = RequiredOps(operators={("ai.onnx", 9): frozenset({"Cast"})})


@pytest.mark.parametrize(
    ("a", "b", "types"),
    [
        # ONNX Runtime's own parser keeps the types of the last line only, and stays with the restricted one.
        (cast("float", "int64_t"), cast("int32_t", "float"), {IN0: {"float", "int32_t"}, OUT0: {"int64_t", "float"}}),
        (cast("float", "int64_t"), cast(), None),
        (cast("float"), cast("double", "int64_t"), {IN0: {"float", "double"}}),
        (cast("float"), OLDER, None),  # the build does not tell the opsets of an operator apart
    ],
)
def test_a_union_restricts_what_both_restrict_to_the_types_of_both(
    a: RequiredOps, b: RequiredOps, types: dict[tuple[str, int], set[str]] | None
) -> None:
    for union in (a.union(b), b.union(a)):
        assert union.types == ({CAST: types} if types else {})


def test_global_types_meet_only_their_kind() -> None:
    limited = cast().with_global_types({"float"})
    assert limited.union(cast().with_global_types({"bool"})).global_types == frozenset({"float", "bool"})
    assert limited.union(cast("float")) == cast()
    with pytest.raises(ConfigError, match="in common"):
        limited.intersection(cast("float"))


@pytest.mark.parametrize(
    "parts",
    [
        {"types": {CAST: {IN0: frozenset({"float"})}}},
        {"operators": {("ai.onnx", 13): frozenset()}},
        {"operators": {("ai.onnx", 13): frozenset({"Cast"})}, "everything": True},
    ],
)
def test_contradictions_cannot_be_made(parts: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"types of|without|everything"):
        RequiredOps(**parts)  # type: ignore[arg-type] # wrong on purpose
