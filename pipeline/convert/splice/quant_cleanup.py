"""The removal of DequantizeLinear and QuantizeLinear pairs that level extended ends with (ep_rules H.2.5).

It asks for no provider, so it also takes pairs across the border between what is claimed and what is not.
"""

from typing import TYPE_CHECKING

from pipeline.convert.splice.edits import redirect, remove_nodes
from pipeline.convert.splice.links import Links, key
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.basic import rename_values

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

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
