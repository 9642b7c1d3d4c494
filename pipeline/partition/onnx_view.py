"""The view of an ONNX model: its own nodes, types and shapes of ONNX Runtime and schemas (ep_rules A.2 to A.5)."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core.errors import ModelError
from pipeline.model.types import CODES, SHORT_NAMES
from pipeline.partition.graph import Constant, Graph, Node, Value
from pipeline.partition.ort_view import infer, value_of

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    from pipeline.model import ort_format


DEFAULT_DOMAIN = ""

MICROSOFT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "GridSample": {"mode": "bilinear", "padding_mode": "zeros", "align_corners": 0},
    "QLinearAveragePool": {
        "auto_pad": "NOTSET",
        "ceil_mode": 0,
        "channels_last": 0,
        "count_include_pad": 0,
    },
    "QLinearGlobalAveragePool": {"channels_last": 0},
    "QuantizeLinear": {"axis": None},
}
"""Defaults of com.microsoft operators that a rule reads; ONNX's package does not know that domain."""


class Schema(NamedTuple):
    """What a node gets from its schema."""

    since_version: int
    defaults: Mapping[str, Any]


@lru_cache(maxsize=4096)
def schema(op_type: str, domain: str, opset: int) -> Schema:
    """The schema of an operator under an import; since_version 1 without defaults for ops that ONNX does not define.

    ONNX Runtime registers a few ops of its own in the default domain (LayerNormalization-1 and others): the same.
    """
    import onnx.defs

    try:
        definition = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        defaults_of_runtime = (
            MICROSOFT_DEFAULTS.get(op_type, {}) if domain == "com.microsoft" else _ORT_OWN.get(op_type, {})
        )
        return Schema(1, MappingProxyType(dict(defaults_of_runtime)))
    defaults = {
        name: attribute_value(attribute.default_value)
        for name, attribute in definition.attributes.items()
        if attribute.default_value.name
    }
    return Schema(definition.since_version, MappingProxyType(defaults))


_ORT_OWN: Mapping[str, Mapping[str, Any]] = {
    "LayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
}


def attribute_value(attribute: Any) -> Any:
    """A plain attribute as int, float, str or a tuple of them; None for tensors, graphs and types."""
    kind = attribute.type
    if kind == 1:
        return attribute.f
    if kind == 2:
        return attribute.i
    if kind == 3:
        return attribute.s.decode("utf-8", "replace")
    if kind == 6:
        return tuple(attribute.floats)
    if kind == 7:
        return tuple(attribute.ints)
    if kind == 8:
        return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
    return None


NEVER = frozenset({
    "Bernoulli", "CastLike", "CenterCropPad", "GroupNormalization", "HardSwish", "Mish", "NegativeLogLikelihoodLoss",
    "SequenceMap", "SoftmaxCrossEntropyLoss",
})  # fmt: skip
"""No kernel for any type."""

NOT_F16 = frozenset({
    "Elu", "Gelu", "GreaterOrEqual", "HardSigmoid", "LeakyRelu", "LessOrEqual", "LogSoftmax", "PRelu", "ReduceL1",
    "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "Relu", "Selu", "Softmax", "Softplus", "Softsign",
    "ThresholdedRelu",
})  # fmt: skip
"""No kernel for f16: inlined where the function's body fits the opset, else computed in f32 between Casts."""


def is_inlined(graph: Graph, node: Node) -> bool:
    """Whether the CPU cannot run a node of the default domain as it stands and uses its function's body."""
    if node.domain != "":
        return False
    first = graph.value(next(iter(node.inputs), ""))
    return node.op_type in NEVER or (node.op_type in NOT_F16 and first.dtype == "f16")


def schema_function(node: "NodeProto", imports: Mapping[str, int], graph: Graph) -> "FunctionProto | None":
    """The body of a node's function under the model's opset; None when its schema has none that fits it."""
    import onnx
    from onnx import defs

    opset = imports.get("", 1)
    definition: Any = defs.get_schema(node.op_type, opset, "")  # its stub lacks half of the methods
    if definition.has_function:
        versions = [version for version in definition.function_opset_versions if version <= opset]
        data = definition.get_function_with_opset_version(versions[-1]) if versions else b""
    elif definition.has_context_dependent_function:
        versions = [version for version in definition.context_dependent_function_opset_versions if version <= opset]
        types = [_type(graph, name) for name in node.input]
        data = (
            definition.get_context_dependent_function_with_opset_version(versions[-1], node.SerializeToString(), types)
            if versions
            else b""
        )
    else:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    function.attribute_proto.extend(a.default_value for a in definition.attributes.values() if a.default_value.name)
    fits = definition.has_context_dependent_function or _fits(function, versions[-1], opset) if data else False
    return function if fits else None


