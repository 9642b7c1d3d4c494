"""Our answers beside a library's: what counts as different, and what stands in each row."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from pipeline.partition.answer import Decision, LoadForecast, ModelAnswer, Settings
from pipeline.partition.library_claims import LibraryClaims, as_answer, diff_claims, differing, same_claims

NNAPI = Settings(provider="nnapi", ort_release=(1, 29))
NAMES = ("a", "b", "c", "d")


def answer(*groups: Sequence[str], names: Sequence[str] = NAMES) -> ModelAnswer:
    """Ours: nodes `names` in a row, claimed in these groups; the others are refused because "we say so"."""
    places = {name: number for number, group in enumerate(groups) for name in group}
    decisions = tuple(
        Decision(
            name="", op_type="Relu", domain="", since_version=14, outputs=(name,), claimed=name in places,
            partition=places.get(name), reason=None if name in places else "we say so",
        )
        for name in names
    )  # fmt: skip
    return ModelAnswer(
        path="m.onnx", ep="nnapi", ort_release="1.29", nodes=len(names), claimed=len(places), decisions=decisions,
        partitions=tuple(map(tuple, groups)), shapes_from="1.29.0",
    )  # fmt: skip


def claims(
    *groups: Sequence[str], reasons: Mapping[str, str] | None = None, release: str = "1.29.0", inlined: bool = False
) -> LibraryClaims:
    nodes = frozenset(name for group in groups for name in group)
    return LibraryClaims(
        id="m", release=release, partitions=tuple(map(tuple, groups)), nodes=nodes, reasons=reasons or {},
        inlined=inlined, count=len(groups),
    )  # fmt: skip


def test_equal_claims_are_the_same_in_any_order_with_both_reasons_of_refusals() -> None:
    one = diff_claims(
        answer(["a", "b"], ["d"]), claims(["d"], ["b", "a"], reasons={"c": "they too"}), NNAPI, has_rules=True
    )
    assert one.same is True
    assert not any(node.different for node in one.nodes)
    (refused,) = [node for node in one.nodes if node.output == "c"]
    assert refused.ours is not None
    assert refused.library is not None
    assert (refused.ours.reason, refused.library.reason) == ("we say so", "they too")
    assert (one.our_partitions, one.library_partitions, one.notes) == (2, 2, ())


def test_a_node_that_one_side_claims_is_different_with_its_reason() -> None:
    theirs = claims(["a", "b"], reasons={"d": "needs level 30"})
    one = diff_claims(answer(["a", "b"], ["d"]), theirs, NNAPI, has_rules=True)
    assert one.same is False
    assert [node.output for node in one.nodes if node.different] == ["d"]
    assert one.nodes[3].library is not None
    assert (one.nodes[3].library.claimed, one.nodes[3].library.reason) == (False, "needs level 30")
    assert differing(theirs, ["a", "b", "d"]) == {"d": True}


def test_the_same_nodes_in_other_groups_are_different() -> None:
    one = diff_claims(answer(["a", "b"], ["d"]), claims(["a", "b", "d"]), NNAPI, has_rules=True)
    assert one.same is False
    assert [node.output for node in one.nodes if node.different] == ["a", "b", "d"]


def test_an_old_library_is_compared_by_nodes_alone() -> None:
    theirs = LibraryClaims(id="m", release="1.17.1", nodes=frozenset("abd"), count=1)
    assert same_claims(theirs, [["a", "b"], ["d"]])
    assert not same_claims(theirs, [["a", "b"]])
    one = diff_claims(answer(["a", "b"], ["c"]), theirs, NNAPI, has_rules=True)
    assert [node.output for node in one.nodes if node.different] == ["c", "d"]


def test_numbers_of_copies_and_what_follows_a_nul_do_not_count() -> None:
    ours = answer(["x/duplicated_token_3", "y\0z"], names=["x/duplicated_token_3", "y\0z"])
    one = diff_claims(ours, claims(["x/duplicated_token_7", "y"]), NNAPI, has_rules=True)
    assert one.same is True
    assert len(one.nodes) == 2


def test_nodes_without_names_are_counted_and_said() -> None:
    one = diff_claims(answer(["a", "b", "c"]), claims(["a", "", ""]), NNAPI, has_rules=True)
    assert one.same is True
    assert any("inlined" in note for note in one.notes)
    other = diff_claims(answer(["a", "b", "c"]), claims(["a", ""]), NNAPI, has_rules=True)
    assert other.same is False
    assert other.nodes[1].library is None, "it may be the one without a name, or not"


def test_what_is_claimed_after_inlining_stands_behind_the_first_answer() -> None:
    theirs = claims(["a", "b"], ["", ""], inlined=True)
    assert diff_claims(answer(["a", "b"]), theirs, NNAPI, has_rules=True).same is True
    extra = diff_claims(answer(["a", "b"]), claims(["a", "b"], ["new"]), NNAPI, has_rules=True)
    assert [(node.output, node.ours) for node in extra.nodes if node.different] == [("new", None)]


@pytest.mark.parametrize(("provider", "notes"), [("nnapi", 1), ("xnnpack", 2)])
def test_what_may_explain_a_difference_is_said(provider: str, notes: int) -> None:
    settings = Settings(provider=provider, ort_release=(1, 28))
    one = diff_claims(answer(["a"]), claims(["b"], release="1.28.0"), settings, has_rules=True)
    assert len(one.notes) == notes
    assert "onnxruntime 1.29.0" in one.notes[0]


def test_without_rules_the_librarys_claims_are_the_answer() -> None:
    theirs = claims(["a"], ["d"], reasons={"b": "not yet"}, release="1.40.0")
    ours = answer(["a", "b", "c"])
    one = diff_claims(ours, theirs, NNAPI, has_rules=False)
    assert (one.same, one.our_partitions, one.nodes[0].ours) == (None, None, None)
    said = as_answer(ours, one, "1.40.0")
    assert (said.ort_release, said.claimed, said.partitions) == ("1.40.0", 2, (("a",), ("d",)))
    assert said.decisions[1].reason == "not yet"
    assert "no rules for 1.40.0" in said.warnings[0]


def test_a_crash_is_an_answer() -> None:
    theirs = LibraryClaims(id="m", release="1.29.0", error="the library ended by SIGSEGV", crashed=True)
    one = diff_claims(answer(["a"]), theirs, NNAPI, has_rules=True)
    assert (one.same, one.error, one.crashed) == (None, "the library ended by SIGSEGV", True)


@pytest.mark.parametrize(("code", "same"), [("dynamic", True), ("build", None)])
def test_a_session_that_neither_makes_is_the_same_answer(code: str, same: bool | None) -> None:
    load = LoadForecast(code=code, error="the rank is unknown, which throws")
    ours = msgspec.structs.replace(answer(), load=load)
    theirs = LibraryClaims(id="m", release="1.29.0", error="unknown rank")
    compared = diff_claims(ours, theirs, NNAPI, has_rules=True)
    assert compared.same is same
    assert (compared.error is None) == bool(same)
