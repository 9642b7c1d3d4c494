"""What is refused for WebGPU is read from a file of either format, without a library."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.compat.gpu import gpu_findings
from pipeline.core.releases import Release
from tests.command import ort_mobile
from tests.ort_models import convert, parsed, residual


def test_quantized_activations_are_refused_with_their_copies(tmp_path: Path) -> None:
    model = parsed("""g (float[1, 4] x) => (float[1, 4] y) <float s = {0.1}, uint8 z = {128}> {
        a = Relu (x)  q = QuantizeLinear (a, s, z)  d = DequantizeLinear (q, s, z)  y = Sigmoid (d)
    }""")
    onnx.save(model, tmp_path / "m.onnx")
    (found,) = gpu_findings(tmp_path / "m.onnx", Release(1, 29), {}, "m")
    assert "QuantizeLinear 'q'" in found.what
    assert "copies per inference" in found.what
    assert "MatMulNBits" in found.remedy


@pytest.mark.parametrize(("dtype", "refused"), [("float16", True), ("float", False)])
def test_sums_of_squares_in_half_precision_are_refused(tmp_path: Path, dtype: str, refused: bool) -> None:
    onnx.save(parsed(f"g ({dtype}[1, 8] x) => ({dtype}[1, 1] y) {{ y = ReduceL2 (x) }}"), tmp_path / "m.onnx")
    rules = [finding.rule for finding in gpu_findings(tmp_path / "m.onnx", Release(1, 29), {}, "m", half=True)]
    assert rules == ["webgpu-half-sums"] * refused


def test_types_that_a_file_does_not_say_are_asked_for(tmp_path: Path) -> None:
    ones = np.ones(4, np.float32)
    text = "g (float[1, 4] x) => (float[1, 4] y) { a = Relu (x)  y = BatchNormalization (a, s, b, m, v) }"
    model = parsed(text, s=ones, b=ones, m=ones, v=ones)
    assert not model.graph.value_info
    onnx.save(model, tmp_path / "m.onnx")
    rules = [row.rule for row in gpu_findings(tmp_path / "m.onnx", Release(1, 29), {"preferredLayout": "NCHW"}, "m")]
    assert rules == ["webgpu-normalization"]


def test_a_file_that_a_gpu_computes_right_is_not_refused(tmp_path: Path) -> None:
    onnx.save(residual(), tmp_path / "m.onnx")
    nine = parsed(
        "g (float[1, 9, 6, 6] x) => (float[1, 4, 4, 4] y) { y = Conv (x, w) }", w=np.ones((4, 9, 3, 3), np.float32)
    )
    onnx.save(nine, tmp_path / "nine.onnx")
    assert list(gpu_findings(tmp_path / "nine.onnx", Release(1, 29), {"preferredLayout": "NCHW"}, "m")) == []
    for file in (tmp_path / "m.onnx", convert(tmp_path / "m.onnx", tmp_path / "m.ort", level="basic")):
        assert list(gpu_findings(file, Release(1, 29), {}, "m", half=False)) == []


@pytest.mark.parametrize(
    ("name", "remedy"), [("frist", "did you mean 'first'?"), ("none", "give names of nodes, one a line")]
)
def test_names_for_the_cpu_that_no_node_has_are_refused(tmp_path: Path, name: str, remedy: str) -> None:
    onnx.save(
        parsed("g (float[1, 4] x) => (float[1, 4] y) { [first] a = Relu (x)  y = Relu (a) }"), tmp_path / "m.onnx"
    )
    ort = convert(tmp_path / "m.onnx", tmp_path / "m.ort", level="none")
    for file in (tmp_path / "m.onnx", ort):
        fine = gpu_findings(file, Release(1, 29), {"forceCpuNodeNames": "first"}, "m")
        assert "webgpu-forced" not in [finding.rule for finding in fine]
        found = next(gpu_findings(file, Release(1, 29), {"forceCpuNodeNames": f"first\n{name}"}, "m"))
        assert (found.rule, found.remedy) == ("webgpu-forced", remedy)
        assert f"names {name!r}, and" in found.what
        for command in ("partition", "check"):
            error = ort_mobile(command, file, "--webgpu-options", f"forceCpuNodeNames={name}", code=1).err
            assert remedy in error
