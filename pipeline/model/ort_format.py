"""The ORT format, which ONNX Runtime's mobile builds load: a FlatBuffer with root table `InferenceSession`, read.

The tables are read by vtable slot straight from the mapped file with `struct`, not through generated classes: a slot
number is all that the format promises, weights are never touched, and one pass over a graph of 3,000 nodes takes a
tenth of a second. Every offset and length is checked, and the work is bounded by the size of the file, so a hostile
file costs an error and no more. Slot numbers: ONNX Runtime's schema `ort.fbs`, the same from format version 3 to 6.
"""

import math
import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeAlias

import msgspec

from device_runner import untrusted_files
from pipeline.core.errors import ModelError
from pipeline.model.flatbuffer import _SCALARS, BrokenError, Buffer, Reader, Slots, present
from pipeline.model.types import BY_CODE

DEFAULT_DOMAIN = "ai.onnx"

Dim: TypeAlias = int | str | None
"""A known size, a symbolic name, or None when nothing is known."""


class TensorType(msgspec.Struct, frozen=True, gc=False, tag="tensor"):
    """Element type (a TensorProto code, maybe newer than `model.types`) and shape; shape None: rank unknown."""

    elem_type: int
    shape: tuple[Dim, ...] | None = None


class SequenceType(msgspec.Struct, frozen=True, gc=False, tag="sequence"):
    """A sequence of values of one type."""

    element: "TypeInfo"


class MapType(msgspec.Struct, frozen=True, gc=False, tag="map"):
    """A map from a scalar (TensorProto code) to a type."""

    key_type: int
    value: "TypeInfo"


TypeInfo: TypeAlias = TensorType | SequenceType | MapType | None
"""None: the file names the value without saying its type."""

CONTENT_ELEMENTS = 8
"""Of constants with up to so many elements ONNX Runtime makes one where they are equal."""


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """A constant. Its bytes stay in the file: `length` bytes from `offset`, little endian, 4-bit types two a byte.

    String tensors have no raw bytes but `strings`. `external_offset` is -1 in every model that is whole in one file.
    `content` are the bytes of those of up to CONTENT_ELEMENTS in an ONNX file, b"" where nobody read them.
    """

    name: str
    dims: tuple[int, ...]
    data_type: int
    offset: int = 0
    length: int = 0
    strings: tuple[str, ...] = ()
    external_offset: int = -1
    content: bytes = b""


class SparseTensor(msgspec.Struct, frozen=True, gc=False):
    """A constant in coordinate form; its name is the name of its values tensor."""

    name: str
    dims: tuple[int, ...]
    values: Tensor
    indices: Tensor


class Attribute(msgspec.Struct, frozen=True, gc=False):
    """`type` is the AttributeProto code; the value fits it, and is None for codes that the format cannot hold."""

    type: int
    value: "AttributeValue"


class OrtNode(msgspec.Struct, frozen=True, gc=False):
    """One operator. `domain` is as written (empty for ai.onnx); `since_version` is the schema's, not the model's opset.

    `provider` is what the converting session assigned; loading assigns anew. Empty input names: optional, left out.
    """

    name: str
    op_type: str
    domain: str
    since_version: int
    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    implicit_inputs: tuple[str, ...]
    attributes: dict[str, Attribute]
    provider: str

    @property
    def operator(self) -> str:
        """`domain:op` with the default domain spelled out, as in every table and JSON of the project."""
        return f"{self.domain or DEFAULT_DOMAIN}:{self.op_type}"

    def subgraphs(self) -> Iterator["OrtGraph"]:
        """The bodies of If, Loop, Scan and whatever else carries graphs, in the order of the attributes."""
        for attribute in self.attributes.values():
            if isinstance(attribute.value, OrtGraph):
                yield attribute.value
            elif isinstance(attribute.value, tuple):
                yield from (part for part in attribute.value if isinstance(part, OrtGraph))


class RuntimeOptimization(msgspec.Struct, frozen=True, gc=False):
    """A fusion that the device may replay: `nodes` (None: an optional one, absent) become `produced_ops`.

    The latter are op ids `domain:op:since_version`, the default domain empty.
    """

    optimizer: str
    action: str
    nodes: tuple[int | None, ...]
    produced_ops: tuple[str, ...]


