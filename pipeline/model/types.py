"""The element types of tensors, one row each: every name that ONNX, ONNX Runtime, numpy and C++ have for it."""

from typing import NamedTuple


class ElementRow(NamedTuple):
    """An element type by its number in TensorProto.DataType (onnx.proto3).

    `short` is what the project calls it, `ort` ONNX Runtime, as in `tensor(float16)`, `cpp` operator configs; `numpy`
    is how its numbers are read. Of the last two "": it has none. `bits` are 0 for strings, which have no fixed size.
    `field` of TensorProto holds its elements one by one; "" where that varies by writer.
    """

    code: int
    short: str
    ort: str
    cpp: str
    numpy: str
    bits: int
    field: str


TYPES = (
    ElementRow(1, "f32", "float", "float", "<f4", 32, "float_data"),
    ElementRow(2, "u8", "uint8", "uint8_t", "u1", 8, "int32_data"),
    ElementRow(3, "i8", "int8", "int8_t", "i1", 8, "int32_data"),
    ElementRow(4, "u16", "uint16", "uint16_t", "<u2", 16, "int32_data"),
    ElementRow(5, "i16", "int16", "int16_t", "<i2", 16, "int32_data"),
    ElementRow(6, "i32", "int32", "int32_t", "<i4", 32, "int32_data"),
    ElementRow(7, "i64", "int64", "int64_t", "<i8", 64, "int64_data"),
    ElementRow(8, "string", "string", "std::string", "", 0, "string_data"),
    ElementRow(9, "bool", "bool", "bool", "?", 8, "int32_data"),
    ElementRow(10, "f16", "float16", "MLFloat16", "<f2", 16, "int32_data"),
    ElementRow(11, "f64", "double", "double", "<f8", 64, "double_data"),
    ElementRow(12, "u32", "uint32", "uint32_t", "<u4", 32, "uint64_data"),
    ElementRow(13, "u64", "uint64", "uint64_t", "<u8", 64, "uint64_data"),
    ElementRow(14, "c64", "complex64", "", "", 64, ""),
    ElementRow(15, "c128", "complex128", "", "", 128, ""),
    ElementRow(16, "bf16", "bfloat16", "BFloat16", "", 16, "int32_data"),
    ElementRow(17, "f8e4m3fn", "float8e4m3fn", "Float8E4M3FN", "", 8, "int32_data"),
    ElementRow(18, "f8e4m3fnuz", "float8e4m3fnuz", "Float8E4M3FNUZ", "", 8, "int32_data"),
    ElementRow(19, "f8e5m2", "float8e5m2", "Float8E5M2", "", 8, "int32_data"),
    ElementRow(20, "f8e5m2fnuz", "float8e5m2fnuz", "Float8E5M2FNUZ", "", 8, "int32_data"),
    ElementRow(21, "u4", "uint4", "", "", 4, ""),
    ElementRow(22, "i4", "int4", "", "", 4, ""),
    ElementRow(23, "f4e2m1", "float4e2m1", "", "", 4, ""),
    ElementRow(24, "f8e8m0", "float8e8m0", "", "", 8, ""),
    ElementRow(25, "u2", "uint2", "", "", 2, ""),
    ElementRow(26, "i2", "int2", "", "", 2, ""),
)
"""The ORT format's own enum stops at 20, but ONNX Runtime writes the later codes all the same."""

LAST_STORED_TYPE = 20
"""FLOAT8E5M2FNUZ: the last of ONNX's types that the ORT format's table of types has; those of 4 and 2 bits follow."""

BY_CODE = {element.code: element for element in TYPES}
SHORT_NAMES = {element.code: element.short for element in TYPES}
ORT_NAMES = {element.code: element.ort for element in TYPES}
SHORT_BY_ORT = {element.ort: element.short for element in TYPES}
CODES = {element.short: element.code for element in TYPES}
BITS = {element.short: element.bits for element in TYPES}
CPP_TYPES = {element.code: element.cpp for element in TYPES if element.cpp}
"""The names in operator configs. Complex and 4-bit types have none: they cannot be restricted."""
CPP_BY_ORT = {element.ort: element.cpp for element in TYPES if element.cpp}
NUMPY_KINDS = {element.code: element.numpy for element in TYPES if element.numpy}
"""Types whose numbers a rule may read; 4-bit and string ones never are."""

FLOAT, UINT8, INT8, INT32, FLOAT16, BFLOAT16 = (CODES[name] for name in ("f32", "u8", "i8", "i32", "f16", "bf16"))
