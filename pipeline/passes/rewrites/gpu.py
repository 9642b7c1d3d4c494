"""What keeps models from GPUs: values that are quantized between float operators, and listed inputs without a name."""

from typing import TYPE_CHECKING, Any

from pipeline.core.groups import grouped
from pipeline.model.edit import copied, operand, set_nodes, subgraphs
from pipeline.passes.rewrites.facts import GraphFacts

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

CLIP_BY_INPUTS = 11
"""The first opset whose Clip has its bounds as inputs."""

RANGES = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65_535), "i16": (-32_768, 32_767)}
"""What a quantized type can hold."""


def without_empty_inputs(model: "ModelProto", _known: GraphFacts) -> "ModelProto | None":
    """A copy whose nodes list no inputs without a name at their end; None where none does.

    ONNX says that both mean the same. WebGPU's kernels of Conv and ConvTranspose read such a bias all the same.
    """
    changed = copied(model)
    dropped = 0
    for graph in subgraphs(changed.graph):
        for node in graph.node:
            while node.input and not node.input[-1]:
                del node.input[-1]
                dropped += 1
    return changed if dropped else None


def in_float(model: "ModelProto", facts: GraphFacts) -> "ModelProto | None":
    """A copy that computes in float what QuantizeLinear and DequantizeLinear say is quantized; None where nothing is.

    Weights become float ones. A value that was rounded to a type's range is only cut to it, by Clip, so that outputs
    differ by the rounding alone. What has no constant scale of f32 for the whole value, or feeds an operator that
    computes with integers, stays.
    """
    from onnx import helper, numpy_helper

    if facts.opset < CLIP_BY_INPUTS:
        return None
    changed = copied(model)
    graph = changed.graph
    readers = grouped((name, node) for inner in subgraphs(graph) for node in inner.node for name in node.input)
    kept = {value.name for value in graph.output}
    removed: set[str] = set()
    replaced: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and (weights := _float_weights(node, facts)) is not None:
            graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
            removed.add(node.output[0])
        elif node.op_type == "QuantizeLinear" and node.output[0] not in kept:
            behind = readers.get(node.output[0], [])
            bounds = _bounds(node, facts)
            if bounds is None or not all(
                (reader.op_type == "DequantizeLinear" and list(reader.input[1:]) == list(node.input[1:]))
                for reader in behind
            ):
                replaced.append(node)
                continue
            for slot, bound in zip(("low", "high"), bounds, strict=True):
                graph.initializer.append(numpy_helper.from_array(bound, f"{node.output[0]}/{slot}"))
            limits = [f"{node.output[0]}/{slot}" for slot in ("low", "high")]
            for reader in behind:
                name = reader.output[0]
                replaced.append(helper.make_node("Clip", [node.input[0], *limits], [name], name=f"{name}/Clip"))
                removed.add(name)
            removed.add(node.output[0])
        elif node.output[0] not in removed:
            replaced.append(node)
    if not removed:
        return None
    set_nodes(graph, replaced)
    return changed


def _bounds(node: "NodeProto", facts: GraphFacts) -> tuple[Any, Any] | None:
    """The smallest and the largest number that a QuantizeLinear keeps; None where these are not known."""
    import numpy as np

    scale = facts.constant(operand(node, 1))
    zero = facts.constant(operand(node, 2))
    kind = facts.graph.value(node.output[0]).dtype or ""
    whole = scale is not None and scale.size == 1 and scale.dtype == np.float32 and facts.is_f32(node.input[0])
    if scale is None or not whole or kind not in RANGES or (zero is None and operand(node, 2)):
        return None
    offset = int(zero.reshape(-1)[0]) if zero is not None else 0
    step = scale.reshape(-1)[0]
    low, high = (np.asarray((limit - offset) * step, dtype=np.float32) for limit in RANGES[kind])
    return low, high


def _float_weights(node: "NodeProto", facts: GraphFacts) -> Any:
    """What a DequantizeLinear makes of a constant; None for another input, and for scales of blocks."""
    import numpy as np

    constants = [facts.graph.constant(name) for name in node.input if name]
    weights, scale, *rest = [None if constant is None else constant.read() for constant in constants] or [None, None]
    if any(constant is None for constant in constants):
        return None
    if scale is None or weights is None or weights.dtype.kind not in "iu":
        return None
    if scale.dtype != np.float32 or scale.ndim > 1:
        return None
    zero = rest[0] if rest else None
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    if scale.size != 1:
        sizes = [1] * weights.ndim
        sizes[axis] = scale.size
        scale = scale.reshape(sizes)
        zero = None if zero is None else zero.reshape(sizes)
    offset = np.float32(0) if zero is None else zero.astype(np.float32)
    return ((weights.astype(np.float32) - offset) * scale).astype(np.float32)
