"""The documentation's guidance as a table."""

import msgspec
import pytest

from pipeline.advice.verdict import (
    FixChoice,
    ProviderSupport,
    gain_of,
    helps_of,
    improves,
    perfect,
    verdict,
    worsens,
)
from pipeline.partition.answer import LoadForecast, ModelAnswer, OperatorGain

NNAPI, XNNPACK, WEBGPU = "nnapi", "xnnpack", "webgpu"


def stand(claimed: int, partitions: int, *, nodes: int = 100, load_error: str | None = None) -> ProviderSupport:
    return ProviderSupport(nodes=nodes, claimed=claimed, partitions=partitions, load_error=load_error)


@pytest.mark.parametrize(
    ("standing", "provider", "choice", "reason"),
    [
        (stand(100, 1), NNAPI, FixChoice.USE, "one partition"),
        (stand(76, 1), NNAPI, FixChoice.USE, "76 %"),
        (stand(75, 1), NNAPI, FixChoice.MEASURE, "the CPU computes the rest"),
        (stand(50, 1), NNAPI, FixChoice.CPU, "50 %"),
        (stand(90, 2), NNAPI, FixChoice.MEASURE, "2 partitions"),
        (stand(75, 2), NNAPI, FixChoice.CPU, "75 %"),
        (stand(99, 3), NNAPI, FixChoice.CPU, "3 partitions"),
        (stand(0, 0), NNAPI, FixChoice.CPU, "supports no node"),
        (stand(0, 0, nodes=0), NNAPI, FixChoice.CPU, "supports no node"),
        (stand(100, 1, load_error="no"), NNAPI, FixChoice.CPU, "cannot be made"),
        (stand(90, 30), XNNPACK, FixChoice.MEASURE, "kernels for 90 %"),
        (stand(50, 1), XNNPACK, FixChoice.CPU, "50 %"),
    ],
)
def test_verdicts(standing: ProviderSupport, provider: str, choice: FixChoice, reason: str) -> None:
    given = verdict(standing, provider)
    assert given.choice is choice
    assert reason in given.reason


def test_copies_in_a_body_are_no_sign_of_a_kernel_for_every_node() -> None:
    copied = ProviderSupport(nodes=2, claimed=2, partitions=1, copies=1)
    assert verdict(copied, WEBGPU).reason == "100 % of the nodes, 1 copy between GPU and CPU per inference"


@pytest.mark.parametrize(
    ("after", "before", "provider", "better"),
    [
        (stand(100, 1), stand(80, 6), NNAPI, True),
        (stand(80, 6), stand(100, 1), NNAPI, False),
        (stand(80, 6), stand(80, 6), NNAPI, False),
        (stand(80, 5), stand(80, 6), NNAPI, True),
        (stand(81, 6), stand(80, 6), NNAPI, True),
        (stand(90, 7), stand(80, 6), NNAPI, False),
        (stand(60, 5), stand(80, 6), NNAPI, False),
        (stand(10, 5), stand(0, 0), NNAPI, True),
        (stand(0, 0), stand(10, 5), NNAPI, False),
        (stand(10, 3), stand(100, 1, load_error="no"), NNAPI, True),
        (stand(100, 1, load_error="no"), stand(10, 3), NNAPI, False),
        (stand(60, 60), stand(50, 50), XNNPACK, True),
        (stand(320, 7, nodes=332), stand(318, 7, nodes=330), NNAPI, False),
        (stand(320, 1, nodes=420), stand(300, 1, nodes=400), NNAPI, False),
        (stand(356, 3, nodes=358), stand(318, 7, nodes=330), NNAPI, True),
        (stand(78, 6, nodes=98), stand(80, 6), NNAPI, False),
    ],
)
def test_what_is_better(after: ProviderSupport, before: ProviderSupport, provider: str, better: bool) -> None:
    assert improves(after, before, provider) is better


def test_a_hundred_per_cent_is_all_nodes() -> None:
    assert "with 99 % of the nodes" in verdict(stand(286, 1, nodes=287), NNAPI).reason
    assert "with 100 % of the nodes" in verdict(stand(287, 1, nodes=287), NNAPI).reason


def test_perfect_and_gain_in_words() -> None:
    assert perfect(stand(100, 1))
    assert not perfect(stand(100, 2))
    assert not perfect(stand(100, 1, load_error="no"))
    assert gain_of(stand(80, 6), stand(100, 1), NNAPI) == "partitions 6 → 1, coverage 80 → 100 %"
    assert gain_of(stand(80, 6), stand(100, 1), XNNPACK) == "coverage 80 → 100 %"
    assert gain_of(stand(80, 6, load_error="no"), stand(80, 6), NNAPI).endswith("loads on the phone")
    rounded_away = gain_of(stand(990, 1, nodes=1000), stand(991, 1, nodes=1000), NNAPI)
    assert rounded_away == "partitions 1 → 1, coverage 99 → 99 %, nodes on the CPU 10 → 9"


