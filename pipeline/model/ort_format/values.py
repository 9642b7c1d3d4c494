"""What an ORT format file says, as frozen values; the weights themselves stay in the file."""

import mmap
import struct
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap


class BrokenError(Exception):
    """The bytes contradict the format."""


Slots: TypeAlias = tuple[int, ...]
_WIDEST_TABLE = 16
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U16_PAIR = struct.Struct("<HH")
_SCALARS = {code: struct.Struct("<" + code) for code in "bBiIqf"}


class Reader:
    """Bounds-checked access by table position and slot number.

    `budget` counts 4-byte units that may still be read as structure. Each part of an honest file is read once, so
    twice its size suffices; in a file whose offsets make many tables share one part, or go in circles, it runs out.
    """

    __slots__ = ("_strings", "_vtables", "budget", "data", "inner_types", "size")

    def __init__(self, data: Buffer, *, inner_types: bool = True) -> None:
        self.data = data
        self.inner_types = inner_types
        self.size = len(data)
        self.budget = self.size // 2 + 64
        self._vtables: dict[int, Slots] = {}
        self._strings: dict[int, str] = {}

    def spend(self, units: int) -> None:
        """Take from the budget; raises when the file makes us read more than it can honestly hold."""
        self.budget -= units
        if self.budget < 0:
            raise BrokenError("its parts overlap or go in circles")

    def table(self, at: int) -> Slots:
        """The offsets of all slots from `at`, 0 for absent ones, padded so that every known slot can be asked for."""
        self.budget -= 1
        vtable = at - _I32.unpack_from(self.data, at)[0]
        slots = self._vtables.get(vtable)
        if slots is None:
            slots = self._vtables[vtable] = self._read_vtable(vtable)
        if self.budget < 0:
            self.spend(0)
        return slots

    def _read_vtable(self, at: int) -> Slots:
        if at < 0:
            raise BrokenError("a table's description lies before the file")
        size, _ = _U16_PAIR.unpack_from(self.data, at)
        count = (size - 4) // 2
        if count < 0:
            raise BrokenError("a table's description is too short")
        self.spend(1 + count // 2)
        slots: Slots = struct.unpack_from(f"<{count}H", self.data, at + 4)
        return (*slots, *(0,) * (_WIDEST_TABLE - count))

    def scalar(self, at: int, slots: Slots, slot: int, code: str, default: int = 0) -> int:
        """A whole number; `code` is struct's: b, B, i, I or q."""
        offset = slots[slot]
        if not offset:
            return default
        value: int = _SCALARS[code].unpack_from(self.data, at + offset)[0]
        return value

    def real(self, at: int, slots: Slots, slot: int) -> float:
        """A 32-bit float."""
        offset = slots[slot]
        value: float = _SCALARS["f"].unpack_from(self.data, at + offset)[0] if offset else 0.0
        return value

    def child(self, at: int, slots: Slots, slot: int) -> int | None:
        """The position of the table, string or vector that the slot points to."""
        offset = slots[slot]
        if not offset:
            return None
        at += offset
        target: int = at + _U32.unpack_from(self.data, at)[0]
        return target

    def text(self, at: int, slots: Slots, slot: int) -> str:
        """A string; absent is empty."""
        offset = slots[slot]
        if not offset:
            return ""
        at += offset
        return self.text_at(at + _U32.unpack_from(self.data, at)[0])

    def text_at(self, start: int) -> str:
        """The string whose length stands at `start`; bytes that are no UTF-8 come out as backslash escapes."""
        known = self._strings.get(start)
        if known is not None:
            return known
        length = _U32.unpack_from(self.data, start)[0]
        if length > self.size - start - 4:
            raise BrokenError("a text reaches beyond the end of the file")
        self.spend(1 + length // 4)
        text = bytes(self.data[start + 4 : start + 4 + length]).decode("utf-8", "backslashreplace")
        self._strings[start] = text
        return text

    def span(self, at: int, slots: Slots, slot: int, width: int) -> tuple[int, int]:
        """First position and number of elements of a vector whose elements are `width` bytes; checked to lie inside."""
        start = self.child(at, slots, slot)
        if start is None:
            return 0, 0
        count: int = _U32.unpack_from(self.data, start)[0]
        if count * width > self.size - start - 4:
            raise BrokenError("a list reaches beyond the end of the file")
        return start + 4, count

    def numbers(self, at: int, slots: Slots, slot: int, code: str) -> tuple[int, ...]:
        """A vector of scalars; floats come as floats."""
        width = _SCALARS[code].size
        start, count = self.span(at, slots, slot, width)
        if not count:
            return ()
        self.spend(1 + count * width // 4)
        values: tuple[int, ...] = struct.unpack_from(f"<{count}{code}", self.data, start)
        return values

    def tables(self, at: int, slots: Slots, slot: int) -> list[int]:
        """The positions that a vector of offsets points to."""
        start, count = self.span(at, slots, slot, 4)
        if not count:
            return []
        self.spend(1 + count)
        offsets = struct.unpack_from(f"<{count}I", self.data, start)
        return [start + 4 * k + offset for k, offset in enumerate(offsets)]

    def texts(self, at: int, slots: Slots, slot: int) -> tuple[str, ...]:
        """A vector of strings."""
        return tuple([self.text_at(start) for start in self.tables(at, slots, slot)])

    def root(self) -> int:
        """The position of the root table."""
        position: int = _U32.unpack_from(self.data, 0)[0]
        return position

    def path(self, *steps: tuple[int, str]) -> tuple[int, Slots]:
        """Follow slots from the root; each step's word names what is missing when it is."""
        at = self.root()
        for slot, word in steps:
            at = present(self.child(at, self.table(at), slot), word)
        return at, self.table(at)


def present(at: int | None, word: str) -> int:
    """What `Reader.child` gave for a part that no honest file lacks; raises BrokenError with the part's name."""
    if at is None:
        raise BrokenError(f"it holds no {word}")
    return at


DEFAULT_DOMAIN = "ai.onnx"

Dim: TypeAlias = int | str | None
"""A known size, a symbolic name, or None when nothing is known."""


class TensorType(msgspec.Struct, frozen=True, gc=False, tag="tensor"):
    """Element type (a TensorProto code, maybe newer than `model.types`) and shape; shape None: rank unknown."""

    elem_type: int
    shape: tuple[Dim, ...] | None = None


class SequenceType(msgspec.Struct, frozen=True, gc=False, tag="sequence"):
    """A sequence of values of one type."""

    element: "TypeInfo"


class MapType(msgspec.Struct, frozen=True, gc=False, tag="map"):
    """A map from a scalar (TensorProto code) to a type."""

    key_type: int
    value: "TypeInfo"


TypeInfo: TypeAlias = TensorType | SequenceType | MapType | None
"""None: the file names the value without saying its type."""


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """A constant. Its bytes stay in the file: `length` bytes from `offset`, little endian, 4-bit types two a byte.

    String tensors have no raw bytes but `strings`. `external_offset` is -1 in every model that is whole in one file.
    """

    name: str
    dims: tuple[int, ...]
    data_type: int
    offset: int = 0
    length: int = 0
    strings: tuple[str, ...] = ()
    external_offset: int = -1


class SparseTensor(msgspec.Struct, frozen=True, gc=False):
    """A constant in coordinate form; its name is the name of its values tensor."""

    name: str
    dims: tuple[int, ...]
    values: Tensor
    indices: Tensor


class Attribute(msgspec.Struct, frozen=True, gc=False):
    """`type` is the AttributeProto code; the value fits it, and is None for codes that the format cannot hold."""

    type: int
    value: "AttributeValue"


class OrtNode(msgspec.Struct, frozen=True, gc=False):
    """One operator. `domain` is as written (empty for ai.onnx); `since_version` is the schema's, not the model's opset.

    `provider` is what the converting session assigned; loading assigns anew. Empty input names: optional, left out.
    """

    name: str
    op_type: str
    domain: str
    since_version: int
    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    implicit_inputs: tuple[str, ...]
    attributes: dict[str, Attribute]
    provider: str

    @property
    def operator(self) -> str:
        """`domain:op` with the default domain spelled out, as in every table and JSON of the project."""
        return f"{self.domain or DEFAULT_DOMAIN}:{self.op_type}"

    def subgraphs(self) -> Iterator["OrtGraph"]:
        """The bodies of If, Loop, Scan and whatever else carries graphs, in the order of the attributes."""
        for attribute in self.attributes.values():
            if isinstance(attribute.value, OrtGraph):
                yield attribute.value
            elif isinstance(attribute.value, tuple):
                yield from (part for part in attribute.value if isinstance(part, OrtGraph))


class RuntimeOptimization(msgspec.Struct, frozen=True, gc=False):
    """A fusion that the device may replay: `nodes` (None: an optional one, absent) become `produced_ops`.

    The latter are op ids `domain:op:since_version`, the default domain empty.
    """

    optimizer: str
    action: str
    nodes: tuple[int | None, ...]
    produced_ops: tuple[str, ...]


class OrtGraph(msgspec.Struct, frozen=True, gc=False):
    """A graph or a body. `node_args` has the types of its values, also of names that fusions left behind.

    Of a file that was read without inner types it has those of the inputs and outputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OrtNode, ...]
    node_args: dict[str, TypeInfo]
    initializers: dict[str, Tensor]
    sparse_initializers: dict[str, SparseTensor]
    runtime_optimizations: tuple[RuntimeOptimization, ...]

    def walk(self) -> Iterator["OrtGraph"]:
        """Yield the graph itself and all that its nodes contain, outer before inner."""
        yield self
        for node in self.nodes:
            for body in node.subgraphs():
                yield from body.walk()


AttributeValue: TypeAlias = """(
    float | int | str | Tensor | OrtGraph | tuple[float | int | str | Tensor | OrtGraph, ...] | None
)"""


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """What the model says of itself. `model_version` is 2**63-1 when the ONNX model had none."""

    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    doc_string: str = ""
    properties: dict[str, str] = {}


class ResolverArg(msgspec.Struct, frozen=True, gc=False):
    """Where a kernel's type parameter is read from: input or output `index`."""

    is_output: bool
    index: int


Resolver: TypeAlias = dict[str, dict[str, tuple[ResolverArg, ...]]]
"""Op id `domain:op:since_version` -> type parameter -> arguments; a superset of the graph's operators."""


class OrtModel(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file without its weights. `format_version` is the text of the file, "6" for release 1.16 and later."""

    format_version: str
    ir_version: int
    opset_import: dict[str, int]
    graph: OrtGraph
    metadata: Metadata
    resolver: Resolver
