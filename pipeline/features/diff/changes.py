"""The graphs of two files, what they have in common, and the optimizers of ONNX Runtime that explain the rest.

A node is the same where operator and outputs are; else where all that leads to it is, whatever the names. What is left
falls into regions: nodes that are gone and new ones, joined by values that only one of the files has and by outputs
that both give, which is what a fusion keeps. OPTIMIZERS says by which operators a region shows who made it; names and
levels are those of ONNX Runtime, and tests/features/diff switches each off and sees its region go. `draw_diff` draws
both side by side.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from xml.sax.saxutils import escape

import msgspec

from device_runner import files as runner_files
from pipeline.core import files as storage
from pipeline.core import groups as counting
from pipeline.core.errors import ModelError
from pipeline.core.variant import Level
from pipeline.model import onnx_model, ort_format
from pipeline.model import types as onnx_types
from pipeline.model.sources import SourceModel
from pipeline.partition import placement as node_placement
from pipeline.partition import subject as partition_subject

if TYPE_CHECKING:
    import onnx


class GraphNode(NamedTuple):
    """A node. `operator` has its domain where that is not ONNX's own: `com.microsoft:FusedConv`.

    `bodies` are the graphs inside it, until `read_graph` puts their nodes beside the others.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, str]
    bodies: "tuple[FileGraph, ...]" = ()

    @property
    def label(self) -> str:
        """Its first output: names of new nodes differ from one run of onnxruntime to the next."""
        return next(filter(None, self.outputs), self.name)


@dataclass(frozen=True)
class FileGraph:
    """All nodes of a file; `constants` have type, shape and digest as text, `recorded` the fusions left to the device.

    Constant nodes are constants, as they are for every session.
    """

    nodes: tuple[GraphNode, ...]
    constants: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    recorded: tuple[str, ...] = ()

    @cached_property
    def producers(self) -> dict[str, int]:
        """The place of the node that gives each value."""
        return {name: place for place, node in enumerate(self.nodes) for name in node.outputs if name}

    @cached_property
    def edges(self) -> list[tuple[int, int]]:
        """(producer, consumer) by place."""
        produced = self.producers
        return list(
            dict.fromkeys(
                (produced[name], place)
                for place, node in enumerate(self.nodes)
                for name in node.inputs
                if produced.get(name, place) != place
            )
        )

    def has(self, value: str) -> bool:
        """Whether a value of that name is given by a node, is a constant or an input."""
        return value in self.producers or value in self.constants or value in self.inputs


def read_graph(source: SourceModel) -> FileGraph:
    """The graph of a file. ModelError for what is no model."""
    with storage.scratch() as work:
        subject = partition_subject.open_subject(source, work)
        if not isinstance(subject, Path):
            digests = onnx_model.range_digests(set(subject.weights.values()))
            large = {  # texts of the constants whose bytes lie in files
                tensor.name: _constant(tensor.data_type, tensor.dims, digests[subject.weights[tensor.name]])
                for tensor in subject.proto.graph.initializer
                if tensor.name in subject.weights
            }
            try:
                return _flat(_of_onnx(subject.proto.graph, large))
            except ValueError as error:  # of onnx, for an attribute that is none
                raise ModelError(
                    "not a usable ONNX model", where=source.name, why=str(error), remedy="export the model again"
                ) from error
        graph = ort_format.read_artifact(subject).graph
        records = tuple(
            f"{record.optimizer} {record.action}" for body in graph.walk() for record in body.runtime_optimizations
        )
        return _flat(_of_ort(graph, subject), records)


