"""A model's graph as rules see it, of an ONNX model or an ORT format file (ep_rules A.2 to A.5).

Types and shapes are those that ONNX Runtime infers, attributes have the defaults of their schemas.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from device_runner.failures import Topic, text_of_message
from device_runner.files import open_regular
from pipeline.core.errors import ConfigError, ModelError
from pipeline.core.files import share_file, storage_errors
from pipeline.core.ort_session import HostSession, load_session, make_session, ort_errors
from pipeline.dataset.guess import assignments, units, with_sums
from pipeline.model.edit import copied
from pipeline.model.guards import check_constants, check_structure, computed_constants, shaped_bytes
from pipeline.model.onnx_model import LeanModel, LoadedModel, fix_dimensions, load_model, read_in
from pipeline.model.signature import names_of, open_axes, own_inputs, resolve_dimensions
from pipeline.model.sources import SourceModel, Spool
from pipeline.model.types import CODES, NUMPY_KINDS, SHORT_BY_ORT, SHORT_NAMES
from pipeline.partition.answer import NO_SIZES
from pipeline.partition.graph import Constant, Graph, Node, Value

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

    from pipeline.model import ort_format

LARGE_BYTES = 4096
"""Initializers above this are given to ONNX Runtime as graph inputs: no shape depends on that many numbers."""


def infer(model: "ModelProto") -> dict[str, Value]:
    """Types and shapes of every output of every node of the main graph; raises ModelError when ORT refuses the model.

    The model is not changed; its large initializers need not hold their data.
    """
    slim = slim_copy(model)
    declared = {value.name for value in slim.graph.output}
    names = list(dict.fromkeys(name for node in slim.graph.node for name in node.output if name))
    for name in names:
        if name not in declared:
            slim.graph.output.add().name = name
    values = _load(slim.SerializeToString())
    # Scalars and values of unknown rank both show as []: Shape(x) has length 0 only for a scalar (A.4).
    doubtful = [name for name in names if name in values and values[name].dtype and values[name].shape == ()]
    if doubtful:
        probe = "ort-mobile/shape of "
        for name in doubtful:
            slim.graph.node.add(op_type="Shape", input=[name], output=[probe + name])
            slim.graph.output.add().name = probe + name
        lengths = _load(slim.SerializeToString())
        for name in doubtful:
            values[name] = Value(values[name].dtype, () if lengths[probe + name].shape == (0,) else None)
    return values


def slim_copy(model: "ModelProto") -> "ModelProto":
    """A copy in which large initializers are graph inputs of the same type and shape, without their data."""
    import onnx

    slim = onnx.ModelProto(ir_version=model.ir_version)
    slim.opset_import.extend(model.opset_import)
    slim.functions.extend(model.functions)
    graph, source = slim.graph, model.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    graph.sparse_initializer.extend(source.sparse_initializer)
    present = {value.name for value in source.input}
    for tensor in source.initializer:
        # No shape depends on a longer initializer, nor on one in a file of its own.
        if prod(tensor.dims) <= LARGE_BYTES // 8 and tensor.data_location != tensor.EXTERNAL:
            graph.initializer.append(tensor)
        elif tensor.name not in present:
            value = graph.input.add(name=tensor.name)
            value.type.tensor_type.elem_type = tensor.data_type
            value.type.tensor_type.shape.SetInParent()
            for dim in tensor.dims:
                value.type.tensor_type.shape.dim.add().dim_value = dim
    return slim


def _load(data: bytes) -> dict[str, Value]:
    """Types and shapes of the outputs of a session that is loaded and never initialized."""
    try:
        outputs: list[Any] = load_session(data, HostSession()).outputs_meta
    except ort_errors() as error:
        raise refused(error) from error
    return {meta.name: _value(meta.type, meta.shape) for meta in outputs}


def refused(error: Exception, what: str = "ONNX Runtime cannot load the model") -> ModelError:
    """ONNX Runtime's complaint about a model as an error of ours, with the cause and remedy of a known one."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    explanation = text_of_message(text, Topic.MODEL)
    return ModelError(
        explanation.cause if explanation else what,
        why=text[:2000],
        remedy=explanation.remedy if explanation else "fix what it names; onnx.checker.check_model often has details",
    )


