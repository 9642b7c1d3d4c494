"""A model written to a file, its large weights beside it where they must be."""

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runner.probe import elf as elf_file
from pipeline.core import files as storage
from pipeline.core.errors import ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import guards, onnx_model, wire
from pipeline.model.onnx_model import LeanModel

if TYPE_CHECKING:
    from onnx import TensorProto


COPY_BYTES = 1 << 20

MOST_BYTES = (2 << 30) - 1
"""A protobuf message ends at 2 GiB."""

ALIGNMENT = 4096
"""Where weights begin in a file of their own: page by page, so that each can be mapped (ONNX, ExternalData.md)."""

COMPARED = 64
"""Bytes at the beginning of a page by which a weight is looked for in a file."""

DATA_SUFFIX = ".data"
"""Behind the model's file name: the file of its weights."""


class SavedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: the names of the model's file and of that of its weights ("" for none), and their bytes."""

    file: str
    size_bytes: int
    data_file: str = ""
    data_bytes: int = 0


def save_model(model: LeanModel, destination: Path, shared: str = "") -> SavedModel:
    """Write the model: weights named in `outside`, and all large ones of a model over 2 GiB, into DESTINATION.data.

    `shared` names another file, which is continued where it is there. Each file is written whole or not at all, the
    data first. ModelError when the graph alone is over 2 GiB.
    """
    import onnx

    inside = sum(span.length for name, span in model.weights.items() if name not in model.outside)
    over = inside + model.proto.ByteSize() > MOST_BYTES
    outside = model.outside | model.weights.keys() if over else model.outside
    moved = [
        tensor
        for tensor in model.proto.graph.initializer
        if tensor.name in outside and (tensor.data_type != tensor.STRING and bool(guards.tensor_bytes(tensor)))
    ]
    if not moved:
        write_model(model, destination)
        return SavedModel(file=destination.name, size_bytes=destination.stat().st_size)
    data = destination.with_name(shared or destination.name + DATA_SUFFIX)
    places = _write_data(model, moved, data)
    # The moved weights are external data in the file; nothing of them is left in the message
    proto = onnx_edit.copied(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in places:
            offset, length = places[tensor.name]
            bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            bare.doc_string = tensor.doc_string
            bare.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", str(offset)), ("length", str(length))):
                bare.external_data.add(key=key, value=value)
            tensor.CopyFrom(bare)
    weights = {name: span for name, span in model.weights.items() if name not in places}
    pointing = LeanModel(proto=proto, folder=model.folder, weights=weights, outside=frozenset(places))
    write_model(pointing, destination)
    return SavedModel(
        file=destination.name,
        size_bytes=destination.stat().st_size,
        data_file=data.name,
        data_bytes=data.stat().st_size,
    )


def _write_data(model: LeanModel, tensors: "list[TensorProto]", path: Path) -> dict[str, tuple[int, int]]:
    """Offset and length of each weight in the file: where it has these bytes already, else behind all that it has."""
    places = {}
    before: elf_file.Buffer = b""
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            before = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages: dict[bytes, list[int]] = {}
    for start in range(0, len(before), ALIGNMENT):
        pages.setdefault(before[start : start + COMPARED].ljust(COMPARED, b"\0"), []).append(start)
    with storage.replacing(path) as temporary, temporary.open("wb") as out:
        out.write(before)
        for tensor in tensors:
            length = guards.tensor_bytes(tensor) or 0
            head = b"".join(_pieces(model, tensor, min(length, COMPARED)))
            starts = (start for start in pages.get(head.ljust(COMPARED, b"\0"), []) if start + length <= len(before))
            for start in starts:
                if _is_at(before, start, _pieces(model, tensor, length)):
                    break
            else:
                out.write(bytes(-out.tell() % ALIGNMENT))
                start = out.tell()
                out.writelines(_pieces(model, tensor, length))
            places[tensor.name] = (start, length)
    return places


def _pieces(model: LeanModel, tensor: "TensorProto", length: int) -> Iterator[bytes]:
    """The first bytes of a weight, piece by piece."""
    from onnx import numpy_helper

    span = model.weights.get(tensor.name)
    if span is not None:
        yield from _read(replace(span, length=length))
    elif tensor.HasField("raw_data"):
        yield bytes(tensor.raw_data)[:length]
    else:  # as ONNX stores numbers raw: little-endian, 4-bit types packed
        yield bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)[:length]


def _is_at(content: elf_file.Buffer, start: int, pieces: Iterable[bytes]) -> bool:
    for piece in pieces:
        if content[start : start + len(piece)] != piece:
            return False
        start += len(piece)
    return True


def write_model(model: LeanModel, destination: Path) -> None:
    """Write one file with the model's `weights` inside, whole or not at all; ModelError when it would pass 2 GiB.

    Constants come last in its message and keep their order, whether or not their bytes are in ours: what was read back
    is written as it was. Large ones are copied from where they lie.
    """
    import onnx

    constants: list[tuple[bytes, onnx_model.ByteRange | None]] = []  # each field up to its bytes, and where these lie
    for tensor in model.proto.graph.initializer:
        if span := model.weights.get(tensor.name):
            bare = onnx_edit.copied(tensor)
            del bare.external_data[:]
            bare.ClearField("data_location")
            inner = bytes(bare.SerializeToString()) + wire.encode_varint(onnx_model.TENSOR_RAW_DATA << 3 | wire.LENGTH)
            inner += wire.encode_varint(span.length)
        else:
            inner = bytes(tensor.SerializeToString())
        size = len(inner) + (span.length if span else 0)
        constants.append(
            (
                wire.encode_varint(onnx_model.GRAPH_INITIALIZER << 3 | wire.LENGTH) + wire.encode_varint(size) + inner,
                span,
            )
        )
    rest, graph = onnx.ModelProto(), onnx.GraphProto()
    graph.CopyFrom(model.proto.graph)
    del graph.initializer[:]
    rest.CopyFrom(model.proto)
    rest.ClearField("graph")
    bare_graph, front = graph.SerializeToString(), rest.SerializeToString()
    total = len(bare_graph) + sum(len(field) + (span.length if span else 0) for field, span in constants)
    if total + len(front) + 16 > MOST_BYTES:
        raise ModelError("the model is over 2 GiB", where=str(destination), remedy="quantize the model")
    with storage.replacing(destination) as temporary, temporary.open("wb") as out:
        out.write(
            front
            + wire.encode_varint(onnx_model.MODEL_GRAPH << 3 | wire.LENGTH)
            + wire.encode_varint(total)
            + bare_graph
        )
        for field, span in constants:
            out.write(field)
            out.writelines(_read(span) if span else ())


def _read(span: onnx_model.ByteRange) -> Iterator[bytes]:
    with span.file.open("rb") as source:
        source.seek(span.offset)
        left = span.length
        while left and (chunk := source.read(min(COPY_BYTES, left))):
            yield chunk
            left -= len(chunk)
    if left:
        raise ModelError("a weight's file became shorter while it was copied", where=str(span.file))