GRAPH, GRAPHS = 5, 10
"""Codes of AttributeProto for bodies."""


class OrtGraph(msgspec.Struct, frozen=True, dict=True):
    """A graph or a body. `node_args` has the types of its values, also of names that fusions left behind.

    Of a file that was read without inner types it has those of the inputs and outputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OrtNode, ...]
    node_args: dict[str, TypeInfo]
    initializers: dict[str, Tensor]
    sparse_initializers: dict[str, SparseTensor]
    runtime_optimizations: tuple[RuntimeOptimization, ...]

    @cached_property
    def bodies(self) -> tuple["OrtGraph", ...]:
        """Those of its nodes, in their order."""
        with_any = [n for n in self.nodes if any(a.type in (GRAPH, GRAPHS) for a in n.attributes.values())]
        return tuple(body for node in with_any for body in node.subgraphs())

    def walk(self) -> Iterator["OrtGraph"]:
        """Yield the graph itself and all that its nodes contain, outer before inner."""
        yield self
        for body in self.bodies:
            yield from body.walk()


AttributeValue: TypeAlias = """(
    float | int | str | Tensor | OrtGraph | tuple[float | int | str | Tensor | OrtGraph, ...] | None
)"""

Resolver: TypeAlias = dict[str, dict[str, tuple[tuple[bool, int], ...]]]
"""Op id `domain:op:since_version` -> type parameter -> where it is read from: whether of an output, and its index.

A superset of the graph's operators.
"""


class OrtModel(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file without its weights. `format_version` is the text of the file, "6" for release 1.16 and later.

    The rest is what the model says of itself; `model_version` is 2**63-1 when the ONNX model had none.
    `functions` are those of an ONNX file that are not in the place of their calls.
    """

    format_version: str
    ir_version: int
    opset_import: dict[str, int]
    graph: OrtGraph
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    doc_string: str = ""
    properties: dict[str, str] = {}
    functions: tuple[str, ...] = ()


IDENTIFIER = b"ORTM"
CHECKPOINT_IDENTIFIER = b"ODTC"
MAX_GRAPH_DEPTH = 64
MAX_TYPE_DEPTH = 32
ABSENT_NODE = 0xFFFFFFFF
"""Node index of an optional node that a runtime optimization did not find."""

_parsed: ContextVar[dict[tuple[int, ...], OrtModel] | None] = ContextVar("parsed", default=None)


@contextmanager
def parse_each_once() -> Iterator[None]:
    """Let `read_artifact` parse each file once inside: for work in which files get their names when they are whole."""
    token = _parsed.set({})
    try:
        yield
    finally:
        _parsed.reset(token)


def read_artifact(path: Path) -> OrtModel:
    """Read an artifact in either format, told by its suffix, as the same values; ModelError for what is none."""
    parsed = _parsed.get()
    if parsed is None:
        return _read(path)
    try:
        facts = path.stat()
    except OSError:
        return _read(path)
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if key not in parsed:
        parsed[key] = _read(path)
    return parsed[key]


def _read(path: Path) -> OrtModel:
    if path.suffix.lower() == ".onnx":
        from pipeline.model.onnx_view import read_onnx

        return read_onnx(path)
    return read_ort(path)


def read_ort(path: Path) -> OrtModel:
    """Read a file without touching its weights. Raises ModelError for what is no whole ORT format model."""
    with _mapped(path) as buffer:
        return parse_ort(buffer, str(path))


