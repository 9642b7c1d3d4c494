"""Arrays as raw files, as devices are given them."""

from pathlib import Path

from device_runner.spec import ElementType, TensorFile
from pipeline.core.files import write_bytes
from pipeline.model.signature import Array


def write_tensor(path: Path, name: str, array: Array) -> TensorFile:
    """Write an array as little-endian elements in C order; raises what writing files raises."""
    import numpy as np

    kind = "bool" if array.dtype == np.bool_ else array.dtype.name
    write_bytes(path, np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
    return TensorFile(name=name, dtype=ElementType(kind), shape=tuple(array.shape), file=str(path))
