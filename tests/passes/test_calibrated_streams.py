"""Ranges of models with states: those of a stream, as apps run it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.command import ort_mobile

STEPS = 20


def accumulator() -> onnx.ModelProto:
    """A state that grows by the input in each step, and a product of it."""
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])
        for name in ("x", "state", "state_out", "y")
    }
    nodes = [
        helper.make_node("Add", ["x", "state"], ["state_out"]),
        helper.make_node("MatMul", ["state_out", "w"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.eye(4, dtype="f"), "w")]
    graph = helper.make_graph(nodes, "g", [values["x"], values["state"]], [values["y"], values["state_out"]], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("first", "largest"), [(0.0, STEPS), (100.0, 100.0 + STEPS)])
def test_ranges_are_those_of_states_that_the_model_gave(tmp_path: Path, first: float, largest: float) -> None:
    onnx.save(accumulator(), str(tmp_path / "sums.onnx"))
    name = f"steps_from_{first:.0f}"  # a process imports a module once
    (tmp_path / f"{name}.py").write_text(
        "import numpy\ndef inputs():\n"
        f"    for step in range({STEPS}):\n"
        f"        state = numpy.full((1, 4), 0.0 if step else {first}, 'f')\n"
        "        yield {'x': numpy.ones((1, 4), 'f'), 'state': state}\n"
    )
    ort_mobile(
        "transform", "sums.onnx", "int8.onnx", "--do", "static-qdq", "--test-data", f"{name}:inputs", "--no-check",
        cwd=tmp_path,
    )  # fmt: skip
    constants = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load(str(tmp_path / "int8.onnx")).graph.initializer
    }
    scales = [float(value) for name, value in constants.items() if name.startswith("state_out") and "scale" in name]
    assert max(scales) * 255 == pytest.approx(largest, rel=0.02)
