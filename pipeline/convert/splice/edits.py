"""Edits of a graph message: who makes and reads each value, nodes out, readers redirected, needless casts out."""

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from pipeline.core.abis import X86_64
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.answer import Settings
from pipeline.partition.basic import CAST_PREFIX, rename_values
from pipeline.partition.graph import DTYPES, Graph

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto


"""Providers that a model can be made aware of. XNNPACK's nodes run on the CPU's own layout anyway."""


class AwareSource(msgspec.Struct, frozen=True, kw_only=True):
    """Whose own session saves a provider-aware file: an Android library for an ABI, or the installed onnxruntime ("").

    `optional`: where it lacks the provider, refuses the model or crashes on it, the file is spliced.
    """

    library: str = ""
    abi: str = X86_64
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


FLOATS = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
SIGNED = {"i4": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8}
UNSIGNED = {"bool": 1, "u4": 1, "u8": 1, "u16": 2, "u32": 4, "u64": 8}
"""Sizes in bytes by kind of type; half bytes count as whole."""


def remove_duplicate_casts(model: LeanModel, view: Graph, kept: Collection[str]) -> None:
    """Take out Casts that undo one another, in place, where one of them is among the `kept` nodes."""
    graph = model.proto.graph
    for name in [key(node) for node in graph.node if node.op_type == "Cast"]:
        links = Links(graph)
        cast = links.maker.get(name)
        if cast is not None:
            _clean(graph, _Types(links, view), links, cast, kept)


class _Types:
    """Element types around Casts."""

    def __init__(self, links: Links, view: Graph) -> None:
        self.links = links
        self.view = view

    def source(self, cast: "NodeProto") -> str:
        """What a Cast reads: what another Cast made, an f32 stand-in that saving inserted, or as the view says."""
        name = cast.input[0]
        maker = self.links.maker.get(name)
        if maker is not None and maker.op_type == "Cast":
            return self.target(maker)
        return "f32" if name.startswith(CAST_PREFIX) else (self.view.value(name).dtype or "")

    def target(self, cast: "NodeProto") -> str:
        """What a Cast makes."""
        return next((DTYPES.get(a.i, "") for a in cast.attribute if a.name == "to"), "")


def _clean(graph: "GraphProto", types: _Types, links: Links, cast: "NodeProto", kept: Collection[str]) -> None:
    readers = links.consumers(cast)
    casts = [reader for reader in readers if reader.op_type == "Cast"]
    if not casts or not any(key(node) in kept for node in (cast, *casts)):
        return
    before, after = types.source(cast), types.target(cast)
    if _unsafe(before, after, cast) and any(_unsafe(types.target(y), types.source(y), y) for y in casts):
        return
    undone = [y for y in casts if types.target(y) == before and not links.gives_output(y)]
    for one in undone:
        redirect(links.consumers(one), one.output[0], cast.input[0])
    gone = {key(one) for one in undone}
    if len(casts) == len(readers) and not links.gives_output(cast):
        redirect(casts, cast.output[0], cast.input[0])
        gone.add(key(cast))
    remove_nodes(graph, gone)


def _unsafe(source: str, target: str, cast: "NodeProto") -> bool:
    """Whether a Cast may lose something, as ONNX Runtime judges it."""
    if source in FLOATS and target not in FLOATS:
        return True
    if target in UNSIGNED:
        if source not in UNSIGNED:
            return True
    elif target in FLOATS and source not in FLOATS:
        return FLOATS[target] <= _size(source)
    elif target in SIGNED and source in UNSIGNED:
        return SIGNED[target] <= _size(source)
    return _size(target) < _size(source) and not cast.name.startswith(CAST_PREFIX)


def _size(kind: str) -> int:
    return {**FLOATS, **SIGNED, **UNSIGNED}.get(kind, 8)


QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DOMAINS = ("", "ai.onnx", "com.microsoft")


def remove_cancelling_pairs(model: LeanModel) -> None:
    """Take out, in place, each DequantizeLinear that only equal QuantizeLinear nodes read, with these."""
    graph = model.proto.graph
    links = Links(graph)
    found = [key(node) for node in graph.node if _is_dequantize(node) and _cancels(graph, links, node)]
    for name in found:
        links = Links(graph)
        if _cancels(graph, links, links.maker[name]):
            _cancel(graph, links, links.maker[name])


def _is_dequantize(node: "NodeProto") -> bool:
    return node.op_type == DEQUANTIZE and node.domain in DOMAINS


def _cancels(graph: "GraphProto", links: Links, node: "NodeProto") -> bool:
    readers = links.consumers(node)
    if not readers or links.gives_output(node):
        return False
    constants = {tensor.name: tensor for tensor in graph.initializer}
    return all(_is_plain_end(links, reader) and _same_parameters(constants, node, reader) for reader in readers)


def _is_plain_end(links: Links, node: "NodeProto") -> bool:
    """Whether it is a QuantizeLinear with one reader, or one that gives a graph output and nothing else."""
    if node.op_type != QUANTIZE or node.domain not in DOMAINS:
        return False
    return len(links.consumers(node)) == (0 if links.gives_output(node) else 1)


def _same_parameters(constants: "dict[str, TensorProto]", first: "NodeProto", second: "NodeProto") -> bool:
    """Whether both have equal constant scalars for scale and zero point (ep_rules C.2)."""
    if len(first.input) != 3 or len(second.input) != 3:
        return False
    pairs = [(constants.get(first.input[slot]), constants.get(second.input[slot])) for slot in (1, 2)]
    return all(a is not None and b is not None and _equal_scalars(a, b) for a, b in pairs)


def _equal_scalars(first: "TensorProto", second: "TensorProto") -> bool:
    from onnx import numpy_helper

    if first.data_type != second.data_type or any(list(t.dims) not in ([], [1]) for t in (first, second)):
        return False
    one, other = numpy_helper.to_array(first), numpy_helper.to_array(second)
    return bool(one.reshape(()).tobytes() == other.reshape(()).tobytes())


def _cancel(graph: "GraphProto", links: Links, node: "NodeProto") -> None:
    source, ends = node.input[0], links.consumers(node)
    gone = {key(node), *(key(end) for end in ends)}
    outputs = [end.output[0] for end in ends if links.gives_output(end)]
    for end in ends:
        redirect(links.consumers(end), end.output[0], source)
    remove_nodes(graph, gone)
    if len(ends) == len(outputs) == 1 and source in links.maker and source not in links.outputs:
        rename_values(graph.node, lambda name: outputs[0] if name == source else name)
        return
    for output in outputs:
        graph.node.add(op_type="Identity", input=[source], output=[output])
