"""Conversions into one folder, one after the other; and `--precision auto`, which asks for data where some help."""

from pathlib import Path

import onnx
import pytest

from tests.command import ort_mobile
from tests.onnx_samples import conv_bn, linear, quantized, save


def test_the_operator_config_covers_all_artifacts_of_the_folder(tmp_path: Path) -> None:
    save(conv_bn(8), tmp_path / "a.onnx")
    save(linear(8), tmp_path / "b.onnx")
    for line in (
        "convert a.onnx --level all --style fixed --output out",
        "convert b.onnx --level basic --output out",
        "convert a.onnx --ep nnapi --level extended --output out",
    ):
        ort_mobile(*line.split(), cwd=tmp_path)
    for name in ("required_operators.config", "required_operators_and_types.config"):
        ort_mobile("op-config", "check", f"out/{name}", "out", cwd=tmp_path)


def test_a_foreign_file_in_the_folder_costs_nothing(tmp_path: Path) -> None:
    save(linear(8), tmp_path / "b.onnx")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/foreign.ort").write_bytes(b"no model")
    ort_mobile("convert", "b.onnx", "--level", "all", "--output", "out", cwd=tmp_path)
    assert "Gemm" in (tmp_path / "out/required_operators.config").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "reason", "asked"),
    [
        (quantized(4), "the model is quantized already", False),
        (linear(8), "needs calibration data", True),
    ],
    ids=["quantized", "float"],
)
def test_data_are_asked_for_where_they_help(tmp_path: Path, model: onnx.ModelProto, reason: str, asked: bool) -> None:
    save(model, tmp_path / "m.onnx")
    done = ort_mobile("convert", "m.onnx", "--precision", "auto", "--level", "basic", "--output", "out", cwd=tmp_path)
    assert f"int8 (s8s8pc) dropped: static-qdq{':' * (not asked)} {reason}" in " ".join(done.out.split())
    assert ("give --test-data" in done.err) == asked
