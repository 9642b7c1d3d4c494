"""Outputs that are sequences and maps: nobody compares them, and nobody says that they are the original's."""

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.command import ort_mobile
from tests.onnx_samples import save


def classifier(folder: Path, *, label: bool) -> Path:
    """As scikit-learn's classifiers are exported: a label, and a map from class to probability for each sample."""
    linear = helper.make_node(
        "LinearClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", classlabels_ints=[0, 1, 2], multi_class=1,
        coefficients=[0.1 * number for number in range(12)], intercepts=[0.1, 0.2, 0.3], post_transform="SOFTMAX",
    )  # fmt: skip
    zipped = helper.make_node("ZipMap", ["p"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    score = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    outputs = [helper.make_value_info("scores", helper.make_sequence_type_proto(score))]
    if label:
        outputs.insert(0, helper.make_tensor_value_info("label", TensorProto.INT64, [1]))
    graph = helper.make_graph(
        [linear, zipped], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])], outputs
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    return save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "m.onnx")


@pytest.mark.parametrize("label", [True, False])
def test_convert_does_not_say_that_they_are_the_originals(tmp_path: Path, label: bool) -> None:
    model = classifier(tmp_path, label=label)
    ended = ort_mobile("convert", model, "--output", tmp_path / "out", "--level", "all", "--check")
    assert "0 of 2 give the original model's outputs, 2 cannot be judged" in ended.out
    assert "only tensors are compared" in ended.err
    assert "zipmap" in ended.err


@pytest.mark.parametrize("label", [True, False])
def test_run_says_which_and_what_to_do(tmp_path: Path, label: bool) -> None:
    model, out = classifier(tmp_path, label=label), tmp_path / "out"
    ended = ort_mobile("run", "--model", model, "--convert-only", "--quick", "--output", out)
    words = " ".join(ended.out.split())
    assert "'zipmap': False" in words
    assert "outputs of 1 variant that ships cannot be judged here, whatever the data" in words
    first, *_ = json.loads((out / "results.json").read_text())["checks"]
    assert {row["output"]: (row["passed"], row["unknown"]) for row in first["checks"]} == {
        **({"label": (True, False)} if label else {}),
        "scores": (False, True),
    }