def _flat(body: FileGraph, recorded: tuple[str, ...] = ()) -> FileGraph:
    """The nodes of a graph and of the bodies inside it, whose values are named after the node around them."""
    nodes: list[GraphNode] = []
    constants: dict[str, str] = {}

    def add(body: FileGraph, outer: Mapping[str, str], prefix: str) -> None:
        defined = {name for node in body.nodes for name in node.outputs} | {*body.constants, *body.inputs}
        names = {**outer, **{name: prefix + name for name in defined if name}}
        constants.update((names[name], text) for name, text in body.constants.items() if name)
        for node in body.nodes:
            inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (node.inputs, node.outputs))
            nodes.append(node._replace(inputs=inputs, outputs=outputs, bodies=()))
            for place, graph in enumerate(node.bodies):
                add(graph, names, f"{next(filter(None, outputs), node.name)}/{place}/")

    add(body, {}, "")
    return FileGraph(tuple(_ordered(nodes, body.outputs)), constants, body.inputs, body.outputs, recorded)


def _ordered(nodes: Sequence[GraphNode], outputs: Iterable[str]) -> list[GraphNode]:
    """Producers first, depth first from the outputs: onnxruntime writes nodes of layout level in an order that changes
    from run to run. What gives no output, as in bodies, comes last in the order of the file.
    """
    producers = {name: place for place, node in enumerate(nodes) for name in node.outputs if name}
    ends = [producers[name] for name in outputs if name in producers]
    stack = [(place, False) for place in reversed(dict.fromkeys((*ends, *range(len(nodes)))))]
    seen: set[int] = set()
    order: list[GraphNode] = []
    while stack:
        place, ready = stack.pop()
        if ready:
            order.append(nodes[place])
        elif place not in seen:
            seen.add(place)
            stack.append((place, True))
            feeding = [producers[name] for name in nodes[place].inputs if name in producers]
            stack.extend((producer, False) for producer in reversed(feeding) if producer not in seen)
    return order


def _operator(domain: str, op_type: str) -> str:
    return f"{domain}:{op_type}" if domain not in ("", ort_format.DEFAULT_DOMAIN) else op_type


def _constant(data_type: int, dims: Iterable[int], digest: str) -> str:
    return f"{onnx_types.SHORT_NAMES.get(data_type, data_type)}[{','.join(map(str, dims))}] {digest[:12]}"


def _text_digest(strings: Iterable[bytes]) -> str:
    return hashlib.sha256(b"\0".join(strings)).hexdigest()


def _of_ort(graph: ort_format.OrtGraph, path: Path) -> FileGraph:
    def place(tensor: ort_format.Tensor) -> onnx_model.ByteRange:
        return onnx_model.ByteRange(file=path, offset=tensor.offset, length=tensor.length)

    tensors = [*graph.initializers.values(), *(sparse.values for sparse in graph.sparse_initializers.values())]
    digests = onnx_model.range_digests({place(tensor) for tensor in tensors})

    def text(value: Any) -> str:
        if isinstance(value, ort_format.Tensor):
            return _constant(value.data_type, value.dims, onnx_model.range_digests({place(value)})[place(value)])
        return attribute_text(value)

    return FileGraph(
        nodes=tuple(
            GraphNode(
                node.name,
                _operator(node.domain, node.op_type),
                node.inputs,
                node.outputs,
                {
                    name: text(entry.value)
                    for name, entry in node.attributes.items()
                    if entry.type not in (ort_format.GRAPH, ort_format.GRAPHS)
                },
                tuple(_of_ort(inner, path) for inner in node.subgraphs()),
            )
            for node in graph.nodes
        ),
        constants={
            tensor.name: _constant(
                tensor.data_type,
                tensor.dims,
                _text_digest(text.encode() for text in tensor.strings) if tensor.strings else digests[place(tensor)],
            )
            for tensor in tensors
        },
        inputs=graph.inputs,
        outputs=graph.outputs,
    )


