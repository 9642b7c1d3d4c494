"""Optimizes a model around what providers claim, with the stock onnxruntime (ep_rules H.2).

The claimed nodes stay as level basic left them. The remainder is cut out, optimized by sessions for the CPU with what
ran before switched off, and put back.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipeline.convert.splice.claims import WholeGraph
from pipeline.convert.splice.cut import OptimizedPart, cut, merge, without_readers
from pipeline.convert.splice.edits import key, remove_cancelling_pairs, remove_duplicate_casts
from pipeline.core.errors import ModelError
from pipeline.core.variant import Level
from pipeline.model.onnx_model import LeanModel
from pipeline.model.ort_format import OrtGraph, OrtNode, Tensor
from pipeline.partition.basic import CAST_PREFIX
from pipeline.partition.graph import Graph, Node
from pipeline.partition.onnx_view import NEVER

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto


MOST_NAMED = 5


def changed_claims(whole: WholeGraph, spliced: "ModelProto", saved: OrtGraph) -> tuple[str, ...]:
    """Warnings about claimed nodes that saving changed; none when all are in the file as they were.

    Saving looks up a kernel of this computer's CPU for every node: half precision nodes without one are put between
    Casts, and functions without one are inlined (ep_rules H.4.13), so the phone may claim less. ModelError when a
    claimed node is gone or changed for any other reason, which would be a defect.
    """
    before = {key(node): node for node in whole.nodes if key(node) in whole.kept}
    kept = [node for node in spliced.graph.node if _is_same(before.get(key(node)), node)]
    found = {next((name for name in node.outputs if name), ""): node for node in saved.nodes}
    changed = [node for node in kept if not _is_saved(node, found.get(key(node)))]
    unexplained = [node for node in changed if not _explained(whole, node, found.get(key(node)))]
    if unexplained:
        raise ModelError(
            "a claimed node came out changed",
            why=_names(unexplained),
            remedy="report it with the model; level basic keeps every node as it is",
        )
    return tuple(_warnings(changed))


def _warnings(changed: "list[NodeProto]") -> Iterator[str]:
    if changed:
        yield (
            f"{len(changed)} claimed nodes have no kernel on this computer's CPU and are stored otherwise "
            f"({_names(changed)}): the phone's provider may claim less"
        )


def _names(nodes: "list[NodeProto]") -> str:
    shown = [f"{node.op_type} '{node.name or key(node)}'" for node in nodes[:MOST_NAMED]]
    return ", ".join(shown) + (" …" if len(nodes) > MOST_NAMED else "")


def _is_same(before: "NodeProto | None", node: "NodeProto") -> bool:
    """Whether a spliced node is a claimed one; those that were fused or cancelled on purpose are not."""
    return before is not None and (before.op_type, before.domain) == (node.op_type, node.domain)


def _is_saved(node: "NodeProto", saved: OrtNode | None) -> bool:
    if saved is None or (_domain(node.domain), node.op_type) != (_domain(saved.domain), saved.op_type):
        return False
    if _trimmed(node.input) != _trimmed(saved.inputs) or _trimmed(node.output) != _trimmed(saved.outputs):
        return False
    return all(_same_value(a, saved.attributes[a.name].value) for a in node.attribute if a.name in saved.attributes)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _trimmed(names: Any) -> list[str]:
    """Names of slots without the empty ones at the end."""
    found = list(names)
    while found and not found[-1]:
        found.pop()
    return found


def _same_value(attribute: "AttributeProto", saved: Any) -> bool:
    """Whether a plain attribute is the saved one; tensors and bodies are compared by nothing but being there."""
    from onnx import helper

    if isinstance(saved, (Tensor, OrtGraph)):
        return True
    value = helper.get_attribute_value(attribute)
    if isinstance(value, (list, tuple)) and isinstance(saved, tuple):
        return [_plain(part) for part in value] == [_plain(part) for part in saved]
    return bool(_plain(value) == _plain(saved))


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _explained(whole: WholeGraph, node: "NodeProto", saved: OrtNode | None) -> bool:
    """Whether the CPU's lack of a kernel explains a change."""
    names = [*node.input, *node.output, *(saved.inputs if saved else ()), *(saved.outputs if saved else ())]
    half = any(whole.graph.value(name).dtype in ("f16", "bf16") for name in names if name)
    return half or node.op_type in NEVER or any(name.startswith(CAST_PREFIX) for name in names)


def given_up(graph: Graph, kept: frozenset[str]) -> frozenset[str]:
    """First outputs of the kept nodes that the session of a real provider would lose to the CPU."""
    finder = _Finder(graph, kept)
    searches: tuple[Callable[[Node], Iterator[Node]], ...] = (
        finder.scaled_integer_product, finder.transposed_operand, finder.shape,
    )  # fmt: skip
    found = {node.first_output for search in searches for start in graph.nodes.values() for node in search(start)}
    return frozenset(found & kept)


