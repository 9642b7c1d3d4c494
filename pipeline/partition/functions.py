"""Inlining of functions as ONNX Runtime does it, when it does, and down to the names (ep_rules A.1, A.2).

Model-local functions are inlined before a provider is asked; functions of ONNX's own schemas for which the CPU has no
kernel are inlined after it was asked and did not claim them.
"""

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ModelError
from pipeline.partition.answer import Settings
from pipeline.partition.graph import FreshNames, Graph, Node
from pipeline.partition.onnx_view import NEVER, NOT_F16, is_inlined, schema_function
from pipeline.partition.rules import claim

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto


MAX_NODES = 1_000_000
"""Calls of calls can multiply: a model that grows beyond this is refused."""

Body = Callable[["NodeProto"], "FunctionProto | None"]
"""The function behind a node, None when the node stays."""


def inline_local(model: "ModelProto", protected: Collection[str] = (), names: FreshNames | None = None) -> "ModelProto":
    """A copy of the model with calls of model-local functions replaced by their bodies, until none is left.

    `protected` names calls, by their first output, that a provider claims as they stand. ModelError when the model
    grows out of all bounds.
    """
    functions = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
    if not functions:
        return model
    _refuse_circles(functions)

    def body(node: "NodeProto") -> "FunctionProto | None":
        if next(iter(node.output), "") in protected:
            return None
        return functions.get(_key(node))

    return inline(model, body, names)


def _refuse_circles(functions: "Mapping[tuple[str, str, str], FunctionProto]") -> None:
    """A function that calls itself, however far around, would never be inlined."""
    calls = {
        key: {called for node in _all_nodes(function.node) if (called := _key(node)) in functions}
        for key, function in functions.items()
    }
    while leaves := {key for key, called in calls.items() if not called}:
        calls = {key: called - leaves for key, called in calls.items() if key not in leaves}
    if calls:
        names = ", ".join(sorted(name for _, name, _ in calls)[:3])
        raise ModelError(
            "functions of the model call themselves",
            why=f"among them {names}",
            remedy="export the model without functions",
        )


def _all_nodes(nodes: "Iterable[NodeProto]") -> "Iterator[NodeProto]":
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.type == 5 else attribute.graphs:
                yield from _all_nodes(body.node)


def _key(node: "NodeProto") -> tuple[str, str, str]:
    return _domain(node.domain), node.op_type, node.overload


def inline(model: "ModelProto", body: Body, names: FreshNames | None = None) -> "ModelProto":
    """A copy of the model in which every node with a body is replaced by it, again and again; in nested graphs too.

    The same model when no node has a body. `names` is the main graph's counter where inlining goes on after this.
    """
    import onnx

    if all(body(node) is None for graph in _graphs(model.graph) for node in graph.node):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    counter = names or FreshNames()
    prefixes: set[str] = set()
    while True:
        growth = sum(
            _inline_graph(result, graph, body, counter if graph is result.graph else FreshNames(), prefixes)
            for graph in _graphs(result.graph)
        )
        if not growth:
            return result
        if sum(len(graph.node) for graph in _graphs(result.graph)) > MAX_NODES:
            raise ModelError("the model's functions expand without end", why=f"more than {MAX_NODES} nodes")


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _graphs(graph: "GraphProto") -> Iterator["GraphProto"]:
    from pipeline.model.edit import subgraphs

    return subgraphs(graph)


def _inline_graph(model: "ModelProto", graph: "GraphProto", body: Body, fresh: FreshNames, prefixes: set[str]) -> int:
    """Inline the calls of one graph, once each; how many there were.

    In the main graph new nodes go to the end, as in ONNX Runtime. ONNX's inference of types looks into bodies, where
    it wants nodes in order and names that no graph around them has: `prefixes` are those given so far.
    """
    calls = {position: function for position, node in enumerate(graph.node) if (function := body(node)) is not None}
    if not calls:
        return 0
    inside = graph is not model.graph
    taken = {node.name for node in graph.node} | (prefixes if inside else set())
    kept: list[NodeProto] = []
    added: list[NodeProto] = []
    for position, node in enumerate(graph.node):
        if position not in calls:
            kept.append(node)
            continue
        prefix = fresh.take(f"_inlfunc_{node.op_type}", taken)
        taken.add(prefix)
        prefixes.add(prefix)
        (kept if inside else added).extend(expand(node, calls[position], prefix))
    nodes = _copies([*kept, *added])
    del graph.node[:]
    graph.node.extend(nodes)
    known = {_domain(entry.domain) for entry in model.opset_import}
    for function in calls.values():
        for entry in function.opset_import:
            if _domain(entry.domain) not in known:
                known.add(_domain(entry.domain))
                model.opset_import.append(entry)
    return len(calls)


def _copies(nodes: "list[NodeProto]") -> "list[NodeProto]":
    import onnx

    fresh = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        fresh.append(copy)
    return fresh


def expand(call: "NodeProto", function: "FunctionProto", prefix: str) -> "list[NodeProto]":
    """The nodes of a function in place of a call: formal names become actual ones, inner names get the prefix."""
    actual: dict[str, str] = {}
    for position, formal in enumerate(function.input):
        actual[formal] = call.input[position] if position < len(call.input) else ""
    for position, formal in enumerate(function.output):
        given = call.output[position] if position < len(call.output) else ""
        actual[formal] = given or f"{prefix}_{formal}"
    attributes: dict[str, AttributeProto] = {a.name: a for a in function.attribute_proto}
    attributes |= {a.name: a for a in call.attribute}
    return [_expand_node(node, prefix, actual, attributes) for node in function.node]


