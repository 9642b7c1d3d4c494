"""Nodes and constants that are put before or behind a model's own."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


class GraphEnd:
    """Nodes that grow one behind the other; every name of theirs begins with `title`, which no model's names may."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op_type: str, inputs: Iterable[str], name: str, **attributes: Any) -> str:
        """A node with one output, which is returned; both are called `title/name`."""
        from onnx import helper

        named = self.named(name)
        self.nodes.append(helper.make_node(op_type, list(inputs), [named], name=named, **attributes))
        return named

    def constant(self, name: str, values: Any) -> str:
        """A constant of numpy's array `values`, or of texts; its name is returned."""
        import numpy as np
        from onnx import TensorProto, numpy_helper

        named = self.named(name)
        array = np.asarray(values)
        if array.dtype.kind == "U":
            tensor = TensorProto(name=named, data_type=TensorProto.STRING, dims=array.shape)
            tensor.string_data.extend(str(text).encode() for text in array.ravel())
        else:
            tensor = numpy_helper.from_array(array, named)
        self.constants.append(tensor)
        return named

    def named(self, name: str) -> str:
        """A name of the part."""
        return f"{self.title}/{name}"