def attribute_text(value: Any) -> str:
    """A number as 32 bits hold it, so that both formats give the same text."""
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, (list, tuple)) or (hasattr(value, "__len__") and not isinstance(value, (str, bytes))):
        return f"[{', '.join(map(attribute_text, value))}]"
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _tensor_text(tensor: "onnx.TensorProto") -> str:
    from pipeline.partition import graph as partition_graph

    if tensor.string_data:
        digest = _text_digest(tensor.string_data)
    else:
        data = tensor.raw_data if tensor.HasField("raw_data") else partition_graph.read_tensor(tensor).tobytes()
        digest = hashlib.sha256(data).hexdigest()
    return _constant(tensor.data_type, tensor.dims, digest)


def _of_onnx(graph: "onnx.GraphProto", large: Mapping[str, str]) -> FileGraph:
    import numpy as np
    import onnx

    constants = {t.name: large.get(t.name) or _tensor_text(t) for t in graph.initializer}
    constants |= {t.values.name: _tensor_text(t.values) for t in graph.sparse_initializer}
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    nodes: list[GraphNode] = []
    for node in graph.node:
        attributes: dict[str, str] = {}
        bodies: list[FileGraph] = []
        for entry in node.attribute:
            if entry.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                bodies += [_of_onnx(body, {}) for body in ([entry.g] if entry.HasField("g") else entry.graphs)]
            elif entry.type == onnx.AttributeProto.TENSOR:
                attributes[entry.name] = _tensor_text(entry.t)
            else:
                value = onnx.helper.get_attribute_value(entry)
                if node.op_type == "Constant" and entry.name in kinds:  # as the initializer that a session makes of it
                    value = _tensor_text(onnx.numpy_helper.from_array(np.asarray(value, kinds[entry.name])))
                attributes[entry.name] = attribute_text(value)
        if node.op_type == "Constant" and attributes and not bodies and len(node.output) == 1:
            constants[node.output[0]] = attributes[node.attribute[0].name]
        else:
            operator = _operator(node.domain, node.op_type)
            inputs, outputs = tuple(node.input), tuple(node.output)
            nodes.append(GraphNode(node.name, operator, inputs, outputs, attributes, tuple(bodies)))
    given = tuple(value.name for value in graph.input if value.name not in constants)
    return FileGraph(tuple(nodes), constants, given, tuple(value.name for value in graph.output))


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
    lost_values = {name for gone, _, _ in regions for place in gone for name in before.nodes[place].outputs}
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
        lambda side, _node, place: history[side][place],
    )
    for key in keys:
        free = counting.grouped(
            (key(1, node, place), place) for place, node in enumerate(after.nodes) if place not in taken
        )
        for place, node in enumerate(before.nodes):
            alike = free.get(key(0, node, place)) if place not in pairs else None
            if alike:
                pairs[place] = alike.pop(0)
                taken.add(pairs[place])
    return dict(sorted(pairs.items()))


def _histories(graph: FileGraph) -> dict[int, int]:
    """For each node a number of all that leads to it: equal for equal graphs, whatever their values are called."""
    hashes: dict[int, int] = {}
    inputs = {name: place for place, name in enumerate(graph.inputs)}

    def number(name: str) -> object:
        producer = graph.producers.get(name)
        if producer is None:
            return graph.constants.get(name, inputs.get(name, name))
        return hashes[producer], graph.nodes[producer].outputs.index(name)

    stack = [(place, False) for place in reversed(range(len(graph.nodes)))]
    while stack:
        place, ready = stack.pop()
        node = graph.nodes[place]
        if ready:
            hashes[place] = hash((node.operator, tuple(sorted(node.attributes.items())), *map(number, node.inputs)))
        elif place not in hashes:
            hashes[place] = 0  # a hostile graph may go in circles
            stack.append((place, True))
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
    gone = [place for place in range(len(before.nodes)) if place not in pairs]
    new = [place for place in range(len(after.nodes)) if place not in matched]
    members = [(0, place) for place in gone] + [(1, place) for place in new]
    root = {member: member for member in members}

    def find(member: tuple[int, int]) -> tuple[int, int]:
        while root[member] != member:
            root[member] = member = root[root[member]]
        return member

    sides = (before, after)
    for side, graph in enumerate(sides):
        other = sides[1 - side]
        for place in (gone, new)[side]:
            for name in graph.nodes[place].inputs:
                producer = (side, graph.producers.get(name, -1))
                if producer in root and not other.has(name):
                    root[find((side, place))] = find(producer)
    givers = {name: (1, place) for place in new for name in after.nodes[place].outputs if name}
    for place in gone:
        for name in before.nodes[place].outputs:
            if name in givers:
                root[find((0, place))] = find(givers[name])
    for group in counting.grouped((find(member), member) for member in members).values():
        old, fresh = (tuple(place for side, place in group if side == wanted_side) for wanted_side in (0, 1))
        yield old, fresh, tuple(_makers(before, after, old, fresh))


