"""What Qualcomm's compiler said of one-operator models, recorded: how it is read, without the compiler."""

from collections.abc import Iterator
from functools import cache

import msgspec

from device_runner.providers import CHIPS
from pipeline.partition.answer import LoadForecast, Refusal
from pipeline.partition.claiming import Claim
from pipeline.partition.graph import Graph
from pipeline.providers.qnn.claims import claim_on, empty_value
from tests.npu_operators import NO_ANSWER, Row, recorded
from tests.recorded_graphs import record, unpack

RELEASE = "1.28"
"""The newest of which graphs are recorded: those of a newer ONNX Runtime are the same here."""


CRASHING = {
    "expand/i64", "gemm_attr/empty_c_opset11", "gemm_attr/empty_c_opset13", "mul/rank5", "qdq_matmul/empty_zp_both",
    "qdq_transpose/clip_0_200_mid_output",
}  # fmt: skip
"""Models of which the compiler dies, by no rule that is known."""


@cache
def rows() -> list[tuple[Row, Graph]]:
    """The recorded answers with the graphs of their models; not the 96 models that ORT format never had."""
    shown, answers = record("ops", RELEASE), recorded()
    keys = {name: f"{name.removesuffix('.onnx')}@none" for name in answers}
    graphs = {name: unpack(msgspec.msgpack.decode(shown[key])[-1]) for name, key in keys.items() if key in shown}
    return [(row, graph) for name, graph in graphs.items() for row in answers[name].values()]


@cache
def judged() -> list[tuple[Row, Graph, Claim, LoadForecast]]:
    """What we make of each answer."""
    return [(row, graph, *claim_on(graph, row.compiler, CHIPS[row.chip])) for row, graph in rows() if row.compiler]


def test_answers_are_read_as_they_were_recorded() -> None:
    texts = {
        (row.id, row.chip): f"fails ({load.code})"
        if load.error
        else f"{len(claim.groups)} ({len(claim.claimed)}/{len(graph.nodes)})"
        for row, graph, claim, load in judged()
    }
    assert texts == {(row.id, row.chip): row.text for row, *_ in judged()}
    assert len(texts) > 2300


def test_nothing_is_asked_about_values_without_elements() -> None:
    """The compiler dies of them; beside them it dies of a few models, and hangs at none."""
    answers = [(row, bool(empty_value(graph))) for row, graph in rows() if row.text != NO_ANSWER]
    assert [row for row, empty in answers if empty != (row.text == "fails (empty)") or (empty and row.compiler)] == []
    assert {row.id.removesuffix(".onnx") for row, _ in answers if row.text == "fails (crash)"} == CRASHING
    assert "fails (hang)" not in {row.text for row, _ in answers}


def refusals() -> Iterator[Refusal]:
    """All but those of nodes of which nothing is known, as no session is made."""
    for _, _, claim, load in judged():
        yield from (refusal for refusal in claim.refusals.values() if not (load.error and refusal.code == "unknown"))
        if load.error:
            yield Refusal(load.code or "", load.error, load.remedy or "")


def test_every_reason_of_the_compiler_is_a_cause_with_a_remedy() -> None:
    texts = list(refusals())
    assert {(text.code, text.what) for text in texts if text.code == "session"} == set()
    without = {(text.code, text.what) for text in texts if not text.remedy}
    assert {code for code, _ in without} <= {"border", "model"}, without
    assert [text.what for text in texts if text.code == "provider"] == [], "in the provider's own words"
