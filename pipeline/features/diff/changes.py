"""The graphs of two files, what they have in common, and the optimizers of ONNX Runtime that explain the rest.

A node is the same where operator and outputs are; else where all that leads to it is, whatever the names. What is left
falls into regions: nodes that are gone and new ones, joined by values that only one of the files has and by outputs
that both give, which is what a fusion keeps. OPTIMIZERS says by which operators a region shows who made it; names and
levels are those of ONNX Runtime, and tests/features/diff switches each off and sees its region go. `draw_diff` draws
both side by side.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

import msgspec

from pipeline.core import groups as counting
from pipeline.core.variant import Level
from pipeline.features.diff.graph import FileGraph, GraphNode, attribute_text

Shown: TypeAlias = tuple[tuple[frozenset[str], ...], frozenset[str], frozenset[str]]
"""The operators by which a region shows an optimizer: of each group of the first one is lost; one of the second is new,
one of the third was there before and is kept, where there are any.
"""


def _row(name: str, level: Level, lost: str, gained: str = "", kept: str = "") -> tuple[str, Shown]:
    groups = tuple(frozenset(group.split("|")) for group in lost.split())
    return f"{name} ({level})", (groups, frozenset(gained.split()), frozenset(kept.split()))


ACTIVATIONS = "Relu|Sigmoid|Tanh|LeakyRelu|Clip|HardSigmoid"
NCHWC = "com.microsoft.nchwc:"
MS = "com.microsoft:"
OPTIMIZERS: dict[str, Shown] = dict((
    _row("EliminateIdentity", Level.BASIC, "Identity"),
    _row("EliminateDropout", Level.BASIC, "Dropout"),
    _row("UnsqueezeElimination", Level.BASIC, "Unsqueeze"),
    _row("CastElimination", Level.BASIC, "Cast"),
    _row("ConvBNFusion", Level.BASIC, "BatchNormalization", "", "Conv"),
    _row("ConvAddFusion", Level.BASIC, "Add", "", "Conv"),
    _row("ConvMulFusion", Level.BASIC, "Mul", "", "Conv"),
    _row("Pad_Fusion", Level.BASIC, "Pad", "", "Conv MaxPool AveragePool"),
    _row("ClipQuantRewrite", Level.BASIC, "Clip", "", "QuantizeLinear"),
    _row("ReluQuantRewrite", Level.BASIC, "Relu", "", "QuantizeLinear"),
    _row("MatMulAddFusion", Level.BASIC, "MatMul Add", "Gemm"),
    _row("MatMul_BatchNormalization_Fusion", Level.BASIC, "MatMul BatchNormalization", "Gemm"),
    _row("GemmTransposeFusion", Level.BASIC, "Transpose", "", "Gemm"),
    _row("ReshapeFusion", Level.BASIC, "Concat", "", "Reshape"),
    _row("GeluFusionL1", Level.BASIC, "Erf", "Gelu"),
    _row("LayerNormFusionL1", Level.BASIC, "ReduceMean", "LayerNormalization"),
    _row("QDQSelectorActionTransformer", Level.EXTENDED, "DequantizeLinear",
         f"QLinearConv QLinearMatMul MatMulInteger {MS}QLinearAdd {MS}QLinearMul {MS}QLinearSigmoid {MS}QGemm "
         f"{MS}QLinearLeakyRelu {MS}QLinearAveragePool {MS}QLinearGlobalAveragePool {MS}QLinearSoftmax "
         f"{MS}QLinearConcat {MS}QLinearWhere {MS}MatMulIntegerToFloat {MS}MatMulNBits MaxPool Reshape"),
    _row("ConvActivationFusion", Level.EXTENDED, ACTIVATIONS, f"{MS}FusedConv {NCHWC}Conv {MS}NhwcFusedConv"),
    _row("GemmActivationFusion", Level.EXTENDED, ACTIVATIONS, f"{MS}FusedGemm"),
    _row("MatmulTransposeFusion", Level.EXTENDED, "Transpose", f"{MS}FusedMatMul"),
    _row("MatMulScaleFusion", Level.EXTENDED, "Mul|Div", f"{MS}FusedMatMul"),
    _row("GeluFusionL2", Level.EXTENDED, "Erf", f"{MS}Gelu {MS}BiasGelu"),
    _row("BiasGeluFusion", Level.EXTENDED, "Add", f"{MS}BiasGelu"),
    _row("FastGeluFusion", Level.EXTENDED, "Tanh", f"{MS}FastGelu"),
    _row("QuickGeluFusion", Level.EXTENDED, "Sigmoid Mul", f"{MS}QuickGelu"),
    _row("SkipLayerNormFusion", Level.EXTENDED, "Add",
         f"{MS}SkipLayerNormalization {MS}SkipSimplifiedLayerNormalization"),
    _row("SimplifiedLayerNormFusion", Level.EXTENDED, "ReduceMean", "SimplifiedLayerNormalization"),
    _row("AttentionFusion", Level.EXTENDED, "Softmax", f"{MS}Attention"),
    _row("DynamicQuantizeMatMulFusion", Level.EXTENDED, "MatMulInteger", f"{MS}DynamicQuantizeMatMul"),
    _row("NchwcTransformer", Level.LAYOUT, "",
         f"{NCHWC}Conv {NCHWC}MaxPool {NCHWC}AveragePool {NCHWC}GlobalAveragePool {NCHWC}GlobalMaxPool "
         f"{NCHWC}ReorderInput {NCHWC}ReorderOutput {NCHWC}Upsample"),
    _row("NhwcTransformer", Level.LAYOUT, "", f"{MS}NhwcMaxPool {MS}NhwcFusedConv {MS}QLinearConv"),
))  # fmt: skip
"""ONNX Runtime's optimizers by name with level."""

