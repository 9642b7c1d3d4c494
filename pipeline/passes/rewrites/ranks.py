"""Transpose and Gather of many axes on values of few, with the axes that stay together merged."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.passes.rewrites.facts import GraphFacts, Writer, attribute, names_in, rewrite

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

HIGHEST_RANK = 4
RESHAPE_HAS_INPUT = 5


def fewer_axes(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
    """The model with such nodes between Reshapes, and Reshapes of Reshapes joined, so that no high rank is left."""
    rules = {"Transpose": merged_transpose, "Gather": flat_gather}
    changed = rewrite(model, known, rules) if known.opset >= RESHAPE_HAS_INPUT else None
    if changed is not None:
        _join_reshapes(changed, known)
    return changed


def merged_transpose(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Axes of size 1 take no part in a Transpose, and neighbours that stay neighbours move as one."""
    shape, output = known.shape(node.input[0]), known.shape(node.output[0])
    if shape is None or output is None or len(shape) <= HIGHEST_RANK or 0 in shape:
        return False
    perm = attribute(node, "perm") or list(reversed(range(len(shape))))
    groups: list[list[int]] = []
    for axis in perm:
        if shape[axis] == 1:
            continue
        gap = range(groups[-1][-1] + 1, axis) if groups else range(0)
        if groups and axis > groups[-1][-1] and all(shape[between] == 1 for between in gap):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if not 0 < len(groups) <= HIGHEST_RANK:
        return False
    before = sorted(groups)
    sizes = [math.prod(shape[axis] for axis in group) for group in before]
    value = write.add("Reshape", node.input[0], write.integers(*sizes))
    turned = write.add("Transpose", value, perm=[before.index(group) for group in groups])
    write.add("Reshape", turned, write.integers(*output), into=node.output[0])
    return True


def flat_gather(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Constant indices into one axis, with the axes before and after it merged."""
    shape, output = known.shape(node.input[0]), known.shape(node.output[0])
    indices = known.graph.constant(node.input[1])
    if shape is None or not output or indices is None or len(shape) <= HIGHEST_RANK or len(indices.dims) > 1:
        return False
    axis = int(attribute(node, "axis", 0)) % len(shape)
    flat = write.integers(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    taken = write.add("Gather", write.add("Reshape", node.input[0], flat), node.input[1], axis=1)
    write.add("Reshape", taken, write.integers(*output), into=node.output[0])
    return True


def _join_reshapes(model: "ModelProto", known: GraphFacts) -> None:
    """Let each Reshape to a known shape read what the Reshape before it read; drop those that nobody reads then."""
    from pipeline.model.onnx_model import subgraphs

    graph = model.graph
    makers = {node.output[0]: node for node in graph.node if node.op_type == "Reshape" and not node.domain}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    taken = names_in(graph)
    for node in makers.values():
        maker = makers.get(node.input[0])
        if maker is None or not _joinable(node, constants, known):
            continue
        if (sizes := known.shape(node.output[0])) is not None:
            written = Writer(node, taken)
            node.input[1] = written.integers(*sizes)
            graph.initializer.extend(written.tensors)
        node.input[0] = maker.input[0]
    read = {name for part in subgraphs(graph) for node in part.node for name in node.input}
    read |= {value.name for part in subgraphs(graph) for value in part.output}
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        if node.op_type == "Reshape" and node.output[0] in makers and node.output[0] not in read:
            del graph.node[index]


def _joinable(node: "NodeProto", constants: "Mapping[str, TensorProto]", known: GraphFacts) -> bool:
    """Whether the target shape is known, or means the same for other inputs: no 0, which copies one of their sizes."""
    from onnx import numpy_helper

    sizes = known.shape(node.output[0])
    if sizes is not None:
        return 0 not in sizes
    shape = constants.get(node.input[1])
    if shape is None or shape.data_location == shape.EXTERNAL or shape.name in known.graph.overridable:
        return False
    return bool((numpy_helper.to_array(shape) != 0).all())
