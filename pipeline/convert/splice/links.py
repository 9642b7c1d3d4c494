"""Who makes and who reads each value of a graph message, bodies of control flow included."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


def key(node: "NodeProto") -> str:
    """What identifies a node in a graph: its first output that is not left out."""
    return next((name for name in node.output if name), "")


def reads(node: "NodeProto") -> list[str]:
    """Every value that a node reads, input by input, then what its bodies read from around them, each of these once."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for body in [attribute.g] if attribute.type == attribute.GRAPH else attribute.graphs:
            names += dict.fromkeys(_free_names(body))
    return names


def _free_names(body: "GraphProto") -> Iterator[str]:
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {sparse.values.name for sparse in body.sparse_initializer}
    own |= {name for node in body.node for name in node.output}
    used = [name for node in body.node for name in reads(node)] + [value.name for value in body.output]
    yield from (name for name in used if name not in own)


class Links:
    """An index of a graph's nodes; it does not follow later changes."""

    def __init__(self, graph: "GraphProto") -> None:
        self.maker: dict[str, NodeProto] = {name: node for node in graph.node for name in node.output if name}
        self.readers: dict[str, list[NodeProto]] = {}
        for node in graph.node:
            for name in reads(node):
                self.readers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in graph.output}

    def consumers(self, node: "NodeProto") -> "list[NodeProto]":
        """The nodes that read what a node makes, one entry an edge."""
        return [reader for name in node.output for reader in self.readers.get(name, ())]

    def gives_output(self, node: "NodeProto") -> bool:
        """Whether an output of the node is an output of the graph."""
        return not self.outputs.isdisjoint(node.output)


def sorted_nodes(nodes: "Iterable[NodeProto]") -> "list[NodeProto]":
    """The nodes so that each comes after those it reads from; otherwise in the order given."""
    given = list(nodes)
    maker = {name: place for place, node in enumerate(given) for name in node.output if name}
    order: list[int] = []
    state = [0] * len(given)  # 1: its producers are being placed, 2: placed
    for start in range(len(given)):
        stack = [start]
        while stack:
            place = stack[-1]
            if not state[place]:
                state[place] = 1
                before = (maker[name] for name in reads(given[place]) if name in maker)
                stack += reversed([other for other in before if not state[other]])
            else:
                stack.pop()
                if state[place] == 1:
                    state[place] = 2
                    order.append(place)
    return [given[place] for place in order]
