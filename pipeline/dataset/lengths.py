"""Inputs that say how much of another input counts."""

import re
from collections.abc import Mapping, Sequence

from pipeline.model.signature import Array, TensorInfo

LENGTH = re.compile(r"(?:(.+)_)?(?:len|lens|length|lengths)", re.IGNORECASE)

TIME = re.compile(r"seq|len|token|time|frame|sample|audio", re.IGNORECASE)
"""Symbolic names of axes that have something in their order: those that may be cut."""


def full_lengths(takes: Sequence[TensorInfo], arrays: Mapping[str, Array]) -> dict[str, int]:
    """For integer inputs that say how much of another one counts in each row of the batch, by their names and shapes:
    all of it. `x_lens` speaks of `x`, and any length of the only input that has rows.

    An axis is plain where the model leaves it open alone, or names it so; of several the shortest is within all.
    """
    rows = {
        info.name: info
        for info in takes
        if info.name in arrays and arrays[info.name].ndim > 1 and not LENGTH.fullmatch(info.name)
    }
    lengths: dict[str, int] = {}
    for info in takes:
        name, array = LENGTH.fullmatch(info.name), arrays.get(info.name)
        if name is None or array is None or array.dtype.kind not in "iu" or array.ndim != 1:
            continue
        spoken = rows.get(name[1]) or (next(iter(rows.values())) if len(rows) == 1 else None)
        if spoken is None or spoken.shape is None or len(array) != len(arrays[spoken.name]):
            continue
        axes = list(enumerate(spoken.shape))[1:]
        open_ones = [axis for axis, size in axes if not isinstance(size, int)]
        named = [axis for axis, size in axes if isinstance(size, str) and TIME.search(size)]
        likely = named or open_ones or [axis for axis, _ in axes]
        lengths[info.name] = min(arrays[spoken.name].shape[axis] for axis in likely)
    return lengths
