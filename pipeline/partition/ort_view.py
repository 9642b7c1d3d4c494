"""The view of an ORT format file, which holds ONNX Runtime's own types, shapes, versions and attribute defaults."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.partition.graph import DTYPES, Constant, Graph, Node, Value

if TYPE_CHECKING:
    from pipeline.model import ort_format

ReadTensor = Callable[["ort_format.Tensor"], Any]

NUMPY_KINDS = {
    1: "<f4", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2", 11: "<f8", 12: "<u4",
    13: "<u8",
}  # fmt: skip
"""numpy's names of the element types whose numbers a rule may read; 4-bit and string ones never are."""


def view_of_file(path: Path) -> Graph:
    """The main graph of an ORT format file, with its bodies. Raises ModelError for what is no whole file."""
    from pipeline.model.ort_format import read_ort

    model = read_ort(path)
    _refuse_unknown_operators(model.graph, str(path))
    opset = model.opset_import.get("", model.opset_import.get("ai.onnx"))
    return _graph(model.graph, None, opset, model.ir_version, lambda tensor: _read(path, tensor))


KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def _refuse_unknown_operators(graph: "ort_format.Graph", where: str) -> None:
    """ModelError for an operator that neither ONNX nor ONNX Runtime defines in a domain of theirs."""
    from onnx import defs

    from pipeline.core.errors import ModelError

    asked = {(node.domain, node.op_type) for part in graph.walk() for node in part.nodes}
    strange = {
        (domain, op)
        for domain, op in asked
        if domain in KNOWN_DOMAINS and not defs.has(op, "" if domain == "ai.onnx" else domain)
    }
    own = _runtime_operators() if strange else frozenset()
    for domain, op in sorted(strange - own):
        raise ModelError(
            f"no release of ONNX Runtime has an operator {op[:60]!r}",
            where=where,
            why=f"it stands in the file in the domain {domain or 'ai.onnx'!r}",
            remedy="the file is damaged: convert the model again",
        )


def _runtime_operators() -> frozenset[tuple[str, str]]:
    """Every operator of the installed onnxruntime, by domain and name: its own ones too."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    return frozenset((schema.domain, schema.name) for schema in runtime.get_all_operator_schema())


def value_of(info: "ort_format.TypeInfo") -> Value:
    """Type and shape of a value as the file has them; symbolic dimensions are dynamic."""
    from pipeline.model.ort_format import TensorType

    if not isinstance(info, TensorType):
        return Value()
    dtype = DTYPES.get(info.elem_type)
    if info.shape is None:
        return Value(dtype, None)
    return Value(dtype, tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in info.shape))


def _read(path: Path, tensor: "ort_format.Tensor") -> Any:
    import numpy as np

    from pipeline.core.errors import ModelError

    kind = NUMPY_KINDS.get(tensor.data_type)
    if kind is None:
        raise ModelError(f"the numbers of initializer '{tensor.name}' are of a type that no rule reads")
    found = np.fromfile(path, dtype=kind, count=tensor.length // np.dtype(kind).itemsize, offset=tensor.offset)
    return found.reshape(tensor.dims)


def _graph(
    source: "ort_format.Graph", outer: Graph | None, opset: int | None, ir_version: int, read: ReadTensor
) -> Graph:
    initializers = {name: _constant(tensor, read) for name, tensor in source.initializers.items()}
    initializers |= {name: _sparse(tensor, read) for name, tensor in source.sparse_initializers.items()}
    nodes: dict[int, Node] = {}
    made = {name for node in source.nodes for name in node.outputs}
    own = made | set(source.inputs) | set(initializers)
    graph = Graph(
        nodes=nodes,
        values={name: value_of(info) for name, info in source.node_args.items() if name in own},
        inputs=source.inputs,
        outputs=source.outputs,
        initializers=initializers,
        overridable=frozenset(set(source.inputs) & set(initializers)) if ir_version >= 4 else frozenset(),
        outer=outer,
        opset=opset,
    )
    for node in sorted(source.nodes, key=lambda node: node.index):
        bodies = tuple(_graph(body, graph, opset, ir_version, read) for body in node.subgraphs())
        nodes[node.index] = _node(node, bodies, read)
    return graph


def _node(source: "ort_format.Node", bodies: tuple[Graph, ...], read: ReadTensor) -> Node:
    return Node(
        index=source.index,
        name=source.name,
        op_type=source.op_type,
        domain="" if source.domain == "ai.onnx" else source.domain,
        since_version=source.since_version,
        inputs=source.inputs,
        outputs=source.outputs,
        attributes={name: _attribute(attribute, read) for name, attribute in source.attributes.items()},
        bodies=bodies,
        implicit_inputs=tuple(dict.fromkeys(source.implicit_inputs)),
    )


def _attribute(source: "ort_format.Attribute", read: ReadTensor) -> Any:
    from pipeline.model.ort_format import Graph as OrtGraph
    from pipeline.model.ort_format import Tensor

    value = source.value
    if isinstance(value, Tensor):
        return _constant(value, read)
    return None if isinstance(value, OrtGraph) else value


def _constant(tensor: "ort_format.Tensor", read: ReadTensor) -> Constant:
    return Constant(
        dtype=DTYPES.get(tensor.data_type, str(tensor.data_type)),
        dims=tensor.dims,
        read=lambda: read(tensor),
        external=tensor.external_offset >= 0,
    )


def _sparse(tensor: "ort_format.SparseTensor", read: ReadTensor) -> Constant:
    import numpy as np

    def dense() -> Any:
        entries, places = read(tensor.values), read(tensor.indices)
        found = np.zeros(tensor.dims, dtype=entries.dtype)
        where = np.unravel_index(places, tensor.dims) if places.ndim == 1 else tuple(places.T)
        found[where] = entries
        return found

    return Constant(dtype=DTYPES.get(tensor.values.data_type, ""), dims=tensor.dims, read=dense)
