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


def test_types_of_both_survive() -> None:
    """ONNX Runtime's own parser keeps those of the last line only."""
    union = cast("float", "int64_t").union(cast("int32_t", "float"))
    assert union.types == {CAST: {IN0: {"float", "int32_t"}, OUT0: {"int64_t", "float"}}}


def test_an_unrestricted_side_wins() -> None:
    """ONNX Runtime's own parser stays with the restricted one, in either order."""
    assert cast("float", "int64_t").union(cast()).types == {}
    assert cast().union(cast("float", "int64_t")).types == {}


def test_an_unrestricted_argument_stays_so() -> None:
    assert cast("float").union(cast("double", "int64_t")).types == {CAST: {IN0: {"float", "double"}}}


def test_types_of_one_opset_hold_for_the_other() -> None:
    """The build does not tell the opsets of an operator apart, so an unrestricted one frees all."""
    older = RequiredOps(operators={("ai.onnx", 9): frozenset({"Cast"})})
    assert cast("float").union(older).types == {}


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
