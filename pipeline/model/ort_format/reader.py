"""Reads the ORT format: what ONNX Runtime's mobile builds load, a FlatBuffer with root table `InferenceSession`.

The tables are read by vtable slot straight from the mapped file with `struct`, not through generated classes: a slot
number is all that the format promises, weights are never touched, and one pass over a graph of 3,000 nodes takes a
tenth of a second. Every offset and length is checked, and the work is bounded by the size of the file, so a hostile
file costs an error and no more. Slot numbers: ONNX Runtime's schema `ort.fbs`, the same from format version 3 to 6.
"""

import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

from device_runner.reading import open_regular
from pipeline.core.errors import ModelError
from pipeline.model.ort_format.values import (
    DEFAULT_DOMAIN,
    Attribute,
    AttributeValue,
    BrokenError,
    Buffer,
    Dim,
    MapType,
    Metadata,
    OrtGraph,
    OrtModel,
    OrtNode,
    Reader,
    Resolver,
    ResolverArg,
    RuntimeOptimization,
    SequenceType,
    Slots,
    SparseTensor,
    Tensor,
    TensorType,
    TypeInfo,
    present,
)

IDENTIFIER = b"ORTM"
CHECKPOINT_IDENTIFIER = b"ODTC"
MAX_GRAPH_DEPTH = 64
MAX_TYPE_DEPTH = 32
ABSENT_NODE = 0xFFFFFFFF
"""Node index of an optional node that a runtime optimization did not find."""


_parsed: ContextVar[dict[tuple[int, ...], OrtModel] | None] = ContextVar("parsed", default=None)


@contextmanager
def parse_each_once() -> Iterator[None]:
    """Let `read_ort` parse each file once inside: for work in which files get their names when they are whole."""
    token = _parsed.set({})
    try:
        yield
    finally:
        _parsed.reset(token)


def read_ort(path: Path) -> OrtModel:
    """Read a file without touching its weights. Raises ModelError for what is no whole ORT format model."""
    known = _parsed.get()
    if known is None:
        return _read(path)
    try:
        facts = path.stat()
    except OSError:
        return _read(path)
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if key not in known:
        known[key] = _read(path)
    return known[key]


def _read(path: Path) -> OrtModel:
    with _mapped(path) as buffer:
        return parse_ort(buffer, str(path))


def parse_ort(data: Buffer, source: str, *, inner_types: bool = True) -> OrtModel:
    """Read a model from a buffer; `source` is for messages. Raises ModelError for what is no whole model.

    Types of inner values, which are a third of the work, may be left out.
    """
    with _judged(data, source):
        return _session(Reader(data, inner_types=inner_types))


def operator_histogram(path: Path) -> dict[str, int]:
    """Count `domain:op` in the main graph, sorted by name, reading nothing else. Raises ModelError."""
    with _mapped(path) as data, _judged(data, str(path)):
        reader = Reader(data)
        counts: dict[str, int] = {}
        for at in reader.tables(*reader.path((1, "model"), (7, "graph")), 2):
            slots = reader.table(at)
            name = f"{reader.text(at, slots, 2) or DEFAULT_DOMAIN}:{reader.text(at, slots, 5)}"
            counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items()))


@contextmanager
def _mapped(path: Path) -> Iterator[Buffer]:
    try:
        with open_regular(path) as file:
            if file.seek(0, 2) == 0:
                _refuse(str(path), "the file is empty", _REMEDY_BROKEN)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
                yield buffer
    except OSError as error:
        _refuse(str(path), error.strerror or str(error), "name an ORT format file that can be read")


@contextmanager
def _judged(data: Buffer, source: str) -> Iterator[None]:
    """Check what the file is, and turn everything that can go wrong in reading it into one ModelError."""
    _check_identifier(bytes(data[:64]), source)
    try:
        yield
    except (BrokenError, struct.error) as error:
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


