"""Where a file has the same bytes as others: runs of equal pieces, grown at both ends to the byte."""

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from device_runner.adb.pieces import Pieces, pieces_of, usual_bytes

if TYPE_CHECKING:
    import numpy as np

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