def _value(kind: str, shape: Iterable[Any]) -> Value:
    match = re.fullmatch(r"tensor\((\w+)\)", kind)
    if match is None:
        return Value(None, None)
    return Value(
        SHORT_BY_ORT.get(match[1], match[1]), tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in shape)
    )


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
    imports = {_domain(entry.domain): entry.version for entry in model.opset_import}
    has_bodies = any(True for node in model.graph.node for attribute in node.attribute for _ in _bodies(attribute))
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

    def graph(
        self, proto: "GraphProto", types: Mapping[str, Value], outer: Graph | None, saved: "ort_format.OrtGraph | None"
    ) -> Graph:
        """One graph; `types` are those of its values, `saved` is the same graph as ONNX Runtime saved it."""
        initializers = dict(self._initializers(proto))
        inputs = tuple(value.name for value in proto.input)
        values = {name: Value(constant.dtype, constant.dims) for name, constant in initializers.items()}
        for value in proto.input:
            values[value.name] = types.get(value.name, _declared(value)) if outer else _declared(value)
        for name in (name for node in proto.node for name in node.output if name):
            values.setdefault(name, types.get(name, Value()))
        for node in proto.node if outer else ():  # a session on the CPU has Casts of its own behind those to half
            to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)
            if node.op_type == "Cast" and to in SHORT_NAMES:
                values[node.output[0]] = Value(SHORT_NAMES[to], values[node.output[0]].shape)
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
        domain = _domain(proto.domain)
        since_version, attributes = schema(proto.op_type, domain, self.imports.get(domain, 1))
        bodies = []
        for attribute in proto.attribute:
            for position, body in enumerate(_bodies(attribute)):
                saved_body = _saved_body(saved, proto, attribute.name, position)
                types = {name: _value_of(info) for name, info in saved_body.node_args.items()} if saved_body else {}
                bodies.append(self.graph(body, types, graph, saved_body))
        given = {a.name: self._constant(a.t) if a.type == 4 else attribute_value(a) for a in proto.attribute}
        return Node(
            index=index,
            name=proto.name,
            op_type=proto.op_type,
            domain=domain,
            since_version=since_version,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes={**attributes, **given},
            bodies=tuple(bodies),
            implicit_inputs=tuple(dict.fromkeys(name for body in bodies for name in _free_names(body))),
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


def _free_names(body: Graph) -> tuple[str, ...]:
    """Values that a body, or a body inside it, reads from around it; each once, in the order of first reading."""
    names: dict[str, None] = {}
    for node in body.nodes.values():
        names.update(dict.fromkeys(name for name in (*node.inputs, *node.implicit_inputs) if name))
    names.update(dict.fromkeys(body.outputs))
    return tuple(name for name in names if name not in body.values)


def view_of_file(path: Path) -> Graph:
    """The main graph of a model file of either format, with its bodies. Raises ModelError for what is no whole file."""
    from pipeline.model.ort_format import read_artifact

    model = read_artifact(path)
    # ModelError for an operator that neither ONNX nor ONNX Runtime defines in a domain of theirs
    from onnx import defs

    asked = {(node.domain, node.op_type) for part in model.graph.walk() for node in part.nodes}
    strange = {
        (domain, op)
        for domain, op in asked
        if domain in KNOWN_DOMAINS and not defs.has(op, "" if domain == "ai.onnx" else domain)
    }
    registered: set[tuple[str, str]] = set()
    if strange:  # the installed onnxruntime knows more than onnx: operators of its own
        from onnxruntime.capi import onnxruntime_pybind11_state as runtime

        registered = {(schema.domain, schema.name) for schema in runtime.get_all_operator_schema()}
    for domain, op in sorted(strange - registered):
        raise ModelError(
            f"no release of ONNX Runtime has an operator {op[:60]!r}",
            where=str(path),
            why=f"it stands in the file in the domain {domain or 'ai.onnx'!r}",
            remedy="the file is damaged: convert the model again",
        )
    opset = model.opset_import.get("", model.opset_import.get("ai.onnx"))
    return _file_graph(model.graph, path, None, opset, model.ir_version)


KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


def _value_of(info: "ort_format.TypeInfo") -> Value:
    """Type and shape of a value as the file has them; symbolic dimensions are dynamic."""
    from pipeline.model.ort_format import TensorType

    if not isinstance(info, TensorType):
        return Value()
    dtype = SHORT_NAMES.get(info.elem_type)
    if info.shape is None:
        return Value(dtype, None)
    return Value(dtype, tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in info.shape))


