"""Provider-aware files as an Android library saves them: which one is available, and where its claims differ."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from device_runner.android_host.build import build_host
from device_runner.android_host.processor import default_abi, find_processor
from device_runner.errors import RunnerError
from device_runner.library import Library, LibraryFacts, resolve
from device_runner.spec import OptimizationLevel
from pipeline.convert.claims import WholeGraph
from pipeline.convert.request import AwareSource, AwareSpec, SessionSettings
from pipeline.convert.steps import ConvertContext, OrtParts
from pipeline.core.abis import ARM64, X86_64
from pipeline.core.errors import ConfigError
from pipeline.core.providers import NNAPI
from pipeline.core.releases import installed_release
from pipeline.core.variant import AwareBy, Way
from pipeline.library.fetch import known_libraries
from pipeline.model.edit import first_output
from pipeline.model.onnx_model import LeanModel
from pipeline.model.ort_format import OrtGraph
from pipeline.partition.input import remove_model, write_model
from pipeline.partition.reference.ask import asked_of, check_asked, claims_of_named, reference_aware
from pipeline.partition.reference.compare import differing, plain_name

AUTO = "auto"
NONE = "none"
INSTALLED = "installed"

log = logging.getLogger(__name__)


def only_nnapi() -> ConfigError:
    """The error of a library that is named for other providers than NNAPI alone, or with --safe."""
    return ConfigError(
        "a reference library makes models aware of NNAPI alone",
        why="it decides by itself what is claimed, and Android's libraries have no CoreML",
        remedy="give --ep nnapi without --safe, or leave --reference out",
    )


def choose_reference(
    text: str, release: str, ships: Sequence[str] = (), providers: Sequence[str] = (NNAPI,), abi: str = ""
) -> AwareSource | None:
    """Who saves aware files for a release ("" for the installed one) and an ABI; None: our claims are kept.

    `text` is auto, none, installed or a library; `ships` are libraries that a config names, which auto asks first.
    Without an ABI a named library is the one that needs no emulator here. auto asks one of the ABI alone: our rules
    know what differs by ABI, and a library for another does not.
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
        build_host(find_processor(abi or default_abi()))
        facts = resolve(text, abi or default_abi()).android()
        check_asked(facts, NNAPI)
        return _of(facts, optional=False)
    facts_at_hand = _at_hand(release, ships, abi or ARM64)
    return _of(facts_at_hand, optional=True) if facts_at_hand else AwareSource(optional=True)


def library_of(reference: AwareSource) -> LibraryFacts:
    """The library of a source that has one, for its ABI; raises as `resolve`."""
    return resolve(reference.library, reference.abi).android()


def _of(facts: LibraryFacts, *, optional: bool) -> AwareSource:
    return AwareSource(library=facts.path, abi=facts.abi, release=facts.release, sha256=facts.sha256, optional=optional)


def _at_hand(release: str, ships: Sequence[str], abi: str) -> LibraryFacts | None:
    """The first library of a release that runs here: one that ships, else the newest patch release in a cache."""
    wanted = release or str(installed_release())
    try:
        for library in _found([*ships, *_cached(wanted)], abi):
            if f"{library.release}.".startswith(f"{wanted}.") or (not release and library.text in ships):
                build_host(find_processor(abi))
                return library.facts
    except RunnerError as error:
        log.info("provider-aware files are saved with our claims: %s", error)
    return None


def _found(names: Sequence[str], abi: str) -> Iterator[Library]:
    for name in names:
        try:
            library = resolve(name, abi)
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


MOST_NAMED = 5
PLAIN_CPU = "cortex-a53"
"""The core that an emulator plays while it saves: one without half precision puts Casts around fp16 nodes, and such a
file runs on every core; one with it leaves nodes that the others have no kernel for (docs/facts/arm64_host.md 5.2)."""


def library_serves(wish: AwareSpec) -> bool:
    """Whether a library can be told all that is wished for."""
    (settings, *others) = wish.providers
    return not others and not wish.safe and settings.provider == NNAPI


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
    parts = OrtParts(
        skeleton=skeleton,
        claimed=whole.claimed,
        aware_by=AwareBy(
            way=Way.LIBRARY,
            release=reference.release,
            sha256=reference.sha256,
            abi="" if reference.abi == X86_64 else reference.abi,
        ),
    )
    return replace(parts, notes=(*whole.notes, *_missing(whole, parts.read().graph)))


def _missing(whole: WholeGraph, saved: OrtGraph) -> Iterator[str]:
    """A warning about nodes that our rules claim and the file lacks, by operator and first output.

    Inputs may have other names: level basic merges equal constants, and which name stays is the library's choice.
    """
    there = {(node.op_type, plain_name(next((name for name in node.outputs if name), ""))) for node in saved.nodes}
    kept = [node for node in whole.nodes if first_output(node) in whole.kept]
    gone = [f"{n.op_type} '{first_output(n)}'" for n in kept if (n.op_type, plain_name(first_output(n))) not in there]
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
    (answer,) = claims_of_named([path], library_of(_library(wish)), asked)
    remove_model(path)
    if answer.error is not None:
        yield f"the library's claims cannot be compared: {answer.error}"
        return
    differences = differing(answer, whole.kept)
    if differences:
        names = ", ".join(
            f"{name} ({'ours' if ours else 'theirs'})" for name, ours in list(differences.items())[:MOST_NAMED]
        )
        yield f"{len(differences)} nodes are claimed by the library or by our rules alone: {names}"
