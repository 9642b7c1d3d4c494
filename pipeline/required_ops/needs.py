"""What an artifact needs of a build: kernels for its nodes and for those that loading adds.

Those that it may have come of its runtime optimizations and of changes of layout.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import TypeAlias

from device_runner.providers import provider_named
from pipeline.core.errors import ModelError
from pipeline.core.groups import grouped
from pipeline.model.ort_format import (
    OrtGraph,
    OrtModel,
    OrtNode,
    RuntimeOptimization,
    SequenceType,
    TensorType,
    TypeInfo,
)
from pipeline.model.types import CPP_TYPES
from pipeline.required_ops.value import (
    DEFAULT_DOMAIN,
    INPUTS,
    NAME,
    OUTPUTS,
    TRIPLE,
    TRIPLE_INPUTS,
    TYPE_SLOTS,
    Need,
    OperatorKey,
    OpsetKey,
    RequiredOps,
    Slot,
)

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
    model: OrtModel, needs: Collection[Need], providers: Iterable[str], *, extended: bool
) -> Iterator[tuple[Need, str]]:
    """The needs of a change to NHWC, given the needs of the model's own nodes.

    It comes when a provider asks for it and a node is sensitive to it. And a build that optimizes while it loads
    (`extended`) turns quantized nodes to the CPU's own NHWC kernels.
    """
    asking = sorted(name for name in set(providers) if provider_named(name).nhwc)
    if asking and any(
        (node.domain, node.op_type) in LAYOUT_SENSITIVE for graph in model.graph.walk() for node in graph.nodes
    ):
        yield from _optimizer_needs(model, f"layout change for {' and '.join(asking)}")
    kernels = _nhwc_kernels(needs) if extended else set()
    if kernels:
        label = "layout change for quantized kernels"
        yield from ((kernel, label) for kernel in sorted(kernels, key=lambda kernel: (kernel.op, kernel.types)))
        yield from _optimizer_needs(model, label)
    if extended and {"QuantizeLinear", "DequantizeLinear"} <= {need.op for need in needs}:
        identity = Need(DEFAULT_DOMAIN, "Identity", _since("Identity", _opset(model)))
        yield identity, "clean-up of DequantizeLinear before QuantizeLinear"


def _nhwc_kernels(needs: Iterable[Need]) -> set[Need]:
    return {
        _NHWC_KERNELS[need.domain, need.op](name)
        for need in needs
        if (need.domain, need.op) in _NHWC_KERNELS
        for _, name in need.types
        if name in _BYTES
    }


_NHWC_KERNELS: Mapping[tuple[str, str], Callable[[str], Need]] = {
    (DEFAULT_DOMAIN, "QLinearConv"): lambda name: Need("com.microsoft", "QLinearConv", 1, (((INPUTS, 0), name),)),
    (DEFAULT_DOMAIN, "MaxPool"): lambda _: Need("com.microsoft", "NhwcMaxPool", 1),
}


def _optimizer_needs(model: OrtModel, label: str) -> Iterator[tuple[Need, str]]:
    """What the transpose optimizer creates: Transposes of whatever is computed, and what they are turned into."""
    opset = _opset(model)
    for op in ("Identity", "Squeeze", "Unsqueeze"):
        yield Need(DEFAULT_DOMAIN, op, _since(op, opset)), label
    for name in _PERMUTED:
        types = (((INPUTS, 0), name), ((INPUTS, 1), "int64_t"))
        yield Need(DEFAULT_DOMAIN, "Gather", _since("Gather", opset), types), label
    for name in sorted({name for graph in model.graph.walk() for name in _transposed_types(graph)}):
        yield Need(DEFAULT_DOMAIN, "Transpose", _since("Transpose", opset), (((INPUTS, 0), name),)), label


def _transposed_types(graph: OrtGraph) -> Iterator[str]:
    """Types of the values that a Transpose may come to stand before: all of rank 2 and more that are computed."""
    for name, info in graph.node_args.items():
        if (
            name not in graph.initializers
            and isinstance(info, TensorType)
            and (info.shape is None or len(info.shape) >= 2)
        ):
            yield from [CPP_TYPES[info.elem_type]] if info.elem_type in CPP_TYPES else []


def _opset(model: OrtModel) -> int:
    imports = model.opset_import
    return imports.get("", imports.get(DEFAULT_DOMAIN, 1))


def _since(op: str, opset: int) -> int:
    """The since-version that a new node gets in a model of this opset."""
    return max((version for version in OPTIMIZER_OPS[op] if version <= opset), default=1)


Needs: TypeAlias = Mapping[Need, tuple[str, ...]]
"""Each need with the nodes that have it, in the order of the graph; bodies as `outer/attribute/inner`."""

_Scopes: TypeAlias = tuple[Mapping[str, TypeInfo], ...]


def needs_of(model: OrtModel, *, providers: Iterable[str] = (), extended: bool = False) -> Needs:
    """Everything that loading and running a model asks for, with `providers` registered (nnapi, xnnpack, ...).

    `extended`: the build is no plain minimal one, so that it optimizes every model that it loads. It has to be such a
    build for providers and for saved optimizations, so these imply it. Raises ModelError for operators that no config
    could name.
    """
    providers = frozenset(providers)
    of_nodes = list(_graph_needs(model.graph, (), ""))
    extended = extended or bool(providers) or replays(model)
    of_layout = layout_needs(model, {need for need, _ in of_nodes}, providers, extended=extended)
    needs = grouped(chain(of_nodes, of_layout))
    for need in needs:
        if need.since_version < 1 or not NAME.fullmatch(need.op) or not NAME.fullmatch(need.domain):
            raise ModelError(
                f"no operator config can name {need.domain!r} {need.op!r} of version {need.since_version}",
                why="names of domains and operators are plain characters without blanks, commas, semicolons and braces",
                remedy="convert the model again, or remove the operator",
            )
    return {need: tuple(labels) for need, labels in needs.items()}


def needs_by_build(model: OrtModel, providers: Iterable[str] = ()) -> tuple[Needs, Needs]:
    """The needs of a minimal build and of an extended one, which optimizes every model that it loads."""
    minimal, extended = (needs_of(model, providers=providers, extended=kind) for kind in (False, True))
    return minimal, extended


def replays(model: OrtModel) -> bool:
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


def _graph_needs(graph: OrtGraph, outer: _Scopes, path: str) -> Iterator[tuple[Need, str]]:
    scopes = (graph.node_args, *outer)
    for node in graph.nodes:
        label = f"{path}{node.name or f'{node.op_type}#{node.index}'}"
        yield _node_need(node, scopes), label
        for name, attribute in node.attributes.items():
            bodies = attribute.value if isinstance(attribute.value, tuple) else (attribute.value,)
            for body in bodies:
                if isinstance(body, OrtGraph):
                    yield from _graph_needs(body, scopes, f"{label}/{name}/")
    nodes = {node.index: node for node in graph.nodes} if graph.runtime_optimizations else {}
    for record in graph.runtime_optimizations:
        yield from _replayed_needs(record, nodes, scopes, path)


def _node_need(node: OrtNode, scopes: _Scopes) -> Need:
    domain = node.domain or DEFAULT_DOMAIN
    slots = TYPE_SLOTS.get((domain, node.op_type), ())
    pairs = tuple([(slot, name) for slot in slots if (name := _slot_type(node, slot, scopes)) != ""])
    return Need(
        domain,
        node.op_type,
        node.since_version,
        tuple([(slot, name) for slot, name in pairs if name is not None]),
        any(name is None for _, name in pairs),
        _main_type(node, scopes),
    )


def _slot_type(node: OrtNode, slot: Slot, scopes: _Scopes) -> str | None:
    """The type at an argument; empty when the node does not use it, None when a config has no name for it."""
    if slot == TRIPLE:
        names = [_argument_type(node, (INPUTS, index), scopes) for index in TRIPLE_INPUTS]
        known = [name for name in names if name]
        return ",".join(known) if len(known) == len(names) else None
    return _argument_type(node, slot, scopes)


def _argument_type(node: OrtNode, slot: Slot, scopes: _Scopes) -> str | None:
    name = _argument(node, slot)
    return _value_type(name, scopes) if name else ""


def _argument(node: OrtNode, slot: Slot) -> str:
    kind, index = slot
    names = node.inputs if kind == INPUTS else node.outputs
    return names[index] if index < len(names) else ""


def _value_type(name: str, scopes: _Scopes) -> str | None:
    for scope in scopes:
        if name in scope:
            return _element(scope[name])
    return None


def _element(info: TypeInfo) -> str | None:
    """The C++ name of a tensor's elements; a sequence counts as what it holds."""
    while isinstance(info, SequenceType):
        info = info.element
    return CPP_TYPES.get(info.elem_type) if isinstance(info, TensorType) else None


