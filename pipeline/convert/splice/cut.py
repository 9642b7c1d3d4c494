"""Cuts parts out of a model, so that sessions optimize them as inside the whole (ep_rules H.2.3), and joins them again.

A value that the part gets from outside becomes a graph input. A value that is read outside gets, for each input there,
a reader that no optimizer looks through: it counts as the real reader would, while a graph output would not.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.convert.splice.claims import WholeGraph
from pipeline.convert.splice.edits import key, reads, sorted_nodes
from pipeline.model.onnx_model import ByteRange, LeanModel, range_digests
from pipeline.partition.basic import rename_values
from pipeline.partition.graph import DTYPES, FreshNames, Value
from pipeline.partition.ort_view import infer_symbols

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


PREFIX = "ort-mobile/border"
CODES = {name: code for code, name in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Reading:
    """One input outside a part: the value, and which of all such inputs it is."""

    value: str
    number: int

    @property
    def prefix(self) -> str:
        """What the names of its stand-in begin with."""
        return f"{PREFIX}{self.number}"


def cut(whole: WholeGraph, inside: Collection[str], slices: Collection[str] = ()) -> LeanModel:
    """The part of a model whose nodes are `inside`.

    Readers outside of the values in `slices` are Transposes behind a Slice that cannot be seen through: layout passes
    may then push Transposes towards them, and not beyond.
    """
    import onnx

    source = whole.model.proto
    nodes = [node for node in source.graph.node if key(node) in inside]
    part = onnx.ModelProto(ir_version=source.ir_version)
    part.opset_import.extend(source.opset_import)
    part.graph.name = source.graph.name
    part.graph.node.extend(nodes)
    made = {name for node in nodes for name in node.output if name}
    used = {name for node in nodes for name in reads(node)}
    _add_initializers(part.graph, source.graph, used)
    _add_inputs(part, whole, nodes, made)
    present = {tensor.name for tensor in part.graph.initializer} | {value.name for value in part.graph.input}
    part.graph.output.extend(value for value in source.graph.output if value.name in made | present)
    for reading in readings(whole, inside, made):
        _add_reader(part.graph, whole, reading, sliced=reading.value in slices)
    weights = {t.name: whole.model.weights[t.name] for t in part.graph.initializer if t.name in whole.model.weights}
    return LeanModel(proto=part, folder=whole.model.folder, weights=weights)


def _add_initializers(part: "GraphProto", source: "GraphProto", used: Collection[str]) -> None:
    part.initializer.extend(tensor for tensor in source.initializer if tensor.name in used)
    part.sparse_initializer.extend(sparse for sparse in source.sparse_initializer if sparse.values.name in used)


def _add_inputs(part: "ModelProto", whole: WholeGraph, nodes: "list[NodeProto]", made: Collection[str]) -> None:
    """The model's own inputs, and the values that come from outside with the types and shapes that they have there."""
    source = whole.model.proto.graph
    part.graph.input.extend(source.input)
    known = {tensor.name for tensor in part.graph.initializer} | {value.name for value in source.input} | set(made)
    known |= {sparse.values.name for sparse in part.graph.sparse_initializer}
    names = dict.fromkeys(name for node in nodes for name in reads(node) if name not in known)
    symbols = infer_symbols(whole.model.proto, names) if names else {}
    part.graph.input.extend(_declare(name, whole.graph.value(name), symbols.get(name, ())) for name in names)


def _declare(name: str, value: Value, symbols: tuple[int | str | None, ...]) -> "ValueInfoProto":
    import onnx

    code = CODES.get(value.dtype or "", 0)
    if value.shape is None:
        return onnx.helper.make_tensor_value_info(name, code, None)
    named = symbols if len(symbols) == len(value.shape) else (None,) * len(value.shape)
    dims = [known if known is not None else symbol for known, symbol in zip(value.shape, named, strict=True)]
    return onnx.helper.make_tensor_value_info(name, code, dims)


def readings(whole: WholeGraph, inside: Collection[str], made: Collection[str]) -> Iterator[Reading]:
    """Every input outside the part that reads a value of the part, or an input of the graph."""
    reachable = {value.name for value in whole.model.proto.graph.input} | set(made)
    number = 0
    for node in whole.nodes:
        for name in reads(node) if key(node) not in inside else ():
            if name in reachable:
                yield Reading(name, number)
                number += 1


