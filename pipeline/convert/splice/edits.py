"""Edits of a graph message: nodes out, readers redirected."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pipeline.partition.basic import rename_values

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


def replace_nodes(graph: "GraphProto", nodes: "Iterable[NodeProto]") -> None:
    """Set a graph's nodes; they may be those that it has."""
    import onnx

    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def remove_nodes(graph: "GraphProto", gone: Collection[str]) -> None:
    """Take out the nodes with these first outputs."""
    from pipeline.convert.splice.links import key

    if gone:
        replace_nodes(graph, [node for node in graph.node if key(node) not in gone])


def redirect(readers: "Iterable[NodeProto]", old: str, new: str) -> None:
    """Make nodes read another value, in their bodies too; what they make keeps its name."""
    for node in readers:
        made = list(node.output)
        rename_values([node], lambda name: new if name == old else name)
        node.output[:] = made
