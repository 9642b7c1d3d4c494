"""What a graph says of its inputs: sizes that its layers demand, and numbers that its inputs may hold."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.config.tables import InputValue, Range
from pipeline.dataset import TensorInfo

if TYPE_CHECKING:
    import onnx

PASSING = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Clip"})
"""Operators behind which a value is still the input's, in another type or shape."""
STATE = re.compile(r"state|hidden|cell|cache|past|(^|[^a-z])[hc](_?[0n0-9]+)?($|[^a-z])", re.IGNORECASE)
RATE = re.compile(r"^sr$|sampl\w*_rate", re.IGNORECASE)
MASK = re.compile(r"mask", re.IGNORECASE)


class Reads:
    """Who reads which value, in the main graph and in the bodies inside it."""

    def __init__(self, model: "onnx.ModelProto") -> None:
        from pipeline.model.onnx_model import subgraphs

        self.constants: dict[str, onnx.TensorProto] = {}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for graph in subgraphs(model.graph):
            self.constants.update((tensor.name, tensor) for tensor in graph.initializer)
            for node in graph.node:
                for name in node.input:
                    self.readers[name].append(node)
                if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                    self.constants[node.output[0]] = node.attribute[0].t

    def of(self, name: str) -> Iterator[tuple["onnx.NodeProto", int]]:
        """Nodes that read a value, also behind operators that only pass it on, with the slot they read it in."""
        seen, names = {name}, [name]
        while names:
            current = names.pop()
            for node in self.readers[current]:
                yield node, list(node.input).index(current)
                if node.op_type in PASSING and node.input[0] == current and node.output[0] not in seen:
                    seen.add(node.output[0])
                    names.append(node.output[0])


def metadata_size(model: "onnx.ModelProto") -> tuple[int, int] | None:
    """Height and width that the exporter wrote into the model's metadata (`imgsz` of Ultralytics)."""
    for entry in model.metadata_props:
        if entry.key == "imgsz":
            try:
                found = json.loads(entry.value)
            except ValueError:
                return None
            sizes = found if isinstance(found, list) else [found, found]
            if len(sizes) == 2 and all(isinstance(size, int) and 1 < size < 10_000 for size in sizes):
                return sizes[0], sizes[1]
    return None


def connected_size(reads: Reads, name: str) -> int | None:
    """How many features the fully connected layer that reads an input takes."""
    for node, slot in reads.of(name):
        weight = reads.constants.get(node.input[1]) if slot == 0 and node.op_type in ("MatMul", "Gemm") else None
        if weight is not None and len(weight.dims) == 2:
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            return int(weight.dims[1 if transposed else 0])
    return None


def guess_values(model: "onnx.ModelProto", takes: Sequence[TensorInfo]) -> dict[str, tuple[InputValue, str]]:
    """Values for inputs that random numbers would not suit, each with the reason."""
    reads = Reads(model)
    found = {info.name: _guess(reads, info) for info in takes}
    return {name: guess for name, guess in found.items() if guess}


def _guess(reads: Reads, info: TensorInfo) -> tuple[InputValue, str] | None:
    kind = info.dtype.value if info.dtype else ""
    single = info.shape is not None and all(size == 1 for size in info.shape)
    if kind.startswith(("int", "uint")):
        if MASK.search(info.name):
            return 1, "a mask that leaves everything in"
        if single and (number := _compared(reads, info.name)) is not None:
            return number, "the model compares it with this number"
        if single and RATE.search(info.name):
            return 16000, "samples a second, as usual for speech"
        if rows := _table_rows(reads, info.name):
            return Range(low=0, high=rows), "rows of its embedding table"
    if kind.startswith("float"):
        if STATE.search(info.name):
            return 0.0, "a state begins with zeros"
        if single:
            return 1.0, "a single number"
    return None


def _table_rows(reads: Reads, name: str) -> int | None:
    """Rows of the smallest table that an input looks up."""
    rows = [
        int(table.dims[0])
        for node, slot in reads.of(name)
        if node.op_type == "Gather" and slot == 1
        if (table := reads.constants.get(_table_of(reads, node.input[0]))) is not None and len(table.dims) >= 2
        if not any(a.name == "axis" and a.i for a in node.attribute)
    ]
    return min(rows, default=None)


def _table_of(reads: Reads, name: str) -> str:
    """The constant behind a DequantizeLinear, Cast or Identity."""
    for _ in range(3):
        if name in reads.constants:
            return name
        makers = [n for ns in reads.readers.values() for n in ns if name in n.output]
        if not makers or makers[0].op_type not in ("DequantizeLinear", "Cast", "Identity"):
            return name
        name = makers[0].input[0]
    return name


def _compared(reads: Reads, name: str) -> int | None:
    """The integer that a single number is compared with."""
    from onnx import numpy_helper

    for node, slot in reads.of(name):
        other = reads.constants.get(node.input[1 - slot]) if node.op_type == "Equal" and len(node.input) == 2 else None
        if other is not None and math.prod(other.dims) == 1 and other.data_type in (6, 7):
            return int(numpy_helper.to_array(other).reshape(-1)[0])
    return None
