"""`RequiredOps`: the operators, opsets and types that a build contains, as a value with a lossless union."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TypeAlias

import msgspec

from pipeline.core.errors import ConfigError
from pipeline.model.types import CPP_TYPES

DEFAULT_DOMAIN = "ai.onnx"

NAME = re.compile(r"(?:(?![,;{}#!\"'\\])[!-~])+")
"""A domain or an operator: plain characters that cannot be taken for a mark of the format."""

Slot: TypeAlias = tuple[str, int]
"""Where a type is looked at: ("inputs", 1), ("outputs", 0), or ("custom", 0) for OneHot's triple."""

INPUTS, OUTPUTS, CUSTOM = "inputs", "outputs", "custom"
TRIPLE: Slot = (CUSTOM, 0)
TRIPLE_INPUTS = (0, 2, 1)
"""OneHot's kernels are registered by the types of indices, values (which is the output's) and depth, in this order."""

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
    **_named("com.microsoft", "GatherPacked", (INPUTS, 0), (INPUTS, 1), (OUTPUTS, 0)),
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


OpTypes: TypeAlias = Mapping[Slot, frozenset[str]]
"""Types by argument. An argument that is not there is not restricted; an empty set promises nothing."""

OpsetKey: TypeAlias = tuple[str, int]
OperatorKey: TypeAlias = tuple[str, str]


def _operator_keys(operators: Mapping[OpsetKey, frozenset[str]]) -> set[OperatorKey]:
    return {(domain, op) for (domain, _), ops in operators.items() for op in ops}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredOps:
    """What a build contains, and so what it can run.

    Types hang on an operator of all its opsets, because ONNX Runtime's build does not tell opsets apart there. An
    operator without an entry in `types` keeps all types. Types per operator and globally allowed types exclude each
    other. `everything` means that no operator is left out; then none is listed.
    """

    operators: Mapping[OpsetKey, frozenset[str]] = field(default_factory=dict)
    types: Mapping[OperatorKey, OpTypes] = field(default_factory=dict)
    global_types: frozenset[str] | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        if self.types and self.global_types is not None:
            raise ValueError("types per operator and globally allowed types exclude each other")
        if self.everything and (self.operators or self.types):
            raise ValueError("when everything is required, no operator is listed")
        if self.types.keys() - self.operator_keys():
            raise ValueError("types of an operator that is not listed")
        if not all(self.operators.values()):
            raise ValueError("an opset without operators")

    def operator_keys(self) -> set[OperatorKey]:
        """All (domain, operator), whatever the opset."""
        return _operator_keys(self.operators)

    def opsets(self, domain: str, op: str) -> list[int]:
        """The opsets under which an operator is listed, ascending."""
        return sorted(opset for (other, opset), ops in self.operators.items() if other == domain and op in ops)

    def union(self, other: "RequiredOps") -> "RequiredOps":
        """The smallest value that contains both, losing nothing; associative, commutative, idempotent.

        An operator that one side does not restrict is not restricted. Globally allowed types survive only where both
        sides have them: beside types per operator they cannot be written, and dropping them loses nothing.
        """
        if EMPTY in (self, other):
            return other if self == EMPTY else self
        left, right = _same_kind(self, other)
        if left.everything or right.everything:
            return RequiredOps(global_types=_merged_global(left, right), everything=True)
        return RequiredOps(
            operators=_each_opset(left, right, frozenset.union),
            types=_merged_types(left, right),
            global_types=_merged_global(left, right),
        )

    def intersection(self, other: "RequiredOps") -> "RequiredOps":
        """What both contain. Raises ConfigError when one restricts types globally and the other by operator."""
        if EMPTY in (self, other):
            return EMPTY
        if self.everything or other.everything:
            limited, whole = (other, self) if self.everything else (self, other)
            return replace(limited, global_types=_common_global(limited, whole))
        operators = _each_opset(self, other, frozenset.intersection)
        common = _common_global(self, other)
        keys = _operator_keys(operators)
        types = {key: _common_types(self.types.get(key), other.types.get(key)) for key in keys}
        return RequiredOps(
            operators=operators,
            types={key: value for key, value in types.items() if value is not None},
            global_types=common,
        )

    def difference(self, other: "RequiredOps") -> "RequiredOps":
        """What must be added to `other` to contain this value; types that it has already are left out.

        The union of the result and `other` contains this value. Of two values that restrict types in different ways
        (globally, by operator), every operator counts as different.
        """
        if other.contains(self):
            return EMPTY
        if self.everything or (self.global_types is None) != (other.global_types is None):
            return self
        if self.global_types is not None and not self.global_types <= (other.global_types or frozenset()):
            return self
        grown = {key for key in self.operator_keys() if not _within(self.types.get(key), other.types.get(key))}
        operators = {
            (domain, opset): frozenset(op for op in ops if op not in listed or (domain, op) in grown)
            for (domain, opset), ops in self.operators.items()
            for listed in [other.operators.get((domain, opset), frozenset())]
        }
        operators = {key: ops for key, ops in operators.items() if ops}
        keys = _operator_keys(operators)
        types = {
            key: _surplus(types, other.types.get(key)) if key in grown else types
            for key, types in self.types.items()
            if key in keys
        }
        return RequiredOps(operators=operators, types=types, global_types=self.global_types)

    def contains(self, other: "RequiredOps") -> bool:
        """Whether a build of this value has all that `other` lists."""
        return self.union(other) == self

    def without_types(self) -> "RequiredOps":
        """The same operators with all their types."""
        return replace(self, types={}, global_types=None)

    def with_global_types(self, names: Iterable[str]) -> "RequiredOps":
        """The same operators, restricted to these types wherever a kernel can be; C++ names as in `TYPE_NAMES`."""
        return replace(self, types={}, global_types=frozenset(names))