ChangedRegion: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]
"""Nodes that are gone and those in their place, by their places in the files; then the optimizers that did it, with
their levels, none where none is known.
"""


class GraphDiff(msgspec.Struct, frozen=True, kw_only=True):
    """All that differs. `same` counts nodes that are equal; `recorded` are fusions that the second file leaves to the
    device, by optimizer and action. `changed` are nodes that both files have: their places, and what differs in them.
    """

    regions: tuple[ChangedRegion, ...]
    changed: tuple[tuple[int, int, tuple[str, ...]], ...]
    same: int
    recorded: dict[str, int] = {}


Pairs: TypeAlias = dict[int, int]
"""Places of nodes of the first file to those of the second."""


def diff_graphs(before: FileGraph, after: FileGraph) -> GraphDiff:
    """What became of the first graph."""
    pairs = _pairs(before, after)
    regions = tuple(_regions(before, after, pairs))
    lost_values = {name for gone, _, _ in regions for index in gone for name in before.nodes[index].outputs}
    changed = []
    for a, b in pairs.items():
        what = tuple(_differences(before, after, before.nodes[a], after.nodes[b], lost_values))
        if what:
            changed.append((a, b, what))
    return GraphDiff(
        regions=regions, changed=tuple(changed), same=len(pairs) - len(changed), recorded=Counter(after.recorded)
    )


def _pairs(before: FileGraph, after: FileGraph) -> Pairs:
    """The nodes that are the same: by operator with outputs, with the first output, with all that leads to them."""
    pairs: Pairs = {}
    taken: set[int] = set()
    history = [_histories(graph) for graph in (before, after)]
    keys: tuple[Callable[[int, GraphNode, int], object], ...] = (
        lambda _side, node, _place: (node.operator, node.outputs),
        lambda _side, node, _place: (node.operator, node.outputs[:1]),
        lambda side, _node, index: history[side][index],
    )
    for key in keys:
        free = counting.grouped(
            (key(1, node, index), index) for index, node in enumerate(after.nodes) if index not in taken
        )
        for index, node in enumerate(before.nodes):
            alike = free.get(key(0, node, index)) if index not in pairs else None
            if alike:
                pairs[index] = alike.pop(0)
                taken.add(pairs[index])
    return dict(sorted(pairs.items()))


def _histories(graph: FileGraph) -> dict[int, int]:
    """For each node a number of all that leads to it: equal for equal graphs, whatever their values are called."""
    hashes: dict[int, int] = {}
    inputs = {name: index for index, name in enumerate(graph.inputs)}

    def number(name: str) -> object:
        producer = graph.producers.get(name)
        if producer is None:
            return graph.constants.get(name, inputs.get(name, name))
        return hashes[producer], graph.nodes[producer].outputs.index(name)

    stack = [(index, False) for index in reversed(range(len(graph.nodes)))]
    while stack:
        index, ready = stack.pop()
        node = graph.nodes[index]
        if ready:
            hashes[index] = hash((node.operator, tuple(sorted(node.attributes.items())), *map(number, node.inputs)))
        elif index not in hashes:
            hashes[index] = 0  # a hostile graph may go in circles
            stack.append((index, True))
            feeding = (graph.producers[name] for name in node.inputs if name in graph.producers)
            stack.extend((producer, False) for producer in feeding if producer not in hashes)
    return hashes


