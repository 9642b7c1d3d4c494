"""Load, check and prepare an ONNX model without taking its weights into memory.

A loaded model's large initializers are external data: byte ranges of the model file itself or of the file that the
model names. ONNX Runtime maps them, the ORT format writer copies them from where they lie, and nobody parses them: of
the protobuf message only the frame is walked, ModelProto.graph (field 7) and its initializers (GraphProto field 5).
Field numbers are those of onnx.proto3, the encoding is that of the protobuf documentation.
"""

import difflib
import errno
import hashlib
import mmap
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from device_runner import untrusted_files
from pipeline.core import files as storage
from pipeline.core.errors import ConfigError, ModelError
from pipeline.model.edit import constant_names, copied, keep_only, subgraphs
from pipeline.model.foreign import FOREIGN_BYTES, foreign_file
from pipeline.model.guards import MAX_WEIGHT_BYTES, tensor_bytes, unsound
from pipeline.model.signature import open_axes, own_inputs, resolve_dimensions
from pipeline.model.sources import SourceModel, Spool
from pipeline.model.texts import strange_text
from pipeline.model.wire import (
    LENGTH,
    VARINT,
    Buffer,
    Field,
    WireError,
    encode_field,
    encode_varint,
    fields,
    read_varint,
)

if TYPE_CHECKING:
    import onnx

MODEL_GRAPH = 7
GRAPH_INITIALIZER = 5
TENSOR_DATA_TYPE, TENSOR_FLOAT_DATA, TENSOR_RAW_DATA, TENSOR_DOUBLE_DATA = 2, 4, 9, 10
TENSOR_EXTERNAL_DATA, TENSOR_DATA_LOCATION = 13, 14
EXTERNAL = 1
# All fields that can hold a tensor's values, or say where they are.
TENSOR_STORAGE = {4, 5, 6, 7, 9, 10, 11, 13}
# Packed little-endian values are raw data already: field -> the TensorProto data type whose storage they are.
PACKED_AS_RAW = {TENSOR_FLOAT_DATA: 1, TENSOR_DOUBLE_DATA: 11}

OPTIONAL_SINCE = 4
"""IR version from which an initializer that is an input can be replaced: before, all initializers had to be inputs."""
MOST_NAMED = 5


def _lean_tensor(data: Buffer, tensor: Field, location: str) -> bytes | None:
    """The tensor's message with its bytes left in place; None when they are not stored as one plain range."""
    parts = list(fields(data, tensor.value, tensor.end))
    # The one field that holds the bytes as they lie in memory
    stored = [part for part in parts if part.number in TENSOR_STORAGE]
    if len(stored) != 1 or stored[0].wire_type != LENGTH:
        return None
    payload = stored[0]
    if payload.number != TENSOR_RAW_DATA:
        kinds = [part for part in parts if part.number == TENSOR_DATA_TYPE and part.wire_type == VARINT]
        kind = read_varint(data, kinds[-1].value, kinds[-1].end)[0] if kinds else 0
        if PACKED_AS_RAW.get(payload.number) != kind:
            return None
    kept = [bytes(data[f.start : f.end]) for f in parts if f is not payload and f.number != TENSOR_DATA_LOCATION]
    # The fields of a TensorProto that say: the bytes lie in `location`
    entries = {"location": location, "offset": str(payload.value), "length": str(payload.end - payload.value)}
    encoded = [
        encode_field(TENSOR_EXTERNAL_DATA, encode_field(1, key.encode()) + encode_field(2, value.encode()))
        for key, value in entries.items()
    ]
    return b"".join([*kept, *encoded, encode_varint(TENSOR_DATA_LOCATION << 3 | VARINT), encode_varint(EXTERNAL)])


def _lean_graph(data: Buffer, graph: Field, location: str, minimum_bytes: int) -> bytes:
    """The graph's message with large initializers left in place, everything else as it is."""
    out: list[bytes] = []
    copied = graph.value
    for part in fields(data, graph.value, graph.end):
        is_initializer = part.number == GRAPH_INITIALIZER and part.wire_type == LENGTH
        large = is_initializer and part.end - part.value > minimum_bytes
        lean = _lean_tensor(data, part, location) if large else None
        if lean is not None:
            out += [bytes(data[copied : part.start]), encode_field(GRAPH_INITIALIZER, lean)]
            copied = part.end
    return b"".join([*out, bytes(data[copied : graph.end])])