def _type(graph: Graph, name: str) -> bytes:
    import onnx

    value = graph.value(name)
    kind = onnx.TypeProto()
    kind.tensor_type.elem_type = CODES.get(value.dtype or "", 0)
    if value.shape is not None:
        kind.tensor_type.shape.SetInParent()
        for dim in value.shape:
            entry = kind.tensor_type.shape.dim.add()
            if dim is not None:
                entry.dim_value = dim
    return bytes(kind.SerializeToString())


def _fits(function: "FunctionProto", written_for: int, opset: int) -> bool:
    """Whether no operator of the body has changed between the opset it was written for and the model's."""
    return all(
        schema(node.op_type, "", written_for).since_version == schema(node.op_type, "", opset).since_version
        for node in function.node
    )


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
    saved: "Callable[[], ort_format.OrtGraph | None]" = lambda: None,
    outside: frozenset[str] | None = None,
) -> Graph:
    """The main graph of a model, with its bodies.

    `saved` gives the same graph from a saved ORT format file, for types inside bodies (A.4); it is read only when the
    model has control flow. `outside` names the initializers that count as external data (a lean model keeps others in
    its own file); None: the text of the error. Raises ModelError when ONNX Runtime cannot load the model.
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
        self, proto: "GraphProto", types: Mapping[str, Value], outer: Graph | None, saved: "ort_format.OrtGraph | None"
    ) -> Graph:
        """One graph; `types` are those of its values, `saved` is the same graph as ONNX Runtime saved it."""
        initializers = dict(self._initializers(proto))
        inputs = tuple(value.name for value in proto.input)
        values = {name: Value(c.dtype, c.dims) for name, c in initializers.items()}
        values |= {
            value.name: types.get(value.name, _declared(value)) if outer else _declared(value) for value in proto.input
        }
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

    def _body(self, body: "GraphProto", outer: Graph, saved: "ort_format.OrtGraph | None") -> Graph:
        types = {name: value_of(info) for name, info in saved.node_args.items()} if saved else {}
        return self.graph(body, types, outer, saved)

    def _node(self, index: int, proto: "NodeProto", graph: Graph, saved: "ort_format.OrtGraph | None") -> Node:
        domain = _domain(proto.domain)
        definition = schema(proto.op_type, domain, self.imports.get(domain, 1))
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
            since_version=definition.since_version,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes={
                **definition.defaults,
                **{a.name: self._constant(a.t) if a.type == 4 else attribute_value(a) for a in proto.attribute},
            },
            bodies=bodies,
            implicit_inputs=tuple(dict.fromkeys(name for body in bodies for name in free_names(body))),
        )

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
            dtype=SHORT_NAMES.get(tensor.data_type, str(tensor.data_type)),
            dims=tuple(tensor.dims),
            read=lambda: self.read(tensor),
            external=tensor.data_location == 1 if self.outside is None else tensor.name in self.outside,
            int64_field=len(tensor.int64_data) > 0,
        )

    def _sparse(self, sparse: Any) -> Constant:
        dims = tuple(sparse.dims)
        dtype = SHORT_NAMES.get(sparse.values.data_type, str(sparse.values.data_type))
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
    saved: "ort_format.OrtGraph | None", owner: "NodeProto", attribute: str, position: int
) -> "ort_format.OrtGraph | None":
    """The body in the saved graph that belongs to a node of the model: by the node's outputs and the attribute."""
    from pipeline.model.ort_format import OrtGraph

    holder = next((node for node in saved.nodes if node.outputs == tuple(owner.output)), None) if saved else None
    held = holder.attributes.get(attribute) if holder else None
    graphs = held.value if held and isinstance(held.value, tuple) else (held.value,) if held else ()
    body = graphs[position] if position < len(graphs) else None
    return body if isinstance(body, OrtGraph) else None


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
    dtype = SHORT_NAMES.get(tensor.elem_type)
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
