"""Provider-aware files: how they are saved with our claims, and by sessions that have the provider."""

import functools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from device_runner.android_host.build import build_host
from device_runner.errors import RunnerError
from device_runner.host_device import default_abi, find_processor
from device_runner.library import Library, LibraryFacts, resolve
from device_runner.spec import OptimizationLevel
from pipeline.convert.claims import WholeGraph, close_off, find_claims, for_gpu, look_at
from pipeline.convert.request import AwareSource, AwareSpec, SessionSettings, has_installed
from pipeline.convert.steps import (
    PLAIN,
    QUANTIZERS,
    OrtParts,
    as_onnx,
    optimize,
    save_optimized,
    save_ort,
    to_parts,
    weights_to_inputs,
)
from pipeline.core.abis import ARM64, X86_64
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.ort_session import WEIGHTS_FOLDER
from pipeline.core.providers import NNAPI
from pipeline.core.releases import has_rules, installed_release, rules_of
from pipeline.core.variant import AwareBy, Level, Way
from pipeline.library.fetch import known_libraries
from pipeline.model.edit import copied, first_output, subgraphs
from pipeline.model.onnx_model import LeanModel, loadable
from pipeline.partition.graph import Node
from pipeline.partition.reference import check_asked, claims_of_named, differing, plain_name, reference_aware
from pipeline.partition.shown import CLAIMS, CLAIMS_PROVIDER, claims_devices, claims_file, node_key
from pipeline.partition.subject import name_nodes, remove_model, write_model
from pipeline.passes.base import PassContext

if TYPE_CHECKING:
    from onnx import ModelProto

    from pipeline.convert.engine import Optimizer

AUTO = "auto"
NONE = "none"
INSTALLED = "installed"

log = logging.getLogger(__name__)


