"""What passes share: changed copies of a model, types of its values, constants and their names."""

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.core.errors import ModelError
from pipeline.model.guards import tensor_bytes
from pipeline.model.onnx_model import keep_only
from pipeline.partition.graph import DTYPES, Value
from pipeline.partition.ort_view import infer
from pipeline.passes.base import Model, NotApplicable, PassContext
from pipeline.passes.weights import settle

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

IR_OF_CONSTANTS = 4
"""Before this IR version an initializer must be an input, too, and is a constant all the same (ONNX IR)."""

CODES = {name: code for code, name in DTYPES.items()}
"""TensorProto.DataType by the short names of `pipeline.partition.graph`."""


def copied(model: Model) -> "ModelProto":
    """A copy of the message, for a pass to change."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    return proto


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
        made = settle(proto, context)
    except (EncodeError, ValueError) as error:
        raise ModelError("the changed model is over 2 GiB", where=context.where, remedy="quantize the model") from error
    return replace(made, outside=model.outside & {tensor.name for tensor in proto.graph.initializer})


def fresh_name(base: str, taken: set[str]) -> str:
    """A name that nothing has: `base`, or `base` with a number; it counts as taken from now on."""
    name, number = base, 0
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    taken.add(name)
    return name


def value_types(proto: "ModelProto") -> dict[str, Value]:
    """Types and shapes of every value of the main graph, as ONNX Runtime infers them; ModelError when it refuses."""
    graph = proto.graph
    found = {tensor.name: Value(DTYPES.get(tensor.data_type), tuple(tensor.dims)) for tensor in graph.initializer}
    for value in graph.input:
        kind = value.type.tensor_type
        dims = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim)
        found.setdefault(value.name, Value(DTYPES.get(kind.elem_type), dims if kind.HasField("shape") else None))
    return found | infer(proto)


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
