"""Rewrites of products, convolutions and pools."""

from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.model import edit as onnx_edit
from pipeline.passes import edit as passes_edit

if TYPE_CHECKING:
    from onnx import NodeProto


SPATIAL = ("kernel_shape", "strides", "dilations")


def plain_gemm(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Gemm with alpha and beta in its constants, A transposed before, and a C of one row; else C is added after."""
    import numpy as np

    alpha, beta = float(onnx_edit.attribute(node, "alpha", 1.0)), float(onnx_edit.attribute(node, "beta", 1.0))
    trans_a, trans_b = int(onnx_edit.attribute(node, "transA", 0)), int(onnx_edit.attribute(node, "transB", 0))
    b, shape = facts.constant(node.input[1]), facts.shape(node.input[1])
    c_name = onnx_edit.operand(node, 2)
    c = facts.constant(c_name)
    if b is None or shape is None or not facts.is_f32(node.input[0]) or facts.opset < 7 or (c_name and c is None):
        return False
    width = shape[0] if trans_b else shape[1]
    fits = c is not None and (c.size == 1 or (c.size == width and c.shape[-1] == width))
    if (alpha, beta, trans_a) == (1.0, 1.0, 0) and (not c_name or c is None or c.shape == (width,)):
        return False
    a = write.add("Transpose", node.input[0], attributes={"perm": [1, 0]}) if trans_a else node.input[0]
    weights = node.input[1] if alpha == 1.0 else write.constant(b * np.float32(alpha))
    if c is None or fits:
        bias = [] if c is None else [write.constant(np.broadcast_to(c.reshape(-1) * np.float32(beta), (width,)))]
        write.add("Gemm", a, weights, *bias, into=node.output[0], attributes={"transB": trans_b})
        return True
    product = write.add("Gemm", a, weights, attributes={"transB": trans_b})
    write.add("Add", product, write.constant(c * np.float32(beta)), into=node.output[0])
    return True


def flat_matmul(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """A batch of matrices times one constant matrix as one large product: rows are independent of one another."""
    import numpy as np

    a, b = facts.shape(node.input[0]), facts.graph.constant(node.input[1])
    if a is None or b is None or len(a) < 3 or len(b.dims) != 2 or 0 in a or not facts.is_f32(node.input[0]):
        return False
    if facts.opset < passes_edit.RESHAPE_HAS_INPUT:
        return False
    rows = int(np.prod(a[:-1]))
    flat = write.add("Reshape", node.input[0], write.integers(rows, a[-1]))
    product = write.add("MatMul", flat, node.input[1])
    write.add("Reshape", product, write.integers(*a[:-1], b.dims[1]), into=node.output[0])
    return True


def conv_2d(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """A convolution over one axis as one over two, the first of size 1."""
    x, w, y = facts.shape(node.input[0]), facts.constant(node.input[1]), facts.shape(node.output[0])
    if x is None or y is None or w is None or w.ndim != 3 or len(x) != 3 or facts.opset < passes_edit.RESHAPE_HAS_INPUT:
        return False
    wide: dict[str, Any] = {
        name: [1, *onnx_edit.attribute(node, name)] for name in SPATIAL if onnx_edit.attribute(node, name)
    }
    if pads := onnx_edit.attribute(node, "pads"):
        wide["pads"] = [0, pads[0], 0, pads[1]]
    value = write.add("Reshape", node.input[0], write.integers(x[0], x[1], 1, x[2]))
    weights = write.constant(w[:, :, None, :], w.dtype.name)
    group, auto_pad = onnx_edit.attribute(node, "group", 1), onnx_edit.attribute(node, "auto_pad", "NOTSET")
    result = write.add(
        "Conv", value, weights, *node.input[2:], attributes={"group": group, "auto_pad": auto_pad, **wide}
    )
    write.add("Reshape", result, write.integers(*y), into=node.output[0])
    return True


def cropped_conv_transpose(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """ConvTranspose without padding, and what the padding cuts off as a Slice.

    Output padding that the end's cut takes away again is left out (ONNX ConvTranspose: pads shorten the full output,
    output_padding adds to its end).
    """
    x, w, y = facts.shape(node.input[0]), facts.graph.constant(node.input[1]), facts.shape(node.output[0])
    auto_pad = onnx_edit.attribute(node, "auto_pad", "NOTSET")
    if x is None or w is None or y is None or auto_pad == "VALID" or onnx_edit.attribute(node, "output_shape"):
        return False
    padded = any(onnx_edit.attribute(node, "pads") or ()) or any(onnx_edit.attribute(node, "output_padding") or ())
    if auto_pad == "NOTSET" and not padded:
        return False
    axes = len(x) - 2
    strides = onnx_edit.attribute(node, "strides") or [1] * axes
    dilations = onnx_edit.attribute(node, "dilations") or [1] * axes
    full = [
        stride * (size - 1) + (kernel - 1) * dilation + 1
        for stride, size, kernel, dilation in zip(strides, x[2:], w.dims[2:], dilations, strict=True)
    ]
    # How much is cut off before the first entry of each axis; the smaller half for SAME_UPPER
    starts = list((onnx_edit.attribute(node, "pads") or [0] * (2 * axes))[:axes])
    if auto_pad != "NOTSET":
        surplus = [max(length - size, 0) for length, size in zip(full, y[2:], strict=True)]
        starts = [s // 2 if auto_pad == "SAME_UPPER" else s - s // 2 for s in surplus]
    if any(start + size > length for start, size, length in zip(starts, y[2:], full, strict=True)):
        return False
    copied: dict[str, Any] = {
        name: list(onnx_edit.attribute(node, name)) for name in SPATIAL if onnx_edit.attribute(node, name)
    }
    group = onnx_edit.attribute(node, "group", 1)
    whole = write.add("ConvTranspose", *node.input, attributes={"group": group, "pads": [0] * (2 * axes), **copied})
    stops = [start + size for start, size in zip(starts, y[2:], strict=True)]
    where = [write.integers(*numbers) for numbers in (starts, stops, range(2, axes + 2))]
    write.add("Slice", whole, *where, into=node.output[0])
    return True


def scaled_batch_norm(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """BatchNormalization with constant statistics as a product and a sum."""
    import numpy as np

    shape = facts.graph.value(node.input[0]).shape or ()
    given = [facts.constant(name) for name in node.input[1:5]]
    if (
        len(shape) < 2
        or not facts.is_f32(node.input[0])
        or onnx_edit.attribute(node, "training_mode", 0)
        or facts.opset < 7
    ):
        return False
    statistics = [array.astype(np.float64) for array in given if array is not None]
    if len(statistics) != 4:
        return False
    scale, bias, mean, variance = statistics
    factor = scale / np.sqrt(variance + float(onnx_edit.attribute(node, "epsilon", 1e-5)))
    broad = (-1, *([1] * (len(shape) - 2)))
    product = write.add("Mul", node.input[0], write.constant(factor.reshape(broad)))
    write.add("Add", product, write.constant((bias - mean * factor).reshape(broad)), into=node.output[0])
    return True


def einsum_as_matmul(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Axes of both operands and the result are batches, axes of both and not of the result are summed over.

    Each operand is turned and reshaped to [batch, rows, columns], the product back to the result's axes. Equations with
    an ellipsis, a repeated index, or an index that one operand alone sums over are left alone.
    """
    parsed = _parsed(str(onnx_edit.attribute(node, "equation", "")))
    if parsed is None or len(node.input) != 2 or not facts.is_f32(node.input[0]):
        return False
    left, right, result = parsed
    sizes = _sizes(node, facts, (left, right))
    batch = [i for i in result if i in left and i in right]
    summed = [i for i in left if i in right and i not in result]
    rows = [i for i in result if i in left and i not in right]
    columns = [i for i in result if i in right and i not in left]
    whole = (
        {*batch, *rows, *summed} == set(left)
        and {*batch, *summed, *columns} == set(right)
        and {*batch, *rows, *columns} == set(result)
    )
    if not sizes or not summed or not whole:
        return False
    first = _laid_out(write, node.input[0], left, (batch, rows, summed), sizes)
    second = _laid_out(write, node.input[1], right, (batch, summed, columns), sizes)
    product = write.add("MatMul", first, second)
    letters = [*batch, *rows, *columns]
    shape = write.integers(*(sizes[index] for index in letters))
    order = [letters.index(index) for index in result]
    if order == sorted(order):
        write.add("Reshape", product, shape, into=node.output[0])
    else:
        write.add("Transpose", write.add("Reshape", product, shape), into=node.output[0], attributes={"perm": order})
    return True


