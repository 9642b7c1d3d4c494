"""`RequiredOps`, the operators, opsets and types that a build contains, with a lossless union; and what models need.

A model needs kernels for its nodes and for those that loading adds: by its runtime optimizations and by changes of
layout.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import NamedTuple, TypeAlias

import msgspec

from device_runner import providers as runner_providers
from pipeline.core import groups as counting
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import ort_format
from pipeline.model import types as onnx_types

DEFAULT_DOMAIN = "ai.onnx"

NAME = re.compile(r"(?:(?![,;{}#!\"'\\])[!-~])+")
"""A domain or an operator: plain characters that cannot be taken for a mark of the format."""

Slot: TypeAlias = tuple[str, int]
"""Where a type is looked at: ("inputs", 1), ("outputs", 0), or ("custom", 0) for OneHot's triple."""

INPUTS, OUTPUTS, CUSTOM = "inputs", "outputs", "custom"
TRIPLE: Slot = (CUSTOM, 0)
TRIPLE_INPUTS = (0, 2, 1)
"""OneHot's kernels are registered by the types of indices, values (which is the output's) and depth, in this order."""

TYPE_NAMES = frozenset(onnx_types.CPP_TYPES.values())

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
        left, right = self, other
        limits = (left.global_types, right.global_types)
        allowed = limits[0] | limits[1] if limits[0] is not None and limits[1] is not None else None
        if left.everything or right.everything:
            return RequiredOps(global_types=allowed, everything=True)
        # A restriction holds where one side has it and the other lacks the operator, or where both have it
        before, after = left.operator_keys(), right.operator_keys()
        merged = {key: types for key, types in left.types.items() if key not in after}
        merged |= {key: types for key, types in right.types.items() if key not in before}
        for key in left.types.keys() & right.types.keys():
            ours, others = left.types[key], right.types[key]
            if slots := ours.keys() & others.keys():
                merged[key] = {slot: ours[slot] | others[slot] for slot in slots}
        return RequiredOps(
            operators=_each_opset(left, right, frozenset.union),
            types=merged,
            global_types=allowed,
        )

    def intersection(self, other: "RequiredOps") -> "RequiredOps":
        """What both contain. Raises ConfigError when one restricts types globally and the other by operator."""
        if EMPTY in (self, other):
            return EMPTY
        if (self.global_types is not None and other.types) or (other.global_types is not None and self.types):
            raise ConfigError(
                "these configs have nothing in common that a config could say",
                why="one restricts types globally, the other by operator",
                remedy="make both with or both without --globally-allowed-types",
            )
        limits = [names for names in (self.global_types, other.global_types) if names is not None]
        common = limits[0].intersection(*limits) if limits else None
        if self.everything or other.everything:
            return replace(other if self.everything else self, global_types=common)
        operators = _each_opset(self, other, frozenset.intersection)
        types: dict[OperatorKey, OpTypes] = {}
        for key in _operator_keys(operators):
            left, right = self.types.get(key), other.types.get(key)
            if left is not None and right is not None:
                both = {slot: left[slot] & right[slot] for slot in left.keys() & right.keys()}
                types[key] = {**left, **right, **both}
            elif left is not None or right is not None:
                types[key] = left or right or {}
        return RequiredOps(operators=operators, types=types, global_types=common)

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
        grown = set()  # operators some of whose types are not among the other's
        for key in self.operator_keys():
            inner, outer = self.types.get(key), other.types.get(key)
            if outer is not None and (
                inner is None or any(slot not in inner or not inner[slot] <= types for slot, types in outer.items())
            ):
                grown.add(key)
        operators = {
            (domain, opset): frozenset(op for op in ops if op not in listed or (domain, op) in grown)
            for (domain, opset), ops in self.operators.items()
            for listed in [other.operators.get((domain, opset), frozenset())]
        }
        operators = {key: ops for key, ops in operators.items() if ops}
        keys = _operator_keys(operators)
        types = {
            # Empty sets stand where nothing must be added.
            key: {slot: names - other.types.get(key, {}).get(slot, names) for slot, names in types.items()}
            if key in grown and key in other.types
            else types
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


def _each_opset(
    left: RequiredOps, right: RequiredOps, combine: Callable[[frozenset[str], frozenset[str]], frozenset[str]]
) -> dict[OpsetKey, frozenset[str]]:
    nothing: frozenset[str] = frozenset()
    keys = left.operators.keys() | right.operators.keys()
    combined = {key: combine(left.operators.get(key, nothing), right.operators.get(key, nothing)) for key in keys}
    return {key: ops for key, ops in combined.items() if ops}


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


_SENSITIVE = """
    AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool
    GlobalMaxPool GridSample InstanceNormalization LRN LpPool MaxPool MaxUnpool QLinearConv Resize SpaceToDepth
"""
LAYOUT_SENSITIVE = frozenset(
    {("", op) for op in _SENSITIVE.split()}
    | {(DEFAULT_DOMAIN, op) for op in _SENSITIVE.split()}
    | {("com.microsoft", op) for op in ("FusedConv", "GridSample", "QLinearAveragePool", "QLinearGlobalAveragePool")}
)

OPTIMIZER_OPS: Mapping[str, tuple[int, ...]] = {
    "Gather": (1, 11, 13),
    "Identity": (1, 13, 14, 16, 19, 21, 23, 24, 25),
    "Squeeze": (1, 11, 13, 21, 23, 24, 25),
    "Transpose": (1, 13, 21, 23, 24, 25),
    "Unsqueeze": (1, 11, 13, 21, 23, 24, 25),
}
"""Operators that ONNX Runtime's transpose optimizer creates, with their since-versions in ONNX."""

_PERMUTED = ("float", "int64_t")
"""Elements of the short lists (pads, sizes, scales) that Gather puts in another order."""

_BYTES = frozenset({"int8_t", "uint8_t"})


def layout_needs(
    model: ort_format.OrtModel, needs: Collection[Need], providers: Iterable[str], *, extended: bool
) -> Iterator[tuple[Need, str]]:
    """The needs of a change to NHWC, given the needs of the model's own nodes.

    It comes when a provider asks for it and a node is sensitive to it. And a build that optimizes while it loads
    (`extended`) turns quantized nodes to the CPU's own NHWC kernels.
    """
    asking = sorted(name for name in set(providers) if runner_providers.provider_named(name).nhwc)
    if asking and any(
        (node.domain, node.op_type) in LAYOUT_SENSITIVE for graph in model.graph.walk() for node in graph.nodes
    ):
        yield from _optimizer_needs(model, f"layout change for {' and '.join(asking)}")
    kernels = (
        {
            _NHWC_KERNELS[need.domain, need.op](name)
            for need in needs
            if (need.domain, need.op) in _NHWC_KERNELS
            for _, name in need.types
            if name in _BYTES
        }
        if extended
        else set()
    )
    if kernels:
        label = "layout change for quantized kernels"
        yield from ((kernel, label) for kernel in sorted(kernels, key=lambda kernel: (kernel.op, kernel.types)))
        yield from _optimizer_needs(model, label)
    if extended and {"QuantizeLinear", "DequantizeLinear"} <= {need.op for need in needs}:
        identity = Need(DEFAULT_DOMAIN, "Identity", _since("Identity", _opset(model)))
        yield identity, "clean-up of DequantizeLinear before QuantizeLinear"


_NHWC_KERNELS: Mapping[tuple[str, str], Callable[[str], Need]] = {
    (DEFAULT_DOMAIN, "QLinearConv"): lambda name: Need("com.microsoft", "QLinearConv", 1, (((INPUTS, 0), name),)),
    (DEFAULT_DOMAIN, "MaxPool"): lambda _: Need("com.microsoft", "NhwcMaxPool", 1),
}


def _optimizer_needs(model: ort_format.OrtModel, label: str) -> Iterator[tuple[Need, str]]:
    """What the transpose optimizer creates: Transposes of whatever is computed, and what they are turned into."""
    opset = _opset(model)
    for op in ("Identity", "Squeeze", "Unsqueeze"):
        yield Need(DEFAULT_DOMAIN, op, _since(op, opset)), label
    for name in _PERMUTED:
        types = (((INPUTS, 0), name), ((INPUTS, 1), "int64_t"))
        yield Need(DEFAULT_DOMAIN, "Gather", _since("Gather", opset), types), label
    # A Transpose may come to stand before all values of rank 2 and more that are computed.
    computed = {
        onnx_types.CPP_TYPES[info.elem_type]
        for graph in model.graph.walk()
        for name, info in graph.node_args.items()
        if name not in graph.initializers
        and isinstance(info, ort_format.TensorType)
        and info.elem_type in onnx_types.CPP_TYPES
        if info.shape is None or len(info.shape) >= 2
    }
    for name in sorted(computed):
        yield Need(DEFAULT_DOMAIN, "Transpose", _since("Transpose", opset), (((INPUTS, 0), name),)), label


def _opset(model: ort_format.OrtModel) -> int:
    imports = model.opset_import
    return imports.get("", imports.get(DEFAULT_DOMAIN, 1))


def _since(op: str, opset: int) -> int:
    """The since-version that a new node gets in a model of this opset."""
    return max((version for version in OPTIMIZER_OPS[op] if version <= opset), default=1)


Needs: TypeAlias = Mapping[Need, tuple[str, ...]]
"""Each need with the nodes that have it, in the order of the graph; bodies as `outer/attribute/inner`."""

_Scopes: TypeAlias = tuple[Mapping[str, ort_format.TypeInfo], ...]


def needs_of(model: ort_format.OrtModel, *, providers: Iterable[str] = (), extended: bool = False) -> Needs:
    """Everything that loading and running a model asks for, with `providers` registered (nnapi, xnnpack, ...).

    `extended`: the build is no plain minimal one, so that it optimizes every model that it loads. It has to be such a
    build for providers and for saved optimizations, so these imply it. Raises ModelError for operators that no config
    could name.
    """
    return _needs(model, list(_graph_needs(model.graph, (), "")), frozenset(providers), extended=extended)


def _needs(
    model: ort_format.OrtModel, of_nodes: Sequence[tuple[Need, str]], providers: frozenset[str], *, extended: bool
) -> Needs:
    extended = extended or bool(providers) or replays(model)
    of_layout = layout_needs(model, {need for need, _ in of_nodes}, providers, extended=extended)
    needs = counting.grouped(chain(of_nodes, of_layout))
    for need in needs:
        if need.since_version < 1 or not NAME.fullmatch(need.op) or not NAME.fullmatch(need.domain):
            raise ModelError(
                f"no operator config can name {need.domain!r} {need.op!r} of version {need.since_version}",
                why="names of domains and operators are plain characters without blanks, commas, semicolons and braces",
                remedy="convert the model again, or remove the operator",
            )
    return {need: tuple(labels) for need, labels in needs.items()}


def needs_by_build(model: ort_format.OrtModel, providers: Iterable[str] = ()) -> tuple[Needs, Needs]:
    """The needs of a minimal build and of an extended one, which optimizes every model that it loads."""
    of_nodes = list(_graph_needs(model.graph, (), ""))
    minimal, extended = (_needs(model, of_nodes, frozenset(providers), extended=kind) for kind in (False, True))
    return minimal, extended


def replays(model: ort_format.OrtModel) -> bool:
    """Whether a model has saved runtime optimizations, which take an extended build."""
    return any(graph.runtime_optimizations for graph in model.graph.walk())


def from_needs(needs: Iterable[Need], *, types: bool) -> RequiredOps:
    """The least that meets all needs. Operators that meet a type without a name in configs keep all their types."""
    operators: dict[OpsetKey, set[str]] = {}
    restricted: dict[OperatorKey, dict[Slot, set[str]]] = {}
    free: set[OperatorKey] = set()
    for need in needs:
        key = (need.domain, need.op)
        operators.setdefault((need.domain, need.since_version), set()).add(need.op)
        slots = restricted.setdefault(key, {slot: set() for slot in TYPE_SLOTS.get(key, ())})
        if need.nameless or not types or not slots:
            free.add(key)
        for slot, name in need.types:
            slots[slot].add(name)
    return RequiredOps(
        operators={key: frozenset(names) for key, names in operators.items()},
        types={
            key: {slot: frozenset(names) for slot, names in slots.items()}
            for key, slots in restricted.items()
            if key not in free
        },
    )


def _graph_needs(graph: ort_format.OrtGraph, outer: _Scopes, path: str) -> Iterator[tuple[Need, str]]:
    scopes = (graph.node_args, *outer)
    for node in graph.nodes:
        label = f"{path}{node.name or f'{node.op_type}#{node.index}'}"
        domain = node.domain or DEFAULT_DOMAIN
        pairs = [(slot, _slot_type(node, slot, scopes)) for slot in TYPE_SLOTS.get((domain, node.op_type), ())]
        # The type by which a kernel without rules of its own would be registered: of input 0, else of output 0
        main = next((name for name in (*node.inputs[:1], *node.outputs[:1]) if name), "")
        need = Need(
            domain,
            node.op_type,
            node.since_version,
            types=tuple([(slot, name) for slot, name in pairs if name]),
            nameless=any(name is None for _, name in pairs),
            main_type=_value_type(main, scopes) if main else "",
        )
        yield need, label
        for name, attribute in node.attributes.items():
            bodies = attribute.value if isinstance(attribute.value, tuple) else (attribute.value,)
            for body in bodies:
                if isinstance(body, ort_format.OrtGraph):
                    yield from _graph_needs(body, scopes, f"{label}/{name}/")
    nodes = {node.index: node for node in graph.nodes} if graph.runtime_optimizations else {}
    for record in graph.runtime_optimizations:
        yield from _replayed_needs(record, nodes, scopes, path)


def _slot_type(node: ort_format.OrtNode, slot: Slot, scopes: _Scopes) -> str | None:
    """The type at an argument; empty when the node does not use it, None when a config has no name for it."""
    slots = [(INPUTS, index) for index in TRIPLE_INPUTS] if slot == TRIPLE else [slot]
    arguments = [_argument(node, slot) for slot in slots]
    names = [_value_type(name, scopes) if name else "" for name in arguments]
    if slot != TRIPLE:
        return names[0]
    return ",".join(name for name in names if name) if all(names) else None


def _argument(node: ort_format.OrtNode, slot: Slot) -> str:
    kind, index = slot
    names = node.inputs if kind == INPUTS else node.outputs
    return names[index] if index < len(names) else ""


def _value_type(name: str, scopes: _Scopes) -> str | None:
    for scope in scopes:
        if name in scope:
            info = scope[name]
            while isinstance(info, ort_format.SequenceType):
                info = info.element
            return onnx_types.CPP_TYPES.get(info.elem_type) if isinstance(info, ort_format.TensorType) else None
    return None


def _replayed_needs(
    record: ort_format.RuntimeOptimization, nodes: Mapping[int, ort_format.OrtNode], scopes: _Scopes, path: str
) -> Iterator[tuple[Need, str]]:
    """What a saved optimization puts in place of its nodes: new operators, or the old one on quantized values.

    Either takes over the arguments of the recorded nodes: what stood before a DequantizeLinear or behind a
    QuantizeLinear of the record, else the target's own.
    """
    members = [nodes.get(index) for index in record.nodes if index is not None]
    present = [node for node in members if node is not None]
    label = f"{path}{record.optimizer}({', '.join(node.name or node.op_type for node in present)})"
    targets = [node for node in present if node.op_type not in ("DequantizeLinear", "QuantizeLinear")] or present
    arguments = [(node.op_type, _argument(node, (INPUTS, 0)), _argument(node, (OUTPUTS, 0))) for node in present]
    moved = {output: given for op, given, output in arguments if op == "DequantizeLinear"}
    moved |= {given: output for op, given, output in arguments if op == "QuantizeLinear"}
    kept = {_Kernel(node.domain or DEFAULT_DOMAIN, node.op_type, node.since_version) for node in targets}
    for domain, op, version in [_parsed_id(op_id) for op_id in record.produced_ops] or sorted(kept):
        slots = TYPE_SLOTS.get((domain, op), ())
        types = {
            (slot, _value_type(moved.get(name, name), scopes))
            for slot in slots
            for name in {_argument(node, slot) for node in targets} - {""}
        }
        if TRIPLE in slots:
            types = {(TRIPLE, None)}
        named = tuple(sorted((slot, name) for slot, name in types if name))
        nameless = bool(slots) and (len(present) < len(members) or any(name is None for _, name in types))
        yield Need(domain, op, version, named, nameless, ""), label


class _Kernel(NamedTuple):
    """An operator with the opset of its kernel."""

    domain: str
    op_type: str
    version: int


def _parsed_id(op_id: str) -> _Kernel:
    domain, _, rest = op_id.partition(":")
    op, _, version = rest.rpartition(":")
    if not version.isdecimal() or len(version) > 9:
        raise ModelError(
            f"a runtime optimization produces an unreadable operator: {op_id!r}", remedy="convert the model again"
        )
    return _Kernel(domain or DEFAULT_DOMAIN, op, int(version))
