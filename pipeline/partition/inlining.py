"""When ONNX Runtime inlines functions around the question to a provider, and what that one sees (ep_rules A.1, A.2)."""

import importlib
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.partition.answer import Settings
from pipeline.partition.claim import PROVIDERS, claim
from pipeline.partition.fresh import FreshNames
from pipeline.partition.functions import inline, inline_local
from pipeline.partition.graph import Graph, Node
from pipeline.partition.kernels import NEVER, NOT_F16, is_inlined, schema_function

if TYPE_CHECKING:
    from onnx import FunctionProto, ModelProto, NodeProto

View = Callable[["ModelProto"], Graph]


def before_partitioning(model: "ModelProto", view: View, settings: Settings) -> "ModelProto":
    """What a model with functions has become when the provider is asked: calls it does not claim are inlined.

    The same model when it has no functions.
    """
    if not model.functions:
        return model
    table = importlib.import_module(PROVIDERS[settings.provider]).TABLE
    protected: Collection[str] = ()
    if any(function.name in table for function in model.functions):
        protected = _claimed_outputs(view(model), settings)
    names = FreshNames()
    model = inline_local(model, protected, names)
    graph = view(model)
    return without_functions(model, graph, _claimed_outputs(graph, settings), names)


def _claimed_outputs(graph: Graph, settings: Settings) -> frozenset[str]:
    found = claim(graph, settings)
    return frozenset(node.first_output for group in found.groups for node in group)


def without_functions(
    model: "ModelProto", graph: Graph, claimed: Collection[str], names: FreshNames | None = None
) -> "ModelProto":
    """The model with the schema functions inlined that are not claimed and that the CPU cannot run.

    `claimed` are first outputs, `names` the counter of an earlier inlining in the same graph.
    """
    imports = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in model.opset_import}
    calls = {node.first_output for node in graph.nodes.values() if is_inlined(graph, node)} - set(claimed)

    def body(node: "NodeProto") -> "FunctionProto | None":
        called = next(iter(node.output), "") in calls and node.domain in ("", "ai.onnx")
        return schema_function(node, imports, graph) if called and _has_function(node) else None

    return inline(model, body, names) if calls else model


def _has_function(node: "NodeProto") -> bool:
    return node.op_type in NEVER or node.op_type in NOT_F16


def inlined_view(graph: Graph, after: Graph) -> tuple[Graph, frozenset[int]]:
    """The graph with the calls that `after` has no more replaced by their bodies, and the indices of the new nodes.

    Nodes that stay keep their indices; the unique-DQ pass is not run again (A.2).
    """
    known = {(node.op_type, node.outputs) for node in graph.nodes.values()}
    remaining = {(node.op_type, node.outputs) for node in after.nodes.values()}
    nodes = {i: node for i, node in graph.nodes.items() if (node.op_type, node.outputs) in remaining or _copied(node)}
    first = max(graph.nodes, default=-1) + 1
    fresh: dict[int, Node] = {}
    for node in after.nodes.values():
        if (node.op_type, node.outputs) not in known:
            fresh[first + len(fresh)] = replace(node, index=first + len(fresh))
    merged = replace(
        graph,
        nodes=nodes | fresh,
        values={**after.values, **graph.values},
        initializers={**after.initializers, **graph.initializers},
    )
    return merged, frozenset(fresh)


def _copied(node: Node) -> bool:
    return node.op_type == "DequantizeLinear"
