"""ONNX graphs as protobuf messages: looked through and changed in place. Bodies are the graphs of If, Loop and Scan."""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from pipeline.core.errors import ModelError

if TYPE_CHECKING:
    import onnx

M = TypeVar("M", bound=Message)
ONNX_DOMAINS = ("", "ai.onnx")
"""ONNX's own operators: its domain has two spellings."""


ENDS = "app_data/"
"""What the names of nodes begin with that make tensors of an app's data and back, beside a model's own."""


def plain_domain(domain: str) -> str:
    """A domain in the spelling that graphs have here: "" for ONNX's own."""
    return "" if domain in ONNX_DOMAINS else domain


def copied(message: M) -> M:
    """A copy of a message, to be changed."""
    copy: M = type(message)()
    copy.CopyFrom(message)
    return copy


def subgraphs(graph: "onnx.GraphProto") -> "Iterator[onnx.GraphProto]":
    """The graph and all bodies inside it, in no special order; not recursive, so depth is no matter."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def all_nodes(graph: "onnx.GraphProto") -> "Iterator[onnx.NodeProto]":
    """The nodes of the graph and of all bodies inside it."""
    return (node for body in subgraphs(graph) for node in body.node)


def attribute(node: "onnx.NodeProto", name: str, default: Any = None) -> Any:
    """An attribute's value as Python has it: numbers, lists of them, str for text."""
    from onnx import helper

    for node_attribute in node.attribute:
        if node_attribute.name == name:
            value = helper.get_attribute_value(node_attribute)
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return default


def operand(node: "onnx.NodeProto", slot: int) -> str:
    """The name in an input slot; "" when it is left out."""
    return node.input[slot] if slot < len(node.input) else ""


def first_output(node: "onnx.NodeProto") -> str:
    """What identifies a node in a graph: its first output that is not left out."""
    return next(filter(None, node.output), "")


def read_names(nodes: "Iterable[onnx.NodeProto]") -> set[str]:
    """Names of all values that nodes read, those of outer graphs that their bodies read among them.

    A body's own names are in it, too: no outer value has one of them (ONNX IR specification, names within a graph).
    """
    names: set[str] = set()
    for node in nodes:
        names.update(node.input)
        for node_attribute in node.attribute:
            for body in (
                [node_attribute.g, *node_attribute.graphs]
                if node_attribute.HasField("g") or node_attribute.graphs
                else ()
            ):
                for graph in subgraphs(body):
                    names.update(value.name for value in graph.output)
                    names.update(name for inner in graph.node for name in inner.input)
    return names - {""}


def names_in(graph: "onnx.GraphProto") -> set[str]:
    """Every name of a value in the graph and in the bodies inside it."""
    names: set[str] = set()
    for body in subgraphs(graph):
        names.update(value.name for value in (*body.input, *body.output, *body.initializer))
        for node in body.node:
            names.update((*node.input, *node.output))
    return names


def constant_names(graph: "onnx.GraphProto") -> set[str]:
    """Names of the initializers, sparse ones too."""
    return {t.name for t in graph.initializer} | {sparse.values.name for sparse in graph.sparse_initializer}


def constant_tensors(graph: "onnx.GraphProto") -> "Iterator[tuple[str, onnx.TensorProto]]":
    """Every dense constant of the graph and the bodies inside it, by the name that its readers use."""
    for body in subgraphs(graph):
        yield from ((tensor.name, tensor) for tensor in body.initializer)
        for node in body.node:
            if node.op_type == "Constant":
                yield from (
                    (first_output(node), node_attribute.t)
                    for node_attribute in node.attribute
                    if node_attribute.name == "value"
                )


def fresh_name(base: str, taken: set[str]) -> str:
    """A name that nothing has: `base`, or `base` with a number; it counts as taken from now on."""
    name, number = base, 0
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def keep_only(repeated: Any, keep: Callable[[Any], bool]) -> None:
    """Remove from a repeated field of a message what `keep` does not want; what stays is not copied."""
    for index in reversed(range(len(repeated))):
        if not keep(repeated[index]):
            del repeated[index]


def set_nodes(graph: "onnx.GraphProto", nodes: "Iterable[onnx.NodeProto]") -> None:
    """Give a graph other nodes, its old ones among them or not."""
    copies = [copied(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def sort_nodes(graph: "onnx.GraphProto") -> None:
    """Put the nodes of the main graph into an order in which values are made before they are read.

    Nodes that are in order keep their places; bodies count as readers of the outer values that they name. ModelError
    for a graph with a cycle.
    """
    waiting = list(graph.node)
    outputs = {name for node in waiting for name in node.output if name}
    needs = [read_names([node]) & outputs for node in waiting]
    readers: dict[str, list[int]] = {}
    for index, names in enumerate(needs):
        for name in names:
            readers.setdefault(name, []).append(index)
    ready = [index for index, names in enumerate(needs) if not names]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for name in waiting[index].output:
            for reader in readers.pop(name, ()):
                needs[reader].discard(name)
                if not needs[reader]:
                    heapq.heappush(ready, reader)
    if len(order) != len(waiting):
        raise ModelError("the graph has a cycle", remedy="export the model again")
    if order != sorted(order):
        set_nodes(graph, (waiting[index] for index in order))


def drop_unread(graph: "onnx.GraphProto") -> None:
    """Remove initializers that no node, body or output reads any more."""
    read = read_names(graph.node) | {value.name for value in (*graph.output, *graph.input)}
    keep_only(graph.initializer, lambda tensor: tensor.name in read)


def onnx_opset(proto: "onnx.ModelProto") -> int:
    """The version of ONNX's own operators; 0 when a model has none."""
    return max((opset.version for opset in proto.opset_import if opset.domain in ONNX_DOMAINS), default=0)


def drop_unused_domains(proto: "onnx.ModelProto") -> None:
    """Remove opset imports that no node uses: onnxruntime declares all that it knows when it saves."""
    if not any(opset.domain for opset in proto.opset_import):
        return
    used = {node.domain for node in all_nodes(proto.graph)} | {function.domain for function in proto.functions} | {""}
    keep_only(proto.opset_import, lambda opset: opset.domain in used)
