"""Fix open dimensions of the inputs: providers for phones want every size."""

from typing import TYPE_CHECKING

from pipeline.advice.facts import GraphFacts
from pipeline.model.signature import open_axes, own_inputs, resolve_dimensions

if TYPE_CHECKING:
    from onnx import ModelProto


def fix_dimensions(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
    """Open dimensions get the sizes that were asked for, else 1; None when all have sizes."""
    import onnx

    from pipeline.model.onnx_model import fix_dimensions as fix

    takes = own_inputs(model)
    found = open_axes(takes)
    if not found:
        return None
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    given = resolve_dimensions(takes, known.sizes, "the model")
    fix(changed, given | {axis.key: 1 for axis in found if axis.key not in given}, "the model")
    return changed
