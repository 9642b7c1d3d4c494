"""Static quantization in operator form: QLinearConv and its kin in place of float operators between Q and DQ."""

from typing import TYPE_CHECKING

from pipeline.core.errors import ModelError
from pipeline.model.onnx_model import LeanModel
from pipeline.passes.base import Effect, Model, NotApplicable, Pass, PassContext
from pipeline.passes.calibration import TensorRanges
from pipeline.passes.static import (
    WIDE,
    StaticOptions,
    check_ranges,
    chosen_nodes,
    prepare,
    quant_type,
    ranges_of,
    split_shared,
    tensors_data,
)
from pipeline.passes.weights import check_loads, quiet, settle, sort_nodes, whole

if TYPE_CHECKING:
    import onnx


def qoperator(model: Model, options: StaticOptions, context: PassContext) -> Model:
    """The model with quantized operators; NotApplicable for what has this form not: 16 bits, s8 activations."""
    if options.activations in WIDE or options.weights in WIDE or options.activations == "s8":
        raise NotApplicable("the operator form has u8 activations and 8-bit weights only", where=context.where,
                            remedy="take activations=u8, or the pass static-qdq")  # fmt: skip
    if options.dense_weights:
        raise NotApplicable("the operator form has one type for all weights", where=context.where,
                            remedy="leave out dense_weights, or take the pass static-qdq")  # fmt: skip
    ready = prepare(model, options, context)
    made = quantize_operators(ready, ranges_of(ready, options, context), options, where=context.where)
    return check_loads(settle(made.proto, context), context.where)


def quantize_operators(model: Model, ranges: TensorRanges, options: StaticOptions, *, where: str = "") -> Model:
    """As `static.quantize`, in operator form."""
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
    from onnxruntime.quantization.quant_utils import QuantizationMode
    from onnxruntime.quantization.registry import QLinearOpsRegistry

    check_ranges(model, ranges, where)
    chosen = chosen_nodes(model.proto, ranges, options, where, frozenset(QLinearOpsRegistry))
    proto = whole(model)
    split_shared(proto.graph, chosen)
    types = sorted({node.op_type for node in proto.graph.node if node.name in chosen})
    try:
        with quiet():
            quantizer = ONNXQuantizer(
                proto, options.per_channel, options.reduce_range, QuantizationMode.QLinearOps, True,
                quant_type(options.weights), quant_type(options.activations), tensors_data(ranges), sorted(chosen), [],
                types, {},
            )  # fmt: skip
            quantizer.quantize_model()
    except Exception as error:
        raise ModelError("onnxruntime.quantization cannot quantize the model", where=where,
                         why=f"{type(error).__name__}: {error}"[:500],
                         remedy="exclude the node that it names, or take the pass static-qdq") from error  # fmt: skip
    made: onnx.ModelProto = quantizer.model.model
    sort_nodes(made.graph)
    if not any(node.op_type.startswith("QLinear") or node.op_type == "QGemm" for node in made.graph.node):
        raise NotApplicable("nothing was quantized", where=where, why="no operator of these types had what it needs",
                            remedy="name other operator types")  # fmt: skip
    return LeanModel(proto=made, folder=model.folder, weights={})


PASS = Pass(
    name="qoperator",
    title="Quantize statically into operators (QLinearConv …), for libraries from before QDQ.",
    apply=qoperator,
    effect=Effect.LOSSY,
    options=StaticOptions,
    needs_data=True,
)
