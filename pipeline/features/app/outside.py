"""The files that messages of an ONNX model name: of a tensor's bytes, and of a context's binary."""

from pipeline.features.app.document import ExternalFile
from pipeline.model import guards, onnx_model, wire
from pipeline.model.wire import WireError

TENSOR_DIMS, TENSOR_NAME = 1, 8

KEPT = frozenset(
    {
        TENSOR_DIMS,
        onnx_model.TENSOR_DATA_TYPE,
        TENSOR_NAME,
        onnx_model.TENSOR_EXTERNAL_DATA,
        onnx_model.TENSOR_DATA_LOCATION,
    }
)
"""Fields of a tensor that say where its bytes are, and how many."""

NODE_NAME, NODE_ATTRIBUTE = 3, 5

ATTRIBUTE_NAME, ATTRIBUTE_NUMBER, ATTRIBUTE_TEXT = 1, 3, 4

NAME_BYTES = 4096
"""Of a name or a path that is read; the binary of a context may stand in its place."""


def tensor_file(data: wire.Buffer, tensor: wire.Field) -> ExternalFile | None:
    """The file that a tensor's bytes are in; None where they are in the model. Raises WireError."""
    parts = list(wire.fields(data, tensor.value, tensor.end))
    places = [
        part for part in parts if part.number == onnx_model.TENSOR_DATA_LOCATION and part.wire_type == wire.VARINT
    ]
    if not places or wire.read_varint(data, places[-1].value, places[-1].end)[0] != onnx_model.EXTERNAL:
        return None
    import onnx
    from google.protobuf.message import DecodeError

    try:
        kept = onnx.TensorProto.FromString(
            b"".join(data[part.start : part.end] for part in parts if part.number in KEPT)
        )
        entries = onnx_model.external_entries(kept)
    except (DecodeError, ValueError) as error:
        raise WireError(f"where the data of a tensor lie cannot be read: {str(error)[:100]}") from error
    return ExternalFile(
        location=entries.location,
        least_bytes=entries.offset + max(entries.length, guards.tensor_bytes(kept) or 0),
        needed_by=kept.name[:80],
    )


def context_file(data: wire.Buffer, node: wire.Field) -> ExternalFile | None:
    """The file with the binary of a context's node; None where that is in the model. Raises WireError."""
    embedded, location, name = True, "", ""
    for field in wire.fields(data, node.value, node.end):
        if field.number == NODE_NAME:
            name = _text(data, field)
        if field.number != NODE_ATTRIBUTE or field.wire_type != wire.LENGTH:
            continue
        values = {value.number: value for value in wire.fields(data, field.value, field.end)}
        attribute = _text(data, values.get(ATTRIBUTE_NAME))
        if attribute == "embed_mode":
            number = values.get(ATTRIBUTE_NUMBER)  # 0 may be left out
            embedded = number is not None and wire.read_varint(data, number.value, number.end)[0] != 0
        elif attribute == "ep_cache_context":
            location = _text(data, values.get(ATTRIBUTE_TEXT))
    return None if embedded or not location else ExternalFile(location=location, least_bytes=1, needed_by=name)


def _text(data: wire.Buffer, field: wire.Field | None) -> str:
    if field is None or field.wire_type != wire.LENGTH:
        return ""
    return bytes(data[field.value : min(field.end, field.value + NAME_BYTES)]).decode("utf-8", "replace")