def _makers(before: FileGraph, after: FileGraph, gone: Sequence[int], new: Sequence[int]) -> Iterator[str]:
    """The optimizers that a region shows, with their levels."""
    old = Counter(before.nodes[place].operator for place in gone)
    fresh = Counter(after.nodes[place].operator for place in new)
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
            kept = [place for place in left if before.nodes[place].operator not in groups[0]]
            if len(kept) < len(left):
                yield text
            left = kept

    def has_twin(node: GraphNode) -> bool:
        """Whether a node that stays does the same with the same inputs."""
        return any(
            (other.operator, other.inputs, other.attributes) == (node.operator, node.inputs, node.attributes)
            for place, other in enumerate(before.nodes)
            if place not in gone
        )

    if any(name in after.constants for place in left for name in before.nodes[place].outputs):
        yield f"ConstantFolding ({Level.BASIC})"
    elif left and all(has_twin(before.nodes[place]) for place in left):
        yield f"CommonSubexpressionElimination ({Level.BASIC})"


def _any_of(operators: Iterable[str], counted: Counter[str]) -> bool:
    return any(counted[operator] for operator in operators)


BOX_HEIGHT, LAYER_HEIGHT, MARGIN, HEAD, BETWEEN = 40, 74, 32, 96, 60
MOST_NODES = 120
"""Above so many nodes of a file, a region is one box, and so is each connected run of nodes without change."""

MOST_BOXES = 600
LONGEST = 64
STYLE = """
text { font-family: 'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif; }
.title { font-size: 18px; font-weight: bold; fill: #1b1f24; }
.facts { font-size: 13px; fill: #4a525c; }
.op { font-size: 12.5px; font-weight: bold; text-anchor: middle; fill: #1b1f24; }
.name { font-size: 9.5px; text-anchor: middle; fill: #4a525c; }
rect.box { stroke-width: 1.4; }
.same rect { fill: #eef1f4; stroke: #98a2ad; }
.changed rect { fill: #fff3cd; stroke: #8a6d1b; }
.gone rect { fill: #fdecea; stroke: #b03a2e; stroke-dasharray: 5 3; } .gone .op { fill: #8e2a1e; }
.new rect { fill: #e3f4e8; stroke: #2f7d4f; stroke-width: 2.2; } .new .op { fill: #1e5c38; }
.edge { fill: none; stroke: #98a2ad; stroke-width: 1.3; }
"""
SAME, CHANGED = -1, -2


