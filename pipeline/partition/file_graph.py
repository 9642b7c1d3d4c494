"""The graph of an ORT format file, as a provider is shown it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.partition.graph import dense_content, value_of_type

if TYPE_CHECKING:
    from pipeline.model import ort_format
from pipeline.partition.graph import Constant, Graph, Node


def view_of_file(path: Path) -> Graph:
    """The main graph of a model file of either format, with its bodies. Raises ModelError for what is no whole file."""
    from pipeline.model import ort_format

    model = ort_format.read_artifact(path)
    # ModelError for an operator that neither ONNX nor ONNX Runtime defines in a domain of theirs
    from onnx import defs

    nodes = [node for part in model.graph.walk() for node in part.nodes]
    if silent := next((node for node in nodes if not node.outputs), None):
        raise ModelError(
            "a node has no outputs",
            where=str(path),
            why=f"{silent.op_type[:60]!r} {silent.name[:60]!r}",
            remedy="the file is damaged: convert the model again",
        )
    asked = {(node.domain, node.op_type) for node in nodes}
    strange = {
        (domain, op)
        for domain, op in asked
        if domain in KNOWN_DOMAINS and not defs.has(op, "" if domain == "ai.onnx" else domain)
    }
    registered: set[tuple[str, str]] = set()
    if strange:  # the installed onnxruntime knows more than onnx: operators of its own
        from onnxruntime.capi import onnxruntime_pybind11_state as runtime

        registered = {(schema.domain, schema.name) for schema in runtime.get_all_operator_schema()}
    for domain, op in sorted(strange - registered):
        raise ModelError(
            f"no release of ONNX Runtime has an operator {op[:60]!r}",
            where=str(path),
            why=f"it stands in the file in the domain {domain or 'ai.onnx'!r}",
            remedy="the file is damaged: convert the model again",
        )
    opset = model.opset_import.get("", model.opset_import.get("ai.onnx"))
    return _file_graph(model.graph, path, None, opset, model.ir_version)


KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def _file_graph(
    source: "ort_format.OrtGraph", path: Path, outer: Graph | None, opset: int | None, ir_version: int
) -> Graph:
    from pipeline.model import ort_format

    def read(tensor: "ort_format.Tensor") -> Any:
        import numpy as np

        kind = onnx_types.NUMPY_KINDS.get(tensor.data_type)
        if kind is None:
            raise ModelError(f"the numbers of initializer '{tensor.name}' are of a type that no rule reads")
        numbers = np.fromfile(path, dtype=kind, count=tensor.length // np.dtype(kind).itemsize, offset=tensor.offset)
        return numbers.reshape(tensor.dims)

    def constant(tensor: "ort_format.Tensor") -> Constant:
        dtype = onnx_types.SHORT_NAMES.get(tensor.data_type, str(tensor.data_type))
        external = tensor.external_offset >= 0
        return Constant(dtype=dtype, dims=tensor.dims, read=lambda: read(tensor), external=external)

    def sparse(tensor: "ort_format.SparseTensor") -> Constant:
        dtype = onnx_types.SHORT_NAMES.get(tensor.values.data_type, "")
        return Constant(dtype=dtype, dims=tensor.dims, read=lambda: dense_content(read, tensor, tensor.dims))

    def attribute(value: Any) -> Any:
        return (
            constant(value)
            if isinstance(value, ort_format.Tensor)
            else None
            if isinstance(value, ort_format.OrtGraph)
            else value
        )

    initializers = {name: constant(tensor) for name, tensor in source.initializers.items()}
    initializers |= {name: sparse(tensor) for name, tensor in source.sparse_initializers.items()}
    nodes: dict[int, Node] = {}
    local = {name for node in source.nodes for name in node.outputs} | set(source.inputs) | set(initializers)
    graph = Graph(
        nodes=nodes,
        values={name: value_of_type(info) for name, info in source.node_args.items() if name in local},
        inputs=source.inputs,
        outputs=source.outputs,
        initializers=initializers,
        overridable=frozenset(set(source.inputs) & set(initializers)) if ir_version >= 4 else frozenset(),
        outer=outer,
        opset=opset,
    )
    for node in sorted(source.nodes, key=lambda node: node.index):
        nodes[node.index] = Node(
            index=node.index,
            name=node.name,
            op_type=node.op_type,
            domain=onnx_edit.plain_domain(node.domain),
            since_version=node.since_version,
            inputs=node.inputs,
            outputs=node.outputs,
            attributes={name: attribute(given.value) for name, given in node.attributes.items()},
            bodies=tuple(_file_graph(body, path, graph, opset, ir_version) for body in node.subgraphs()),
            implicit_inputs=tuple(dict.fromkeys(node.implicit_inputs)),
        )
    return graph
