"""Writes a model as one .onnx, weights in a file beside it where asked, without taking them into memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from pipeline.core.errors import ModelError
from pipeline.core.files import replacing
from pipeline.model.edit import copied
from pipeline.model.guards import tensor_bytes
from pipeline.model.onnx_model import (
    GRAPH_INITIALIZER,
    LENGTH,
    MODEL_GRAPH,
    TENSOR_RAW_DATA,
    ByteRange,
    LeanModel,
    encode_varint,
)

if TYPE_CHECKING:
    from onnx import TensorProto

COPY_BYTES = 1 << 20
MOST_BYTES = (2 << 30) - 1
"""A protobuf message ends at 2 GiB."""

ALIGNMENT = 4096
"""Where weights begin in a file of their own: page by page, so that each can be mapped (ONNX, ExternalData.md)."""

DATA_SUFFIX = ".data"
"""Behind the model's file name: the file of its weights."""


class SavedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: the names of the model's file and of that of its weights ("" for none), and their bytes."""

    file: str
    size_bytes: int
    data_file: str = ""
    data_bytes: int = 0


def save_model(model: LeanModel, destination: Path) -> SavedModel:
    """Write the model: weights named in `outside`, and all large ones of a model over 2 GiB, into DESTINATION.data.

    Each file is written whole or not at all, the data first. ModelError when the graph alone is over 2 GiB.
    """
    inside = sum(place.length for name, place in model.weights.items() if name not in model.outside)
    over = inside + model.proto.ByteSize() > MOST_BYTES
    outside = model.outside | model.weights.keys() if over else model.outside
    moved = [
        tensor
        for tensor in model.proto.graph.initializer
        if tensor.name in outside and (tensor.data_type != tensor.STRING and bool(tensor_bytes(tensor)))
    ]
    if not moved:
        write_model(model, destination)
        return SavedModel(file=destination.name, size_bytes=destination.stat().st_size)
    data = destination.with_name(destination.name + DATA_SUFFIX)
    places = _write_data(model, moved, data)
    write_model(_pointing(model, places, data.name), destination)
    return SavedModel(
        file=destination.name, size_bytes=destination.stat().st_size,
        data_file=data.name, data_bytes=data.stat().st_size,
    )  # fmt: skip


def _write_data(model: LeanModel, tensors: "list[TensorProto]", path: Path) -> dict[str, tuple[int, int]]:
    """Offset and length of each weight in the file that was written."""
    places = {}
    with replacing(path) as temporary, temporary.open("wb") as out:
        for tensor in tensors:
            out.write(bytes(-out.tell() % ALIGNMENT))
            start = out.tell()
            if tensor.name in model.weights:
                _copy(model.weights[tensor.name], out)
            else:
                out.write(raw_bytes(tensor))
            places[tensor.name] = (start, out.tell() - start)
    return places


def raw_bytes(tensor: "TensorProto") -> bytes:
    """The numbers of a tensor in a message as ONNX stores them raw: little-endian, 4-bit types packed."""
    from onnx import numpy_helper

    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    return bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)


def _pointing(model: LeanModel, places: dict[str, tuple[int, int]], file: str) -> LeanModel:
    """The model whose moved weights are external data in the file; nothing of them is left in the message."""
    import onnx

    proto = copied(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in places:
            offset, length = places[tensor.name]
            bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            bare.doc_string = tensor.doc_string
            bare.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
                bare.external_data.add(key=key, value=value)
            tensor.CopyFrom(bare)
    weights = {name: place for name, place in model.weights.items() if name not in places}
    return LeanModel(proto=proto, folder=model.folder, weights=weights, outside=frozenset(places))


def write_model(model: LeanModel, destination: Path) -> None:
    """Write one file with the model's `weights` inside, whole or not at all; ModelError when it would pass 2 GiB.

    The graph's large weights come last in its message, each copied from where it lies.
    """
    large = list(_large(model))
    import onnx

    rest, graph = onnx.ModelProto(), onnx.GraphProto()
    graph.CopyFrom(model.proto.graph)
    del graph.initializer[:]
    graph.initializer.extend(t for t in model.proto.graph.initializer if t.name not in model.weights)
    rest.CopyFrom(model.proto)
    rest.ClearField("graph")
    small, front = graph.SerializeToString(), rest.SerializeToString()
    total = len(small) + sum(len(head) + place.length for head, place in large)
    if total + len(front) + 16 > MOST_BYTES:
        raise ModelError("the model is over 2 GiB", where=str(destination), remedy="quantize the model")
    with replacing(destination) as temporary, temporary.open("wb") as out:
        out.write(front + encode_varint(MODEL_GRAPH << 3 | LENGTH) + encode_varint(total) + small)
        for head, place in large:
            out.write(head)
            _copy(place, out)


def _large(model: LeanModel) -> Iterator[tuple[bytes, ByteRange]]:
    """Everything of each large initializer's field up to its bytes, and where these lie."""
    for tensor in model.proto.graph.initializer:
        if place := model.weights.get(tensor.name):
            bare = copied(tensor)
            del bare.external_data[:]
            bare.ClearField("data_location")
            inner = (
                bare.SerializeToString() + encode_varint(TENSOR_RAW_DATA << 3 | LENGTH) + encode_varint(place.length)
            )
            front = encode_varint(GRAPH_INITIALIZER << 3 | LENGTH) + encode_varint(len(inner) + place.length)
            yield front + bytes(inner), place


def _copy(place: ByteRange, out: BinaryIO) -> None:
    with place.file.open("rb") as source:
        source.seek(place.offset)
        left = place.length
        while left and (chunk := source.read(min(COPY_BYTES, left))):
            out.write(chunk)
            left -= len(chunk)
    if left:
        raise ModelError("a weight's file became shorter while it was copied", where=str(place.file))