def lean_model(data: Buffer, location: str, minimum_bytes: int) -> bytes:
    """A ModelProto in which initializers of more than `minimum_bytes` are external data in `location`, the file itself.

    Only the frame of `data` is touched, so a memory map of hundreds of megabytes costs some pages. WireError when the
    bytes are no protobuf message.
    """
    out: list[bytes] = []
    for part in fields(data, 0, len(data)):
        if part.number == MODEL_GRAPH and part.wire_type == LENGTH:
            out.append(encode_field(MODEL_GRAPH, _lean_graph(data, part, location, minimum_bytes)))
        else:
            out.append(bytes(data[part.start : part.end]))
    return b"".join(out)


# Below this a tensor is read into the message: a range of its own would cost more than it saves.
LARGE_BYTES = 16 << 10
# Models with less weight than this are read whole: parsing them is cheaper than copying their weights separately.
LEAN_MINIMUM_BYTES = 4 << 20
READ_BYTES = 1 << 20
# ONNX Runtime's own location for tensors that lie in memory: a file that names it would hand it an address.
MEMORY_MARKER = "_ORT_MEM_ADDR_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Where the bytes of a weight lie: little-endian, as ONNX Runtime stores them."""

    file: Path
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeanModel:
    """A model message whose large initializers are external data under `folder`.

    `weights` has the place of each of them by initializer name (main graph only: those of bodies are in the message).
    It is empty for a small model: that is in the message as a whole. `outside` names the initializers that the model
    itself keeps in other files, which providers up to 1.22 refuse.
    """

    proto: "onnx.ModelProto"
    folder: Path
    weights: Mapping[str, ByteRange]
    outside: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel(LeanModel):
    """An ONNX model as its file says it; `path` is the file on the disk, a copy for a member of an archive."""

    source: SourceModel
    path: Path

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The dimensions of inputs without a size, as `input[axis] name`."""
        return tuple(f"{axis.key} {axis.symbol}".rstrip() for axis in open_axes(own_inputs(self.proto)))

    @property
    def operators(self) -> dict[str, int]:
        """How many nodes the main graph has of each "domain:op"."""
        return dict(sorted(Counter(f"{n.domain or 'ai.onnx'}:{n.op_type}" for n in self.proto.graph.node).items()))


def load_model(source: SourceModel, work_folder: Path) -> LoadedModel:
    """Read the model's graph and find its weights; members of archives are spooled to `work_folder` first.

    ModelError when the file is missing, empty, cut off or no ONNX model, when external data is missing, too short or
    outside the model's folder, and when the weights are too large for the ORT format.
    """
    if not source.member:
        return _load(source, Path(source.path), None)
    spool = Spool(source, work_folder)
    return _load(source, spool.fetch_model(), spool)


def _load(source: SourceModel, path: Path, spool: Spool | None) -> LoadedModel:
    data = _frame(source, path)
    try:
        proto = parsed(data)
    except ValueError as error:
        raise _not_onnx(source, f"it is no protobuf message of a model: {error}") from error

    if not proto.HasField("graph"):
        raise _not_onnx(source, "it has no graph")
    others = list(_other_tensors(proto))
    for tensor in (*proto.graph.initializer, *others):
        if tensor.data_location != tensor.EXTERNAL and (why := unsound(tensor)):
            raise _not_onnx(source, f"the tensor {tensor.name[:80]!r} {why}")
    # Initializers whose data lie in another file than the model: those of `lean_model` lie in its own
    name = path.resolve().name
    outside = frozenset(
        tensor.name
        for tensor in proto.graph.initializer
        if tensor.data_location == tensor.EXTERNAL
        and any(entry.key == "location" and entry.value != name for entry in tensor.external_data)
    )
    weights = _resolve_external(source, path, proto, spool, others)
    total = sum(r.length for r in weights.values())
    if total > MAX_WEIGHT_BYTES:
        raise ModelError(
            "the model is too large for the ORT format",
            where=source.name,
            why=f"its weights are {total} bytes, an ORT format file ends at 2 GiB",
            remedy="quantize the model, or split it",
        )
    return LoadedModel(
        source=source, path=path, folder=path.parent.resolve(), proto=proto, weights=weights, outside=outside
    )


def parsed(data: bytes) -> "onnx.ModelProto":
    """The message of a model. ValueError for what is none, or has names that are no text."""
    import onnx
    from google.protobuf.message import DecodeError

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    strange = strange_text(proto, data)
    if strange is not None:
        raise ValueError(f"a name in it is not UTF-8: {strange[:80]!r}")
    return proto


def _not_onnx(source: SourceModel, why: str, remedy: str = "") -> ModelError:
    remedy = remedy or "export the model again; `onnx.checker.check_model` says more"
    return ModelError("not a usable ONNX model", where=source.name, why=why, remedy=remedy)


def _frame(source: SourceModel, path: Path) -> bytes:
    """The model's message with large initializers as external data in the file itself."""
    try:
        if not path.is_file():
            raise ModelError("no such model file", where=source.name, remedy="check the path")
        if not (size := path.stat().st_size):
            raise _not_onnx(source, "the file is empty", "download or export it again")
        with (
            untrusted_files.open_regular(path) as opened,
            mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as data,
        ):
            head = data[:FOREIGN_BYTES]
            if head[4:8] == b"ORTM":
                raise _not_onnx(
                    source, "it is an ORT format model already", "convert the ONNX model that it was made from"
                )
            if foreign := foreign_file(head):
                raise _not_onnx(source, *foreign)
            with memoryview(data) as view:
                # Where external data can name the file itself: in UTF-8, and no link leads out of its folder
                real = path.resolve()
                nameable = real.parent == path.parent.resolve() and real.name.isprintable() and "\\" not in real.name
                lean = size >= LEAN_MINIMUM_BYTES and nameable
                return lean_model(view, real.name, LARGE_BYTES if lean else size)
    except OSError as error:
        remedy = storage.REMEDIES[errno.ENOMEM] if error.errno == errno.ENOMEM else "check it"
        raise ModelError("the model cannot be read", where=source.name, why=str(error), remedy=remedy) from error
    except WireError as error:
        raise _not_onnx(source, f"it is cut off or damaged: {error}") from error


