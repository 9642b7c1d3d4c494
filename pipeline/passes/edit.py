"""What passes share: models changed and whole, types of their values, constants, weights in and out of messages.

At the end: what rewrites know of a graph, and how they put other nodes in a node's place.
"""

import difflib
import logging
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runner.probe import elf as elf_file
from pipeline.core import files as storage
from pipeline.core import ort_session, workers
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import guards, onnx_model, wire
from pipeline.model import types as onnx_types
from pipeline.model.onnx_model import LeanModel
from pipeline.model.signature import Array
from pipeline.partition import answer as claim_answer
from pipeline.partition import graph as partition_graph
from pipeline.partition import types as partition_types
from pipeline.passes.base import Model, NotApplicable, PassContext

if TYPE_CHECKING:
    import onnx
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

COPY_BYTES = 1 << 20
MOST_BYTES = (2 << 30) - 1
"""A protobuf message ends at 2 GiB."""

ALIGNMENT = 4096
"""Where weights begin in a file of their own: page by page, so that each can be mapped (ONNX, ExternalData.md)."""

COMPARED = 64
"""Bytes at the beginning of a page by which a weight is looked for in a file."""

DATA_SUFFIX = ".data"
"""Behind the model's file name: the file of its weights."""


class SavedModel(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: the names of the model's file and of that of its weights ("" for none), and their bytes."""

    file: str
    size_bytes: int
    data_file: str = ""
    data_bytes: int = 0


def save_model(model: LeanModel, destination: Path, shared: str = "") -> SavedModel:
    """Write the model: weights named in `outside`, and all large ones of a model over 2 GiB, into DESTINATION.data.

    `shared` names another file, which is continued where it is there. Each file is written whole or not at all, the
    data first. ModelError when the graph alone is over 2 GiB.
    """
    import onnx

    inside = sum(place.length for name, place in model.weights.items() if name not in model.outside)
    over = inside + model.proto.ByteSize() > MOST_BYTES
    outside = model.outside | model.weights.keys() if over else model.outside
    moved = [
        tensor
        for tensor in model.proto.graph.initializer
        if tensor.name in outside and (tensor.data_type != tensor.STRING and bool(guards.tensor_bytes(tensor)))
    ]
    if not moved:
        write_model(model, destination)
        return SavedModel(file=destination.name, size_bytes=destination.stat().st_size)
    data = destination.with_name(shared or destination.name + DATA_SUFFIX)
    places = _write_data(model, moved, data)
    # The moved weights are external data in the file; nothing of them is left in the message
    proto = onnx_edit.copied(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in places:
            offset, length = places[tensor.name]
            bare = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            bare.doc_string = tensor.doc_string
            bare.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", str(offset)), ("length", str(length))):
                bare.external_data.add(key=key, value=value)
            tensor.CopyFrom(bare)
    weights = {name: place for name, place in model.weights.items() if name not in places}
    pointing = LeanModel(proto=proto, folder=model.folder, weights=weights, outside=frozenset(places))
    write_model(pointing, destination)
    return SavedModel(
        file=destination.name,
        size_bytes=destination.stat().st_size,
        data_file=data.name,
        data_bytes=data.stat().st_size,
    )


def _write_data(model: LeanModel, tensors: "list[TensorProto]", path: Path) -> dict[str, tuple[int, int]]:
    """Offset and length of each weight in the file: where it has these bytes already, else behind all that it has."""
    places = {}
    before: elf_file.Buffer = b""
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            before = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages: dict[bytes, list[int]] = {}
    for start in range(0, len(before), ALIGNMENT):
        pages.setdefault(before[start : start + COMPARED].ljust(COMPARED, b"\0"), []).append(start)
    with storage.replacing(path) as temporary, temporary.open("wb") as out:
        out.write(before)
        for tensor in tensors:
            length = guards.tensor_bytes(tensor) or 0
            head = b"".join(_pieces(model, tensor, min(length, COMPARED)))
            starts = (start for start in pages.get(head.ljust(COMPARED, b"\0"), []) if start + length <= len(before))
            for start in starts:
                if _is_at(before, start, _pieces(model, tensor, length)):
                    break
            else:
                out.write(bytes(-out.tell() % ALIGNMENT))
                start = out.tell()
                out.writelines(_pieces(model, tensor, length))
            places[tensor.name] = (start, length)
    return places


def _pieces(model: LeanModel, tensor: "TensorProto", length: int) -> Iterator[bytes]:
    """The first bytes of a weight, piece by piece."""
    from onnx import numpy_helper

    place = model.weights.get(tensor.name)
    if place is not None:
        yield from _read(replace(place, length=length))
    elif tensor.HasField("raw_data"):
        yield bytes(tensor.raw_data)[:length]
    else:  # as ONNX stores numbers raw: little-endian, 4-bit types packed
        yield bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)[:length]


def _is_at(content: elf_file.Buffer, start: int, pieces: Iterable[bytes]) -> bool:
    for piece in pieces:
        if content[start : start + len(piece)] != piece:
            return False
        start += len(piece)
    return True


def write_model(model: LeanModel, destination: Path) -> None:
    """Write one file with the model's `weights` inside, whole or not at all; ModelError when it would pass 2 GiB.

    Constants come last in its message and keep their order, whether or not their bytes are in ours: what was read back
    is written as it was. Large ones are copied from where they lie.
    """
    import onnx

    constants: list[tuple[bytes, onnx_model.ByteRange | None]] = []  # each field up to its bytes, and where these lie
    for tensor in model.proto.graph.initializer:
        if place := model.weights.get(tensor.name):
            bare = onnx_edit.copied(tensor)
            del bare.external_data[:]
            bare.ClearField("data_location")
            inner = bytes(bare.SerializeToString()) + wire.encode_varint(onnx_model.TENSOR_RAW_DATA << 3 | wire.LENGTH)
            inner += wire.encode_varint(place.length)
        else:
            inner = bytes(tensor.SerializeToString())
        size = len(inner) + (place.length if place else 0)
        constants.append(
            (
                wire.encode_varint(onnx_model.GRAPH_INITIALIZER << 3 | wire.LENGTH) + wire.encode_varint(size) + inner,
                place,
            )
        )
    rest, graph = onnx.ModelProto(), onnx.GraphProto()
    graph.CopyFrom(model.proto.graph)
    del graph.initializer[:]
    rest.CopyFrom(model.proto)
    rest.ClearField("graph")
    bare_graph, front = graph.SerializeToString(), rest.SerializeToString()
    total = len(bare_graph) + sum(len(field) + (place.length if place else 0) for field, place in constants)
    if total + len(front) + 16 > MOST_BYTES:
        raise ModelError("the model is over 2 GiB", where=str(destination), remedy="quantize the model")
    with storage.replacing(destination) as temporary, temporary.open("wb") as out:
        out.write(
            front
            + wire.encode_varint(onnx_model.MODEL_GRAPH << 3 | wire.LENGTH)
            + wire.encode_varint(total)
            + bare_graph
        )
        for field, place in constants:
            out.write(field)
            out.writelines(_read(place) if place else ())


def _read(place: onnx_model.ByteRange) -> Iterator[bytes]:
    with place.file.open("rb") as source:
        source.seek(place.offset)
        left = place.length
        while left and (chunk := source.read(min(COPY_BYTES, left))):
            yield chunk
            left -= len(chunk)
    if left:
        raise ModelError("a weight's file became shorter while it was copied", where=str(place.file))


QUANTIZED_OPS = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearConv",
    "QLinearMatMul", "MatMulNBits", "MatMulBnb4", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm",
    "DynamicQuantizeLSTM", "QAttention", "QLinearAdd",
})  # fmt: skip
"""Operators whose presence says that a model is quantized."""


