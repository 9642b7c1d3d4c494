"""Models made fit for GPUs: quantized ones in float again, and listed inputs without a name dropped."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from pipeline.passes.base import NotApplicable
from tests.onnx_samples import parsed_nodes
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
    tensors = [
        helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 1, 1], [2.0]),
        helper.make_tensor("high", TensorProto.FLOAT, [], [1.0]),
    ]
    shown = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 2])
    given = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, 2])
    graph = helper.make_graph(nodes, "g", [shown], [given], tensors)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    result = run(path, tmp_path, "drop-empty-inputs")
    assert [list(node.input) for node in result.model.proto.graph.node] == [["x", "w"], ["c", "", "high"]]
    assert_same(path, result, tmp_path)
