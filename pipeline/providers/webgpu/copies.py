"""The copies between the memories of GPU and CPU in a file: ONNX Runtime inserts them in ONNX files alone."""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from pipeline.model import edit as onnx_edit
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.answer import Settings
from pipeline.partition.claiming import claim
from pipeline.partition.graph import Graph, bodies
from pipeline.providers.webgpu.kernels import COPIES, crossing, memories, shared_constants

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

FUSED_CONV = "FusedConv"


def with_copies(model: LeanModel, settings: Settings, viewed: "Callable[[ModelProto], Graph]") -> LeanModel:
    """A finished model with copies between the memories of GPU and CPU, which ONNX Runtime inserts in ONNX files alone.

    The same model where none are needed. A constant that both sides read is there twice. The layout decides what of the
    computation of shapes stays on the CPU; FusedConv loads in NCHW alone.
    """
    graph = viewed(model.proto)
    parts = (graph, *(body for _, body in bodies(graph)))
    fused = any(node.op_type == FUSED_CONV for part in parts for node in part.nodes.values())
    options = msgspec.structs.replace(settings.webgpu, layout="NCHW" if fused else settings.webgpu.layout)
    weights = dict(model.weights)
    result = LeanModel(proto=onnx_edit.copied(model.proto), folder=model.folder, weights=weights)
    taken = onnx_edit.names_in(result.proto.graph)
    taken |= {tensor.values.name for tensor in result.proto.graph.sparse_initializer}
    asked = msgspec.structs.replace(settings, webgpu=options)
    changed = False
    for part, proto in _with_messages(graph, result.proto.graph):
        gpu, cpu = memories(part, claim(part, asked).claimed)
        to_gpu, to_cpu = crossing(part, gpu, cpu)
        shared = shared_constants(part, gpu, cpu)
        doubled = shared & part.initializers.keys()
        to_gpu |= shared - doubled  # a constant of a graph around
        # Readers by the first outputs of their nodes, which is what messages and view have in common.
        nodes = {onnx_edit.first_output(node): node for node in proto.node}
        initializers = {tensor.name: tensor for tensor in proto.initializer}
        sparse = {tensor.values.name: tensor for tensor in proto.sparse_initializer}
        moves = [(name, gpu, COPIES[0]) for name in to_gpu] + [(name, cpu, COPIES[1]) for name in to_cpu]
        for name, side, operator in sorted([*moves, *((name, gpu, "") for name in doubled)], key=itemgetter(0, 2)):
            copy = onnx_edit.fresh_name(f"{name}_{'on_gpu' if side is gpu else 'on_cpu'}", taken)
            for node, slot in side.read[name]:
                if slot < len(node.inputs):
                    nodes[node.first_output].input[slot] = copy
            if operator:
                proto.node.add(op_type=operator, name=copy, input=[name], output=[copy])
            elif name in sparse:
                proto.sparse_initializer.append(sparse[name])
                proto.sparse_initializer[-1].values.name = copy
            else:
                proto.initializer.append(initializers[name])
                proto.initializer[-1].name = copy
                weights |= {copy: weights[name]} if name in weights else {}
            changed = True
        onnx_edit.sort_nodes(proto)
    return result if changed else model


def _with_messages(graph: Graph, proto: "GraphProto") -> "Iterator[tuple[Graph, GraphProto]]":
    """A graph and its bodies, each with the message that it is a view of."""
    yield graph, proto
    nodes = {onnx_edit.first_output(node): node for node in proto.node}
    for node in graph.nodes.values():
        if node.bodies:
            inner = [attribute.g for attribute in nodes[node.first_output].attribute if attribute.type == 5]
            for body, message in zip(node.bodies, inner, strict=True):
                yield from _with_messages(body, message)
