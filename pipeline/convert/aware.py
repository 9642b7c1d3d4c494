"""Optimizations that respect what providers claim: saved with our claims, or by one that has the provider."""

import mmap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from device_runner.errors import RunnerError
from pipeline.convert.claims import WholeGraph, close_off, find_claims, look_at
from pipeline.convert.genuine import genuine_parts, library_differences, library_serves
from pipeline.convert.request import AwareSpec, SessionSettings
from pipeline.convert.steps import (
    QUANTIZERS,
    ConvertContext,
    OrtParts,
    as_onnx,
    optimize,
    save_optimized,
    to_parts,
    weights_to_inputs,
)
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.ort_session import WEIGHTS_FOLDER
from pipeline.core.providers import NNAPI
from pipeline.core.releases import has_rules, rules_of
from pipeline.core.variant import AwareBy, Level, Way
from pipeline.model.edit import copied, first_output, subgraphs
from pipeline.model.onnx_model import LeanModel, loadable
from pipeline.partition.answer import Settings
from pipeline.partition.graph import Graph, Node
from pipeline.partition.input import name_nodes
from pipeline.partition.plugin import CLAIMS, claims_device, claims_file, node_key

if TYPE_CHECKING:
    from onnx import ModelProto


MOST_NAMED = 5
PRODUCTS = frozenset({"MatMul", "Gemm"})
Kind = tuple[object, ...]


def save_with_claims(
    model: LeanModel, whole: WholeGraph, settings: SessionSettings, shop: ConvertContext
) -> tuple[OrtParts, tuple[str, ...]]:
    """The ORT format file of a model at a level with the claims of `whole` kept, and a warning where one could not be.

    Saving looks up a kernel of this computer's CPU for every node, and inserts no Casts around what a provider claims:
    a claimed node without one is left to the CPU (ep_rules H.4.13). ModelError when onnxruntime refuses the model.
    """
    saver = _Saver(model, whole, settings, shop)
    with suppress(ModelError):
        return saver.save(whole.told), ()
    saver.save(frozenset())  # raises where the claims are not the cause
    kinds: dict[Kind, list[Node]] = {}
    for node in whole.graph.nodes.values():
        if node_key(node) in whole.told:
            kinds.setdefault(_kind(whole.graph, node), []).append(node)
    lost = [node for kind in _refused(saver, kinds, list(kinds)) for node in kinds[kind]]
    note = (
        f"{len(lost)} claimed nodes have no kernel on this computer's CPU and are stored otherwise "
        f"({_names(lost)}): the phone's provider may claim less"
    )
    return saver.save(whole.told - {node_key(node) for node in lost}), (note,)


def _kind(graph: Graph, node: Node) -> Kind:
    """What decides whether there is a kernel."""
    types = tuple(graph.value(name).dtype for name in (*node.inputs, *node.outputs) if name)
    return node.domain, node.op_type, node.since_version, types


class _Saver:
    """Saves one model again and again, with other claims."""

    def __init__(self, model: LeanModel, whole: WholeGraph, settings: SessionSettings, shop: ConvertContext) -> None:
        self.model = model
        self.whole = whole
        self.settings = settings
        self.shop = shop
        self.device = claims_device()

    def save(self, claims: Collection[str]) -> OrtParts:
        """The file, mapped: it may have weights too. ModelError when onnxruntime refuses the model or the claims."""
        lean, weights = weights_to_inputs(self.model, self.model.weights.keys() - self._unseen(claims))
        listed, target = self.shop.new_file(".claims"), self.shop.new_file(".ort")
        listed.write_bytes(claims_file(claims))
        extra = {WEIGHTS_FOLDER: str(lean.folder), CLAIMS: str(listed)}
        message = loadable(lean).SerializeToString()
        try:
            save_optimized(
                message, self.settings, target, extra, ort_format=True, where=self.shop.where, device=self.device
            )
            return OrtParts(skeleton=_mapped(target), weights=weights)
        finally:
            listed.unlink()
            target.unlink(missing_ok=True)

    def _unseen(self, claims: Collection[str]) -> set[str]:
        """Large weights whose numbers no optimizer wants; onnxruntime holds what it saves in ORT format up to twice.

        Claimed nodes alone read them, or they are the second factors of products, which fusions keep or rewrite.
        """
        shown = self.whole.graph.nodes.values()
        inputs_of = {(node.op_type, node.first_output): node.inputs for node in shown if node_key(node) in claims}
        graph, places = self.model.proto.graph, self.whole.model.weights
        names = {name for name, place in self.model.weights.items() if places.get(name) == place}
        names -= {value.name for value in chain(graph.input, *(body.output for body in subgraphs(graph)))}
        for body in subgraphs(graph) if names else ():
            for node in body.node:
                outside = body is not graph or node.op_type in QUANTIZERS
                inputs = () if outside else inputs_of.get((node.op_type, first_output(node)), ())
                for slot, name in enumerate(node.input):
                    if name in names and (slot >= len(inputs) or inputs[slot] != name):
                        factor = not outside and slot == 1 and node.op_type in PRODUCTS and node.domain == ""
                        names -= set() if factor and name in self._intact else {name}
        return names

    @cached_property
    def _intact(self) -> frozenset[str]:
        """Weights that the optimizations for the CPU leave as they are, even where they may fuse every node."""
        optimized = optimize(self.model, self.settings, self.shop)
        return frozenset(name for name, place in optimized.weights.items() if self.model.weights.get(name) == place)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _refused(saver: _Saver, kinds: Mapping[Kind, list[Node]], suspects: Sequence[Kind]) -> list[Kind]:
    """The kinds of nodes among the suspects with which saving fails, by halves."""
    try:
        saver.save([node_key(node) for kind in suspects for node in kinds[kind]])
    except ModelError:
        if len(suspects) == 1:
            return list(suspects)
        half = len(suspects) // 2
        return [*_refused(saver, kinds, suspects[:half]), *_refused(saver, kinds, suspects[half:])]
    return []


