"""The pass that gives every consumer of a DequantizeLinear its own copy (ep_rules C.1).

ONNX Runtime runs it at every level before a provider is asked, so claims are claims on the graph it leaves.
"""

from dataclasses import replace

from pipeline.partition.fresh import FreshNames
from pipeline.partition.graph import Edge, Graph, Node


def unique_dq(graph: Graph) -> Graph:
    """The graph after the pass, in bodies too; the same object when there is nothing to copy."""
    bodies = {
        index: tuple(unique_dq(body) for body in node.bodies) for index, node in graph.nodes.items() if node.bodies
    }
    if any(
        new is not old
        for index, found in bodies.items()
        for new, old in zip(found, graph.nodes[index].bodies, strict=True)
    ):
        nodes = {i: replace(n, bodies=bodies[i]) if i in bodies else n for i, n in graph.nodes.items()}
        graph = graph.with_nodes(nodes, graph.values)
    shared = [
        index for index in graph.order if graph.nodes[index].op_type == "DequantizeLinear" and _copies(graph, index)
    ]
    return _Copier(graph).run(shared) if shared else graph


def _explicit(graph: Graph, edge: Edge) -> bool:
    return edge.input_slot < len(graph.nodes[edge.consumer].inputs)


def _copies(graph: Graph, index: int) -> list[Edge]:
    """Edges whose consumer gets a copy: all but the first, or all when a graph output or a body needs the original."""
    edges = graph.out_edges[index]
    explicit = [edge for edge in edges if _explicit(graph, edge)]
    keep_original = graph.gives_output(graph.nodes[index]) or len(explicit) < len(edges)
    return explicit if keep_original else explicit[1:]


class _Copier:
    """Names and nodes of one graph while copies are added."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = dict(graph.nodes)
        self.values = dict(graph.values)
        self.node_names = {node.name for node in graph.nodes.values()}
        self.fresh = FreshNames()

    def run(self, shared: list[int]) -> Graph:
        for index in shared:
            for edge in _copies(self.graph, index):
                self._copy(self.graph.nodes[index], edge)
        return self.graph.with_nodes(self.nodes, self.values)

    def _copy(self, original: Node, edge: Edge) -> None:
        old = original.outputs[0]
        new = self.fresh.take(f"{old}/duplicated", self.values)
        self.values[new] = self.graph.value(old)
        name = self.fresh.take(f"{original.name}/duplicated", self.node_names)
        self.node_names.add(name)
        index = max(self.nodes) + 1
        self.nodes[index] = replace(original, index=index, name=name, outputs=(new,))
        consumer = self.nodes[edge.consumer]
        inputs = tuple(new if slot == edge.input_slot else given for slot, given in enumerate(consumer.inputs))
        self.nodes[edge.consumer] = replace(consumer, inputs=inputs)