def draw_diff(before: FileGraph, after: FileGraph, change_set: GraphDiff, titles: tuple[str, str]) -> str:
    """The picture as an SVG document, sizes in pixels; a graph of over 600 boxes is one line that says so."""
    regions = dict(enumerate(change_set.regions, 1))
    sides = (
        (
            before,
            "gone",
            {place: n for n, (gone, _, _) in regions.items() for place in gone},
            {place: what for place, _, what in change_set.changed},
        ),
        (
            after,
            "new",
            {place: n for n, (_, new, _) in regions.items() for place in new},
            {place: what for _, place, what in change_set.changed},
        ),
    )
    makers = {number: ", ".join(name.partition(" ")[0] for name in by) for number, (_, _, by) in regions.items()}
    parts: list[str] = []
    left, height = float(MARGIN), 0.0
    for title, (graph, style, numbers, changes) in zip(titles, sides, strict=True):
        drawn, width, deep = _side(graph, style, numbers, changes, makers, left)
        parts.append(f'<text class="title" x="{left:.0f}" y="38">{_clean(title)}</text>')
        count = f"{counting.counted(len(graph.nodes), 'node')}, {len(numbers)} {style}"
        parts.append(f'<text class="facts" x="{left:.0f}" y="60">{_clean(count)}</text>')
        parts += drawn
        left += max(width, 11.0 * len(title)) + BETWEEN
        height = max(height, deep)
    left, height = left - BETWEEN + MARGIN, HEAD + height + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {left:.0f} {height:.0f}">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _side(
    graph: FileGraph,
    style: str,
    numbers: Mapping[int, int],
    changes: Mapping[int, Sequence[str]],
    makers: Mapping[int, str],
    left: float,
) -> tuple[list[str], float, float]:
    """One graph as SVG elements, its width and its height."""
    kinds = [numbers.get(place, CHANGED if place in changes else SAME) for place in range(len(graph.nodes))]
    if len(graph.nodes) > MOST_NODES:
        boxes_of_nodes, edges = node_placement.collapse(kinds, graph.edges)
        groups = [nodes for _, nodes in boxes_of_nodes]
    else:
        groups, edges = [(place,) for place in range(len(graph.nodes))], tuple(graph.edges)
    if len(groups) > MOST_BOXES:
        return [f'<text class="facts" x="{left:.0f}" y="{HEAD}">{len(groups)} boxes: too many to draw</text>'], 300, 20
    boxes = []
    for nodes in groups:
        kind = kinds[nodes[0]]
        operators = Counter(graph.nodes[place].operator for place in nodes)
        text = ", ".join(f"{name} {count}" if count > 1 else name for name, count in operators.most_common())
        label = graph.nodes[nodes[0]].label if len(nodes) == 1 else counting.counted(len(nodes), "node")
        why = "; ".join(what for place in nodes for what in changes.get(place, ()))
        why = f"{kind} {makers[kind]}".rstrip() if kind in makers else why
        shown = style if kind in makers else "changed" if kind == CHANGED else "same"
        # The CSS class, two lines, and what a pointer on it shows
        boxes.append((shown, _cut(text), _cut(why or label), " · ".join(filter(None, (text, label, why)))))
    widths = {
        place: max(node_placement.CHARACTER * len(head), node_placement.SMALL * len(line), 40.0) + 20.0
        for place, (_, head, line, _) in enumerate(boxes)
    }
    places, ways = node_placement.lay_out(widths, edges)
    low, high, layers = node_placement.extent(places, ways, widths)
    shift = left - low
    elements = [
        f'<path class="edge" d="{line}"/>'
        for line in node_placement.curves(ways, shift, HEAD, LAYER_HEIGHT, BOX_HEIGHT)
    ]
    for place, (middle, layer) in places.items():
        (shown, head, line, tip), width = boxes[place], widths[place]
        x, top = middle + shift, HEAD + layer * LAYER_HEIGHT
        rect = f'x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="7"'
        elements.append(
            f'<g class="{shown}"><title>{_clean(tip)}</title><rect class="box" {rect}/>'
            f'<text class="op" x="{x:.1f}" y="{top + 17:.1f}">{_clean(head)}</text>'
            f'<text class="name" x="{x:.1f}" y="{top + 31:.1f}">{_clean(line)}</text></g>'
        )
    return elements, high - low, layers * LAYER_HEIGHT


def _cut(text: str) -> str:
    text = runner_files.visible(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _clean(text: str) -> str:
    return escape(runner_files.visible(text))
