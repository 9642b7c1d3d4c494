"""16-bit floats as 32-bit floats, with the model's own types at its border."""

import math
from typing import TYPE_CHECKING

from pipeline.passes.rewrites.facts import GraphFacts

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

FLOAT, FLOAT16 = 1, 10
"""TensorProto.DataType."""

MOST_WEIGHTS = 1 << 26
"""Entries of all f16 weights together that are taken into memory: 256 MiB as f32."""

TYPED_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type")


def compute_in_f32(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
    """The model with every f16 value as f32; inputs and outputs that were f16 stay so, with a Cast.

    None when nothing is f16, when its weights are too many to be held in memory, and for models with bodies or
    functions: their types are not all visible here.
    """
    import onnx

    half = [tensor for tensor in model.graph.initializer if tensor.data_type == FLOAT16]
    bodies = any(a.HasField("g") or a.graphs for node in model.graph.node for a in node.attribute)
    border = [v for v in (*model.graph.input, *model.graph.output) if v.type.tensor_type.elem_type == FLOAT16]
    if not (half or border) or bodies or model.functions or sum(map(_count, half)) > MOST_WEIGHTS:
        return None
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    for tensor in graph.initializer:
        if tensor.data_location == tensor.EXTERNAL and tensor.data_type == FLOAT16:
            tensor.CopyFrom(_read(tensor, known))
        _widen(tensor)
    for node in graph.node:
        _widen_attributes(node)
    del graph.value_info[:]
    _cast_border(graph)
    return changed


def _count(tensor: "TensorProto") -> int:
    return math.prod(tensor.dims)


def _read(tensor: "TensorProto", known: GraphFacts) -> "TensorProto":
    """The tensor with its numbers in the message."""
    from onnx import numpy_helper

    return numpy_helper.from_array(known.graph.initializers[tensor.name].read(), tensor.name)


def _widen(tensor: "TensorProto") -> None:
    from onnx import numpy_helper

    if tensor.data_type == FLOAT16:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))


def _widen_attributes(node: "NodeProto") -> None:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen(attribute.t)
        if attribute.name in TYPED_ATTRIBUTES and attribute.i == FLOAT16:
            attribute.i = FLOAT


def _cast_border(graph: "GraphProto") -> None:
    """Rename f16 inputs and outputs inside the graph, and put Casts between."""
    from onnx import helper

    constants = {tensor.name for tensor in graph.initializer}
    before, after = [], []
    renamed: dict[str, str] = {}
    for value in graph.input:
        if _is_half(value) and value.name in constants:
            value.type.tensor_type.elem_type = FLOAT
        elif _is_half(value):
            renamed[value.name] = f"{value.name}__f32"
            before.append(helper.make_node("Cast", [value.name], [renamed[value.name]], to=FLOAT))
    for value in graph.output:
        if _is_half(value):
            inner = renamed.setdefault(value.name, f"{value.name}__f32")
            after.append(helper.make_node("Cast", [inner], [value.name], to=FLOAT16))
    nodes = [*before, *(_renamed(node, renamed) for node in graph.node), *after]
    del graph.node[:]
    graph.node.extend(nodes)


def _is_half(value: "ValueInfoProto") -> bool:
    return bool(value.type.tensor_type.elem_type == FLOAT16)


def _renamed(node: "NodeProto", names: dict[str, str]) -> "NodeProto":
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for slots in (copy.input, copy.output):
        for slot, name in enumerate(slots):
            slots[slot] = names.get(name, name)
    return copy