def whole(model: Model) -> "onnx.ModelProto":
    """A copy of the message with every weight in it."""
    proto = onnx_edit.copied(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in model.weights:
            onnx_model.read_in(tensor, model.weights[tensor.name])
    return proto


def settle(proto: "onnx.ModelProto", context: PassContext) -> Model:
    """A model of a message that has its weights in it; a large one is written to the scratch folder and mapped."""
    if proto.ByteSize() < onnx_model.LEAN_MINIMUM_BYTES:
        return LeanModel(proto=proto, folder=context.folder, weights={})
    target = context.new_file(".onnx")
    target.write_bytes(proto.SerializeToString())
    return read_back(target)


def read_back(path: Path) -> Model:
    """A model that was saved to a file of ours, its large weights mapped from that file or one beside it."""
    import onnx

    if path.stat().st_size < onnx_model.LEAN_MINIMUM_BYTES:
        proto = onnx.ModelProto.FromString(path.read_bytes())
    else:
        proto = onnx_model.scan_message(path)
    places: dict[str, onnx_model.ByteRange] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            location, offset, length = onnx_model.external_entries(tensor)
            places[tensor.name] = onnx_model.ByteRange(file=path.parent / location, offset=offset, length=length)
    return LeanModel(proto=proto, folder=path.parent, weights=places)


def quantized_operators(proto: "onnx.ModelProto") -> set[str]:
    """The operators of a quantized model that occur anywhere in it."""
    return {node.op_type for graph in onnx_edit.subgraphs(proto.graph) for node in graph.node} & QUANTIZED_OPS


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


MOST_ATTEMPTS = 80
"""Times that a quantizer is asked which nodes it cannot take: some seconds for a phone's model."""


def refused_nodes(names: Sequence[str], attempt: Callable[[Sequence[str]], object], error: ModelError) -> list[str]:
    """Those of the nodes that a quantizer cannot take, found by halving, as its complaint names none.

    `attempt` quantizes some and raises ModelError; that it does for all is known, by `error`, which is raised where no
    nodes alone are to blame, all are, or too many.
    """
    left = MOST_ATTEMPTS

    def found(part: Sequence[str]) -> list[str]:
        nonlocal left
        left -= 1
        if left < 0:
            raise error
        workers.still_at_work()
        try:
            attempt(part)
        except ModelError:
            middle = len(part) // 2
            return [*found(part[:middle]), *found(part[middle:])] if middle else list(part)
        return []

    middle = len(names) // 2
    refused = [*found(names[:middle]), *found(names[middle:])] if middle else []
    if not refused or len(refused) == len(names):
        raise error
    return refused


def warn_of_refused(refused: Sequence[str], error: ModelError, context: PassContext) -> None:
    """Say which nodes stay float because a quantizer cannot take them."""
    others = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    context.warn(f"the quantizer cannot take {refused[0]}{others}, which stay{'s' * (not others)} float: {error.why}")


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
        options = ort_session.session_options(weights=model.folder, config=ort_session.NO_PREPACKING)
        ort_session.make_session(onnx_model.loadable(model).SerializeToString(), options)
    except ort_session.ort_errors() as error:
        raise ModelError(
            "ONNX Runtime does not load the model that the pass made",
            where=context.where,
            why=ort_session.first_line(error),
            remedy="leave out the operators or nodes that it names",
        ) from error
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


def value_types(proto: "ModelProto") -> dict[str, partition_types.Value]:
    """Types and shapes of every value of the main graph, as ONNX Runtime infers them; ModelError when it refuses."""
    graph = proto.graph
    types = {
        tensor.name: partition_types.Value(onnx_types.SHORT_NAMES.get(tensor.data_type), tuple(tensor.dims))
        for tensor in graph.initializer
    }
    for value in graph.input:
        types.setdefault(value.name, partition_graph.declared_value(value))
    return types | partition_types.infer(proto)


def declare(value: "ValueInfoProto", value_type: partition_types.Value) -> None:
    """Write a tensor's type, and its shape where the rank is known, into the declaration of a value."""
    value.type.Clear()
    kind = value.type.tensor_type
    kind.elem_type = onnx_types.CODES.get(value_type.dtype or "", 0)
    if value_type.shape is not None:
        kind.shape.SetInParent()
        for size in value_type.shape:
            dim = kind.shape.dim.add()
            if size is not None:
                dim.dim_value = size


def fill_output_shapes(proto: "ModelProto") -> None:
    """Give outputs that have no shape what ONNX Runtime infers: tools of other people refuse models without."""
    lacking = [v for v in proto.graph.output if v.type.HasField("tensor_type") or not v.type.WhichOneof("value")]
    lacking = [value for value in lacking if not value.type.tensor_type.HasField("shape")]
    types = value_types(proto) if lacking else {}
    for value in lacking:
        value_type = types.get(value.name)
        if value_type and value_type.dtype and value_type.shape is not None:
            declare(value, value_type)


def model_bytes(model: Model) -> int:
    """What the model's message and weights take together."""
    pointed = sum(place.length for place in model.weights.values())
    return int(model.proto.ByteSize()) + pointed


def refuse_overridable(model: Model) -> None:
    """NotApplicable where a caller may override initializers: libraries take these for constants."""
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    if model.proto.ir_version >= IR_OF_CONSTANTS and any(v.name in constants for v in model.proto.graph.input):
        raise NotApplicable(
            "initializers of the model are inputs",
            why="a caller may override them",
            remedy="do constant-initializers first, if your app does not",
        )


def make_constant(proto: "ModelProto") -> None:
    """Raise the IR version of a message in which an initializer is no input, where it is too old for that.

    Initializers that are inputs then stop being such: in the newer version a caller could override them.
    """
    inputs = {value.name for value in proto.graph.input}
    names = {tensor.name for tensor in proto.graph.initializer}
    if proto.ir_version < IR_OF_CONSTANTS and not names <= inputs:
        onnx_edit.keep_only(proto.graph.input, lambda value: value.name not in names)
        proto.ir_version = IR_OF_CONSTANTS


RESHAPE_HAS_INPUT, CLIP_HAS_INPUTS, PAD_HAS_INPUTS = 5, 11, 11
"""Opsets from which what were attributes are inputs."""

MOST_NUMBERS = 1 << 22
"""Constants of more entries are not computed with: fixes keep a model's memory bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """A model as ONNX Runtime sees it, and how the provider judged it.

    `claimed` has the first outputs of claimed nodes, which fixes leave alone. `sizes` are wanted sizes of open
    dimensions by their symbolic names or as `input[axis]`.
    """

    graph: partition_graph.Graph
    settings: claim_answer.Settings
    claimed: frozenset[str] = frozenset()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The import of the default domain; 0 when there is none."""
        return self.graph.opset or 0

    @property
    def nnapi(self) -> bool:
        """Whether NNAPI is asked."""
        return self.settings.rules.run.nnapi

    @property
    def neural_network(self) -> bool:
        """Whether CoreML's older format is asked."""
        return self.settings.rules.options.get("ModelFormat") == "NeuralNetwork"

    def shape(self, name: str) -> tuple[int, ...] | None:
        """All sizes of a value; None when one is open or the rank is unknown."""
        value = self.graph.value(name)
        return tuple(dim for dim in value.shape or () if dim is not None) if value.static else None

    def is_f32(self, name: str) -> bool:
        """Whether a value is a tensor of 32-bit floats."""
        return self.graph.value(name).dtype == "f32"

    def constant(self, name: str) -> Array | None:
        """The numbers of a constant that nobody can override; None for others and for very large ones."""
        tensor = self.graph.constant(name) if name else None
        return None if tensor is None or tensor.count > MOST_NUMBERS else tensor.read()


NO_ATTRIBUTES: Mapping[str, Any] = {}


class Writer:
    """Collects the nodes and constants that take the place of one node; names are the node's output with a number."""

    def __init__(self, node: "NodeProto", taken: set[str]) -> None:
        self.base = node.output[0]
        self.taken = taken
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []

    def fresh(self) -> str:
        """A name that nothing in the model has."""
        number = 0
        while (name := f"{self.base}__{number}") in self.taken:
            number += 1
        self.taken.add(name)
        return name

    def add(self, op_type: str, *inputs: str, into: str = "", attributes: Mapping[str, Any] = NO_ATTRIBUTES) -> str:
        """Append a node of one output and return that output's name: `into`, or a fresh one."""
        from onnx import helper

        output = into or self.fresh()
        name = f"{output}/{op_type}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name, **attributes))
        return output

    def constant(self, array: Any, dtype: str = "float32") -> str:
        """Add an initializer and return its name."""
        import numpy as np
        from onnx import numpy_helper

        name = self.fresh()
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(np.asarray(array, dtype=dtype)), name))
        return name

    def integers(self, *numbers: int) -> str:
        """Add a list of 64-bit integers: shapes, axes, starts."""
        return self.constant(numbers, "int64")


