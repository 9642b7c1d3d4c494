"""Edits of a graph message: who makes and reads each value, nodes out, readers redirected."""

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from pipeline.partition.answer import Settings
from pipeline.partition.basic import rename_values

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


"""Providers that a model can be made aware of. XNNPACK's nodes run on the CPU's own layout anyway."""


class AwareSource(msgspec.Struct, frozen=True, kw_only=True):
    """Whose own session saves a provider-aware file: an Android library, or the installed onnxruntime ("").

    `optional`: where it lacks the provider, refuses the model or crashes on it, the file is spliced.
    """

    library: str = ""
    release: str = ""
    sha256: str = ""
    optional: bool = False


class AwareSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Providers with their settings; `safe` leaves to the CPU what a provider's model cannot be built with.

    `reference` says whose own session is to save the file; None: splice.
    """

    providers: tuple[Settings, ...]
    safe: bool = False
    reference: AwareSource | None = None


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


def replace_nodes(graph: "GraphProto", nodes: "Iterable[NodeProto]") -> None:
    """Set a graph's nodes; they may be those that it has."""
    import onnx

    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def remove_nodes(graph: "GraphProto", gone: Collection[str]) -> None:
    """Take out the nodes with these first outputs."""
    from pipeline.convert.splice.edits import key

    if gone:
        replace_nodes(graph, [node for node in graph.node if key(node) not in gone])


def redirect(readers: "Iterable[NodeProto]", old: str, new: str) -> None:
    """Make nodes read another value, in their bodies too; what they make keeps its name."""
    for node in readers:
        made = list(node.output)
        rename_values([node], lambda name: new if name == old else name)
        node.output[:] = made
