"""Sums of int8 products that ARM's kernels get wrong, read from files in ORT format (facts: arm64_host.md 5.1, 5.5).

MLAS on arm64 processors without dot product adds the products at k and k + 8 of a block of 16 in 16 bits: twice
-128 by -128 does not fit. Unsigned values are made signed first: 0 is -128 there. Its 32-bit kernel leaves out the last
products of the last row where rows are odd and values are signed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.model.ort_format import OrtGraph, OrtModel, OrtNode, Tensor, TensorType

if TYPE_CHECKING:
    import numpy as np

UINT8, INT8 = 2, 3
"""Types of TensorProto."""
FLOAT = 1
BLOCK, APART = 16, 8
"""Products of a block along K, and how far apart those are that are added in 16 bits first."""
LOWEST = -128

POSITIONS: Mapping[str, tuple[int, int]] = {
    "QLinearConv": (0, 3), "QLinearMatMul": (0, 3), "QGemm": (0, 3),
    "MatMulInteger": (0, 1), "MatMulIntegerToFloat": (0, 1), "DynamicQuantizeMatMul": (0, 1),
}  # fmt: skip
"""Operators that multiply by int8 weights, with the positions of values and weights among their inputs."""
CONVOLUTIONS = frozenset({"Conv", "QLinearConv"})
REPLAYED = frozenset({"Conv", "MatMul", "Gemm"})
"""What becomes one of them when an app replays saved runtime optimizations."""
SIGNED, EIGHT_BITS = frozenset({INT8}), frozenset({UINT8, INT8, FLOAT})
"""Types of values that are multiplied by int8 weights; DynamicQuantizeMatMul makes uint8 of floats."""

ReadWeight = Callable[[Tensor], "np.ndarray[Any, np.dtype[np.int8]]"]


@dataclass(frozen=True, slots=True)
class Int8Product:
    """An operator of 8-bit values by int8 weights: its node, the values' name, and the weights."""

    node: OrtNode
    values: str
    weights: Tensor

    @property
    def name(self) -> str:
        """How findings name it."""
        return self.node.name or next(iter(self.node.outputs), self.node.op_type)

    @property
    def dense(self) -> bool:
        """Whether it is a matrix product of weights that are there: a depthwise convolution has its own kernel."""
        dims, group = self.weights.dims, self.node.attributes.get("group")
        if self.weights.length != math.prod(dims) or len(dims) < (3 if self.node.op_type in CONVOLUTIONS else 1):
            return False
        return self.node.op_type not in CONVOLUTIONS or dims[1] > 1 or group is None or group.value != dims[0]


def weight_reader(file: Path) -> ReadWeight:
    """Reads int8 weights of a file in ORT format, in their shape."""

    def read(tensor: Tensor) -> "np.ndarray[Any, np.dtype[np.int8]]":
        import numpy as np

        found = np.fromfile(file, dtype=np.int8, count=tensor.length, offset=tensor.offset)
        return found.reshape(tensor.dims)

    return read


def overflowing(model: OrtModel, read: ReadWeight | None, *, replayed: bool) -> str:
    """The first operator whose weights have -128 where two products are added in 16 bits; "" without one.

    `replayed` asks for those that exist only after saved runtime optimizations are replayed. Whether the sum overflows
    depends on the values, too: where both are -128, or 0 if unsigned, often the zero of what was behind a Relu.
    """
    for product in _products(model, replayed=replayed):
        if read and product.dense and _pairs(_rows(read(product.weights), product.node)):
            return product.name
    return ""


def left_out(model: OrtModel) -> str:
    """The first matrix product with odd rows (or not known) whose K is no multiple of 16; "" without one."""
    for graph in model.graph.walk():
        for product in _fused(graph, SIGNED):
            if product.node.op_type != "QLinearConv" and _depth(product) % BLOCK and _odd_rows(graph, product.values):
                return product.name
    return ""


def _products(model: OrtModel, *, replayed: bool) -> Iterator[Int8Product]:
    for graph in model.graph.walk():
        yield from _to_be_fused(graph) if replayed and graph.runtime_optimizations else ()
        yield from () if replayed else _fused(graph, EIGHT_BITS)


def _fused(graph: OrtGraph, kinds: frozenset[int]) -> Iterator[Int8Product]:
    for node in graph.nodes:
        values, weights = (_input(node, at) for at in POSITIONS.get(node.op_type, (-1, -1)))
        if _type(graph, values) in kinds and _type(graph, weights) == INT8 and weights in graph.initializers:
            yield Int8Product(node, values, graph.initializers[weights])


def _to_be_fused(graph: OrtGraph) -> Iterator[Int8Product]:
    linear = (node for node in graph.nodes if node.op_type == "DequantizeLinear" and node.inputs and node.outputs)
    before = {node.outputs[0]: node.inputs[0] for node in linear}
    for node in graph.nodes:
        values, weights = (before.get(_input(node, at), "") for at in (0, 1))
        tensor = graph.initializers.get(weights)
        if node.op_type in REPLAYED and tensor and tensor.data_type == INT8 and _type(graph, values) in EIGHT_BITS:
            yield Int8Product(node, values, tensor)


def _input(node: OrtNode, position: int) -> str:
    return node.inputs[position] if 0 <= position < len(node.inputs) else ""


def _type(graph: OrtGraph, name: str) -> int:
    tensor, info = graph.initializers.get(name), graph.node_args.get(name)
    return tensor.data_type if tensor else info.elem_type if isinstance(info, TensorType) else 0


def _transposed(node: OrtNode) -> bool:
    given = node.attributes.get("transB")
    return given is not None and bool(given.value)


def _rows(weights: "np.ndarray[Any, np.dtype[np.int8]]", node: OrtNode) -> "np.ndarray[Any, np.dtype[np.int8]]":
    """The weights of each output along K; a convolution's are in the order of channels last."""
    import numpy as np

    if node.op_type in CONVOLUTIONS:
        return np.moveaxis(weights, 1, -1).reshape(weights.shape[0], -1)
    if weights.ndim < 2:
        return weights.reshape(1, -1)
    along = weights if _transposed(node) else np.swapaxes(weights, -1, -2)
    return along.reshape(-1, along.shape[-1])


def _pairs(rows: "np.ndarray[Any, np.dtype[np.int8]]") -> bool:
    import numpy as np

    lowest = rows == LOWEST
    if rows.shape[1] <= APART or not lowest.any():
        return False
    padded = np.pad(lowest, ((0, 0), (0, -rows.shape[1] % BLOCK))).reshape(rows.shape[0], -1, 2, APART)
    return bool((padded[:, :, 0] & padded[:, :, 1]).any())


def _depth(product: Int8Product) -> int:
    dims = product.weights.dims
    return dims[-1 if _transposed(product.node) or len(dims) < 2 else -2] if dims else 0


def _odd_rows(graph: OrtGraph, values: str) -> bool:
    info = graph.node_args.get(values)
    shape = info.shape if isinstance(info, TensorType) else None
    rows = shape[-2] if shape and len(shape) > 1 else 1 if shape else None
    return not isinstance(rows, int) or rows < 0 or rows % 2 == 1
