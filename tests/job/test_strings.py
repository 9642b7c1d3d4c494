"""A model that gives strings, through a whole job: brought from devices and compared with the original's."""

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.android_host.conftest import NEWEST, fetch
from tests.command import ort_mobile
from tests.onnx_samples import save

CONFIG = """
name = "labels"
devices = ["{device}"]
models = [{{ path = "labels.onnx", inputs = {{ x = [3, 1, 4] }} }}]
variants = {{ levels = ["basic"], styles = ["fixed"] }}
measure = {{ rounds = 1, min_runs = 2, min_seconds = 0.001 }}
"""


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("local", marks=pytest.mark.long),
        pytest.param(f"android-host:{NEWEST}", marks=[pytest.mark.android_host, pytest.mark.network]),
    ],
)
def test_strings_of_a_device_are_compared(tmp_path: Path, device: str) -> None:
    if device != "local":
        fetch(NEWEST)
    label = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[1, 3], values_strings=["one", "drei ä"],
        default_string="other",
    )  # fmt: skip
    kinds = {"x": TensorProto.INT64, "y": TensorProto.STRING}
    x, y = (helper.make_tensor_value_info(name, kind, [3]) for name, kind in kinds.items())
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    graph = helper.make_graph([label], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "labels.onnx")
    (tmp_path / "labels.toml").write_text(CONFIG.format(device=device), "utf-8")
    ort_mobile("run", "labels.toml", "--output", "out", cwd=tmp_path)
    rows = json.loads((tmp_path / "out/results.json").read_text("utf-8"))["rows"]
    checks = [check for row in rows for check in row["checks"]]
    assert checks
    assert {(check["output"], check["passed"], check["unknown"]) for check in checks} == {("y", True, False)}