class _Finder:
    """Patterns on one graph; each gives the nodes that the CPU takes along."""

    def __init__(self, graph: Graph, kept: frozenset[str]) -> None:
        self.graph = graph
        self.kept = kept

    def claimed(self, node: Node) -> bool:
        """Whether a provider claims the node."""
        return node.first_output in self.kept

    def producers(self, node: Node) -> list[Node]:
        """The nodes that a node reads from."""
        return [self.graph.nodes[edge.producer] for edge in self.graph.in_edges[node.index]]

    def consumers(self, node: Node) -> list[Node]:
        """The nodes that read a node's outputs, one entry an edge."""
        return [self.graph.nodes[edge.consumer] for edge in self.graph.out_edges[node.index]]

    def private(self, node: Node) -> bool:
        """Whether just one input elsewhere reads the node, and the graph does not give it."""
        return len(self.graph.out_edges[node.index]) == 1 and not self.graph.gives_output(node)

    def scaled_integer_product(self, product: Node) -> Iterator[Node]:
        """MatMulIntegerToFloat: Mul of a Mul with a Cast of a MatMulInteger; and the bias added behind it."""
        if product.op_type != "Mul" or self.claimed(product) or self.graph.value(product.outputs[0]).dtype == "f16":
            return
        for cast in self.producers(product):
            for scale in self.producers(product):
                if cast.op_type == "Cast" and scale.op_type == "Mul" and self._is_scaled(cast, scale):
                    yield from (cast, scale)
                    yield from self._bias(product)

    def _is_scaled(self, cast: Node, scale: Node) -> bool:
        integer = next(iter(self.producers(cast)), None)
        if integer is None or integer.op_type != "MatMulInteger":
            return False
        return all(self.private(node) for node in (cast, scale, integer))

    def _bias(self, product: Node) -> Iterator[Node]:
        if not self.private(product):
            return
        adding = self.consumers(product)[0]
        constants = [self.graph.constant(name) for name in adding.inputs if name]
        vectors = [c for c in constants if c and c.dims and c.dims[-1] > 1 and set(c.dims[:-1]) <= {1}]
        if adding.op_type == "Add" and vectors:
            yield adding

    def transposed_operand(self, node: Node) -> Iterator[Node]:
        """MatmulTransposeFusion: a Transpose of the last two dimensions that only MatMuls of the CPU read."""
        readers = self.consumers(node)
        if node.op_type != "Transpose" or not readers or self.graph.gives_output(node):
            return
        swaps = _swaps_last_two(node.attributes.get("perm"), self.graph.value(node.inputs[0]).shape)
        f32 = self.graph.value(node.outputs[0]).dtype == "f32"
        if swaps and f32 and all(r.op_type == "MatMul" and not self.claimed(r) for r in readers):
            yield node

    def shape(self, node: Node) -> Iterator[Node]:
        """GatherSliceToSplit skips what a Shape makes, and would not skip a graph input in its place."""
        if node.op_type == "Shape" and any(not self.claimed(reader) for reader in self.consumers(node)):
            yield node


def _swaps_last_two(perm: tuple[int, ...] | None, shape: tuple[int | None, ...] | None) -> bool:
    if perm is None:
        perm = tuple(reversed(range(len(shape)))) if shape is not None else ()
    rank = len(perm)
    return rank >= 2 and tuple(perm) == (*range(rank - 2), rank - 1, rank - 2)


SOURCES = frozenset({"Transpose", "QLinearConv"})
FIRST_INPUT = frozenset({
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not",
    "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt",
    "Tan", "Tanh", "ThresholdedRelu", "Clip", "Cast", "Dropout", "Softmax", "LogSoftmax", "Hardmax", "ReduceL1",
    "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "ArgMin", "ArgMax", "Pad", "Split", "Slice", "Squeeze", "Unsqueeze", "Tile", "MaxPool", "Resize",
    "QuantizeLinear", "DequantizeLinear", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearReduceMean",
    "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearSoftmax",
})  # fmt: skip
EVERY_INPUT = frozenset({
    "Add", "And", "BitShift", "Concat", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max",
    "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
})  # fmt: skip
FIRST_AND_FOURTH = frozenset({"QLinearAdd", "QLinearMul"})
"""Operators that Transposes can be pushed through, by the inputs that carry what is transposed."""


def lies_before_transpose(graph: "GraphProto") -> set[str]:
    """Values that lead to a Transpose, or will when the CPU's quantized convolutions have theirs."""
    found: set[str] = set()
    for node in reversed(graph.node):  # nodes are in topological order
        if node.op_type in SOURCES:
            found.add(node.input[0])
        if not found.isdisjoint(node.output):
            found.update(transposable(node))
    return found


def transposable(node: "NodeProto") -> list[str]:
    """The inputs of a node that a Transpose behind it could be pushed to."""
    if node.op_type in FIRST_INPUT:
        return list(node.input[:1])
    if node.op_type in EVERY_INPUT:
        return [name for name in node.input if name]
    return [node.input[slot] for slot in (0, 3)] if node.op_type in FIRST_AND_FOURTH else []


def pushed_to(graph: "GraphProto", view: Graph, kept: Collection[str]) -> frozenset[str]:
    """The f32 values that claimed nodes read and that layout passes would push Transposes to."""
    leads = lies_before_transpose(graph)
    claimed = [node for node in graph.node if key(node) in kept]
    return frozenset(name for node in claimed for name in _reached(node, leads) if view.value(name).dtype == "f32")


