"""Labelled sets in one .npz file: `inputs` [N, ...] and `labels` [N, ...], read one sample at a time."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from device_runner.files import ZIP_ERRORS
from pipeline.core.errors import ConfigError
from pipeline.dataset.values import plain_dtype
from pipeline.model.signature import Array, TensorInfo

if TYPE_CHECKING:
    import numpy as np

INPUTS, LABELS = "inputs", "labels"
SAMPLE_BYTES = 1 << 30
"""A sample above this is a mistake in the file's header."""


def is_stacked(file: Path, names: set[str]) -> bool:
    """Whether a file is such a set: an .npz file with both arrays, of which none is an input of the model."""
    if file.suffix.lower() != ".npz" or names & {INPUTS, LABELS}:
        return False
    try:
        with zipfile.ZipFile(file) as archive:
            return {f"{INPUTS}.npy", f"{LABELS}.npy"} <= set(archive.namelist())
    except ZIP_ERRORS:
        return False


def stacked_samples(file: Path, info: TensorInfo) -> Iterator[tuple[str, Array, Any]]:
    """Name, array and label of each sample, for the model's one input; ConfigError for a file that is damaged, has no
    sample, or as many labels as samples not.
    """
    try:
        with (
            zipfile.ZipFile(file) as archive,
            archive.open(f"{INPUTS}.npy") as inputs,
            archive.open(f"{LABELS}.npy") as labels,
        ):
            yield from _pairs(file, info, inputs, labels)
    except (*ZIP_ERRORS, SyntaxError) as error:
        raise _damaged_set(file, str(error) or type(error).__name__) from error


def _pairs(file: Path, info: TensorInfo, inputs: IO[bytes], labels: IO[bytes]) -> Iterator[tuple[str, Array, Any]]:
    (count, shape, dtype), (label_count, label_shape, label_dtype) = (_header(file, part) for part in (inputs, labels))
    if count != label_count or not count:
        raise ConfigError(
            "the labelled set is not inputs [N, ...] with labels [N]", where=str(file),
            why=f"inputs {[count, *shape]}, labels {[label_count, *label_shape]}",
            remedy="write one label for each sample",
        )  # fmt: skip
    for number in range(count):
        name = f"{file} sample {number}"
        label = _next(file, labels, label_shape, label_dtype)
        yield name, _as_input(_next(file, inputs, shape, dtype), info, name), label if label_shape else label.item()


def _header(file: Path, part: IO[bytes]) -> tuple[int, tuple[int, ...], "np.dtype[Any]"]:
    """Length of the first axis, shape of a sample and element type of an .npy stream, which is then at its data."""
    from numpy.lib import format as npy

    version = npy.read_magic(part)
    shape, fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(part)
    if not shape or fortran or dtype.hasobject:
        raise _damaged_set(file, "its arrays must have a first axis for samples, C order, and numbers or texts as elements")
    return shape[0], tuple(shape[1:]), dtype


def _next(file: Path, part: IO[bytes], shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
    import numpy as np

    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    if size > SAMPLE_BYTES:
        raise _damaged_set(file, f"a sample of shape {list(shape)} has {size} bytes")
    data = part.read(size)
    if len(data) != size:
        raise _damaged_set(file, "it ends early")
    return np.frombuffer(data, dtype).reshape(shape)


def _as_input(sample: Array, info: TensorInfo, name: str) -> Array:
    """A sample in the input's type and rank: a batch axis and other axes of one are added or removed."""
    import numpy as np

    dtype = plain_dtype(info)
    if info.shape is not None and sample.ndim == len(info.shape) - 1:
        sample = sample[None]
    elif info.shape is not None and sample.ndim != len(info.shape):
        sizes = [size if isinstance(size, int) else 1 for size in info.shape]
        sample = sample.reshape(sizes) if int(np.prod(sizes)) == sample.size else sample
    if not np.can_cast(sample.dtype, dtype, "same_kind"):
        raise ConfigError(
            f"the labelled set does not fit the input {info.name!r}", where=name,
            why=f"its elements are {sample.dtype}, the model takes {info}", remedy=f"save them as {dtype}",
        )  # fmt: skip
    return sample.astype(dtype)


def _damaged_set(file: Path, why: str) -> ConfigError:
    return ConfigError(
        "the labelled set cannot be read", where=str(file), why=why.splitlines()[0][:300],
        remedy="give an .npz file with the arrays `inputs` [N, ...] and `labels` [N]",
    )  # fmt: skip
