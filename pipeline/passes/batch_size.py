"""Another batch size, where every operator provably computes each sample by itself."""

from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ConfigError
from pipeline.model.edit import ONNX_DOMAINS, copied, onnx_opset, read_names, set_nodes, sort_nodes
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.batch_rules import RULES, Batch, Walk
from pipeline.passes.edit import IR_OF_CONSTANTS, changed, make_constant, value_types

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


WHY_NOT = {
    "DynamicQuantizeLinear": "its scale is that of the whole batch",
    "Shape": "sizes are computed from it: do fixed-dimensions and fold-shapes first",
    "NonMaxSuppression": "its output counts boxes of all samples",
}
"""Reasons for operators that a rule cannot have; of others no rule is known."""


class BatchOptions(Options, frozen=True, kw_only=True):
    """Options of batch."""

    size: int
    """The new batch size."""
    axes: dict[str, int] = {}
    """The axis of the batch by input, where it is not the first; -1 for an input without one."""


def change_batch(model: Model, options: BatchOptions, context: PassContext) -> Model:
    """The model for another number of samples; an open batch dimension is fixed to it.

    Reshape targets and the like that have the batch in them are written anew. NotApplicable, with the node, where an
    operator may mix samples; ConfigError for axes of inputs that there are not.
    """
    if options.size < 1:
        raise ConfigError("the batch size is not positive", where=context.where, remedy="give 1 or more")
    proto = copied(model.proto)
    sort_nodes(proto.graph)
    batches, before = _batches(proto, options, context.where)
    types = value_types(proto)
    walk = Walk(
        types=types, constants=_constants(proto), opset=onnx_opset(proto), before=before, after=options.size,
        taken=set(types) | read_names(proto.graph.node), batches=batches,
    )  # fmt: skip
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        _follow(node, walk)
        nodes += [*walk.nodes, node]
        walk.nodes.clear()
    _finish(proto, walk, nodes)
    _check_shapes(proto, walk)
    return changed(model, proto)


def _batches(proto: "ModelProto", options: BatchOptions, where: str) -> tuple[dict[str, Batch], int]:
    """The batch of each input, and its size; open ones become 1 in the message."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input if value.name not in constants}
    if unknown := options.axes.keys() - inputs.keys():
        raise ConfigError(f"the model has no input {min(unknown)!r}", where=where,
                          remedy=f"inputs: {', '.join(inputs) or 'none'}")  # fmt: skip
    batches: dict[str, Batch] = {}
    sizes: dict[str, int] = {}
    opened = False
    for name, value in inputs.items():
        dims = value.type.tensor_type.shape.dim
        axis = options.axes.get(name, 0 if dims else -1)
        if axis >= len(dims) or axis < -1:
            raise ConfigError(f"the input {name!r} has no axis {axis}", where=where, why=f"it has {len(dims)} axes",
                              remedy="count from 0")  # fmt: skip
        if axis >= 0:
            opened |= not dims[axis].HasField("dim_value")
            sizes[name] = dims[axis].dim_value or 1
            dims[axis].dim_value = sizes[name]
            batches[name] = Batch(axis)
    _check_sizes(sizes, batches, options.size, opened=opened)
    return batches, next(iter(sizes.values()))


def _check_sizes(sizes: dict[str, int], batches: dict[str, Batch], size: int, *, opened: bool) -> None:
    if not sizes:
        raise NotApplicable("the model has no batch", why="no input has an axis for it")
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name}[{batches[name].axis}] is {number}" for name, number in sizes.items())
        raise NotApplicable(
            "the inputs have no common batch size", why=shown,
            remedy="name the batch's axis of an input, as in axes=h0=1+c0=1, or -1 for none",
        )  # fmt: skip
    if not opened and size in sizes.values():
        raise NotApplicable("nothing to do", why=f"the batch size is {size}")


def _constants(proto: "ModelProto") -> dict[str, Any]:
    """Numbers of what is constant and small: initializers in the message, and Constant nodes."""
    from onnx import numpy_helper

    graph = proto.graph
    free = {value.name for value in graph.input} if proto.ir_version >= IR_OF_CONSTANTS else set()
    tensors = {t.name: t for t in graph.initializer if t.data_location != t.EXTERNAL and t.name not in free}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors |= {name: a.t for name in node.output for a in node.attribute if a.name == "value"}
    return {name: numpy_helper.to_array(tensor) for name, tensor in tensors.items()}


def _follow(node: "NodeProto", walk: Walk) -> None:
    """Note where the batch of a node's outputs lies; NotApplicable where that is not proven."""
    if not walk.batches.keys() & read_names([node]):
        return
    rule = RULES.get(node.op_type) if node.domain in ONNX_DOMAINS else None
    values = [walk.types[name] for name in (*node.input, *node.output) if name in walk.types]
    place = rule(node, walk) if rule and all(value.shape is not None for value in values) else None
    if place is None:
        static = all(value.static for value in values)
        mixes = "it may mix samples" if static else "it has open sizes: do fixed-dimensions first"
        why = WHY_NOT.get(node.op_type, mixes if rule else "no rule says that it keeps samples apart")
        raise NotApplicable(
            "the batch size cannot be changed safely",
            why=f"{node.op_type} that gives {node.output[0]!r}: {why}",
            remedy="export the model again with that batch size",
        )
    places = place if not isinstance(place, Batch) else (place,) * len(node.output)
    walk.batches |= {name: batch for name, batch in zip(node.output, places, strict=False) if name and batch}


def _finish(proto: "ModelProto", walk: Walk, nodes: "list[NodeProto]") -> None:
    """Write the nodes, and the new sizes of inputs and outputs."""
    graph = proto.graph
    set_nodes(graph, nodes)
    graph.initializer.extend(walk.tensors)
    for value in graph.input:
        if place := walk.batches.get(value.name):
            value.type.tensor_type.shape.dim[place.axis].dim_value = walk.after
    del graph.value_info[:]
    for value in graph.output:
        place, dims = walk.batches.get(value.name), value.type.tensor_type.shape.dim
        if place and place.axis < len(dims):
            dims[place.axis].dim_value = walk.after * place.inner
    make_constant(proto)


def _check_shapes(proto: "ModelProto", walk: Walk) -> None:
    """Every value of known sizes must have them again but for the batch: what ONNX Runtime infers is the proof."""
    after = value_types(proto)
    for name, known in walk.types.items():
        if known.shape is None or name not in after:
            continue
        expected = list(known.shape)
        if (place := walk.batches.get(name)) and place.axis < len(expected):
            expected[place.axis] = walk.after * place.inner
        shape = after[name].shape or ()
        pairs = [pair for pair in zip(expected, shape, strict=False) if None not in pair]
        if len(shape) != len(expected) or any(wanted != size for wanted, size in pairs):
            raise NotApplicable("the batch size cannot be changed safely", why=f"{name!r} becomes {list(shape)}",
                                remedy="export the model again with that batch size")  # fmt: skip


PASS = Pass(
    name="batch",
    title="Change the batch size, where no operator mixes samples.",
    apply=change_batch,
    effect=Effect.INTERFACE,
    options=BatchOptions,
)
