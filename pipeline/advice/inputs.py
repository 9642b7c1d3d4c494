"""Take initializers out of the graph's inputs: what a caller may override is no constant to a provider."""

from typing import TYPE_CHECKING

from pipeline.advice.facts import GraphFacts
from pipeline.model.onnx_model import keep_only

if TYPE_CHECKING:
    from onnx import ModelProto

OVERRIDABLE_SINCE_IR = 4
"""Before this IR version every initializer is listed as an input, and is a constant all the same."""


def constant_initializers(model: "ModelProto", _known: GraphFacts) -> "ModelProto | None":
    """The model without inputs that have an initializer; None when none has."""
    import onnx

    names = {tensor.name for tensor in model.graph.initializer}
    names |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    if model.ir_version < OVERRIDABLE_SINCE_IR or not any(value.name in names for value in model.graph.input):
        return None
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    keep_only(changed.graph.input, lambda value: value.name not in names)
    return changed
