"""What passes share: models changed and whole, constants, weights in and out of messages.

At the end: what rewrites know of a graph, and how they put other nodes in a node's place.
"""

import difflib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core import ort_session
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import onnx_model
from pipeline.model.onnx_model import LeanModel
from pipeline.model.signature import Array
from pipeline.partition import answer as claim_answer
from pipeline.partition import graph as partition_graph
from pipeline.passes.base import Model, NotApplicable, PassContext

if TYPE_CHECKING:
    import onnx
    from onnx import ModelProto, NodeProto, TensorProto


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
            entries = onnx_model.external_entries(tensor)
            places[tensor.name] = entries.inside(path.parent / entries.location)
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


def check_names(proto: "onnx.ModelProto", exclude: Iterable[str], where: str) -> None:
    """ConfigError for an excluded node that there is not; ends for an app's data may have become constants."""
    names = {node.name for node in proto.graph.node}
    for name in exclude:
        if name not in names and not name.startswith(onnx_edit.ENDS):
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
    weights = {name: span for name, span in model.weights.items() if name in names}
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


def model_bytes(model: Model) -> int:
    """What the model's message and weights take together."""
    pointed = sum(span.length for span in model.weights.values())
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
