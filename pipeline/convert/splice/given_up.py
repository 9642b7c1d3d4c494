"""Claimed nodes that the CPU's fusions take all the same from level extended on, because they do not ask (H.2.2)."""

from collections.abc import Callable, Iterator

from pipeline.partition.graph import Graph, Node


def given_up(graph: Graph, kept: frozenset[str]) -> frozenset[str]:
    """First outputs of the kept nodes that the session of a real provider would lose to the CPU."""
    finder = _Finder(graph, kept)
    searches: tuple[Callable[[Node], Iterator[Node]], ...] = (
        finder.scaled_integer_product, finder.transposed_operand, finder.shape,
    )  # fmt: skip
    found = {node.first_output for search in searches for start in graph.nodes.values() for node in search(start)}
    return frozenset(found & kept)


class _Finder:
    """Patterns on one graph; each gives the nodes that the CPU takes along."""

    def __init__(self, graph: Graph, kept: frozenset[str]) -> None:
        self.graph = graph
        self.kept = kept

    def claimed(self, node: Node) -> bool:
        """Whether a provider claims the node."""
        return node.first_output in self.kept

    def producers(self, node: Node) -> list[Node]:
        """The nodes that a node reads from."""
        return [self.graph.nodes[edge.producer] for edge in self.graph.in_edges[node.index]]

    def consumers(self, node: Node) -> list[Node]:
        """The nodes that read a node's outputs, one entry an edge."""
        return [self.graph.nodes[edge.consumer] for edge in self.graph.out_edges[node.index]]

    def private(self, node: Node) -> bool:
        """Whether just one input elsewhere reads the node, and the graph does not give it."""
        return len(self.graph.out_edges[node.index]) == 1 and not self.graph.gives_output(node)

    def scaled_integer_product(self, product: Node) -> Iterator[Node]:
        """MatMulIntegerToFloat: Mul of a Mul with a Cast of a MatMulInteger; and the bias added behind it."""
        if product.op_type != "Mul" or self.claimed(product) or self.graph.value(product.outputs[0]).dtype == "f16":
            return
        for cast in self.producers(product):
            for scale in self.producers(product):
                if cast.op_type == "Cast" and scale.op_type == "Mul" and self._is_scaled(cast, scale):
                    yield from (cast, scale)
                    yield from self._bias(product)

    def _is_scaled(self, cast: Node, scale: Node) -> bool:
        integer = next(iter(self.producers(cast)), None)
        if integer is None or integer.op_type != "MatMulInteger":
            return False
        return all(self.private(node) for node in (cast, scale, integer))

    def _bias(self, product: Node) -> Iterator[Node]:
        if not self.private(product):
            return
        adding = self.consumers(product)[0]
        constants = [self.graph.constant(name) for name in adding.inputs if name]
        vectors = [c for c in constants if c and c.dims and c.dims[-1] > 1 and set(c.dims[:-1]) <= {1}]
        if adding.op_type == "Add" and vectors:
            yield adding

    def transposed_operand(self, node: Node) -> Iterator[Node]:
        """MatmulTransposeFusion: a Transpose of the last two dimensions that only MatMuls of the CPU read."""
        readers = self.consumers(node)
        if node.op_type != "Transpose" or not readers or self.graph.gives_output(node):
            return
        swaps = _swaps_last_two(node.attributes.get("perm"), self.graph.value(node.inputs[0]).shape)
        f32 = self.graph.value(node.outputs[0]).dtype == "f32"
        if swaps and f32 and all(r.op_type == "MatMul" and not self.claimed(r) for r in readers):
            yield node

    def shape(self, node: Node) -> Iterator[Node]:
        """GatherSliceToSplit skips what a Shape makes, and would not skip a graph input in its place."""
        if node.op_type == "Shape" and any(not self.claimed(reader) for reader in self.consumers(node)):
            yield node


def _swaps_last_two(perm: tuple[int, ...] | None, shape: tuple[int | None, ...] | None) -> bool:
    if perm is None:
        perm = tuple(reversed(range(len(shape)))) if shape is not None else ()
    rank = len(perm)
    return rank >= 2 and tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)
