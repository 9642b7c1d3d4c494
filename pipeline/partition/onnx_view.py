"""The view of an ONNX model: its own nodes, with the types and shapes that ONNX Runtime infers (ep_rules A.4)."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ModelError
from pipeline.partition.graph import DTYPES, Constant, Graph, Node, Value
from pipeline.partition.ort_view import infer, value_of
from pipeline.partition.schemas import attribute_value, schema

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    from pipeline.model import ort_format

Reader = Callable[["TensorProto"], Any]
"""Gives the numbers of a tensor whose data may lie elsewhere."""


def read_tensor(tensor: "TensorProto") -> Any:
    """The numbers of a tensor that is whole in memory."""
    from onnx import numpy_helper

    if tensor.data_location == 1:
        raise ModelError(
            f"the numbers of initializer '{tensor.name}' lie in another file",
            remedy="save the model with its small initializers inside",
        )
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"initializer '{tensor.name}' is malformed", why=str(error)) from error


def view(
    model: "ModelProto",
    *,
    read: Reader = read_tensor,
    saved: "Callable[[], ort_format.Graph | None]" = lambda: None,
    outside: frozenset[str] | None = None,
) -> Graph:
    """The main graph of a model, with its bodies.

    `saved` gives the same graph from a saved ORT format file, for types inside bodies (A.4); it is asked only when the
    model has control flow. `outside` names the initializers that count as external data (a lean model keeps others in
    its own file); None: what the message says. Raises ModelError when ONNX Runtime cannot load the model.
    """
    types = infer(model)
    imports = {_domain(entry.domain): entry.version for entry in model.opset_import}
    has_bodies = any(True for node in model.graph.node for attribute in node.attribute for _ in _bodies(attribute))
    builder = _Builder(imports, model.ir_version, read, outside)
    return builder.graph(model.graph, types, None, saved() if has_bodies else None)


class _Builder:
    """What all graphs of one model share while their views are built."""

    def __init__(
        self, imports: Mapping[str, int], ir_version: int, read: Reader, outside: frozenset[str] | None
    ) -> None:
        self.imports = imports
        self.ir_version = ir_version
        self.read = read
        self.outside = outside

    def graph(
        self, proto: "GraphProto", types: Mapping[str, Value], outer: Graph | None, saved: "ort_format.Graph | None"
    ) -> Graph:
        """One graph; `types` are those of its values, `saved` is the same graph as ONNX Runtime saved it."""
        initializers = dict(self._initializers(proto))
        inputs = tuple(value.name for value in proto.input)
        values = {name: Value(c.dtype, c.dims) for name, c in initializers.items()}
        values |= {value.name: _input_value(value, types, outer) for value in proto.input}
        values |= {
            name: types.get(name, Value()) for node in proto.node for name in node.output if name and name not in values
        }
        replaceable = set(inputs) & set(initializers) if self.ir_version >= 4 else set()
        nodes: dict[int, Node] = {}
        graph = Graph(
            nodes=nodes,
            values=values,
            inputs=inputs,
            outputs=tuple(value.name for value in proto.output),
            initializers=initializers,
            overridable=frozenset(replaceable),
            outer=outer,
            opset=self.imports.get(""),
        )
        for node in proto.node:
            if not _is_constant(node):
                nodes[len(nodes)] = self._node(len(nodes), node, graph, saved)
        return graph

    def _body(self, body: "GraphProto", outer: Graph, saved: "ort_format.Graph | None") -> Graph:
        types = {name: value_of(info) for name, info in saved.node_args.items()} if saved else {}
        return self.graph(body, types, outer, saved)

    def _node(self, index: int, proto: "NodeProto", graph: Graph, saved: "ort_format.Graph | None") -> Node:
        domain = _domain(proto.domain)
        found = schema(proto.op_type, domain, self.imports.get(domain, 1))
        bodies = tuple(
            self._body(body, graph, _saved_body(saved, proto, attribute.name, position))
            for attribute in proto.attribute
            for position, body in enumerate(_bodies(attribute))
        )
        return Node(
            index=index,
            name=proto.name,
            op_type=proto.op_type,
            domain=domain,
            since_version=found.since_version,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes={**found.defaults, **{a.name: self._attribute(a) for a in proto.attribute}},
            bodies=bodies,
            implicit_inputs=tuple(dict.fromkeys(name for body in bodies for name in free_names(body))),
        )

    def _attribute(self, proto: Any) -> Any:
        return self._constant(proto.t) if proto.type == 4 else attribute_value(proto)

    def _initializers(self, proto: "GraphProto") -> Iterable[tuple[str, Constant]]:
        for tensor in proto.initializer:
            yield tensor.name, self._constant(tensor)
        for sparse in proto.sparse_initializer:
            yield sparse.values.name, self._sparse(sparse)
        for node in proto.node:
            if _is_constant(node):
                yield from self._constant_node(node)

    def _constant(self, tensor: "TensorProto") -> Constant:
        return Constant(
            dtype=DTYPES.get(tensor.data_type, str(tensor.data_type)),
            dims=tuple(tensor.dims),
            read=lambda: self.read(tensor),
            external=tensor.data_location == 1 if self.outside is None else tensor.name in self.outside,
            int64_field=len(tensor.int64_data) > 0,
        )

    def _sparse(self, sparse: Any) -> Constant:
        dims = tuple(sparse.dims)
        dtype = DTYPES.get(sparse.values.data_type, str(sparse.values.data_type))
        return Constant(dtype=dtype, dims=dims, read=lambda: _dense(self.read, sparse, dims))

    def _constant_node(self, node: "NodeProto") -> Iterable[tuple[str, Constant]]:
        """What ONNX Runtime makes of a Constant node when it loads it: an initializer."""
        for attribute in node.attribute:
            if attribute.name == "value":
                yield node.output[0], self._constant(attribute.t)
            elif attribute.name == "sparse_value":
                yield node.output[0], self._sparse(attribute.sparse_tensor)
            elif attribute.name.startswith("value_"):
                yield node.output[0], _plain_constant(attribute)


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _is_constant(node: "NodeProto") -> bool:
    return node.op_type == "Constant" and _domain(node.domain) == "" and len(node.output) > 0


def _saved_body(
    saved: "ort_format.Graph | None", owner: "NodeProto", attribute: str, position: int
) -> "ort_format.Graph | None":
    """The body in the saved graph that belongs to a node of the model: by the node's outputs and the attribute."""
    from pipeline.model.ort_format import Graph as OrtGraph

    found = next((node for node in saved.nodes if node.outputs == tuple(owner.output)), None) if saved else None
    held = found.attributes.get(attribute) if found else None
    graphs = held.value if held and isinstance(held.value, tuple) else (held.value,) if held else ()
    body = graphs[position] if position < len(graphs) else None
    return body if isinstance(body, OrtGraph) else None


