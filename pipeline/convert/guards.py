"""What a model must not ask of onnxruntime: constants that no memory holds, functions nested without end.

onnxruntime computes constants while it optimizes, and inlines functions while it loads. A file of a hundred bytes can
so keep it busy for hours or take all memory; both are seen beforehand.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from pipeline.errors import ModelError
from pipeline.onnx_model import ELEMENT_BITS, MAX_WEIGHT_BYTES
from pipeline.ort_format import OrtModel, TensorType

if TYPE_CHECKING:
    import onnx

# Real exports nest functions less than ten deep; onnxruntime's time grows with the square of the depth and worse.
MAX_FUNCTION_DEPTH = 100
# These stay in the graph however constant their inputs are: they are what quantized kernels are made of.
NEVER_FOLDED = frozenset({"QuantizeLinear", "DequantizeLinear"})


def computed_constants(graph: "onnx.GraphProto") -> list[str]:
    """Outputs of the nodes whose inputs are all constant, so that the optimizer can compute them."""
    constants = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer} | {""}
    computed = []
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update(node.output)
        elif node.op_type not in NEVER_FOLDED and node.input and constants.issuperset(node.input):
            constants.update(node.output)
            computed += node.output
    return computed


def check_constants(computed: Collection[str], typed: OrtModel, where: str) -> None:
    """ModelError when a constant to be computed would take more than an ORT format file can hold.

    `typed` is the model saved without optimizations: onnxruntime's own shape inference tells the sizes.
    """
    for name in computed:
        size = _size(typed.graph.node_args.get(name))
        if size > MAX_WEIGHT_BYTES:
            raise ModelError("the model computes a constant of impossible size", where=where,
                             why=f"{name[:80]!r} would take {size} bytes",
                             remedy="export the model again with sensible constant shapes")  # fmt: skip


def _size(type_info: object) -> int:
    """Bytes of a tensor of known shape; 0 when the shape is not known."""
    if not isinstance(type_info, TensorType) or type_info.shape is None:
        return 0
    count = 1
    for dim in type_info.shape:
        count *= dim if isinstance(dim, int) else 0
    return count * ELEMENT_BITS.get(type_info.elem_type, 0) // 8


def check_functions(proto: "onnx.ModelProto", where: str) -> None:
    """ModelError when local functions call one another deeper than MAX_FUNCTION_DEPTH, or in a circle."""
    calls = {(f.domain, f.name): {(n.domain, n.op_type) for n in f.node} for f in proto.functions}
    waiting = {name: {called for called in others if called in calls} for name, others in calls.items()}
    for _ in range(MAX_FUNCTION_DEPTH):
        leaves = {name for name, others in waiting.items() if not others}
        waiting = {name: others - leaves for name, others in waiting.items() if others}
        if not waiting:
            return
    raise ModelError("the model's functions are nested too deep", where=where,
                     why=f"they call one another more than {MAX_FUNCTION_DEPTH} deep, or in a circle",
                     remedy="export the model without functions, or inline them with onnx.inliner")  # fmt: skip