def _check_identifier(head: bytes, source: str) -> None:
    if not head:
        _refuse(source, "the file is empty", _REMEDY_BROKEN)
    if head[4:8] == IDENTIFIER:
        return
    if head[4:8] == CHECKPOINT_IDENTIFIER:
        _refuse(source, "it is a checkpoint of on-device training, which holds no graph",
                "export the trained model for inference and convert that")  # fmt: skip
    for prefix, why, remedy in _FOREIGN:
        if head.startswith(prefix):
            _refuse(source, why, remedy)
    _refuse(source, f"its identifier is {head[4:8]!r} instead of {IDENTIFIER!r}", _REMEDY_BROKEN)


def _refuse(source: str, why: str, remedy: str) -> NoReturn:
    raise ModelError("not a readable ORT format model", where=source, why=why, remedy=remedy)


def _session(reader: Reader) -> OrtModel:
    root = reader.root()
    slots = reader.table(root)
    model, fields = reader.path((1, "model"))
    imports = {}
    for at in reader.tables(model, fields, 1):
        entry = reader.table(at)
        imports[reader.text(at, entry, 0)] = reader.scalar(at, entry, 1, "q")
    version = reader.text(root, slots, 0)
    if not re.fullmatch(r"[0-6]", version):
        raise BrokenError(f"its format version is {version[:20]!r}; releases to 1.32 write 1 to 6")
    return OrtModel(
        format_version=version,
        ir_version=reader.scalar(model, fields, 0, "q"),
        opset_import=imports,
        graph=_graph(reader, present(reader.child(model, fields, 7), "graph"), 1),
        metadata=_metadata(reader, model, fields),
        resolver=resolver_at(reader, reader.child(root, slots, 3)),
    )


def _metadata(reader: Reader, at: int, slots: Slots) -> Metadata:
    properties = {}
    for entry in reader.tables(at, slots, 9):
        fields = reader.table(entry)
        properties[reader.text(entry, fields, 0)] = reader.text(entry, fields, 1)
    return Metadata(
        producer_name=reader.text(at, slots, 2),
        producer_version=reader.text(at, slots, 3),
        domain=reader.text(at, slots, 4),
        model_version=reader.scalar(at, slots, 5, "q"),
        doc_string=reader.text(at, slots, 6),
        properties=properties,
    )


def resolver_at(reader: Reader, at: int | None) -> Resolver:
    """The kernel type resolver whose table is at `at`; absent is empty. Raises BrokenError."""
    resolver: Resolver = {}
    for entry in reader.tables(at, reader.table(at), 0) if at is not None else []:
        slots = reader.table(entry)
        parameters = {}
        for parameter in reader.tables(entry, slots, 1):
            fields = reader.table(parameter)
            parameters[reader.text(parameter, fields, 0)] = _resolver_args(reader, parameter, fields)
        resolver[reader.text(entry, slots, 0)] = parameters
    return resolver


def _resolver_args(reader: Reader, at: int, slots: Slots) -> tuple[ResolverArg, ...]:
    args = []
    for arg in reader.tables(at, slots, 1):
        fields = reader.table(arg)
        args.append(ResolverArg(reader.scalar(arg, fields, 0, "b") == 1, reader.scalar(arg, fields, 1, "I")))
    return tuple(args)


def _graph(reader: Reader, at: int, depth: int) -> OrtGraph:
    if depth > MAX_GRAPH_DEPTH:
        raise BrokenError(f"graphs lie in graphs more than {MAX_GRAPH_DEPTH} deep")
    slots = reader.table(at)
    tensors = [_tensor(reader, tensor) for tensor in reader.tables(at, slots, 0)]
    sparse = [_sparse(reader, tensor) for tensor in reader.tables(at, slots, 7)]
    inputs, outputs = reader.texts(at, slots, 5), reader.texts(at, slots, 6)
    typed = None if reader.inner_types else {*inputs, *outputs}
    return OrtGraph(
        inputs=inputs,
        outputs=outputs,
        nodes=tuple([_node(reader, node, depth) for node in reader.tables(at, slots, 2)]),
        node_args=_types(reader, reader.tables(at, slots, 1), typed),
        initializers={tensor.name: tensor for tensor in tensors},
        sparse_initializers={tensor.name: tensor for tensor in sparse},
        runtime_optimizations=_runtime_optimizations(reader, reader.child(at, slots, 8)),
    )


