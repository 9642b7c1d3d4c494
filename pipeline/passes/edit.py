"""What passes share: models changed and whole, types of their values, constants, weights in and out of messages."""

import difflib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.ort_session import HostSession, first_line, make_session, ort_errors
from pipeline.model.edit import copied, keep_only, subgraphs
from pipeline.model.guards import tensor_bytes
from pipeline.model.onnx_model import (
    LEAN_MINIMUM_BYTES,
    ByteRange,
    LeanModel,
    external_entries,
    loadable,
    read_in,
    scan_message,
)
from pipeline.model.types import CODES, SHORT_NAMES
from pipeline.partition.graph import Value
from pipeline.partition.view import infer
from pipeline.passes.base import Model, NotApplicable, PassContext

if TYPE_CHECKING:
    import onnx
    from onnx import GraphProto, ModelProto, ValueInfoProto


QUANTIZED_OPS = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearConv",
    "QLinearMatMul", "MatMulNBits", "MatMulBnb4", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm",
    "DynamicQuantizeLSTM", "QAttention", "QLinearAdd",
})  # fmt: skip
"""Operators whose presence says that a model is quantized."""


def whole(model: Model) -> "onnx.ModelProto":
    """A copy of the message with every weight in it."""
    proto = copied(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in model.weights:
            read_in(tensor, model.weights[tensor.name])
    return proto


def settle(proto: "onnx.ModelProto", context: PassContext) -> Model:
    """A model of a message that has its weights in it; a large one is written to the scratch folder and mapped."""
    if proto.ByteSize() < LEAN_MINIMUM_BYTES:
        return LeanModel(proto=proto, folder=context.folder, weights={})
    target = context.new_file(".onnx")
    target.write_bytes(proto.SerializeToString())
    return read_back(target)


def read_back(path: Path) -> Model:
    """A model that was saved to a file of ours, its large weights mapped from that file or one beside it."""
    import onnx

    if path.stat().st_size < LEAN_MINIMUM_BYTES:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    else:
        proto = scan_message(path)
    places: dict[str, ByteRange] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            location, offset, length = external_entries(tensor)
            places[tensor.name] = ByteRange(file=path.parent / location, offset=offset, length=length)
    return LeanModel(proto=proto, folder=path.parent, weights=places)


def quantized_operators(proto: "onnx.ModelProto") -> set[str]:
    """The operators of a quantized model that occur anywhere in it."""
    return {node.op_type for graph in subgraphs(proto.graph) for node in graph.node} & QUANTIZED_OPS


@contextmanager
def library_call(what: str, where: str, remedy: str, most: int = 500) -> Iterator[None]:
    """Let a library of Python work: whatever it raises is a ModelError, and nothing that it logs is shown.

    ONNX Runtime's tools log advice that does not apply here, and configure the root logger.
    """
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    except Exception as error:  # their many parts raise whatever an unusual graph brings about
        raise ModelError(what, where=where, why=f"{type(error).__name__}: {error}"[:most], remedy=remedy) from error
    finally:
        logging.disable(before)


def check_names(proto: "onnx.ModelProto", exclude: Iterable[str], where: str) -> None:
    """ConfigError for an excluded node that there is not."""
    names = {node.name for node in proto.graph.node}
    for name in exclude:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else "nodes have the names that the pass preprocess gives"
            raise ConfigError(f"the model has no node {name!r} to exclude", where=where, remedy=remedy)


def finished(proto: "onnx.ModelProto", context: PassContext) -> Model:
    """`settle`, when ONNX Runtime makes a session of the model on the CPU; ModelError when it does not."""
    model = settle(proto, context)
    try:
        make_session(loadable(model).SerializeToString(), HostSession(weights=model.folder))
    except ort_errors() as error:
        raise ModelError("ONNX Runtime does not load the model that the pass made", where=context.where,
                         why=first_line(error),
                         remedy="leave out the operators or nodes that it names") from error  # fmt: skip
    return model


IR_OF_CONSTANTS = 4
"""Before this IR version an initializer must be an input, too, and is a constant all the same (ONNX IR)."""


def changed(model: Model, proto: "ModelProto") -> Model:
    """The model with another message; weights that it no longer has are forgotten."""
    names = {tensor.name for tensor in proto.graph.initializer if tensor.data_location == tensor.EXTERNAL}
    weights = {name: place for name, place in model.weights.items() if name in names}
    kept = {tensor.name for tensor in proto.graph.initializer}
    return replace(model, proto=proto, weights=weights, outside=model.outside & kept)


def lean(proto: "ModelProto", model: Model, context: PassContext) -> Model:
    """A message with all weights in it that a library made from `model`: large weights go to a scratch file.

    Weights that `model` keeps in other files stay such where they still exist. ModelError when it is over 2 GiB.
    """
    from google.protobuf.message import EncodeError

    try:
        settled = settle(proto, context)
    except (EncodeError, ValueError) as error:
        raise ModelError("the changed model is over 2 GiB", where=context.where, remedy="quantize the model") from error
    return replace(settled, outside=model.outside & {tensor.name for tensor in proto.graph.initializer})


def value_types(proto: "ModelProto") -> dict[str, Value]:
    """Types and shapes of every value of the main graph, as ONNX Runtime infers them; ModelError when it refuses."""
    graph = proto.graph
    types = {tensor.name: Value(SHORT_NAMES.get(tensor.data_type), tuple(tensor.dims)) for tensor in graph.initializer}
    for value in graph.input:
        kind = value.type.tensor_type
        dims = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim)
        types.setdefault(value.name, Value(SHORT_NAMES.get(kind.elem_type), dims if kind.HasField("shape") else None))
    return types | infer(proto)


