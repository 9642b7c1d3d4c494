"""Protobuf messages read and written field by field, without their classes and without copies."""

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5

Buffer = bytes | memoryview


class WireError(ValueError):
    """The bytes are not a protobuf message: says at which offset they stop making sense."""


class Field(NamedTuple):
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