def only_nnapi() -> ConfigError:
    """The error of a library that is named for other providers than NNAPI alone, or with --safe."""
    return ConfigError(
        "a reference library makes models aware of NNAPI alone",
        why="it decides by itself what is claimed, has no CoreML, and the copies of files for WebGPU are written here",
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
    prefix = release or str(installed_release())
    try:
        for library in _found([*ships, *_cached(prefix)], abi):
            if f"{library.release}.".startswith(f"{prefix}.") or (not release and library.text in ships):
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


def _cached(release: str) -> list[str]:
    """Names of Android releases available that a release X.Y or X.Y.Z means, the newest first."""
    names = [library.name for library in known_libraries() if library.at_hand and library.name.startswith("android:")]
    fitting = [name for name in names if f"{name.partition(':')[2]}.".startswith(f"{release}.")]
    return sorted(fitting, key=_parts, reverse=True)


def _parts(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.partition(":")[2].split(".") if part.isdigit())


MOST_NAMED = 5
PRODUCTS = frozenset({"MatMul", "Gemm"})
SAVE = SessionSettings(level=Level.NONE, keep_shared_dq=True)
"""Saving what is optimized: what level extended shares must not be copied again."""
PLAIN_CPU = "cortex-a53"
"""The core that an emulator plays while it saves: one without half precision puts Casts around fp16 nodes, and such a
file runs on every core; one with it leaves nodes that the others have no kernel for (docs/facts/arm64_host.md 5.2)."""


def aware_parts(optimizer: "Optimizer", settings: SessionSettings, wish: AwareSpec) -> OrtParts:
    """The optimized model with the claims of a wish kept: a provider-aware file.

    ModelError when onnxruntime refuses the model, or the phone would when it asks a provider.
    """
    model, shop = optimizer.model, optimizer.shop
    if wish not in optimizer.claims:  # the same at every level
        optimizer.claims[wish] = find_claims(model, optimizer.basic, wish, shop.folder)
    whole = optimizer.claims[wish]

    # A session that has the provider saves the file where there is one, an Android library's before the installed one.
    refused: tuple[str, ...] = ()
    try:
        if wish.way is Way.INSTALLED:
            return installed_parts(model, whole, settings, wish, shop)
        if wish.way is Way.LIBRARY:
            parts = genuine_parts(model, whole, settings, wish, shop)
            if wish not in optimizer.differences:
                optimizer.differences[wish] = tuple(library_differences(whole, wish, shop))
            return replace(parts, notes=(*parts.notes, *optimizer.differences[wish]))
    except RunnerError as error:
        if wish.reference is None or not wish.reference.optional:
            raise
        refused = (f"our rules decided, because {error.what}: {error.why}",)

    # Else the installed onnxruntime does, with a provider that claims what our rules say.
    plain = msgspec.structs.replace(settings, aware=None)
    notes, start = whole.notes, model
    same = _texts(whole.model) == _texts(optimizer.basic)  # so the CPU's session did nothing beyond level basic
    gpu = next((provider for provider in wish.providers if provider.rules.copies), None)
    title = gpu.rules.run.ort_name if gpu else CLAIMS_PROVIDER

    def with_copies(parts: OrtParts, before: LeanModel) -> OrtParts:
        if not gpu or not whole.claims:
            return parts
        saved = as_onnx(parts, before, shop)
        copying = for_gpu(saved, gpu, look_at(saved, shop.folder))
        return parts if copying is saved else to_parts(copying, SAVE, shop)

    if not wish.safe and (not whole.claims or (same and settings.level is Level.BASIC)):
        parts = optimizer.parts(plain)
    else:
        try:
            claims_devices()
        except RunnerError as error:
            note = f"it is optimized for the CPU alone, because {error.what}: {error.why} ({error.remedy})"
            return replace(with_copies(optimizer.parts(plain), model), notes=(*notes, note, *refused))
        # Sessions of large models may begin with the basic result, where weights are as they stay.
        again = same and bool(model.weights) and optimizer.is_settled
        start = optimizer.basic if again else model
        chosen = msgspec.structs.replace(plain, keep_constants=again)
        parts, lost = save_with_claims(start, whole, chosen, shop, title)
        notes += lost
        if wish.safe:  # the phone partitions the file again: it must not find what it cannot build
            closed = as_onnx(parts, start, shop)
            look = look_at(closed, shop.folder)
            notes += tuple(note for provider in wish.providers for note in close_off(closed, provider, look))
            parts = to_parts(closed, SAVE, shop)
    borrowed = [provider.ort_release for provider in wish.providers if not has_rules(provider.ort_release)]
    aware_by = AwareBy(way=Way.PLUGIN, rules=str(rules_of(borrowed[0])) if borrowed else "")
    return replace(with_copies(parts, start), claimed=whole.claimed, notes=(*notes, *refused), aware_by=aware_by)


def _texts(model: LeanModel) -> list[bytes]:
    return [node.SerializeToString(deterministic=True) for node in model.proto.graph.node]


def save_with_claims(
    model: LeanModel, whole: WholeGraph, settings: SessionSettings, shop: PassContext, title: str = CLAIMS_PROVIDER
) -> tuple[OrtParts, tuple[str, ...]]:
    """The ORT format file of a model at a level with the claims of `whole` kept, and a warning where one could not be.

    Saving looks up a kernel of this computer's CPU for every node, and inserts no Casts around what a provider claims:
    a claimed node without one is left to the CPU (ep_rules H.4.13). ModelError when onnxruntime refuses the model.
    """

    @functools.cache
    def intact() -> frozenset[str]:
        """Weights that the optimizations for the CPU leave as they are, even where they may fuse every node."""
        optimized = optimize(model, settings, shop)
        return frozenset(name for name, place in optimized.weights.items() if model.weights.get(name) == place)

    def save(claims: Collection[str]) -> OrtParts:
        """ModelError when onnxruntime refuses the model or the claims."""
        lean, weights = weights_to_inputs(model, model.weights.keys() - _unseen(model, whole, claims, intact))
        listed = shop.new_file(".claims")
        listed.write_bytes(claims_file(claims))
        extra = {WEIGHTS_FOLDER: str(lean.folder), CLAIMS: str(listed)}
        message, device = loadable(lean).SerializeToString(), claims_devices()[title]
        try:
            return OrtParts(skeleton=save_ort(message, settings, extra, shop, device), weights=weights)
        finally:
            listed.unlink()

    # What decides whether there is a kernel: operator, version, types.
    kinds: dict[tuple[object, ...], list[Node]] = {}

    def refused(suspects: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
        """The kinds of nodes among the suspects with which saving fails, by halves."""
        try:
            save([node_key(node) for kind in suspects for node in kinds[kind]])
        except ModelError:
            half = len(suspects) // 2
            return [*refused(suspects[:half]), *refused(suspects[half:])] if half else list(suspects)
        return []

    with suppress(ModelError):
        return save(whole.claims), ()
    save(frozenset())  # raises where the claims are not the cause
    for node in whole.graph.nodes.values():
        if node_key(node) in whole.claims:
            types = tuple(whole.graph.value(name).dtype for name in (*node.inputs, *node.outputs) if name)
            kinds.setdefault((node.domain, node.op_type, node.since_version, types), []).append(node)
    lost = [node for kind in refused(list(kinds)) for node in kinds[kind]]
    names = ", ".join(f"{node.op_type} '{node.name or node.first_output}'" for node in lost[:MOST_NAMED])
    note = (
        f"{len(lost)} claimed nodes have no kernel on this computer's CPU and are stored otherwise "
        f"({names}{' …' * (len(lost) > MOST_NAMED)}): the phone's provider may claim less"
    )
    return save(whole.claims - {node_key(node) for node in lost}), (note,)


def _unseen(
    model: LeanModel, whole: WholeGraph, claims: Collection[str], intact: Callable[[], frozenset[str]]
) -> set[str]:
    """Large weights whose numbers no optimizer wants; onnxruntime holds what it saves in ORT format up to twice.

    Claimed nodes alone read them, or they are the second factors of products, which fusions keep or rewrite.
    """
    shown = whole.graph.nodes.values()
    inputs_of = {(node.op_type, node.first_output): node.inputs for node in shown if node_key(node) in claims}
    graph, places = model.proto.graph, whole.model.weights
    names = {name for name, place in model.weights.items() if places.get(name) == place}
    names -= {value.name for value in chain(graph.input, *(body.output for body in subgraphs(graph)))}
    for body in subgraphs(graph) if names else ():
        for node in body.node:
            outside = body is not graph or node.op_type in QUANTIZERS
            inputs = () if outside else inputs_of.get((node.op_type, first_output(node)), ())
            for slot, name in enumerate(node.input):
                if name in names and (slot >= len(inputs) or inputs[slot] != name):
                    factor = not outside and slot == 1 and node.op_type in PRODUCTS and node.domain == ""
                    names -= set() if factor and name in intact() else {name}
    return names


def installed_parts(
    model: LeanModel, whole: WholeGraph, settings: SessionSettings, wish: AwareSpec, shop: PassContext
) -> OrtParts:
    """The file that the installed onnxruntime saves at the wanted level; notes where its claims are not our rules'.

    ConfigError where it does not have the provider, or cannot be told what is asked; ModelError when it refuses.
    """
    import onnxruntime

    asked = wish.providers[0]
    if len(wish.providers) > 1 or wish.safe or asked.nnapi_flags:
        raise ConfigError(
            "the installed onnxruntime makes models aware of one provider as it is",
            why="Python cannot hand it NNAPI flags, and it decides by itself what is claimed",
            remedy="give one --ep without --safe and flags, or --reference none",
        )
    if not has_installed(asked):
        raise ConfigError(
            f"the installed onnxruntime has no {asked.rules.run.ort_name}",
            why="stock wheels for Linux have none",
            remedy="leave --reference out: the models are then made with the claims of our rules",
        )
    switches = {
        "RequireStaticInputShapes": asked.require_static_input_shapes,
        "EnableOnSubgraphs": asked.enable_on_subgraphs,
    }
    provider = (asked.rules.run.ort_name, {**asked.rules.options} | {key: "1" for key, on in switches.items() if on})
    config = {"ep.nnapi.partitioning_stop_ops": ",".join(asked.stop_ops)} if asked.provider == NNAPI else {}

    def save(proto: "ModelProto", lean: LeanModel, chosen: SessionSettings) -> tuple[bytes, frozenset[str] | None]:
        """The file that a session saves of a message with its weights where the model has them, and what it claimed."""
        target = shop.new_file(".ort")
        taken = save_optimized(
            proto.SerializeToString(), chosen, target, {WEIGHTS_FOLDER: str(lean.folder), **config},
            ort_format=True, where=shop.where, provider=provider,
        )  # fmt: skip
        content = target.read_bytes()
        target.unlink()
        return content, taken

    skeleton, _ = save(loadable(model), model, settings)
    named = copied(loadable(whole.model))
    name_nodes(named)
    _, taken = save(named, whole.model, PLAIN)
    notes = whole.notes
    if taken is None:
        notes += ("the installed onnxruntime does not tell its claims (that came with 1.24): they were not compared",)
    elif "" not in taken:  # nodes of inlined functions have no names
        differing = [f"{name} (theirs)" for name in sorted(taken - whole.kept)]
        differing += [f"{name} (ours)" for name in sorted(whole.kept - taken)]
        if differing:
            names = ", ".join(differing[:MOST_NAMED])
            notes += (
                f"{len(differing)} nodes are claimed by the installed onnxruntime or by our rules alone: {names}",
            )
    return OrtParts(
        skeleton=skeleton,
        claimed={asked.provider: len(whole.kept if taken is None else taken)},
        notes=notes,
        aware_by=AwareBy(way=Way.INSTALLED, release=onnxruntime.__version__),
    )


def genuine_parts(
    model: LeanModel, whole: WholeGraph, settings: SessionSettings, wish: AwareSpec, shop: PassContext
) -> OrtParts:
    """The file that an Android library saves at the wanted level.

    ConfigError for other providers than NNAPI alone, which is the one that Android's libraries have; ModelError when
    the library refuses the model or crashes on it.
    """
    if wish.reference is None or not wish.library_serves:
        raise only_nnapi()
    reference = wish.reference
    path, target = shop.new_file(".onnx"), shop.new_file(".ort")
    write_model(model, path)
    entries = {"session.qdqisint8allowed": "1" if settings.int8_allowed else "0"}
    reference_aware(
        path, target, library_of(reference), wish.providers[0], OptimizationLevel(settings.level.value),
        cpu="" if reference.abi == default_abi() else PLAIN_CPU, config=entries,
    )  # fmt: skip
    parts = OrtParts(
        skeleton=target.read_bytes(),
        claimed=whole.claimed,
        aware_by=AwareBy(
            way=Way.LIBRARY,
            release=reference.release,
            sha256=reference.sha256,
            abi="" if reference.abi == X86_64 else reference.abi,
        ),
    )
    remove_model(path)
    target.unlink()
    # Inputs may have other names: level basic merges equal constants, and which name stays is the library's choice.
    saved = parts.read().graph.nodes
    there = {(node.op_type, plain_name(next((name for name in node.outputs if name), ""))) for node in saved}
    kept = [node for node in whole.model.proto.graph.node if first_output(node) in whole.kept]
    gone = [f"{n.op_type} '{first_output(n)}'" for n in kept if (n.op_type, plain_name(first_output(n))) not in there]
    notes = whole.notes
    if gone:
        names = ", ".join(gone[:MOST_NAMED])
        notes += (f"{len(gone)} nodes that our rules claim are not in the library's file: {names}",)
    return replace(parts, notes=notes)


def library_differences(whole: WholeGraph, wish: AwareSpec, shop: PassContext) -> Iterator[str]:
    """What the library claims otherwise than our rules of the whole's graph.

    It is asked about that graph as it stands: after its own level basic, nodes would have other names.
    """
    if wish.reference is None:
        return
    path = shop.new_file(".onnx")
    write_model(whole.model, path, named=True)
    (answer,) = claims_of_named([path], library_of(wish.reference), wish.providers[0])
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
