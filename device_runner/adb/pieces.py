"""What of a file has to be sent to make it from others: pieces that both have, found by their digests.

Files are compared in pieces whose ends their content decides: a piece ends where the hash of the next WINDOW bytes is
high, so bytes that are put in or left out move the ends around them and no others. The weights of the variants of a
model lie at other places in each file; equal pieces find them again, and are grown at both ends to the byte.
"""

import bisect
import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from device_runner import files as runner_files

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

Pieces = tuple["np.ndarray", "np.ndarray"]
"""The pieces of a file in order: where each ends (int64), and the first 8 bytes of its sha256 (uint64).

Whoever puts a file together checks the digest of the whole, so 64 bits are enough here.
"""


def usual_bytes(size: int) -> int:
    """How long pieces of a file of that size usually are; files are compared in pieces of one usual length."""
    return next(usual for limit, usual in USUAL if size < limit)


def pieces_of(path: Path, usual: int) -> Pieces:
    """The pieces of a file, remembered by its digest. Raises OSError."""
    import numpy as np

    with _CUTTING:  # devices in other threads wait instead of doing the same work
        key = (runner_files.sha256(path), usual)
        if key not in _PIECES:
            sizes, digests = [0], [b""]
            held, more = b"", True
            with path.open("rb") as file:
                while more:
                    data = file.read(BUFFER)
                    held, more = held + data, bool(data)
                    places = cut(held, usual, last=not more)
                    view = memoryview(held)
                    for start, end in zip((0, *places), places, strict=False):
                        sizes.append(end - start)
                        digests.append(hashlib.sha256(view[start:end]).digest()[:8])
                    held = held[places[-1] :] if places else held
            ends = np.cumsum(sizes, dtype=np.int64)[1:]
            _PIECES[key] = ends, np.frombuffer(b"".join(digests), "<u8")
        return _PIECES[key]


_CUTTING = threading.Lock()

_PIECES: dict[tuple[str, int], Pieces] = {}


