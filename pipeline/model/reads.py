"""Who reads which value of a model."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import TYPE_CHECKING

from pipeline.model.edit import all_nodes, subgraphs

if TYPE_CHECKING:
    import onnx

PASSING = frozenset({"Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Clip"})
"""Operators behind which a value is still the input's, in another type or shape."""


class Reads:
    """Who reads which value, in the main graph and in the bodies inside it; looked up when it is asked for."""

    def __init__(self, model: "onnx.ModelProto") -> None:
        self.model = model

    @cached_property
    def constants(self) -> "dict[str, onnx.TensorProto]":
        """Tensors that are in the file, by name."""
        constants: dict[str, onnx.TensorProto] = {}
        for graph in subgraphs(self.model.graph):
            constants.update((tensor.name, tensor) for tensor in graph.initializer)
            for node in graph.node:
                if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                    constants[node.output[0]] = node.attribute[0].t
        return constants

    @cached_property
    def readers(self) -> "Mapping[str, list[tuple[onnx.NodeProto, int]]]":
        """Nodes by the values that they read, with the slot."""
        readers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
        for node in all_nodes(self.model.graph):
            for slot, name in enumerate(node.input):
                readers[name].append((node, slot))
        return readers

    def of(self, name: str, passing: AbstractSet[str] = PASSING) -> Iterator[tuple["onnx.NodeProto", int]]:
        """Nodes that read a value, also behind operators that only pass it on, with the slot they read it in."""
        seen, names = {name}, [name]
        while names:
            current = names.pop()
            for node, slot in self.readers[current]:
                yield node, slot
                if node.op_type in passing and slot == 0 and node.output[0] not in seen:
                    seen.add(node.output[0])
                    names.append(node.output[0])
