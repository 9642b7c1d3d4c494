"""Optimizes a model around what providers claim, with the stock onnxruntime (ep_rules H.2).

The claimed nodes stay as level basic left them. The remainder is cut out, optimized by sessions for the CPU with what
ran before switched off, and put back.
"""

from collections.abc import Collection
from dataclasses import replace

from pipeline.convert.splice.cast_cleanup import remove_duplicate_casts
from pipeline.convert.splice.cut import Part, cut, without_readers
from pipeline.convert.splice.given_up import given_up
from pipeline.convert.splice.layout import pushed_to
from pipeline.convert.splice.links import key
from pipeline.convert.splice.merge import merge
from pipeline.convert.splice.passes import MATMUL_ADD_SINCE, Passes, Run, claimed_pairs, layout_only, remainder
from pipeline.convert.splice.quant_cleanup import remove_cancelling_pairs
from pipeline.convert.splice.whole_graph import WholeGraph
from pipeline.core.variant import Level
from pipeline.model.onnx_model import LeanModel

QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear", "QLinearConv"})
GEMM_PREFIX = "gemm_"


def splice(whole: WholeGraph, level: Level, installed: tuple[int, int], run: Run) -> LeanModel:
    """The whole at a level from basic on, with its claimed nodes kept; `installed` is the release that `run` has.

    Its inputs, outputs and their order are the whole's. ModelError when onnxruntime refuses a part.
    """
    beyond = level is not Level.BASIC
    whole = _ready(whole) if beyond else whole
    kept = whole.kept - given_up(whole.graph, whole.kept) if beyond else whole.kept
    splicer = _Splicer(replace(whole, kept=kept), installed, run)
    result = merge(whole.model, [*splicer.untouched(fuse=beyond), splicer.remainder(level)])
    if beyond:
        remove_cancelling_pairs(result)
    remove_duplicate_casts(result, whole.graph, kept)
    return result


def _ready(whole: WholeGraph) -> WholeGraph:
    """The whole without initializer names that level extended's MatMulAddFusion would give once more."""
    import onnx

    from pipeline.partition.basic import rename_values

    names = {t.name: f"basic_{t.name}" for t in whole.model.proto.graph.initializer if t.name.startswith(GEMM_PREFIX)}
    if not names:
        return whole
    proto = onnx.ModelProto()
    proto.CopyFrom(whole.model.proto)
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    rename_values(proto.graph.node, lambda name: names.get(name, name))
    weights = {names.get(name, name): place for name, place in whole.model.weights.items()}
    return replace(whole, model=LeanModel(proto=proto, folder=whole.model.folder, weights=weights))


class _Splicer:
    """The parts of one model."""

    def __init__(self, whole: WholeGraph, installed: tuple[int, int], run: Run) -> None:
        self.whole = whole
        self.installed = installed
        self.run = run
        self.rest = frozenset(key(node) for node in whole.nodes) - whole.out_of_reach

    def remainder(self, level: Level) -> Part:
        """What the CPU runs, optimized; in two steps where layout passes meet quantized nodes."""
        quantized = any(node.op_type in QUANTIZED for node in self.whole.nodes if key(node) in self.rest)
        if level not in {Level.LAYOUT, Level.ALL} or not quantized:
            return self._optimized(self.rest, remainder(level, self.installed))
        first = self._optimized(self.rest, remainder(Level.EXTENDED, self.installed))
        merged = merge(self.whole.model, [*self.untouched(fuse=False), first])
        slices = pushed_to(merged.proto.graph, self.whole.graph, self.whole.kept)
        inside = frozenset(key(node) for node in first.model.proto.graph.node)
        again = cut(replace(self.whole, model=merged), inside, slices)
        second = without_readers(self.run(again, layout_only(level)), again)
        moved = {old: second.moved.get(new, new) for old, new in first.moved.items()}
        return Part(second.model, first.known, {**second.moved, **moved})

    def untouched(self, *, fuse: bool) -> list[Part]:
        """What is claimed, and what has claims in its bodies; `fuse` with the one fusion that takes claimed pairs."""
        found = {node.op_type for node in self.whole.nodes if key(node) in self.whole.kept}
        if not fuse or not {"MatMul", "Add"} <= found or self.installed < MATMUL_ADD_SINCE:
            return [self._as_it_is(self.whole.out_of_reach)]
        parts = [self._optimized(self.whole.kept, claimed_pairs())]
        if self.whole.closed:
            parts.append(self._as_it_is(self.whole.closed))
        return parts

    def _optimized(self, inside: Collection[str], passes: Passes) -> Part:
        part = cut(self.whole, inside)
        return without_readers(self.run(part, passes) if part.proto.graph.output else part, part)

    def _as_it_is(self, inside: Collection[str]) -> Part:
        part = cut(self.whole, inside)
        return without_readers(part, part)
