"""What full optimization removes and a splice must: duplicate Casts and Q/DQ pairs (ep_rules H.2.5, H.2.6)."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from pipeline.convert.splice.edits import Links, key, redirect, remove_nodes
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.basic import CAST_PREFIX, rename_values
from pipeline.partition.graph import DTYPES, Graph

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto


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
