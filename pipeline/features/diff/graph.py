"""The graph of a file in either format, as nodes that two files can be compared by."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core import files as storage
from pipeline.core.errors import ModelError
from pipeline.model import onnx_model, ort_format
from pipeline.model import types as onnx_types
from pipeline.model.sources import SourceModel
from pipeline.partition import subject as partition_subject

if TYPE_CHECKING:
    import onnx


class GraphNode(NamedTuple):
    """A node. `operator` has its domain where that is not ONNX's own: `com.microsoft:FusedConv`.

    `bodies` are the graphs inside it, until `read_graph` puts their nodes beside the others.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, str]
    bodies: "tuple[FileGraph, ...]" = ()

    @property
    def label(self) -> str:
        """Its first output: names of new nodes differ from one run of onnxruntime to the next."""
        return next(filter(None, self.outputs), self.name)


@dataclass(frozen=True)
class FileGraph:
    """All nodes of a file; `constants` have type, shape and digest as text, `recorded` the fusions left to the device.

    Constant nodes are constants, as they are for every session.
    """

    nodes: tuple[GraphNode, ...]
    constants: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    recorded: tuple[str, ...] = ()

    @cached_property
    def producers(self) -> dict[str, int]:
        """The place of the node that gives each value."""
        return {name: index for index, node in enumerate(self.nodes) for name in node.outputs if name}

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """(producer, consumer) by place."""
        produced = self.producers
        return list(
            dict.fromkeys(
                (produced[name], index)
                for index, node in enumerate(self.nodes)
                for name in node.inputs
                if produced.get(name, index) != index
            )
        )

    def has(self, value: str) -> bool:
        """Whether a value of that name is given by a node, is a constant or an input."""
        return value in self.producers or value in self.constants or value in self.inputs


def read_graph(source: SourceModel) -> FileGraph:
    """The graph of a file. ModelError for what is no model."""
    with storage.scratch() as work:
        subject = partition_subject.open_subject(source, work)
        if not isinstance(subject, Path):
            digests = onnx_model.range_digests(set(subject.weights.values()))
            large = {  # texts of the constants whose bytes lie in files
                tensor.name: _constant(tensor.data_type, tensor.dims, digests[subject.weights[tensor.name]])
                for tensor in subject.proto.graph.initializer
                if tensor.name in subject.weights
            }
            try:
                return _flat(_of_onnx(subject.proto.graph, large))
            except ValueError as error:  # of onnx, for an attribute that is none
                raise ModelError(
                    "not a usable ONNX model", where=source.name, why=str(error), remedy="export the model again"
                ) from error
        graph = ort_format.read_artifact(subject).graph
        records = tuple(
            f"{record.optimizer} {record.action}" for body in graph.walk() for record in body.runtime_optimizations
        )
        return _flat(_of_ort(graph, subject), records)


def _flat(body: FileGraph, recorded: tuple[str, ...] = ()) -> FileGraph:
    """The nodes of a graph and of the bodies inside it, whose values are named after the node around them."""
    nodes: list[GraphNode] = []
    constants: dict[str, str] = {}

    def add(body: FileGraph, outer: Mapping[str, str], prefix: str) -> None:
        defined = {name for node in body.nodes for name in node.outputs} | {*body.constants, *body.inputs}
        names = {**outer, **{name: prefix + name for name in defined if name}}
        constants.update((names[name], text) for name, text in body.constants.items() if name)
        for node in body.nodes:
            inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (node.inputs, node.outputs))
            nodes.append(node._replace(inputs=inputs, outputs=outputs, bodies=()))
            for index, graph in enumerate(node.bodies):
                add(graph, names, f"{next(filter(None, outputs), node.name)}/{index}/")

    add(body, {}, "")
    return FileGraph(tuple(_ordered(nodes, body.outputs)), constants, body.inputs, body.outputs, recorded)


def _ordered(nodes: Sequence[GraphNode], outputs: Iterable[str]) -> list[GraphNode]:
    """Producers first, depth first from the outputs: onnxruntime writes nodes of layout level in an order that changes
    from run to run. What gives no output, as in bodies, comes last in the order of the file.
    """
    producers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    ends = [producers[name] for name in outputs if name in producers]
    stack = [(index, False) for index in reversed(dict.fromkeys((*ends, *range(len(nodes)))))]
    seen: set[int] = set()
    order: list[GraphNode] = []
    while stack:
        index, ready = stack.pop()
        if ready:
            order.append(nodes[index])
        elif index not in seen:
            seen.add(index)
            stack.append((index, True))
            feeding = [producers[name] for name in nodes[index].inputs if name in producers]
            stack.extend((producer, False) for producer in reversed(feeding) if producer not in seen)
    return order


