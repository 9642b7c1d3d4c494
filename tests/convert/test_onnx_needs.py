"""What a build needs for ONNX files, held against sessions of ONNX Runtime that optimize them at each level."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from pipeline.convert.onnx_needs import onnx_needs, unproven
from pipeline.convert.op_configs import config_texts
from pipeline.core.files import CONFIG_FILE, TYPED_CONFIG_FILE
from pipeline.core.releases import installed_release
from pipeline.model.ort_format import read_artifact
from pipeline.required_ops import covers, needs_of, parse
from tests.command import ort_mobile
from tests.probe_models import FLOAT, save_model


def convolutions(path: Path) -> Path:
    """Two convolutions, of which the first is fused with its Relu, and a Shape that is folded away."""
    random = np.random.default_rng(1)
    weights = {name: random.random((32, 32, 3, 3), np.float32) for name in ("w", "w2")}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["d"], pads=[1] * 4),
        helper.make_node("Shape", ["d"], ["s"]),
        helper.make_node("Reshape", ["d", "s"], ["y"]),
    ]
    shape = [1, 32, 16, 16]
    return save_model(path, nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, shape)}, weights)


def quantized(path: Path) -> Path:
    """A product of dequantized factors, which level extended fuses, and nothing else does."""
    values = {
        "s": np.array(0.1, np.float32), "z": np.array(0, np.uint8),
        "w": np.arange(64, dtype=np.uint8).reshape(8, 8),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["m"]),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["mq"]),
        helper.make_node("DequantizeLinear", ["mq", "s", "z"], ["y"]),
    ]
    shapes = {"x": (TensorProto.FLOAT, [2, 8])}, {"y": (TensorProto.FLOAT, [2, 8])}
    return save_model(path, nodes, *shapes, values)


@pytest.mark.parametrize("make", [convolutions, quantized])
def test_the_config_suffices_for_what_a_session_makes_of_the_file_at_every_level(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    file = make(tmp_path / "m.onnx")
    config = parse(config_texts([file], abis=["x86_64"])[TYPED_CONFIG_FILE], "c")
    for level in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
        options.optimized_model_filepath = str(tmp_path / f"{level}.ort")
        options.add_session_config_entry("session.save_model_format", "ORT")
        onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        made = read_artifact(tmp_path / f"{level}.ort")
        assert covers(config, needs_of(made, extended=True)) == (), level


def test_blocked_layouts_are_for_x86_alone_and_what_is_folded_is_listed(tmp_path: Path) -> None:
    file = convolutions(tmp_path / "m.onnx")
    on_arm = {(need.domain, need.op) for need in onnx_needs([file], abis=["arm64-v8a"])[0][str(file)]}
    anywhere = {(need.domain, need.op) for need in onnx_needs([file])[0][str(file)]}
    assert {("com.microsoft", "FusedConv"), ("ai.onnx", "Relu"), ("ai.onnx", "Shape")} <= on_arm
    assert {domain for domain, _ in anywhere} - {domain for domain, _ in on_arm} == {"com.microsoft.nchwc"}


def test_convert_writes_the_config_of_onnx_files_and_says_for_which_release(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    convolutions(tmp_path / "m.onnx")
    line = ("convert", "m.onnx", "--format", "onnx", "--level", "basic", "--output", "out")
    ort_mobile(*line, cwd=tmp_path)
    assert "not proven" not in caplog.text
    assert "Conv" in (tmp_path / "out" / CONFIG_FILE).read_text()
    ort_mobile(*line, "--ort-release", "1.29", cwd=tmp_path)
    assert "not proven for 1.29" in caplog.text
    ort_mobile("convert", "m.onnx", "--level", "basic", "--style", "fixed", "--output", "out", cwd=tmp_path)
    created = ort_mobile("op-config", "create", "out", cwd=tmp_path)
    assert "note: not covered: 1 ONNX file (m.basic-onnx.onnx)" in created.err
    assert unproven(["m.onnx"], [str(installed_release()), ""]) is None
    assert unproven(["m.ort"], ["1.17"]) is None


def test_a_file_that_no_session_takes_costs_the_others_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"nothing of a model")
    texts = config_texts([quantized(tmp_path / "m.onnx"), tmp_path / "broken.onnx"], abis=["arm64-v8a"])
    assert "QLinearMatMul" in texts[CONFIG_FILE]
    assert "broken.onnx: not all that a reduced build needs for it is known" in caplog.text
