"""Provider-aware files that the installed onnxruntime saves itself, where it was built with the provider.

A full build for Linux with NNAPI, or macOS's wheel with CoreML, has the real provider: its own session then saves the
file, and its claims are checked against our rules node by node.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pipeline.convert.rules import SessionSettings
from pipeline.convert.sessions import save_optimized
from pipeline.convert.splice.spec import AwareSpec
from pipeline.convert.splice.whole_graph import WholeGraph
from pipeline.convert.steps import ConvertContext, OrtParts, loadable
from pipeline.core.errors import ConfigError
from pipeline.core.variant import AwareBy, Level, Way
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.answer import Provider, Settings
from pipeline.partition.model_file import name_nodes

if TYPE_CHECKING:
    from onnx import ModelProto

PROVIDERS: dict[Provider, tuple[str, dict[str, str]]] = {
    Provider.NNAPI: ("NnapiExecutionProvider", {}),
    Provider.COREML_NN: ("CoreMLExecutionProvider", {"ModelFormat": "NeuralNetwork"}),
    Provider.COREML_MLPROGRAM: ("CoreMLExecutionProvider", {"ModelFormat": "MLProgram"}),
}
"""Our names to onnxruntime's, with the options that they mean."""

MOST_NAMED = 5


class InstalledProvider(NamedTuple):
    """A provider as a session takes it."""

    name: str
    options: Mapping[str, str]
    config: Mapping[str, str]


def installed_serves(wish: AwareSpec) -> bool:
    """Whether the installed onnxruntime has the provider and can be told all that is wished for."""
    (one, *others) = wish.providers
    return not others and not wish.safe and not one.nnapi_flags and has_installed(one)


def has_installed(settings: Settings) -> bool:
    """Whether the installed onnxruntime was built with the provider."""
    import onnxruntime

    return PROVIDERS[settings.provider][0] in onnxruntime.get_available_providers()


def installed_parts(
    model: LeanModel, whole: WholeGraph, settings: SessionSettings, wish: AwareSpec, shop: ConvertContext
) -> OrtParts:
    """The file that the installed onnxruntime saves at the wanted level; notes where its claims are not our rules'.

    ConfigError where it does not have the provider, or cannot be told what is asked; ModelError when it refuses.
    """
    import onnx
    import onnxruntime

    provider = _provider(wish)
    skeleton, _ = _save(loadable(model), model, settings, provider, shop)
    named = onnx.ModelProto()
    named.CopyFrom(loadable(whole.model))
    name_nodes(named)
    _, theirs = _save(named, whole.model, SessionSettings(level=Level.NONE), provider, shop)
    return OrtParts(
        skeleton=skeleton,
        claimed={wish.providers[0].provider.value: len(whole.kept if theirs is None else theirs)},
        notes=(*whole.notes, *_differences(theirs, whole.kept)),
        aware_by=AwareBy(way=Way.INSTALLED, release=onnxruntime.__version__),
    )


def _provider(wish: AwareSpec) -> InstalledProvider:
    one = wish.providers[0]
    if len(wish.providers) > 1 or wish.safe or one.nnapi_flags:
        raise ConfigError(
            "the installed onnxruntime makes models aware of one provider as it is",
            why="Python cannot hand it NNAPI flags, and it decides by itself what is claimed",
            remedy="give one --ep without --safe and flags, or --reference none",
        )
    if not has_installed(one):
        raise ConfigError(
            f"the installed onnxruntime has no {PROVIDERS[one.provider][0]}",
            why="stock wheels for Linux have none",
            remedy="leave --reference out: the models are then made by splicing",
        )
    name, options = PROVIDERS[one.provider]
    switches = {
        "RequireStaticInputShapes": one.require_static_input_shapes,
        "EnableOnSubgraphs": one.enable_on_subgraphs,
    }
    return InstalledProvider(
        name=name,
        options=options | {key: "1" for key, on in switches.items() if on},
        config={"ep.nnapi.partitioning_stop_ops": ",".join(one.stop_ops)} if one.provider is Provider.NNAPI else {},
    )


def _save(
    proto: "ModelProto", model: LeanModel, settings: SessionSettings, provider: InstalledProvider, shop: ConvertContext
) -> tuple[bytes, frozenset[str] | None]:
    """The file that a session saves of a message with its weights where the model has them, and what it claimed."""
    target = shop.new_file(".ort")
    extra = {"session.model_external_initializers_file_folder_path": str(model.folder), **provider.config}
    taken = save_optimized(
        proto.SerializeToString(), settings, target, extra,
        ort_format=True, where=shop.where, provider=(provider.name, dict(provider.options)),
    )  # fmt: skip
    content = target.read_bytes()
    target.unlink()
    return content, taken


def _differences(theirs: frozenset[str] | None, ours: frozenset[str]) -> Iterator[str]:
    if theirs is None:
        yield "the installed onnxruntime does not tell its claims (that came with 1.24): they were not compared"
        return
    if "" in theirs:  # nodes of inlined functions have no names
        return
    found = [f"{name} (theirs)" for name in sorted(theirs - ours)] + [
        f"{name} (ours)" for name in sorted(ours - theirs)
    ]
    if found:
        names = ", ".join(found[:MOST_NAMED])
        yield f"{len(found)} nodes are claimed by the installed onnxruntime or by our rules alone: {names}"
