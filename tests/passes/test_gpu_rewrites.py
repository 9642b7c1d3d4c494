"""Models made fit for GPUs: quantized ones in float again, and listed inputs without a name dropped."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from pipeline.passes.base import NotApplicable
from tests.onnx_samples import parsed_nodes
from tests.partition_samples import model, value
from tests.passes.real_models import assert_same, extract, run


@pytest.mark.parametrize("name", ["mnist.qdq_u8u8", "fsrcnn.qdq_s8s8"])
def test_a_quantized_model_computes_in_float_again(name: str, tmp_path: Path) -> None:
    path = extract(name, tmp_path)
    result = run(path, tmp_path, "in-float")
    operators = {node.op_type for node in result.model.proto.graph.node}
    assert not operators & {"QuantizeLinear", "DequantizeLinear"}
    assert_same(path, result, tmp_path)


def test_a_float_model_has_nothing_to_undo(tmp_path: Path) -> None:
    with pytest.raises(NotApplicable):
        run(extract("mnist.base", tmp_path), tmp_path, "in-float")


def test_empty_inputs_at_the_end_go_and_others_stay(tmp_path: Path) -> None:
    nodes = parsed_nodes("""c = ConvTranspose (x, w, "")  y = Clip (c, "", high)""")
    constants = {"w": np.full((1, 1, 1, 1), 2, np.float32), "high": np.float32(1)}
    path = tmp_path / "m.onnx"
    onnx.save(model(nodes, [value("x", (1, 1, 2, 2))], ["y"], constants), path)
    result = run(path, tmp_path, "drop-empty-inputs")
    assert [list(node.input) for node in result.model.proto.graph.node] == [["x", "w"], ["c", "", "high"]]
    assert_same(path, result, tmp_path)