def _add_reader(graph: "GraphProto", whole: WholeGraph, reading: Reading, *, sliced: bool) -> None:
    """A stand-in for a reader outside. Size has no f16 kernel and would get a Cast, so f16 values get a Shape."""
    import onnx

    kind = whole.graph.value(reading.value).dtype
    name, prefix = reading.value, reading.prefix
    if sliced:
        bounds = [f"{prefix}/{bound}" for bound in ("starts", "ends", "axes")]
        graph.input.extend(onnx.helper.make_tensor_value_info(b, onnx.TensorProto.INT64, [1]) for b in bounds)
        graph.node.add(op_type="Slice", input=[name, *bounds], output=[f"{prefix}/slice"])
        graph.node.add(op_type="Transpose", input=[f"{prefix}/slice"], output=[f"{prefix}/transpose"])
        name = f"{prefix}/transpose"
    graph.node.add(op_type="Shape" if kind == "f16" else "Size", input=[name], output=[f"{prefix}/out"])
    graph.output.append(onnx.helper.make_tensor_value_info(f"{prefix}/out", onnx.TensorProto.INT64, None))


@dataclass(frozen=True, slots=True)
class OptimizedPart:
    """A part as it comes out of a session. `known` are the values that its nodes made before.

    `moved` has new names of values that are read outside.
    """

    model: LeanModel
    known: frozenset[str]
    moved: Mapping[str, str]


