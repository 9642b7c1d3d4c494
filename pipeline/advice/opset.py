"""Another opset, by ONNX's own converter."""

from typing import TYPE_CHECKING

from pipeline.advice.facts import GraphFacts
from pipeline.core.errors import ModelError

if TYPE_CHECKING:
    from onnx import ModelProto


def to_opset_11(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
    """Softmax of this opset and before may have any rank and axis for NNAPI (ep_rules D.4)."""
    return _converted(model, known, 11)


def to_opset_13(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
    """The first opset whose Split NNAPI and CoreML take."""
    return _converted(model, known, 13)


def to_opset_17(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
    """The newest opset before reductions, Pad, Resize and Split changed in 18."""
    return _converted(model, known, 17)


def to_opset_21(model: "ModelProto", known: GraphFacts) -> "ModelProto | None":
    """The newest opset that all supported releases take."""
    return _converted(model, known, 21)


def _converted(model: "ModelProto", known: GraphFacts, target: int) -> "ModelProto | None":
    """The model in another opset; ModelError with the converter's reason when it cannot."""
    import onnx
    from onnx import version_converter

    if known.opset == target:
        return None
    lean = onnx.ModelProto()
    lean.CopyFrom(model)
    try:
        changed = version_converter.convert_version(lean, target)
    except Exception as error:  # the converter throws RuntimeError, its own ConvertError, and what protobuf has
        why = _reason(str(error))
        raise ModelError("ONNX's version converter cannot convert the model", why=why) from error
    _restore(model, changed)
    return changed


def _reason(text: str) -> str:
    """The converter's own words, without the place in its source."""
    return text.strip().partition("\n")[0].rpartition("failed: ")[2].replace("$", "")[:200]


def _restore(model: "ModelProto", changed: "ModelProto") -> None:
    """Put back what the converter's own representation has no place for: where weights lie, the functions."""
    external = {t.name: t for t in model.graph.initializer if t.data_location == t.EXTERNAL}
    left = {t.name: t for t in changed.graph.initializer}
    if model.functions or not external.keys() <= left.keys() or model.graph.sparse_initializer:
        raise ModelError("ONNX's version converter loses parts of this model")
    for name, tensor in external.items():
        left[name].CopyFrom(tensor)
    changed.ir_version = max(model.ir_version, changed.ir_version)
