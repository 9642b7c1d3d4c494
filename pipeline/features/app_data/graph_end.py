"""Nodes and constants that are put before or behind a model's own."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.model import types as onnx_types

if TYPE_CHECKING:
    import onnx


class GraphEnd:
    """Nodes that grow one behind the other; every name of theirs begins with `title`, which no model's names may."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

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

    def integers(self, name: str, *values: int) -> str:
        """A constant row of int64."""
        import numpy as np

        return self.constant(name, np.array(values, np.int64))

    def floats(self, name: str, values: Any) -> str:
        """A constant of float32: an array or a row, or one value without axes."""
        import numpy as np

        return self.constant(name, np.asarray(values, np.float32))

    def columns(self, values: str, first: int, last: int, axis: int, name: str) -> str:
        """What is from `first` to below `last` along an axis; `last` may lie beyond its end."""
        bounds = [self.integers(f"{name}: {what}", bound) for what, bound in (("from", first), ("to", last))]
        return self.add("Slice", [values, *bounds, self.integers(f"{name}: axis", axis)], name)

    def flat(self, values: str, name: str, *shape: int) -> str:
        """The same numbers in another shape; one row by default."""
        return self.add("Reshape", [values, self.integers(f"{name}: shape", *(shape or (-1,)))], name)

    def cast(self, values: str, name: str, kind: str) -> str:
        """The same numbers as another element type, in the project's short names: f32, i64."""
        return self.add("Cast", [values], name, to=onnx_types.CODES[kind])

    def give(self, value: str, name: str, kind: str, shape: Sequence[int | str]) -> None:
        """`value`, which a node here makes, becomes an output of the whole graph, called `name`."""
        from onnx import helper

        for node in self.nodes:
            node.input[:] = [name if read == value else read for read in node.input]
            node.output[:] = [name if written == value else written for written in node.output]
        self.outputs.append(helper.make_tensor_value_info(name, onnx_types.CODES[kind], list(shape)))

    def named(self, name: str) -> str:
        """A name of the part."""
        return f"{self.title}/{name}"