def _reached(node: "NodeProto", leads: Collection[str]) -> Iterable[str]:
    if node.op_type == "Transpose":
        return list(node.input[:1])
    return transposable(node) if any(name in leads for name in node.output) else ()


MATMUL_ADD = "MatMulAddFusion"
"""One name for two passes: that of level basic keeps attention patterns, the later one (from 1.23) asks no provider."""
FINAL_CLEANUP = "QDQFinalCleanupTransformer"
LEVEL_1 = frozenset({
    "Level1_RuleBasedTransformer", "DoubleQDQPairsRemover", "ConstantSharing", "CommonSubexpressionElimination",
    "ConstantFolding", "ReshapeFusion", "FreeDimensionOverrideTransformer", "GeluFusionL1", "LayerNormFusionL1",
    "QDQPropagationTransformer", "WeightBiasQuantization", "EnsureUniqueDQForNodeUnit", "TransposeOptimizer",
    "WhereDummyDq",
})  # fmt: skip
"""Level basic but for MATMUL_ADD. It ran before the claims, and is not idempotent on a graph that is cut."""
LEVEL_2 = frozenset({
    "Level2_RuleBasedTransformer", "TransposeOptimizer_CPUExecutionProvider", "QDQS8ToU8Transformer",
    "QDQSelectorActionTransformer", "GemmActivationFusion", "MatMulIntegerToFloatFusion", "DynamicQuantizeMatMulFusion",
    "ConvActivationFusion", "GeluFusionL2", "LayerNormFusionL2", "SimplifiedLayerNormFusion", "AttentionFusion",
    "EmbedLayerNormFusion", "GatherSliceToSplitFusion", "GatherToSliceFusion", "MatmulTransposeFusion",
    "BiasGeluFusion", "SkipLayerNormFusion", "BiasSkipLayerNormFusion", "FastGeluFusion", "QuickGeluFusion",
    "BiasSoftmaxFusion", "MatMulScaleFusion", "MatMulNBitsFusion", "DQMatMulNBitsFusion", "MatMulNBitsMlpFusion",
    "MatMulNBitsQkvFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion",
    "SliceConcatToSpaceToDepthFusion", "MatMulActivationFusion",
})  # fmt: skip
"""Level extended but for MATMUL_ADD and FINAL_CLEANUP."""
MATMUL_ADD_SINCE = (1, 23)
"""Since when level extended has a MATMUL_ADD of its own, which fuses claimed nodes too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """One session: its level, the optimizers it must not run, and whether shared DequantizeLinear nodes stay shared."""

    level: Level
    left_out: frozenset[str]
    keep_shared_dq: bool = False


Run = Callable[[LeanModel, Passes], LeanModel]
"""Optimizes a model for the CPU in a session of the installed onnxruntime; ModelError when it refuses."""


def remainder(level: Level, installed: tuple[int, int]) -> Passes:
    """For what the CPU runs: the wanted level without those below it that ran before."""
    if level is Level.BASIC:
        return Passes(level=level, left_out=LEVEL_1 | {MATMUL_ADD})
    early = frozenset({MATMUL_ADD}) if installed < MATMUL_ADD_SINCE else frozenset()
    return Passes(level=level, left_out=LEVEL_1 | {FINAL_CLEANUP} | early)


def layout_only(level: Level) -> Passes:
    """For a remainder that level extended has been through: what the levels above add to it."""
    return Passes(level=level, left_out=LEVEL_1 | LEVEL_2 | {MATMUL_ADD, FINAL_CLEANUP}, keep_shared_dq=True)


def claimed_pairs() -> Passes:
    """For what is claimed: only the one fusion of level extended that asks for no provider."""
    return Passes(level=Level.EXTENDED, left_out=LEVEL_1 | LEVEL_2 | {FINAL_CLEANUP})


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

    def remainder(self, level: Level) -> OptimizedPart:
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
        return OptimizedPart(second.model, first.known, {**second.moved, **moved})

    def untouched(self, *, fuse: bool) -> list[OptimizedPart]:
        """What is claimed, and what has claims in its bodies; `fuse` with the one fusion that takes claimed pairs."""
        found = {node.op_type for node in self.whole.nodes if key(node) in self.whole.kept}
        if not fuse or not {"MatMul", "Add"} <= found or self.installed < MATMUL_ADD_SINCE:
            return [self._as_it_is(self.whole.out_of_reach)]
        parts = [self._optimized(self.whole.kept, claimed_pairs())]
        if self.whole.closed:
            parts.append(self._as_it_is(self.whole.closed))
        return parts

    def _optimized(self, inside: Collection[str], passes: Passes) -> OptimizedPart:
        part = cut(self.whole, inside)
        return without_readers(self.run(part, passes) if part.proto.graph.output else part, part)

    def _as_it_is(self, inside: Collection[str]) -> OptimizedPart:
        part = cut(self.whole, inside)
        return without_readers(part, part)