def _differences(before: FileGraph, after: FileGraph, a: GraphNode, b: GraphNode, explained: set[str]) -> Iterator[str]:
    """What is not the same in a pair. Inputs whose nodes are gone stand in the region of those."""
    import onnx

    for name in dict.fromkeys((*a.attributes, *b.attributes)):
        old, new = a.attributes.get(name, "absent"), b.attributes.get(name, "absent")
        default = None
        if old != new and "absent" in (old, new):  # sessions write defaults into the files that they save
            default = ""
            with suppress(onnx.defs.SchemaError):
                attribute = onnx.defs.get_schema(a.operator).attributes.get(name)
                if attribute and attribute.default_value.name:
                    default = attribute_text(onnx.helper.get_attribute_value(attribute.default_value))
        if old != new and default not in (old, new):
            yield f"{name}: {old} → {new}"
    for slot in range(max(len(a.inputs), len(b.inputs))):
        old, new = (node.inputs[slot] if slot < len(node.inputs) else "" for node in (a, b))
        constants = before.constants.get(old), after.constants.get(new)
        if any(constants):
            if constants[0] != constants[1] and old not in explained:
                yield f"input {slot}: {constants[0] or old or 'absent'} → {constants[1] or new or 'absent'}"
        elif bool(old) != bool(new):
            yield f"input {slot}: {old or 'absent'} → {new or 'absent'}"


def _regions(before: FileGraph, after: FileGraph, pairs: Pairs) -> Iterator[ChangedRegion]:
    """Regions in the order of the first nodes that are gone, then those that are all new."""
    matched = set(pairs.values())
    gone = [index for index in range(len(before.nodes)) if index not in pairs]
    new = [index for index in range(len(after.nodes)) if index not in matched]
    members = [(0, index) for index in gone] + [(1, index) for index in new]
    root = {member: member for member in members}

    def find(member: tuple[int, int]) -> tuple[int, int]:
        while root[member] != member:
            root[member] = member = root[root[member]]
        return member

    sides = (before, after)
    for side, graph in enumerate(sides):
        other = sides[1 - side]
        for index in (gone, new)[side]:
            for name in graph.nodes[index].inputs:
                producer = (side, graph.producers.get(name, -1))
                if producer in root and not other.has(name):
                    root[find((side, index))] = find(producer)
    givers = {name: (1, index) for index in new for name in after.nodes[index].outputs if name}
    for index in gone:
        for name in before.nodes[index].outputs:
            if name in givers:
                root[find((0, index))] = find(givers[name])
    for group in counting.grouped((find(member), member) for member in members).values():
        old, fresh = (tuple(index for side, index in group if side == wanted_side) for wanted_side in (0, 1))
        yield old, fresh, tuple(_makers(before, after, old, fresh))


def _makers(before: FileGraph, after: FileGraph, gone: Sequence[int], new: Sequence[int]) -> Iterator[str]:
    """The optimizers that a region shows, with their levels."""
    old = Counter(before.nodes[index].operator for index in gone)
    fresh = Counter(after.nodes[index].operator for index in new)
    lost, gained = old - fresh, fresh - old
    for text, (groups, makes, keeps) in OPTIMIZERS.items() if new else ():
        fits = all(_any_of(group, lost) for group in groups) and (not makes or _any_of(makes, gained))
        alone = set(lost) <= set().union(*groups)
        if fits and (_any_of(keeps, old) if keeps else makes or alone):
            yield text
    if {*lost, *gained} == {"Transpose"}:
        yield f"TransposeOptimizer ({Level.BASIC})"
    elif not new:
        yield from _removers(before, after, gone)


def _removers(before: FileGraph, after: FileGraph, gone: Sequence[int]) -> Iterator[str]:
    """The optimizers that removed nodes and put none in their place."""
    left = list(gone)
    for text, (groups, makes, keeps) in OPTIMIZERS.items():
        if groups and not makes and not keeps:
            kept = [index for index in left if before.nodes[index].operator not in groups[0]]
            if len(kept) < len(left):
                yield text
            left = kept

    def has_twin(node: GraphNode) -> bool:
        """Whether a node that stays does the same with the same inputs."""
        return any(
            (other.operator, other.inputs, other.attributes) == (node.operator, node.inputs, node.attributes)
            for index, other in enumerate(before.nodes)
            if index not in gone
        )

    if any(name in after.constants for index in left for name in before.nodes[index].outputs):
        yield f"ConstantFolding ({Level.BASIC})"
    elif left and all(has_twin(before.nodes[index]) for index in left):
        yield f"CommonSubexpressionElimination ({Level.BASIC})"


def _any_of(operators: Iterable[str], counted: Counter[str]) -> bool:
    return any(counted[operator] for operator in operators)