def _input_value(value: "ValueInfoProto", types: Mapping[str, Value], outer: Graph | None) -> Value:
    """A graph input as declared; a body's input, which need not be declared, as ONNX Runtime inferred it."""
    return types.get(value.name, _declared(value)) if outer else _declared(value)


def _bodies(attribute: Any) -> "Iterable[GraphProto]":
    if attribute.type == 5:
        yield attribute.g
    elif attribute.type == 10:
        yield from attribute.graphs


def _declared(value: "ValueInfoProto") -> Value:
    """Type and shape of a graph input as the file has them; a negative dimension is dynamic (A.4)."""
    if not value.type.HasField("tensor_type"):
        return Value()
    tensor = value.type.tensor_type
    dtype = DTYPES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return Value(dtype, None)
    dims = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None for dim in tensor.shape.dim
    )
    return Value(dtype, dims)


def _plain_constant(attribute: Any) -> Constant:
    import numpy as np

    dtype, kind = {
        "value_float": ("f32", np.float32), "value_floats": ("f32", np.float32),
        "value_int": ("i64", np.int64), "value_ints": ("i64", np.int64),
    }.get(attribute.name, ("string", np.object_))  # fmt: skip
    content = attribute_value(attribute)
    dims = (len(content),) if isinstance(content, tuple) else ()
    return Constant(dtype=dtype, dims=dims, read=lambda: np.array(content, dtype=kind), int64_field=dtype == "i64")


def _dense(read: Reader, sparse: Any, dims: tuple[int, ...]) -> Any:
    import numpy as np

    entries, places = read(sparse.values), read(sparse.indices)
    dense = np.zeros(dims, dtype=entries.dtype)
    where = np.unravel_index(places, dims) if places.ndim == 1 else tuple(places.T)
    dense[where] = entries
    return dense


def free_names(body: Graph) -> tuple[str, ...]:
    """Values that a body, or a body inside it, reads from around it; each once, in the order of first reading."""
    names: dict[str, None] = {}
    for node in body.nodes.values():
        names.update(dict.fromkeys(name for name in (*node.inputs, *node.implicit_inputs) if name))
    names.update(dict.fromkeys(body.outputs))
    return tuple(name for name in names if name not in body.values)
