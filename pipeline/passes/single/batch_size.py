"""Another batch size, where every operator provably computes each sample by itself.

Rules say where the batch of an output lies, given where it lies in its inputs; nothing where samples could mix.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core.errors import ConfigError
from pipeline.model import edit as onnx_edit
from pipeline.model import signature
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import IR_OF_CONSTANTS, changed, make_constant
from pipeline.passes.value_types import value_types

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

    from pipeline.partition import types as partition_types


class Batch(NamedTuple):
    """The axis of a value on which samples lie one after the other, each with `inner` entries."""

    axis: int
    inner: int = 1


@dataclass(slots=True, kw_only=True)
class Walk:
    """What rules know: values before the change, where their batch lies, constants, and the sizes before and after.

    Rules may give a node other constant inputs; what they add is in `tensors`, and in `nodes` what comes before it.
    """

    types: "Mapping[str, partition_types.Value]"
    constants: Mapping[str, Any]
    opset: int
    before: int
    after: int
    taken: set[str]
    batches: dict[str, Batch] = field(default_factory=dict)
    tensors: "list[TensorProto]" = field(default_factory=list)
    nodes: "list[NodeProto]" = field(default_factory=list)

    def shape(self, name: str) -> tuple[int | None, ...]:
        """Sizes of a value as they were; nothing for an unknown rank, which no rule then accepts."""
        value = self.types.get(name)
        return value.shape or () if value else ()

    def of(self, node: "NodeProto", slot: int) -> Batch | None:
        """Where the batch of an input lies; None where it has none."""
        return self.batches.get(onnx_edit.operand(node, slot))

    def integers(self, node: "NodeProto", slot: int) -> list[int] | None:
        """The numbers of a constant input; None for others."""
        numbers = self.constants.get(onnx_edit.operand(node, slot))
        return None if numbers is None else [int(number) for number in numbers.reshape(-1)]

    def replace(self, node: "NodeProto", slot: int, numbers: Sequence[int]) -> None:
        """Give a node other integers in a slot."""
        node.input[slot] = self.constant(numbers, f"{node.output[0]}/{slot}")

    def constant(self, numbers: Sequence[int], base: str) -> str:
        """Add a list of 64-bit integers and return its name."""
        import numpy as np
        from onnx import numpy_helper

        name = onnx_edit.fresh_name(base, self.taken)
        self.tensors.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def expand(self, node: "NodeProto", slot: int, axis: int) -> bool:
        """Repeat an input that is the same for every sample along an axis of size 1; whether that is possible."""
        from onnx import helper

        shape = self.shape(node.input[slot])
        if self.before != 1 or not axis < len(shape) or shape[axis] != 1:
            return False
        target = [self.after if index == axis else 1 for index in range(len(shape))]
        name = onnx_edit.fresh_name(f"{node.input[slot]}/batch", self.taken)
        sizes = self.constant(target, f"{name}/shape")
        self.nodes.append(helper.make_node("Expand", [node.input[slot], sizes], [name], name=name))
        node.input[slot] = name
        return True


Found = Batch | None | tuple[Batch | None, ...]
"""One place for all outputs, or one for each."""

BatchRule = Callable[["NodeProto", Walk], Found]
"""Where the batch of a node's outputs lies; None when samples may mix, or it cannot be seen that they do not."""


def axis_of(node: "NodeProto", rank: int, default: int) -> int:
    """The attribute `axis` of a node on a value of that rank, not below 0."""
    axis = int(onnx_edit.attribute(node, "axis", default))
    return axis + rank if axis < 0 else axis


def only(node: "NodeProto", walk: Walk, *slots: int) -> bool:
    """Whether no other inputs than these have a batch."""
    return all(walk.of(node, slot) is None for slot in range(len(node.input)) if slot not in slots)


def without(batch: Batch, axes: Sequence[int], *, keep: bool) -> Batch | None:
    """Where a batch lies once axes are gone, or are 1 with `keep`; None when its own is among them."""
    if batch.axis in axes:
        return None
    return batch if keep else Batch(batch.axis - sum(axis < batch.axis for axis in axes), batch.inner)