def _expand_node(
    source: "NodeProto", prefix: str, actual: dict[str, str], attributes: "Mapping[str, AttributeProto]"
) -> "NodeProto":
    import onnx

    node = onnx.NodeProto(
        op_type=source.op_type,
        domain=source.domain,
        name=f"{prefix}_{source.name}" if source.name else "",
        overload=source.overload,
    )
    node.input.extend(_rename(name, prefix, actual) for name in source.input)
    node.output.extend(_rename(name, prefix, actual) for name in source.output)
    for attribute in source.attribute:
        given = _resolve(attribute, attributes)
        if given is not None:
            node.attribute.append(given)
            _rename_bodies(node.attribute[-1], prefix, actual, attributes)
    return node


def _rename(name: str, prefix: str, actual: dict[str, str]) -> str:
    return actual.setdefault(name, f"{prefix}_{name}") if name else ""


def _resolve(attribute: "AttributeProto", given: "Mapping[str, AttributeProto]") -> "AttributeProto | None":
    """An attribute of a function's node; one that refers to an attribute of the call gets its value, or is removed."""
    import onnx

    if not attribute.ref_attr_name:
        return attribute
    value = given.get(attribute.ref_attr_name)
    if value is None:
        return None
    copy = onnx.AttributeProto()
    copy.CopyFrom(value)
    copy.name = attribute.name
    return copy


def _rename_bodies(
    attribute: "AttributeProto", prefix: str, actual: dict[str, str], attributes: "Mapping[str, AttributeProto]"
) -> None:
    """Rename in bodies of control flow inside a function; values of a body's own keep to the body."""
    bodies: list[Any] = [attribute.g] if attribute.type == 5 else list(attribute.graphs)
    for body in bodies:
        inner = dict(actual)
        for value in (*body.input, *body.output):
            inner[value.name] = value.name = f"{prefix}_{value.name}"
        for tensor in body.initializer:
            inner[tensor.name] = tensor.name = f"{prefix}_{tensor.name}"
        nodes = [_expand_node(node, prefix, inner, attributes) for node in body.node]
        del body.node[:]
        body.node.extend(nodes)


View = Callable[["ModelProto"], Graph]


def before_partitioning(model: "ModelProto", view: View, settings: Settings) -> "ModelProto":
    """What a model with functions has become when the provider is asked: calls it does not claim are inlined.

    The same model when it has no functions.
    """
    if not model.functions:
        return model
    table = importlib.import_module(settings.rules.rules).TABLE
    protected: Collection[str] = ()
    if any(function.name in table for function in model.functions):
        protected = _claimed_outputs(view(model), settings)
    names = FreshNames()
    model = inline_local(model, protected, names)
    graph = view(model)
    return without_functions(model, graph, _claimed_outputs(graph, settings), names)


def _claimed_outputs(graph: Graph, settings: Settings) -> frozenset[str]:
    provider_claim = claim(graph, settings)
    return frozenset(node.first_output for group in provider_claim.groups for node in group)


def without_functions(
    model: "ModelProto", graph: Graph, claimed: Collection[str], names: FreshNames | None = None
) -> "ModelProto":
    """The model with the schema functions inlined that are not claimed and that the CPU cannot run.

    `claimed` are first outputs, `names` the counter of an earlier inlining in the same graph.
    """
    import onnx

    imports = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in model.opset_import}
    calls = {node.first_output for node in graph.nodes.values() if is_inlined(graph, node)} - set(claimed)

    def body(node: "NodeProto") -> "FunctionProto | None":
        called = next(iter(node.output), "") in calls and node.domain in ("", "ai.onnx")
        has_function = called and (node.op_type in NEVER or node.op_type in NOT_F16)
        return schema_function(node, imports, graph) if has_function else None

    if not calls:
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    add_copies(copied.graph, graph)
    inlined = inline(copied, body, names)
    return model if inlined is copied else inlined


def add_copies(graph: "GraphProto", view: Graph) -> None:
    """Give each reader of a shared DequantizeLinear the copy that it has in the view (ep_rules C.1), in place.

    What is inlined afterwards reads the copy of its call, which several of its nodes may then share.
    """
    messages = {next(filter(None, node.output), ""): node for node in graph.node}
    for node in view.nodes.values():
        message = messages.get(node.first_output)
        if message is None:  # a copy, which its reader brings
            continue
        for slot, name in enumerate(node.inputs):
            if message.input[slot] == name:
                continue
            source = view.nodes[view.producers[name][0]]
            copy = graph.node.add()
            copy.CopyFrom(messages[message.input[slot]])
            copy.name, copy.input[:], copy.output[:] = source.name, source.inputs, source.outputs
            message.input[slot] = name


def inlined_view(graph: Graph, after: Graph) -> tuple[Graph, frozenset[int]]:
    """The graph with the calls that `after` has no more replaced by their bodies, and the indices of the new nodes.

    Nodes that stay keep their indices; the unique-DQ pass is not run again (A.2).
    """
    known = {(node.op_type, node.outputs) for node in graph.nodes.values()}
    remaining = {(node.op_type, node.outputs) for node in after.nodes.values()}
    nodes = {
        i: node
        for i, node in graph.nodes.items()
        if (node.op_type, node.outputs) in remaining or node.op_type == "DequantizeLinear"
    }
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
