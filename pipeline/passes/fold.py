"""Folding and fusions by libraries: onnxslim, onnxruntime.transformers."""

from typing import TYPE_CHECKING, Literal

from pipeline.core.errors import missing_extra
from pipeline.model.edit import onnx_opset
from pipeline.model.guards import check_constants, check_structure, computed_constants, shaped_bytes
from pipeline.model.types import CODES
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import (
    fill_output_shapes,
    lean,
    library_call,
    make_constant,
    model_bytes,
    refuse_overridable,
    value_types,
    whole,
)

if TYPE_CHECKING:
    from onnx import ModelProto


EXTRA = "surgery"
NOT_WANTED = ("graph_fusion", "weight_tying")
"""Steps of onnxslim that do more than fold: fusions belong to ONNX Runtime's levels, which the variants choose."""

MOST_CONSTANT_BYTES = 1 << 20
"""Constants above this are computed at run time: folding is for shapes, and must not make the file large."""


MOST_FOLDED_BYTES, MOST_FOLDED_TIMES = 64 << 20, 10
"""A constant that a pass computes has at most so many bytes, or so many times those of the model."""


def fold_shapes(model: Model, _options: Options, context: PassContext) -> Model:
    """The model with what is computed from constants and known sizes as constants.

    MissingError without onnxslim, ModelError where it fails, NotApplicable where no node goes.
    """
    refuse_overridable(model)
    proto = whole(model)
    check_structure(proto, context.where)
    check_folding(proto, model_bytes(model), context.where)
    fill_output_shapes(proto)
    folded = _slimmed(proto, context.where)
    if len(folded.graph.node) >= len(model.proto.graph.node):
        raise NotApplicable("nothing to do", why="no node computes constants or the sizes of known dimensions")
    make_constant(folded)
    return lean(folded, model, context)


def check_folding(proto: "ModelProto", size_bytes: int, where: str) -> None:
    """ModelError where a constant that would be computed is much larger than the whole model; all weights are inside.

    A hundred bytes can ask for any amount of memory.
    """
    computed = computed_constants(proto.graph)
    types = value_types(proto)

    def size_of(name: str) -> int:
        known = types.get(name)
        sizes = [dim or 0 for dim in known.shape or (0,)] if known else (0,)
        return shaped_bytes(CODES.get(known.dtype or "", 0) if known else 0, sizes)

    check_constants(computed, size_of, where, most=max(MOST_FOLDED_BYTES, MOST_FOLDED_TIMES * size_bytes))


def _slimmed(proto: "ModelProto", where: str) -> "ModelProto":
    try:
        import onnxslim
    except ImportError as error:
        raise missing_extra(EXTRA, "onnxslim", where, error) from error
    with library_call(
        "onnxslim cannot fold this model",
        where,
        "leave fold-shapes out: ONNX Runtime folds constants itself from level basic on",
        300,
    ):
        folded: ModelProto = onnxslim.slim(
            proto, skip_optimizations=list(NOT_WANTED), size_threshold=MOST_CONSTANT_BYTES
        )
    return folded


FOLD = Pass(
    name="fold-shapes",
    title="Replace computed shapes and constants by their values.",
    apply=fold_shapes,
    effect=Effect.ROUNDING,
    extra=EXTRA,
)


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
    with library_call("onnxruntime.transformers cannot fuse this model", where, "leave transformer-fusions out", 300):
        from onnxruntime.transformers.optimizer import optimize_model

        optimizer = optimize_model(
            proto, model_type=options.model_type, num_heads=options.num_heads, hidden_size=options.hidden_size,
            opt_level=0,
        )  # fmt: skip
        optimizer.topological_sort()
        fused: ModelProto = optimizer.model
    return fused


FUSIONS = Pass(
    name="transformer-fusions",
    title="Fuse attention, LayerNorm and GELU into ONNX Runtime's operators: CPU only.",
    apply=fuse_transformer,
    effect=Effect.ROUNDING,
    options=FusionOptions,
)