def axes_of(node: "NodeProto", walk: Walk, rank: int, slot: int = 1) -> list[int] | None:
    """Axes of a node as an attribute or a constant input, none below 0; None where they are not given."""
    given = onnx_edit.attribute(node, "axes")
    given = walk.integers(node, slot) if given is None else given
    return None if not given else [axis + rank if axis < 0 else axis for axis in given]


WHOLE_END = (1 << 31) - 1
"""From here on the end of a Slice means all that there is."""


def transpose(node: "NodeProto", walk: Walk) -> Found:
    """The axis moves."""
    batch = walk.of(node, 0)
    rank = len(walk.shape(node.input[0]))
    perm = onnx_edit.attribute(node, "perm") or list(reversed(range(rank)))
    return Batch(perm.index(batch.axis), batch.inner) if batch and batch.axis in perm else None


def squeeze(node: "NodeProto", walk: Walk) -> Found:
    """Axes that are named, and are not the batch's."""
    batch = walk.of(node, 0)
    axes = axes_of(node, walk, len(walk.shape(node.input[0])))
    return without(batch, axes, keep=False) if batch and axes else None


def unsqueeze(node: "NodeProto", walk: Walk) -> Found:
    """New axes move the batch's to the right."""
    batch, rank = walk.of(node, 0), len(walk.shape(node.output[0]))
    axes = axes_of(node, walk, rank)
    if not batch or not axes:
        return None
    left = [axis for axis in range(rank) if axis not in axes]
    return Batch(left[batch.axis], batch.inner)


def concat(node: "NodeProto", walk: Walk) -> Found:
    """Another axis; what is the same for every sample is repeated."""
    axis = axis_of(node, len(walk.shape(node.input[0])), 0)
    places = {batch for slot in range(len(node.input)) if (batch := walk.of(node, slot))}
    if len(places) != 1:
        return None
    (batch,) = places
    if batch.axis == axis:
        return None
    for slot in range(len(node.input)):
        if walk.of(node, slot) is None and not (batch.inner == 1 and walk.expand(node, slot, batch.axis)):
            return None
    return batch


def slices(node: "NodeProto", walk: Walk) -> Found:
    """Other axes, or all of the batch."""
    batch, rank = walk.of(node, 0), len(walk.shape(node.input[0]))
    as_inputs = len(node.input) > 1
    starts = walk.integers(node, 1) if as_inputs else onnx_edit.attribute(node, "starts")
    ends = walk.integers(node, 2) if as_inputs else onnx_edit.attribute(node, "ends")
    steps = walk.integers(node, 4) if onnx_edit.operand(node, 4) else [1] * len(starts or ())
    if (
        not batch
        or not starts
        or not ends
        or steps is None
        or (onnx_edit.operand(node, 3) and not walk.integers(node, 3))
    ):
        return None
    axes = axes_of(node, walk, rank, 3) or list(range(len(starts)))
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=False):
        if axis == batch.axis and ((start, step) != (0, 1) or end < WHOLE_END):
            return None
    return batch


def gather(node: "NodeProto", walk: Walk) -> Found:
    """Constant indices into another axis, or samples of indices into a table."""
    data, indices = walk.of(node, 0), walk.of(node, 1)
    axis = axis_of(node, len(walk.shape(node.input[0])), 0)
    if data and not indices and data.axis != axis:
        more = len(walk.shape(node.input[1])) - 1
        return Batch(data.axis + (more if data.axis > axis else 0), data.inner)
    return Batch(axis + indices.axis, indices.inner) if indices and not data else None


def flatten(node: "NodeProto", walk: Walk) -> Found:
    """Two axes; what is before the second is merged with the batch."""
    batch, shape = walk.of(node, 0), walk.shape(node.input[0])
    axis = axis_of(node, len(shape), 1)
    if not batch or batch.axis >= axis or any(size != 1 for size in shape[: batch.axis]):
        return None
    between = shape[batch.axis + 1 : axis]
    return None if None in between else Batch(0, batch.inner * math.prod(size or 0 for size in between))


