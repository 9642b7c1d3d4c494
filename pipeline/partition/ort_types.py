"""Types and shapes of a model's values as ONNX Runtime itself infers them (ep_rules A.4).

A session is loaded and never initialized, with every value made a graph output: no kernel is looked up, nothing is
inlined, no cast is inserted, so models whose session would fail have an answer too.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ModelError
from pipeline.partition.graph import Value

if TYPE_CHECKING:
    from onnx import ModelProto

LARGE_BYTES = 4096
"""Initializers above this are given to ONNX Runtime as graph inputs: no shape depends on that many numbers."""

_DTYPES = {
    "float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "uint8": "u8",
    "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64",
    "bool": "bool", "string": "string", "int4": "i4", "uint4": "u4",
}  # fmt: skip


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
    found = _load(slim.SerializeToString())
    doubtful = [name for name in names if name in found and found[name].dtype and found[name].shape == ()]
    if doubtful:
        found |= _scalars_or_unknown(slim, found, doubtful)
    return found


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


def infer_symbols(model: "ModelProto", names: Iterable[str]) -> dict[str, tuple[int | str | None, ...]]:
    """Dimensions of some values that nodes of the main graph make, with symbolic names where they have no number.

    An unknown rank shows as no dimensions, as a scalar does; what `infer` says of the value tells them apart.
    """
    slim = slim_copy(model)
    declared = {value.name for value in slim.graph.output}
    for name in names:
        if name not in declared:
            slim.graph.output.add().name = name
    return {meta.name: tuple(meta.shape) for meta in _outputs(slim.SerializeToString())}


def _load(data: bytes) -> dict[str, Value]:
    return {meta.name: _value(meta.type, meta.shape) for meta in _outputs(data)}


def _outputs(data: bytes) -> list[Any]:
    """What a loaded and never initialized session says of its outputs."""
    from onnxruntime.capi import _pybind_state as capi

    options = capi.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = capi.InferenceSession(options, data, False, True)
    except Exception as error:
        raise refused(error) from error
    outputs: list[Any] = session.outputs_meta
    return outputs


def refused(error: Exception, what: str = "ONNX Runtime cannot load the model") -> ModelError:
    """ONNX Runtime's complaint about a model as an error of ours."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    return ModelError(
        what,
        why=text[:2000],
        remedy="fix what it names; onnx.checker.check_model often says more",
    )


def _value(kind: str, shape: Iterable[Any]) -> Value:
    match = re.fullmatch(r"tensor\((\w+)\)", kind)
    if match is None:
        return Value(None, None)
    return Value(
        _DTYPES.get(match[1], match[1]), tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in shape)
    )


def _scalars_or_unknown(slim: "ModelProto", found: Mapping[str, Value], doubtful: Iterable[str]) -> dict[str, Value]:
    """Tell scalars from unknown ranks, which both show as []: Shape(x) has length 0 only for a scalar (A.4)."""
    probe = "ort-mobile/shape of "
    for name in doubtful:
        slim.graph.node.add(op_type="Shape", input=[name], output=[probe + name])
        slim.graph.output.add().name = probe + name
    lengths = _load(slim.SerializeToString())
    return {
        name: Value(found[name].dtype, () if lengths[probe + name].shape == (0,) else None) for name in doubtful
    }  # fmt: skip