def parse_ort(data: Buffer, source: str, *, inner_types: bool = True) -> OrtModel:
    """Read a model from a buffer; `source` is for messages. Raises ModelError for what is no whole model.

    Types of inner values, which are a third of the work, may be left out.
    """
    with _judged(data, source):
        reader = Reader(data, inner_types=inner_types)
        root = reader.root()
        slots = reader.table(root)
        model, fields = reader.path((1, "model"))
        imports = {}
        for at in reader.tables(model, fields, 1):
            table = reader.table(at)
            imports[reader.text(at, table, 0)] = reader.scalar(at, table, 1, "q")
        properties = {}
        for at in reader.tables(model, fields, 9):
            table = reader.table(at)
            properties[reader.text(at, table, 0)] = reader.text(at, table, 1)
        version = reader.text(root, slots, 0)
        if not re.fullmatch(r"[0-6]", version):
            raise BrokenError(f"its format version is {version[:20]!r}; releases to 1.32 write 1 to 6")
        resolver_of(reader)  # for ONNX Runtime alone, which refuses a file where it is damaged
        return OrtModel(
            format_version=version,
            ir_version=reader.scalar(model, fields, 0, "q"),
            opset_import=imports,
            graph=_graph(reader, present(reader.child(model, fields, 7), "graph"), 1),
            producer_name=reader.text(model, fields, 2),
            producer_version=reader.text(model, fields, 3),
            domain=reader.text(model, fields, 4),
            model_version=reader.scalar(model, fields, 5, "q"),
            doc_string=reader.text(model, fields, 6),
            properties=properties,
        )


@contextmanager
def _mapped(path: Path) -> Iterator[Buffer]:
    try:
        with untrusted_files.open_regular(path) as file:
            if file.seek(0, 2) == 0:
                _refuse(str(path), "the file is empty", _REMEDY_BROKEN)
            yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # closed with its last reader
    except OSError as error:
        _refuse(str(path), error.strerror or str(error), "name an ORT format file that can be read")


@contextmanager
def _judged(data: Buffer, source: str) -> Iterator[None]:
    """Check what the file is, and turn everything that can go wrong in reading it into one ModelError."""
    check_identifier(bytes(data[:64]), source)
    try:
        yield
    except (BrokenError, struct.error, IndexError) as error:
        _refuse(source, f"the file is truncated or damaged: {error}", _REMEDY_BROKEN)


_REMEDY_BROKEN = "convert the model again with `ort-mobile convert`, and compare sizes and digests if it was copied"

_FOREIGN = (
    (b"version https://git-lfs", "it is a Git LFS pointer, not the file itself", "run `git lfs pull`"),
    (b"PK\x03\x04", "it is a zip archive", "give the archive with the suffix .zip, or unpack it"),
    (b"\x1f\x8b", "it is compressed with gzip", "decompress it first"),
    (
        b"\x08",
        "it looks like an ONNX model",
        "run `ort-mobile convert MODEL --output FOLDER`, and name FOLDER",
    ),
)


def check_identifier(head: bytes, source: str) -> None:
    """ModelError where the first bytes of a file are not those of an ORT format model."""
    if not head:
        _refuse(source, "the file is empty", _REMEDY_BROKEN)
    if head[4:8] == IDENTIFIER:
        return
    if head[4:8] == CHECKPOINT_IDENTIFIER:
        _refuse(
            source,
            "it is a checkpoint of on-device training, which holds no graph",
            "export the trained model for inference and convert that",
        )
    for prefix, why, remedy in _FOREIGN:
        if head.startswith(prefix):
            _refuse(source, why, remedy)
    _refuse(source, f"its identifier is {head[4:8]!r} instead of {IDENTIFIER!r}", _REMEDY_BROKEN)


def _refuse(source: str, why: str, remedy: str) -> NoReturn:
    raise ModelError("not a readable ORT format model", where=source, why=why, remedy=remedy)


def resolver_of(reader: Reader) -> Resolver:
    """The kernel type resolver of a file; absent is empty. Raises BrokenError."""
    resolver: Resolver = {}
    root = reader.root()
    at = reader.child(root, reader.table(root), 3)
    for table in reader.tables(at, reader.table(at), 0) if at is not None else []:
        slots = reader.table(table)
        parameters = {}
        for parameter in reader.tables(table, slots, 1):
            fields = reader.table(parameter)
            args = [(arg, reader.table(arg)) for arg in reader.tables(parameter, fields, 1)]
            parameters[reader.text(parameter, fields, 0)] = tuple(
                (reader.scalar(arg, given, 0, "b") == 1, reader.scalar(arg, given, 1, "I")) for arg, given in args
            )
        resolver[reader.text(table, slots, 0)] = parameters
    return resolver


