"""The selectors of QDQ groups (ep_rules C.2 and the supplement by release, part 2), one function for each kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.core.abis import as_int32, wrapped_sum
from pipeline.partition.graph import Constant, Graph, Node

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorGroup:
    """A target with what stands around it. `clip` is a Relu or Clip that the QuantizeLinear makes redundant."""

    graph: Graph
    target: Node
    dqs: tuple[Node, ...]
    clip: Node | None
    qs: tuple[Node, ...]
    release: tuple[int, int]

    def dtype_in(self, position: int) -> str | None:
        """The quantized type in front of a DequantizeLinear of the group."""
        return self.graph.value(self.dqs[position].inputs[0]).dtype

    def dtype_out(self, position: int = 0) -> str | None:
        """The quantized type behind a QuantizeLinear of the group."""
        return self.graph.value(self.qs[position].outputs[0]).dtype


Selector = Callable[[SelectorGroup], bool]


def can_create(group: SelectorGroup) -> bool:
    """Whether the nodes can be taken together without anyone else needing a value between them."""
    graph, target = group.graph, group.target
    for dq in group.dqs:
        edges = graph.out_edges[dq.index]
        if graph.gives_output(dq) or len(edges) != 1 or edges[0].consumer != target.index:
            return False
    if group.clip is not None:
        return not graph.gives_output(target) and not graph.gives_output(group.clip)
    return not group.qs or all(_uniform(group, slot) for slot in range(len(target.outputs)))


def _uniform(group: SelectorGroup, slot: int) -> bool:
    graph, target = group.graph, group.target
    kinds = {
        graph.nodes[edge.consumer].op_type == "QuantizeLinear"
        for edge in graph.out_edges[target.index]
        if edge.source_slot == slot
    }
    return len(kinds) < 2 and not (True in kinds and target.outputs[slot] in graph.output_set)


def complete(group: SelectorGroup, count: int | None = None, *, no_q: bool = False) -> bool:
    """CheckQDQ: `count` DequantizeLinear nodes (None: one for each input), a QuantizeLinear for each output."""
    expected = sum(1 for name in group.target.inputs if name) if count is None else count
    if len(group.dqs) != expected or not can_create(group):
        return False
    if not group.qs:
        return no_q
    outputs = sum(1 for name in group.target.outputs if name)
    edges = len(group.graph.out_edges[group.target.index])
    return outputs == len(group.qs) == edges and not group.graph.gives_output(group.target)


def drop_qdq(group: SelectorGroup) -> bool:
    """Ops that only move data: the same type and parameters on both sides."""
    return (
        group.clip is None
        and complete(group, 1)
        and group.dtype_in(0) == group.dtype_out()
        and equal_pair(group.graph, group.dqs[0], group.qs[0])
    )


def resize(group: SelectorGroup) -> bool:
    """As `drop_qdq`; from release 1.27 on only for modes that invent no values."""
    attributes = group.target.attributes
    moves = attributes.get("mode", "nearest") == "nearest" and (
        attributes.get("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
    )
    return drop_qdq(group) and (group.release < (1, 27) or moves)


def drop_dq(group: SelectorGroup) -> bool:
    """ArgMax and ArgMin: constant scalar parameters in front, nothing behind."""
    if group.clip is not None or len(group.dqs) != 1 or not can_create(group):
        return False
    inputs = group.dqs[0].inputs
    return len(inputs) == 3 and all(_scalar(group.graph, name) is not None for name in inputs[1:])


def unary(group: SelectorGroup) -> bool:
    """One quantized input, the same type behind."""
    return complete(group, 1) and group.dtype_in(0) == group.dtype_out()


def clip(group: SelectorGroup) -> bool:
    """As `unary`; from release 1.24 on the bounds may be quantized too."""
    if group.release < (1, 24):
        return unary(group)
    return 1 <= len(group.dqs) <= 3 and complete(group, len(group.dqs)) and group.dtype_in(0) == group.dtype_out()


def binary(group: SelectorGroup) -> bool:
    """Two quantized inputs and an output, all of one type."""
    return complete(group) and len(group.dqs) > 1 and group.dtype_in(0) == group.dtype_in(1) == group.dtype_out()


def variadic(group: SelectorGroup) -> bool:
    """All inputs and outputs of one type."""
    if not complete(group) or not group.dqs:
        return False
    kinds = {group.dtype_in(i) for i in range(len(group.dqs))} | {group.dtype_out(i) for i in range(len(group.qs))}
    return len(kinds) == 1


def split(group: SelectorGroup) -> bool:
    """One quantized input; every output of its type, whatever the parameters."""
    if group.clip is not None or not complete(group, 1):
        return False
    return all(group.dtype_out(i) == group.dtype_in(0) for i in range(len(group.qs)))


def conv(group: SelectorGroup) -> bool:
    """Activation, weight and, when there is one, bias quantized; a float bias prevents the group."""
    if not complete(group) or len(group.dqs) < 2 or group.dtype_in(0) != group.dtype_out() or _mixed_weight(group):
        return False
    if len(group.dqs) < 3:
        return True
    return group.dtype_in(2) == "i32" and (group.release < (1, 27) or _bias_scale_fits(group))


def matmul(group: SelectorGroup) -> bool:
    """Both operands and the output quantized."""
    if len(group.dqs) != 2 or not group.qs or _mixed_weight(group):
        return False
    return complete(group) and group.dtype_in(0) == group.dtype_out()


def gemm(group: SelectorGroup) -> bool:
    """As `matmul`, with or without bias; may lack the QuantizeLinear behind it."""
    if not complete(group, no_q=True) or len(group.dqs) < 2 or _mixed_weight(group):
        return False
    if group.qs and group.dtype_in(0) != group.dtype_out():
        return False
    attributes = group.target.attributes
    if len(group.dqs) > 2 and (attributes.get("beta", 1.0) != 1.0 or group.dtype_in(2) != "i32"):
        return False
    return group.release < (1, 28) or _gemm_parameters_fit(group)


def normalization(group: SelectorGroup) -> bool:
    """All inputs quantized, a bias in i32."""
    if not complete(group) or not group.dqs or group.dtype_in(0) != group.dtype_out():
        return False
    return len(group.dqs) < 3 or group.dtype_in(2) == "i32"


def batch_normalization(group: SelectorGroup) -> bool:
    """Input, scale and B quantized (from release 1.24 on mean and variance too)."""
    most = 5 if group.release >= (1, 24) else 3
    if not 3 <= len(group.dqs) <= most or not complete(group, len(group.dqs)):
        return False
    return group.dtype_in(0) == group.dtype_out() and not _mixed_weight(group)


def compare(group: SelectorGroup) -> bool:
    """Both inputs quantized with one type; the output is bool."""
    return complete(group, no_q=True) and len(group.dqs) > 1 and group.dtype_in(0) == group.dtype_in(1)


def where(group: SelectorGroup) -> bool:
    """The two data inputs quantized."""
    return complete(group, 2) and group.dtype_in(0) == group.dtype_in(1) == group.dtype_out()


def pad(group: SelectorGroup) -> bool:
    """Data, and perhaps the padding value, quantized."""
    if not 1 <= len(group.dqs) <= 2 or not complete(group, len(group.dqs)):
        return False
    kinds = {group.dtype_in(i) for i in range(len(group.dqs))} | {group.dtype_out()}
    return len(kinds) == 1


def top_k(group: SelectorGroup) -> bool:
    """Values move, indices are not quantized."""
    if group.clip is not None or len(group.dqs) != 1 or len(group.qs) != 1 or not can_create(group):
        return False
    return group.dtype_in(0) == group.dtype_out() and equal_pair(group.graph, group.dqs[0], group.qs[0])


def optional_q(group: SelectorGroup) -> bool:
    """All inputs quantized; when there is a QuantizeLinear, of the first input's type."""
    if not complete(group, no_q=True) or not group.dqs:
        return False
    return not group.qs or group.dtype_in(0) == group.dtype_out()


