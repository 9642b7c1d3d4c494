"""Models of several sizes: what apps choose by."""

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from device_runner.spec import ElementType
from pipeline.release.code_names import identifiers
from pipeline.release.manifest import Content, ModelSignature
from pipeline.release.selection import rows_of
from pipeline.release.source_code import Code, code


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
    def number(self) -> Code:
        """The padding as the languages write numbers."""
        return code((float if self.dtype and "float" in self.dtype else int)(self.padding or 0))

    @property
    def jvm_number(self) -> Code:
        """The same in Java and Kotlin, which have 16-bit floats by their bits, as integers."""
        packed = {ElementType.FLOAT16: "<e", ElementType.BFLOAT16: "<f"}.get(self.dtype or ElementType.FLOAT32)
        if packed:
            bits = int.from_bytes(struct.pack(packed, self.padding)[-2:], "little")
            return Code("{}L").format(bits)
        return self.number if "." in self.number or "e" in self.number else Code("{}L").format(self.number)


def sizes_of(content: Content, target: str) -> list[tuple[ModelSignature, ...]]:
    """The models of a target that apps have the choice of several sizes of.

    For each its sizes, those of the fewest elements first, and then the model of open sizes.
    """

    def elements(model: ModelSignature) -> int:
        return sum(prod(axis for axis in tensor.shape or () if isinstance(axis, int)) for tensor in model.inputs)

    ships = rows_of(content, target)
    shipped = {model.model: model for model in content.models if model.model in ships}
    fixed = [artifact for artifact in shipped.values() if all(tensor.fixed for tensor in artifact.inputs)]
    by_model = {
        name: sorted((artifact for artifact in fixed if artifact.size_of == name), key=elements) for name in shipped
    }
    return [(*sizes, shipped[name]) for name, sizes in by_model.items() if sizes]


def sized_inputs(sizes: Sequence[ModelSignature], taken: Collection[str]) -> Iterator[SizedInput]:
    """The inputs whose shape decides on one of `sizes_of`, with identifiers as `identifiers` gives them."""
    *fixed, model = sizes
    for tensor, identifier in identifiers(model.inputs, taken):
        if not tensor.fixed:
            of_sizes = (given for size in fixed for given in size.inputs if given.name == tensor.name)
            yield SizedInput(
                identifier=identifier,
                dtype=tensor.dtype,
                shapes=tuple(given.shape or () for given in of_sizes),
                padding=model.padding.get(tensor.name),
            )
