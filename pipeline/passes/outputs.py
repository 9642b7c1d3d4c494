"""Other outputs: fewer of them, or values from inside the graph; what they do not need goes."""

import difflib
from typing import TYPE_CHECKING

from pipeline.core.errors import ConfigError
from pipeline.model.onnx_model import keep_only
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import changed, copied, declare, value_types
from pipeline.passes.weights import read_names

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto


class PruneOptions(Options, frozen=True, kw_only=True):
    """Options of prune-outputs."""

    outputs: tuple[str, ...]
    """Names of the values that the model gives from now on, in this order: outputs, or values inside the graph."""


def prune_outputs(model: Model, options: PruneOptions, context: PassContext) -> Model:
    """The model with the named outputs, without the nodes, weights and inputs that only others need.

    Values that only the bodies of If, Loop and Scan read count as needed. ConfigError for a name that no node gives,
    NotApplicable where these are the outputs already.
    """
    wanted = tuple(dict.fromkeys(options.outputs))
    if wanted == tuple(value.name for value in model.proto.graph.output):
        raise NotApplicable("nothing to do", why="these are the outputs of the model")
    proto = copied(model)
    _check_names(proto.graph, wanted, context.where)
    _set_outputs(proto, wanted)
    _drop_unneeded(proto.graph)
    return changed(model, proto)


def expose(model: Model, names: tuple[str, ...]) -> Model:
    """The model with more outputs: values of its main graph that nodes give."""
    proto = copied(model)
    _set_outputs(proto, (*(value.name for value in proto.graph.output), *names))
    return changed(model, proto)


def _check_names(graph: "GraphProto", wanted: tuple[str, ...], where: str) -> None:
    known = [name for node in graph.node for name in node.output if name]
    known = [*(value.name for value in graph.output), *known]
    if not any(wanted):
        raise ConfigError("no output is named", where=where, remedy=f"name some of: {', '.join(known[:8])}")
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {close[0]!r}?" if close else "name an output, or a value that a node gives"
            raise ConfigError(f"no node of the model gives {name!r}", where=where, remedy=remedy)


def _set_outputs(proto: "ModelProto", wanted: tuple[str, ...]) -> None:
    """Declare the outputs; those from inside the graph get the types that ONNX Runtime infers."""
    import onnx

    graph = proto.graph
    declared = {value.name: value for value in graph.output}
    types = value_types(proto) if any(name not in declared for name in wanted) else {}
    outputs = []
    for name in wanted:
        value = onnx.ValueInfoProto(name=name)
        if name in declared:
            value.CopyFrom(declared[name])
        elif (known := types.get(name)) and known.dtype:
            declare(value, known)
        outputs.append(value)
    del graph.output[:]
    graph.output.extend(outputs)


def _drop_unneeded(graph: "GraphProto") -> None:
    """Remove what no output needs; in a graph whose nodes are in no order, too."""
    maker = {name: node for node in graph.node for name in node.output if name}
    needed, waiting = set[str](), [value.name for value in graph.output]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(read_names([maker[name]]) if name in maker else ())
    keep_only(graph.node, lambda node: not needed.isdisjoint(node.output))
    given = {name for node in graph.node for name in node.output}
    for values in (graph.initializer, graph.input):
        keep_only(values, lambda value: value.name in needed)
    keep_only(graph.sparse_initializer, lambda sparse: sparse.values.name in needed)
    keep_only(graph.value_info, lambda value: value.name in needed and value.name in given)
    keep_only(graph.quantization_annotation, lambda note: note.tensor_name in needed)


PASS = Pass(
    name="prune-outputs",
    title="Keep named outputs, or cut at inner values; remove what they do not need.",
    apply=prune_outputs,
    effect=Effect.INTERFACE,
    options=PruneOptions,
)
