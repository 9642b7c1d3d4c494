"""Provider-aware files that a genuine library's own session saves, where one is at hand (`--reference LIBRARY`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.convert.rules import SessionSettings
from pipeline.convert.steps import OrtParts, Workshop
from pipeline.errors import ConfigError
from pipeline.onnx_model import LeanModel
from pipeline.partition.answer import Provider, Settings
from pipeline.partition.shown import with_weights
from pipeline.splice.whole import Whole
from pipeline.splice.wish import Wish

if TYPE_CHECKING:
    from pipeline.library_claims import Asked

MOST_NAMED = 5


def genuine_parts(model: LeanModel, whole: Whole, settings: SessionSettings, wish: Wish, shop: Workshop) -> OrtParts:
    """The file that the library saves at the wanted level; a warning where its claims are not those of our rules.

    ConfigError for other providers than NNAPI alone, which is the one that Android's libraries have; ModelError when
    the library refuses the model or crashes on it.
    """
    from device_runner.spec import NnapiFlag, OptimizationLevel
    from pipeline.library_claims import Asked, reference_aware

    provider = _only_nnapi(wish)
    asked = Asked(
        api_level=provider.api_level,
        flags=tuple(NnapiFlag(flag) for flag in provider.nnapi_flags),
        stop_ops=provider.stop_ops,
        level=OptimizationLevel(settings.level.value),
    )
    path, target = _on_disk(model, shop), shop.new_file(".ort")
    entries = {"session.qdqisint8allowed": "1" if settings.int8_allowed else "0"}
    reference_aware(path, target, wish.reference, asked, config=entries)
    notes = tuple(_differences(_on_disk(whole.model, shop), whole, wish.reference, asked))
    return OrtParts(skeleton=target.read_bytes(), claimed=whole.claimed, notes=notes)


def _only_nnapi(wish: Wish) -> Settings:
    if len(wish.providers) != 1 or wish.providers[0].provider is not Provider.NNAPI or wish.safe:
        raise ConfigError(
            "a reference library makes models aware of NNAPI alone",
            why="it decides by itself what is claimed, and Android's libraries have no CoreML",
            remedy="give --ep nnapi without --safe, or leave --reference out",
        )
    return wish.providers[0]


def _on_disk(model: LeanModel, shop: Workshop) -> Path:
    """The model as one file with its weights in it: the library and what asks it read nothing beside."""
    path = shop.new_file(".onnx")
    path.write_bytes(with_weights(model).SerializeToString())
    return path


def _differences(path: Path, whole: Whole, library: str, asked: "Asked") -> Iterator[str]:
    """What the library claims otherwise than our rules of the graph at `path`, which is the whole's.

    It is asked about that graph as it stands: after its own level basic, nodes would have other names.
    """
    import msgspec

    from device_runner.spec import OptimizationLevel
    from pipeline.claims_beside import differing
    from pipeline.library_claims import reference_claims

    question = msgspec.structs.replace(asked, level=OptimizationLevel.NONE)
    theirs = reference_claims(path, library, question)
    if theirs.error is not None:
        yield f"the library's claims cannot be compared: {theirs.error}"
        return
    found = differing(theirs, whole.kept)
    if found:
        names = ", ".join(f"{name} ({'ours' if ours else 'theirs'})" for name, ours in list(found.items())[:MOST_NAMED])
        yield f"{len(found)} nodes are claimed by the library or by our rules alone: {names}"