def _main_type(node: OrtNode, scopes: _Scopes) -> str | None:
    """The type by which a kernel without rules of its own would be registered: of input 0, else of output 0."""
    name = next((name for name in (*node.inputs[:1], *node.outputs[:1]) if name), "")
    return _value_type(name, scopes) if name else ""


def _replayed_needs(
    record: RuntimeOptimization, nodes: Mapping[int, OrtNode], scopes: _Scopes, path: str
) -> Iterator[tuple[Need, str]]:
    """What a saved optimization puts in place of its nodes: new operators, or the old one on quantized values.

    Either takes over the arguments of the recorded nodes: what stood before a DequantizeLinear or behind a
    QuantizeLinear of the record, else the target's own.
    """
    members = [nodes.get(index) for index in record.nodes if index is not None]
    known = [node for node in members if node is not None]
    label = f"{path}{record.optimizer}({', '.join(node.name or node.op_type for node in known)})"
    kept = {(node.domain or DEFAULT_DOMAIN, node.op_type, node.since_version) for node in _targets(known)}
    for domain, op, version in [_parsed_id(op_id) for op_id in record.produced_ops] or sorted(kept):
        slots = TYPE_SLOTS.get((domain, op), ())
        types = {(slot, name) for slot in slots for name in _replayed_types(known, slot, scopes)}
        named = tuple(sorted((slot, name) for slot, name in types if name))
        nameless = bool(slots) and (len(known) < len(members) or any(name is None for _, name in types))
        yield Need(domain, op, version, named, nameless, ""), label


def _parsed_id(op_id: str) -> tuple[str, str, int]:
    domain, _, rest = op_id.partition(":")
    op, _, version = rest.rpartition(":")
    if not version.isdecimal() or len(version) > 9:
        raise ModelError(f"a runtime optimization produces an unreadable operator: {op_id!r}",
                         remedy="convert the model again")  # fmt: skip
    return domain or DEFAULT_DOMAIN, op, int(version)


def _targets(nodes: list[OrtNode]) -> list[OrtNode]:
    return [node for node in nodes if node.op_type not in ("DequantizeLinear", "QuantizeLinear")] or nodes


def _replayed_types(nodes: list[OrtNode], slot: Slot, scopes: _Scopes) -> set[str | None]:
    if slot == TRIPLE:
        return {None}
    arguments = [(node.op_type, _argument(node, (INPUTS, 0)), _argument(node, (OUTPUTS, 0))) for node in nodes]
    moved = {output: given for op, given, output in arguments if op == "DequantizeLinear"}
    moved |= {given: output for op, given, output in arguments if op == "QuantizeLinear"}
    names = {_argument(node, slot) for node in _targets(nodes)} - {""}
    return {_value_type(moved.get(name, name), scopes) for name in names}
