"""What an ORT format file says, as frozen values; the weights themselves stay in the file."""

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

DEFAULT_DOMAIN = "ai.onnx"

ELEMENT_TYPES = {
    1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "double", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip
"""ONNX TensorProto codes. The schema's own enum stops at 20, but ONNX Runtime writes the later codes all the same."""

Dim: TypeAlias = int | str | None
"""A known size, a symbolic name, or None when nothing is known."""


class TensorType(msgspec.Struct, frozen=True, gc=False, tag="tensor"):
    """Element type (a TensorProto code, maybe newer than `ELEMENT_TYPES`) and shape; shape None: rank unknown."""

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
    """A graph or a body. `node_args` has the types of its values, also of names that fusions left behind."""

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
