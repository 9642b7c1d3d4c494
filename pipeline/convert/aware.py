"""Optimizations that respect what execution providers claim: the splice, driven by sessions of this package."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from pipeline.convert.genuine import genuine_parts
from pipeline.convert.installed import INSTALLED, has_installed, installed_parts
from pipeline.convert.rules import SessionSettings, parse_release
from pipeline.convert.steps import OrtParts, Workshop, optimize, to_parts
from pipeline.onnx_model import LeanModel
from pipeline.splice.buildable import close_off
from pipeline.splice.claims import find_claims, look_at
from pipeline.splice.passes import Passes
from pipeline.splice.splicing import splice
from pipeline.splice.verify import changed_claims
from pipeline.splice.whole import Whole
from pipeline.splice.wish import Wish
from pipeline.variant import Level

if TYPE_CHECKING:
    from onnx import ModelProto

SAVE = SessionSettings(level=Level.NONE, keep_shared_dq=True)
"""Saving a splice: what level extended shares must not be copied again."""


class AwareOptimizer:
    """Gives the parts of provider-aware files of one model; claims are found once for each wish."""

    def __init__(self, model: LeanModel, basic: LeanModel, shop: Workshop) -> None:
        self.model = model
        self.basic = basic
        self.shop = shop
        self._wholes: dict[Wish, Whole] = {}

    def parts(self, settings: SessionSettings, wish: Wish, plain: Callable[[], OrtParts]) -> OrtParts:
        """The optimized model with its claims kept; `plain` makes the one for the CPU, which is it where none are.

        ModelError when onnxruntime refuses the model, or the phone would when it asks a provider.
        """
        whole = self._whole(wish)
        if wish.reference == INSTALLED or (wish.reference == AUTO and _serves(wish)):
            return installed_parts(self.model, whole, settings, wish, self.shop)
        if wish.reference not in ("", AUTO):
            return genuine_parts(self.model, whole, settings, wish, self.shop)
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
        return OrtParts(skeleton=made.skeleton, weights=made.weights, claimed=whole.claimed, notes=notes)

    def _whole(self, wish: Wish) -> Whole:
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


AUTO = "auto"
"""Let the installed onnxruntime save the file where it can, and splice elsewhere."""


def _serves(wish: Wish) -> bool:
    """Whether the installed onnxruntime can be told all that is wished for."""
    (one, *others) = wish.providers
    return not others and not wish.safe and not one.nnapi_flags and has_installed(one)


def _installed() -> tuple[int, int]:
    import onnxruntime

    return parse_release(onnxruntime.__version__)


def _same_nodes(first: LeanModel, second: LeanModel) -> bool:
    """Whether undoing what the CPU's session did beyond level basic changed nothing."""
    return _texts(first.proto) == _texts(second.proto)


def _texts(model: "ModelProto") -> list[bytes]:
    return [node.SerializeToString(deterministic=True) for node in model.graph.node]
