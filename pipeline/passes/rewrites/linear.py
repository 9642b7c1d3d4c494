"""Matrix products, convolutions and scalings in the forms that providers take."""

from typing import TYPE_CHECKING, Any

from pipeline.passes.rewrites.facts import GraphFacts, Writer, attribute, operand

if TYPE_CHECKING:
    from onnx import NodeProto

RESHAPE_HAS_INPUT = 5
SPATIAL = ("kernel_shape", "strides", "dilations")


def plain_gemm(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """Gemm with alpha and beta in its constants, A transposed before, and a C of one row; else C is added after."""
    import numpy as np

    alpha, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
    trans_a, trans_b = int(attribute(node, "transA", 0)), int(attribute(node, "transB", 0))
    b, shape = known.constant(node.input[1]), known.shape(node.input[1])
    c_name = operand(node, 2)
    c = known.constant(c_name)
    if b is None or shape is None or not known.is_f32(node.input[0]) or known.opset < 7 or (c_name and c is None):
        return False
    width = shape[0] if trans_b else shape[1]
    row = c is not None and (c.size == 1 or (c.size == width and c.shape[-1] == width))
    if (alpha, beta, trans_a) == (1.0, 1.0, 0) and (not c_name or c is None or c.shape == (width,)):
        return False
    a = write.add("Transpose", node.input[0], perm=[1, 0]) if trans_a else node.input[0]
    weights = node.input[1] if alpha == 1.0 else write.constant(b * np.float32(alpha))
    if c is None or row:
        bias = [] if c is None else [write.constant(np.broadcast_to(c.reshape(-1) * np.float32(beta), (width,)))]
        write.add("Gemm", a, weights, *bias, into=node.output[0], transB=trans_b)
        return True
    product = write.add("Gemm", a, weights, transB=trans_b)
    write.add("Add", product, write.constant(c * np.float32(beta)), into=node.output[0])
    return True


def flat_matmul(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """A batch of matrices times one constant matrix as one large product: rows are independent of one another."""
    import numpy as np

    a, b = known.shape(node.input[0]), known.graph.constant(node.input[1])
    if a is None or b is None or len(a) < 3 or len(b.dims) != 2 or 0 in a or not known.is_f32(node.input[0]):
        return False
    if known.opset < RESHAPE_HAS_INPUT:
        return False
    rows = int(np.prod(a[:-1]))
    flat = write.add("Reshape", node.input[0], write.integers(rows, a[-1]))
    product = write.add("MatMul", flat, node.input[1])
    write.add("Reshape", product, write.integers(*a[:-1], b.dims[1]), into=node.output[0])
    return True


def conv_2d(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """A convolution over one axis as one over two, the first of size 1."""
    x, w, y = known.shape(node.input[0]), known.constant(node.input[1]), known.shape(node.output[0])
    if x is None or y is None or w is None or w.ndim != 3 or len(x) != 3 or known.opset < RESHAPE_HAS_INPUT:
        return False
    wide: dict[str, Any] = {name: [1, *attribute(node, name)] for name in SPATIAL if attribute(node, name)}
    if pads := attribute(node, "pads"):
        wide["pads"] = [0, pads[0], 0, pads[1]]
    value = write.add("Reshape", node.input[0], write.integers(x[0], x[1], 1, x[2]))
    weights = write.constant(w[:, :, None, :], w.dtype.name)
    group, auto_pad = attribute(node, "group", 1), attribute(node, "auto_pad", "NOTSET")
    result = write.add("Conv", value, weights, *node.input[2:], group=group, auto_pad=auto_pad, **wide)
    write.add("Reshape", result, write.integers(*y), into=node.output[0])
    return True


def cropped_conv_transpose(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """ConvTranspose without padding, and what the padding cuts off as a Slice.

    Output padding that the end's cut takes away again is left out (ONNX ConvTranspose: pads shorten the full output,
    output_padding adds to its end).
    """
    x, w, y = known.shape(node.input[0]), known.graph.constant(node.input[1]), known.shape(node.output[0])
    auto_pad = attribute(node, "auto_pad", "NOTSET")
    if x is None or w is None or y is None or auto_pad == "VALID" or attribute(node, "output_shape"):
        return False
    padded = any(attribute(node, "pads") or ()) or any(attribute(node, "output_padding") or ())
    if auto_pad == "NOTSET" and not padded:
        return False
    axes = len(x) - 2
    strides = attribute(node, "strides") or [1] * axes
    dilations = attribute(node, "dilations") or [1] * axes
    full = [
        stride * (size - 1) + (kernel - 1) * dilation + 1
        for stride, size, kernel, dilation in zip(strides, x[2:], w.dims[2:], dilations, strict=True)
    ]
    starts = _starts(node, full, y[2:], auto_pad)
    if any(start + size > length for start, size, length in zip(starts, y[2:], full, strict=True)):
        return False
    kept: dict[str, Any] = {name: list(attribute(node, name)) for name in SPATIAL if attribute(node, name)}
    group = attribute(node, "group", 1)
    whole = write.add("ConvTranspose", *node.input, group=group, pads=[0] * (2 * axes), **kept)
    stops = [start + size for start, size in zip(starts, y[2:], strict=True)]
    where = [write.integers(*numbers) for numbers in (starts, stops, range(2, axes + 2))]
    write.add("Slice", whole, *where, into=node.output[0])
    return True


def _starts(node: "NodeProto", full: list[int], sizes: tuple[int, ...], auto_pad: str) -> list[int]:
    """How much is cut off before the first entry of each axis; the smaller half for SAME_UPPER."""
    if auto_pad == "NOTSET":
        pads = attribute(node, "pads") or [0] * (2 * len(full))
        return list(pads[: len(full)])
    surplus = [max(length - size, 0) for length, size in zip(full, sizes, strict=True)]
    return [s // 2 if auto_pad == "SAME_UPPER" else s - s // 2 for s in surplus]


def scaled_batch_norm(node: "NodeProto", known: GraphFacts, write: Writer) -> bool:
    """BatchNormalization with constant statistics as a product and a sum."""
    import numpy as np

    shape = known.graph.value(node.input[0]).shape or ()
    given = [known.constant(name) for name in node.input[1:5]]
    if len(shape) < 2 or not known.is_f32(node.input[0]) or attribute(node, "training_mode", 0) or known.opset < 7:
        return False
    found = [array.astype(np.float64) for array in given if array is not None]
    if len(found) != 4:
        return False
    scale, bias, mean, variance = found
    factor = scale / np.sqrt(variance + float(attribute(node, "epsilon", 1e-5)))
    broad = (-1, *([1] * (len(shape) - 2)))
    product = write.add("Mul", node.input[0], write.constant(factor.reshape(broad)))
    write.add("Add", product, write.constant((bias - mean * factor).reshape(broad)), into=node.output[0])
    return True
