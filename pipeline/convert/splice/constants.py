"""Makes a graph's message have the nodes of its view: what ONNX Runtime itself changes while it loads a model."""

from typing import TYPE_CHECKING, Any

from pipeline.convert.splice.links import key
from pipeline.partition.graph import Graph

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto


def lift_constants(graph: "GraphProto") -> None:
    """Turn Constant nodes (inlined functions have them) into initializers, as ONNX Runtime does on loading."""
    constants = [node for node in graph.node if _is_constant(node)]
    if not constants:
        return
    graph.initializer.extend(_tensor(node) for node in constants)
    kept = [node for node in graph.node if not _is_constant(node)]
    del graph.node[:]
    graph.node.extend(kept)


def _is_constant(node: "NodeProto") -> bool:
    """Whether it is a Constant node of numbers; other kinds stay nodes."""
    plain = node.op_type == "Constant" and node.domain in ("", "ai.onnx") and len(node.attribute) == 1
    return plain and not node.attribute[0].name.startswith(("sparse", "value_string"))


def _tensor(node: "NodeProto") -> "TensorProto":
    import onnx

    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = node.output[0]
        return tensor
    content: Any = onnx.helper.get_attribute_value(attribute)
    kind = onnx.TensorProto.FLOAT if "float" in attribute.name else onnx.TensorProto.INT64
    many = isinstance(content, (list, tuple))
    return onnx.helper.make_tensor(node.output[0], kind, [len(content)] if many else [], content if many else [content])


def add_copies(graph: "GraphProto", view: Graph) -> None:
    """Add the DequantizeLinear copies that the view has more than the message (ep_rules C.1)."""
    import onnx

    known = {key(node): node for node in graph.node}
    copies = [node for node in view.nodes.values() if node.first_output not in known]
    if not copies:
        return
    originals = {tuple(node.input): node for node in graph.node if node.op_type == "DequantizeLinear"}
    for copy in copies:
        added = onnx.NodeProto()
        added.CopyFrom(originals[copy.inputs])
        added.name, added.output[:] = copy.name, copy.outputs
        known[copy.first_output] = added
    for node in view.nodes.values():
        known[node.first_output].input[:] = node.inputs
    graph.node.extend(known[copy.first_output] for copy in copies)