def _node(reader: Reader, at: int, depth: int) -> OrtNode:
    slots = reader.table(at)
    return OrtNode(
        reader.text(at, slots, 0),
        reader.text(at, slots, 5),
        reader.text(at, slots, 2),
        reader.scalar(at, slots, 3, "i"),
        reader.scalar(at, slots, 4, "I"),
        reader.texts(at, slots, 8),
        reader.texts(at, slots, 9),
        reader.texts(at, slots, 12),
        dict([_attribute(reader, attribute, depth) for attribute in reader.tables(at, slots, 10)]),
        reader.text(at, slots, 7),
    )


def _attribute(reader: Reader, at: int, depth: int) -> tuple[str, Attribute]:
    slots = reader.table(at)
    code = reader.scalar(at, slots, 2, "i")
    return reader.text(at, slots, 0), Attribute(code, _attribute_value(reader, at, slots, code, depth))


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
    return Tensor(
        reader.text(at, slots, 0),
        reader.numbers(at, slots, 2, "q"),
        reader.scalar(at, slots, 3, "i"),
        offset,
        length,
        reader.texts(at, slots, 5),
        reader.scalar(at, slots, 6, "q", -1),
    )


def _sparse(reader: Reader, at: int) -> SparseTensor:
    slots = reader.table(at)
    values = _tensor(reader, present(reader.child(at, slots, 0), "values of a sparse tensor"))
    indices = _tensor(reader, present(reader.child(at, slots, 1), "indices of a sparse tensor"))
    return SparseTensor(values.name, reader.numbers(at, slots, 2, "q"), values, indices)


def _types(reader: Reader, values: list[int], wanted: set[str] | None) -> dict[str, TypeInfo]:
    """The types of the wanted values, of all with None."""
    types = {}
    for at in values:
        slots = reader.table(at)
        name = reader.text(at, slots, 0)
        if wanted is None or name in wanted:
            types[name] = _type_info(reader, reader.child(at, slots, 2), 1)
    return types


def _type_info(reader: Reader, at: int | None, depth: int) -> TypeInfo:
    if at is None:
        return None
    if depth > MAX_TYPE_DEPTH:
        raise BrokenError(f"types lie in types more than {MAX_TYPE_DEPTH} deep")
    slots = reader.table(at)
    tag = reader.scalar(at, slots, 1, "B")
    value = reader.child(at, slots, 2)
    if value is None:
        return None
    fields = reader.table(value)
    match tag:
        case 1:
            return TensorType(reader.scalar(value, fields, 0, "i"), _shape(reader, reader.child(value, fields, 1)))
        case 2:
            return SequenceType(_type_info(reader, reader.child(value, fields, 0), depth + 1))
        case 3:
            key = reader.scalar(value, fields, 0, "i")
            return MapType(key, _type_info(reader, reader.child(value, fields, 1), depth + 1))
    return None


def _shape(reader: Reader, at: int | None) -> tuple[Dim, ...] | None:
    if at is None:
        return None
    return tuple([_dim(reader, dim) for dim in reader.tables(at, reader.table(at), 0)])


def _dim(reader: Reader, at: int) -> Dim:
    value = reader.child(at, reader.table(at), 0)
    if value is None:
        return None
    slots = reader.table(value)
    kind = reader.scalar(value, slots, 0, "b")
    if kind == 1:
        return reader.scalar(value, slots, 1, "q")
    return (reader.text(value, slots, 2) or None) if kind == 2 else None


def _runtime_optimizations(reader: Reader, at: int | None) -> tuple[RuntimeOptimization, ...]:
    if at is None:
        return ()
    records = []
    for container in reader.tables(at, reader.table(at), 0):
        slots = reader.table(container)
        optimizer = reader.text(container, slots, 0)
        records += [_record(reader, optimizer, record) for record in reader.tables(container, slots, 1)]
    return tuple(records)


def _record(reader: Reader, optimizer: str, at: int) -> RuntimeOptimization:
    slots = reader.table(at)
    indices = reader.child(at, slots, 1)
    nodes = reader.numbers(indices, reader.table(indices), 0, "I") if indices is not None else ()
    return RuntimeOptimization(
        optimizer,
        reader.text(at, slots, 0),
        tuple([None if node == ABSENT_NODE else node for node in nodes]),
        reader.texts(at, slots, 3),
    )
