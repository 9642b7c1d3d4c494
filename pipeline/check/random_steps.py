"""What the inputs of a stream get in each step where there is no test data: random numbers, the same each time."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from pipeline.config import tables as config_tables
from pipeline.model.signature import Array

if TYPE_CHECKING:
    import numpy as np


Declared: TypeAlias = Mapping[str, config_tables.InputValue]
"""Values and ranges of inputs, as a config has them."""


def moving(
    feeds: Mapping[str, Array], states: Mapping[str, str], declared: Declared, *, given: bool
) -> dict[str, Array]:
    """The inputs that are others in each step: with samples `given` all numbers, else what is random."""
    return {
        name: array
        for name, array in feeds.items()
        if (array.dtype.kind in "fiu" if given else range_of(array, declared.get(name)))
        and array.size
        and name not in states.values()
    }


def range_of(array: Array, declared: config_tables.InputValue | None) -> tuple[float, float] | None:
    """From what to below what the elements of an input are random in each step; None where they stay as they are.

    So does what is declared as a value, and what has 32 or 64 bits: indices, lengths and rates, whose range nobody
    knows. ONNX takes nothing smaller for indices: 8 and 16 bits are those of samples and pixels, of their whole range.
    """
    import numpy as np

    if isinstance(declared, config_tables.Range):
        return declared.low, declared.high
    if declared is not None or array.dtype.kind not in "fiu":
        return None
    if array.dtype.kind == "f":
        return -1, 1
    limits = np.iinfo(array.dtype.name)
    return (int(limits.min), int(limits.max) + 1) if array.dtype.itemsize <= 2 else None


def values(
    random: "np.random.Generator", array: Array, declared: config_tables.InputValue | None, steps: int
) -> Iterator[Array]:
    """The elements of an input in each step, little endian; none where they stay as they are."""
    import numpy as np

    low, high = range_of(array, declared) or (0, 0)
    for _ in range(steps if high > low else 0):
        if array.dtype.kind == "f":
            yield np.asarray(random.uniform(low, high, array.shape), array.dtype.newbyteorder("<"))
        else:
            yield np.asarray(random.integers(int(low), int(high), array.shape), array.dtype.newbyteorder("<"))
