"""All optimizations that the variants of one model need, none of them twice."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import msgspec

from pipeline.convert.aware import AwareOptimizer
from pipeline.convert.cache import semantic_digest
from pipeline.convert.request import SessionSettings
from pipeline.convert.steps import (
    PLAIN,
    ConvertContext,
    OrtParts,
    changes_large_weights,
    optimize,
    to_parts,
    to_parts_whole,
)
from pipeline.core.variant import Level
from pipeline.model.guards import check_constants, check_structure, check_tensor_types, computed_constants, stored_bytes
from pipeline.model.onnx_model import ByteRange, LeanModel, range_digests
from pipeline.model.ort_format import OrtModel

BASIC = SessionSettings(level=Level.BASIC)
BASIC_AGAIN = SessionSettings(level=Level.BASIC, keep_constants=True)
FLOAT16, BFLOAT16 = 10, 16


class Optimizer:
    """Gives the parts of the ORT format file for each optimization of one model."""

    def __init__(self, model: LeanModel, shop: ConvertContext) -> None:
        self.model = model
        self.shop = shop
        self._digests: dict[ByteRange, str] = {}
        hasher = ThreadPoolExecutor(1)
        self._first = hasher.submit(range_digests, set(model.weights.values()))  # while onnxruntime optimizes
        hasher.shutdown(wait=False)

    def parts(self, settings: SessionSettings) -> OrtParts:
        """The optimized model, ready to be written. ModelError when onnxruntime refuses it."""
        if settings.aware:
            plain = msgspec.structs.replace(settings, aware=None)
            return self._aware.parts(settings, settings.aware, lambda: self.parts(plain))
        if settings.level is Level.NONE:
            return self._plain
        if not self.model.weights:
            return to_parts(self.model, settings, self.shop)
        if settings.level is Level.BASIC:
            return self._basic_parts
        if settings.save_records:
            return self._recorded(settings)
        start = self._start
        again = msgspec.structs.replace(settings, keep_constants=start is not self.model)
        return to_parts(optimize(start, again, self.shop), PLAIN, self.shop)

    def check(self) -> None:
        """ModelError for what would keep onnxruntime busy without end, or no ORT file can hold (see guards)."""
        check_tensor_types(self.model.proto, self.shop.where)
        check_structure(self.model.proto, self.shop.where)
        computed = computed_constants(self.model.proto.graph)
        if computed:
            typed = self._plain.read().graph.node_args
            check_constants(computed, lambda name: stored_bytes(typed.get(name)), self.shop.where)

    def digests(self, weights: Mapping[str, ByteRange]) -> dict[str, str]:
        """sha256 of the bytes of weights, by name; each range is read once, those of the model from the start on."""
        self._digests |= self._first.result()
        self._digests |= range_digests(set(weights.values()) - self._digests.keys())
        return {name: self._digests[place] for name, place in weights.items()}

    def known(self, parts: OrtParts) -> dict[str, str]:
        """Digests of the weights behind a skeleton, by name."""
        return self.digests({weight.name: weight.place for weight in parts.weights})

    @cached_property
    def _plain(self) -> OrtParts:
        return to_parts(self.model, PLAIN, self.shop)

    @cached_property
    def _basic(self) -> LeanModel:
        return optimize(self.model, BASIC, self.shop)

    @cached_property
    def _aware(self) -> AwareOptimizer:
        return AwareOptimizer(self.model, self._basic, self.shop)

    @cached_property
    def _basic_parts(self) -> OrtParts:
        return to_parts(self._basic, PLAIN, self.shop)

    @cached_property
    def _start(self) -> LeanModel:
        """Where levels above basic begin: the model, or the basic result when that saves folding large weights again.

        Level extended is level basic and more. Beginning with a basic result is the same when a second basic
        optimization finds nothing to do, and when saving added nothing: for half precision types onnxruntime inserts
        Casts at the very end, which a second pass would take for the model's own.
        """
        if not changes_large_weights(self.model) or _has_half(self.model):
            return self.model
        again = to_parts(optimize(self._basic, BASIC_AGAIN, self.shop), PLAIN, self.shop)
        return self._basic if self._graph_digest(again) == self._graph_digest(self._basic_parts) else self.model

    def _recorded(self, settings: SessionSettings) -> OrtParts:
        """Runtime style: the basic graph with the fusions that the session would make of it as records.

        The session optimizes the basic graph once more at basic level; where that changes it, or half precision Casts
        are about, the whole way from the model is taken.
        """
        if not _has_half(self.model):
            again = msgspec.structs.replace(settings, keep_constants=True)
            parts = to_parts(self._basic, again, self.shop)
            if self._graph_digest(parts) == self._graph_digest(self._basic_parts):
                return parts
        return to_parts_whole(self.model, settings, self.shop)

    def _graph_digest(self, parts: OrtParts) -> str:
        """The semantic digest without records."""
        model = parts.read()
        graph = msgspec.structs.replace(model.graph, runtime_optimizations=())
        bare: OrtModel = msgspec.structs.replace(model, graph=graph)
        return semantic_digest(bare, parts.skeleton, self.known(parts))


def _has_half(model: LeanModel) -> bool:
    """Whether 16-bit floats occur among initializers, inputs, outputs or Casts."""
    graph = model.proto.graph
    types = {t.data_type for t in graph.initializer}
    types |= {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    casts = (a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to")
    return not types.isdisjoint((FLOAT16, BFLOAT16)) or any(to in {FLOAT16, BFLOAT16} for to in casts)
