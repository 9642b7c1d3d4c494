"""Shape computations of known sizes as constants, by onnxslim."""

from typing import TYPE_CHECKING

from pipeline.core.errors import ModelError, missing_extra
from pipeline.model.guards import check_constants, check_structure, computed_constants, shaped_bytes
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import (
    CODES,
    fill_output_shapes,
    lean,
    make_constant,
    refuse_overridable,
    value_types,
)
from pipeline.passes.weights import whole

if TYPE_CHECKING:
    from onnx import ModelProto

EXTRA = "surgery"
NOT_WANTED = ("graph_fusion", "weight_tying")
"""Steps of onnxslim that do more than fold: fusions belong to ONNX Runtime's levels, which the variants choose."""

MOST_CONSTANT_BYTES = 1 << 20
"""Constants above this are computed at run time: folding is for shapes, and must not make the file large."""


def fold_shapes(model: Model, _options: Options, context: PassContext) -> Model:
    """The model with what is computed from constants and known sizes as constants.

    MissingError without onnxslim, ModelError where it fails, NotApplicable where no node goes.
    """
    refuse_overridable(model)
    proto = whole(model)
    check_structure(proto, context.where)
    types = value_types(proto)

    def size_of(name: str) -> int:
        known = types.get(name)
        sizes = [dim or 0 for dim in known.shape or (0,)] if known else (0,)
        return shaped_bytes(CODES.get(known.dtype or "", 0) if known else 0, sizes)

    check_constants(computed_constants(proto.graph), size_of, context.where)
    fill_output_shapes(proto)
    folded = _slimmed(proto, context.where)
    if len(folded.graph.node) >= len(model.proto.graph.node):
        raise NotApplicable("nothing to do", why="no node computes constants or the sizes of known dimensions")
    make_constant(folded)
    return lean(folded, model, context)


def _slimmed(proto: "ModelProto", where: str) -> "ModelProto":
    try:
        import onnxslim
    except ImportError as error:
        raise missing_extra(EXTRA, "onnxslim", where, error) from error
    try:
        found: ModelProto = onnxslim.slim(
            proto, skip_optimizations=list(NOT_WANTED), size_threshold=MOST_CONSTANT_BYTES
        )
    except Exception as error:  # whatever its many parts raise
        raise ModelError(
            "onnxslim cannot fold this model", where=where, why=f"{type(error).__name__}: {error}"[:300],
            remedy="leave fold-shapes out: ONNX Runtime folds constants itself from level basic on",
        ) from error  # fmt: skip
    return found


PASS = Pass(
    name="fold-shapes",
    title="Replace computed shapes and constants by their values.",
    apply=fold_shapes,
    effect=Effect.ROUNDING,
    extra=EXTRA,
)
