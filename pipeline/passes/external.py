"""Weights in a file beside the model, and back in it."""

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.core.errors import ConfigError
from pipeline.model.guards import tensor_bytes
from pipeline.model.onnx_model import keep_only
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import changed, copied, large_tensors, make_constant

if TYPE_CHECKING:
    from onnx import GraphProto


class ExternalOptions(Options, frozen=True, kw_only=True):
    """Options of external-data."""

    min_bytes: int = 1024
    """Weights of fewer bytes stay in the model."""


def to_external(model: Model, options: ExternalOptions, context: PassContext) -> Model:
    """The model with its weights in a file of their own, MODEL.data, once it is saved.

    Weights in Constant nodes of the main graph become initializers first. NotApplicable where none is large enough.
    """
    if options.min_bytes < 1:
        raise ConfigError("min_bytes is not positive", where=context.where, remedy="give 1 or more bytes")
    proto = copied(model)
    _constants_as_initializers(proto.graph, options.min_bytes)
    make_constant(proto)
    names = large_tensors(proto.graph, options.min_bytes)
    if names <= model.outside:
        raise NotApplicable("nothing to do", why=f"no weight in the model has {options.min_bytes} bytes or more")
    return replace(changed(model, proto), outside=frozenset(model.outside | names))


def _constants_as_initializers(graph: "GraphProto", least: int) -> None:
    """Make initializers of Constant nodes with so many bytes, unless the constant is an output."""
    outputs = {value.name for value in graph.output}
    moved = set()
    for node in graph.node:
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or outputs & set(node.output):
            continue
        for attribute in node.attribute:
            tensor = attribute.t
            if attribute.name == "value" and tensor.data_type != tensor.STRING and (tensor_bytes(tensor) or 0) >= least:
                added = graph.initializer.add()
                added.CopyFrom(tensor)
                added.name = node.output[0]
                moved.add(node.output[0])
    keep_only(graph.node, lambda node: not (node.op_type == "Constant" and moved & set(node.output)))


def to_inline(model: Model, _options: Options, _context: PassContext) -> Model:
    """The model with all weights in its own file once it is saved; NotApplicable where they are."""
    if not model.outside:
        raise NotApplicable("nothing to do", why="no weight lies in another file")
    return replace(model, outside=frozenset())


EXTERNAL = Pass(
    name="external-data",
    title="Put weights into a file beside the model, those in Constant nodes too.",
    apply=to_external,
    effect=Effect.EXACT,
    options=ExternalOptions,
)
INLINE = Pass(
    name="inline-data",
    title="Put weights from files beside the model into it.",
    apply=to_inline,
    effect=Effect.EXACT,
)