def scan_message(path: Path) -> "onnx.ModelProto":
    """The message of a file that onnxruntime saved; large initializers in it become external data in the file itself.

    Nothing is checked: for files of our own only.
    """
    import onnx

    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        proto = onnx.ModelProto()
        with memoryview(data) as view:
            proto.ParseFromString(lean_model(view, path.name, LARGE_BYTES))
    return proto


@dataclass(frozen=True, slots=True)
class ExternalEntries:
    """Where an external tensor says that its data lie: the path of a file, and bytes in it, 0 where not given."""

    location: str
    offset: int
    length: int

    def inside(self, file: Path) -> ByteRange:
        """The bytes as those of a file."""
        return ByteRange(file=file, offset=self.offset, length=self.length)


def external_entries(tensor: "onnx.TensorProto") -> ExternalEntries:
    """What a tensor says of its data. ValueError for what is no number."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return ExternalEntries(
        entries.get("location", ""), int(entries.get("offset") or 0), int(entries.get("length") or 0)
    )


def _resolve_external(
    source: SourceModel,
    path: Path,
    proto: "onnx.ModelProto",
    spool: Spool | None,
    others: "Collection[onnx.TensorProto]",
) -> dict[str, ByteRange]:
    """Check every external tensor; large ones of the main graph stay external, all others are read in.

    `others` are those of `_other_tensors`.
    """
    resolver = _ExternalData(source, path, spool)
    places = {t.name: resolver.locate(t) for t in proto.graph.initializer if t.data_location == t.EXTERNAL}
    lean = sum(place.length for place in places.values()) >= LEAN_MINIMUM_BYTES
    weights = {name: place for name, place in places.items() if lean and place.length > LARGE_BYTES}
    for tensor in proto.graph.initializer:
        if tensor.name in places and tensor.name not in weights:
            read_in(tensor, places[tensor.name])
    for tensor in others:
        if tensor.data_location == tensor.EXTERNAL:
            read_in(tensor, resolver.locate(tensor))
    return weights


def _other_tensors(proto: "onnx.ModelProto") -> Iterator["onnx.TensorProto"]:
    """Tensors that are not initializers of the main graph: in bodies, attributes and functions."""
    for graph in subgraphs(proto.graph):
        yield from () if graph is proto.graph else graph.initializer
        for node in graph.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for function in proto.functions:
        for node in function.node:
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors


def read_in(tensor: "onnx.TensorProto", span: ByteRange) -> None:
    """Put the bytes of an external tensor into its message."""
    with span.file.open("rb") as opened:
        opened.seek(span.offset)
        tensor.raw_data = opened.read(span.length)
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def loadable(model: LeanModel) -> "onnx.ModelProto":
    """The message with weights read in that are not where their location says: a session looks in one folder only.

    A file may lie below the model's folder and still be named from another one: scratch folders are often there.
    """
    external = [tensor for tensor in model.proto.graph.initializer if tensor.name in model.weights]
    strange = {
        tensor.name
        for tensor in external
        if model.folder / external_entries(tensor).location != model.weights[tensor.name].file
    }
    if not strange:
        return model.proto
    proto = copied(model.proto)
    for tensor in proto.graph.initializer:
        if tensor.name in strange:
            read_in(tensor, model.weights[tensor.name])
    return proto


class _ExternalData:
    """Finds the bytes of external tensors, and refuses places that a model has no right to name."""

    def __init__(self, source: SourceModel, path: Path, spool: Spool | None) -> None:
        self.source = source
        self.path = path
        self.folder = path.parent.resolve()
        self.spool = spool
        self.files: dict[str, Path] = {}

    def locate(self, tensor: "onnx.TensorProto") -> ByteRange:
        """Where the tensor's bytes lie, and write that place into the tensor in full; ModelError when it has none."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        file = self._file(tensor, entries.get("location", ""))
        offset = self._number(tensor, entries.get("offset", "0") or "0")
        needed = tensor_bytes(tensor)
        length = self._number(tensor, entries["length"]) if entries.get("length") else needed
        size = file.stat().st_size
        if needed is None:
            shape = f"{list(tensor.dims)}"[:200]
            raise self._error(tensor, f"no number of bytes is known for the type {tensor.data_type} and shape {shape}")
        if length is None or length != needed or offset + length > size:
            raise self._error(tensor, f"{needed} bytes are needed, {length} at {offset} are named, the file has {size}")
        entries |= {"location": str(file.relative_to(self.folder)), "offset": str(offset), "length": str(length)}
        del tensor.external_data[:]
        for key in ("location", "offset", "length"):
            tensor.external_data.add(key=key, value=entries[key])
        return ByteRange(file=file, offset=offset, length=length)

    def _file(self, tensor: "onnx.TensorProto", location: str) -> Path:
        if location not in self.files:
            if not _is_beside(location):
                raise self._error(tensor, f"{location[:200]!r} is not a file in the model's folder or below it")
            name = repr(location[:200])
            try:
                if self.spool:
                    self.spool.fetch_beside(location)
                real = (self.folder / location).resolve()
                if not real.is_relative_to(self.folder):
                    raise self._error(tensor, f"{name} is a link out of the model's folder")
                if not real.is_file():
                    raise self._error(tensor, f"there is no file {name} beside the model")
            except OSError as error:
                raise self._error(tensor, f"{name} cannot be opened: {error.strerror}") from error
            self.files[location] = real
        return self.files[location]

    def _number(self, tensor: "onnx.TensorProto", text: str) -> int:
        if re.fullmatch(r"[0-9]{1,18}", text):
            return int(text)
        raise self._error(tensor, f"{text[:40]!r} is not an offset or length")

    def _error(self, tensor: "onnx.TensorProto", why: str) -> ModelError:
        return ModelError(
            f"external data of {tensor.name[:80]!r} cannot be used",
            where=self.source.name,
            why=why,
            remedy="keep the model and its data files together in one folder, as they were exported",
        )


