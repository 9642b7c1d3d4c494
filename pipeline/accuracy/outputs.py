"""What metrics are computed of: the outputs of a sample by name, and contributions of samples that count so often."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Outputs: TypeAlias = Mapping[str, npt.NDArray[Any]]
Floats: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]


def the_output(outputs: Outputs) -> npt.NDArray[Any]:
    """The only output."""
    return next(iter(outputs.values()))


def mean(contributions: Floats, weights: Counts) -> float:
    """The mean of contributions, each as often as its sample counts."""
    return float(weights @ contributions / weights.sum())
