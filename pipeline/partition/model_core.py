"""The part of a graph that is the model's own: what is said of a provider counts it, and not the ends beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.model import edit as onnx_edit
from pipeline.partition.claiming import Claim
from pipeline.partition.graph import Graph, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """`graph` has the model's own nodes, `ends` are those beside them, by index; without ends it is the whole graph."""

    graph: Graph
    ends: Mapping[int, Node]
    hidden: frozenset[str] = frozenset()
    """Inputs of the whole graph that the core does not see: whatever their sizes are, its own shapes are known."""

    def claim(self, whole: Claim) -> Claim:
        """What a claim says of the core: partitions of ends alone are none."""
        if not self.ends:
            return whole
        groups = [[node for node in group if node.index not in self.ends] for group in whole.groups]
        refusals = {index: refusal for index, refusal in whole.refusals.items() if index not in self.ends}
        return replace(whole, groups=tuple(tuple(group) for group in groups if group), refusals=refusals)


def core_of(graph: Graph) -> Core:
    """The core of a graph."""
    ends = {index: node for index, node in graph.nodes.items() if node.name.startswith(onnx_edit.ENDS)}
    if not ends:
        return Core(graph=graph, ends=ends)
    own = {index: node for index, node in graph.nodes.items() if index not in ends}
    read, written = _names(own)
    read_by_ends, written_by_ends = _names(ends)
    given = written_by_ends & read
    inputs = tuple(name for name in graph.inputs if name in read)
    outputs = (*(name for name in graph.outputs if name in written), *sorted(written & read_by_ends))
    fixed = all(graph.value(name).static for name in given)
    return Core(
        graph=replace(graph, nodes=own, inputs=(*inputs, *sorted(given)), outputs=tuple(dict.fromkeys(outputs))),
        ends=ends,
        hidden=frozenset(graph.inputs) - read if fixed else frozenset(),
    )


def _names(nodes: Mapping[int, Node]) -> tuple[frozenset[str], frozenset[str]]:
    """What nodes read, and what they write."""
    read = (name for node in nodes.values() for name in (*node.inputs, *node.implicit_inputs))
    return frozenset(read), frozenset(name for node in nodes.values() for name in node.outputs)