def _graph(reader: Reader, at: int, depth: int) -> OrtGraph:
    if depth > MAX_GRAPH_DEPTH:
        raise BrokenError(f"graphs lie in graphs more than {MAX_GRAPH_DEPTH} deep")
    slots = reader.table(at)
    tensors = [_tensor(reader, tensor) for tensor in reader.tables(at, slots, 0)]
    sparse = [_sparse(reader, tensor) for tensor in reader.tables(at, slots, 7)]
    inputs, outputs = reader.texts(at, slots, 5), reader.texts(at, slots, 6)
    initializers = {tensor.name: tensor for tensor in tensors}
    borders, types = {*inputs, *outputs}, dict[str, TypeInfo]()
    for value in reader.tables(at, slots, 1):
        fields = reader.table(value)
        name = reader.text(value, fields, 0)
        if name in borders or (reader.inner_types and name not in initializers):
            types[name] = _type_info(reader, reader.child(value, fields, 2), 1)
        elif reader.inner_types:  # a constant's type is the same again
            types[name] = TensorType(initializers[name].data_type, initializers[name].dims)
    return OrtGraph(
        inputs=inputs,
        outputs=outputs,
        nodes=tuple([_node(reader, node, depth) for node in reader.tables(at, slots, 2)]),
        node_args=types,
        initializers=initializers,
        sparse_initializers={tensor.name: tensor for tensor in sparse},
        runtime_optimizations=_runtime_optimizations(reader, reader.child(at, slots, 8)),
    )


def _node(reader: Reader, at: int, depth: int) -> OrtNode:
    slots = reader.table(at)
    attributes = {}
    for attribute in reader.tables(at, slots, 10):
        fields = reader.table(attribute)
        code = reader.scalar(attribute, fields, 2, "i")
        value = _attribute_value(reader, attribute, fields, code, depth)
        attributes[reader.text(attribute, fields, 0)] = Attribute(code, value)
    return OrtNode(
        reader.text(at, slots, 0),
        reader.text(at, slots, 5),
        reader.text(at, slots, 2),
        reader.scalar(at, slots, 3, "i"),
        reader.scalar(at, slots, 4, "I"),
        reader.texts(at, slots, 8),
        reader.texts(at, slots, 9),
        reader.texts(at, slots, 12) if slots[12] else (),
        attributes,
        reader.text(at, slots, 7),
    )


def _attribute_value(reader: Reader, at: int, slots: Slots, code: int, depth: int) -> AttributeValue:
    """The slot of each AttributeProto code is the code + 2."""
    match code:
        case 1:
            return reader.real(at, slots, 3)
        case 2:
            return reader.scalar(at, slots, 4, "q")
        case 3:
            return reader.text(at, slots, 5)
        case 4:
            return _tensor(reader, present(reader.child(at, slots, 6), "tensor in an attribute"))
        case 5:
            return _graph(reader, present(reader.child(at, slots, 7), "graph in an attribute"), depth + 1)
        case 6 | 7:
            return reader.numbers(at, slots, code + 2, "f" if code == 6 else "q")
        case 8:
            return reader.texts(at, slots, 10)
        case 9:
            return tuple([_tensor(reader, tensor) for tensor in reader.tables(at, slots, 11)])
        case 10:
            return tuple([_graph(reader, graph, depth + 1) for graph in reader.tables(at, slots, 12)])
    return None


