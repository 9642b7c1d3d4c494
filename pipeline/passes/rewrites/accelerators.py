"""Rewrites of what GPUs and a Snapdragon's NPU leave or compute otherwise (docs/gpu.md, docs/npu.md)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.core import groups as counting
from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.model.signature import Array
from pipeline.passes import edit as passes_edit
from pipeline.passes.rewrites.arithmetic import REDUCE_AXES_ARE_INPUT, axes_of

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

RANGES = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65_535), "i16": (-32_768, 32_767)}
"""What a quantized type can hold."""


def without_empty_inputs(model: "ModelProto", _known: passes_edit.GraphFacts) -> "ModelProto | None":
    """A copy whose nodes list no inputs without a name at their end; None where none does.

    ONNX says that both mean the same. WebGPU's kernels of Conv and ConvTranspose read such a bias all the same.
    """
    changed = onnx_edit.copied(model)
    dropped = 0
    for graph in onnx_edit.subgraphs(changed.graph):
        for node in graph.node:
            while node.input and not node.input[-1]:
                del node.input[-1]
                dropped += 1
    return changed if dropped else None


def in_float(model: "ModelProto", facts: passes_edit.GraphFacts) -> "ModelProto | None":
    """A copy that computes in float what QuantizeLinear and DequantizeLinear say is quantized; None where nothing is.

    Weights become float ones. A value that was rounded to a type's range is only cut to it, by Clip, so that outputs
    differ by the rounding alone. What has no constant scale of f32 for the whole value, or feeds an operator that
    computes with integers, stays.
    """
    from onnx import helper, numpy_helper

    if facts.opset < passes_edit.CLIP_HAS_INPUTS:
        return None
    changed = onnx_edit.copied(model)
    graph = changed.graph
    readers = counting.grouped(
        (name, node) for inner in onnx_edit.subgraphs(graph) for node in inner.node for name in node.input
    )
    kept = {value.name for value in graph.output}
    removed: set[str] = set()
    replaced: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and (weights := _float_weights(node, facts)) is not None:
            graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
            removed.add(node.output[0])
        elif node.op_type == "QuantizeLinear" and node.output[0] not in kept:
            behind = readers.get(node.output[0], [])
            bounds = _bounds(node, facts)
            if bounds is None or not all(
                (reader.op_type == "DequantizeLinear" and list(reader.input[1:]) == list(node.input[1:]))
                for reader in behind
            ):
                replaced.append(node)
                continue
            for slot, bound in zip(("low", "high"), bounds, strict=True):
                graph.initializer.append(numpy_helper.from_array(bound, f"{node.output[0]}/{slot}"))
            limits = [f"{node.output[0]}/{slot}" for slot in ("low", "high")]
            for reader in behind:
                name = reader.output[0]
                replaced.append(helper.make_node("Clip", [node.input[0], *limits], [name], name=f"{name}/Clip"))
                removed.add(name)
            removed.add(node.output[0])
        elif node.output[0] not in removed:
            replaced.append(node)
    if not removed:
        return None
    onnx_edit.set_nodes(graph, replaced)
    return changed


def _bounds(node: "NodeProto", facts: passes_edit.GraphFacts) -> tuple[Any, Any] | None:
    """The smallest and the largest number that a QuantizeLinear keeps; None where these are not known."""
    import numpy as np

    scale = facts.constant(onnx_edit.operand(node, 1))
    zero = facts.constant(onnx_edit.operand(node, 2))
    kind = facts.graph.value(node.output[0]).dtype or ""
    whole = scale is not None and scale.size == 1 and scale.dtype == np.float32 and facts.is_f32(node.input[0])
    if scale is None or not whole or kind not in RANGES or (zero is None and onnx_edit.operand(node, 2)):
        return None
    offset = int(zero.reshape(-1)[0]) if zero is not None else 0
    step = scale.reshape(-1)[0]
    low, high = (np.asarray((limit - offset) * step, dtype=np.float32) for limit in RANGES[kind])
    return low, high


def _float_weights(node: "NodeProto", facts: passes_edit.GraphFacts) -> Any:
    """What a DequantizeLinear makes of a constant; None for another input, and for scales of blocks."""
    import numpy as np

    constants = [facts.graph.constant(name) for name in node.input if name]
    weights, scale, *rest = [None if constant is None else constant.read() for constant in constants] or [None, None]
    if any(constant is None for constant in constants):
        return None
    if scale is None or weights is None or weights.dtype.kind not in "iu":
        return None
    if scale.dtype != np.float32 or scale.ndim > 1:
        return None
    zero = rest[0] if rest else None
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
    if scale.size != 1:
        sizes = [1] * weights.ndim
        sizes[axis] = scale.size
        scale = scale.reshape(sizes)
        zero = None if zero is None else zero.reshape(sizes)
    offset = np.float32(0) if zero is None else zero.astype(np.float32)
    return ((weights.astype(np.float32) - offset) * scale).astype(np.float32)


INTEGERS = ("i8", "i16", "i32", "i64")
LEAST_NORM = 2.0**-12
"""Divisor of rows of zeros: half precision has it, and its square."""


def scaled_norm(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """ReduceL2 of values divided by their largest magnitude: no sum of squares passes the end of half precision."""
    shape, axes = facts.shape(node.input[0]), axes_of(node, facts)
    if (
        shape is None
        or 0 in shape
        or not axes
        or not facts.is_f32(node.input[0])
        or facts.opset < passes_edit.PAD_HAS_INPUTS
    ):
        return False
    x, keep = node.input[0], int(onnx_edit.attribute(node, "keepdims", 1))
    largest = write.add(
        "Max", _reduced("ReduceMax", write.add("Abs", x), axes, 1, facts, write), write.constant(LEAST_NORM)
    )
    norm = _reduced("ReduceL2", write.add("Div", x, largest), axes, 1, facts, write)
    if keep:
        write.add("Mul", norm, largest, into=node.output[0])
        return True
    rest = [size for axis, size in enumerate(shape) if axis not in axes]
    write.add("Reshape", write.add("Mul", norm, largest), write.integers(*rest), into=node.output[0])
    return True


def _reduced(
    op_type: str, x: str, axes: list[int], keep: int, facts: passes_edit.GraphFacts, write: passes_edit.Writer
) -> str:
    if facts.opset < REDUCE_AXES_ARE_INPUT:
        return write.add(op_type, x, attributes={"axes": axes, "keepdims": keep})
    return write.add(op_type, x, write.integers(*axes), attributes={"keepdims": keep})


def flat_indices(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Constant indices of Gather in one row, counted from the beginning, and a Reshape behind it."""
    import numpy as np

    shape, indices = facts.shape(node.input[0]), facts.constant(node.input[1])
    output = facts.shape(node.output[0])
    if shape is None or output is None or indices is None or (indices.ndim < 2 and not (indices < 0).any()):
        return False
    axis = int(onnx_edit.attribute(node, "axis", 0)) % len(shape)
    flattened = write.constant(np.where(indices < 0, indices + shape[axis], indices).reshape(-1), indices.dtype.name)
    taken = write.add("Gather", node.input[0], flattened, attributes={"axis": axis})
    write.add("Reshape", taken, write.integers(*output), into=node.output[0])
    return True


