"""Tensors of ONNX models: how many bytes their dimensions mean, and whether they hold them."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

# FlatBuffers offsets and ONNX Runtime's verifier end at 2 GiB; the graph around the weights needs some of it.
MAX_WEIGHT_BYTES = (2 << 30) - (64 << 20)
# Bits of one element by TensorProto.DataType (onnx.proto3); strings (8) have no fixed size.
ELEMENT_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
}  # fmt: skip
# Fields of TensorProto that hold elements one by one, by data type (onnx.proto3); packed 4-bit types vary by writer.
TYPED_FIELDS = {
    1: "float_data", 11: "double_data", 7: "int64_data", 12: "uint64_data", 13: "uint64_data", 8: "string_data",
    **dict.fromkeys((2, 3, 4, 5, 6, 9, 10, 16, 17, 18, 19, 20), "int32_data"),
}  # fmt: skip


def tensor_bytes(tensor: "onnx.TensorProto") -> int | None:
    """Bytes that the tensor's elements take, from type and dimensions; None for strings, unknown types, bad sizes."""
    bits = ELEMENT_BITS.get(tensor.data_type)
    count = 1
    for dim in tensor.dims:
        count *= dim
        if dim < 0 or count > MAX_WEIGHT_BYTES:
            return None
    return None if bits is None else (count * bits + 7) // 8


def unsound(tensor: "onnx.TensorProto") -> str:
    """Why the data in the message is not what the dimensions say; "" when it is, or cannot be judged."""
    if any(dim < 0 for dim in tensor.dims):
        return f"has a negative dimension: {list(tensor.dims)[:8]}"
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        needed = tensor_bytes(tensor)
        if tensor.data_type == tensor.STRING:
            return "has strings as raw data"
        sound = needed is None or needed == len(tensor.raw_data)
        return "" if sound else f"has {len(tensor.raw_data)} bytes of data, its dimensions need {needed}"
    field = TYPED_FIELDS.get(tensor.data_type)
    found = len(getattr(tensor, field)) if field else count
    return "" if found == count else f"has {found} elements of data, its dimensions need {count}"