def _mixed_weight(group: SelectorGroup) -> bool:
    return group.dtype_in(0) == "i8" and group.dtype_in(1) != "i8"


def _scalar(graph: Graph, name: str) -> Constant | None:
    initializer = graph.constant(name)
    return initializer if initializer is not None and initializer.dims in ((), (1,)) else None


def equal_pair(graph: Graph, dq: Node, q: Node) -> bool:
    """Whether a DequantizeLinear and a QuantizeLinear have equal, constant, scalar parameters (C.2, "pair equal")."""
    if not (_known(dq) and _known(q) and len(dq.inputs) == len(q.inputs) == 3):
        return False
    for a, b in zip(dq.inputs[1:], q.inputs[1:], strict=True):
        first, second = _scalar(graph, a), _scalar(graph, b)
        if first is None or second is None or first.dtype != second.dtype or first.numbers() != second.numbers():
            return False
    return True


def _known(node: Node) -> bool:
    if node.domain == "com.microsoft":
        return node.since_version == 1
    return node.domain == "" and node.since_version in (10, 13, 19, 21, 23, 24, 25)


LIMITS = {"i8": (-128, 127), "u8": (0, 255), "i16": (-32768, 32767), "u16": (0, 65535)}


def redundant(graph: Graph, clip: Node, q: Node, abi: str) -> bool:
    """Whether quantizing cuts at least as much as the Relu or Clip before it, as an ABI computes it (C.2, 4)."""
    scale = graph.constant(q.inputs[1]) if len(q.inputs) > 1 else None
    if scale is None or scale.dtype != "f32" or scale.dims != ():
        return False
    zero_point = _zero_point(graph, q)
    if zero_point is None:
        return False
    kind, offset = zero_point
    low, high = LIMITS[kind]
    if clip.op_type == "Relu":
        return offset == low
    bounds = clip_bounds(graph, clip)
    if bounds is None:
        return False
    lower, upper = (_quantize(bound, scale, offset, abi) for bound in bounds)
    return lower <= low and upper >= high


