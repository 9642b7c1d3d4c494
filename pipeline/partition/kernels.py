"""Functions of ONNX's schemas that ONNX Runtime's CPU provider has no kernel for, and so inlines (ep_rules A.2).

Found by saving each function operator with the wheels 1.21.0, 1.23.2, 1.28.0 and 1.31.1, which agree.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.partition.graph import DTYPES, Graph, Node

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto

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
