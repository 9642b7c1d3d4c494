"""Models that tests of the runner use, made on the spot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_samples import parsed_nodes

OPSET = 17
FLOAT = TensorProto.FLOAT

Sides = Mapping[str, tuple[int, Sequence[int | str]]]
"""Names of inputs or outputs to their types and shapes."""


def save_model(
    path: Path, nodes: list[onnx.NodeProto], inputs: Sides, outputs: Sides, weights: dict[str, Any] | None = None
) -> Path:
    """A model of these nodes; inputs and outputs are name: (type, shape)."""
    ins, outs = ([helper.make_tensor_value_info(n, t, s) for n, (t, s) in side.items()] for side in (inputs, outputs))
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", ins, outs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.save(model, path)
    return path


def save_models(folder: Path) -> Path:
    """Fill a folder with the models that tests use."""
    save_model(
        folder / "null.onnx",
        parsed_nodes("y = Identity (x)"),
        {"x": (FLOAT, [1, 4])},
        {"y": (FLOAT, [1, 4])},
    )
    # How many sizes Compress leaves is known when it runs: shape inference cannot see that the declared shape is wrong.
    shapes: dict[str, list[int | str]] = {"rank": [1, "N"], "size": [1, 1, 5]}
    for name, declared in shapes.items():
        save_model(
            folder / f"wrong_{name}.onnx",
            parsed_nodes("""
                all = GreaterOrEqual (x, least)  shape = Compress (sizes, all)  y = Reshape (x, shape)
                z = Identity (x)"""),
            {"x": (FLOAT, [3])},
            {"y": (FLOAT, declared), "z": (FLOAT, [3])},
            {"least": np.array(-1, np.float32), "sizes": np.array([1, 1, 3], np.int64)},
        )
    save_model(
        folder / "sum.onnx",
        parsed_nodes("s = Add (a, b)  y = MatMul (s, w)"),
        {"a": (FLOAT, ["N", 3]), "b": (FLOAT, ["N", 3])},
        {"y": (FLOAT, ["N", 2]), "s": (FLOAT, ["N", 3])},
        {"w": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )
    save_model(
        folder / "gather.onnx",
        parsed_nodes("y = Gather (w, i)"),
        {"i": (TensorProto.INT64, [2])},
        {"y": (FLOAT, [2, 2])},
        {"w": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )
    save_model(
        folder / "texts.onnx",
        parsed_nodes("y = Identity (x)"),
        {"x": (TensorProto.STRING, [1])},
        {"y": (TensorProto.STRING, [1])},
    )
    _endless(folder / "endless.onnx")
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "noise.ort").write_bytes(b"\x08\x00\x00\x00ORTM" + bytes(range(200)))
    return folder


def _endless(path: Path) -> None:
    """A loop of 2**62 turns: a model that hangs."""
    body = helper.make_graph(
        parsed_nodes("d = Identity (c)  u = Add (v, v)"),
        "body",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in [("i", 7, []), ("c", 9, []), ("v", 1, [1])]],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in [("d", 9, []), ("u", 1, [1])]],
    )
    loop = helper.make_node("Loop", ["turns", "go", "x"], ["y"], body=body)
    weights = {"turns": np.array(2**62, np.int64), "go": np.array(True)}
    save_model(path, [loop], {"x": (TensorProto.FLOAT, [1])}, {"y": (TensorProto.FLOAT, [1])}, weights)