COORDINATES: Mapping[str, Callable[[Array, float, int, int], Array]] = {
    "half_pixel": lambda at, scale, _size, _given: (at + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda at, scale, size, _given: (at + 0.5) / scale - 0.5 if size > 1 else 0 * at,
    "asymmetric": lambda at, scale, _size, _given: at / scale,
    "align_corners": lambda at, _scale, size, given: at * (given - 1) / (size - 1) if size > 1 else 0 * at,
}
"""Where a pixel comes from, by coordinate_transformation_mode: its place, the scale, sizes after and before."""


def gathered_resize(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Resize to the nearest pixel as Gather of rows and of columns."""
    import numpy as np

    before, after = facts.shape(node.input[0]), facts.shape(node.output[0])
    mode = str(onnx_edit.attribute(node, "coordinate_transformation_mode", "half_pixel"))
    way = str(onnx_edit.attribute(node, "nearest_mode", "round_prefer_floor"))
    rounding: dict[str, Callable[[Array], Array]] = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_ceil": lambda at: np.floor(at + 0.5),
        "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    }
    if (
        before is None
        or after is None
        or before[:2] != after[:2]
        or len(before) != 4
        or facts.opset < passes_edit.PAD_HAS_INPUTS
    ):
        return False
    if onnx_edit.attribute(node, "mode", "nearest") != "nearest" or mode not in COORDINATES or way not in rounding:
        return False
    scales = facts.constant(onnx_edit.operand(node, 2))
    value = node.input[0]
    for axis in (2, 3):
        scale = float(scales[axis]) if scales is not None and scales.size == 4 else after[axis] / before[axis]
        at = COORDINATES[mode](np.arange(after[axis]), scale, after[axis], before[axis])
        places = write.constant(np.clip(rounding[way](at), 0, before[axis] - 1), "int64")
        value = write.add("Gather", value, places, into=node.output[0] * (axis == 3), attributes={"axis": axis})
    return True


def wide_padding(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """Conv with a padding as large as its kernel as Pad and Conv without."""
    pads = list(onnx_edit.attribute(node, "pads", []))
    shape = facts.shape(node.input[1])
    kernel = list(shape[2:]) if shape else []
    dilations = list(onnx_edit.attribute(node, "dilations", [1] * len(kernel)))
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    if not pads or not kernel or facts.opset < passes_edit.PAD_HAS_INPUTS or not facts.is_f32(node.input[0]):
        return False
    if all(pad < size for pad, size in zip(pads, reach * 2, strict=True)):
        return False
    half = len(kernel)
    around = write.integers(0, 0, *pads[:half], 0, 0, *pads[half:])
    kept = {
        attribute.name: onnx_edit.attribute(node, attribute.name)
        for attribute in node.attribute
        if attribute.name not in ("pads", "auto_pad")
    }
    padded = write.add("Pad", node.input[0], around, write.constant(0.0), attributes={"mode": "constant"})
    write.add("Conv", padded, *node.input[1:], into=node.output[0], attributes=kept)
    return True


def floored(node: "NodeProto", facts: passes_edit.GraphFacts, write: passes_edit.Writer) -> bool:
    """A Cast of floats to integers and back as the sign times the floor of the magnitude, up to 2 to the 24."""
    producer = facts.graph.producers.get(node.input[0])
    maker = facts.graph.nodes[producer[0]] if producer else None
    if (
        maker is None
        or maker.op_type != "Cast"
        or maker.domain
        or int(onnx_edit.attribute(node, "to", 0)) != onnx_types.FLOAT
    ):
        return False
    x = maker.inputs[0]
    if not facts.is_f32(x) or facts.graph.value(node.input[0]).dtype not in INTEGERS or onnx_edit.operand(node, 1):
        return False
    write.add("Mul", write.add("Sign", x), write.add("Floor", write.add("Abs", x)), into=node.output[0])
    return True
