"""Attention, layer normalization and GELU of transformers as single operators, by onnxruntime.transformers."""

from typing import TYPE_CHECKING, Literal

from pipeline.core.errors import ModelError
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import fill_output_shapes, lean, make_constant, refuse_overridable
from pipeline.passes.weights import onnx_opset, quiet, whole

if TYPE_CHECKING:
    from onnx import ModelProto

CONTRIB = "com.microsoft"
LAYER_NORM_OPSET = 17
"""The first opset with LayerNormalization; ONNX Runtime runs it in older ones, other tools refuse the model."""


class FusionOptions(Options, frozen=True, kw_only=True):
    """Options of transformer-fusions."""

    model_type: Literal["bert", "gpt2", "vit", "bart", "t5", "clip", "swin", "conformer", "phi"] = "bert"
    """The architecture, as onnxruntime.transformers calls it; bert for most encoders."""
    num_heads: int = 0
    """Attention heads; 0: as found in the graph."""
    hidden_size: int = 0
    """Width of the hidden layers; 0: as found in the graph."""


def fuse_transformer(model: Model, options: FusionOptions, context: PassContext) -> Model:
    """The model with ONNX Runtime's own operators for the parts of a transformer, which only its CPU provider runs.

    NotApplicable where nothing is fused, ModelError where the optimizer fails.
    """
    refuse_overridable(model)
    proto = whole(model)
    fill_output_shapes(proto)
    before = _contrib(proto)
    fused = _optimized(proto, options, context.where)
    if _contrib(fused) <= before:
        raise NotApplicable(
            "no part of a transformer was found", why=f"onnxruntime.transformers fuses nothing as {options.model_type}",
            remedy="name another model_type, or leave the pass out",
        )  # fmt: skip
    opset = onnx_opset(fused)
    if opset < LAYER_NORM_OPSET and any(node.op_type == "LayerNormalization" for node in fused.graph.node):
        raise NotApplicable(
            f"LayerNormalization needs opset {LAYER_NORM_OPSET}", why=f"the model is opset {opset}",
            remedy=f"do opset:version={LAYER_NORM_OPSET} first",
        )  # fmt: skip
    make_constant(fused)
    if not any(entry.domain == CONTRIB for entry in fused.opset_import):
        fused.opset_import.add(domain=CONTRIB, version=1)
    return lean(fused, model, context)


def _contrib(proto: "ModelProto") -> int:
    return sum(node.domain == CONTRIB or node.op_type == "LayerNormalization" for node in proto.graph.node)


def _optimized(proto: "ModelProto", options: FusionOptions, where: str) -> "ModelProto":
    """The optimizer's result without any session of ONNX Runtime (opt_level 0)."""
    try:
        from onnxruntime.transformers.optimizer import optimize_model

        with quiet():
            made = optimize_model(
                proto, model_type=options.model_type, num_heads=options.num_heads, hidden_size=options.hidden_size,
                opt_level=0,
            )  # fmt: skip
            made.topological_sort()
        found: ModelProto = made.model
    except Exception as error:  # its fusions raise whatever an unusual graph brings about
        raise ModelError(
            "onnxruntime.transformers cannot fuse this model", where=where,
            why=f"{type(error).__name__}: {error}"[:300], remedy="leave transformer-fusions out",
        ) from error  # fmt: skip
    return found


PASS = Pass(
    name="transformer-fusions",
    title="Fuse attention, LayerNorm and GELU into ONNX Runtime's operators: CPU only.",
    apply=fuse_transformer,
    effect=Effect.ROUNDING,
    options=FusionOptions,
)
