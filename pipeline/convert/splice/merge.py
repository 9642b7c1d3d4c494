"""Puts the parts of a model together again."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.convert.splice.cut import OptimizedPart
from pipeline.convert.splice.edits import reads, sorted_nodes
from pipeline.model.onnx_model import ByteRange, LeanModel, range_digests
from pipeline.partition.basic import rename_values
from pipeline.partition.graph import FreshNames

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto


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
