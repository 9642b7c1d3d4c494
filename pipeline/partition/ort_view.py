"""The view of an ORT format file, and types and shapes of values as ONNX Runtime infers them (ep_rules A.4)."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from device_runner.failures import Topic, text_of_message
from pipeline.core.errors import ModelError
from pipeline.core.ort_session import HostSession, load_session, ort_errors
from pipeline.model.types import NUMPY_KINDS, SHORT_BY_ORT, SHORT_NAMES
from pipeline.partition.graph import Constant, Graph, Node, Value

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.model import ort_format


LARGE_BYTES = 4096
"""Initializers above this are given to ONNX Runtime as graph inputs: no shape depends on that many numbers."""


def infer(model: "ModelProto") -> dict[str, Value]:
    """Types and shapes of every output of every node of the main graph; raises ModelError when ORT refuses the model.

    The model is not changed; its large initializers need not hold their data.
    """
    slim = slim_copy(model)
    declared = {value.name for value in slim.graph.output}
    names = list(dict.fromkeys(name for node in slim.graph.node for name in node.output if name))
    for name in names:
        if name not in declared:
            slim.graph.output.add().name = name
    values = _load(slim.SerializeToString())
    doubtful = [name for name in names if name in values and values[name].dtype and values[name].shape == ()]
    if doubtful:
        values |= _scalars_or_unknown(slim, values, doubtful)
    return values


def slim_copy(model: "ModelProto") -> "ModelProto":
    """A copy in which large initializers are graph inputs of the same type and shape, without their data."""
    import onnx

    slim = onnx.ModelProto(ir_version=model.ir_version)
    slim.opset_import.extend(model.opset_import)
    slim.functions.extend(model.functions)
    graph, source = slim.graph, model.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    graph.sparse_initializer.extend(source.sparse_initializer)
    present = {value.name for value in source.input}
    for tensor in source.initializer:
        if not is_large(tensor):
            graph.initializer.append(tensor)
        elif tensor.name not in present:
            _declare(graph.input.add(), tensor)
    return slim


def is_large(tensor: Any) -> bool:
    """Whether an initializer is too long for any shape to depend on it, or lies in a file of its own."""
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count > LARGE_BYTES // 8 or tensor.data_location == 1


def _declare(value: Any, tensor: Any) -> None:
    value.name = tensor.name
    value.type.tensor_type.elem_type = tensor.data_type
    value.type.tensor_type.shape.SetInParent()
    for dim in tensor.dims:
        value.type.tensor_type.shape.dim.add().dim_value = dim


def _load(data: bytes) -> dict[str, Value]:
    return {meta.name: _value(meta.type, meta.shape) for meta in _outputs(data)}


def _outputs(data: bytes) -> list[Any]:
    """The outputs of a session that is loaded and never initialized."""
    try:
        outputs: list[Any] = load_session(data, HostSession()).outputs_meta
    except ort_errors() as error:
        raise refused(error) from error
    return outputs


def refused(error: Exception, what: str = "ONNX Runtime cannot load the model") -> ModelError:
    """ONNX Runtime's complaint about a model as an error of ours, with the cause and remedy of a known one."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    known = text_of_message(text, Topic.MODEL)
    return ModelError(
        known.cause if known else what,
        why=text[:2000],
        remedy=known.remedy if known else "fix what it names; onnx.checker.check_model often has details",
    )


def _value(kind: str, shape: Iterable[Any]) -> Value:
    match = re.fullmatch(r"tensor\((\w+)\)", kind)
    if match is None:
        return Value(None, None)
    return Value(
        SHORT_BY_ORT.get(match[1], match[1]), tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in shape)
    )