@pytest.mark.parametrize(
    ("after", "before", "provider", "worse"),
    [
        (stand(143, 44, nodes=252), stand(85, 22, nodes=269), NNAPI, True),
        (stand(4, 1, nodes=16), stand(8, 2, nodes=24), NNAPI, True),
        (stand(60, 6), stand(80, 6), XNNPACK, True),
        (stand(80, 9), stand(80, 6), XNNPACK, False),
        (stand(30, 7), stand(0, 0), NNAPI, False),
        (stand(100, 1, load_error="no"), stand(10, 3), NNAPI, True),
        (stand(10, 3), stand(100, 1, load_error="no"), NNAPI, False),
        (stand(90, 1, nodes=110), stand(90, 2), NNAPI, False),
        (stand(70, 2), stand(90, 2), NNAPI, True),
        (stand(80, 6), stand(80, 6), NNAPI, False),
    ],
)
def test_what_is_worse(after: ProviderSupport, before: ProviderSupport, provider: str, worse: bool) -> None:
    assert worsens(after, before, provider) is worse


def answered(ep: str, standing: ProviderSupport, *operators: OperatorGain) -> ModelAnswer:
    partitions = tuple((str(number),) for number in range(standing.partitions))
    return ModelAnswer(
        path="m", ep=ep, ort_release="1.29", nodes=standing.nodes, claimed=standing.claimed, partitions=partitions,
        operators=operators,
    )  # fmt: skip


def test_a_change_that_costs_another_provider_says_so_and_comes_later() -> None:
    erf = OperatorGain(op_type="Erf", nodes=1, partitions=40, claimed=144)
    before = [answered(NNAPI, stand(85, 22, nodes=269)), answered("coreml-nn", stand(101, 45, nodes=269))]
    fixed = [answered(NNAPI, stand(143, 44, nodes=252), erf), answered("coreml-nn", stand(99, 43, nodes=252))]
    rewrite, sized = helps_of(before, fixed, {"N": 1})
    assert (rewrite.what, rewrite.losses) == ("rewrite Erf (1 node)", {})
    assert sized.what == "fix the dynamic dimensions (N=1)"
    assert sized.gains == {"coreml-nn": "101 of 269 → 99 of 252 nodes, 45 → 43 partitions"}
    assert sized.losses == {NNAPI: "85 of 269 → 143 of 252 nodes, 22 → 44 partitions"}


def test_an_operator_that_costs_another_provider_says_so() -> None:
    gains = OperatorGain(op_type="Erf", nodes=2, partitions=1, claimed=100)
    borders = OperatorGain(op_type="Erf", nodes=2, partitions=5, claimed=62)
    (rewrite,) = helps_of(
        [answered(NNAPI, stand(98, 3), gains), answered("coreml-nn", stand(60, 4), borders)], None, {}
    )
    assert rewrite.gains == {NNAPI: "98 → 100 of 100 nodes, 3 → 1 partitions"}
    assert rewrite.losses == {"coreml-nn": "60 → 62 of 100 nodes, 4 → 5 partitions"}


def test_a_fusion_is_no_operator_to_rewrite() -> None:
    gain = OperatorGain(op_type="FusedConv", nodes=2, partitions=1, claimed=100)
    (help_,) = helps_of([answered(NNAPI, stand(98, 3), gain)], None, {})
    assert help_.what == "leave Conv and its activation apart (FusedConv, 2 nodes)"
    assert "--ep" in help_.remedy


def test_a_change_that_is_worse_for_all_is_no_help() -> None:
    before, fixed = [answered(NNAPI, stand(8, 2, nodes=24))], [answered(NNAPI, stand(4, 1, nodes=16))]
    assert helps_of(before, fixed, {"N": 1}) == ()


def test_the_advice_for_a_form_of_the_cpu_is_the_float_model() -> None:
    cast = OperatorGain(op_type="Cast", nodes=1, partitions=1, claimed=100)
    lower, higher = answered(NNAPI, stand(59, 5), cast), answered(NNAPI, stand(90, 1), cast)
    (only,) = helps_of([lower], None, {}, "only the CPU has kernels of this form")
    assert only.what == "start from the float model: no change of this file helps"
    assert only.gains == {}
    assert only.reason == "only the CPU has kernels of this form"
    start, sized = helps_of([lower], [higher], {"N": 1}, "only the CPU")
    assert (start.what, sized.what) == ("start from the float model", "fix the dynamic dimensions (N=1)")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (
            LoadForecast(error="garbage", at_run=True),
            LoadForecast(error="no kernel"),
            "40 → 90 of 100 nodes, 1 → 1 partitions",
        ),
        (
            LoadForecast(error="no kernel"),
            LoadForecast(error="garbage", at_run=True),
            "40 → 90 of 100 nodes, 1 → 1 partitions",
        ),
        (LoadForecast(error="garbage", at_run=True), LoadForecast(), "and a run is possible"),
        (LoadForecast(error="no kernel"), LoadForecast(), "and a session can be made"),
    ],
)
def test_a_change_that_leaves_another_failure_says_nothing_of_runs(
    before: LoadForecast, after: LoadForecast, told: str
) -> None:
    answers = [
        msgspec.structs.replace(answered(NNAPI, stand(claimed, 1)), load=load)
        for claimed, load in ((40, before), (90, after))
    ]
    sized = next(change for change in helps_of(answers[:1], answers[1:], {"N": 1}) if "dimensions" in change.what)
    assert told in sized.gains[NNAPI]
