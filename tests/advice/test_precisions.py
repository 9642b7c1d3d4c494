"""Precisions of real quantized models, and the one that is chosen for each provider by its rules."""

import subprocess
import sys
import zipfile
from functools import lru_cache

import msgspec
import onnx
import pytest

from pipeline.advice.precision_choice import (
    PrecisionVerdict,
    choose_precision,
    kept_precisions,
    precision_of,
    quantized_advice,
)
from pipeline.core.errors import MissingError
from pipeline.core.providers import COREML_MLPROGRAM, COREML_NN, NNAPI, XNNPACK
from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.judge import PartitionRequest, judge
from tests.ground_truth import ORACLE

ROOT = ORACLE.parent.parent
REAL = ORACLE / "real.zip"
FORMS = {
    "mnist.base": "",
    "mnist.fp16": "fp16",
    "mnist.qdq_s8s8": "s8s8",
    "mnist.qdq_u8u8": "u8u8",
    "face_embedding.qdq_u8s8pc": "u8s8pc",
    "mobilenet_v2.qop": "u8u8op",
    "mlp_tabular.dyn": "dyn8",
}


@lru_cache
def answer(model: str, provider: str, release: tuple[int, int] = (1, 29)) -> ModelAnswer:
    source = SourceModel(path=str(REAL), member=f"{model}.onnx")
    settings = Settings(provider=provider, ort_release=release)
    return judge(PartitionRequest(source=source, settings=settings, optimize=Optimize.BASIC))


def chosen(provider: str, own: str, **forms: str) -> list[PrecisionVerdict]:
    answers = {name: answer(model, provider) for name, model in forms.items()}
    return choose_precision(provider, answer(own, provider), answers)


@pytest.mark.parametrize("model", FORMS)
def test_the_precision_of_a_real_model_is_recognized(model: str) -> None:
    with zipfile.ZipFile(REAL) as archive:
        assert precision_of(onnx.load_from_string(archive.read(f"{model}.onnx"))) == FORMS[model]


def test_a_form_that_fails_at_load_is_dropped_however_much_it_claims() -> None:
    found = chosen(NNAPI, "mobilenet_v2.base", u8s8pc="mobilenet_v2.qdq_u8s8pc", u8u8op="mobilenet_v2.qop")
    assert [(one.precision, one.kept) for one in found] == [("u8s8pc", False), ("u8u8op", True)]
    assert "no session can be made on the phone" in found[0].reason
    assert found[0].compute_claimed == found[0].compute == 53
    assert found[1].reason == "52 of 53 compute nodes in 2 partitions"


def test_a_form_without_claims_is_dropped_however_few_partitions_it_has() -> None:
    found = chosen(NNAPI, "mobilenet_v2.base", s8s8="mobilenet_v2.qdq_s8s8", u8u8op="mobilenet_v2.qop")
    assert [one.kept for one in found] == [False, True]
    assert found[0].partitions < found[1].partitions  # type: ignore[operator] # both were asked
    assert found[0].reason.startswith("0 of 53 compute nodes in 0 partitions, 53 of 53 ")


def test_no_form_is_kept_where_only_the_float_model_is_computed_there() -> None:
    (found,) = chosen(COREML_MLPROGRAM, "mobilenet_v2.base", s8s8="mobilenet_v2.qdq_s8s8")
    assert not found.kept
    assert kept_precisions([found]) == ("",)


@pytest.mark.parametrize(
    ("provider", "release", "kept"),
    [
        (COREML_MLPROGRAM, (1, 29), True),
        (COREML_MLPROGRAM, (1, 23), False),  # f16 since 1.24 (ep_rules_releases)
        (COREML_NN, (1, 29), False),
        (NNAPI, (1, 29), False),
    ],
)
def test_half_precision_is_for_mlprogram_of_newer_releases(provider: str, release: tuple[int, int], kept: bool) -> None:
    forms = {"fp16": answer("mnist.fp16", provider, release)}
    (found,) = choose_precision(provider, answer("mnist.base", provider, release), forms)
    assert found.kept is kept


def test_partitions_count_nothing_for_xnnpack() -> None:
    two, one = (
        msgspec.structs.replace(answer("mnist.qdq_s8s8", XNNPACK), partitions=parts)
        for parts in ((("a",), ("b",)), (("a",),))
    )
    trials = {"first": two, "second": one}
    assert [verdict.kept for verdict in choose_precision("xnnpack", None, trials)] == [True, False]
    assert [verdict.kept for verdict in choose_precision("nnapi", None, trials)] == [False, True]


def test_a_form_of_which_nothing_is_claimed_for_an_open_dimension_is_dropped_for_that() -> None:
    found = answer("mnist.qdq_s8s8", XNNPACK)
    lost = [msgspec.structs.replace(one, claimed=False, code="shape") for one in found.decisions]
    nothing = msgspec.structs.replace(found, claimed=0, partitions=(), decisions=tuple(lost), dynamic=("batch",))
    (verdict,) = choose_precision("nnapi", nothing, {"u8s8nnapi": nothing})
    assert not verdict.kept
    assert "no size: batch" in verdict.reason
    assert "--dimension batch=N" in verdict.reason


def test_what_could_not_be_made_is_dropped_with_its_reason() -> None:
    trials = {"s8s8pc": MissingError("needs calibration data"), "dyn8": None}
    found = choose_precision("cpu-arm64", None, trials)
    assert [one.lacks_data for one in found] == [True, False]
    assert not choose_precision("cpu-arm64", None, trials, has_data=True)[0].lacks_data
    assert [one.text for one in found] == [
        "cpu-arm64: int8 (s8s8pc) dropped: needs calibration data",
        "cpu-arm64: dynamic int8 (dyn8) kept: the CPU of ARM devices has int8 kernels for every node",
    ]
    assert kept_precisions(found) == ("", "dyn8")


def test_on_the_cpu_dynamic_quantization_is_shown_beside_static() -> None:
    found = choose_precision("cpu-arm64", None, {"s8s8pc": None, "dyn8": None}, has_data=True)
    assert kept_precisions(found) == ("", "s8s8pc", "dyn8")
    assert found[1].reason == "beside s8s8pc: which is better, measurements say"


@pytest.mark.parametrize(("pieces", "kept"), [(2, True), (3, True), (6, False), (20, False)])
def test_a_form_in_many_small_partitions_is_offered_to_nobody(pieces: int, kept: bool) -> None:
    whole = answer("mobilenet_v2.qop", NNAPI)
    parts = tuple((f"{number}",) for number in range(pieces))
    (found,) = choose_precision(NNAPI, None, {"u8u8op": msgspec.structs.replace(whole, partitions=parts)})
    assert found.kept is kept
    assert ("so the CPU is for this form" in found.reason) is not kept


@pytest.mark.long
def test_the_table_in_the_reference_is_what_the_rules_say() -> None:
    """One model of the table; `nox -s precisions` compares all."""
    command = [sys.executable, "docs/make_precisions.py", "--check", "--model", "mnist"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout == "every cell is current\n", ended.stdout + ended.stderr
    assert ended.returncode == 0


def test_advice_names_the_form_that_a_provider_supports() -> None:
    assert quantized_advice("s8s8", answer("mnist.qdq_s8s8", NNAPI)) == (
        "the model is s8s8: NNAPI supports u8 values only: use u8s8nnapi"
    )
    assert quantized_advice("", answer("mnist.base", NNAPI)) == ""
    assert quantized_advice("u8u8", answer("mnist.qdq_u8u8", NNAPI)) == ""
