"""8-bit sums that this computer's processor saturates are not held against a file; those of every other file are."""

from pathlib import Path

import pytest

from pipeline.accuracy.evaluate import AccuracyRequest, evaluate_model
from pipeline.check import reference
from pipeline.check.compare import OutputCheck, remedy_of
from pipeline.check.reference import adds_products, excused, processor_saturates, saturates_here
from pipeline.dataset import Dataset
from pipeline.model.ort_format import read_ort
from pipeline.model.sources import SourceModel
from tests.command import ort_mobile
from tests.passes.quantized_models import EXAMPLE

HASWELL = "processor : 0\nflags\t\t: fpu sse4_1 avx avx2 fma\n"
PROCESSORS = {
    HASWELL: True,
    "flags : avx2 avx512f avx512_vnni\n": False,
    "flags : avx2 avx_vnni\n": False,
    "flags : sse4_1\n": False,
    "model name : unknown\n": True,
}
WRONG = OutputCheck(output="logits", passed=False, max_abs_error=0.5, reason="relative error 0.4 is over 0.1")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts")
    asked = ["--precision", "float,u8s8pc,u8u8,dyn8", "--level", "basic,all", "--style", "fixed,runtime"]
    ort_mobile("convert", EXAMPLE / "mnist.onnx", *asked, "--test-data", EXAMPLE, "--output", folder)
    return folder


@pytest.fixture
def haswell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This computer, seen as an x86-64 one with AVX2 and without VNNI."""
    (tmp_path / "cpuinfo").write_text(HASWELL)
    monkeypatch.setattr(reference, "PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.parametrize(("text", "saturates"), PROCESSORS.items())
def test_which_processors_saturate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, saturates: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert processor_saturates(tmp_path / "cpuinfo") is saturates
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    processor_saturates.cache_clear()
    assert not processor_saturates(tmp_path / "cpuinfo")


@pytest.mark.long
def test_files_whose_products_are_added_as_integers(artifacts: Path) -> None:
    """Level basic computes in float, in runtime style the fusions are recorded; u8 with u8 has another kernel."""
    found = {file.stem.partition(".")[2] for file in artifacts.glob("*.ort") if adds_products(read_ort(file))}
    assert found == {
        "all-fixed-u8s8pc", "all-runtime-u8s8pc",
        "basic-fixed-dyn8", "all-fixed-dyn8", "basic-runtime-dyn8", "all-runtime-dyn8",
    }  # fmt: skip


@pytest.mark.usefixtures("haswell")
def test_what_failed_there_is_not_judged(artifacts: Path) -> None:
    (check,) = excused([WRONG], artifacts / "mnist.all-fixed-u8s8pc.ort")
    assert (check.failed, check.passed, check.unknown) == (False, False, True)
    assert "no VNNI" in check.reason
    assert WRONG.reason in check.reason
    assert remedy_of(check) == "measure on a phone, or check on a computer with VNNI"
    for name in ("all-fixed-u8u8", "basic-fixed-u8s8pc", "all-fixed"):
        assert excused([WRONG], artifacts / f"mnist.{name}.ort") == (WRONG,)
    assert excused([WRONG], artifacts / "mnist.all-fixed-u8s8pc.ort", "cortex-a53") == (WRONG,), "emulated: as phones"
    right = OutputCheck(output="logits", passed=True)
    assert excused([right], artifacts / "mnist.all-fixed-u8s8pc.ort") == (right,)


@pytest.mark.usefixtures("haswell")
def test_accuracy_there_comes_with_a_warning(artifacts: Path) -> None:
    for name, warned in (("all-fixed-u8s8pc", 1), ("all-fixed-u8u8", 0)):
        request = AccuracyRequest(
            model=str(artifacts / f"mnist.{name}.ort"), reference=SourceModel(path=str(EXAMPLE / "mnist.onnx")),
            data=Dataset(test_data=str(EXAMPLE / "evaluation.npz"), limit=5),
        )  # fmt: skip
        assert [one.what for one in evaluate_model(request).findings].count(
            "8-bit sums saturate on this computer's processor, which has no VNNI"
        ) == warned


def test_what_is_no_artifact_saturates_nowhere(tmp_path: Path, haswell: None) -> None:
    (tmp_path / "broken.ort").write_bytes(b"no model")
    assert not saturates_here(tmp_path / "broken.ort")
    assert not saturates_here(EXAMPLE / "mnist.onnx")


@pytest.mark.usefixtures("haswell")
def test_no_saturation_excuses_infinity(artifacts: Path) -> None:
    lost = OutputCheck(output="logits", passed=False, reason="NaN or infinity where the original has numbers")
    assert excused([lost], artifacts / "mnist.all-fixed-u8s8pc.ort") == (lost,)
