"""The strings of a model's message, which protobuf reads whether they are text or not."""

from collections.abc import Iterator
from enum import Enum
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError, Message

if TYPE_CHECKING:
    import onnx
    from google.protobuf.descriptor import FieldDescriptor


def strange_text(proto: "onnx.ModelProto", data: bytes) -> bytes | None:
    """A string of a model that is not UTF-8, which its message gives as bytes; `data` is what it was parsed from.

    Parsing by stricter rules takes a tenth of the time that a look at each string does.
    """
    try:
        _model_of_text().FromString(data)
    except DecodeError:
        return next((text for text in _texts(proto) if isinstance(text, bytes)), None)
    return None


@cache
def _model_of_text() -> "type[onnx.ModelProto]":
    """The message of a model by rules of protobuf under which such a string is an error."""
    import onnx
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    model = onnx.ModelProto.DESCRIPTOR
    file = descriptor_pb2.FileDescriptorProto.FromString(model.file.serialized_pb)
    file.syntax = "proto3"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    strict: type[onnx.ModelProto] = message_factory.GetMessageClass(pool.FindMessageTypeByName(model.full_name))
    return strict


def _texts(message: Message) -> Iterator[str | bytes]:
    """All strings of a message, but for comments, which nothing reads."""
    waiting = [message]
    while waiting:
        for field, value in waiting.pop().ListFields():
            held = _held(field)
            if held is _Held.MESSAGES:
                waiting += value
            elif held is _Held.MESSAGE:
                waiting.append(value)
            elif held is _Held.TEXTS:
                yield from value
            elif held is _Held.TEXT:
                yield value


class _Held(Enum):
    """What a field of a message holds, as far as texts are asked for."""

    MESSAGES, MESSAGE, TEXTS, TEXT, OTHER = range(5)


@lru_cache(maxsize=1024)
def _held(field: "FieldDescriptor") -> _Held:
    """As protobuf describes a field: it answers slowly, and a model has few kinds of fields."""
    if field.type == field.TYPE_MESSAGE:
        return _Held.MESSAGES if field.is_repeated else _Held.MESSAGE
    if field.type == field.TYPE_STRING and field.name != "doc_string":
        return _Held.TEXTS if field.is_repeated else _Held.TEXT
    return _Held.OTHER