def cut(data: bytes, usual: int, *, last: bool) -> list[int]:
    """Ends of the pieces of these bytes. Unless they are the last ones, those that what follows could change are left.

    Where a piece ends depends on nothing but the bytes from its start to WINDOW behind its greatest length.
    """
    import numpy as np

    shortest, longest = int(usual * SHORTEST), usual * LONGEST
    # Places where the hash of the window is high enough, in their order
    bound, high = np.uint64(TOP - TOP // (usual - shortest)), [np.empty(0, np.int64)]
    for block in range(0, len(data), BLOCK):
        for first, hashes in _hashes(data, block, block + BLOCK):
            high.append(np.flatnonzero(hashes > bound) * WINDOW + first)
    places = sorted(np.concatenate(high).tolist())
    ends: list[int] = []
    start = 0
    while start < len(data) and (last or len(data) - start >= longest + WINDOW):
        at = bisect.bisect_left(places, start + shortest)
        if at < len(places) and places[at] <= start + longest:
            start = places[at]
        elif start + longest + WINDOW > len(data):
            start = len(data)
        else:
            # The last place with the highest hash: periodic weights have few different windows, and none that is high
            # enough. A piece that just ended after the longest length would end elsewhere in every copy of them.
            best = (-1, start + longest)
            for first, hashes in _hashes(data, start + shortest, start + longest + 1):
                at = len(hashes) - 1 - int(hashes[::-1].argmax())
                best = max(best, (int(hashes[at]), first + at * WINDOW))
            start = best[1]
        ends.append(start)
    return ends


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


GROWTH_BYTES = 64 * 1024
"""How far a run is grown at an end. More equal bytes than the longest piece has would be a piece of their own."""


@dataclass(frozen=True, slots=True)
class PatchStep:
    """The bytes `start` to `end` of a file: those of another from `offset` on, by its number, or its own (None)."""

    start: int
    end: int
    source: int | None = None
    offset: int = 0

    @property
    def size(self) -> int:
        """How many they are."""
        return self.end - self.start


def _runs(pieces: Pieces, others: Sequence[Pieces]) -> Iterator[PatchStep]:
    """Runs of pieces that another file has in the same order; of several the longest.

    The pieces of the others are looked at one after another: a place is a number of one of them.
    """
    import numpy as np

    ends, digests = pieces
    limits = np.cumsum([0, *(len(file[0]) for file in others)]).tolist()
    hashes = np.concatenate([np.empty(0, np.uint64), *(file[1] for file in others)])
    order = np.argsort(hashes, kind="stable")
    first, behind = hashes.searchsorted(digests, "left", order), hashes.searchsorted(digests, "right", order)
    at, expected = 0, 0
    for index in (first < behind).nonzero()[0].tolist():
        if index < at:
            continue
        # Of the places with this digest (periodic weights have many) the first, and the next from the expected one on.
        places = order[first[index] : behind[index]]
        following = min(int(places.searchsorted(expected + index - at)), len(places) - 1)
        likely = {int(places[0]), int(places[following])}
        count, start = max(
            (_run_length(digests[index:], hashes[start : limits[bisect.bisect_right(limits, start)]]), start)
            for start in likely
        )
        number = bisect.bisect_right(limits, start) - 1
        before = start - limits[number]
        offset = int(others[number][0][before - 1]) if before else 0
        yield PatchStep(int(ends[index - 1]) if index else 0, int(ends[index + count - 1]), number, offset)
        at, expected = index + count, start + count


def _run_length(first: "np.ndarray", second: "np.ndarray") -> int:
    """How many digests are equal from the start on; the first are."""
    size, limit = 64, min(len(first), len(second))
    while True:
        size = min(size, limit)
        different = first[:size] != second[:size]
        count = int(different.argmax())
        if different[count]:
            return count
        if size == limit:
            return limit
        size *= 4


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _count_equal(first: bytes, second: bytes) -> int:
    """How many bytes are equal from the start on."""
    import numpy as np

    size = min(len(first), len(second))
    different = np.flatnonzero(np.frombuffer(first, np.uint8, size) != np.frombuffer(second, np.uint8, size))
    return int(different[0]) if len(different) else size


SMALLEST_BYTES = 1024 * 1024
"""A smaller file goes whole: over a cable of USB 2 (40 MB/s) it takes no longer than one more command."""

WORTH = 0.75
"""The part of a file above which the whole goes: over USB 2 a device takes about as long to read and write four bytes
(200 MB/s each) as to get one, so less than a quarter saved is no gain."""

READ_BYTES = 256 * 1024
"""What is read and sent at once: less costs calls, more costs fresh memory each time (measured: 64 KB to 1 MB)."""


@dataclass(frozen=True, slots=True)
class Patch:
    """How a file comes of others; `head` is what the probe reads (probe/pieces.h), the bytes of own steps follow it.

    `sources` are the names on the device of the files that it takes from.
    """

    path: Path
    steps: tuple[PatchStep, ...]
    head: bytes
    sources: frozenset[str]

    @property
    def size(self) -> int:
        """Bytes that are to be pushed."""
        return len(self.head) + sum(step.size for step in self.steps if step.source is None)

    def chunks(self) -> Iterator[bytes]:
        """What is to be pushed, part by part. Raises OSError."""
        yield self.head
        with self.path.open("rb") as file:
            for step in self.steps:
                if step.source is not None:
                    file.seek(step.size, 1)
                    continue
                for start in range(0, step.size, READ_BYTES):
                    yield file.read(min(READ_BYTES, step.size - start))


def find_patch(path: Path, sources: dict[str, Path]) -> Patch | None:
    """The patch that makes a file from others, by their names on the device; None where the whole is no dearer.

    Raises OSError.
    """
    size, names, others = path.stat().st_size, list(sources), list(sources.values())
    if size < SMALLEST_BYTES or not sources:
        return None
    usual = usual_bytes(size)
    runs = list(_runs(pieces_of(path, usual), [pieces_of(other, usual) for other in others]))
    copies: list[PatchStep] = []
    end = 0
    with path.open("rb") as file:
        for number, run in enumerate(runs):
            # With the equal bytes before and behind it: what lies between pieces of small tensors is much in all.
            following = runs[number + 1].start if number + 1 < len(runs) else size
            most_before = min(run.start - end, run.offset, GROWTH_BYTES)
            most_behind = min(following - run.end, GROWTH_BYTES)
            with others[run.source or 0].open("rb") as source:
                before = _count_equal(
                    _read(file, run.start - most_before, most_before)[::-1],
                    _read(source, run.offset - most_before, most_before)[::-1],
                )
                behind = _count_equal(
                    _read(file, run.end, most_behind), _read(source, run.offset + run.size, most_behind)
                )
            copies.append(PatchStep(run.start - before, run.end + behind, run.source, run.offset - before))
            end = copies[-1].end
    # What lies between the copies, and behind the last one, is sent.
    steps: list[PatchStep] = []
    lines, end = [], 0
    for same in (*copies, PatchStep(size, size)):
        if same.start > end:
            steps.append(PatchStep(end, same.start))
            lines.append(f"data {same.start - end}")
        if same.source is not None:
            steps.append(same)
            lines.append(f"copy {names[same.source]} {same.offset} {same.size}")
        end = same.end
    head = "\n".join(["ort-mobile pieces 1", f"size {size}", *lines, "end", ""]).encode()
    patch = Patch(path, tuple(steps), head, frozenset(names[same.source or 0] for same in copies))
    return patch if patch.size <= WORTH * size else None
