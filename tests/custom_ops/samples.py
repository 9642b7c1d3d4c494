"""A library of custom operators, compiled here, and a model that needs it."""

from pathlib import Path

from onnx import TensorProto, helper, save

from device_runner.build import build_library

DOMAIN = "test.ops"


def library() -> Path:
    """The library with Twice, for this computer."""
    return build_library(Path(__file__).parent, "libtwice.so")


def model(path: Path) -> Path:
    """y = Relu(Twice(x)), of [2, 3] floats."""
    nodes = [helper.make_node("Twice", ["x"], ["d"], domain=DOMAIN), helper.make_node("Relu", ["d"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=8), path)
    return path
