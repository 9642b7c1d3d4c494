"""An ONNX model written so that a release reads it, where that loses nothing."""

from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec

from device_runner import providers as runner_providers
from device_runner.spec import RunOptions
from pipeline.compat.defects import Runtime
from pipeline.compat.release_table import release_table
from pipeline.compat.rules import check_onnx, facts_of
from pipeline.compat.schemas import kinds_of
from pipeline.core.errors import Finding
from pipeline.core.releases import Release
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_view, ort_format
from pipeline.model import types as onnx_types

if TYPE_CHECKING:
    import onnx

    from pipeline.partition import types as partition_types

TYPES_SINCE = {9: range(17, 21), 10: range(21, 23), 11: (23,), 12: (24,), 13: (25, 26), 14: (27, 28)}
"""Types of elements by the IR version that brought them (onnx.proto, enum Version)."""
OVERLOADS_SINCE = 10
LOWEST_IR = 8
"""What came up to here is of no interest: every release of the table reads it."""


def written_for(proto: "onnx.ModelProto", release: tuple[int, int], inner: Collection[int] = ()) -> None:
    """Change a model in place: no imports of domains that no node uses, no default of attributes that the release does
    not know, opsets and the IR version that it takes, unless something in the model came with a newer one.

    `inner` are types of values that the model does not declare.
    """
    table = release_table()
    row = table.row(release)
    onnx_edit.drop_unused_domains(proto)
    if row is None:
        return
    kinds = cache(partial(kinds_of, proto, inner))  # few models are asked for them
    _write_nodes(list(onnx_edit.all_nodes(proto.graph)), proto.opset_import, release, kinds)
    for function in proto.functions:
        _write_nodes(function.node, function.opset_import, release, kinds)
    if proto.ir_version > row.ir:
        proto.ir_version = min(proto.ir_version, max(row.ir, needed_ir(proto, inner)))


def with_opsets_for(proto: "onnx.ModelProto", release: tuple[int, int]) -> "onnx.ModelProto":
    """The model with opsets that a release takes, where no operator of it computes otherwise; itself where none are."""
    plain = {onnx_edit.plain_domain(opset.domain): opset.version for opset in proto.opset_import}
    operators = {(onnx_edit.plain_domain(node.domain), node.op_type) for node in onnx_edit.all_nodes(proto.graph)}
    kinds = partial(kinds_of, proto)
    lower = {} if proto.functions else release_table().lower_opsets(plain, operators, release, kinds)
    if not lower:
        return proto
    changed = onnx_edit.copied(proto)
    for opset in changed.opset_import:
        opset.version = lower.get(onnx_edit.plain_domain(opset.domain), opset.version)
    return changed


def refusals(
    proto: "onnx.ModelProto",
    release: tuple[int, int],
    where: str,
    values: "Mapping[str, partition_types.Value]",
    provider: str = runner_providers.CPU,
) -> tuple[Finding, ...]:
    """What a release lacks of a model, after what can be was written differently; `values` has what inner values are.

    The graph is judged as it is: what a level of optimization takes away is asked for. Kernels of the CPU that are
    missing are warnings where another provider is asked first.
    """
    written = onnx_edit.copied(proto)
    del written.graph.value_info[:]
    written_for(
        written,
        release,
        {onnx_types.CODES[value.dtype] for value in values.values() if value.dtype in onnx_types.CODES},
    )
    model = onnx_view.model_of(written, where)
    types = {name: ort_format.TensorType(code) for name, code in onnx_types.CODES.items()}
    inner = {name: types[value.dtype] for name, value in values.items() if value.dtype in types}
    graph = msgspec.structs.replace(model.graph, node_args={**inner, **model.graph.node_args})
    facts = facts_of(msgspec.structs.replace(model, graph=graph), where)
    return check_onnx(facts, Runtime(release=Release(*release)), RunOptions(provider=provider))


SMALL_BYTES = 2000
"""Of a node that is compared with others by its attributes."""


def _write_nodes(
    nodes: "Collection[onnx.NodeProto]",
    imports: "Collection[onnx.OperatorSetIdProto]",
    release: tuple[int, int],
    kinds: Callable[[], Collection[str]],
) -> None:
    table = release_table()
    opsets = {onnx_edit.plain_domain(opset.domain): opset.version for opset in imports}
    known: set[tuple[object, ...]] = set()  # nodes of which a release knows all attributes, and of all that are alike
    for node in (node for node in nodes if node.attribute):
        small = node.ByteSize() < SMALL_BYTES
        alike = (node.domain, node.op_type, *(attribute.SerializeToString() for attribute in node.attribute if small))
        if small and alike in known:
            continue
        domain, values = (
            onnx_edit.plain_domain(node.domain),
            {attribute.name: _value(attribute) for attribute in node.attribute},
        )
        unknown = table.unknown_attributes(domain, node.op_type, opsets.get(domain, 1), values, release)
        _leave_out(node, unknown)
        if small and not unknown:
            known.add(alike)
    lower = table.lower_opsets(
        opsets, {(onnx_edit.plain_domain(node.domain), node.op_type) for node in nodes}, release, kinds
    )
    for opset in imports:
        opset.version = lower.get(onnx_edit.plain_domain(opset.domain), opset.version)


def _leave_out(node: "onnx.NodeProto", names: Collection[str]) -> None:
    if names:
        onnx_edit.keep_only(node.attribute, lambda attribute: attribute.name not in names)


def needed_ir(proto: "onnx.ModelProto", inner: Collection[int] = ()) -> int:
    """The lowest IR version that has all that the model uses. What only describes (metadata, devices) counts for none.

    A release ignores fields that came after it; ONNX Runtime ignores those also where it knows them. `inner` as in
    `written_for`.
    """
    if any(function.overload for function in proto.functions):
        return OVERLOADS_SINCE
    graphs = list(onnx_edit.subgraphs(proto.graph))
    codes = {*inner, *(tensor.data_type for graph in graphs for tensor in graph.initializer)}
    codes |= {
        value.type.tensor_type.elem_type
        for graph in graphs
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    return max((ir for ir, types in TYPES_SINCE.items() if codes & set(types)), default=LOWEST_IR)


def _value(attribute: "onnx.AttributeProto") -> object:
    """The value of an attribute that is a number, a text or a list of them; None for graphs and tensors."""
    import onnx

    kind = onnx.AttributeProto
    if attribute.type not in (kind.INT, kind.FLOAT, kind.STRING, kind.INTS, kind.FLOATS, kind.STRINGS):
        return None
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type in (kind.STRING, kind.STRINGS):
        return value.decode() if isinstance(value, bytes) else [text.decode() for text in value]
    return value if isinstance(value, int | float) else list(value)