def _sizes(node: "NodeProto", facts: passes_edit.GraphFacts, operands: tuple[str, str]) -> dict[str, int]:
    """The size behind each index; nothing when one is open, zero, or two differ."""
    sizes: dict[str, int] = {}
    for name, indices in zip(node.input, operands, strict=True):
        shape = facts.shape(name)
        if shape is None or len(shape) != len(indices) or 0 in shape:
            return {}
        if any(sizes.setdefault(index, size) != size for index, size in zip(indices, shape, strict=True)):
            return {}
    return sizes


class _Indices(NamedTuple):
    """Of an equation: those of two operands and of the result."""

    left: str
    right: str
    result: str


def _parsed(equation: str) -> _Indices | None:
    """The indices of an equation of two operands; None for other forms."""
    operands, arrow, result = equation.replace(" ", "").partition("->")
    parts = operands.split(",")
    plain = all(part.isalpha() and len(set(part)) == len(part) for part in (*parts, result))
    return _Indices(parts[0], parts[1], result) if arrow and len(parts) == 2 and plain else None


def _laid_out(
    write: passes_edit.Writer, value: str, indices: str, groups: tuple[list[str], ...], sizes: dict[str, int]
) -> str:
    """The operand with its axes in groups, each of which is one axis; without batches a matrix."""
    import numpy as np

    order = [indices.index(index) for group in groups for index in group]
    turned = value if order == sorted(order) else write.add("Transpose", value, attributes={"perm": order})
    shape = [int(np.prod([sizes[index] for index in group])) for group in groups]
    flat = shape if groups[0] else shape[1:]
    if flat == [sizes[indices[axis]] for axis in order]:
        return turned
    return write.add("Reshape", turned, write.integers(*flat))


