"""Provider-aware files as an Android library itself saves them, and where its claims differ from our rules."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from device_runner.android_host.processor import default_abi
from device_runner.spec import OptimizationLevel
from pipeline.convert.references import library_of, only_nnapi
from pipeline.convert.request import SessionSettings
from pipeline.convert.splice.claims import WholeGraph
from pipeline.convert.splice.edits import AwareSource, AwareSpec, key
from pipeline.convert.steps import ConvertContext, OrtParts
from pipeline.core.abis import X86_64
from pipeline.core.providers import NNAPI
from pipeline.core.variant import AwareBy, Way
from pipeline.model.onnx_model import LeanModel
from pipeline.model.ort_format import OrtGraph
from pipeline.partition.input import remove_model, write_model
from pipeline.partition.reference.ask import asked_of, claims_of_named, reference_aware
from pipeline.partition.reference.diff import differing, plain_name

MOST_NAMED = 5
PLAIN_CPU = "cortex-a53"
"""The core that an emulator plays while it saves: one without half precision puts Casts around fp16 nodes, and such a
file runs on every core; one with it leaves nodes that the others have no kernel for (docs/facts/arm64_host.md 5.2)."""


def library_serves(wish: AwareSpec) -> bool:
    """Whether a library can be told all that is wished for."""
    (one, *others) = wish.providers
    return not others and not wish.safe and one.provider == NNAPI


def genuine_parts(
    model: LeanModel, whole: WholeGraph, settings: SessionSettings, wish: AwareSpec, shop: ConvertContext
) -> OrtParts:
    """The file that the library saves at the wanted level.

    ConfigError for other providers than NNAPI alone, which is the one that Android's libraries have; ModelError when
    the library refuses the model or crashes on it.
    """
    reference = _library(wish)
    asked = msgspec.structs.replace(
        asked_of(wish.providers[0]),
        level=OptimizationLevel(settings.level.value),
        reasons=False,
        cpu="" if reference.abi == default_abi() else PLAIN_CPU,
    )
    path, target = shop.new_file(".onnx"), shop.new_file(".ort")
    write_model(model, path)
    entries = {"session.qdqisint8allowed": "1" if settings.int8_allowed else "0"}
    reference_aware(path, target, library_of(reference), asked, config=entries)
    skeleton = target.read_bytes()
    remove_model(path)
    target.unlink()
    made = OrtParts(
        skeleton=skeleton,
        claimed=whole.claimed,
        aware_by=AwareBy(
            way=Way.LIBRARY,
            release=reference.release,
            sha256=reference.sha256,
            abi=msgspec.UNSET if reference.abi == X86_64 else reference.abi,
        ),
    )
    return replace(made, notes=(*whole.notes, *_missing(whole, made.read().graph)))


def _missing(whole: WholeGraph, saved: OrtGraph) -> Iterator[str]:
    """A warning about nodes that our rules claim and the file lacks, by operator and first output.

    Inputs may have other names: level basic merges equal constants, and which name stays is the library's choice.
    """
    there = {(node.op_type, plain_name(next((name for name in node.outputs if name), ""))) for node in saved.nodes}
    kept = [node for node in whole.nodes if key(node) in whole.kept]
    gone = [f"{n.op_type} '{key(n)}'" for n in kept if (n.op_type, plain_name(key(n))) not in there]
    if gone:
        yield f"{len(gone)} nodes that our rules claim are not in the library's file: {', '.join(gone[:MOST_NAMED])}"


def _library(wish: AwareSpec) -> AwareSource:
    if wish.reference is None or not library_serves(wish):
        raise only_nnapi()
    return wish.reference


def library_differences(whole: WholeGraph, wish: AwareSpec, shop: ConvertContext) -> Iterator[str]:
    """What the library claims otherwise than our rules of the whole's graph.

    It is asked about that graph as it stands: after its own level basic, nodes would have other names.
    """
    path = shop.new_file(".onnx")
    write_model(whole.model, path, named=True)
    asked = msgspec.structs.replace(asked_of(wish.providers[0]), reasons=False)
    (theirs,) = claims_of_named([path], library_of(_library(wish)), asked)
    remove_model(path)
    if theirs.error is not None:
        yield f"the library's claims cannot be compared: {theirs.error}"
        return
    found = differing(theirs, whole.kept)
    if found:
        names = ", ".join(f"{name} ({'ours' if ours else 'theirs'})" for name, ours in list(found.items())[:MOST_NAMED])
        yield f"{len(found)} nodes are claimed by the library or by our rules alone: {names}"
