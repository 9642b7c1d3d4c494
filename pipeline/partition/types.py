"""Types and shapes of a model's values, as ONNX Runtime infers them when it loads the model."""

import re
from collections.abc import Container, Hashable, Iterable, Mapping
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner import failures
from pipeline.core import ort_session
from pipeline.core.errors import ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto

Shape = tuple[int | None, ...]
"""Dimensions; None is a dimension without a value. A shape that is itself None is of unknown rank."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """Type and shape of one value as ONNX Runtime has them; `dtype` is None when it is no tensor or unknown."""

    dtype: str | None = None
    shape: Shape | None = None

    @property
    def static(self) -> bool:
        """Whether every dimension has a value (zero dimensions and scalars are static)."""
        return self.shape is not None and None not in self.shape


UNKNOWN = Value()


LARGE_BYTES = 4096
"""Initializers above this are given to ONNX Runtime as graph inputs: no shape depends on that many numbers."""


def infer(model: "ModelProto") -> dict[str, Value]:
    """Types and shapes of every output of every node of the main graph; raises ModelError when ORT refuses the model.

    The model is not changed; its large initializers need not hold their data.
    """
    twins = _twins(model.graph)
    try:
        return _inferred(slim_copy(model, twins), twins)
    except ModelError:
        if not twins:
            raise
    return _inferred(slim_copy(model), {})  # ONNX Runtime complains in the names that the model has


def _twins(graph: "GraphProto") -> dict[str, str]:
    """Constants on which no shape depends, each with the first of its type and shape, which stands for it.

    With a constant for each node they take half of the time in which ONNX Runtime loads a model.
    """
    named = {value.name for value in (*graph.input, *graph.output)}
    names: set[str] = set()
    firsts: dict[Hashable, str] = {}
    twins: dict[str, str] = {}
    for tensor in graph.initializer:
        name, kind, dims = tensor.name, tensor.data_type, tuple(tensor.dims)
        names.add(name)
        first = name if name in named else firsts.setdefault((kind, dims), name)
        if first != name and kind in SHAPELESS and prod(dims) > MOST_SCALES:
            twins[name] = first
    if not twins or len(names) < len(graph.initializer):
        return {}  # two of one name: ONNX Runtime says what is wrong
    for node in graph.node:
        if any(bodies_in(attribute) for attribute in node.attribute):
            return {}  # a body may read them
        for name in node.output:
            twins.pop(name, None)  # what is made twice is an error
    return twins


SHAPELESS = tuple(onnx_types.CODES[name] for name in ("f16", "bf16", "f32", "f64", "i8", "u8"))
"""Types of constants whose numbers are no shapes."""
MOST_SCALES = 16
"""But for those of so few elements: scales of a Resize, bounds of a Range."""


def _inferred(slim: "ModelProto", twins: Mapping[str, str]) -> dict[str, Value]:
    """As `infer`, of a slim copy of its own; `twins` are not in it, and nodes read what stands for them."""
    for node in slim.graph.node if twins else ():
        for slot, name in enumerate(node.input):
            if name in twins:
                node.input[slot] = twins[name]
    declared = {value.name for value in slim.graph.output}
    names = list(dict.fromkeys(name for node in slim.graph.node for name in node.output if name))
    for name in names:
        if name not in declared:
            slim.graph.output.add().name = name
    values = _load(slim.SerializeToString())
    # Scalars and values of unknown rank both show as []: Shape(x) has length 0 only for a scalar (A.4).
    doubtful = [name for name in names if name in values and values[name].dtype and values[name].shape == ()]
    if doubtful:
        probe = "ort-mobile/shape of "
        for name in doubtful:
            slim.graph.node.add(op_type="Shape", input=[name], output=[probe + name])
            slim.graph.output.add().name = probe + name
        lengths = _load(slim.SerializeToString())
        for name in doubtful:
            values[name] = Value(values[name].dtype, () if lengths[probe + name].shape == (0,) else None)
    return values


def with_types(model: "ModelProto") -> "ModelProto":
    """A copy with the types and shapes of all its values, as a session that was loaded knows them."""
    import onnx

    typed = onnx_edit.copied(model)
    declared = {value.name for value in (*typed.graph.input, *typed.graph.output)}
    del typed.graph.value_info[:]
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, onnx_types.CODES[value.dtype], value.shape)
        for name, value in infer(typed).items()
        if name not in declared and value.dtype in onnx_types.CODES
    )
    return typed


def slim_copy(model: "ModelProto", without: Container[str] = ()) -> "ModelProto":
    """A copy in which large initializers are graph inputs of the same type and shape, without their data.

    Initializers `without` which it can do are left out.
    """
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
        if tensor.name in without:
            continue
        # No shape depends on a longer initializer, nor on one in a file of its own.
        if prod(tensor.dims) <= LARGE_BYTES // 8 and tensor.data_location != tensor.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in present:
            value = graph.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            value.type.tensor_type.shape.SetInParent()
            for dim in tensor.dims:
                value.type.tensor_type.shape.dim.add().dim_value = dim
    return slim


def _load(data: bytes) -> dict[str, Value]:
    """Types and shapes of the outputs of a session that is loaded and never initialized."""
    try:
        outputs: list[Any] = ort_session.load_session(data, ort_session.session_options()).outputs_meta
    except ort_session.ort_errors() as error:
        raise refused(error) from error
    values = {}
    for meta in outputs:
        dtype = _tensor_type(meta.type)
        shape = tuple([dim if isinstance(dim, int) and dim >= 0 else None for dim in meta.shape])
        values[meta.name] = Value(dtype, shape) if dtype else UNKNOWN
    return values


@lru_cache(maxsize=256)
def _tensor_type(text: str) -> str | None:
    """The type of elements of `tensor(float)`; None for what is no tensor."""
    match = re.fullmatch(r"tensor\((\w+)\)", text)
    return onnx_types.SHORT_BY_ORT.get(match[1], match[1]) if match else None


def refused(error: Exception, what: str = "ONNX Runtime cannot load the model") -> ModelError:
    """ONNX Runtime's complaint about a model as an error of ours, with the cause and remedy of a known one."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    explanation = failures.text_of_message(text, failures.Topic.MODEL)
    return ModelError(
        explanation.why if explanation else what,
        why=text[:2000],
        remedy=explanation.remedy if explanation else "fix what it names; onnx.checker.check_model often has details",
    )


def bodies_in(attribute: Any) -> "Iterable[GraphProto]":
    """The graphs that an attribute of an ONNX node has."""
    return [attribute.g] if attribute.type == 5 else attribute.graphs
