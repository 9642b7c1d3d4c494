"""Which operators a reduced build can restrict by type, at which arguments, and which types it keeps anyway.

Source: `OperatorTypeUsageManager` in ONNX Runtime's `tools/python/util/ort_format_model`, the same list from release
1.21 to 1.31. All other operators keep all their types, whatever a config says.
"""

from collections.abc import Mapping
from typing import TypeAlias

DEFAULT_DOMAIN = "ai.onnx"

Slot: TypeAlias = tuple[str, int]
"""Where a type is looked at: ("inputs", 1), ("outputs", 0), or ("custom", 0) for OneHot's triple."""

INPUTS, OUTPUTS, CUSTOM = "inputs", "outputs", "custom"
TRIPLE: Slot = (CUSTOM, 0)
TRIPLE_INPUTS = (0, 2, 1)
"""OneHot's kernels are registered by the types of indices, values (which is the output's) and depth, in this order."""

CPP_TYPES: Mapping[int, str] = {
    1: "float", 2: "uint8_t", 3: "int8_t", 4: "uint16_t", 5: "int16_t", 6: "int32_t", 7: "int64_t", 8: "std::string",
    9: "bool", 10: "MLFloat16", 11: "double", 12: "uint32_t", 13: "uint64_t", 16: "BFloat16", 17: "Float8E4M3FN",
    18: "Float8E4M3FNUZ", 19: "Float8E5M2", 20: "Float8E5M2FNUZ",
}  # fmt: skip
"""TensorProto codes by their names in a config. Complex and 4-bit types have none: they cannot be restricted."""

TYPE_NAMES = frozenset(CPP_TYPES.values())

_INPUT_0 = """
    Abs Add ArgMax ArgMin AveragePool BatchNormalization BitShift Ceil Clip Concat Conv CumSum DequantizeLinear Div
    Equal Exp Expand Floor Gemm Greater IsNaN Less Log LogSoftmax LpNormalization MatMul Max MaxPool Mean Min Mul Neg
    NonZero Pad QLinearConv QLinearMatMul Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Resize ReverseSequence RoiAlign Round Scatter
    ScatterElements ScatterND Shrink Sigmoid Sign Sin Softmax Split SplitToSequence Sqrt Sub Sum Tanh TopK Transpose
    Unique
"""
_INPUTS_0_1 = "Gather GatherElements Pow Slice"
_OUTPUT_0 = """
    ConstantOfShape DynamicQuantizeLinear Multinomial QuantizeLinear RandomNormal RandomNormalLike RandomUniform
    RandomUniformLike
"""
_MICROSOFT_INPUT_0 = "QLinearAdd QLinearConv QLinearMul"


def _named(domain: str, names: str, *slots: Slot) -> dict[tuple[str, str], tuple[Slot, ...]]:
    return {(domain, name): slots for name in names.split()}


TYPE_SLOTS: Mapping[tuple[str, str], tuple[Slot, ...]] = {
    **_named(DEFAULT_DOMAIN, _INPUT_0, (INPUTS, 0)),
    **_named(DEFAULT_DOMAIN, _INPUTS_0_1, (INPUTS, 0), (INPUTS, 1)),
    **_named(DEFAULT_DOMAIN, _OUTPUT_0, (OUTPUTS, 0)),
    **_named(DEFAULT_DOMAIN, "Where", (INPUTS, 1)),
    **_named(DEFAULT_DOMAIN, "Cast", (INPUTS, 0), (OUTPUTS, 0)),
    **_named(DEFAULT_DOMAIN, "OneHot", TRIPLE),
    **_named("com.microsoft", _MICROSOFT_INPUT_0, (INPUTS, 0)),
}
"""(domain, operator) -> the arguments whose types a config can restrict."""

_SHAPE_OPS = "Add Concat Div Equal Greater Less Mul Neg Sub"
_AGNOSTIC = "Flatten Identity If Loop Reshape Scan Shape Size Squeeze Tile Unsqueeze"
_INDEX_TYPES = frozenset({"int32_t", "int64_t"})
ALWAYS_KEPT: Mapping[tuple[str, str], frozenset[str]] = {
    **{(DEFAULT_DOMAIN, op): _INDEX_TYPES for op in _SHAPE_OPS.split()},
    (DEFAULT_DOMAIN, "DequantizeLinear"): frozenset({"int8_t", "uint8_t", "int32_t"}),
}
"""Types of input 0 that a build keeps whatever the config lists: shapes are computed with these operators."""

TYPE_AGNOSTIC = frozenset(
    {(DEFAULT_DOMAIN, op) for op in _AGNOSTIC.split()}
    | {("com.microsoft", op) for op in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat")}
)
"""Operators without type-specific code: globally allowed types do not touch them."""

KNOWN_DOMAINS = frozenset({
    DEFAULT_DOMAIN, "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft",
    "com.microsoft.nchwc", "com.ms.internal.nhwc", "org.pytorch.aten", "com.microsoft.experimental",
    "com.microsoft.dml", "com.intel.ai", "com.vitis.ai", "com.xilinx",
})  # fmt: skip
"""Domains whose kernels are ONNX Runtime's own; those of others come from custom operator libraries."""
