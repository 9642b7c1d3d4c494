"""since_version, defaults and functions of operators, from ONNX's schemas (ep_rules A.2, A.4, A.5)."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.partition.graph import DTYPES, Graph, Node

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto


DEFAULT_DOMAIN = ""

MICROSOFT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "GridSample": {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0},
    "QLinearAveragePool": {
        "auto_pad": "NOTSET",
        "ceil_mode": 0,
        "channels_last": 0,
        "count_include_pad": 0,
    },
    "QLinearGlobalAveragePool": {"channels_last": 0},
    "QuantizeLinear": {"axis": None},
}
"""Defaults of com.microsoft operators that a rule reads; ONNX's package does not know that domain."""


class Schema(NamedTuple):
    """What a node takes from its schema."""

    since_version: int
    defaults: Mapping[str, Any]


@lru_cache(maxsize=4096)
def schema(op_type: str, domain: str, opset: int) -> Schema:
    """The schema of an operator under an import; since_version 1 without defaults for ops that ONNX does not define.

    ONNX Runtime registers a few ops of its own in the default domain (LayerNormalization-1 and others): the same.
    """
    import onnx.defs

    try:
        found = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        own = MICROSOFT_DEFAULTS.get(op_type, {}) if domain == "com.microsoft" else _ORT_OWN.get(op_type, {})
        return Schema(1, MappingProxyType(dict(own)))
    defaults = {
        name: attribute_value(attribute.default_value)
        for name, attribute in found.attributes.items()
        if attribute.default_value.name
    }
    return Schema(found.since_version, MappingProxyType(defaults))


_ORT_OWN: Mapping[str, Mapping[str, Any]] = {
    "LayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
}


def attribute_value(attribute: Any) -> Any:
    """A plain attribute as int, float, str or a tuple of them; None for tensors, graphs and types."""
    kind = attribute.type
    if kind == 1:
        return attribute.f
    if kind == 2:
        return attribute.i
    if kind == 3:
        return attribute.s.decode("utf-8", "replace")
    if kind == 6:
        return tuple(attribute.floats)
    if kind == 7:
        return tuple(attribute.ints)
    if kind == 8:
        return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
    return None


NEVER = frozenset({
    "Bernoulli", "CastLike", "CenterCropPad", "GroupNormalization", "HardSwish", "Mish", "NegativeLogLikelihoodLoss",
    "SequenceMap", "SoftmaxCrossEntropyLoss",
})  # fmt: skip
"""No kernel for any type."""

NOT_F16 = frozenset({
    "Elu", "Gelu", "GreaterOrEqual", "HardSigmoid", "LeakyRelu", "LessOrEqual", "LogSoftmax", "PRelu", "ReduceL1",
    "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "Relu", "Selu", "Softmax", "Softplus", "Softsign",
    "ThresholdedRelu",
})  # fmt: skip
"""No kernel for f16: inlined where the function's body fits the opset, else computed in f32 between Casts."""


def is_inlined(graph: Graph, node: Node) -> bool:
    """Whether the CPU cannot run a node of the default domain as it stands and takes its function's body."""
    if node.domain != "":
        return False
    first = graph.value(next(iter(node.inputs), ""))
    return node.op_type in NEVER or (node.op_type in NOT_F16 and first.dtype == "f16")


def schema_function(node: "NodeProto", imports: Mapping[str, int], graph: Graph) -> "FunctionProto | None":
    """The body of a node's function under the model's opset; None when its schema has none that fits it."""
    import onnx
    from onnx import defs

    opset = imports.get("", 1)
    found: Any = defs.get_schema(node.op_type, opset, "")  # its stub lacks half of the methods
    if found.has_function:
        versions = [version for version in found.function_opset_versions if version <= opset]
        data = found.get_function_with_opset_version(versions[-1]) if versions else b""
    elif found.has_context_dependent_function:
        versions = [version for version in found.context_dependent_function_opset_versions if version <= opset]
        types = [_type(graph, name) for name in node.input]
        data = (
            found.get_context_dependent_function_with_opset_version(versions[-1], node.SerializeToString(), types)
            if versions
            else b""
        )
    else:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    function.attribute_proto.extend(a.default_value for a in found.attributes.values() if a.default_value.name)
    fits = found.has_context_dependent_function or _fits(function, versions[-1], opset) if data else False
    return function if fits else None


def _type(graph: Graph, name: str) -> bytes:
    import onnx

    found = graph.value(name)
    kind = onnx.TypeProto()
    codes = {short: code for code, short in DTYPES.items()}
    kind.tensor_type.elem_type = codes.get(found.dtype or "", 0)
    if found.shape is not None:
        kind.tensor_type.shape.SetInParent()
        for dim in found.shape:
            entry = kind.tensor_type.shape.dim.add()
            if dim is not None:
                entry.dim_value = dim
    return bytes(kind.SerializeToString())


def _fits(function: "FunctionProto", written_for: int, opset: int) -> bool:
    """Whether no operator of the body has changed between the opset it was written for and the model's."""
    from pipeline.partition.schemas import schema

    return all(
        schema(node.op_type, "", written_for).since_version == schema(node.op_type, "", opset).since_version
        for node in function.node
    )
