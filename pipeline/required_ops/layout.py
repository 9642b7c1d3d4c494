"""What ONNX Runtime adds to a model while it loads it: mostly because a provider or the CPU wants another layout.

NNAPI (unless told otherwise) and XNNPACK want NHWC: Transposes are put around layout-sensitive nodes and pushed
through their neighbours, which may add the other operators of `OPTIMIZER_OPS`. A build for them ("extended" minimal)
contains these operators by itself, but it restricts their types like all others, and they stay on the CPU where the
provider declines them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from pipeline.model.ort_format import Graph, OrtModel, TensorType
from pipeline.required_ops.need import Need
from pipeline.required_ops.rules import CPP_TYPES, DEFAULT_DOMAIN, INPUTS

LAYOUT_PROVIDERS = frozenset({"nnapi", "xnnpack", "qnn"})
"""Providers that ask for NHWC; CoreML does not."""

_SENSITIVE = """
    AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool
    GlobalMaxPool GridSample InstanceNormalization LRN LpPool MaxPool MaxUnpool QLinearConv Resize SpaceToDepth
"""
LAYOUT_SENSITIVE = frozenset(
    {("", op) for op in _SENSITIVE.split()}
    | {(DEFAULT_DOMAIN, op) for op in _SENSITIVE.split()}
    | {("com.microsoft", op) for op in ("FusedConv", "GridSample", "QLinearAveragePool", "QLinearGlobalAveragePool")}
)

OPTIMIZER_OPS: Mapping[str, tuple[int, ...]] = {
    "Gather": (1, 11, 13),
    "Identity": (1, 13, 14, 16, 19, 21, 23, 24, 25),
    "Squeeze": (1, 11, 13, 21, 23, 24, 25),
    "Transpose": (1, 13, 21, 23, 24, 25),
    "Unsqueeze": (1, 11, 13, 21, 23, 24, 25),
}
"""Operators that ONNX Runtime's transpose optimizer creates, with their since-versions in ONNX."""

_PERMUTED = ("float", "int64_t")
"""Elements of the short lists (pads, sizes, scales) that Gather puts in another order."""

_BYTES = frozenset({"int8_t", "uint8_t"})


def layout_needs(
    model: OrtModel, own: Collection[Need], providers: Iterable[str], *, extended: bool
) -> Iterator[tuple[Need, str]]:
    """The needs of a change to NHWC, given the needs of the model's own nodes.

    It comes when a provider asks for it and a node is sensitive to it. And a build that optimizes while it loads
    (`extended`) turns quantized nodes to the CPU's own NHWC kernels.
    """
    asking = sorted(LAYOUT_PROVIDERS.intersection(providers))
    if asking and any(_is_sensitive(graph) for graph in model.graph.walk()):
        yield from _optimizer_needs(model, f"layout change for {' and '.join(asking)}")
    kernels = _nhwc_kernels(own) if extended else set()
    if kernels:
        label = "layout change for quantized kernels"
        yield from ((kernel, label) for kernel in sorted(kernels, key=lambda kernel: (kernel.op, kernel.types)))
        yield from _optimizer_needs(model, label)
    if extended and {"QuantizeLinear", "DequantizeLinear"} <= {need.op for need in own}:
        identity = Need(DEFAULT_DOMAIN, "Identity", _since("Identity", _opset(model)))
        yield identity, "clean-up of DequantizeLinear before QuantizeLinear"


def _nhwc_kernels(needs: Iterable[Need]) -> set[Need]:
    return {
        _NHWC_KERNELS[need.domain, need.op](name)
        for need in needs
        if (need.domain, need.op) in _NHWC_KERNELS
        for _, name in need.types
        if name in _BYTES
    }


_NHWC_KERNELS: Mapping[tuple[str, str], Callable[[str], Need]] = {
    (DEFAULT_DOMAIN, "QLinearConv"): lambda name: Need("com.microsoft", "QLinearConv", 1, (((INPUTS, 0), name),)),
    (DEFAULT_DOMAIN, "MaxPool"): lambda _: Need("com.microsoft", "NhwcMaxPool", 1),
}


def _optimizer_needs(model: OrtModel, label: str) -> Iterator[tuple[Need, str]]:
    """What the transpose optimizer creates: Transposes of whatever is computed, and what they are turned into."""
    opset = _opset(model)
    for op in ("Identity", "Squeeze", "Unsqueeze"):
        yield Need(DEFAULT_DOMAIN, op, _since(op, opset)), label
    for name in _PERMUTED:
        types = (((INPUTS, 0), name), ((INPUTS, 1), "int64_t"))
        yield Need(DEFAULT_DOMAIN, "Gather", _since("Gather", opset), types), label
    for name in sorted({name for graph in model.graph.walk() for name in _transposed_types(graph)}):
        yield Need(DEFAULT_DOMAIN, "Transpose", _since("Transpose", opset), (((INPUTS, 0), name),)), label


def _is_sensitive(graph: Graph) -> bool:
    return any((node.domain, node.op_type) in LAYOUT_SENSITIVE for node in graph.nodes)


def _transposed_types(graph: Graph) -> Iterator[str]:
    """Types of the values that a Transpose may come to stand before: all of rank 2 and more that are computed."""
    for name, info in graph.node_args.items():
        if name not in graph.initializers and isinstance(info, TensorType) and _may_be_transposed(info):
            yield from [CPP_TYPES[info.elem_type]] if info.elem_type in CPP_TYPES else []


def _may_be_transposed(info: TensorType) -> bool:
    return info.shape is None or len(info.shape) >= 2


def _opset(model: OrtModel) -> int:
    imports = model.opset_import
    return imports.get("", imports.get(DEFAULT_DOMAIN, 1))


def _since(op: str, opset: int) -> int:
    """The since-version that a new node gets in a model of this opset."""
    return max((version for version in OPTIMIZER_OPS[op] if version <= opset), default=1)
