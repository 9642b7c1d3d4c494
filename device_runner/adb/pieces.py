"""Files in pieces whose ends their content decides: what two files have in common gives the same pieces in both.

A piece ends where the hash of the next WINDOW bytes is high, so bytes that are put in or left out move the ends around
them and no others. The weights of a model's variants lie at other places in each file; equal pieces find them again.
Equal pieces are grown at both ends to the byte.
"""

import bisect
import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

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


GROWTH_BYTES = 64 * 1024
"""How far a run is grown at an end. More equal bytes than the longest piece has would be a piece of their own."""


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """Bytes `start` to `end` of a file are those of another (by its number) from `offset` on."""

    start: int
    end: int
    source: int
    offset: int


def find_same(path: Path, sources: Sequence[Path]) -> list[SharedBytes]:
    """What a file has in common with others, in its order, without overlaps. Raises OSError."""
    usual = usual_bytes(path.stat().st_size)
    wanted = pieces_of(path, usual)
    others = _Others([pieces_of(source, usual) for source in sources])
    return _grown(path, sources, list(_runs(wanted, others)))


class _Others:
    """The pieces of several files, one after another: a place is a number of one of them."""

    def __init__(self, files: Sequence[Pieces]) -> None:
        import numpy as np

        self._files = files
        self._limits = np.cumsum([0, *(len(file.ends) for file in files)]).tolist()
        self._digests = np.concatenate([np.empty(0, np.uint64), *(file.digests for file in files)])
        self._order = np.argsort(self._digests, kind="stable")

    def ranks(self, digests: "np.ndarray") -> "tuple[np.ndarray, np.ndarray]":
        """The ranks at which pieces with these digests are: the first, and one behind the last; equal for none."""
        first = self._digests.searchsorted(digests, "left", self._order)
        return first, self._digests.searchsorted(digests, "right", self._order)

    def likely(self, first: int, behind: int, expected: int) -> set[int]:
        """Of the places at some ranks (periodic weights have many) the first, and the next from an expected one on."""
        places = self._order[first:behind]
        following = min(int(places.searchsorted(expected)), len(places) - 1)
        return {int(places[0]), int(places[following])}

    def count_same(self, place: int, digests: "np.ndarray") -> int:
        """How many pieces of one file, from a place on, have these digests."""
        limit = self._limits[bisect.bisect_right(self._limits, place)]
        return _run_length(digests, self._digests[place:limit])

    def find(self, place: int) -> tuple[int, int]:
        """The number of the file, and where in it the piece begins."""
        number = bisect.bisect_right(self._limits, place) - 1
        return number, _start(self._files[number], place - self._limits[number])


def _runs(wanted: Pieces, others: _Others) -> Iterator[SharedBytes]:
    """Runs of pieces that another file has in the same order; of several the longest."""
    first, behind = others.ranks(wanted.digests)
    at, expected = 0, 0
    for index in (first < behind).nonzero()[0].tolist():
        if index < at:
            continue
        places = others.likely(first[index], behind[index], expected + index - at)
        count, place = max((others.count_same(place, wanted.digests[index:]), place) for place in places)
        yield SharedBytes(_start(wanted, index), int(wanted.ends[index + count - 1]), *others.find(place))
        at, expected = index + count, place + count


def _run_length(one: "np.ndarray", other: "np.ndarray") -> int:
    """How many digests are equal from the start on; the first are."""
    size, limit = 64, min(len(one), len(other))
    while True:
        size = min(size, limit)
        different = one[:size] != other[:size]
        count = int(different.argmax())
        if different[count]:
            return count
        if size == limit:
            return limit
        size *= 4


def _start(pieces: Pieces, index: int) -> int:
    return int(pieces.ends[index - 1]) if index else 0


def _grown(path: Path, sources: Sequence[Path], runs: Sequence[SharedBytes]) -> list[SharedBytes]:
    """Runs with the equal bytes before and behind them: what lies between pieces of small tensors is much in all."""
    grown: list[SharedBytes] = []
    size = path.stat().st_size
    with path.open("rb") as file:
        for number, run in enumerate(runs):
            with sources[run.source].open("rb") as source:
                before = _equal_before(file, source, run, grown[-1].end if grown else 0)
                following = runs[number + 1].start if number + 1 < len(runs) else size
                behind = _equal_behind(file, source, run, following)
            grown.append(SharedBytes(run.start - before, run.end + behind, run.source, run.offset - before))
    return grown


def _equal_before(file: BinaryIO, source: BinaryIO, run: SharedBytes, limit: int) -> int:
    size = min(run.start - limit, run.offset, GROWTH_BYTES)
    one, other = (_read(opened, at - size, size) for opened, at in ((file, run.start), (source, run.offset)))
    return _count_equal(one[::-1], other[::-1])


def _equal_behind(file: BinaryIO, source: BinaryIO, run: SharedBytes, limit: int) -> int:
    size = min(limit - run.end, GROWTH_BYTES)
    return _count_equal(_read(file, run.end, size), _read(source, run.offset + run.end - run.start, size))


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _count_equal(one: bytes, other: bytes) -> int:
    """How many bytes are equal from the start on."""
    import numpy as np

    size = min(len(one), len(other))
    different = np.flatnonzero(np.frombuffer(one, np.uint8, size) != np.frombuffer(other, np.uint8, size))
    return int(different[0]) if len(different) else size
