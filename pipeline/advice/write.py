"""Writes a model with its weights inside, as one file, without taking the weights into memory."""

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pipeline.core.errors import ModelError
from pipeline.core.files import replacing
from pipeline.model.onnx_model import ByteRange, LeanModel
from pipeline.model.onnx_wire import GRAPH_INITIALIZER, LENGTH, MODEL_GRAPH, TENSOR_RAW_DATA, encode_varint

if TYPE_CHECKING:
    from onnx import TensorProto

COPY_BYTES = 1 << 20
MOST_BYTES = (2 << 30) - 1
"""A protobuf message ends at 2 GiB."""


def write_model(model: LeanModel, destination: Path) -> None:
    """Write the file whole or not at all; ModelError when it would pass 2 GiB.

    The graph's large weights come last in its message, each copied from where it lies.
    """
    import onnx

    rest, graph = onnx.ModelProto(), onnx.GraphProto()
    graph.CopyFrom(model.proto.graph)
    del graph.initializer[:]
    graph.initializer.extend(t for t in model.proto.graph.initializer if t.name not in model.weights)
    rest.CopyFrom(model.proto)
    rest.ClearField("graph")
    large = [
        (_head(t, model.weights[t.name]), model.weights[t.name])
        for t in model.proto.graph.initializer
        if t.name in model.weights
    ]
    small = graph.SerializeToString()
    total = len(small) + sum(len(head) + place.length for head, place in large)
    front = rest.SerializeToString()
    if total + len(front) + 16 > MOST_BYTES:
        raise ModelError("the fixed model is over 2 GiB", where=str(destination), remedy="quantize the model")
    with replacing(destination) as temporary, temporary.open("wb") as out:
        out.write(front + encode_varint(MODEL_GRAPH << 3 | LENGTH) + encode_varint(total) + small)
        for head, place in large:
            out.write(head)
            _copy(place, out)


def _head(tensor: "TensorProto", place: ByteRange) -> bytes:
    """Everything of an initializer's field up to the bytes of its weights."""
    import onnx

    bare = onnx.TensorProto()
    bare.CopyFrom(tensor)
    del bare.external_data[:]
    bare.ClearField("data_location")
    inner = bare.SerializeToString() + encode_varint(TENSOR_RAW_DATA << 3 | LENGTH) + encode_varint(place.length)
    front = encode_varint(GRAPH_INITIALIZER << 3 | LENGTH) + encode_varint(len(inner) + place.length)
    return front + bytes(inner)


def _copy(place: ByteRange, out: BinaryIO) -> None:
    with place.file.open("rb") as source:
        source.seek(place.offset)
        left = place.length
        while left and (chunk := source.read(min(COPY_BYTES, left))):
            out.write(chunk)
            left -= len(chunk)
    if left:
        raise ModelError("a weight's file became shorter while it was copied", where=str(place.file))