def reshape(node: "NodeProto", walk: Walk) -> Found:
    """The order of numbers stays, so the batch is where as many of them come before it; its size is written anew."""
    batch, target = walk.of(node, 0), walk.integers(node, 1)
    shape, target_shape = walk.shape(node.input[0]), walk.shape(node.output[0])
    if not batch or not target or not only(node, walk, 0) or onnx_edit.attribute(node, "allowzero", 0):
        return None
    if batch == Batch(0) and target_shape[:1] == (walk.before,) and target[0] in (walk.before, 0):
        if target[0]:  # other axes may be open: the first stays what it is
            walk.replace(node, 1, [walk.after, *target[1:]])
        return batch
    if None in shape or None in target_shape or 0 in target_shape:
        return None
    sizes = [size or 0 for size in target_shape]
    first = math.prod(size or 0 for size in shape[: batch.axis])
    places = [k for k in range(len(sizes)) if math.prod(sizes[:k]) == first and sizes[k] % walk.before == 0]
    if not places:
        return None
    alone = [k for k in places if sizes[k] == walk.before]
    axis = batch.axis if batch.axis in alone else (alone or places)[0]
    given = Batch(axis, sizes[axis] // walk.before)
    walk.replace(node, 1, [*sizes[:axis], walk.after * given.inner, *sizes[axis + 1 :]])
    return given


def expand(node: "NodeProto", walk: Walk) -> Found:
    """A target of 1 leaves the batch as it is."""
    batch, target = walk.of(node, 0), walk.integers(node, 1)
    if not batch or target is None or not only(node, walk, 0):
        return None
    rank = len(walk.shape(node.input[0]))
    aligned = Batch(batch.axis + max(len(target) - rank, 0), batch.inner)
    axis = aligned.axis - max(rank - len(target), 0)
    if axis >= 0 and target[axis] not in (1, walk.before * batch.inner):
        return None
    if axis >= 0 and target[axis] != 1:
        walk.replace(node, 1, [*target[:axis], 1, *target[axis + 1 :]])
    return aligned


def tile(node: "NodeProto", walk: Walk) -> Found:
    """Repeats of other axes."""
    batch, repeats = walk.of(node, 0), walk.integers(node, 1)
    return batch if batch and repeats and repeats[batch.axis] == 1 else None


def pad(node: "NodeProto", walk: Walk) -> Found:
    """Padding of other axes."""
    batch, rank = walk.of(node, 0), len(walk.shape(node.input[0]))
    pads = onnx_edit.attribute(node, "pads") or walk.integers(node, 1)
    if not batch or not pads or onnx_edit.operand(node, 3):
        return None
    return batch if not pads[batch.axis] and not pads[batch.axis + rank] else None


RESIZE_OF_TWO_INPUTS = 10


def resize(node: "NodeProto", walk: Walk) -> Found:
    """Scales of 1, or sizes that are written anew."""
    batch, slot = walk.of(node, 0), 2 if node.op_type == "Resize" and walk.opset > RESIZE_OF_TWO_INPUTS else 1
    scales = walk.constants.get(onnx_edit.operand(node, slot))
    scales = onnx_edit.attribute(node, "scales") if scales is None else scales.reshape(-1)
    if (
        not batch
        or onnx_edit.attribute(node, "axes")
        or onnx_edit.attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize"
    ):
        return None
    if scales is not None and len(scales):
        return batch if float(scales[batch.axis]) == 1 else None
    sizes = walk.integers(node, 3)
    if not sizes or sizes[batch.axis] != walk.before * batch.inner:
        return None
    walk.replace(node, 3, [*sizes[: batch.axis], walk.after * batch.inner, *sizes[batch.axis + 1 :]])
    return batch


def elementwise(node: "NodeProto", walk: Walk) -> Found:
    """Broadcasting from the right: batches lie on the same axis, and what has none has size 1 there."""
    shapes = [walk.shape(name) for name in node.input]
    rank = max(map(len, shapes))
    places = set()
    for slot, shape in enumerate(shapes):
        if (batch := walk.of(node, slot)) is not None:
            places.add(Batch(batch.axis + rank - len(shape), batch.inner))
    if len(places) != 1:
        return None
    (common,) = places
    for slot, shape in enumerate(shapes):
        axis = common.axis - (rank - len(shape))
        if walk.of(node, slot) is None and axis >= 0 and shape[axis] != 1:
            return None
    return common


def sample_wise(node: "NodeProto", walk: Walk) -> Found:
    """Convolutions, pools, normalizations over the rest: the first axis counts samples.

    Training and the indices of MaxPool go over all samples.
    """
    batch = walk.of(node, 0)
    mixes = onnx_edit.attribute(node, "training_mode", 0) or (node.op_type == "MaxPool" and len(node.output) > 1)
    return batch if batch and batch.axis == 0 and only(node, walk, 0) and not mixes else None


def quantized(node: "NodeProto", walk: Walk) -> Found:
    """One scale for all, or one for each entry of another axis."""
    batch, shape = walk.of(node, 0), walk.shape(node.input[0])
    scale = walk.shape(node.input[1])
    apart = batch and (axis_of(node, len(shape), 1) != batch.axis or math.prod(size or 0 for size in scale) == 1)
    fits = apart and len(scale) < 2 and only(node, walk, 0)
    return batch if fits else None


def matmul(node: "NodeProto", walk: Walk) -> Found:
    """Samples in the stack of both, or rows of the first or columns of the second."""
    shapes = [walk.shape(name) for name in node.input[:2]]
    rank = max(map(len, shapes))
    if not only(node, walk, 0, 1) or min(map(len, shapes)) < 2:
        return None
    places = set()
    for slot, shape in enumerate(shapes):
        batch = walk.of(node, slot)
        if batch is None:
            continue
        own_axis = batch.axis + rank - len(shape)
        if own_axis == (rank - 1 if slot == 0 else rank - 2):
            return None
        other = 1 - slot
        axis = own_axis - (rank - len(shapes[other]))
        stacked = own_axis < rank - 2
        if stacked and axis >= 0 and walk.of(node, other) is None and shapes[other][axis] != 1:
            return None
        places.add(Batch(own_axis, batch.inner))
    both = walk.of(node, 0) is not None and walk.of(node, 1) is not None
    if len(places) != 1:
        return None
    (common,) = places
    return None if (both and common.axis >= rank - 2) else common


def gemm(node: "NodeProto", walk: Walk) -> Found:
    """Samples are rows of A."""
    batch, bias = walk.of(node, 0), walk.shape(onnx_edit.operand(node, 2))
    rows = batch and batch.axis == (1 if onnx_edit.attribute(node, "transA", 0) else 0)
    free = len(bias) < 2 or bias[0] == 1
    return Batch(0, batch.inner) if batch and rows and free and only(node, walk, 0) else None


SOFTMAX_ON_ONE_AXIS = 13


def along_other_axis(node: "NodeProto", walk: Walk) -> Found:
    """Softmax, TopK, Split, CumSum and the like work on one axis; Softmax before opset 13 on all from it on."""
    batch, rank = walk.of(node, 0), len(walk.shape(node.input[0]))
    flattens = node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and walk.opset < SOFTMAX_ON_ONE_AXIS
    default = {"TopK": -1, "Split": 0, "LayerNormalization": -1}.get(node.op_type, 1 if flattens else -1)
    axis = axis_of(node, rank, default)
    if node.op_type == "CumSum":
        given = walk.integers(node, 1)
        axis = given[0] % rank if given else batch.axis if batch else 0
    if not batch or not only(node, walk, 0):
        return None
    onwards = flattens or node.op_type == "LayerNormalization"
    return batch if (batch.axis < axis if onwards else batch.axis != axis) else None


def reduce(node: "NodeProto", walk: Walk) -> Found:
    """Sums and means over other axes that are named."""
    batch = walk.of(node, 0)
    axes = axes_of(node, walk, len(walk.shape(node.input[0])))
    keep = bool(onnx_edit.attribute(node, "keepdims", 1))
    return without(batch, axes, keep=keep) if batch and axes and only(node, walk, 0) else None


def arg_reduce(node: "NodeProto", walk: Walk) -> Found:
    """The place of the largest on another axis."""
    batch = walk.of(node, 0)
    axis = axis_of(node, len(walk.shape(node.input[0])), 0)
    return without(batch, [axis], keep=bool(onnx_edit.attribute(node, "keepdims", 1))) if batch else None


def recurrent(node: "NodeProto", walk: Walk) -> Found:
    """LSTM, GRU and RNN: samples on the second axis, of constant states too, which are repeated."""
    plain = not onnx_edit.attribute(node, "layout", 0) and not onnx_edit.operand(node, 4)
    if walk.of(node, 0) != Batch(1) or not plain or not only(node, walk, 0, 5, 6):
        return None
    states = [slot for slot in (5, 6) if onnx_edit.operand(node, slot) and walk.of(node, slot) != Batch(1)]
    if not all(walk.of(node, slot) is None and walk.expand(node, slot, 1) for slot in states):
        return None
    return Batch(2), Batch(1), Batch(1)


def einsum(node: "NodeProto", walk: Walk) -> Found:
    """A letter for samples that every operand with a batch has there, no other operand has, and the output has."""
    left, arrow, right = str(onnx_edit.attribute(node, "equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or len(terms) != len(node.input):
        return None
    places = {
        (terms[slot][batch.axis], batch.inner)
        for slot in range(len(terms))
        if (batch := walk.of(node, slot)) and batch.axis < len(terms[slot])
    }
    if len(places) != 1:
        return None
    ((letter, inner),) = places
    counts = [term.count(letter) for term in terms]
    batched = [int(walk.of(node, slot) is not None) for slot in range(len(terms))]
    return Batch(right.index(letter), inner) if counts == batched and right.count(letter) == 1 else None


_TABLE: dict[BatchRule, str] = {
    elementwise: "Abs Acos Add And Asin Atan BitShift Cast Ceil Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp "
    "Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max "
    "Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign "
    "Sqrt Sub Sum Tan Tanh ThresholdedRelu Where Xor",
    sample_wise: "AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool "
    "GroupNormalization InstanceNormalization LRN LpPool MaxPool SpaceToDepth",
    along_other_axis: "CumSum Hardmax LayerNormalization LogSoftmax Softmax Split TopK",
    reduce: "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare",
    arg_reduce: "ArgMax ArgMin", quantized: "DequantizeLinear QuantizeLinear", matmul: "MatMul", gemm: "Gemm",
    recurrent: "GRU LSTM RNN", einsum: "Einsum",
    transpose: "Transpose", squeeze: "Squeeze", unsqueeze: "Unsqueeze", concat: "Concat",
    slices: "Slice", gather: "Gather", flatten: "Flatten", reshape: "Reshape",
    expand: "Expand", tile: "Tile", pad: "Pad", resize: "Resize Upsample",
}  # fmt: skip

RULES: Mapping[str, BatchRule] = {name: rule for rule, names in _TABLE.items() for name in names.split()}
"""The rule of each operator of ai.onnx that has one."""

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
    proto = onnx_edit.copied(model.proto)
    onnx_edit.sort_nodes(proto.graph)
    batches, before = _batches(proto, options, context.where)
    types = value_types(proto)
    walk = Walk(
        types=types,
        constants=_constants(proto),
        opset=onnx_edit.onnx_opset(proto),
        before=before,
        after=options.size,
        taken=set(types) | onnx_edit.read_names(proto.graph.node),
        batches=batches,
    )
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        if walk.batches.keys() & onnx_edit.read_names([node]):
            rule = RULES.get(node.op_type) if node.domain in onnx_edit.ONNX_DOMAINS else None
            values = [types[name] for name in (*node.input, *node.output) if name in types]
            batch = rule(node, walk) if rule and all(value.shape is not None for value in values) else None
            if batch is None:
                static = all(value.static for value in values)
                mixes = "it may mix samples" if static else "it has open sizes: do fixed-dimensions first"
                why = WHY_NOT.get(node.op_type, mixes if rule else "no rule says that it keeps samples apart")
                raise NotApplicable(
                    "the batch size cannot be changed safely",
                    why=f"{node.op_type} that gives {node.output[0]!r}: {why}",
                    remedy="export the model again with that batch size",
                )
            places = batch if not isinstance(batch, Batch) else (batch,) * len(node.output)
            walk.batches |= {name: batch for name, batch in zip(node.output, places, strict=False) if name and batch}
        nodes += [*walk.nodes, node]
        walk.nodes.clear()
    graph = proto.graph
    onnx_edit.set_nodes(graph, nodes)
    graph.initializer.extend(walk.tensors)
    for value in graph.input:
        if batch := walk.batches.get(value.name):
            value.type.tensor_type.shape.dim[batch.axis].dim_value = walk.after
    del graph.value_info[:]
    for value in graph.output:
        batch, dims = walk.batches.get(value.name), value.type.tensor_type.shape.dim
        if batch and batch.axis < len(dims):
            dims[batch.axis].dim_value = walk.after * batch.inner
    make_constant(proto)
    _check_shapes(proto, walk)
    return changed(model, proto)


def _batches(proto: "ModelProto", options: BatchOptions, where: str) -> tuple[dict[str, Batch], int]:
    """The batch of each input, and its size; open ones become 1 in the message."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input if value.name not in constants}
    if unknown := options.axes.keys() - inputs.keys():
        raise ConfigError(
            f"the model has no input {min(unknown)!r}", where=where, remedy=f"inputs: {', '.join(inputs) or 'none'}"
        )
    batches: dict[str, Batch] = {}
    sizes: dict[str, int] = {}
    opened = False
    for name, value in inputs.items():
        dims = value.type.tensor_type.shape.dim
        axis = options.axes.get(name, 0 if dims else -1)
        if axis >= len(dims) or axis < -1:
            raise ConfigError(
                f"the input {name!r} has no axis {axis}",
                where=where,
                why=f"it has {len(dims)} axes",
                remedy="count from 0",
            )
        if axis >= 0:
            size = signature.declared_axis(dims[axis])
            opened |= not isinstance(size, int)
            sizes[name] = size if isinstance(size, int) and size else 1
            dims[axis].dim_value = sizes[name]
            batches[name] = Batch(axis)
    if not sizes:
        raise NotApplicable("the model has no batch", why="no input has an axis for it")
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{name}[{batches[name].axis}] is {number}" for name, number in sizes.items())
        raise NotApplicable(
            "the inputs have no common batch size",
            why=shown,
            remedy="name the batch's axis of an input, as in axes=h0=1+c0=1, or -1 for none",
        )
    if not opened and options.size in sizes.values():
        raise NotApplicable("nothing to do", why=f"the batch size is {options.size}")
    return batches, next(iter(sizes.values()))


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


def _check_shapes(proto: "ModelProto", walk: Walk) -> None:
    """Every value of known sizes must have them again but for the batch: what ONNX Runtime infers is the proof."""
    after = value_types(proto)
    for name, value in walk.types.items():
        if value.shape is None or name not in after:
            continue
        expected = list(value.shape)
        if (batch := walk.batches.get(name)) and batch.axis < len(expected):
            expected[batch.axis] = walk.after * batch.inner
        shape = after[name].shape or ()
        pairs = [pair for pair in zip(expected, shape, strict=False) if None not in pair]
        if len(shape) != len(expected) or any(size_asked != size for size_asked, size in pairs):
            raise NotApplicable(
                "the batch size cannot be changed safely",
                why=f"{name!r} becomes {list(shape)}",
                remedy="export the model again with that batch size",
            )


PASS = Pass(
    name="batch",
    title="Change the batch size, where no operator mixes samples.",
    apply=change_batch,
    effect=Effect.INTERFACE,
    options=BatchOptions,
)
