"""`ort-mobile convert --precision auto` without data: it asks for some where some would help."""

from pathlib import Path

import onnx
import pytest

from tests import onnx_samples
from tests.command import ort_mobile


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "reason", "asked"),
    [
        (onnx_samples.quantized(4), "the model is quantized already", False),
        (onnx_samples.linear(8), "needs calibration data", True),
    ],
    ids=["quantized", "float"],
)
def test_data_are_asked_for_where_they_help(tmp_path: Path, model: onnx.ModelProto, reason: str, asked: bool) -> None:
    onnx_samples.save(model, tmp_path / "m.onnx")
    done = ort_mobile("convert", "m.onnx", "--precision", "auto", "--level", "basic", "--output", "out", cwd=tmp_path)
    assert f"s8s8pc dropped: static-qdq{':' * (not asked)} {reason}" in " ".join(done.out.split())
    assert ("give --test-data" in done.err) == asked
