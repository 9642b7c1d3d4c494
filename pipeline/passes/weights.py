"""Weights of a model in and out of its message, and what libraries that take a whole message need of it."""

import difflib
import heapq
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.ort_session import HostSession, first_line, make_session, ort_errors
from pipeline.model.onnx_model import (
    LEAN_MINIMUM_BYTES,
    ByteRange,
    LeanModel,
    external_entries,
    keep_only,
    loadable,
    read_in,
    scan_message,
    subgraphs,
)
from pipeline.passes.base import Model, PassContext

if TYPE_CHECKING:
    import onnx

QUANTIZED_OPS = frozenset({
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearConv",
    "QLinearMatMul", "MatMulNBits", "MatMulBnb4", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm",
    "DynamicQuantizeLSTM", "QAttention", "QLinearAdd",
})  # fmt: skip
"""Operators whose presence says that a model is quantized."""


def whole(model: Model) -> "onnx.ModelProto":
    """A copy of the message with every weight in it."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
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


def onnx_opset(proto: "onnx.ModelProto") -> int:
    """The version of ONNX's own operators; 0 when a model has none."""
    return max((entry.version for entry in proto.opset_import if entry.domain in {"", "ai.onnx"}), default=0)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence ONNX Runtime's Python tools: they log advice that does not apply here, and configure the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def drop_unused_domains(proto: "onnx.ModelProto") -> None:
    """Remove opset imports that no node uses, in place: onnxruntime declares all that it knows when it saves."""
    used = {node.domain for graph in subgraphs(proto.graph) for node in graph.node}
    used |= {function.domain for function in proto.functions} | {""}
    keep_only(proto.opset_import, lambda entry: entry.domain in used)


def check_names(proto: "onnx.ModelProto", exclude: Iterable[str], where: str) -> None:
    """ConfigError for an excluded node that there is not."""
    names = {node.name for node in proto.graph.node}
    for name in exclude:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else "nodes have the names that the pass preprocess gives"
            raise ConfigError(f"the model has no node {name!r} to exclude", where=where, remedy=remedy)


def check_loads(model: Model, where: str) -> Model:
    """The model, when ONNX Runtime makes a session of it on the CPU; ModelError when it does not."""
    try:
        make_session(loadable(model).SerializeToString(), HostSession(weights=model.folder))
    except ort_errors() as error:
        raise ModelError("ONNX Runtime does not load the model that the pass made", where=where,
                         why=first_line(error),
                         remedy="leave out the operators or nodes that it names") from error  # fmt: skip
    return model


def sort_nodes(graph: "onnx.GraphProto") -> None:
    """Put the nodes of the main graph into an order in which values are made before they are read, in place.

    Nodes that are in order keep their places; bodies count as readers of the outer values that they name.
    """
    import onnx

    waiting = list(graph.node)
    made = {name for node in waiting for name in node.output if name}
    needs = [read_names([node]) & made for node in waiting]
    readers: dict[str, list[int]] = {}
    for place, names in enumerate(needs):
        for name in names:
            readers.setdefault(name, []).append(place)
    ready = [place for place, names in enumerate(needs) if not names]
    heapq.heapify(ready)
    order = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for name in waiting[place].output:
            for reader in readers.pop(name, ()):
                needs[reader].discard(name)
                if not needs[reader]:
                    heapq.heappush(ready, reader)
    if len(order) != len(waiting):
        raise ModelError("the graph has a cycle", remedy="export the model again")
    if order != sorted(order):
        nodes = [onnx.NodeProto.FromString(waiting[place].SerializeToString()) for place in order]
        del graph.node[:]
        graph.node.extend(nodes)


def read_names(nodes: "Iterable[onnx.NodeProto]") -> set[str]:
    """Names of all values that nodes read, those of outer graphs that their bodies read among them.

    A body's own names are in it, too: no outer value has one of them (ONNX IR specification, names within a graph).
    """
    found: set[str] = set()
    for node in nodes:
        found.update(node.input)
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs] if attribute.HasField("g") or attribute.graphs else ():
                for graph in subgraphs(body):
                    found.update(value.name for value in graph.output)
                    found.update(name for inner in graph.node for name in inner.input)
    return found - {""}
