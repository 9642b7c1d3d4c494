"""Small models of one or a few operators, written for the tests of claims."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pipeline.model.sources import SourceModel
from pipeline.partition.answer import ModelAnswer, Optimize, Settings
from pipeline.partition.judge import PartitionRequest, judge

NNAPI = Settings(provider="nnapi", ort_release=(1, 23), api_level=30)
NNAPI_NCHW = Settings(provider="nnapi", ort_release=(1, 23), api_level=30, nnapi_flags=("USE_NCHW",))

Dims = Sequence[int | str | None]


def value(name: str, dims: Dims | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """A declared value; dims None: unknown rank."""
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model whose outputs need no declared type; numpy arrays become initializers."""
    outs = [onnx.ValueInfoProto(name=name) for name in outputs]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), outs, initializers)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))


def one(
    op: str, dims: Dims | None = (1, 4, 6, 6), *, kind: int = TensorProto.FLOAT, opset: int = 17,
    inputs: Sequence[str] = (), outputs: Sequence[str] = ("y",), constants: Mapping[str, Any] = {}, domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """One node that reads `x` and the constants, and makes `y`."""
    node = helper.make_node(op, inputs or ["x", *constants], outputs, domain=domain, **attributes)
    return model([node], [value("x", dims, kind)], outputs, constants, opset=opset, domains=[domain] if domain else [])


def ones(*dims: int) -> np.ndarray[Any, Any]:
    """An f32 array of ones."""
    return np.ones(dims, np.float32)


def answer(made: onnx.ModelProto, folder: Path, settings: Settings, optimize: Optimize = Optimize.NONE) -> ModelAnswer:
    """Save a model and judge it."""
    path = folder / "model.onnx"
    onnx.save(made, path)
    return judge(PartitionRequest(source=SourceModel(path=str(path)), settings=settings, optimize=optimize))


def claims(made: onnx.ModelProto, folder: Path, settings: Settings = NNAPI) -> list[set[str]]:
    """The partitions as sets of first outputs."""
    given = answer(made, folder, settings)
    assert given.error is None, given.error
    return [set(group) for group in given.partitions]


def chain(*ops: str, dims: Dims = (1, 4, 6, 6), opset: int = 17) -> onnx.ModelProto:
    """Operators of one input in a row: values y0, y1, …"""
    names = ["x", *(f"y{i}" for i in range(len(ops)))]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops)]
    return model(nodes, [value("x", dims)], [names[-1]], opset=opset)


def quantized(nodes: Sequence[onnx.NodeProto], dims: Dims = (1, 4, 6, 6), zero_point: int = 0) -> onnx.ModelProto:
    """u8 input `x` -> DequantizeLinear `d`, the nodes from `d` to `r`, QuantizeLinear `q` with the same parameters."""
    head = helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["d"])
    tail = helper.make_node("QuantizeLinear", ["r", "scale", "zero"], ["q"])
    constants = {"scale": np.float32(0.5), "zero": np.uint8(zero_point)}
    return model([head, *nodes, tail], [value("x", dims, TensorProto.UINT8)], ["q"], constants)