def _file_graph(
    source: "ort_format.OrtGraph", path: Path, outer: Graph | None, opset: int | None, ir_version: int
) -> Graph:
    from pipeline.model.ort_format import OrtGraph, Tensor

    def read(tensor: "ort_format.Tensor") -> Any:
        import numpy as np

        kind = NUMPY_KINDS.get(tensor.data_type)
        if kind is None:
            raise ModelError(f"the numbers of initializer '{tensor.name}' are of a type that no rule reads")
        numbers = np.fromfile(path, dtype=kind, count=tensor.length // np.dtype(kind).itemsize, offset=tensor.offset)
        return numbers.reshape(tensor.dims)

    def constant(tensor: "ort_format.Tensor") -> Constant:
        dtype = SHORT_NAMES.get(tensor.data_type, str(tensor.data_type))
        external = tensor.external_offset >= 0
        return Constant(dtype=dtype, dims=tensor.dims, read=lambda: read(tensor), external=external)

    def sparse(tensor: "ort_format.SparseTensor") -> Constant:
        dtype = SHORT_NAMES.get(tensor.values.data_type, "")
        return Constant(dtype=dtype, dims=tensor.dims, read=lambda: _dense(read, tensor, tensor.dims))

    def attribute(value: Any) -> Any:
        return constant(value) if isinstance(value, Tensor) else None if isinstance(value, OrtGraph) else value

    initializers = {name: constant(tensor) for name, tensor in source.initializers.items()}
    initializers |= {name: sparse(tensor) for name, tensor in source.sparse_initializers.items()}
    nodes: dict[int, Node] = {}
    local = {name for node in source.nodes for name in node.outputs} | set(source.inputs) | set(initializers)
    graph = Graph(
        nodes=nodes,
        values={name: _value_of(info) for name, info in source.node_args.items() if name in local},
        inputs=source.inputs,
        outputs=source.outputs,
        initializers=initializers,
        overridable=frozenset(set(source.inputs) & set(initializers)) if ir_version >= 4 else frozenset(),
        outer=outer,
        opset=opset,
    )
    for node in sorted(source.nodes, key=lambda node: node.index):
        nodes[node.index] = Node(
            index=node.index,
            name=node.name,
            op_type=node.op_type,
            domain=_domain(node.domain),
            since_version=node.since_version,
            inputs=node.inputs,
            outputs=node.outputs,
            attributes={name: attribute(given.value) for name, given in node.attributes.items()},
            bodies=tuple(_file_graph(body, path, graph, opset, ir_version) for body in node.subgraphs()),
            implicit_inputs=tuple(dict.fromkeys(node.implicit_inputs)),
        )
    return graph


def _dense(read: Callable[[Any], Any], sparse: Any, dims: tuple[int, ...]) -> Any:
    import numpy as np

    entries, places = read(sparse.values), read(sparse.indices)
    dense = np.zeros(dims, dtype=entries.dtype)
    where = np.unravel_index(places, dims) if places.ndim == 1 else tuple(places.T)
    dense[where] = entries
    return dense


def write_model(model: LeanModel, target: Path, *, named: bool = False, external: bool = True) -> None:
    """Write a model for another process, its weights in files next to it (`TARGET.0`…): links, where these can be.

    `named` names nodes after their outputs. With `external` False weights come into the message, but for those that the
    model itself keeps outside. ModelError for a message that is too large.
    """
    from google.protobuf.message import EncodeError

    proto = copied(model.proto)
    if named:
        name_nodes(proto)
    files: dict[Path, str] = {}
    for tensor in proto.graph.initializer:
        place = model.weights.get(tensor.name)
        if place and (external or tensor.name in model.outside):
            name = files.setdefault(place.file, f"{target.name}.{len(files)}")
            del tensor.external_data[:]
            for key, value in {"location": name, "offset": place.offset, "length": place.length}.items():
                tensor.external_data.add(key=key, value=str(value))
        elif place:
            read_in(tensor, place)
    try:
        content: bytes = proto.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(
            "the model is too large to be written",
            where=str(target),
            why=f"it is no single message: {error}",
            remedy="keep its large weights in an external data file",
        ) from error
    with storage_errors(target):
        target.write_bytes(content)
        for file, name in files.items():
            share_file(file, target.with_name(name))


def remove_model(target: Path) -> None:
    """Remove what `write_model` wrote."""
    for path in _written(target):
        path.unlink()


def written_bytes(target: Path) -> int:
    """The size of what `write_model` wrote; 0 where it wrote nothing."""
    return sum(path.stat().st_size for path in _written(target) if path.is_file())


def _written(target: Path) -> list[Path]:
    return [target, *target.parent.glob(f"{target.name}.*")]


def name_nodes(proto: "ModelProto") -> None:
    """Name every node of the main graph after its first output that has a name: libraries report names only.

    The name that it had becomes its documentation: forceCpuNodeNames is about that.
    """
    for node in proto.graph.node:
        node.doc_string = node.name
        node.name = next((output for output in node.output if output), node.name)


ORT_IDENTIFIER = b"ORTM"
log = logging.getLogger(__name__)


def open_subject(source: SourceModel, work_folder: Path, sizes: Mapping[str, int] = NO_SIZES) -> Path | LoadedModel:
    """The path of an ORT format file, or an ONNX model without its weights, with `sizes` for its dynamic dimensions.

    ModelError when it is no model, ConfigError for sizes of dimensions that it does not have.
    """
    if _head(source, work_folder)[4:8] == ORT_IDENTIFIER:
        if sizes:
            raise ConfigError(
                "dimensions of an ORT format file cannot be fixed",
                where=source.name,
                remedy="name the ONNX model that it was made from",
            )
        return Spool(source, work_folder).fetch_model() if source.member else Path(source.path)
    loaded = load_model(source, work_folder)
    check_structure(loaded.proto, source.name)
    return resized(loaded, sizes, work_folder) if sizes else loaded


def resized(loaded: LoadedModel, sizes: Mapping[str, int], work_folder: Path) -> LoadedModel:
    """The model with sizes for its dynamic dimensions, as a file in `work_folder`: sessions read files."""
    proto = copied(loaded.proto)
    fix_dimensions(proto, sizes, loaded.source.name)
    target = work_folder / "resized.onnx"
    write_model(replace(loaded, proto=proto), target)
    again = load_model(SourceModel(path=str(target)), work_folder)
    return replace(again, source=loaded.source, outside=loaded.outside)


def _head(source: SourceModel, work_folder: Path) -> bytes:
    if source.member:
        return Spool(source, work_folder).head(8)
    try:
        with open_regular(Path(source.path)) as opened:
            return opened.read(8)
    except OSError as error:
        raise ModelError(
            "the model cannot be read", where=source.name, why=str(error), remedy="check the path"
        ) from error


def tensor_reader(loaded: LeanModel) -> "Callable[[TensorProto], Any]":
    """Reads the numbers of the model's initializers by their messages, large ones from where they lie in a file."""
    weights = loaded.weights

    def read(tensor: "TensorProto") -> Any:
        import numpy as np

        place = weights.get(tensor.name) if tensor.data_location == 1 else None
        kind = NUMPY_KINDS.get(tensor.data_type)
        if place is None or kind is None:
            return read_tensor(tensor)
        count = place.length // np.dtype(kind).itemsize
        return np.fromfile(place.file, dtype=kind, count=count, offset=place.offset).reshape(tuple(tensor.dims))

    return read


def body_types(
    model: "ModelProto", work_folder: Path, unknown: Callable[[str], None] = log.warning
) -> "ort_format.OrtGraph | None":
    """The model as ONNX Runtime saves it in ORT format without optimization: types inside bodies are found there (A.4).

    None when the session cannot be made, which is reported to `unknown`: then nothing in a body is known or claimed.
    """
    from pipeline.model.ort_format import read_ort

    target = work_folder / "bodies.ort"
    settings = HostSession(save_to=target, config={"session.save_model_format": "ORT"})
    refusals: tuple[type[Exception], ...] = (ModelError, *ort_errors())
    try:
        make_session(slim_copy(model).SerializeToString(), settings)
        return read_ort(target).graph
    except refusals as error:
        unknown(f"nothing inside If, Loop and Scan counts as supported, because no session can be made: {error}")
        return None


def check_computed(loaded: LoadedModel, shown: Graph, where: str) -> None:
    """ModelError for constants that no phone could compute when it loads the model; `shown` has their shapes."""

    def size_of(name: str) -> int:
        value = shown.value(name)
        return shaped_bytes(CODES.get(value.dtype or "", 0), [dim or 0 for dim in value.shape or (0,)])

    check_constants(computed_constants(loaded.proto.graph), size_of, where)


MOST_TRIALS = 12
"""Loading a model needs a tenth of a second, and the first sizes are nearly always accepted."""


def dynamic_names(model: "ModelProto") -> tuple[str, ...]:
    """The shortest names of the inputs' dimensions that have no size."""
    return tuple(names_of(open_axes(own_inputs(model))))


def unnamed(model: "ModelProto", sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The dynamic dimensions for which no size is given."""
    takes = own_inputs(model)
    sizes = resolve_dimensions(takes, sizes, "the model")
    return tuple(name for name, axes in names_of(open_axes(takes)).items() if any(a.key not in sizes for a in axes))


def likely_sizes(loaded: LoadedModel, given: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes for all dynamic dimensions that ONNX Runtime's shape inference accepts, the likeliest first.

    Nothing is run: claims hardly depend on which size it is, as long as it is one. ConfigError when a size is given for
    a dimension that the model does not have.
    """
    takes = own_inputs(loaded.proto)
    names = names_of(open_axes(takes))
    by_axis = resolve_dimensions(takes, given, loaded.source.name)
    asked = {name: by_axis[axes[0].key] for name, axes in names.items() if axes[0].key in by_axis}
    left = tuple(axis for axis in open_axes(takes) if axis.key not in by_axis)
    for assignment in islice(assignments(units(loaded.proto, takes, left)), MOST_TRIALS):
        sizes = with_sums(asked | {name: size for name, (size, _) in assignment.items()}, list(names))
        model = slim_copy(loaded.proto)
        fix_dimensions(model, sizes, loaded.source.name)
        try:
            infer(model)
        except ModelError:
            continue
        yield {name: sizes[name] for name in names}
