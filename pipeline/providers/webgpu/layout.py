"""Where the layout transformation of a WebGPU session puts a Transpose that no GPU computes.

In NHWC ONNX Runtime sets a Transpose before and behind each node with a kernel for that layout and moves the one behind
on, through all that can compute in the other order, to where two cancel or nothing moves any more; the one that comes
behind a DequantizeLinear goes before that (layout_transformation/ and transpose_optimization/ in
onnxruntime/core/optimizer). What is left has the type of the values there: for bools, 64-bit integers and bytes there
is no kernel, so it goes to the CPU, and a session of an ORT format file has no copies around it.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.partition.answer import Settings
from pipeline.partition.graph import Graph, Node
from pipeline.providers.webgpu.kernels import NHWC, kernels

Order = tuple[int, ...]
"""The permutation of the Transpose that would give a value its own order again."""


def channels_last(rank: int) -> Order:
    """The order of a value that a kernel for NHWC made: its Transpose puts the channels, now last, second again."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 2 else ()


@dataclass
class _Moves:
    """The orders of values as the transformation leaves them, and the nodes at which a Transpose has to stay."""

    graph: Graph
    orders: dict[str, Order] = field(default_factory=dict)
    stays: dict[str, Node] = field(default_factory=dict)

    def rank(self, name: str) -> int | None:
        constant = self.graph.constant(name)
        shape = self.graph.value(name).shape if constant is None else constant.dims
        return None if shape is None else len(shape)

    def stop(self, node: Node) -> None:
        """Values that the node reads need their own order here."""
        for name in (*node.inputs, *node.implicit_inputs):
            if name in self.orders:
                self.stays.setdefault(name, node)

    def all_in(self, node: Node, order: Order) -> None:
        """Other values that it reads need a Transpose into that order, but constants and what has no dimensions to
        permute.
        """
        for name in node.inputs:
            if name and self.graph.constant(name) is None and self.orders.get(name) != order:
                rank = self.rank(name)
                if name in self.orders or (rank is not None and rank > 1):
                    self.stays.setdefault(name, node)


def moved_to_cpu(graph: Graph, settings: Settings, claimed: Container[int]) -> Iterator[Node]:
    """The nodes of a graph whose values a Transpose on the CPU would permute in the layout NHWC, each once."""
    if not settings.nhwc:
        return
    moves = _Moves(graph)
    producers = {name: node for node in graph.nodes.values() for name in node.outputs if name}
    for index in graph.order:
        node = graph.nodes[index]
        if index in claimed and _has_nhwc(node):
            first = node.inputs[0] if node.inputs else ""
            order = channels_last(moves.rank(first) or 0)
            if moves.orders.get(first) != order:
                moves.stays.setdefault(first, node)
            if order:
                moves.orders[node.first_output] = order
        elif any(name in moves.orders for name in node.inputs):
            _move(moves, node)
        else:
            moves.stop(node)  # what its bodies read
    for name in graph.outputs:
        if name in moves.orders and name in producers:
            moves.stays.setdefault(name, producers[name])
    movable = {name for kernel in kernels()["", "Transpose"] for name in kernel.types["T"]}
    left: dict[int, Node] = {}
    for name, node in moves.stays.items():
        source = _behind_dequantize(producers, name)
        if source is not None and graph.constant(source.inputs[0]) is None:
            name, node = source.inputs[0], source
        dtype = graph.value(name).dtype
        if dtype is not None and dtype not in movable:
            left.setdefault(node.index, node)
    yield from left.values()


def _has_nhwc(node: Node) -> bool:
    """Whether a session gives a claimed node the kernel for NHWC; seen of all but InstanceNormalization."""
    op_type = "Conv" if node.op_type == "FusedConv" else node.op_type
    return op_type != "InstanceNormalization" and (NHWC, op_type) in kernels()


