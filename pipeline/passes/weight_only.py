"""Weights of matrix products in 4 or 8 bits, in blocks (MatMulNBits): smaller files, computed in float. CPU only."""

from typing import TYPE_CHECKING, Any, Literal

from pipeline.core.errors import MissingError, ModelError
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.dynamic import gemm_to_matmul
from pipeline.passes.preprocess import PreprocessOptions, preprocess
from pipeline.passes.weights import check_loads, check_names, quiet, settle, sort_nodes, whole

if TYPE_CHECKING:
    import onnx

EXTRA = "quantization"


class WeightOnlyOptions(Options, frozen=True, kw_only=True):
    """Options of weight-only."""

    bits: Literal[4, 8] = 4
    """Bits of a weight: 4 or 8."""
    block: Literal[16, 32, 64, 128, 256] = 32
    """Numbers of a column that share a scale: 16, 32, 64, 128 or 256."""
    symmetric: bool = True
    """Without zero points."""
    accuracy_level: Literal[0, 1, 2, 3, 4] = 0
    """What the CPU computes in: 0 as the release likes, 1 float, 4 in 8-bit integers (faster, less exact)."""
    exclude: tuple[str, ...] = ()
    """Names of nodes that stay float."""


def weight_only(model: Model, options: WeightOnlyOptions, context: PassContext) -> Model:
    """The model with MatMulNBits for matrix products with a constant matrix, those of Gemm too.

    NotApplicable where there is none, and for releases without the form; MissingError without the extra.

    The QDQ form is not made: it leaves 4-bit tensors, which no ORT format file can hold (quantization Q.7).
    """
    ready = preprocess(model, PreprocessOptions(), context)
    chosen = chosen_nodes(ready.proto, options, context.where)
    tools = _tools(options.bits, context.where)
    proto = whole(ready)
    gemm_to_matmul(proto.graph, chosen)
    made = _quantized(proto, options, tools, chosen, context.where)
    if not any(node.op_type == "MatMulNBits" for node in made.graph.node):
        raise NotApplicable("no weight was quantized", where=context.where,
                            why="no Gemm or MatMul could be written in this form",
                            remedy="use static-qdq or fp16 for this model")  # fmt: skip
    return check_loads(settle(made, context), context.where)


def chosen_nodes(proto: "onnx.ModelProto", options: WeightOnlyOptions, where: str) -> set[str]:
    """Names of the products with a constant float matrix; NotApplicable when there are none."""
    check_names(proto, options.exclude, where)
    matrices = {t.name for t in proto.graph.initializer if t.data_type == 1 and len(t.dims) >= 2 and _flat(t)}
    found = [n for n in proto.graph.node if n.op_type in {"MatMul", "Gemm"} and n.input[1] in matrices]
    chosen = {node.name for node in found} - set(options.exclude)
    if not chosen:
        have = ", ".join(sorted({node.op_type for node in proto.graph.node})[:12])
        raise NotApplicable("there is nothing to quantize", where=where,
                            why=f"no MatMul or Gemm has a constant matrix; the model's operators: {have}",
                            remedy="use static-qdq or fp16 for this model")  # fmt: skip
    return chosen


def _flat(tensor: "onnx.TensorProto") -> bool:
    """Whether a tensor is one matrix: all but the last two dimensions are 1."""
    return all(dim == 1 for dim in tensor.dims[:-2])


def _tools(bits: int, where: str) -> Any:
    """The module of this release that writes MatMulNBits."""
    import importlib

    import onnxruntime

    try:
        return importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("onnx_ir"):
            raise MissingError("quantizing weights only needs the package onnx-ir", where=where,
                               remedy="pip install 'ort-mobile-pipeline[quantization]'") from error  # fmt: skip
        release = onnxruntime.__version__
        raise NotApplicable(f"onnxruntime {release} has no tool for weights of {bits} bits", where=where,
                            remedy="install onnxruntime 1.22 or newer to quantize with") from error  # fmt: skip


def _quantized(
    proto: "onnx.ModelProto", options: WeightOnlyOptions, tools: Any, chosen: set[str], where: str
) -> "onnx.ModelProto":
    excluded = [node.name for node in proto.graph.node if node.name not in chosen]
    try:
        with quiet():
            config = tools.DefaultWeightOnlyQuantConfig(
                bits=options.bits, block_size=options.block, is_symmetric=options.symmetric,
                accuracy_level=options.accuracy_level or None, op_types_to_quantize=("MatMul",),
            )  # fmt: skip
            tool = tools.MatMulNBitsQuantizer(proto, algo_config=config, nodes_to_exclude=excluded)
            tool.process()
    except Exception as error:
        raise ModelError("onnxruntime.quantization cannot quantize the weights", where=where,
                         why=f"{type(error).__name__}: {error}"[:500],
                         remedy="exclude the node that it names") from error  # fmt: skip
    made: onnx.ModelProto = tool.model.model
    sort_nodes(made.graph)
    return made


PASS = Pass(
    name="weight-only",
    title="Store matrices in 4 or 8 bits and compute in float: smaller files, CPU only.",
    apply=weight_only,
    effect=Effect.LOSSY,
    options=WeightOnlyOptions,
    extra=EXTRA,
)
