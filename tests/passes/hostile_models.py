"""Small models that ask for any amount of time or memory, each behind a matrix product that can be quantized."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx_samples import parsed_nodes

FLOAT, WIDTH = TensorProto.FLOAT, 8


def _model(
    nodes: list[onnx.NodeProto],
    weights: Mapping[str, Any] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
    output: str = "y",
) -> onnx.ModelProto:
    """x [1, 8] times w is m; the nodes make the output of it."""
    tensors = {"w": np.eye(WIDTH, dtype=np.float32), **(weights or {})}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["m"], name="product"), *nodes], "hostile",
        [helper.make_tensor_value_info("x", FLOAT, [1, WIDTH])], [helper.make_tensor_value_info(output, FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("own", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions or [])


def random_values() -> onnx.ModelProto:
    """16 GiB of random numbers."""
    return _model(parsed_nodes("""
        r = RandomNormal <shape = [65536, 65536]> ()  most = ReduceMax (r)  y = Add (m, most)"""))  # fmt: skip


def doubling(times: int = 26) -> onnx.ModelProto:
    """Functions that call one another twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own", f"f{n}", ["a"], ["c"],
            [helper.make_node(f"f{n - 1}", ["a"], ["b"], domain="own"),
             helper.make_node(f"f{n - 1}", ["b"], ["c"], domain="own")]
            if n else parsed_nodes("c = Relu (a)"),
            opsets,
        )
        for n in range(times)
    ]  # fmt: skip
    return _model([helper.make_node(f"f{times - 1}", ["m"], ["y"], domain="own")], functions=functions)


def endless() -> onnx.ModelProto:
    """A Loop of 2^62 rounds."""
    body = helper.make_graph(
        parsed_nodes("on = Identity (go)  b = Relu (a)"), "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []),
         helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("a", FLOAT, None)],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("b", FLOAT, None)],
    )  # fmt: skip
    weights = {"count": np.array(1 << 62, np.int64), "true": np.array(True)}
    return _model([helper.make_node("Loop", ["count", "true", "m"], ["y"], body=body)], weights)


def many_nodes(count: int = 100_000) -> onnx.ModelProto:
    """One Relu after the other."""
    names = ["m", *(f"r{n}" for n in range(count - 1)), "y"]
    return _model([helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)])


def many_inputs(count: int = 50_000) -> onnx.ModelProto:
    """A Concat of one value, many times."""
    return _model([helper.make_node("Concat", ["m"] * count, ["y"], axis=0)])


def many_weights(count: int = 50_000) -> onnx.ModelProto:
    """As many initializers, all read by one Sum of products."""
    weights = {f"w{n}": np.full((1, WIDTH), n, np.float32) for n in range(count)}
    return _model([helper.make_node("Sum", ["m", *weights], ["y"])], weights)


def large_constant() -> onnx.ModelProto:
    """1.9 GB of zeros, computed from their size."""
    return _model(
        parsed_nodes("zeros = ConstantOfShape (size)  most = ReduceMax (zeros)  y = Add (m, most)"),
        {"size": np.array([475_000_000], np.int64)},
    )  # fmt: skip


def large_value() -> onnx.ModelProto:
    """32 GiB made of the input."""
    nodes = parsed_nodes("t = Tile (m, times)  y = ReduceMax (t)")
    return _model(nodes, {"times": np.array([1 << 15, 1 << 15], np.int64)})


def growing() -> onnx.ModelProto:
    """Each Concat doubles the one before: 2^30 rows."""
    names = ["m", *(f"c{n}" for n in range(29)), "long"]
    nodes = [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]
    return _model([*nodes, helper.make_node("ReduceMax", ["long"], ["y"])])


HOSTILE: dict[str, Callable[..., onnx.ModelProto]] = {
    one.__name__: one
    for one in (
        random_values, doubling, endless, many_nodes, many_inputs, many_weights, large_constant, large_value, growing,
    )
}  # fmt: skip