Rule = Callable[["NodeProto", GraphFacts, Writer], bool]
"""Writes what takes the place of a node; False when it does not apply, whatever it wrote until then is dropped."""


def rewrite(model: "ModelProto", facts: GraphFacts, rules: Mapping[str, Rule]) -> "ModelProto | None":
    """A copy in which refused nodes of the main graph are replaced by rule of their operator; None when none is.

    Nodes that compute on dequantized values are left alone: providers take them with their QDQ neighbours as one unit.
    """
    changed = onnx_edit.copied(model)
    graph = changed.graph
    taken = onnx_edit.names_in(graph)
    dequantized = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    kept: list[NodeProto] = []
    replaced = 0
    for node in model.graph.node:
        rule = rules.get(node.op_type) if node.domain in onnx_edit.ONNX_DOMAINS else None
        outputs = [name for name in node.output if name]
        alone = len(outputs) == 1 and outputs[0] == node.output[0] and outputs[0] not in facts.claimed
        if rule and alone and dequantized.isdisjoint(node.input):
            written = Writer(node, taken)
            if rule(node, facts, written):
                replaced += 1
                kept.extend(written.nodes)
                graph.initializer.extend(written.tensors)
                continue
        kept.append(node)
    onnx_edit.set_nodes(graph, kept)
    return changed if replaced else None
