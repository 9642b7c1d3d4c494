"""Read the protobuf wire format of an ONNX file without taking its weights into memory.

A protobuf parser copies every byte of `raw_data`. Here only the frame is walked: ModelProto.graph (field 7) and its
initializers (GraphProto field 5); a large tensor's bytes are replaced by external data that names the byte range in the
file itself. Field numbers are those of onnx.proto3, the encoding is that of the protobuf documentation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
TENSOR_DATA_TYPE, TENSOR_FLOAT_DATA, TENSOR_RAW_DATA, TENSOR_DOUBLE_DATA = 2, 4, 9, 10
TENSOR_EXTERNAL_DATA, TENSOR_DATA_LOCATION = 13, 14
EXTERNAL = 1
# All fields that can hold a tensor's values, or say where they are.
TENSOR_STORAGE = {4, 5, 6, 7, 9, 10, 11, 13}
# Packed little-endian values are raw data already: field -> the TensorProto data type whose storage they are.
PACKED_AS_RAW = {TENSOR_FLOAT_DATA: 1, TENSOR_DOUBLE_DATA: 11}

Buffer = bytes | memoryview


class WireError(ValueError):
    """The bytes are not a protobuf message: says at which offset they stop making sense."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message: `start` is where its tag begins, `value` where its payload begins, `end` past it."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """(value, position after it) of the varint at `position`; WireError past `end` or over ten bytes."""
    result = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
    raise WireError(f"no whole varint at offset {position}")


def fields(data: Buffer, start: int, end: int) -> Iterator[Field]:
    """The fields of the message in data[start:end]; WireError where it is cut off or has groups, which ONNX has not."""
    while start < end:
        tag, value = read_varint(data, start, end)
        wire_type = tag & 7
        if wire_type == LENGTH:
            size, value = read_varint(data, value, end)
            after = value + size
        elif wire_type == VARINT:
            after = read_varint(data, value, end)[1]
        elif wire_type in {FIXED32, FIXED64}:
            after = value + (4 if wire_type == FIXED32 else 8)
        else:
            raise WireError(f"field of unknown kind {wire_type} at offset {start}")
        if after > end or tag < 8:
            raise WireError(f"field at offset {start} goes beyond the end of its message")
        yield Field(tag >> 3, wire_type, start, value, after)
        start = after


def encode_varint(value: int) -> bytes:
    """The varint encoding of a number that is not negative."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return encode_varint(number << 3 | LENGTH) + encode_varint(len(payload)) + payload


def _external(location: str, offset: int, length: int) -> bytes:
    """The fields of a TensorProto that say: the bytes lie in `location`."""
    entries = {"location": location, "offset": str(offset), "length": str(length)}
    encoded = [
        encode_field(TENSOR_EXTERNAL_DATA, encode_field(1, key.encode()) + encode_field(2, value.encode()))
        for key, value in entries.items()
    ]
    return b"".join(encoded) + encode_varint(TENSOR_DATA_LOCATION << 3 | VARINT) + encode_varint(EXTERNAL)


def _payload(data: Buffer, parts: list[Field]) -> Field | None:
    """The one field that holds a tensor's bytes as they lie in memory; None when there is none, or more than one."""
    stored = [f for f in parts if f.number in TENSOR_STORAGE]
    if len(stored) != 1 or stored[0].wire_type != LENGTH:
        return None
    field = stored[0]
    if field.number == TENSOR_RAW_DATA:
        return field
    kinds = [f for f in parts if f.number == TENSOR_DATA_TYPE and f.wire_type == VARINT]
    kind = read_varint(data, kinds[-1].value, kinds[-1].end)[0] if kinds else 0
    return field if PACKED_AS_RAW.get(field.number) == kind else None


def _lean_tensor(data: Buffer, tensor: Field, location: str) -> bytes | None:
    """The tensor's message with its bytes left in place; None when they are not stored as one plain range."""
    parts = list(fields(data, tensor.value, tensor.end))
    payload = _payload(data, parts)
    if payload is None:
        return None
    kept = [bytes(data[f.start : f.end]) for f in parts if f is not payload and f.number != TENSOR_DATA_LOCATION]
    return b"".join(kept) + _external(location, payload.value, payload.end - payload.value)


def _lean_graph(data: Buffer, graph: Field, location: str, minimum_bytes: int) -> bytes:
    """The graph's message with large initializers left in place, everything else as it is."""
    out: list[bytes] = []
    copied = graph.value
    for field in fields(data, graph.value, graph.end):
        is_initializer = field.number == GRAPH_INITIALIZER and field.wire_type == LENGTH
        large = is_initializer and field.end - field.value > minimum_bytes
        lean = _lean_tensor(data, field, location) if large else None
        if lean is not None:
            out += [bytes(data[copied : field.start]), encode_field(GRAPH_INITIALIZER, lean)]
            copied = field.end
    return b"".join([*out, bytes(data[copied : graph.end])])


def lean_model(data: Buffer, location: str, minimum_bytes: int) -> bytes:
    """A ModelProto in which initializers of more than `minimum_bytes` are external data in `location`, the file itself.

    Only the frame of `data` is touched, so a memory map of hundreds of megabytes costs some pages. WireError when the
    bytes are no protobuf message.
    """
    out: list[bytes] = []
    for field in fields(data, 0, len(data)):
        if field.number == MODEL_GRAPH and field.wire_type == LENGTH:
            out.append(encode_field(MODEL_GRAPH, _lean_graph(data, field, location, minimum_bytes)))
        else:
            out.append(bytes(data[field.start : field.end]))
    return b"".join(out)
