"""What bad drivers do to outputs: each of these must be refused on the phone, so each is tried at the desk."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Values: TypeAlias = "npt.NDArray[np.generic]"


def corrupted(values: Values) -> Iterator[tuple[str, Values]]:
    """An output as drivers were seen to give it, with what is wrong with it."""
    import numpy as np

    flat = values.reshape(-1)
    span = np.ptp(flat)
    yield "zeros", np.zeros_like(flat)
    yield "one NaN", _changed(flat, flat.size // 3, np.nan)
    yield "all NaN", np.full_like(flat, np.nan)
    yield "one infinity", _changed(flat, flat.size // 2, np.inf)
    yield "reversed", flat[::-1].copy()
    yield "rolled by one", np.roll(flat, 1)
    yield "its second half zero", np.where(np.arange(flat.size) < flat.size // 2, flat, 0).astype(flat.dtype)
    yield "one element off by the range", _changed(flat, int(np.abs(flat).argmax()), flat[np.abs(flat).argmax()] - span)


def _changed(flat: Values, offset: int, value: float) -> Values:
    changed = flat.copy()
    changed[offset] = value
    return changed