def _behind_dequantize(producers: Mapping[str, Node], name: str) -> Node | None:
    """The DequantizeLinear that gives a value, a Transpose between or not."""
    node = producers.get(name)
    if node is not None and node.op_type == "Transpose":
        node = producers.get(node.inputs[0])
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def _move(moves: _Moves, node: Node) -> None:
    """Move the Transposes before a node behind it where the optimizer does; else they stay there."""
    orders = [moves.orders[name] for name in node.inputs if name in moves.orders]
    longest = max(orders, key=len)
    handler = HANDLERS.get(node.op_type) if not node.domain else None
    after = handler(moves, node, longest) if handler else None
    if after is None:
        moves.stop(node)
        return
    for name in filter(None, node.outputs):
        if after and after != tuple(range(len(after))):
            moves.orders[name] = after


Handler = Callable[[_Moves, Node, Order], Order | None]
"""Gives the order of a node's outputs, () for none; None where a Transpose is not moved through it."""


def _same(moves: _Moves, node: Node, order: Order) -> Order | None:
    return order if node.inputs[0] in moves.orders else None


def _broadcast(moves: _Moves, node: Node, order: Order) -> Order | None:
    ranks = [moves.rank(name) for name in node.inputs if name]
    if None in ranks or max(rank for rank in ranks if rank is not None) != len(order):
        return None
    moves.all_in(node, order)
    return order


def _shape(_moves: _Moves, _node: Node, _order: Order) -> Order | None:
    return ()  # it gives its numbers in another order


def _axes(moves: _Moves, node: Node) -> Sequence[int] | None:
    """The axes that a node names, () for all; None where an input that is no constant does."""
    given = node.attributes.get("axes")
    if given is None and "axis" in node.attributes:
        given = [node.attributes["axis"]]
    if given is None and len(node.inputs) > 1 and node.inputs[1]:
        constant = moves.graph.constant(node.inputs[1])
        if constant is None:
            return None
        given = constant.numbers()
    return [int(axis) for axis in given or ()]


def _fold(moves: _Moves, node: Node, order: Order) -> Order | None:
    axes = _axes(moves, node)
    if axes is None or node.inputs[0] not in moves.orders or (node.op_type == "Squeeze" and not axes):
        return None
    if node.op_type != "Squeeze" and node.attributes.get("keepdims", 1):
        return order
    gone = {axis % len(order) for axis in axes} or set(range(len(order)))
    kept = [axis for axis in range(len(order)) if axis not in gone]
    left = [order[axis] for axis in kept]  # where each lies in the other order
    return tuple(sorted(left).index(axis) for axis in left)


def _unsqueeze(moves: _Moves, node: Node, order: Order) -> Order | None:
    axes = _axes(moves, node)
    if axes is None or node.inputs[0] not in moves.orders:
        return None
    rank = len(order) + len(axes)
    new = {axis % rank for axis in axes}
    rest = iter(order)
    places = {axis: next(rest) for axis in range(rank) if axis not in new}
    ahead = sorted(new)
    return tuple(ahead.index(axis) if axis in new else places[axis] + len(ahead) for axis in range(rank))


def _transpose(_moves: _Moves, node: Node, order: Order) -> Order | None:
    permutation = node.attributes.get("perm") or tuple(reversed(range(len(order))))
    return tuple(order[axis] for axis in permutation)


MOVES: Sequence[tuple[Handler, str]] = (
    (
        _same,
        "Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Celu Clip Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish",
    ),
    (
        _same,
        "Identity IsInf IsNaN LeakyRelu Log Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus",
    ),
    (_same, "Softsign Sqrt Tan Tanh ThresholdedRelu"),
    (_same, "DequantizeLinear Hardmax LogSoftmax Pad QuantizeLinear Slice Softmax Split Tile"),
    (
        _broadcast,
        "Add And BitShift Concat Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu",
    ),
    (_broadcast, "Pow Sub Sum Where Xor"),
    (_fold, "ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd"),
    (_fold, "ReduceSum ReduceSumSquare Squeeze"),
    (_shape, "Shape"),
    (_transpose, "Transpose"),
    (_unsqueeze, "Unsqueeze"),
)
"""What Transposes are moved through, and how; before all others they stay."""
HANDLERS: Mapping[str, Handler] = {op_type: handler for handler, names in MOVES for op_type in names.split()}