def _is_beside(location: str) -> bool:
    """Whether the location is a relative path that goes only downwards (URLs and drive letters have a colon)."""
    parts = PurePosixPath(location.replace("\\", "/")).parts
    forbidden = ("..", "/", MEMORY_MARKER)
    return bool(parts) and ":" not in parts[0] and "\0" not in location and not any(p in forbidden for p in parts)


def prepare_model(loaded: LoadedModel, fixed_dimensions: Mapping[str, int], kept: Collection[str] = ()) -> LoadedModel:
    """The model ready to convert: initializers out of the graph inputs, symbolic dimensions fixed.

    Keys of `fixed_dimensions` are symbolic names, or `input[axis]` for any dimension. An initializer that
    is also an input could be overridden by the caller and so is no constant to the optimizer (ONNX IR specification,
    initializers); without the input it needs IR version 4. `kept` names those that callers may go on to set.
    ConfigError for a key or name that names nothing.
    """
    proto = copied(loaded.proto)
    graph = proto.graph
    optional = optional_inputs(proto)
    for name in kept:
        if name not in optional:
            close = difflib.get_close_matches(name, optional, n=1)
            there = f"it has {named_few(optional)}" if optional else "leave it out: the model has none"
            raise ConfigError(
                f"the model has no optional input {name!r}",
                where=loaded.source.name,
                why="optional are inputs that have a value in the file (initializers), from IR version 4 on",
                remedy=f"did you mean {close[0]!r}?" if close else there,
            )
    constants = constant_names(graph) - {*kept}
    before = len(graph.input)
    keep_only(graph.input, lambda value: value.name not in constants)
    if len(graph.input) < before:
        proto.ir_version = max(proto.ir_version, 4)
    fix_dimensions(proto, fixed_dimensions, loaded.source.name)
    return replace(loaded, proto=proto)


