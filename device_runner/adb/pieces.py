"""Files in pieces whose ends their content decides: what two files have in common gives the same pieces in both.

A piece ends where the hash of the next WINDOW bytes is high, so bytes that are put in or left out move the ends around
them and no others. The weights of a model's variants lie at other places in each file; equal pieces find them again.
"""

import bisect
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner.files import sha256

if TYPE_CHECKING:
    import numpy as np

WINDOW = 8
"""Bytes that are hashed for one place: two float32, so that weights give different hashes."""

USUAL = ((64 << 20, 1 << 10), (1 << 62, 4 << 10))
"""Files smaller than this are cut in pieces of about so many bytes. What lies between equal pieces is pushed again:
with 4 KB a campaign of quantized MobileNet (4 MB, tensors of 13 KB) pushes 1.8 times what it does with 1 KB; in files
of 400 MB both push the same, and 4 KB pieces are found in a third of the time."""

SHORTEST, LONGEST = 1 / 4, 4
"""Parts of the usual length that a piece may have."""

TOP = (1 << 64) - 1

FACTOR = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio (Knuth's multiplicative hashing): upper bits depend on all bytes, and zeros are low."""

BLOCK = 256 * 1024
"""Bytes that are hashed at once: so much stays in a processor's second cache."""

BUFFER = 8 * 1024 * 1024
"""Bytes of a file that are held in memory."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces of a file in order: where each ends (int64), and the first 8 bytes of its sha256 (uint64).

    Whoever puts a file together checks the digest of the whole, so 64 bits are enough here.
    """

    ends: "np.ndarray"
    digests: "np.ndarray"


def usual_bytes(size: int) -> int:
    """How long pieces of a file of that size usually are; files are compared in pieces of one usual length."""
    return next(usual for limit, usual in USUAL if size < limit)


def pieces_of(path: Path, usual: int) -> Pieces:
    """The pieces of a file, remembered by its digest. Raises OSError."""
    with _CUTTING:  # devices in other threads wait instead of doing the same work
        key = (sha256(path), usual)
        if key not in _PIECES:
            _PIECES[key] = _find_pieces(path, usual)
        return _PIECES[key]


_CUTTING = threading.Lock()

_PIECES: dict[tuple[str, int], Pieces] = {}


def _find_pieces(path: Path, usual: int) -> Pieces:
    import numpy as np

    sizes, digests = [0], [b""]
    for piece in read_pieces(path, usual):
        sizes.append(len(piece))
        digests.append(hashlib.sha256(piece).digest()[:8])
    return Pieces(np.cumsum(sizes, dtype=np.int64)[1:], np.frombuffer(b"".join(digests), "<u8"))


def read_pieces(path: Path, usual: int) -> Iterator[memoryview]:
    """The bytes of a file, piece by piece; together they are the file. Raises OSError."""
    held, more = b"", True
    with path.open("rb") as file:
        while more:
            data = file.read(BUFFER)
            held, more = held + data, bool(data)
            ends = cut(held, usual, last=not more)
            view = memoryview(held)
            yield from (view[start:end] for start, end in zip((0, *ends), ends, strict=False))
            held = held[ends[-1] :] if ends else held


def cut(data: bytes, usual: int, *, last: bool) -> list[int]:
    """Ends of the pieces of these bytes. Unless they are the last ones, those that what follows could change are left.

    Where a piece ends depends on nothing but the bytes from its start to WINDOW behind its greatest length.
    """
    limits = _Limits(data, usual)
    ends: list[int] = []
    start = 0
    while len(data) - start >= limits.longest + WINDOW:
        start = limits.end(start)
        ends.append(start)
    while last and start < len(data):
        start = limits.end(start)
        ends.append(start)
    return ends


class _Limits:
    """Where pieces may end in some bytes."""

    def __init__(self, data: bytes, usual: int) -> None:
        self.shortest, self.longest = int(usual * SHORTEST), usual * LONGEST
        self._data = data
        self._ends = _high_places(data, TOP - TOP // (usual - self.shortest))

    def end(self, start: int) -> int:
        """Where the piece that starts there ends."""
        at = bisect.bisect_left(self._ends, start + self.shortest)
        if at < len(self._ends) and self._ends[at] <= start + self.longest:
            return self._ends[at]
        if start + self.longest + WINDOW > len(self._data):
            return len(self._data)
        return _highest_place(self._data, start + self.shortest, start + self.longest)


def _hashes(data: bytes, start: int, stop: int) -> "Iterator[tuple[int, np.ndarray]]":
    """Hashes of the windows at places from start to stop: each eighth place from a first one on, for eight of these."""
    import numpy as np

    array = np.frombuffer(data, np.uint8)
    stop = min(stop, len(data) - WINDOW + 1)
    room = np.empty((stop - start) // WINDOW + 1 if stop > start else 0, np.uint64)
    for first in range(start, min(start + WINDOW, stop)):
        count = (stop - first + WINDOW - 1) // WINDOW
        words = array[first : first + count * WINDOW].view("<u8")
        yield first, np.multiply(words, np.uint64(FACTOR), out=room[:count])


def _high_places(data: bytes, bound: int) -> list[int]:
    """Places in order where the hash of the window is above a bound."""
    import numpy as np

    found = [np.empty(0, np.int64)]
    for start in range(0, len(data), BLOCK):
        for first, hashes in _hashes(data, start, start + BLOCK):
            found.append(np.flatnonzero(hashes > np.uint64(bound)) * WINDOW + first)
    return sorted(np.concatenate(found).tolist())


def _highest_place(data: bytes, start: int, last: int) -> int:
    """The last place with the highest hash: periodic weights have few different windows, and none that is high enough.

    A piece that just ended after the longest length would end elsewhere in every copy of them.
    """
    best = (-1, last)
    for first, hashes in _hashes(data, start, last + 1):
        at = len(hashes) - 1 - int(hashes[::-1].argmax())
        best = max(best, (int(hashes[at]), first + at * WINDOW))
    return best[1]