def _scalars_or_unknown(slim: "ModelProto", values: Mapping[str, Value], doubtful: Iterable[str]) -> dict[str, Value]:
    """Tell scalars from unknown ranks, which both show as []: Shape(x) has length 0 only for a scalar (A.4)."""
    probe = "ort-mobile/shape of "
    for name in doubtful:
        slim.graph.node.add(op_type="Shape", input=[name], output=[probe + name])
        slim.graph.output.add().name = probe + name
    lengths = _load(slim.SerializeToString())
    return {
        name: Value(values[name].dtype, () if lengths[probe + name].shape == (0,) else None) for name in doubtful
    }  # fmt: skip


ReadTensor = Callable[["ort_format.Tensor"], Any]


def view_of_file(path: Path) -> Graph:
    """The main graph of an ORT format file, with its bodies. Raises ModelError for what is no whole file."""
    from pipeline.model.ort_format import read_ort

    model = read_ort(path)
    _refuse_unknown_operators(model.graph, str(path))
    opset = model.opset_import.get("", model.opset_import.get("ai.onnx"))
    return _graph(model.graph, None, opset, model.ir_version, lambda tensor: _read(path, tensor))


KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def _refuse_unknown_operators(graph: "ort_format.OrtGraph", where: str) -> None:
    """ModelError for an operator that neither ONNX nor ONNX Runtime defines in a domain of theirs."""
    from onnx import defs

    asked = {(node.domain, node.op_type) for part in graph.walk() for node in part.nodes}
    strange = {
        (domain, op)
        for domain, op in asked
        if domain in KNOWN_DOMAINS and not defs.has(op, "" if domain == "ai.onnx" else domain)
    }
    known = _runtime_operators() if strange else frozenset()
    for domain, op in sorted(strange - known):
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
    dtype = SHORT_NAMES.get(info.elem_type)
    if info.shape is None:
        return Value(dtype, None)
    return Value(dtype, tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in info.shape))


def _read(path: Path, tensor: "ort_format.Tensor") -> Any:
    import numpy as np

    kind = NUMPY_KINDS.get(tensor.data_type)
    if kind is None:
        raise ModelError(f"the numbers of initializer '{tensor.name}' are of a type that no rule reads")
    numbers = np.fromfile(path, dtype=kind, count=tensor.length // np.dtype(kind).itemsize, offset=tensor.offset)
    return numbers.reshape(tensor.dims)


def _graph(
    source: "ort_format.OrtGraph", outer: Graph | None, opset: int | None, ir_version: int, read: ReadTensor
) -> Graph:
    initializers = {name: _constant(tensor, read) for name, tensor in source.initializers.items()}
    initializers |= {name: _sparse(tensor, read) for name, tensor in source.sparse_initializers.items()}
    nodes: dict[int, Node] = {}
    outputs = {name for node in source.nodes for name in node.outputs}
    local = outputs | set(source.inputs) | set(initializers)
    graph = Graph(
        nodes=nodes,
        values={name: value_of(info) for name, info in source.node_args.items() if name in local},
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


def _node(source: "ort_format.OrtNode", bodies: tuple[Graph, ...], read: ReadTensor) -> Node:
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
    from pipeline.model.ort_format import OrtGraph, Tensor

    value = source.value
    if isinstance(value, Tensor):
        return _constant(value, read)
    return None if isinstance(value, OrtGraph) else value


def _constant(tensor: "ort_format.Tensor", read: ReadTensor) -> Constant:
    return Constant(
        dtype=SHORT_NAMES.get(tensor.data_type, str(tensor.data_type)),
        dims=tensor.dims,
        read=lambda: read(tensor),
        external=tensor.external_offset >= 0,
    )


def _sparse(tensor: "ort_format.SparseTensor", read: ReadTensor) -> Constant:
    import numpy as np

    def dense() -> Any:
        entries, places = read(tensor.values), read(tensor.indices)
        numbers = np.zeros(tensor.dims, dtype=entries.dtype)
        where = np.unravel_index(places, tensor.dims) if places.ndim == 1 else tuple(places.T)
        numbers[where] = entries
        return numbers

    return Constant(dtype=SHORT_NAMES.get(tensor.values.data_type, ""), dims=tensor.dims, read=dense)
