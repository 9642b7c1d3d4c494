"""What work on a model may take: memory and time, by the size of the model."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

RUNTIME_BYTES = 300 << 20
"""What a process needs for onnxruntime and onnx, before any model."""


MODEL_FACTOR = 1.7
"""Peak memory of a conversion relative to the model's bytes (measured by benchmarks/conversion.py: at most 1.6)."""


TIMEOUT_SECONDS = 90.0


SECONDS_PER_BYTE = 1e-6
"""What work on a model may take: a minute and a half, and a second more for each megabyte. A hang must be noticed."""


def time_limit(sizes_bytes: Iterable[int]) -> float:
    """Seconds that one task may take where the largest of the models has so many bytes."""
    return TIMEOUT_SECONDS + SECONDS_PER_BYTE * max(sizes_bytes, default=0)


def needed_bytes(model_bytes: int, factor: float = MODEL_FACTOR) -> int:
    """Peak memory of a worker on a model of that size."""
    return RUNTIME_BYTES + int(factor * model_bytes)


def memory_budget() -> int:
    """70 % of the memory that is free now; 0 (no budget) where the system does not say."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) * 1024 * 7 // 10
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 5 // 10
    return 0