def optional_inputs(proto: "onnx.ModelProto") -> tuple[str, ...]:
    """Inputs that have a value in the file, which callers may replace: initializers, from IR version 4 on."""
    constants = constant_names(proto.graph) if proto.ir_version >= OPTIONAL_SINCE else set()
    return tuple(value.name for value in proto.graph.input if value.name in constants)


def constants_note(names: Sequence[str]) -> str:
    """What becomes of optional inputs that are not kept; "" for none."""
    if not names:
        return ""
    few = named_few(names)
    which = f"the optional input {few} is a constant" if len(names) == 1 else f"optional inputs are constants: {few}"
    return f"{which}; apps cannot set it (`--optional-input NAME`, `optional_inputs` in a config, keeps one an input)"


def named_few(names: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def fix_dimensions(proto: "onnx.ModelProto", fixed: Mapping[str, int], where: str) -> None:
    """Give open dimensions their sizes, in place: those of the inputs, and every other of the same symbolic name.

    Names are those of `resolve_dimensions`, which refuses what names nothing.
    """
    takes = own_inputs(proto)
    sizes = resolve_dimensions(takes, fixed, where)
    inputs = {value.name: value for value in proto.graph.input}
    by_symbol: dict[str, set[int]] = {}
    for axis in open_axes(takes):
        if axis.key in sizes:
            inputs[axis.input].type.tensor_type.shape.dim[axis.axis].dim_value = sizes[axis.key]
            by_symbol.setdefault(axis.symbol, set()).add(sizes[axis.key])
    size_of = {symbol: next(iter(values)) for symbol, values in by_symbol.items() if symbol and len(values) == 1}
    for graph in subgraphs(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in size_of:
                    dim.dim_value = size_of[dim.dim_param]


def range_digests(places: Collection[ByteRange]) -> dict[ByteRange, str]:
    """sha256 of the bytes of each range, two ranges at a time."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(places, pool.map(_range_digest, places), strict=True))


def _range_digest(span: ByteRange) -> str:
    """Read in pieces: a memory map would count as this process's memory, byte for byte."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(READ_BYTES, span.length)))
    with span.file.open("rb", buffering=0) as opened:
        opened.seek(span.offset)
        left = span.length
        while left and (count := opened.readinto(buffer[:left])):
            digest.update(buffer[:count])
            left -= count
    return digest.hexdigest()


def content_digest(model: LeanModel, digests: Mapping[str, str]) -> str:
    """One digest of everything that conversion reads: the prepared graph and the weights, not where they lie."""
    bare = copied(model.proto)
    for tensor in bare.graph.initializer:
        del tensor.external_data[:]
    digest = hashlib.sha256(bare.SerializeToString(deterministic=True))
    for name in sorted(digests):
        digest.update(f"{name}\0{digests[name]}\0".encode())
    return digest.hexdigest()