def declare(value: "ValueInfoProto", known: Value) -> None:
    """Write a tensor's type, and its shape where the rank is known, into the declaration of a value."""
    value.type.Clear()
    kind = value.type.tensor_type
    kind.elem_type = CODES.get(known.dtype or "", 0)
    if known.shape is not None:
        kind.shape.SetInParent()
        for size in known.shape:
            dim = kind.shape.dim.add()
            if size is not None:
                dim.dim_value = size


def fill_output_shapes(proto: "ModelProto") -> None:
    """Give outputs that have no shape what ONNX Runtime infers: tools of other people refuse models without."""
    lacking = [v for v in proto.graph.output if v.type.HasField("tensor_type") or not v.type.WhichOneof("value")]
    lacking = [value for value in lacking if not value.type.tensor_type.HasField("shape")]
    types = value_types(proto) if lacking else {}
    for value in lacking:
        known = types.get(value.name)
        if known and known.dtype and known.shape is not None:
            declare(value, known)


def model_bytes(model: Model) -> int:
    """What the model's message and weights take together."""
    pointed = sum(place.length for place in model.weights.values())
    return int(model.proto.ByteSize()) + pointed


def large_tensors(graph: "GraphProto", least: int) -> set[str]:
    """Initializers of numbers with at least so many bytes."""
    return {
        tensor.name
        for tensor in graph.initializer
        if tensor.data_type != tensor.STRING and (tensor_bytes(tensor) or 0) >= least
    }


def refuse_overridable(model: Model) -> None:
    """NotApplicable where a caller may override initializers: libraries take these for constants."""
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    if model.proto.ir_version >= IR_OF_CONSTANTS and any(v.name in constants for v in model.proto.graph.input):
        raise NotApplicable("initializers of the model are inputs", why="a caller may override them",
                            remedy="do constant-initializers first, if your app does not")  # fmt: skip


def make_constant(proto: "ModelProto") -> None:
    """Raise the IR version of a message in which an initializer is no input, where it is too old for that.

    Initializers that are inputs then stop being such: in the newer version a caller could override them.
    """
    inputs = {value.name for value in proto.graph.input}
    names = {tensor.name for tensor in proto.graph.initializer}
    if proto.ir_version < IR_OF_CONSTANTS and not names <= inputs:
        keep_only(proto.graph.input, lambda value: value.name not in names)
        proto.ir_version = IR_OF_CONSTANTS