def _names(nodes: Sequence[Node]) -> str:
    shown = [f"{node.op_type} '{node.name or node.first_output}'" for node in nodes[:MOST_NAMED]]
    return ", ".join(shown) + (" …" if len(nodes) > MOST_NAMED else "")


class InstalledProvider(NamedTuple):
    """A provider as a session takes it."""

    name: str
    options: Mapping[str, str]
    config: Mapping[str, str]


def installed_serves(wish: AwareSpec) -> bool:
    """Whether the installed onnxruntime has the provider and can be told all that is wished for."""
    (settings, *others) = wish.providers
    return not others and not wish.safe and not settings.nnapi_flags and has_installed(settings)


def has_installed(settings: Settings) -> bool:
    """Whether the installed onnxruntime was built with the provider."""
    import onnxruntime

    return settings.rules.run.ort_name in onnxruntime.get_available_providers()


def installed_parts(
    model: LeanModel, whole: WholeGraph, settings: SessionSettings, wish: AwareSpec, shop: ConvertContext
) -> OrtParts:
    """The file that the installed onnxruntime saves at the wanted level; notes where its claims are not our rules'.

    ConfigError where it does not have the provider, or cannot be told what is asked; ModelError when it refuses.
    """
    import onnxruntime

    provider = _provider(wish)
    skeleton, _ = _save(loadable(model), model, settings, provider, shop)
    named = copied(loadable(whole.model))
    name_nodes(named)
    _, taken = _save(named, whole.model, SessionSettings(level=Level.NONE), provider, shop)
    return OrtParts(
        skeleton=skeleton,
        claimed={wish.providers[0].provider: len(whole.kept if taken is None else taken)},
        notes=(*whole.notes, *_differences(taken, whole.kept)),
        aware_by=AwareBy(way=Way.INSTALLED, release=onnxruntime.__version__),
    )


