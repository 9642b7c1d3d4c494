"""Dynamic quantization: weights in 8 bits, activations quantized while the model runs. For the CPU only."""

from typing import TYPE_CHECKING, Literal

from pipeline.core.errors import ModelError
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.preprocess import PreprocessOptions, preprocess
from pipeline.passes.weights import (
    check_loads,
    check_names,
    quantized_operators,
    quiet,
    read_names,
    settle,
    sort_nodes,
    whole,
)

if TYPE_CHECKING:
    import onnx

OPERATORS = frozenset({"MatMul", "Gemm", "Conv", "LSTM", "Attention"})
"""Operators whose dynamically quantized form has weights in 8 bits."""


class DynamicOptions(Options, frozen=True, kw_only=True):
    """Options of dynamic-int8."""

    weights: Literal["s8", "u8"] = "s8"
    """Type of weights: s8 or u8. Conv needs u8: the CPU has no kernel for others."""
    per_channel: bool = False
    """One scale for each output column of a weight instead of one for all."""
    op_types: tuple[str, ...] = ("MatMul", "Gemm", "LSTM", "Attention")
    """Operator types to quantize: MatMul, Gemm, LSTM, Attention, Conv. Conv is slower than float on most processors."""
    exclude: tuple[str, ...] = ()
    """Names of nodes that stay float."""
    reduce_range: bool = False
    """Weights in 7 bits, for x86-64 processors without VNNI."""


def dynamic_int8(model: Model, options: DynamicOptions, context: PassContext) -> Model:
    """The model with dynamically quantized matrix products and recurrences.

    NotApplicable for a quantized model and where no wanted operator has a constant float weight, before any work.
    """
    ready = preprocess(model, PreprocessOptions(), context)
    chosen = chosen_nodes(ready.proto, options, context.where)
    proto = whole(ready)
    gemm_to_matmul(proto.graph, chosen)
    excluded = sorted({node.name for node in proto.graph.node if node.name not in chosen})
    made = _quantized(proto, options, excluded, context.where)
    if not quantized_operators(made):
        raise NotApplicable("nothing was quantized", where=context.where, remedy="name other operator types")
    return check_loads(settle(made, context), context.where)


def chosen_nodes(proto: "onnx.ModelProto", options: DynamicOptions, where: str) -> set[str]:
    """Names of the nodes to quantize; NotApplicable when there are none."""
    check_names(proto, options.exclude, where)
    types = set(options.op_types) & OPERATORS
    constants = {tensor.name for tensor in proto.graph.initializer if tensor.data_type == 1}
    chosen = {
        node.name
        for node in proto.graph.node
        if node.op_type in types and node.name not in options.exclude and not constants.isdisjoint(node.input[1:2])
    }
    if not chosen:
        raise NotApplicable("there is nothing to quantize", where=where,
                            why=f"no {', '.join(sorted(types)) or 'such operator'} has a constant float weight",
                            remedy="Conv is quantized when op_types names it, or by static-qdq")  # fmt: skip
    return chosen


def gemm_to_matmul(graph: "onnx.GraphProto", chosen: set[str]) -> None:
    """Write the chosen Gemm nodes as MatMul and Add, in place; the MatMul keeps the name.

    All weights are in the message. What multiplies by other factors than 1, or transposes its first input, stays and
    leaves `chosen`. ONNX Runtime's tools do the same, but transpose a weight that two nodes share twice (quantization
    Q.3).
    """
    import onnx

    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Gemm" or node.name not in chosen:
            nodes.append(node)
            continue
        values = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        if values.get("transA") or values.get("alpha", 1.0) != 1.0 or values.get("beta", 1.0) != 1.0:
            chosen.discard(node.name)
            nodes.append(node)
            continue
        weight = _transposed(graph, constants, node.input[1]) if values.get("transB") else node.input[1]
        biased = len(node.input) > 2 and bool(node.input[2])
        product = f"{node.output[0]}/product" if biased else node.output[0]
        nodes.append(onnx.helper.make_node("MatMul", [node.input[0], weight], [product], name=node.name))
        if biased:
            name = f"{node.name}/bias"
            nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], list(node.output), name=name))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    _drop_unread(graph)


def _transposed(graph: "onnx.GraphProto", constants: dict[str, "onnx.TensorProto"], name: str) -> str:
    """The name of a constant's transpose, which is made once."""
    from onnx import numpy_helper

    target = f"{name}/transposed"
    if target not in constants:
        turned = numpy_helper.from_array(numpy_helper.to_array(constants[name]).T.copy(), target)
        constants[target] = graph.initializer.add()
        constants[target].CopyFrom(turned)
    return target


def _drop_unread(graph: "onnx.GraphProto") -> None:
    """Remove weights that only their transposes came from; what bodies read counts, too."""
    read = read_names(graph.node) | {value.name for value in graph.output}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in read:
            del graph.initializer[index]


def _quantized(proto: "onnx.ModelProto", options: DynamicOptions, excluded: list[str], where: str) -> "onnx.ModelProto":
    """Through onnxruntime.quantization's own quantizer for operators."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.quant_utils import QuantizationMode

    kind = QuantType.QInt8 if options.weights == "s8" else QuantType.QUInt8
    try:
        with quiet():
            quantizer = ONNXQuantizer(
                proto, options.per_channel, options.reduce_range, QuantizationMode.IntegerOps, False, kind,
                QuantType.QUInt8, None, [], excluded, sorted(OPERATORS), {"MatMulConstBOnly": True},
            )  # fmt: skip
            quantizer.quantize_model()
    except Exception as error:
        raise ModelError("onnxruntime.quantization cannot quantize the model", where=where,
                         why=f"{type(error).__name__}: {error}"[:500],
                         remedy="exclude the node that it names, or name operator types") from error  # fmt: skip
    made: onnx.ModelProto = quantizer.model.model
    sort_nodes(made.graph)
    return made


PASS = Pass(
    name="dynamic-int8",
    title="Quantize weights to 8 bits, activations while the model runs: no data needed, CPU only.",
    apply=dynamic_int8,
    effect=Effect.LOSSY,
    options=DynamicOptions,
)
