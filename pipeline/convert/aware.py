"""Optimizations that respect what providers claim: spliced here, or saved by an onnxruntime that has the provider."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from device_runner.errors import RunnerError
from pipeline.convert.genuine import genuine_parts, library_differences, library_serves
from pipeline.convert.request import SessionSettings
from pipeline.convert.splice.claims import WholeGraph, close_off, find_claims, look_at
from pipeline.convert.splice.edits import AwareSpec
from pipeline.convert.splice.splicing import Passes, changed_claims, splice
from pipeline.convert.steps import ConvertContext, OrtParts, optimize, save_optimized, to_parts
from pipeline.core.errors import ConfigError
from pipeline.core.providers import NNAPI
from pipeline.core.releases import has_rules, line_of, rules_of
from pipeline.core.variant import AwareBy, Level, Way
from pipeline.model.onnx_model import LeanModel, loadable
from pipeline.partition.answer import Settings
from pipeline.partition.input import name_nodes

if TYPE_CHECKING:
    from onnx import ModelProto


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

    return settings.rules.run.ort_name in onnxruntime.get_available_providers()


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
        claimed={wish.providers[0].provider: len(whole.kept if theirs is None else theirs)},
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
            f"the installed onnxruntime has no {one.rules.run.ort_name}",
            why="stock wheels for Linux have none",
            remedy="leave --reference out: the models are then made by splicing",
        )
    switches = {
        "RequireStaticInputShapes": one.require_static_input_shapes,
        "EnableOnSubgraphs": one.enable_on_subgraphs,
    }
    return InstalledProvider(
        name=one.rules.run.ort_name,
        options={**one.rules.options} | {key: "1" for key, on in switches.items() if on},
        config={"ep.nnapi.partitioning_stop_ops": ",".join(one.stop_ops)} if one.provider == NNAPI else {},
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


SAVE = SessionSettings(level=Level.NONE, keep_shared_dq=True)
"""Saving a splice: what level extended shares must not be copied again."""


class AwareOptimizer:
    """Gives the parts of provider-aware files of one model; claims are found once for each wish."""

    def __init__(self, model: LeanModel, basic: LeanModel, shop: ConvertContext) -> None:
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
            return self._spliced(settings, wish, whole, plain)
        try:
            parts = saves(self.model, whole, settings, wish, self.shop)
            return replace(parts, notes=(*parts.notes, *self._held_against(whole, wish)))
        except RunnerError as error:
            if not wish.reference.optional:
                raise
            parts = self._spliced(settings, wish, whole, plain)
            return replace(parts, notes=(*parts.notes, f"it is spliced, because {error.what}: {error.why}"))

    def _held_against(self, whole: WholeGraph, wish: AwareSpec) -> tuple[str, ...]:
        """What a library claims otherwise than our rules; asked once for all levels."""
        if session_maker(wish) is not genuine_parts:
            return ()
        if wish not in self._differences:
            self._differences[wish] = tuple(library_differences(whole, wish, self.shop))
        return self._differences[wish]

    def _spliced(
        self, settings: SessionSettings, wish: AwareSpec, whole: WholeGraph, plain: Callable[[], OrtParts]
    ) -> OrtParts:
        same = settings.level is Level.BASIC and _same_nodes(whole.model, self.basic)
        if not wish.safe and (same or not whole.out_of_reach):
            made, notes = plain(), whole.notes
        else:
            spliced = splice(
                whole, settings.level, _installed(), lambda part, passes: self._run(part, passes, settings)
            )
            look = look_at(spliced, self.shop.folder)
            closed = [note for one in wish.providers for note in close_off(spliced, one, look)] if wish.safe else []
            made = to_parts(spliced, SAVE, self.shop)
            notes = (*whole.notes, *closed, *changed_claims(whole, spliced.proto, made.read().graph))
        return OrtParts(
            skeleton=made.skeleton,
            weights=made.weights,
            claimed=whole.claimed,
            notes=notes,
            aware_by=AwareBy(way=Way.SPLICED, rules=_borrowed_rules(wish)),
        )

    def _whole(self, wish: AwareSpec) -> WholeGraph:
        if wish not in self._wholes:
            self._wholes[wish] = find_claims(self.model, self.basic, wish, self.shop.folder)
        return self._wholes[wish]

    def _run(self, part: LeanModel, passes: Passes, settings: SessionSettings) -> LeanModel:
        """One session of a splice, with what the wanted settings say of the processor."""
        chosen = msgspec.structs.replace(
            settings,
            level=passes.level,
            aware=None,
            left_out=tuple(sorted(passes.left_out)),
            keep_shared_dq=passes.keep_shared_dq,
        )
        return optimize(part, chosen, self.shop)


Maker = Callable[[LeanModel, WholeGraph, SessionSettings, AwareSpec, ConvertContext], OrtParts]


def session_maker(wish: AwareSpec) -> Maker | None:
    """What has a session with the real provider save the file; None where it is spliced."""
    reference = wish.reference
    if reference is None:
        return None
    if reference.library:
        return None if reference.optional and not library_serves(wish) else genuine_parts
    return None if reference.optional and not installed_serves(wish) else installed_parts


def is_repeatable(wish: AwareSpec | None, made_by: AwareBy | None = None) -> bool:
    """Whether the same wish gives the same file another time.

    A library is known by its digest; a build of onnxruntime in this Python is not, nor is why a library gave up.
    """
    saves = session_maker(wish) if wish else None
    return saves is None or (saves is genuine_parts and (made_by is None or made_by.way is Way.LIBRARY))


def _borrowed_rules(wish: AwareSpec) -> str | msgspec.UnsetType:
    """The release whose rules decide where the wanted one has none of its own."""
    releases = [one.ort_release for one in wish.providers if not has_rules(one.ort_release)]
    return str(rules_of(releases[0])) if releases else msgspec.UNSET


def _installed() -> tuple[int, int]:
    import onnxruntime

    return line_of(onnxruntime.__version__)


def _same_nodes(first: LeanModel, second: LeanModel) -> bool:
    """Whether undoing what the CPU's session did beyond level basic changed nothing."""
    return _texts(first.proto) == _texts(second.proto)


def _texts(model: "ModelProto") -> list[bytes]:
    return [node.SerializeToString(deterministic=True) for node in model.graph.node]
