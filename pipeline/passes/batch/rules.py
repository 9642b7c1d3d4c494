"""Where the batch of an operator's output lies, given where it lies in its inputs; nothing where samples could mix.

A batch is an axis of a value, or the outer part of one: Reshape may merge it with what follows. A rule proves that the
operator computes each sample by itself, or gives None. What cannot be proven is not said to be safe.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.passes.batch import moves
from pipeline.passes.batch.walk import Batch, BatchRule, Found, Walk, axes_of, axis_of, only, without
from pipeline.passes.rewrites.facts import attribute, operand

if TYPE_CHECKING:
    from onnx import NodeProto


def elementwise(node: "NodeProto", walk: Walk) -> Found:
    """Broadcasting from the right: batches lie on the same axis, and what has none has size 1 there."""
    shapes = [walk.shape(name) for name in node.input]
    rank = max(map(len, shapes))
    places = set()
    for slot, shape in enumerate(shapes):
        if (found := walk.of(node, slot)) is not None:
            places.add(Batch(found.axis + rank - len(shape), found.inner))
    if len(places) != 1:
        return None
    (place,) = places
    for slot, shape in enumerate(shapes):
        own = place.axis - (rank - len(shape))
        if walk.of(node, slot) is None and own >= 0 and shape[own] != 1:
            return None
    return place


def sample_wise(node: "NodeProto", walk: Walk) -> Found:
    """Convolutions, pools, normalizations over the rest: the first axis counts samples.

    Training and the indices of MaxPool go over all samples.
    """
    found = walk.of(node, 0)
    mixes = attribute(node, "training_mode", 0) or (node.op_type == "MaxPool" and len(node.output) > 1)
    return found if found and found.axis == 0 and only(node, walk, 0) and not mixes else None


def quantized(node: "NodeProto", walk: Walk) -> Found:
    """One scale for all, or one for each entry of another axis."""
    found, shape = walk.of(node, 0), walk.shape(node.input[0])
    scale = walk.shape(node.input[1])
    apart = found and (axis_of(node, len(shape), 1) != found.axis or math.prod(size or 0 for size in scale) == 1)
    fits = apart and len(scale) < 2 and only(node, walk, 0)
    return found if fits else None


def matmul(node: "NodeProto", walk: Walk) -> Found:
    """Samples in the stack of both, or rows of the first or columns of the second."""
    shapes = [walk.shape(name) for name in node.input[:2]]
    rank = max(map(len, shapes))
    if not only(node, walk, 0, 1) or min(map(len, shapes)) < 2:
        return None
    places = set()
    for slot, shape in enumerate(shapes):
        found = walk.of(node, slot)
        if found is None:
            continue
        place = found.axis + rank - len(shape)
        if place == (rank - 1 if slot == 0 else rank - 2):
            return None
        other = 1 - slot
        own = place - (rank - len(shapes[other]))
        stacked = place < rank - 2
        if stacked and own >= 0 and walk.of(node, other) is None and shapes[other][own] != 1:
            return None
        places.add(Batch(place, found.inner))
    both = walk.of(node, 0) is not None and walk.of(node, 1) is not None
    if len(places) != 1:
        return None
    (placed,) = places
    return None if (both and placed.axis >= rank - 2) else placed


def gemm(node: "NodeProto", walk: Walk) -> Found:
    """Samples are rows of A."""
    found, bias = walk.of(node, 0), walk.shape(operand(node, 2))
    rows = found and found.axis == (1 if attribute(node, "transA", 0) else 0)
    free = len(bias) < 2 or bias[0] == 1
    return Batch(0, found.inner) if found and rows and free and only(node, walk, 0) else None


SOFTMAX_ON_ONE_AXIS = 13


def along_other_axis(node: "NodeProto", walk: Walk) -> Found:
    """Softmax, TopK, Split, CumSum and the like work on one axis; Softmax before opset 13 on all from it on."""
    found, rank = walk.of(node, 0), len(walk.shape(node.input[0]))
    flattens = node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and walk.opset < SOFTMAX_ON_ONE_AXIS
    default = {"TopK": -1, "Split": 0, "LayerNormalization": -1}.get(node.op_type, 1 if flattens else -1)
    axis = axis_of(node, rank, default)
    if node.op_type == "CumSum":
        given = walk.integers(node, 1)
        axis = given[0] % rank if given else found.axis if found else 0
    if not found or not only(node, walk, 0):
        return None
    onwards = flattens or node.op_type == "LayerNormalization"
    return found if (found.axis < axis if onwards else found.axis != axis) else None


def reduce(node: "NodeProto", walk: Walk) -> Found:
    """Sums and means over other axes that are named."""
    found = walk.of(node, 0)
    axes = axes_of(node, walk, len(walk.shape(node.input[0])))
    keep = bool(attribute(node, "keepdims", 1))
    return without(found, axes, keep=keep) if found and axes and only(node, walk, 0) else None


def arg_reduce(node: "NodeProto", walk: Walk) -> Found:
    """The place of the largest on another axis."""
    found = walk.of(node, 0)
    axis = axis_of(node, len(walk.shape(node.input[0])), 0)
    return without(found, [axis], keep=bool(attribute(node, "keepdims", 1))) if found else None


def recurrent(node: "NodeProto", walk: Walk) -> Found:
    """LSTM, GRU and RNN: samples on the second axis, of constant states too, which are repeated."""
    plain = not attribute(node, "layout", 0) and not operand(node, 4)
    if walk.of(node, 0) != Batch(1) or not plain or not only(node, walk, 0, 5, 6):
        return None
    states = [slot for slot in (5, 6) if operand(node, slot) and walk.of(node, slot) != Batch(1)]
    if not all(walk.of(node, slot) is None and walk.expand(node, slot, 1) for slot in states):
        return None
    return Batch(2), Batch(1), Batch(1)


def einsum(node: "NodeProto", walk: Walk) -> Found:
    """A letter for samples that every operand with a batch has there, no other operand has, and the output has."""
    left, arrow, right = str(attribute(node, "equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left or len(terms) != len(node.input):
        return None
    places = {
        (terms[slot][found.axis], found.inner)
        for slot in range(len(terms))
        if (found := walk.of(node, slot)) and found.axis < len(terms[slot])
    }
    if len(places) != 1:
        return None
    ((letter, inner),) = places
    counts = [term.count(letter) for term in terms]
    wanted = [int(walk.of(node, slot) is not None) for slot in range(len(terms))]
    return Batch(right.index(letter), inner) if counts == wanted and right.count(letter) == 1 else None


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
    moves.transpose: "Transpose", moves.squeeze: "Squeeze", moves.unsqueeze: "Unsqueeze", moves.concat: "Concat",
    moves.slices: "Slice", moves.gather: "Gather", moves.flatten: "Flatten", moves.reshape: "Reshape",
    moves.expand: "Expand", moves.tile: "Tile", moves.pad: "Pad", moves.resize: "Resize Upsample",
}  # fmt: skip

RULES: Mapping[str, BatchRule] = {name: rule for rule, names in _TABLE.items() for name in names.split()}
"""The rule of each operator of ai.onnx that has one."""
