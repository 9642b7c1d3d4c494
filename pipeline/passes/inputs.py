"""Initializers out of the graph's inputs: what a caller may override is no constant to a provider or the optimizer."""

from dataclasses import replace

from pipeline.model.onnx_model import keep_only
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext

OVERRIDABLE_SINCE_IR = 4
"""Before this IR version an initializer must be an input, too (ONNX IR specification, initializers)."""


def take_initializers_out(model: Model, _options: Options, _context: PassContext) -> Model:
    """The model without inputs that have an initializer; NotApplicable where there are none."""
    import onnx

    graph = model.proto.graph
    constants = {tensor.name for tensor in graph.initializer} | {
        sparse.values.name for sparse in graph.sparse_initializer
    }
    if not any(value.name in constants for value in graph.input):
        raise NotApplicable("nothing to do", why="no initializer is an input")
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    keep_only(proto.graph.input, lambda value: value.name not in constants)
    proto.ir_version = max(proto.ir_version, OVERRIDABLE_SINCE_IR)
    return replace(model, proto=proto)


def constants_fixed(model: Model, context: PassContext) -> Model:
    """The model without such inputs; the model itself where there are none."""
    try:
        return take_initializers_out(model, Options(), context)
    except NotApplicable:
        return model


PASS = Pass(
    name="constant-initializers",
    title="Take initializers out of the inputs: they become constants.",
    apply=take_initializers_out,
    effect=Effect.INTERFACE,
)
