"""Runs a model on a device and reads its outputs as arrays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runner.device import Device
from device_runner.result import Failure, RunResult
from device_runner.spec import NnapiFlag, OptimizationLevel, RunOptions, RunSpec

DTYPES = {
    "float32": "<f4", "float64": "<f8", "float16": "<f2", "uint8": "u1", "int8": "i1", "int32": "<i4", "int64": "<i8",
    "bool": "?", "uint16": "<u2", "int16": "<i2", "uint32": "<u4", "uint64": "<u8",
}  # fmt: skip
DIMENSIONS = {"batch": 1, "N": 1, "T": 16, "H": 64, "W": 64, "L": 512, "seq": 16}
"""Sizes for the open dimensions of the oracle's real models."""

Outputs = dict[str, NDArray[Any]]


def run(
    device: Device,
    model: Path,
    folder: Path | None = None,
    *,
    provider: str = "cpu",
    flags: tuple[NnapiFlag, ...] = (),
    level: OptimizationLevel = OptimizationLevel.ALL,
    library: str | None = None,
    threads: int = 1,
    timeout_seconds: float = 120.0,
    session_config: dict[str, str] | None = None,
) -> RunResult:
    """One inference on inputs from a fixed seed."""
    spec = RunSpec(
        id=model.stem,
        model=str(model),
        library=library,
        options=RunOptions(
            provider=provider,
            flags=flags,
            intra_op_threads=threads,
            optimization_level=level,
            session_config=session_config or {},
        ),
        dimensions=DIMENSIONS,
        warmup=0,
        min_runs=1,
        min_seconds=0.0,
        timeout_seconds=timeout_seconds,
        outputs_folder=str(folder) if folder else None,
    )
    return device.run(spec)


def outputs(result: RunResult) -> Outputs:
    """Output arrays by name; fails for a run that gave none."""
    assert result.failure is None, result.failure
    return {
        tensor.name: np.fromfile(tensor.file, DTYPES[tensor.dtype.value]).reshape(tensor.shape)
        for tensor in result.outputs
    }


def failure(result: RunResult) -> Failure:
    """The failure of a run that must have failed."""
    assert result.failure is not None
    return result.failure


def distance(left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> float:
    """The largest difference, relative to the largest value of its output."""
    assert left.keys() == right.keys()
    distances = [0.0]
    for name, a in left.items():
        if a.size:
            x, y = a.astype(np.float64), right[name].astype(np.float64)
            assert (np.isnan(x) == np.isnan(y)).all(), name
            scale = max(float(np.nanmax(np.abs(x), initial=0.0)), 1e-9)
            distances.append(float(np.nanmax(np.abs(np.where(x == y, 0, x - y)), initial=0.0)) / scale)
    return max(distances)