def _operator(domain: str, op_type: str) -> str:
    return f"{domain}:{op_type}" if domain not in ("", ort_format.DEFAULT_DOMAIN) else op_type


def _constant(data_type: int, dims: Iterable[int], digest: str) -> str:
    return f"{onnx_types.SHORT_NAMES.get(data_type, data_type)}[{','.join(map(str, dims))}] {digest[:12]}"


def _text_digest(strings: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\0".join(strings)).hexdigest()


def _of_ort(graph: ort_format.OrtGraph, path: Path) -> FileGraph:
    def place(tensor: ort_format.Tensor) -> onnx_model.ByteRange:
        return onnx_model.ByteRange(file=path, offset=tensor.offset, length=tensor.length)

    tensors = [*graph.initializers.values(), *(sparse.values for sparse in graph.sparse_initializers.values())]
    digests = onnx_model.range_digests({place(tensor) for tensor in tensors})

    def text(value: Any) -> str:
        if isinstance(value, ort_format.Tensor):
            return _constant(value.data_type, value.dims, onnx_model.range_digests({place(value)})[place(value)])
        return attribute_text(value)

    return FileGraph(
        nodes=tuple(
            GraphNode(
                node.name,
                _operator(node.domain, node.op_type),
                node.inputs,
                node.outputs,
                {
                    name: text(attribute.value)
                    for name, attribute in node.attributes.items()
                    if attribute.type not in (ort_format.GRAPH, ort_format.GRAPHS)
                },
                tuple(_of_ort(inner, path) for inner in node.subgraphs()),
            )
            for node in graph.nodes
        ),
        constants={
            tensor.name: _constant(
                tensor.data_type,
                tensor.dims,
                _text_digest(text.encode() for text in tensor.strings) if tensor.strings else digests[place(tensor)],
            )
            for tensor in tensors
        },
        inputs=graph.inputs,
        outputs=graph.outputs,
    )


def attribute_text(value: Any) -> str:
    """A number as 32 bits hold it, so that both formats give the same text."""
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, (list, tuple)) or (hasattr(value, "__len__") and not isinstance(value, (str, bytes))):
        return f"[{', '.join(map(attribute_text, value))}]"
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _tensor_text(tensor: "onnx.TensorProto") -> str:
    from pipeline.partition import graph as partition_graph

    if tensor.string_data:
        digest = _text_digest(tensor.string_data)
    else:
        data = tensor.raw_data if tensor.HasField("raw_data") else partition_graph.read_tensor(tensor).tobytes()
        digest = hashlib.sha256(data).hexdigest()
    return _constant(tensor.data_type, tensor.dims, digest)


def _of_onnx(graph: "onnx.GraphProto", large: Mapping[str, str]) -> FileGraph:
    import numpy as np
    import onnx

    constants = {t.name: large.get(t.name) or _tensor_text(t) for t in graph.initializer}
    constants |= {t.values.name: _tensor_text(t.values) for t in graph.sparse_initializer}
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    nodes: list[GraphNode] = []
    for node in graph.node:
        attributes: dict[str, str] = {}
        bodies: list[FileGraph] = []
        for attribute in node.attribute:
            if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                bodies += [
                    _of_onnx(body, {}) for body in ([attribute.g] if attribute.HasField("g") else attribute.graphs)
                ]
            elif attribute.type == onnx.AttributeProto.TENSOR:
                attributes[attribute.name] = _tensor_text(attribute.t)
            else:
                value = onnx.helper.get_attribute_value(attribute)
                if (
                    node.op_type == "Constant" and attribute.name in kinds
                ):  # as the initializer that a session makes of it
                    value = _tensor_text(onnx.numpy_helper.from_array(np.asarray(value, kinds[attribute.name])))
                attributes[attribute.name] = attribute_text(value)
        if node.op_type == "Constant" and attributes and not bodies and len(node.output) == 1:
            constants[node.output[0]] = attributes[node.attribute[0].name]
        else:
            operator = _operator(node.domain, node.op_type)
            inputs, outputs = tuple(node.input), tuple(node.output)
            nodes.append(GraphNode(node.name, operator, inputs, outputs, attributes, tuple(bodies)))
    given = tuple(value.name for value in graph.input if value.name not in constants)
    return FileGraph(tuple(nodes), constants, given, tuple(value.name for value in graph.output))