def without_readers(model: LeanModel, before: LeanModel) -> OptimizedPart:
    """An optimized part without the stand-ins of readers outside, and what the session made for these alone.

    `before` is the part as it was cut out: what has a name there may be read outside. Where an optimizer took away what
    made such a value, and made the stand-in read another one, the real reader has to follow.
    """
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    known = frozenset(name for node in before.proto.graph.node for name in node.output if name)
    kept = _without_dead([node for node in proto.graph.node if not _is_stand_in(node)], proto.graph, known)
    outputs = [value for value in proto.graph.output if not value.name.startswith(PREFIX)]
    inputs = [value for value in proto.graph.input if not value.name.startswith(PREFIX)]
    moved = _moved(before.proto.graph, proto.graph)
    for field, values in (("node", kept), ("output", outputs), ("input", inputs)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        del getattr(proto.graph, field)[:]
        getattr(proto.graph, field).extend(copies)
    return OptimizedPart(LeanModel(proto=proto, folder=model.folder, weights=model.weights), known, moved)


def _moved(before: "GraphProto", after: "GraphProto") -> dict[str, str]:
    there = {name for node in after.node for name in node.output} | {value.name for value in after.input}
    old, new = _read_by_stand_ins(before), _read_by_stand_ins(after)
    return {old[out]: new[out] for out in old if old[out] not in there and out in new}


def _read_by_stand_ins(graph: "GraphProto") -> dict[str, str]:
    """The value that each stand-in reads in the end, by its output."""
    maker = {name: node for node in graph.node for name in node.output}
    found = {}
    for out in (value.name for value in graph.output if value.name.startswith(PREFIX)):
        name = out
        while name.startswith(PREFIX) and name in maker:
            name = maker[name].input[0]
        found[out] = name
    return found


def _without_dead(nodes: "list[NodeProto]", graph: "GraphProto", needed: Collection[str]) -> "list[NodeProto]":
    """The nodes, which are in topological order, without those that nobody reads."""
    read = {value.name for value in graph.output} | set(needed)
    kept = []
    for node in reversed(nodes):
        if not read.isdisjoint(node.output):
            read.update(reads(node))
            kept.append(node)
    return kept[::-1]


def _is_stand_in(node: "NodeProto") -> bool:
    return any(name.startswith(PREFIX) for name in node.output)


def merge(whole: LeanModel, parts: Sequence[OptimizedPart]) -> LeanModel:
    """One model of the nodes of all parts, with the inputs and outputs of the whole.

    The first part keeps its names; what later ones made anew is renamed where a name is taken: initializers that an
    optimizer rewrote under their old name, values and nodes of fusions.
    """
    import onnx

    proto = onnx.ModelProto()
    for field in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(proto, field, getattr(whole.proto, field))
    proto.metadata_props.extend(whole.proto.metadata_props)
    proto.graph.name = whole.proto.graph.name
    joiner = _Joiner(whole, proto)
    for part in parts:
        joiner.add(part.model, part.known)
    joiner.finish({old: new for part in parts for old, new in part.moved.items()})
    return LeanModel(proto=proto, folder=whole.folder, weights=joiner.weights)


class _Joiner:
    """Collects parts into one message."""

    def __init__(self, whole: LeanModel, proto: "ModelProto") -> None:
        self.whole = whole
        self.proto = proto
        self.tensors: dict[str, TensorProto] = {}
        self.weights: dict[str, ByteRange] = {}
        self.nodes: list[NodeProto] = []
        self.node_names: set[str] = set()
        self.imports = {entry.domain: entry.version for entry in whole.proto.opset_import}
        graph = whole.proto.graph
        self.values = {name for node in graph.node for name in node.output if name} | {v.name for v in graph.input}
        self.fresh = FreshNames()

    def add(self, part: LeanModel, own: Collection[str]) -> None:
        """Take a part's nodes, initializers and imports; its `own` values keep their names."""
        names: dict[str, str] = {}
        for tensor in part.proto.graph.initializer:
            self._add_tensor(part, tensor, names)
        for sparse in part.proto.graph.sparse_initializer:
            if sparse.values.name not in self.values:
                self.values.add(sparse.values.name)
                self.proto.graph.sparse_initializer.append(sparse)
        made = [name for node in part.proto.graph.node for name in node.output if name]
        for name in made:
            if name not in own and name in self.values:
                names[name] = self.fresh.take(name, self.values)
            self.values.add(names.get(name, name))
        for node in part.proto.graph.node:
            self._add_node(node, names)
        self.imports |= {entry.domain: entry.version for entry in part.proto.opset_import}

    def _add_tensor(self, part: LeanModel, tensor: "TensorProto", names: dict[str, str]) -> None:
        import onnx

        place = part.weights.get(tensor.name)
        name = tensor.name
        known = self.tensors.get(name)
        if known is not None and _equal(known, self.weights.get(name), tensor, place):
            return
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        if name in self.values:
            copy.name = names[name] = self.fresh.take(name, self.values)
        self.values.add(copy.name)
        self.tensors[copy.name] = copy
        if place is not None:
            self.weights[copy.name] = place

    def _add_node(self, node: "NodeProto", names: dict[str, str]) -> None:
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        if names:
            rename_values([copy], lambda name: names.get(name, name))
        if copy.name:
            if copy.name in self.node_names:
                copy.name = self.fresh.take(copy.name, self.node_names)
            self.node_names.add(copy.name)
        self.nodes.append(copy)

    def finish(self, moved: Mapping[str, str]) -> None:
        """Write everything into the message, nodes in an order of their edges; readers of moved values follow them."""
        source, graph = self.whole.proto.graph, self.proto.graph
        if moved:
            rename_values(self.nodes, lambda name: moved.get(name, name))
        graph.input.extend(source.input)
        graph.output.extend(source.output)
        self._keep_given_initializers(source)
        graph.node.extend(sorted_nodes(self.nodes))
        used = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
        used |= {value.name for value in graph.input}
        graph.initializer.extend(tensor for name, tensor in self.tensors.items() if name in used)
        self.weights = {name: place for name, place in self.weights.items() if name in used}
        for domain, version in self.imports.items():
            self.proto.opset_import.add(domain=domain, version=version)

    def _keep_given_initializers(self, source: "GraphProto") -> None:
        """An initializer that is a graph output, or that callers may override, belongs to no part."""
        named = {value.name for value in (*source.output, *source.input)} - self.tensors.keys()
        for tensor in source.initializer:
            if tensor.name in named:
                self.tensors[tensor.name] = tensor
                if tensor.name in self.whole.weights:
                    self.weights[tensor.name] = self.whole.weights[tensor.name]


def _equal(
    first: "TensorProto", first_place: ByteRange | None, second: "TensorProto", second_place: ByteRange | None
) -> bool:
    """Whether two tensors hold the same, wherever their bytes lie."""
    if (first.data_type, list(first.dims)) != (second.data_type, list(second.dims)):
        return False
    if first_place is None or second_place is None:
        return first_place is second_place and first.SerializeToString() == second.SerializeToString()
    if first_place == second_place:
        return True
    return (
        first_place.length == second_place.length and len(set(range_digests({first_place, second_place}).values())) == 1
    )
