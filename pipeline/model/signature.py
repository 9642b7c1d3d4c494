"""Inputs and outputs of a model: names, element types and shapes, as tables and checks need them."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from device_runner.spec import ONNX_CODES, ElementType

if TYPE_CHECKING:
    import numpy as np
    import onnx

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
else:
    Array = Any

TYPES_BY_CODE = {code: kind for kind, code in ONNX_CODES.items()}


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output: `dtype` is None for what is no tensor of plain elements (sequences, maps, strings).

    An axis of `shape` is a size, the name of a symbolic dimension, or None; `shape` is None for an unknown rank.
    """

    name: str
    dtype: ElementType | None
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        """As in `x float32 [1, 3, height, ?]`; `[?]` marks an unknown rank's only certainty, that it has one."""
        sizes = (
            "of unknown rank"
            if self.shape is None
            else f"[{', '.join('?' if s is None else str(s) for s in self.shape)}]"
        )
        return f"{self.name} {self.dtype.value if self.dtype else 'no tensor'} {sizes}"


def tensor_infos(values: "Iterable[onnx.ValueInfoProto]") -> tuple[TensorInfo, ...]:
    """What a graph declares of its inputs or outputs."""
    return tuple(TensorInfo(name=value.name, dtype=_dtype(value), shape=_shape(value)) for value in values)


def own_inputs(model: "onnx.ModelProto") -> tuple[TensorInfo, ...]:
    """The inputs that a caller must give: initializers among the graph's inputs have values already."""
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return tensor_infos(value for value in model.graph.input if value.name not in constants)


def element_of(code: int) -> ElementType | None:
    """The element type of ONNX's number for it; None for strings and what ONNX Runtime's C API cannot be given raw."""
    found = TYPES_BY_CODE.get(code)
    return None if found is ElementType.STRING else found


def _dtype(value: "onnx.ValueInfoProto") -> ElementType | None:
    return element_of(value.type.tensor_type.elem_type) if value.type.HasField("tensor_type") else None


def _shape(value: "onnx.ValueInfoProto") -> tuple[int | str | None, ...] | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or None
        for dim in value.type.tensor_type.shape.dim
    )