SAME = ("SAME_UPPER", "SAME_LOWER")


def explicit_pads(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """auto_pad SAME as pads, and ceil_mode as more pads at the end.

    Pads of a MaxPool never win and those of an AveragePool without count_include_pad do not count, so windows that
    ceil_mode lets reach over the end read the same numbers.
    """
    x, y = facts.shape(node.input[0]), facts.shape(node.output[0])
    weights = facts.shape(node.input[1]) if node.op_type == "Conv" else None
    kernel = onnx_edit.attribute(node, "kernel_shape") or (weights and weights[2:])
    auto_pad, ceil = onnx_edit.attribute(node, "auto_pad", "NOTSET"), int(onnx_edit.attribute(node, "ceil_mode", 0))
    if x is None or y is None or not kernel or len(kernel) != len(x) - 2 or not (auto_pad in SAME or ceil):
        return False
    counted = bool(onnx_edit.attribute(node, "count_include_pad", 0))
    axes = len(kernel)
    strides = onnx_edit.attribute(node, "strides") or [1] * axes
    dilations = onnx_edit.attribute(node, "dilations") or [1] * axes
    pads = list(onnx_edit.attribute(node, "pads") or [0] * (2 * axes))
    for axis in range(axes):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        needed = (y[axis + 2] - 1) * strides[axis] + window - x[axis + 2]
        before, after = _split(auto_pad, needed, pads[axis], pads[axes + axis])
        if max(before, after) >= window or (counted and after != pads[axes + axis]):
            return False
        pads[axis], pads[axes + axis] = before, after
    copied = {a.name: onnx_edit.attribute(node, a.name) for a in node.attribute}
    changed: dict[str, Any] = {**copied, "pads": pads}
    for name in ("auto_pad", "ceil_mode"):
        changed.pop(name, None)
    write.add(node.op_type, *node.input, into=node.output[0], attributes=changed)
    return True


def _split(auto_pad: str, needed: int, before: int, after: int) -> tuple[int, int]:
    """Pads before and after an axis that needs so many in all; SAME_LOWER has the larger half before."""
    if auto_pad in SAME:
        total = max(needed, 0)
        small = total // 2
        return (small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small)
    return before, max(after, needed - before)


def counted_pads(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """An AveragePool whose padding counts, as a Pad with zeros before one without padding."""
    shape = facts.shape(node.input[0])
    pads = list(onnx_edit.attribute(node, "pads") or [])
    plain = onnx_edit.attribute(node, "auto_pad", "NOTSET") == "NOTSET" and not onnx_edit.attribute(
        node, "ceil_mode", 0
    )
    if (
        shape is None
        or not onnx_edit.attribute(node, "count_include_pad", 0)
        or not plain
        or facts.opset < passes_edit.PAD_HAS_INPUTS
    ):
        return False
    copied: dict[str, Any] = {
        a.name: onnx_edit.attribute(node, a.name) for a in node.attribute if a.name not in ("pads", "count_include_pad")
    }
    value = node.input[0]
    if any(pads):
        half = len(pads) // 2
        value = write.add("Pad", value, write.integers(0, 0, *pads[:half], 0, 0, *pads[half:]), write.constant(0.0))
    write.add("AveragePool", value, into=node.output[0], attributes=copied)
    return True
