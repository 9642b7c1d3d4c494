"""Whose own session saves provider-aware files: the Android library that ships, where it is available and can run here.

Nothing is fetched for it: `ort-mobile library get` does that on request.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from device_runner.android_host.build import build_host
from device_runner.errors import RunnerError
from device_runner.library_facts import LibraryFacts
from device_runner.library_source import Library, resolve
from pipeline.convert.request import SessionSettings
from pipeline.convert.splice.claims import WholeGraph
from pipeline.convert.splice.edits import AwareSource, AwareSpec, key
from pipeline.convert.steps import ConvertContext, OrtParts
from pipeline.core.errors import ConfigError
from pipeline.core.providers import NNAPI
from pipeline.core.releases import installed_release
from pipeline.core.variant import AwareBy, Way
from pipeline.library.fetch import known_libraries
from pipeline.model.onnx_model import LeanModel
from pipeline.model.ort_format import OrtGraph
from pipeline.partition.input import remove_model, write_model
from pipeline.partition.reference.ask import check_asked
from pipeline.partition.reference.diff import differing, plain_name

MOST_NAMED = 5


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
    from device_runner.spec import OptimizationLevel
    from pipeline.partition.reference.ask import asked_of, reference_aware

    reference = _library(wish)
    asked = msgspec.structs.replace(
        asked_of(wish.providers[0]), level=OptimizationLevel(settings.level.value), reasons=False
    )
    path, target = shop.new_file(".onnx"), shop.new_file(".ort")
    write_model(model, path)
    entries = {"session.qdqisint8allowed": "1" if settings.int8_allowed else "0"}
    reference_aware(path, target, reference.library, asked, config=entries)
    skeleton = target.read_bytes()
    remove_model(path)
    target.unlink()
    made = OrtParts(
        skeleton=skeleton,
        claimed=whole.claimed,
        aware_by=AwareBy(way=Way.LIBRARY, release=reference.release, sha256=reference.sha256),
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


def only_nnapi() -> ConfigError:
    """The error of a library that is named for other providers than NNAPI alone, or with --safe."""
    return ConfigError(
        "a reference library makes models aware of NNAPI alone",
        why="it decides by itself what is claimed, and Android's libraries have no CoreML",
        remedy="give --ep nnapi without --safe, or leave --reference out",
    )


def library_differences(whole: WholeGraph, wish: AwareSpec, shop: ConvertContext) -> Iterator[str]:
    """What the library claims otherwise than our rules of the whole's graph.

    It is asked about that graph as it stands: after its own level basic, nodes would have other names.
    """
    from pipeline.partition.reference.ask import asked_of, claims_of_named

    path = shop.new_file(".onnx")
    write_model(whole.model, path, named=True)
    asked = msgspec.structs.replace(asked_of(wish.providers[0]), reasons=False)
    (theirs,) = claims_of_named([path], resolve(_library(wish).library).android(), asked)
    remove_model(path)
    if theirs.error is not None:
        yield f"the library's claims cannot be compared: {theirs.error}"
        return
    found = differing(theirs, whole.kept)
    if found:
        names = ", ".join(f"{name} ({'ours' if ours else 'theirs'})" for name, ours in list(found.items())[:MOST_NAMED])
        yield f"{len(found)} nodes are claimed by the library or by our rules alone: {names}"


AUTO = "auto"
NONE = "none"
INSTALLED = "installed"

log = logging.getLogger(__name__)


def choose_reference(
    text: str, release: str, ships: Sequence[str] = (), providers: Sequence[str] = (NNAPI,)
) -> AwareSource | None:
    """Who saves aware files for a release ("" for the installed one); None: they are spliced.

    `text` is auto, none, installed or a library; `ships` are libraries that a config names, which auto asks first.
    Raises MissingError and SpecError for a library that is named and cannot be had or run here, ConfigError for one
    that is named for other providers than NNAPI, before it is looked for; auto never raises.
    """
    if text == NONE:
        return None
    if text == INSTALLED:
        return AwareSource()
    if text != AUTO:
        if tuple(providers) != (NNAPI,):
            raise only_nnapi()
        build_host()
        facts = resolve(text).android()
        check_asked(facts, NNAPI)
        return _of(facts, optional=False)
    found = _at_hand(release, ships)
    return _of(found, optional=True) if found else AwareSource(optional=True)


def _of(facts: LibraryFacts, *, optional: bool) -> AwareSource:
    return AwareSource(library=facts.path, release=facts.release, sha256=facts.sha256, optional=optional)


def _at_hand(release: str, ships: Sequence[str]) -> LibraryFacts | None:
    """The first library of a release that runs here: one that ships, else the newest patch release in a cache."""
    wanted = release or str(installed_release())
    try:
        for library in _found([*ships, *_cached(wanted)]):
            if f"{library.release}.".startswith(f"{wanted}.") or (not release and library.text in ships):
                build_host()
                return library.facts
    except RunnerError as error:
        log.info("provider-aware files are spliced: %s", error)
    return None


def _found(names: Sequence[str]) -> Iterator[Library]:
    for name in names:
        try:
            library = resolve(name)
            check_asked(library.android(), NNAPI)
            yield library
        except RunnerError as error:
            log.info("not asked: %s", error)


def _cached(wanted: str) -> list[str]:
    """Names of Android releases available that a release X.Y or X.Y.Z means, the newest first."""
    names = [known.name for known in known_libraries() if known.at_hand and known.name.startswith("android:")]
    fitting = [name for name in names if f"{name.partition(':')[2]}.".startswith(f"{wanted}.")]
    return sorted(fitting, key=_parts, reverse=True)


def _parts(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.partition(":")[2].split(".") if part.isdigit())
