"""The graph of an ONNX or ORT format file as nodes with texts, with those in bodies of If, Loop and Scan among them."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core.files import scratch
from pipeline.model import ort_format
from pipeline.model.onnx_model import ByteRange, LoadedModel, range_digests
from pipeline.model.sources import SourceModel
from pipeline.model.types import SHORT_NAMES
from pipeline.partition.input import open_subject

if TYPE_CHECKING:
    import onnx


class GraphNode(NamedTuple):
    """A node. `operator` has its domain where that is not ONNX's own: `com.microsoft:FusedConv`."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, str]

    @property
    def label(self) -> str:
        """Its first output: names of new nodes differ from one run of onnxruntime to the next."""
        return next(filter(None, self.outputs), self.name)


class _Body(NamedTuple):
    """A graph before those inside its nodes are put beside them."""

    nodes: "list[tuple[GraphNode, list[_Body]]]"
    constants: dict[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


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
        return {name: place for place, node in enumerate(self.nodes) for name in node.outputs if name}

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """(producer, consumer) by place."""
        produced = self.producers
        return list(
            dict.fromkeys(
                (produced[name], place)
                for place, node in enumerate(self.nodes)
                for name in node.inputs
                if produced.get(name, place) != place
            )
        )

    def has(self, value: str) -> bool:
        """Whether a value of that name is given by a node, is a constant or an input."""
        return value in self.producers or value in self.constants or value in self.inputs


def read_graph(source: SourceModel) -> FileGraph:
    """The graph of a file. ModelError for what is no model."""
    with scratch() as work:
        subject = open_subject(source, work)
        if subject.loaded:
            return _flat(_of_onnx(subject.loaded.proto.graph, _onnx_constants(subject.loaded)))
        graph = ort_format.read_artifact(subject.path).graph
        records = tuple(
            f"{record.optimizer} {record.action}"
            for body in graph.walk()
            for record in body.runtime_optimizations
        )  # fmt: skip
        return _flat(_of_ort(graph, subject.path), records)


def _flat(body: _Body, recorded: tuple[str, ...] = ()) -> FileGraph:
    """The nodes of a graph and of the bodies inside it, whose values are named after the node around them."""
    nodes: list[GraphNode] = []
    constants: dict[str, str] = {}

    def add(body: _Body, outer: Mapping[str, str], prefix: str) -> None:
        defined = {name for node, _ in body.nodes for name in node.outputs} | {*body.constants, *body.inputs}
        names = {**outer, **{name: prefix + name for name in defined if name}}
        constants.update((names[name], text) for name, text in body.constants.items())
        for node, inner in body.nodes:
            outputs = tuple(names.get(name, name) for name in node.outputs)
            nodes.append(node._replace(inputs=tuple(names.get(name, name) for name in node.inputs), outputs=outputs))
            for place, graph in enumerate(inner):
                add(graph, names, f"{next(filter(None, outputs), node.name)}/{place}/")

    add(body, {}, "")
    return FileGraph(tuple(_ordered(nodes, body.outputs)), constants, body.inputs, body.outputs, recorded)


def _ordered(nodes: Sequence[GraphNode], outputs: Iterable[str]) -> list[GraphNode]:
    """Producers first, depth first from the outputs: onnxruntime writes nodes of layout level in an order that changes
    from run to run. What gives no output, as in bodies, comes last in the order of the file.
    """
    producers = {name: place for place, node in enumerate(nodes) for name in node.outputs if name}
    ends = [producers[name] for name in outputs if name in producers]
    stack = [(place, False) for place in reversed(dict.fromkeys((*ends, *range(len(nodes)))))]
    seen: set[int] = set()
    order: list[GraphNode] = []
    while stack:
        place, ready = stack.pop()
        if ready:
            order.append(nodes[place])
        elif place not in seen:
            seen.add(place)
            stack.append((place, True))
            feeding = [producers[name] for name in nodes[place].inputs if name in producers]
            stack.extend((producer, False) for producer in reversed(feeding) if producer not in seen)
    return order


def _operator(domain: str, op_type: str) -> str:
    return f"{domain}:{op_type}" if domain not in ("", ort_format.DEFAULT_DOMAIN) else op_type


def _constant(data_type: int, dims: Iterable[int], digest: str) -> str:
    return f"{SHORT_NAMES.get(data_type, data_type)}[{','.join(map(str, dims))}] {digest[:12]}"


def _text_digest(strings: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\0".join(strings)).hexdigest()


def _of_ort(graph: ort_format.OrtGraph, path: Path) -> _Body:
    def place(tensor: ort_format.Tensor) -> ByteRange:
        return ByteRange(file=path, offset=tensor.offset, length=tensor.length)

    tensors = [*graph.initializers.values(), *(sparse.values for sparse in graph.sparse_initializers.values())]
    digests = range_digests({place(tensor) for tensor in tensors})

    def text(value: Any) -> str:
        if isinstance(value, ort_format.Tensor):
            return _constant(value.data_type, value.dims, range_digests({place(value)})[place(value)])
        return attribute_text(value)

    return _Body(
        nodes=[
            (
                GraphNode(
                    node.name, _operator(node.domain, node.op_type), node.inputs, node.outputs,
                    {
                        name: text(entry.value)
                        for name, entry in node.attributes.items()
                        if entry.type not in (ort_format.GRAPH, ort_format.GRAPHS)
                    },
                ),
                [_of_ort(inner, path) for inner in node.subgraphs()],
            )
            for node in graph.nodes
        ],
        constants={
            tensor.name: _constant(
                tensor.data_type, tensor.dims,
                _text_digest(text.encode() for text in tensor.strings) if tensor.strings else digests[place(tensor)],
            )
            for tensor in tensors
        },
        inputs=graph.inputs,
        outputs=graph.outputs,
    )  # fmt: skip


def attribute_text(value: Any) -> str:
    """A number as 32 bits hold it, so that both formats give the same text."""
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, (list, tuple)) or (hasattr(value, "__len__") and not isinstance(value, (str, bytes))):
        return f"[{', '.join(map(attribute_text, value))}]"
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _onnx_constants(loaded: LoadedModel) -> dict[str, str]:
    """Texts of the constants whose bytes lie in files."""
    digests = range_digests(set(loaded.weights.values()))
    return {
        tensor.name: _constant(tensor.data_type, tensor.dims, digests[loaded.weights[tensor.name]])
        for tensor in loaded.proto.graph.initializer
        if tensor.name in loaded.weights
    }


def _tensor_text(tensor: "onnx.TensorProto") -> str:
    from pipeline.partition.view import read_tensor

    if tensor.string_data:
        digest = _text_digest(tensor.string_data)
    else:
        data = tensor.raw_data if tensor.HasField("raw_data") else read_tensor(tensor).tobytes()
        digest = hashlib.sha256(data).hexdigest()
    return _constant(tensor.data_type, tensor.dims, digest)


def _of_onnx(graph: "onnx.GraphProto", large: Mapping[str, str]) -> _Body:
    import onnx

    constants = {t.name: large.get(t.name) or _tensor_text(t) for t in graph.initializer}
    constants |= {t.values.name: _tensor_text(t.values) for t in graph.sparse_initializer}
    nodes: list[tuple[GraphNode, list[_Body]]] = []
    for node in graph.node:
        attributes, bodies = {}, []
        for entry in node.attribute:
            if entry.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                bodies += [_of_onnx(body, {}) for body in ([entry.g] if entry.HasField("g") else entry.graphs)]
            elif entry.type == onnx.AttributeProto.TENSOR:
                attributes[entry.name] = _tensor_text(entry.t)
            else:
                attributes[entry.name] = attribute_text(onnx.helper.get_attribute_value(entry))
        if node.op_type == "Constant" and not bodies and len(node.output) == 1:
            constants[node.output[0]] = _constant_node(node)
        else:
            operator = _operator(node.domain, node.op_type)
            nodes.append((GraphNode(node.name, operator, tuple(node.input), tuple(node.output), attributes), bodies))
    given = tuple(value.name for value in graph.input if value.name not in constants)
    return _Body(nodes, constants, given, tuple(value.name for value in graph.output))


def _constant_node(node: "onnx.NodeProto") -> str:
    """A Constant node's value as the initializer that a session makes of it."""
    import numpy as np
    import onnx

    entry = node.attribute[0]
    if entry.type == onnx.AttributeProto.TENSOR:
        return _tensor_text(entry.t)
    value = onnx.helper.get_attribute_value(entry)
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if entry.name not in kinds:
        return attribute_text(value)
    return _tensor_text(onnx.numpy_helper.from_array(np.asarray(value, kinds[entry.name])))
