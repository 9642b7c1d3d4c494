"""Types and shapes of a message's values, asked and declared."""

from typing import TYPE_CHECKING

from pipeline.model import types as onnx_types
from pipeline.partition import graph as partition_graph
from pipeline.partition import types as partition_types

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto


def value_types(proto: "ModelProto") -> dict[str, partition_types.Value]:
    """Types and shapes of every value of the main graph, as ONNX Runtime infers them; ModelError when it refuses."""
    graph = proto.graph
    types = {
        tensor.name: partition_types.Value(onnx_types.SHORT_NAMES.get(tensor.data_type), tuple(tensor.dims))
        for tensor in graph.initializer
    }
    for value in graph.input:
        types.setdefault(value.name, partition_graph.declared_value(value))
    return types | partition_types.infer(proto)


def declare(value: "ValueInfoProto", value_type: partition_types.Value) -> None:
    """Write a tensor's type, and its shape where the rank is known, into the declaration of a value."""
    value.type.Clear()
    kind = value.type.tensor_type
    kind.elem_type = onnx_types.CODES.get(value_type.dtype or "", 0)
    if value_type.shape is not None:
        kind.shape.SetInParent()
        for size in value_type.shape:
            dim = kind.shape.dim.add()
            if size is not None:
                dim.dim_value = size


def fill_output_shapes(proto: "ModelProto") -> None:
    """Give outputs that have no shape what ONNX Runtime infers: tools of other people refuse models without."""
    lacking = [v for v in proto.graph.output if v.type.HasField("tensor_type") or not v.type.WhichOneof("value")]
    lacking = [value for value in lacking if not value.type.tensor_type.HasField("shape")]
    types = value_types(proto) if lacking else {}
    for value in lacking:
        value_type = types.get(value.name)
        if value_type and value_type.dtype and value_type.shape is not None:
            declare(value, value_type)
