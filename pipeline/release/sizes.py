"""Models that ship in several sizes: which goes to which input, and what smaller inputs are filled up with."""

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

from device_runner.spec import ElementType
from pipeline.release.app_code import identifiers, rows_of
from pipeline.release.manifest import Content, ModelSignature, TensorSignature

BUFFERS: dict[ElementType, tuple[str, str, str]] = {
    ElementType.FLOAT32: ("FloatBuffer", "", "FloatBuffer"),
    ElementType.FLOAT64: ("DoubleBuffer", "", "DoubleBuffer"),
    ElementType.INT64: ("LongBuffer", "", "LongBuffer"),
    ElementType.INT32: ("IntBuffer", "", "IntBuffer"),
    ElementType.INT16: ("ShortBuffer", "", "ShortBuffer"),
    ElementType.FLOAT16: ("ShortBuffer", "FLOAT16", "FloatBuffer"),
    ElementType.BFLOAT16: ("ShortBuffer", "BFLOAT16", "FloatBuffer"),
    ElementType.INT8: ("ByteBuffer", "INT8", "ByteBuffer"),
    ElementType.UINT8: ("ByteBuffer", "UINT8", "ByteBuffer"),
    ElementType.BOOL: ("ByteBuffer", "BOOL", "ByteBuffer"),
}
"""Element type to the buffer of an input, its OnnxJavaType where the buffer does not say it, and that of an output.

ONNX Runtime gives 16-bit floats out as 32-bit ones. Its Java API cannot make tensors of the types that lack here.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedInput:
    """An input of a model of several sizes: its shape in each, and what fills up smaller ones, if anything."""

    identifier: str
    dtype: ElementType | None
    shapes: tuple[tuple[int | str | None, ...], ...]
    padding: int | float | None

    @property
    def filled(self) -> bool:
        """Whether smaller ones are filled up."""
        return self.padding is not None

    @property
    def number(self) -> str:
        """The padding as the languages write numbers."""
        return repr((float if self.dtype and "float" in self.dtype else int)(self.padding or 0))

    @property
    def jvm_number(self) -> str:
        """The same in Java and Kotlin, which have 16-bit floats by their bits, as integers."""
        packed = {ElementType.FLOAT16: "<e", ElementType.BFLOAT16: "<f"}.get(self.dtype or ElementType.FLOAT32)
        if packed:
            return f"{int.from_bytes(struct.pack(packed, self.padding)[-2:], 'little')}L"
        return self.number if "." in self.number or "e" in self.number else f"{self.number}L"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """A model that ships in several sizes: that of open sizes, and the others, those of the fewest elements first."""

    model: ModelSignature
    sizes: tuple[ModelSignature, ...]

    @property
    def names(self) -> list[str]:
        """The models by their names, that of open sizes last."""
        return [row.model for row in (*self.sizes, self.model)]

    def inputs(self, taken: Collection[str]) -> Iterator[SizedInput]:
        """The inputs whose shape decides, those of open sizes, with identifiers as `identifiers` gives them."""
        for tensor, identifier in identifiers(self.model.inputs, taken):
            if not _is_fixed(tensor):
                rows = (row for size in self.sizes for row in size.inputs if row.name == tensor.name)
                yield SizedInput(
                    identifier=identifier,
                    dtype=tensor.dtype,
                    shapes=tuple(row.shape or () for row in rows),
                    padding=self.model.padding.get(tensor.name),
                )


def sizes_of(content: Content, target: str) -> list[ModelSizes]:
    """The models of a target that apps have the choice of several sizes of."""
    ships = rows_of(content, target)
    shipped = {row.model: row for row in content.models if row.model in ships}
    found = []
    for name, model in shipped.items():
        sized = [row for row in shipped.values() if row.size_of == name and all(map(_is_fixed, row.inputs))]
        if sized:
            found.append(ModelSizes(model=model, sizes=tuple(sorted(sized, key=_elements))))
    return found


def _is_fixed(tensor: TensorSignature) -> bool:
    return tensor.shape is not None and all(isinstance(axis, int) for axis in tensor.shape)


def _elements(model: ModelSignature) -> int:
    return sum(prod(axis for axis in tensor.shape or () if isinstance(axis, int)) for tensor in model.inputs)
