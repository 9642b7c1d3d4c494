"""Attributes that are large tensors: sessions that use weights where they lie refuse ORT format files with them."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_tensor_value_info as value

from device_runner.options import MAPPED
from pipeline.model.guards import BY_PATH
from pipeline.model.session import CpuSettings, open_session, run_session
from tests.command import ort_mobile


def trees(path: Path, leaves: int, kind: str = "f8") -> Path:
    """Trees of one split each, their leaves' weights in one tensor."""
    weights = numpy_helper.from_array(np.arange(leaves).astype(kind), "t")
    code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    splits, zeros = leaves // 2, [0] * leaves
    modes = helper.make_tensor("m", TensorProto.UINT8, [splits], [0] * splits)
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, aggregate_function=1, post_transform=0,
        tree_roots=list(range(splits)), nodes_modes=modes, nodes_featureids=zeros[:splits],
        nodes_splits=numpy_helper.from_array(np.zeros(splits, kind), "s"),
        nodes_truenodeids=list(range(0, leaves, 2)), nodes_trueleafs=[1] * splits,
        nodes_falsenodeids=list(range(1, leaves, 2)), nodes_falseleafs=[1] * splits,
        leaf_targetids=zeros, leaf_weights=weights,
    )  # fmt: skip
    graph = helper.make_graph([node], "g", [value("x", code, [2, 3])], [value("y", code, [2, 1])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 5)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    return path


@pytest.mark.parametrize(("leaves", "kind", "large"), [(14, "f8", False), (16, "f8", True), (32, "f4", True)])
def test_files_with_a_large_tensor_as_an_attribute_are_opened_by_their_path(
    leaves: int, kind: str, large: bool, tmp_path: Path
) -> None:
    trees(tmp_path / "m.onnx", leaves, kind)
    words = ("--level", "all", "--style", "fixed,onnx", "--no-config", "--check", "--json", "c.json", "--output", ".")
    ort_mobile("convert", "m.onnx", "--ort-release", "1.26", *words, cwd=tmp_path)
    rows = {row["file"]: row for row in json.loads((tmp_path / "c.json").read_text())["artifacts"]}
    assert rows["m.all-fixed.ort"]["session_options"] == (BY_PATH if large else {})
    assert rows["m.all-onnx.onnx"]["session_options"] == {}
    options = onnxruntime.SessionOptions()
    for key, entry in MAPPED.items():
        options.add_session_config_entry(key, entry)
    content = (tmp_path / "m.all-fixed.ort").read_bytes()
    if large:
        with pytest.raises(Exception, match=r"not regular file|is not accessible"):
            onnxruntime.InferenceSession(content, options)
    else:
        onnxruntime.InferenceSession(content, options)
    session = open_session(tmp_path / "m.all-fixed.ort", CpuSettings())  # which nobody told
    outputs = run_session(session, {"x": np.zeros((2, 3), kind)}, "m")
    assert outputs["y"].ravel().tolist() == [sum(range(0, leaves, 2))] * 2
