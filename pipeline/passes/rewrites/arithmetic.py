"""Rewrites of operators that compute each number by itself or over axes, and of half precision."""

import math
from typing import TYPE_CHECKING, Any

from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.passes import edit as passes_edit

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


REDUCE_SUM_AXES_ARE_INPUT = 13
REDUCE_AXES_ARE_INPUT = 18
SIX = 6.0
"""The upper bound of the one Clip from 0 that NNAPI has."""


def _ready(node: "NodeProto", facts: passes_edit.GraphFacts) -> bool:
    """Whether arithmetic on the node's first input is that of 32-bit floats, with today's broadcasting."""
    return bool(node.input) and facts.is_f32(node.input[0]) and facts.opset >= passes_edit.CLIP_HAS_INPUTS


def hard_sigmoid(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """max(0, min(1, alpha*x + beta)): for alpha 1/6 as Clip(x + 6*beta, 0, 6) / 6, which NNAPI takes."""
    alpha, beta = float(onnx_edit.attribute(node, "alpha", 0.2)), float(onnx_edit.attribute(node, "beta", 0.5))
    if not _ready(node, facts) or alpha <= 0:
        return False
    _hard_sigmoid(write, node.input[0], alpha, beta, node.output[0])
    return True


def _hard_sigmoid(write: passes_edit.Writer, x: str, alpha: float, beta: float, into: str = "") -> str:
    if abs(alpha * SIX - 1) < 1e-6:  # alpha is a 32-bit float, so not exactly a sixth
        clipped = write.add(
            "Clip", write.add("Add", x, write.constant(SIX * beta)), write.constant(0.0), write.constant(SIX)
        )
        return write.add("Mul", clipped, write.constant(1 / SIX), into=into)
    line = write.add("Add", write.add("Mul", x, write.constant(alpha)), write.constant(beta))
    return write.add("Min", write.add("Relu", line), write.constant(1.0), into=into)


def hard_swish(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """The product of x and HardSigmoid(x), with alpha 1/6 and beta 0.5 (ONNX HardSwish-14)."""
    if not _ready(node, facts):
        return False
    gate = _hard_sigmoid(write, node.input[0], 1 / SIX, 0.5)
    write.add("Mul", node.input[0], gate, into=node.output[0])
    return True


def gelu_tanh(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Gelu that is defined by tanh: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    import numpy as np

    if not _ready(node, facts) or onnx_edit.attribute(node, "approximate", "none") != "tanh":
        return False
    x = node.input[0]
    cube = write.add("Mul", write.add("Mul", x, x), x)
    inner = write.add("Add", x, write.add("Mul", cube, write.constant(0.044715)))
    curve = write.add("Tanh", write.add("Mul", inner, write.constant(np.sqrt(2 / np.pi))))
    half = write.add("Mul", x, write.constant(0.5))
    write.add("Mul", half, write.add("Add", curve, write.constant(1.0)), into=node.output[0])
    return True


ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
ERF_STEP = 0.3275911
"""Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: the error is below 1.5e-7 everywhere."""

STEEP = 1e30
"""Makes of any number but those next to zero one beyond 1 or -1."""


def erf_by_exp(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Erf, and the Gelu that is defined by it, by a polynomial and Exp with an error next to rounding's."""
    import numpy as np

    if not _ready(node, facts) or onnx_edit.attribute(node, "approximate", "none") != "none":
        return False
    x = node.input[0]
    if node.op_type == "Erf":
        _erf(write, x, node.output[0])
        return True
    curve = _erf(write, write.add("Mul", x, write.constant(np.sqrt(0.5))))
    half = write.add("Mul", x, write.constant(0.5))
    write.add("Mul", half, write.add("Add", curve, write.constant(1.0)), into=node.output[0])
    return True


def _erf(write: passes_edit.Writer, x: str, into: str = "") -> str:
    """The sign of x times 1 - t (a1 + t (a2 + ...)) exp(-x^2), with t = 1 / (1 + p |x|)."""
    size, unit = write.add("Abs", x), write.constant(1.0)
    t = write.add("Div", unit, write.add("Add", write.add("Mul", size, write.constant(ERF_STEP)), unit))
    value = write.constant(ERF[-1])
    for factor in reversed(ERF[:-1]):
        value = write.add("Add", write.add("Mul", t, value), write.constant(factor))
    square = write.add("Mul", write.add("Mul", size, size), write.constant(-1.0))
    rest = write.add("Mul", write.add("Mul", t, value), write.add("Exp", square))
    sign = write.add("Clip", write.add("Mul", x, write.constant(STEEP)), write.constant(-1.0), write.constant(1.0))
    return write.add("Mul", write.add("Sub", unit, rest), sign, into=into)


def one_input(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Neg as -1 times x, Reciprocal as 1 / x, Abs as the larger of x and -x, Softsign as x / (1 + |x|)."""
    if not _ready(node, facts):
        return False
    x, into = node.input[0], node.output[0]
    if node.op_type == "Neg":
        write.add("Mul", x, write.constant(-1.0), into=into)
    elif node.op_type == "Reciprocal":
        write.add("Div", write.constant(1.0), x, into=into)
    elif node.op_type == "Abs":
        write.add("Max", x, write.add("Mul", x, write.constant(-1.0)), into=into)
    else:
        write.add("Div", x, write.add("Add", write.add("Abs", x), write.constant(1.0)), into=into)
    return True


PAIRWISE = {"Max": "Max", "Min": "Min", "Sum": "Add"}


def pairwise(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Max, Min and Sum of many inputs two at a time, in their order."""
    if not _ready(node, facts) or len(node.input) < 2 or (node.op_type != "Sum" and len(node.input) == 2):
        return False
    value = node.input[0]
    for slot, other in enumerate(node.input[1:], start=1):
        into = node.output[0] if slot == len(node.input) - 1 else ""
        value = write.add(PAIRWISE[node.op_type], value, other, into=into)
    return True


def min_as_max(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Min as the negative of the largest negative: CoreML's MLProgram has Max only."""
    if not _ready(node, facts) or facts.nnapi or len(node.input) < 2:
        return False
    minus = write.constant(-1.0)
    largest = write.add("Max", *(write.add("Mul", name, minus) for name in node.input))
    write.add("Mul", largest, minus, into=node.output[0])
    return True


def prelu_by_relu(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """PRelu as relu(x) - slope * relu(-x): one of the two terms is always zero."""
    if not _ready(node, facts):
        return False
    x, slope = node.input[0], node.input[1]
    below = write.add("Relu", write.add("Mul", x, write.constant(-1.0)))
    write.add("Sub", write.add("Relu", x), write.add("Mul", below, slope), into=node.output[0])
    return True


def reduction(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """ReduceL2, ReduceSumSquare and, for NNAPI, ReduceSum by products, sums, means and a root."""
    shape, axes = facts.shape(node.input[0]), axes_of(node, facts)
    if not _ready(node, facts) or shape is None or 0 in shape or not axes:
        return False
    if node.op_type == "ReduceSum" and not facts.nnapi:
        return False
    x, keep = node.input[0], int(onnx_edit.attribute(node, "keepdims", 1))
    squares = x if node.op_type == "ReduceSum" else write.add("Mul", x, x)
    root = node.op_type == "ReduceL2"
    into = "" if root else node.output[0]
    if facts.nnapi:  # which has the mean only: times the number of entries
        count = float(math.prod(shape[axis] for axis in axes))
        total = write.add("Mul", _mean(write, squares, axes, keep, facts), write.constant(count), into=into)
    elif facts.opset < REDUCE_SUM_AXES_ARE_INPUT:
        total = write.add("ReduceSum", squares, into=into, attributes={"axes": axes, "keepdims": keep})
    else:
        total = write.add("ReduceSum", squares, write.integers(*axes), into=into, attributes={"keepdims": keep})
    if root:
        write.add("Sqrt", total, into=node.output[0])
    return True


def axes_of(node: "NodeProto", facts: passes_edit.GraphFacts) -> list[int]:
    """The axes of a reduction, all of them when none are named; nothing when they are not constant."""
    rank = len(facts.shape(node.input[0]) or ())
    named = onnx_edit.attribute(node, "axes")
    if named is None and onnx_edit.operand(node, 1):
        constant = facts.constant(onnx_edit.operand(node, 1))
        if constant is None:
            return []
        named = [int(axis) for axis in constant.reshape(-1)]
    if not named and onnx_edit.attribute(node, "noop_with_empty_axes", 0):
        return []
    return sorted(axis % rank for axis in named if rank) if named else list(range(rank))  # rank 0: not known


def _mean(
    write: passes_edit.Writer, x: str, axes: list[int], keep: int, facts: passes_edit.GraphFacts, into: str = ""
) -> str:
    if facts.opset < REDUCE_AXES_ARE_INPUT:
        return write.add("ReduceMean", x, into=into, attributes={"axes": axes, "keepdims": keep})
    return write.add("ReduceMean", x, write.integers(*axes), into=into, attributes={"keepdims": keep})


def global_pool_as_mean(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """GlobalAveragePool of any rank as the mean over what comes after the channels."""
    rank = len(facts.graph.value(node.input[0]).shape or ())
    if not _ready(node, facts) or rank < 3:
        return False
    _mean(write, node.input[0], list(range(2, rank)), 1, facts, node.output[0])
    return True


def mean_as_global_pool(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """ReduceMean over height and width, kept, as GlobalAveragePool."""
    shape = facts.graph.value(node.input[0]).shape or ()
    if not _ready(node, facts) or len(shape) != 4 or int(onnx_edit.attribute(node, "keepdims", 1)) != 1:
        return False
    if axes_of(node, facts) != [2, 3]:
        return False
    write.add("GlobalAveragePool", node.input[0], into=node.output[0])
    return True


def layer_norm(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """LayerNormalization by means: (x - mean) / sqrt(variance + epsilon) * scale + bias."""
    shape = facts.shape(node.input[0])
    if not _ready(node, facts) or not shape or int(onnx_edit.attribute(node, "stash_type", 1)) != 1:
        return False
    first = int(onnx_edit.attribute(node, "axis", -1)) % len(shape)
    normal = _normalized(write, node.input[0], list(range(first, len(shape))), _epsilon(node), facts)
    bias = onnx_edit.operand(node, 2)
    scaled = write.add("Mul", normal, node.input[1], into="" if bias else node.output[0])
    if bias:
        write.add("Add", scaled, bias, into=node.output[0])
    return True


def _epsilon(node: "NodeProto") -> float:
    return float(onnx_edit.attribute(node, "epsilon", 1e-5))


def _normalized(
    write: passes_edit.Writer, x: str, axes: list[int], epsilon: float, facts: passes_edit.GraphFacts
) -> str:
    """Values less their mean, divided by their standard deviation."""
    centred = write.add("Sub", x, _mean(write, x, axes, 1, facts))
    variance = _mean(write, write.add("Mul", centred, centred), axes, 1, facts)
    deviation = write.add("Sqrt", write.add("Add", variance, write.constant(epsilon)))
    return write.add("Div", centred, deviation)


def group_norm(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """InstanceNormalization, or GroupNormalization-21 with a scale for each channel, on groups laid out as rows."""
    import numpy as np

    shape = facts.shape(node.input[0])
    scale, bias = facts.constant(onnx_edit.operand(node, 1)), facts.constant(onnx_edit.operand(node, 2))
    if not _ready(node, facts) or shape is None or len(shape) < 3 or 0 in shape or scale is None or bias is None:
        return False
    groups = shape[1] if node.op_type == "InstanceNormalization" else int(onnx_edit.attribute(node, "num_groups", 0))
    if not groups or scale.size != shape[1] or bias.size != shape[1] or shape[1] % groups:
        return False
    rows = write.add("Reshape", node.input[0], write.integers(shape[0], groups, int(np.prod(shape[1:])) // groups))
    normal = write.add("Reshape", _normalized(write, rows, [2], _epsilon(node), facts), write.integers(*shape))
    broad = (shape[1], *([1] * (len(shape) - 2)))
    scaled = write.add("Mul", normal, write.constant(scale.reshape(broad)))
    write.add("Add", scaled, write.constant(bias.reshape(broad)), into=node.output[0])
    return True


BROADCASTS = 8
"""Opset from which Max and Min broadcast."""

DEEPEST = 8
"""Steps back from a bound to the constant that it is made of."""

NO_ARITHMETIC = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
"""Operators that a constant bound may have passed through: they keep one number what it is, or change its type."""


def constant_bounds(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Bounds that are made of constants by Cast, Identity and the like become constants themselves."""
    bounds = [onnx_edit.operand(node, slot) for slot in (1, 2)]
    if facts.opset < passes_edit.CLIP_HAS_INPUTS or not any(name and facts.constant(name) is None for name in bounds):
        return False
    numbers = [_computed(name, facts) if name else None for name in bounds]
    if any(name and number is None for name, number in zip(bounds, numbers, strict=True)):
        return False
    names = [write.constant(number, number.dtype.name) if number is not None else "" for number in numbers]
    write.add("Clip", node.input[0], *names, into=node.output[0])
    return True


def _computed(name: str, facts: passes_edit.GraphFacts, depth: int = 0) -> Any:
    """The one number behind a value, through operators that only move or convert it; None when there is none."""
    import numpy as np
    from onnx import helper

    constant = facts.constant(name)
    if constant is not None:
        return constant.reshape(()) if constant.size == 1 else None
    producer = facts.graph.producers.get(name)
    maker = facts.graph.nodes[producer[0]] if producer else None
    if maker is None or maker.op_type not in NO_ARITHMETIC or depth == DEEPEST or maker.domain:
        return None
    number = _computed(maker.inputs[0], facts, depth + 1)
    if number is None or maker.op_type != "Cast":
        return number
    return number.astype(np.dtype(helper.tensor_dtype_to_np_dtype(maker.attributes["to"])))


def clip_as_max_min(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Clip of any bounds as Relu, or as Max and Min: the same numbers, NNAPI has Clip for two pairs of bounds only."""
    bounds = _bounds(node, facts)
    if bounds is None or facts.opset < BROADCASTS or not facts.is_f32(node.input[0]):
        return False
    low, high = bounds
    steps: list[tuple[str, float | None]] = [("Relu", None)] if low == 0 else [("Max", low)] if low is not None else []
    steps += [("Min", high)] if high is not None else []
    value = node.input[0]
    for position, (op_type, bound) in enumerate(steps):
        into = node.output[0] if position == len(steps) - 1 else ""
        value = write.add(op_type, value, *([] if bound is None else [write.constant(bound)]), into=into)
    return bool(steps)


def _bounds(node: "NodeProto", facts: passes_edit.GraphFacts) -> tuple[float | None, float | None] | None:
    """Lower and upper bound, None where there is none; None at all when one is not known."""
    if facts.opset < passes_edit.CLIP_HAS_INPUTS:
        return onnx_edit.attribute(node, "min"), onnx_edit.attribute(node, "max")
    numbers: list[float | None] = []
    for slot in (1, 2):
        name = onnx_edit.operand(node, slot)
        number = _computed(name, facts) if name else None
        if name and number is None:
            return None
        numbers.append(None if number is None else float(number))
    return numbers[0], numbers[1]


MOST_WEIGHTS = 1 << 26
"""Entries of all f16 weights together that are taken into memory: 256 MiB as f32."""

TYPED_ATTRIBUTES = ("to", "dtype", "output_dtype", "stash_type")


def compute_in_f32(model: "ModelProto", facts: passes_edit.GraphFacts) -> "ModelProto | None":
    """The model with every f16 value as f32; inputs and outputs that were f16 stay so, with a Cast.

    None when nothing is f16, when its weights are too many to be held in memory, and for models with bodies or
    functions: their types are not all visible here.
    """
    half = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx_types.FLOAT16]
    bodies = any(a.HasField("g") or a.graphs for node in model.graph.node for a in node.attribute)
    border = [
        v for v in (*model.graph.input, *model.graph.output) if v.type.tensor_type.elem_type == onnx_types.FLOAT16
    ]
    if (
        not (half or border)
        or bodies
        or model.functions
        or sum(math.prod(tensor.dims) for tensor in half) > MOST_WEIGHTS
    ):
        return None
    changed = onnx_edit.copied(model)
    graph = changed.graph
    for tensor in graph.initializer:
        if tensor.data_location == tensor.EXTERNAL and tensor.data_type == onnx_types.FLOAT16:
            from onnx import numpy_helper

            tensor.CopyFrom(numpy_helper.from_array(facts.graph.initializers[tensor.name].read(), tensor.name))
        _widen(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            if attribute.name in TYPED_ATTRIBUTES and attribute.i == onnx_types.FLOAT16:
                attribute.i = onnx_types.FLOAT
    del graph.value_info[:]
    _cast_border(graph)
    return changed


def _widen(tensor: "TensorProto") -> None:
    from onnx import numpy_helper

    if tensor.data_type == onnx_types.FLOAT16:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))


def _cast_border(graph: "GraphProto") -> None:
    """Rename f16 inputs and outputs inside the graph, and put Casts between."""
    from onnx import helper

    constants = {tensor.name for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    renamed: dict[str, str] = {}
    for value in graph.input:
        if value.type.tensor_type.elem_type == onnx_types.FLOAT16 and value.name in constants:
            value.type.tensor_type.elem_type = onnx_types.FLOAT
        elif value.type.tensor_type.elem_type == onnx_types.FLOAT16:
            renamed[value.name] = f"{value.name}__f32"
            nodes.append(helper.make_node("Cast", [value.name], [renamed[value.name]], to=onnx_types.FLOAT))
    half = [value.name for value in graph.output if value.type.tensor_type.elem_type == onnx_types.FLOAT16]
    renamed |= {name: f"{name}__f32" for name in half}
    for node in graph.node:
        copy = onnx_edit.copied(node)
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        copy.output[:] = [renamed.get(name, name) for name in node.output]
        nodes.append(copy)
    nodes += [helper.make_node("Cast", [renamed[name]], [name], to=onnx_types.FLOAT16) for name in half]
    onnx_edit.set_nodes(graph, nodes)
