"""A newer opset, by ONNX's own converter."""

from typing import TYPE_CHECKING

from pipeline.core.errors import ConfigError, ModelError
from pipeline.passes.base import Effect, Model, NotApplicable, Options, Pass, PassContext
from pipeline.passes.edit import changed
from pipeline.passes.weights import onnx_opset

if TYPE_CHECKING:
    from onnx import ModelProto


class OpsetOptions(Options, frozen=True, kw_only=True):
    """Options of opset."""

    version: int
    """The opset of ai.onnx to convert to, over that of the model."""


def convert_opset(model: Model, options: OpsetOptions, context: PassContext) -> Model:
    """The model in a newer opset; weights stay where they are.

    NotApplicable for the same or an older opset and for models with functions, which the converter loses; ConfigError
    for an opset that the installed onnx does not know, ModelError where the converter cannot.
    """
    import onnx

    newest = onnx.defs.onnx_opset_version()
    if not 1 <= options.version <= newest:
        raise ConfigError(f"there is no opset {options.version}", where=context.where,
                          remedy=f"the installed onnx {onnx.__version__} knows 1 to {newest}")  # fmt: skip
    now = onnx_opset(model.proto)
    if now == options.version:
        raise NotApplicable("nothing to do", why=f"the model is opset {now}")
    if now > options.version:
        raise NotApplicable(
            f"opset {now} cannot become {options.version}",
            why="ONNX's version converter lacks most adapters to older opsets: 1 of 12 models could be converted down",
            remedy="export the model again with that opset",
        )
    return changed(model, converted(model.proto, options.version))


def raise_opset(model: Model, least: int, where: str) -> Model:
    """The model with at least this opset; ModelError with the reason where ONNX cannot convert it."""
    if onnx_opset(model.proto) >= least:
        return model
    try:
        return changed(model, converted(model.proto, least))
    except ModelError as error:
        raise ModelError(
            f"ONNX cannot convert the model to opset {least}", where=where, why=error.why or error.what,
            remedy=f"export the model again with opset {least} or newer",
        ) from error  # fmt: skip


def converted(proto: "ModelProto", target: int) -> "ModelProto":
    """The message in another opset, with what the converter's own representation has no place for put back.

    Opsets below the model's are tried, too. ModelError with the converter's reason when it cannot.
    """
    from onnx import version_converter

    if proto.functions or proto.graph.sparse_initializer:
        lost = "functions" if proto.functions else "sparse initializers"
        raise NotApplicable("the opset cannot be converted", why=f"ONNX's version converter loses the model's {lost}")
    try:
        found = version_converter.convert_version(proto, target)
    except Exception as error:  # the converter throws RuntimeError, its own ConvertError, and what protobuf has
        text = str(error).strip().partition("\n")[0]
        why = (text.rpartition("failed: ")[2] or text).replace("$", "")[:200]
        raise ModelError("ONNX's version converter cannot convert the model", why=why) from error
    _restore(proto, found)
    return found


def _restore(before: "ModelProto", after: "ModelProto") -> None:
    """Put back where weights lie and what describes the model."""
    external = {t.name: t for t in before.graph.initializer if t.data_location == t.EXTERNAL}
    left = {t.name: t for t in after.graph.initializer}
    if not external.keys() <= left.keys():
        raise ModelError("ONNX's version converter loses parts of this model")
    for name, tensor in external.items():
        left[name].CopyFrom(tensor)
    after.ir_version = max(before.ir_version, after.ir_version)
    del after.metadata_props[:]
    after.metadata_props.extend(before.metadata_props)


PASS = Pass(
    name="opset",
    title="Convert to a newer opset.",
    apply=convert_opset,
    effect=Effect.ROUNDING,
    options=OpsetOptions,
)
