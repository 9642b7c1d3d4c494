"""An ONNX file that ships, read as the same values as an ORT format file: what reads artifacts needs to know one form.

Only files of ours are whole here: a session saved them, so that every value has its type in the file.
"""

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_runner.reading import open_regular
from pipeline.core.errors import ModelError
from pipeline.model.onnx_model import external_entries, lean_model
from pipeline.model.ort_format import (
    GRAPH,
    GRAPHS,
    Attribute,
    AttributeValue,
    Metadata,
    OrtGraph,
    OrtModel,
    OrtNode,
    SequenceType,
    Tensor,
    TensorType,
    TypeInfo,
)

if TYPE_CHECKING:
    import onnx

ONNX_FORMAT = "onnx"
"""What stands for the ORT format version of a file that is none."""
TENSOR = 4


def read_onnx(path: Path) -> OrtModel:
    """Read an ONNX file without its weights, which stay where they lie. ModelError for what is no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    remedy = "convert the model again, or export it again"
    try:
        with open_regular(path) as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            proto = onnx.ModelProto()
            with memoryview(data) as view:
                proto.ParseFromString(lean_model(view, path.name, 1))
    except (OSError, ValueError, DecodeError) as error:
        raise ModelError("this is no ONNX model", where=str(path), why=str(error), remedy=remedy) from error
    if not proto.HasField("graph"):
        raise ModelError("this is no ONNX model", where=str(path), why="it has no graph", remedy=remedy)
    imports = {_domain(entry.domain): entry.version for entry in proto.opset_import}
    return OrtModel(
        format_version=ONNX_FORMAT,
        ir_version=proto.ir_version,
        opset_import=imports,
        graph=_graph(proto.graph, imports, path.name),
        metadata=Metadata(producer_name=proto.producer_name, producer_version=proto.producer_version),
        resolver={},
    )


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _graph(proto: "onnx.GraphProto", imports: dict[str, int], file: str) -> OrtGraph:
    infos = (*proto.value_info, *proto.input, *proto.output)
    return OrtGraph(
        inputs=tuple(value.name for value in proto.input),
        outputs=tuple(value.name for value in proto.output),
        nodes=tuple(_node(index, node, imports, file) for index, node in enumerate(proto.node)),
        node_args={value.name: _type(value.type) for value in infos},
        initializers={tensor.name: _tensor(tensor, file) for tensor in proto.initializer},
        sparse_initializers={},
        runtime_optimizations=(),
    )


def _node(index: int, proto: "onnx.NodeProto", imports: dict[str, int], file: str) -> OrtNode:
    domain = _domain(proto.domain)
    attributes = {each.name: Attribute(each.type, _value(each, imports, file)) for each in proto.attribute}
    inner = [value for row in attributes.values() if isinstance(value := row.value, OrtGraph)]
    return OrtNode(
        name=proto.name,
        op_type=proto.op_type,
        domain=domain,
        since_version=_since(proto.op_type, domain, imports.get(domain, 1)),
        index=index,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        implicit_inputs=tuple(dict.fromkeys(name for body in inner for name in _free(body))),
        attributes=attributes,
        provider="",
    )


def _since(op_type: str, domain: str, opset: int) -> int:
    """The version of the schema; 1 for operators that ONNX does not define, as all of ONNX Runtime's own have."""
    import onnx

    try:
        version: int = onnx.defs.get_schema(op_type, opset, domain).since_version
    except onnx.defs.SchemaError:
        return 1
    return version


def _free(body: OrtGraph) -> list[str]:
    """Names that a body reads from around it."""
    known = {*body.inputs, *body.initializers, *(name for node in body.nodes for name in node.outputs)}
    read = [name for node in body.nodes for name in (*node.inputs, *node.implicit_inputs)]
    return [name for name in (*read, *body.outputs) if name and name not in known]


def _value(proto: "onnx.AttributeProto", imports: dict[str, int], file: str) -> AttributeValue:
    import onnx

    if proto.type == GRAPH:
        return _graph(proto.g, imports, file)
    if proto.type == GRAPHS:
        return tuple(_graph(graph, imports, file) for graph in proto.graphs)
    if proto.type == TENSOR:
        return _tensor(proto.t, file)
    value: Any = onnx.helper.get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (int, float)):
        return value
    words = [each.decode("utf-8", "backslashreplace") if isinstance(each, bytes) else each for each in value]
    return tuple(each for each in words if isinstance(each, (int, float, str)))


def _tensor(proto: "onnx.TensorProto", file: str) -> Tensor:
    """A constant and its place in the file; one whose bytes lie elsewhere has none."""
    offset = length = 0
    if proto.data_location == proto.EXTERNAL:
        location, offset, length = external_entries(proto)
        if location != file:
            offset = length = 0
    return Tensor(proto.name, tuple(proto.dims), proto.data_type, offset, length)


def _type(proto: "onnx.TypeProto") -> TypeInfo:
    if proto.HasField("tensor_type"):
        tensor = proto.tensor_type
        if not tensor.HasField("shape"):
            return TensorType(tensor.elem_type)
        dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim)
        return TensorType(tensor.elem_type, dims)
    if proto.HasField("sequence_type"):
        return SequenceType(_type(proto.sequence_type.elem_type))
    return None
