"""Sizes for dynamic dimensions: providers for phones need every size."""

from dataclasses import replace

from pipeline.model.onnx_model import fix_dimensions
from pipeline.model.signature import open_axes, own_inputs
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext


class DimensionOptions(Options, frozen=True, kw_only=True):
    """Options of fixed-dimensions."""

    sizes: dict[str, int] = {}
    """Sizes by symbolic name or as INPUT[AXIS]."""
    rest: int | None = None
    """The size of every dimension that `sizes` does not name; without it those stay open."""


def fix_sizes(model: Model, options: DimensionOptions, context: PassContext) -> Model:
    """The model with sizes; ConfigError for a name that it lacks, NotApplicable where no dimension is open."""
    import onnx

    found = open_axes(own_inputs(model.proto))
    if not found:
        raise NotApplicable("nothing to do", why="every input dimension has a size")
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    fix_dimensions(proto, options.sizes, context.where)
    if options.rest is not None:
        fix_dimensions(proto, {axis.key: options.rest for axis in open_axes(own_inputs(proto))}, context.where)
    return replace(model, proto=proto)


PASS = Pass(
    name="fixed-dimensions",
    title="Give dynamic dimensions their sizes.",
    apply=fix_sizes,
    effect=Effect.EXACT,
    options=DimensionOptions,
)