EMPTY = RequiredOps()
"""No operators at all: contained in every value, and what an empty config file means."""


def union_of(parts: Iterable[RequiredOps]) -> RequiredOps:
    """The union of many values, `EMPTY` of none."""
    return reduce(RequiredOps.union, parts, EMPTY)


def _same_kind(left: RequiredOps, right: RequiredOps) -> tuple[RequiredOps, RequiredOps]:
    """Drop global restrictions that only one side has."""
    if (left.global_types is None) == (right.global_types is None):
        return left, right
    return replace(left, global_types=None), replace(right, global_types=None)


def _merged_global(left: RequiredOps, right: RequiredOps) -> frozenset[str] | None:
    if left.global_types is None or right.global_types is None:
        return None
    return left.global_types | right.global_types


def _common_global(left: RequiredOps, right: RequiredOps) -> frozenset[str] | None:
    if (left.global_types is not None and right.types) or (right.global_types is not None and left.types):
        raise ConfigError("these configs have nothing in common that a config could say",
                          why="one restricts types globally, the other by operator",
                          remedy="make both with or both without --globally-allowed-types")  # fmt: skip
    if left.global_types is None or right.global_types is None:
        return left.global_types if right.global_types is None else right.global_types
    return left.global_types & right.global_types


def _each_opset(
    left: RequiredOps, right: RequiredOps, combine: Callable[[frozenset[str], frozenset[str]], frozenset[str]]
) -> dict[OpsetKey, frozenset[str]]:
    nothing: frozenset[str] = frozenset()
    keys = left.operators.keys() | right.operators.keys()
    combined = {key: combine(left.operators.get(key, nothing), right.operators.get(key, nothing)) for key in keys}
    return {key: ops for key, ops in combined.items() if ops}


def _merged_types(left: RequiredOps, right: RequiredOps) -> dict[OperatorKey, OpTypes]:
    """A restriction holds where one side has it and the other lacks the operator, or where both have it."""
    before, after = left.operator_keys(), right.operator_keys()
    merged = {key: types for key, types in left.types.items() if key not in after}
    merged |= {key: types for key, types in right.types.items() if key not in before}
    for key in left.types.keys() & right.types.keys():
        ours, others = left.types[key], right.types[key]
        if slots := ours.keys() & others.keys():
            merged[key] = {slot: ours[slot] | others[slot] for slot in slots}
    return merged


def _common_types(left: OpTypes | None, right: OpTypes | None) -> OpTypes | None:
    if left is None or right is None:
        return left if right is None else right
    common = {**left, **right}
    return {**common, **{slot: left[slot] & right[slot] for slot in left.keys() & right.keys()}}


def _within(inner: OpTypes | None, outer: OpTypes | None) -> bool:
    """Whether types of an operator are among others."""
    if inner is None or outer is None:
        return outer is None
    return all(slot in inner and inner[slot] <= types for slot, types in outer.items())


def _surplus(types: OpTypes, known: OpTypes | None) -> OpTypes:
    """The types that must be added to `theirs`; empty sets where that is nothing."""
    return types if known is None else {slot: names - known.get(slot, names) for slot, names in types.items()}


class Need(msgspec.Struct, frozen=True, gc=False):
    """An operator at its since-version with the types at the arguments that a build can restrict.

    `nameless`: one of these types has no name in a config (4-bit integers, complex numbers, a value without a type),
    so that the operator may not be restricted at all. `main_type` is what globally allowed types are checked against
    for operators without such arguments: None when it has no name, empty when it does not matter.
    """

    domain: str
    op: str
    since_version: int
    types: tuple[tuple[Slot, str], ...] = ()
    nameless: bool = False
    main_type: str | None = ""
