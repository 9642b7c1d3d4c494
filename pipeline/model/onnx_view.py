"""An ONNX file as the graph that an ORT format file is read to, its weights left where they lie."""

import contextlib
import math
import mmap
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from device_runner import untrusted_files
from pipeline.core.errors import ModelError
from pipeline.model.edit import all_nodes, copied, plain_domain
from pipeline.model.ort_format import (
    CONTENT_ELEMENTS,
    GRAPH,
    GRAPHS,
    Attribute,
    AttributeValue,
    OrtGraph,
    OrtModel,
    OrtNode,
    SequenceType,
    Tensor,
    TensorType,
    TypeInfo,
)
from pipeline.model.signature import declared_axis
from pipeline.model.wire import Buffer

if TYPE_CHECKING:
    import onnx

from pipeline.model.onnx_model import external_entries, lean_model, parsed

ONNX_FORMAT = "onnx"
"""What stands for the ORT format version of a file that is none."""

TENSOR = 4


def read_onnx(path: Path, *, whole: bool = False) -> OrtModel:
    """Read an ONNX file without its weights, which stay where they lie. ModelError for what is no ONNX model.

    `whole`: with the bodies of its own functions in the place of their calls, and with types of inner values.
    """
    try:
        with (
            untrusted_files.open_regular(path) as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            return parse_onnx(view, str(path), whole=whole)
    except (OSError, ValueError) as error:
        raise _no_model(str(path), str(error)) from error


def _no_model(where: str, why: str) -> ModelError:
    return ModelError("this is no ONNX model", where=where, why=why, remedy="convert or export the model again")


INFERRED_BYTES = 1024
"""Constants from so many bytes on say nothing of shapes."""


def parse_onnx(data: Buffer, where: str, *, whole: bool = False) -> OrtModel:
    """The same from a buffer."""
    try:
        proto = parsed(lean_model(data, PurePosixPath(where).name, INFERRED_BYTES if whole else 1))
        return model_of(whole_of(proto) if whole else proto, where, data)
    except ValueError as error:
        raise _no_model(where, str(error)) from error


def whole_of(proto: "onnx.ModelProto") -> "onnx.ModelProto":
    """The same with functions inlined and types inferred, in bodies, too, as far as onnx can."""
    from onnx import helper, inliner, shape_inference

    with contextlib.suppress(RuntimeError, ValueError):
        proto = inliner.inline_local_functions(proto) if proto.functions else proto
    asked = copied(proto)
    imported = {plain_domain(opset.domain) for opset in proto.opset_import}
    missing = {plain_domain(node.domain) for node in all_nodes(proto.graph)} - imported
    asked.opset_import.extend(helper.make_opsetid(domain, 1) for domain in missing)  # inference stops without
    with contextlib.suppress(RuntimeError, ValueError, shape_inference.InferenceError):
        proto = shape_inference.infer_shapes(asked)
        del proto.opset_import[len(proto.opset_import) - len(missing) :]
    return proto


class _File(NamedTuple):
    """Where constants of a message lie that are not in it: `data` is the file's content, None where it is not read."""

    name: str
    data: Buffer | None


def model_of(proto: "onnx.ModelProto", where: str, data: Buffer | None = None) -> OrtModel:
    """The same from a message; ModelError for one without a graph. `data` is of a file that has its constants."""
    try:
        imports = {plain_domain(opset.domain): opset.version for opset in proto.opset_import}
        graph = _graph(proto.graph, imports, _File(PurePosixPath(where).name, data))
    except ValueError as error:
        raise _no_model(where, str(error)) from error
    if not proto.HasField("graph"):
        raise _no_model(where, "it has no graph")
    return OrtModel(
        format_version=ONNX_FORMAT,
        ir_version=proto.ir_version,
        opset_import=imports,
        graph=graph,
        producer_name=proto.producer_name,
        producer_version=proto.producer_version,
        functions=tuple(f"{function.domain}:{function.name}" for function in proto.functions),
    )


def _graph(proto: "onnx.GraphProto", imports: dict[str, int], file: _File) -> OrtGraph:
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


def _node(index: int, proto: "onnx.NodeProto", imports: dict[str, int], file: _File) -> OrtNode:
    domain = plain_domain(proto.domain)
    attributes = {
        attribute.name: Attribute(attribute.type, _value(attribute, imports, file)) for attribute in proto.attribute
    }
    outer: list[str] = []  # what bodies read from around them
    for body in (value for attribute in attributes.values() if isinstance(value := attribute.value, OrtGraph)):
        inside = {*body.inputs, *body.initializers, *(name for node in body.nodes for name in node.outputs)}
        read = [name for node in body.nodes for name in (*node.inputs, *node.implicit_inputs)]
        outer += [name for name in (*read, *body.outputs) if name and name not in inside]
    return OrtNode(
        name=proto.name,
        op_type=proto.op_type,
        domain=domain,
        since_version=_since(proto.op_type, domain, imports.get(domain, 1)),
        index=index,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        implicit_inputs=tuple(dict.fromkeys(outer)),
        attributes=attributes,
        provider="",
    )


@lru_cache(maxsize=4096)
def _since(op_type: str, domain: str, opset: int) -> int:
    """The version of the schema; 1 for operators that ONNX does not define, as all of ONNX Runtime's own have."""
    import onnx

    try:
        version: int = onnx.defs.get_schema(op_type, opset, domain).since_version
    except onnx.defs.SchemaError:
        return 1
    return version


def _value(proto: "onnx.AttributeProto", imports: dict[str, int], file: _File) -> AttributeValue:
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
    if not isinstance(value, Sequence):  # a type, a sparse tensor, or none
        return None
    words = [word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else word for word in value]
    return tuple(word for word in words if isinstance(word, (int, float, str)))


def _tensor(proto: "onnx.TensorProto", file: _File) -> Tensor:
    """A constant and its place in the file; one whose bytes lie elsewhere has none."""
    offset = length = 0
    if proto.data_location == proto.EXTERNAL:
        entries = external_entries(proto)
        if entries.location == file.name:
            offset, length = entries.offset, entries.length
    content = _content(proto, file.data, offset, length)
    return Tensor(proto.name, tuple(proto.dims), proto.data_type, offset, length, content=content)


def _content(proto: "onnx.TensorProto", data: Buffer | None, offset: int, length: int) -> bytes:
    """The bytes of a small constant of numbers; b"" for others, and for one that is no array or lies elsewhere."""
    from onnx import numpy_helper

    if not 0 < math.prod(proto.dims) <= CONTENT_ELEMENTS or proto.data_type in (proto.STRING, proto.UNDEFINED):
        return b""
    if proto.data_location == proto.EXTERNAL:
        return bytes(data[offset : offset + length]) if data is not None and length else b""
    try:
        return proto.raw_data or numpy_helper.to_array(proto).tobytes()
    except (ValueError, TypeError, KeyError):
        return b""


def _type(proto: "onnx.TypeProto") -> TypeInfo:
    if proto.HasField("tensor_type"):
        tensor = proto.tensor_type
        if not tensor.HasField("shape"):
            return TensorType(tensor.elem_type)
        return TensorType(tensor.elem_type, tuple(map(declared_axis, tensor.shape.dim)))
    if proto.HasField("sequence_type"):
        return SequenceType(_type(proto.sequence_type.elem_type))
    return None
