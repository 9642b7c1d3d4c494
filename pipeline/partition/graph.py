"""The graph as an execution provider sees it: plain values, so that rules never touch protobuf or flatbuffers.

A graph is made once of an ONNX model (`view`) or of an ORT format file (`view_of_file`), is never changed, and answers
every question of the rules: types and shapes as ONNX Runtime infers them, constants, attributes with the defaults of
their schemas, edges, order (ep_rules A.2 to A.5).
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.errors import ModelError
from pipeline.model import edit as onnx_edit
from pipeline.model import types as onnx_types
from pipeline.partition.types import Value

if TYPE_CHECKING:
    from pipeline.model import ort_format

import logging
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pipeline.core import ort_session
from pipeline.model import signature
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.types import UNKNOWN, bodies_in, infer, slim_copy

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    from pipeline.model import ort_format
    from pipeline.partition.units import Unit

log = logging.getLogger(__name__)


class Constant(msgspec.Struct, frozen=True):
    """An initializer: its type and dimensions at once, its numbers only when a rule asks for them.

    `external` marks data in a file of its own. `int64_field` is False when the numbers are stored as raw bytes, which
    one CoreML rule mistakes for an empty list (ep_rules E.4, ReduceMean). `read` may raise ModelError.
    """

    dtype: str
    dims: tuple[int, ...]
    read: Callable[[], "np.ndarray[Any, Any]"]
    external: bool = False
    int64_field: bool = False

    def numbers(self) -> list[Any]:
        """All entries in one flat list."""
        return self.read().reshape(-1).tolist()

    @property
    def count(self) -> int:
        """The number of entries."""
        return prod(self.dims)


class Edge(NamedTuple):
    """A value that goes from an output slot of one node to an input slot of another; fields sort as in A.8."""

    consumer: int
    source_slot: int
    input_slot: int
    producer: int


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `attributes` holds the defaults of the schema too (ep_rules A.5); tensors there are Constants.

    `index` orders nodes everywhere (A.8). `domain` is "" for ai.onnx. `implicit_inputs` are the outer values that the
    bodies read, each once. An input or output that is left out has the empty name.
    """

    index: int
    name: str
    op_type: str
    domain: str
    since_version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    bodies: tuple["Graph", ...] = ()
    implicit_inputs: tuple[str, ...] = ()

    @property
    def first_output(self) -> str:
        """The name by which answers call the node: its first output that is not left out."""
        for name in self.outputs:  # asked of every node, for each provider: no generator
            if name:
                return name
        return ""

    @property
    def label(self) -> str:
        """The node in words: its operator, and its name or first output."""
        return f"{self.op_type} '{self.name or self.first_output}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveStart:
    """What joining some units to groups begins with, by the index of a unit's target, whatever is claimed of them."""

    units: Sequence["Unit"]
    waiting: Mapping[int, int]
    """How many edges lead into a unit."""
    readers: Mapping[int, Sequence["Unit"]]
    """The units at the ends of the edges out of it."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph or a body of If, Loop, Scan. `nodes` by index; `initializers` includes the values of Constant nodes.

    `overridable` names initializers that a caller may replace: listed as graph inputs, IR version 4 or later (A.4).
    `outer` is the graph around a body. `opset` is the main graph's import of the default domain (None: not imported).
    One graph is judged many times: `units` keeps the units that it was divided into before, by what they depend on,
    `outlines` which of them look alike, `waves` what joining them to groups begins with, `groups` what they were joined
    to, by those that are refused, `claims` what providers claimed by their settings and `copies` how often that has
    values copied.
    """

    nodes: Mapping[int, Node]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Constant]
    overridable: frozenset[str] = frozenset()
    outer: "Graph | None" = None
    opset: int | None = None
    units: dict[object, tuple["Unit", ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    waves: dict[int, WaveStart] = field(default_factory=dict, init=False, repr=False, compare=False)
    outlines: dict[int, tuple[Sequence["Unit"], Sequence[Sequence["Unit"]]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    groups: dict[object, list[list[Node]]] = field(default_factory=dict, init=False, repr=False, compare=False)
    claims: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    copies: dict[object, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def value(self, name: str) -> Value:
        """Type and shape of a value, here or in an outer graph; UNKNOWN when nothing is known."""
        value = self.values.get(name)
        if value is not None:
            return value
        return self.outer.value(name) if self.outer else UNKNOWN

    def constant(self, name: str) -> Constant | None:
        """const(x) of ep_rules A.4: the initializer behind a name, unless it can be overridden."""
        initializer = self.initializers.get(name)
        if initializer is not None:
            return None if name in self.overridable else initializer
        if self.outer is None or name in self.values:
            return None
        return self.outer.constant(name)

    @cached_property
    def operators(self) -> frozenset[str]:
        """The operators of its nodes, whatever their domains; not those of bodies."""
        return frozenset(node.op_type for node in self.nodes.values())

    @cached_property
    def output_set(self) -> frozenset[str]:
        """The names of the graph's outputs."""
        return frozenset(self.outputs)

    @cached_property
    def producers(self) -> dict[str, tuple[int, int]]:
        """For each value made here: the node's index and the output slot."""
        return {
            name: (node.index, slot) for node in self.nodes.values() for slot, name in enumerate(node.outputs) if name
        }

    @cached_property
    def in_edges(self) -> dict[int, tuple[Edge, ...]]:
        """Edges into each node by input slot; slots behind the listed inputs are the implicit ones."""
        edges: dict[int, tuple[Edge, ...]] = {}
        for index, node in self.nodes.items():
            slots = enumerate((*node.inputs, *node.implicit_inputs))
            sources = ((slot, *self.producers[name]) for slot, name in slots if name in self.producers)
            edges[index] = tuple(Edge(index, source_slot, slot, producer) for slot, producer, source_slot in sources)
        return edges

    @cached_property
    def out_edges(self) -> dict[int, tuple[Edge, ...]]:
        """Edges out of each node, sorted as ONNX Runtime keeps them (A.8)."""
        edges: dict[int, list[Edge]] = {index: [] for index in self.nodes}
        for edge in (edge for into in self.in_edges.values() for edge in into):
            edges[edge.producer].append(edge)
        return {index: tuple(sorted(leaving)) for index, leaving in edges.items()}

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Node indices in ONNX Runtime's default topological order (A.8): depth first from the leaves."""
        order: list[int] = []
        visited: set[int] = set()
        stack = [(index, False) for index in sorted(self.nodes) if not self.out_edges[index]]
        while stack:
            index, leaving = stack.pop()
            if leaving:
                order.append(index)
            elif index not in visited:
                visited.add(index)
                stack.append((index, True))
                producers = {edge.producer for edge in self.in_edges[index]}
                stack.extend((producer, False) for producer in sorted(producers) if producer not in visited)
        return tuple(order)

    def gives_output(self, node: Node) -> bool:
        """Whether one of the node's outputs is an output of the graph."""
        return any(name in self.output_set for name in node.outputs)

    def with_nodes(self, nodes: Mapping[int, Node], values: Mapping[str, Value]) -> "Graph":
        """The same graph with other nodes; bodies keep seeing the old one, whose names they read."""
        return replace(self, nodes=nodes, values=values)


class FreshNames:
    """The one counter of a graph for new nodes and new values, never reset (ep_rules C.1)."""

    def __init__(self) -> None:
        self.counter = 0

    def take(self, base: str, taken: Container[str]) -> str:
        """The base itself, or with the next number that makes it new."""
        name = base
        while name in taken:
            name = f"{base}_token_{self.counter}"
            self.counter += 1
        return name


def named(nodes: Iterable[Node], most: int = 3) -> str:
    """The first nodes in words, and how many there are more; "" for none."""
    labels = [node.label for node in nodes]
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if len(labels) > most else "")


def outside_inputs(nodes: Iterable[Node]) -> list[str]:
    """Values that a group reads and has not made before, in the order of first reading, initializers included (B.4)."""
    written: set[str] = set()
    read: dict[str, None] = {}
    for node in nodes:
        read.update(dict.fromkeys(name for name in node.inputs if name and name not in written))
        written.update(node.outputs)
    return list(read)


def given_outside(graph: Graph, group: Iterable[Node], members: Container[int]) -> Iterator[str]:
    """Values of a group that others read or that the graph gives (B.4), perhaps more than once."""
    for node in group:
        for name in node.outputs:
            if name in graph.output_set:
                yield name
        for edge in graph.out_edges[node.index]:
            if edge.consumer not in members:
                yield node.outputs[edge.source_slot]


def bodies(graph: Graph) -> Iterator[tuple[Node, Graph]]:
    """Every body with the node that owns it, inner ones before outer ones, as ONNX Runtime asks (ep_rules A.2)."""
    for node in graph.nodes.values():
        for body in node.bodies:
            yield from bodies(body)
            yield node, body


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


@lru_cache(maxsize=4096)
def schema(op_type: str, domain: str, opset: int) -> tuple[int, Mapping[str, Any]]:
    """since_version and default attributes of an operator under an import; 1 and few for what ONNX does not define.

    ONNX Runtime registers a few ops of its own in the default domain (LayerNormalization-1 and others): the same.
    """
    import onnx.defs

    try:
        definition = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        of_domain = MICROSOFT_DEFAULTS if domain == "com.microsoft" else _ORT_OWN
        return 1, MappingProxyType(dict(of_domain.get(op_type, {})))
    defaults = {
        name: attribute_value(attribute.default_value)
        for name, attribute in definition.attributes.items()
        if attribute.default_value.name
    }
    return definition.since_version, MappingProxyType(defaults)


_ORT_OWN: Mapping[str, Mapping[str, Any]] = {
    "LayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
}


def attribute_value(attribute: Any) -> Any:
    """A plain attribute as int, float, str or a tuple of them; None for tensors, graphs and types."""
    match attribute.type:
        case 1:
            return attribute.f
        case 2:
            return attribute.i
        case 3:
            return attribute.s.decode("utf-8", "replace")
        case 6:
            return tuple(attribute.floats)
        case 7:
            return tuple(attribute.ints)
        case 8:
            return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
    return None


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
    imports = {onnx_edit.plain_domain(opset.domain): opset.version for opset in model.opset_import}
    has_bodies = any(True for node in model.graph.node for attribute in node.attribute for _ in bodies_in(attribute))
    builder = _Builder(imports, model.ir_version, read, outside)
    return builder.graph(model.graph, types, None, saved() if has_bodies else None)


class _Builder:
    """What all graphs of one ONNX model share while their views are built."""

    def __init__(
        self, imports: Mapping[str, int], ir_version: int, read: Reader, outside: frozenset[str] | None
    ) -> None:
        self.imports = imports
        self.ir_version = ir_version
        self.read = read
        self.outside = outside
        self.attributes: dict[Hashable, Mapping[str, Any]] = {}

    def graph(
        self, proto: "GraphProto", types: Mapping[str, Value], outer: Graph | None, saved: "ort_format.OrtGraph | None"
    ) -> Graph:
        """One graph; `types` are those of its values, `saved` is the same graph as ONNX Runtime saved it."""
        initializers = {tensor.name: self._constant(tensor) for tensor in proto.initializer}
        initializers |= {sparse.values.name: self._sparse(sparse) for sparse in proto.sparse_initializer}
        for node in filter(_is_constant, proto.node):
            initializers |= self._constant_node(node)
        inputs = tuple(value.name for value in proto.input)
        values = {name: Value(constant.dtype, constant.dims) for name, constant in initializers.items()}
        for value in proto.input:
            values[value.name] = types.get(value.name, declared_value(value)) if outer else declared_value(value)
        for name in (name for node in proto.node for name in node.output if name):
            values.setdefault(name, types.get(name, Value()))
        for node in proto.node if outer else ():  # a session on the CPU has Casts of its own behind those to half
            to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
            if node.op_type == "Cast" and to in onnx_types.SHORT_NAMES:
                values[node.output[0]] = Value(onnx_types.SHORT_NAMES[to], values[node.output[0]].shape)
        nodes: dict[int, Node] = {}
        graph = Graph(
            nodes=nodes,
            values=values,
            inputs=inputs,
            outputs=tuple(value.name for value in proto.output),
            initializers=initializers,
            overridable=frozenset(set(inputs) & set(initializers) if self.ir_version >= 4 else ()),
            outer=outer,
            opset=self.imports.get(""),
        )
        for node in proto.node:
            if not _is_constant(node):
                nodes[len(nodes)] = self._node(len(nodes), node, graph, saved)
        return graph

    def _node(self, index: int, proto: "NodeProto", graph: Graph, saved: "ort_format.OrtGraph | None") -> Node:
        domain = onnx_edit.plain_domain(proto.domain)
        since_version, attributes = schema(proto.op_type, domain, self.imports.get(domain, 1))
        bodies = []
        for attribute in proto.attribute:
            for position, body in enumerate(bodies_in(attribute)):
                from pipeline.model import ort_format

                # In the saved graph: by the node's outputs and the attribute
                outputs = tuple(proto.output)
                holder = next((node for node in saved.nodes if node.outputs == outputs), None) if saved else None
                held = holder.attributes.get(attribute.name) if holder else None
                graphs = held.value if held and isinstance(held.value, tuple) else (held.value,) if held else ()
                of_body = graphs[position] if position < len(graphs) else None
                saved_body = of_body if isinstance(of_body, ort_format.OrtGraph) else None
                types = {name: value_of_type(info) for name, info in saved_body.node_args.items()} if saved_body else {}
                bodies.append(self.graph(body, types, graph, saved_body))
        # What bodies, and bodies inside them, read from around them: each once, in the order of first reading
        implicit: dict[str, None] = {}
        for inside in bodies:
            read = (name for node in inside.nodes.values() for name in (*node.inputs, *node.implicit_inputs) if name)
            implicit |= dict.fromkeys(name for name in (*read, *inside.outputs) if name not in inside.values)
        return Node(
            index=index,
            name=proto.name,
            op_type=proto.op_type,
            domain=domain,
            since_version=since_version,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes=self._attributes(proto, attributes),
            bodies=tuple(bodies),
            implicit_inputs=tuple(implicit),
        )

    def _attributes(self, proto: "NodeProto", defaults: Mapping[str, Any]) -> Mapping[str, Any]:
        """A node's attributes with defaults: one object for all nodes that have the same, by which they are known."""
        plain = all(a.type not in WITH_PARTS for a in proto.attribute)
        if not plain or (proto.attribute and proto.ByteSize() > SHARED_BYTES):
            given = {a.name: self._constant(a.t) if a.type == 4 else attribute_value(a) for a in proto.attribute}
            return {**defaults, **given}
        key = (id(defaults), *(a.SerializeToString() for a in proto.attribute))  # `schema` keeps the defaults
        if key not in self.attributes:
            self.attributes[key] = {**defaults, **{a.name: attribute_value(a) for a in proto.attribute}}
        return self.attributes[key]

    def _constant(self, tensor: "TensorProto") -> Constant:
        return Constant(
            dtype=onnx_types.SHORT_NAMES.get(tensor.data_type, str(tensor.data_type)),
            dims=tuple(tensor.dims),
            read=lambda: self.read(tensor),
            external=tensor.data_location == 1 if self.outside is None else tensor.name in self.outside,
            int64_field=len(tensor.int64_data) > 0,
        )

    def _sparse(self, sparse: Any) -> Constant:
        dims = tuple(sparse.dims)
        dtype = onnx_types.SHORT_NAMES.get(sparse.values.data_type, str(sparse.values.data_type))
        return Constant(dtype=dtype, dims=dims, read=lambda: dense_content(self.read, sparse, dims))

    def _constant_node(self, node: "NodeProto") -> Iterable[tuple[str, Constant]]:
        """What ONNX Runtime makes of a Constant node when it loads it: an initializer."""
        for attribute in node.attribute:
            if attribute.name == "value":
                yield node.output[0], self._constant(attribute.t)
            elif attribute.name == "sparse_value":
                yield node.output[0], self._sparse(attribute.sparse_tensor)
            elif attribute.name.startswith("value_"):
                yield node.output[0], _plain_constant(attribute)


WITH_PARTS = (4, 5, 9, 10, 11, 12)
"""Kinds of attributes that hold messages: tensors and graphs, and lists of these."""
SHARED_BYTES = 2000
"""A node with so many bytes is not looked for among others: few have an attribute as long."""


def _is_constant(node: "NodeProto") -> bool:
    return node.op_type == "Constant" and onnx_edit.plain_domain(node.domain) == "" and len(node.output) > 0


def declared_value(value: "ValueInfoProto") -> Value:
    """Type and shape of a graph input as the file has them; symbolic dimensions have no size."""
    if not value.type.HasField("tensor_type"):
        return Value()
    tensor = value.type.tensor_type
    dtype = onnx_types.SHORT_NAMES.get(tensor.elem_type)
    if not tensor.HasField("shape"):
        return Value(dtype, None)
    axes = map(signature.declared_axis, tensor.shape.dim)
    return Value(dtype, tuple(axis if isinstance(axis, int) else None for axis in axes))


def _plain_constant(attribute: Any) -> Constant:
    import numpy as np

    dtype, kind = {
        "value_float": ("f32", np.float32),
        "value_floats": ("f32", np.float32),
        "value_int": ("i64", np.int64),
        "value_ints": ("i64", np.int64),
    }.get(attribute.name, ("string", np.object_))
    content = attribute_value(attribute)
    dims = (len(content),) if isinstance(content, tuple) else ()
    return Constant(dtype=dtype, dims=dims, read=lambda: np.array(content, dtype=kind), int64_field=dtype == "i64")


def tensor_reader(loaded: LeanModel) -> "Callable[[TensorProto], Any]":
    """Reads the numbers of the model's initializers by their messages, large ones from where they lie in a file."""
    weights = loaded.weights

    def read(tensor: "TensorProto") -> Any:
        import numpy as np

        span = weights.get(tensor.name) if tensor.data_location == 1 else None
        kind = onnx_types.NUMPY_KINDS.get(tensor.data_type)
        if span is None or kind is None:
            return read_tensor(tensor)
        count = span.length // np.dtype(kind).itemsize
        return np.fromfile(span.file, dtype=kind, count=count, offset=span.offset).reshape(tuple(tensor.dims))

    return read


def body_types(
    model: "ModelProto", work_folder: Path, unknown: Callable[[str], None] = log.warning
) -> "ort_format.OrtGraph | None":
    """The model as ONNX Runtime saves it in ORT format without optimization: types inside bodies are found there (A.4).

    None when the session cannot be made, which is reported to `unknown`: then nothing in a body is known or claimed.
    """
    from pipeline.model import ort_format

    target = work_folder / "bodies.ort"
    refusals: tuple[type[Exception], ...] = (ModelError, *ort_session.ort_errors())
    try:
        options = ort_session.session_options(save_to=target, config={"session.save_model_format": "ORT"})
        ort_session.make_session(slim_copy(model).SerializeToString(), options)
        return ort_format.read_ort(target).graph
    except refusals as error:
        unknown(f"nothing inside If, Loop and Scan counts as supported, because no session can be made: {error}")
        return None


def value_of_type(info: "ort_format.TypeInfo") -> Value:
    """Type and shape of a value as the file has them; symbolic dimensions are dynamic."""
    from pipeline.model import ort_format

    if not isinstance(info, ort_format.TensorType):
        return Value()
    dtype = onnx_types.SHORT_NAMES.get(info.elem_type)
    if info.shape is None:
        return Value(dtype, None)
    return Value(dtype, tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in info.shape))


def dense_content(read: Callable[[Any], Any], sparse: Any, dims: tuple[int, ...]) -> Any:
    """A sparse constant as an array; `read` gives its values and indices."""
    import numpy as np

    entries, places = read(sparse.values), read(sparse.indices)
    dense = np.zeros(dims, dtype=entries.dtype)
    where = np.unravel_index(places, dims) if places.ndim == 1 else tuple(places.T)
    dense[where] = entries
    return dense