def _provider(wish: AwareSpec) -> InstalledProvider:
    settings = wish.providers[0]
    if len(wish.providers) > 1 or wish.safe or settings.nnapi_flags:
        raise ConfigError(
            "the installed onnxruntime makes models aware of one provider as it is",
            why="Python cannot hand it NNAPI flags, and it decides by itself what is claimed",
            remedy="give one --ep without --safe and flags, or --reference none",
        )
    if not has_installed(settings):
        raise ConfigError(
            f"the installed onnxruntime has no {settings.rules.run.ort_name}",
            why="stock wheels for Linux have none",
            remedy="leave --reference out: the models are then made with the claims of our rules",
        )
    switches = {
        "RequireStaticInputShapes": settings.require_static_input_shapes,
        "EnableOnSubgraphs": settings.enable_on_subgraphs,
    }
    return InstalledProvider(
        name=settings.rules.run.ort_name,
        options={**settings.rules.options} | {key: "1" for key, on in switches.items() if on},
        config={"ep.nnapi.partitioning_stop_ops": ",".join(settings.stop_ops)} if settings.provider == NNAPI else {},
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


def _differences(taken: frozenset[str] | None, ours: frozenset[str]) -> Iterator[str]:
    if taken is None:
        yield "the installed onnxruntime does not tell its claims (that came with 1.24): they were not compared"
        return
    if "" in taken:  # nodes of inlined functions have no names
        return
    differing = [f"{name} (theirs)" for name in sorted(taken - ours)] + [
        f"{name} (ours)" for name in sorted(ours - taken)
    ]
    if differing:
        names = ", ".join(differing[:MOST_NAMED])
        yield f"{len(differing)} nodes are claimed by the installed onnxruntime or by our rules alone: {names}"


SAVE = SessionSettings(level=Level.NONE, keep_shared_dq=True)
"""Saving what is optimized: what level extended shares must not be copied again."""


class AwareOptimizer:
    """Gives the parts of provider-aware files of one model; claims are found once for each wish.

    `settled` says whether sessions of large models may begin with the basic result, where weights are as they stay.
    """

    def __init__(self, model: LeanModel, basic: LeanModel, shop: ConvertContext, settled: Callable[[], bool]) -> None:
        self.settled = settled
        self.model = model
        self.basic = basic
        self.shop = shop
        self._wholes: dict[AwareSpec, WholeGraph] = {}
        self._differences: dict[AwareSpec, tuple[str, ...]] = {}

    def parts(self, settings: SessionSettings, wish: AwareSpec, plain: Callable[[], OrtParts]) -> OrtParts:
        """The optimized model with its claims kept; `plain` makes the one for the CPU, which is it where none are.

        ModelError when onnxruntime refuses the model, or the phone would when it asks a provider.
        """
        whole = self._whole(wish)
        saves = session_maker(wish)
        if saves is None or wish.reference is None:
            return self._with_our_claims(settings, wish, whole, plain)
        try:
            parts = saves(self.model, whole, settings, wish, self.shop)
            return replace(parts, notes=(*parts.notes, *self._held_against(whole, wish)))
        except RunnerError as error:
            if not wish.reference.optional:
                raise
            parts = self._with_our_claims(settings, wish, whole, plain)
            return replace(parts, notes=(*parts.notes, f"our rules decided, because {error.what}: {error.why}"))

    def _held_against(self, whole: WholeGraph, wish: AwareSpec) -> tuple[str, ...]:
        """What a library claims otherwise than our rules; asked once for all levels."""
        if session_maker(wish) is not genuine_parts:
            return ()
        if wish not in self._differences:
            self._differences[wish] = tuple(library_differences(whole, wish, self.shop))
        return self._differences[wish]

    def _with_our_claims(
        self, settings: SessionSettings, wish: AwareSpec, whole: WholeGraph, plain: Callable[[], OrtParts]
    ) -> OrtParts:
        """What a session saves with the claims provider; where that cannot be had, the file for the CPU, and why."""
        same = _same_nodes(whole.model, self.basic)
        if not wish.safe and (not whole.told or (same and settings.level is Level.BASIC)):
            parts, notes = plain(), whole.notes
        else:
            try:
                claims_device()
            except RunnerError as error:
                note = f"it is optimized for the CPU alone, because {error.what}: {error.why} ({error.remedy})"
                return replace(plain(), notes=(*whole.notes, note))
            again = same and bool(self.model.weights) and self.settled()
            start = self.basic if again else self.model
            chosen = msgspec.structs.replace(settings, aware=None, keep_constants=again)
            parts, lost = save_with_claims(start, whole, chosen, self.shop)
            parts, closed = self._closed_off(parts, start, wish) if wish.safe else (parts, ())
            notes = (*whole.notes, *lost, *closed)
        return replace(
            parts, claimed=whole.claimed, notes=notes, aware_by=AwareBy(way=Way.PLUGIN, rules=_borrowed_rules(wish))
        )

    def _closed_off(self, parts: OrtParts, before: LeanModel, wish: AwareSpec) -> tuple[OrtParts, tuple[str, ...]]:
        """A file whose nodes no provider claims and cannot build: the phone partitions it again."""
        model = as_onnx(parts, before, self.shop)
        look = look_at(model, self.shop.folder)
        notes = tuple(note for settings in wish.providers for note in close_off(model, settings, look))
        return to_parts(model, SAVE, self.shop), notes

    def _whole(self, wish: AwareSpec) -> WholeGraph:
        if wish not in self._wholes:
            self._wholes[wish] = find_claims(self.model, self.basic, wish, self.shop.folder)
        return self._wholes[wish]


Maker = Callable[[LeanModel, WholeGraph, SessionSettings, AwareSpec, ConvertContext], OrtParts]


def session_maker(wish: AwareSpec) -> Maker | None:
    """What has a session with the real provider save the file; None where our claims are to be kept."""
    reference = wish.reference
    if reference is None:
        return None
    if reference.library:
        return None if reference.optional and not library_serves(wish) else genuine_parts
    return None if reference.optional and not installed_serves(wish) else installed_parts


def is_repeatable(wish: AwareSpec | None) -> bool:
    """Whether the same wish gives the same file another time, if it is made as wished.

    A library is known by its digest; a build of onnxruntime in this Python is not.
    """
    return wish is None or session_maker(wish) in {None, genuine_parts}


def made_as_wished(wish: AwareSpec | None, made_by: AwareBy | None) -> bool:
    """Whether nothing was missing on this computer when a file was made: why a library gave up, or a compiler."""
    if wish is None:
        return True
    return made_by is not None and (session_maker(wish) is not genuine_parts or made_by.way is Way.LIBRARY)


def _borrowed_rules(wish: AwareSpec) -> str:
    """The release whose rules decide where the wanted one has none of its own."""
    releases = [settings.ort_release for settings in wish.providers if not has_rules(settings.ort_release)]
    return str(rules_of(releases[0])) if releases else ""


def _same_nodes(first: LeanModel, second: LeanModel) -> bool:
    """Whether undoing what the CPU's session did beyond level basic changed nothing."""
    return _texts(first.proto) == _texts(second.proto)


def _texts(model: "ModelProto") -> list[bytes]:
    return [node.SerializeToString(deterministic=True) for node in model.graph.node]