def _tensor(reader: Reader, at: int) -> Tensor:
    slots = reader.table(at)
    offset, length = reader.span(at, slots, 4, 1)
    dims, data_type = reader.numbers(at, slots, 2, "q"), reader.scalar(at, slots, 3, "i")
    external_offset = reader.scalar(at, slots, 6, "q", -1)
    bits = BY_CODE[data_type].bits if data_type in BY_CODE else 0
    if bits and external_offset < 0 and (min(dims, default=0) < 0 or -(-math.prod(dims) * bits // 8) != length):
        raise BrokenError(f"a constant of shape {list(dims[:6])} cannot have {length} bytes")
    return Tensor(
        reader.text(at, slots, 0), dims, data_type, offset, length, reader.texts(at, slots, 5), external_offset
    )


def _sparse(reader: Reader, at: int) -> SparseTensor:
    slots = reader.table(at)
    values = _tensor(reader, present(reader.child(at, slots, 0), "values of a sparse tensor"))
    indices = _tensor(reader, present(reader.child(at, slots, 1), "indices of a sparse tensor"))
    return SparseTensor(values.name, reader.numbers(at, slots, 2, "q"), values, indices)


def _type_info(reader: Reader, at: int | None, depth: int) -> TypeInfo:
    if at is None:
        return None
    if depth > MAX_TYPE_DEPTH:
        raise BrokenError(f"types lie in types more than {MAX_TYPE_DEPTH} deep")
    slots = reader.table(at)
    value = reader.child(at, slots, 2)
    if value is None or not slots[1]:
        return None
    fields = reader.table(value)
    match reader.data[at + slots[1]]:
        case 1:
            shape = reader.child(value, fields, 1)
            return TensorType(reader.scalar(value, fields, 0, "i"), None if shape is None else _shape(reader, shape))
        case 2:
            return SequenceType(_type_info(reader, reader.child(value, fields, 0), depth + 1))
        case 3:
            key = reader.scalar(value, fields, 0, "i")
            return MapType(key, _type_info(reader, reader.child(value, fields, 1), depth + 1))
    return None


def _shape(reader: Reader, at: int) -> tuple[Dim, ...]:
    """Without the reader's methods for what is there: a third of reading a file would be their calls."""
    data, seen, i32, u32 = reader.data, reader.vtables.get, reader.i32, reader.u32
    dims: list[Dim] = []
    places = reader.tables(at, reader.table(at), 0)
    reader.spend(2 * len(places))
    for place in places:
        offset = (seen(place - i32[place >> 2]) or reader.table(place))[0]
        if not offset:
            dims.append(None)
            continue
        value = place + offset + u32[place + offset >> 2]
        slots = seen(value - i32[value >> 2]) or reader.table(value)
        kind = data[value + slots[0]] if slots[0] else 0
        if kind == 1:
            dims.append(_SCALARS["q"].unpack_from(data, value + slots[1])[0] if slots[1] else 0)
        else:
            dims.append((reader.text(value, slots, 2) or None) if kind == 2 else None)
    return tuple(dims)


class AttributeList(NamedTuple):
    """Where a node's list of attributes lies, and of each attribute its place and name."""

    at: int
    entries: tuple[tuple[int, str], ...]


def attribute_lists(data: Buffer) -> Iterator[tuple[AttributeList, OrtNode]]:
    """The nodes of a file with attributes, in bodies too. Raises ModelError for what is no whole model."""
    with _judged(data, "the file that onnxruntime wrote"):
        reader = Reader(data, inner_types=False)
        reader.budget *= 1 + MAX_GRAPH_DEPTH  # a body is read with each node around it
        graphs = [reader.path((1, "model"), (7, "graph"))[0]]
        while graphs:
            at = graphs.pop()
            for table in reader.tables(at, reader.table(at), 2):
                slots = reader.table(table)
                if not (attributes := reader.tables(table, slots, 10)):
                    continue
                names = []
                for attribute in attributes:
                    fields = reader.table(attribute)
                    names.append((attribute, reader.text(attribute, fields, 0)))
                    graphs += [body] if (body := reader.child(attribute, fields, 7)) is not None else []
                    graphs += reader.tables(attribute, fields, 12)
                where = present(reader.child(table, slots, 10), "list of attributes")
                yield AttributeList(where, tuple(names)), _node(reader, table, 1)


def _runtime_optimizations(reader: Reader, at: int | None) -> tuple[RuntimeOptimization, ...]:
    records = []
    for container in reader.tables(at, reader.table(at), 0) if at is not None else []:
        slots = reader.table(container)
        optimizer = reader.text(container, slots, 0)
        for record in reader.tables(container, slots, 1):
            fields = reader.table(record)
            indices = reader.child(record, fields, 1)
            nodes = reader.numbers(indices, reader.table(indices), 0, "I") if indices is not None else ()
            records.append(
                RuntimeOptimization(
                    optimizer,
                    reader.text(record, fields, 0),
                    tuple([None if node == ABSENT_NODE else node for node in nodes]),
                    reader.texts(record, fields, 3),
                )
            )
    return tuple(records)
