"""Half precision: weights and values in 16-bit floats."""

from typing import TYPE_CHECKING

from pipeline.core.errors import ModelError
from pipeline.model.onnx_model import LeanModel, subgraphs
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.inputs import constants_fixed
from pipeline.passes.preprocess import declare_types, name_nodes
from pipeline.passes.weights import check_loads, check_names, quantized_operators, quiet, settle, sort_nodes, whole

if TYPE_CHECKING:
    import onnx

FLOAT, FLOAT16 = 1, 10
SMALLEST, LARGEST = 5.96e-08, 65504.0
"""The least and greatest positive number of a 16-bit float."""


class HalfOptions(Options, frozen=True, kw_only=True):
    """Options of fp16."""

    keep_io: bool = True
    """Inputs and outputs stay 32-bit floats, so that the app needs no change."""
    block: tuple[str, ...] = ()
    """Operator types that stay in 32 bits, beside those that have no 16-bit form."""
    exclude: tuple[str, ...] = ()
    """Names of nodes that stay in 32 bits."""


def fp16(model: Model, options: HalfOptions, context: PassContext) -> Model:
    """The model in half precision; NotApplicable for a quantized model and one without float weights."""
    if found := quantized_operators(model.proto):
        raise NotApplicable("a quantized model has no half precision", where=context.where,
                            why=f"it has {', '.join(sorted(found))}, whose scales must stay float",
                            remedy="apply fp16 to the float model that it was made from")  # fmt: skip
    if FLOAT not in float_types(model.proto):
        raise NotApplicable("the model has no 32-bit float weights", where=context.where,
                            remedy="nothing is to be done" if FLOAT16 in float_types(model.proto) else "")  # fmt: skip
    proto = whole(constants_fixed(model, context))
    name_nodes(proto.graph)
    check_names(proto, options.exclude, context.where)
    declare_types(LeanModel(proto=proto, folder=model.folder, weights={}), context.where)
    made = _converted(proto, options, context.where)
    if FLOAT16 not in float_types(made):
        raise NotApplicable("no weight became a 16-bit float", where=context.where,
                            why="all operators with weights are blocked or excluded",
                            remedy="block or exclude fewer")  # fmt: skip
    return check_loads(settle(made, context), context.where)


def float_types(proto: "onnx.ModelProto") -> set[int]:
    """Element types of all constants, those of Constant nodes and bodies too."""
    found = {tensor.data_type for graph in subgraphs(proto.graph) for tensor in graph.initializer}
    for graph in subgraphs(proto.graph):
        for node in graph.node:
            found |= {attribute.t.data_type for attribute in node.attribute if attribute.HasField("t")}
    return found


def _converted(proto: "onnx.ModelProto", options: HalfOptions, where: str) -> "onnx.ModelProto":
    """Through onnxruntime.transformers, with the nodes in order afterwards (quantization Q.3)."""
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    bodies = sum(1 for _ in subgraphs(proto.graph)) > 1
    try:
        with quiet():
            made: onnx.ModelProto = convert_float_to_float16(
                proto, SMALLEST, LARGEST, keep_io_types=options.keep_io, disable_shape_infer=not bodies,
                op_block_list=[*DEFAULT_OP_BLOCK_LIST, *options.block], node_block_list=list(options.exclude),
            )  # fmt: skip
    except Exception as error:
        raise ModelError("onnxruntime.transformers cannot convert the model to half precision", where=where,
                         why=f"{type(error).__name__}: {error}"[:500],
                         remedy="block the operator that it names") from error  # fmt: skip
    sort_nodes(made.graph)
    return made


PASS = Pass(
    name="fp16",
    title="Weights and values in 16-bit floats: half the size, for CoreML and processors with half precision.",
    apply=fp16,
    effect=Effect.LOSSY,
    options=HalfOptions,
)