def _zero_point(graph: Graph, q: Node) -> tuple[str, int] | None:
    if len(q.inputs) < 3 or not q.inputs[2]:
        named = {2: "u8", 3: "i8", 4: "u16", 5: "i16"}.get(q.attributes.get("output_dtype") or 2)
        return (named, 0) if named else None
    initializer = graph.constant(q.inputs[2])
    if initializer is None or initializer.dims != () or initializer.dtype not in LIMITS:
        return None
    return initializer.dtype, int(initializer.numbers()[0])


def _quantize(bound: float, scale: Constant, offset: int, abi: str) -> int:
    """r(bound / scale) + zero point: in f32, then in i32."""
    import numpy as np

    with np.errstate(all="ignore"):
        quotient = float(np.rint(np.float32(bound) / np.float32(scale.numbers()[0])))
    return wrapped_sum(as_int32(quotient, abi), offset)


FLOAT_MAX = 3.4028234663852886e38


def clip_bounds(graph: Graph, clip: Node) -> tuple[float, float] | None:
    """Minimum and maximum of a Clip, the limits of f32 where it has none; None when one is not constant."""
    if clip.since_version < 11:
        low, high = clip.attributes.get("min"), clip.attributes.get("max")
        return -FLOAT_MAX if low is None else low, FLOAT_MAX if high is None else high
    bounds = [-FLOAT_MAX, FLOAT_MAX]
    for position, name in enumerate(clip.inputs[1:3]):
        if name:
            initializer = graph.constant(name)
            if initializer is None or initializer.count < 1:
                return None
            bounds[position] = float(initializer.numbers()[0])
    return bounds[0], bounds[1]


def _floats(group: SelectorGroup, name: str) -> "np.ndarray[Any, Any] | None":
    """A constant f32 scale as a flat array."""
    import numpy as np

    initializer = group.graph.constant(name)
    if initializer is None or initializer.dtype != "f32":
        return None
    array = initializer.read().reshape(-1)
    return array if array.size and bool(np.isfinite(array).all()) else None


def _bias_scale_fits(group: SelectorGroup) -> bool:
    """From release 1.27 on the bias must have scale x_scale * w_scale and no zero point (supplement, part 2)."""
    import numpy as np

    x, w, b = (_floats(group, dq.inputs[1]) for dq in group.dqs[:3])
    if x is None or w is None or b is None or x.size != 1 or not _no_zero_point(group, group.dqs[2]):
        return False
    if w.size != b.size and 1 not in (w.size, b.size):
        return False
    product = (x[0] * w).astype(np.float32)
    return bool((np.abs(b - product) <= np.float32(1e-6) + np.float32(0.01) * np.abs(product)).all())


def _no_zero_point(group: SelectorGroup, dq: Node) -> bool:
    name = dq.inputs[2] if len(dq.inputs) > 2 else ""
    if not name:
        return True
    initializer = group.graph.constant(name)
    return (
        initializer is not None
        and initializer.dtype == "i32"
        and initializer.count > 0
        and not any(initializer.numbers())
    )


def _gemm_parameters_fit(group: SelectorGroup) -> bool:
    """From release 1.28 on shapes of scales and zero points of a Gemm count (supplement, part 2)."""
    a, b = group.dqs[:2]
    graph, attributes = group.graph, group.target.attributes
    shapes = [_parameter_shapes(graph, node, required=True) for node in (a, b)]
    if shapes[0] is None or shapes[1] is None or not all(shape in ((), (1,)) for shape in shapes[0]):
        return False
    weight = graph.value(b.outputs[0]).shape
    columns = weight[0 if attributes.get("transB", 0) else 1] if weight is not None and len(weight) == 2 else None
    if len(set(shapes[1])) != 1 or shapes[1][0] not in ((), (1,), (columns,)):
        return False
    if group.qs:
        behind = _parameter_shapes(graph, group.qs[0], required=False)
        if behind is None or not all(shape in ((), (1,)) for shape in behind):
            return False
    return len(group.dqs) < 3 or (attributes.get("alpha", 1.0) == 1.0 and attributes.get("beta", 1.0) == 1.0)


def _parameter_shapes(graph: Graph, node: Node, *, required: bool) -> "list[tuple[int | None, ...]] | None":
    names = [name for name in node.inputs[1:3] if name]
    shapes = [graph.value(name).shape for name in names]
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes) or (required and len(names) != 2):
        return None
    return known
