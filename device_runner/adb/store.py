"""Files on a device under their digest: pushed once or patched, checked before they count, fetched with a limit.

Of a file that shares much with others there, only the rest is pushed: the probe puts it together from ranges of those.
Files are compared in pieces whose ends their content decides: a piece ends where the hash of the next WINDOW bytes is
high, so bytes that are put in or left out move the ends around them and no others. The weights of the variants of a
model lie at other places in each file; equal pieces find them again, and are grown at both ends to the byte.
"""

import bisect
import contextlib
import hashlib
import logging
import os
import re
import secrets
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from device_runner.adb.link import Link, LinkError, script
from device_runner.adb.phone import SUFFIX, free_bytes
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
        key = (sha256(path), usual)
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
        count, place = max(
            (_run_length(digests[index:], hashes[place : limits[bisect.bisect_right(limits, place)]]), place)
            for place in likely
        )
        number = bisect.bisect_right(limits, place) - 1
        before = place - limits[number]
        offset = int(others[number][0][before - 1]) if before else 0
        yield PatchStep(int(ends[index - 1]) if index else 0, int(ends[index + count - 1]), number, offset)
        at, expected = index + count, place + count


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

MOST_REMOVED = 500
"""Files that one command removes: their names are about 70 characters each, and a command has at most 60,000."""

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


RESERVE_BYTES = 64 * 1024 * 1024
"""What stays free on the device: Android misbehaves on a full disk."""

SLOWEST_BYTES_PER_SECOND = 1_000_000
"""A push slower than this counts as stalled."""

PIECES_VARIABLE = "ORT_MOBILE_PIECES"
"""Environment variable: at 0, files go whole even where others on the device have most of their bytes."""

logger = logging.getLogger(__name__)


class NoSpace(LinkError):
    """The device is full, and what could go is gone."""


class BrokenTransfer(LinkError):
    """What arrived is not what was sent, twice."""


class StoreRefused(LinkError):
    """The device lets nobody store and execute files there: that is its set-up, and pushing again changes nothing."""


StoredFile = tuple[int, int, str]
"""A file of the store: when it was last used (seconds), its size, its name."""

Inventory = tuple[int, tuple[StoredFile, ...]]
"""What a device has: free bytes (0 when it does not tell), and the files of the store."""

CHECK = 'cd "$1" && sha256sum "$2" && touch "$2"'

WRONG_DIGEST = 9

ACCEPT = f"""
cd "$1" && sum=$(sha256sum "$2") || {{ rm -f "$2"; exit 14; }}
case "$sum" in
  "$4 "*) ;;
  *) rm -f "$2"; exit {WRONG_DIGEST} ;;
esac
chmod 755 "$2" || {{ rm -f "$2"; exit 12; }}
mv -f "$2" "$3" || {{ rm -f "$2"; exit 15; }}
"""
"""Folder, temporary name, final name, digest: the file gets its name only when it is whole."""

REFUSALS = {
    10: "its folder cannot be made or entered",
    11: "nothing can be written there",
    12: "files there cannot be made executable (chmod)",
    13: "files there cannot be executed: it is mounted noexec",
    14: "files there cannot be compared (sha256sum)",
    15: "files there cannot be renamed (mv)",
}
"""What a device refuses, by the exit codes of LOOK and ACCEPT."""

JOIN = f"""
cd "$1" || exit 1
"$5" join "$6" "$2"
code=$?
rm -f "$6"
[ $code = 0 ] || exit $code
{ACCEPT}
"""
"""As ACCEPT, then the probe and the patch of which it makes the temporary file."""

LOOK = """
mkdir -p "$1/store" && cd "$1/store" || exit 10
rm -f .part-*
echo > .part-try || exit 11
chmod 755 .part-try || { rm -f .part-try; exit 12; }
[ -x .part-try ] || { rm -f .part-try; exit 13; }
sha256sum .part-try > /dev/null || { rm -f .part-try; exit 14; }
mv -f .part-try .part-tried || { rm -f .part-try; exit 15; }
rm -f .part-tried
df -k "$1"
printf '\\0'
stat -c "%Y %s %n" * 2>/dev/null
true
"""
"""The root: what pushed files need is tried with an empty one, so that nothing is pushed in vain."""

REMOVE = 'cd "$1" && shift && rm -f "$@"'


class DeviceStore:
    """The folder `store` under a device's root. Not for two processes at once: the device's lease sees to that."""

    def __init__(self, link: Link, root: str) -> None:
        self._link = link
        self._root = root
        self._folder = f"{root}/store"
        self._known: set[str] = set()
        self._local: dict[str, Path] = {}
        self.joiner: Path | None = None
        """The probe, which puts files together from what the device has; None: they go whole."""
        self.used: list[str] = []
        """What was put, in its order."""
        self.pushed_bytes = 0

    def put(self, path: Path, suffix: str = "") -> str:
        """Where the file lies on the device; pushed unless it is there and whole. Raises LinkError, OSError.

        `suffix` stays at the name, for those who judge a file by it (ONNX Runtime: .ort).
        """
        digest = sha256(path)
        name = digest + (suffix if re.fullmatch(r"\.[a-z0-9]{1,8}", suffix) else "")
        size = path.stat().st_size
        if name not in self._known and not self._is_whole(name, size) and not self._join(path, name):
            self._make_room(self._look(), size, self._known)
            for _ in range(2):
                part = part_name()
                with path.open("rb") as file:
                    self._send(iter(partial(file.read, READ_BYTES), b""), part, size)
                arguments = script(ACCEPT, self._folder, part, name, digest)
                output = self._link.shell(arguments, seconds=_longest_seconds(size))
                if output.returncode == 0:
                    break
                self._require(output)
                logger.warning("%s: %s arrived broken (%s)", self._link.serial, path, output.stderr[-200:])
            else:
                raise BrokenTransfer(f"{path.name}: what arrives on the device is not what was sent")
        self._known.add(name)
        self._local[name] = path
        place = f"{self._folder}/{name}"
        self.used.append(place)
        return place

    def forget(self) -> None:
        """Believe nothing any more: the device was away, and may be another or wiped."""
        self._known.clear()

    def _is_whole(self, name: str, size: int) -> bool:
        output = self._link.shell(script(CHECK, self._folder, name), seconds=_longest_seconds(size))
        return output.returncode == 0 and output.stdout.startswith(name.partition(".")[0].encode())

    def _join(self, path: Path, name: str) -> bool:
        """Push what the device does not have of a file, and have it put together; False where the whole must go."""
        size = path.stat().st_size
        if self.joiner in (None, path) or size < SMALLEST_BYTES or os.environ.get(PIECES_VARIABLE) == "0":
            return False
        joiner = self.put(self.joiner, SUFFIX)
        there = self._look()
        files = there[1]
        # The file may come of others that the device has and this computer too: used before, or beside it
        digest, dot, ending = name.partition(".")
        names = {other: length for _, length, other in files if length >= SMALLEST_BYTES}
        sizes, local, patch = set(names.values()), dict(self._local), None
        with contextlib.suppress(OSError):  # of the file itself, pushing says it
            for other in path.parent.iterdir():
                with contextlib.suppress(OSError):
                    if other.suffix == path.suffix and other.stat().st_size in sizes:
                        local[sha256(other) + dot + ending] = other
            patch = find_patch(path, {name: local[name] for name in names if name in local})
        if patch is None:
            return False
        with contextlib.suppress(NoSpace):  # the whole needs less
            self._make_room(there, size + patch.size, self._known | patch.sources)
            part, target = part_name(), part_name()
            self._send(patch.chunks(), part, patch.size)
            arguments = (self._folder, target, name, digest, joiner, part)
            output = self._link.shell(
                script(JOIN, *arguments), seconds=_longest_seconds(3 * size)
            )  # read, written, read
            if output.returncode == 0:
                return True
            logger.warning("%s: %s was joined wrong (%s)", self._link.serial, path, output.stderr[-200:])
            for _, length, source in files:  # one of those that it takes from may not be whole (any more)
                if source in patch.sources and not self._is_whole(source, length):
                    logger.warning("%s: %s is broken on the device, and goes", self._link.serial, source)
                    self._known.discard(source)
                    self._link.shell(script(REMOVE, self._folder, source))
        return False

    def _send(self, parts: Iterable[bytes], name: str, size: int) -> None:
        try:
            self._link.push(parts, f"{self._folder}/{name}", seconds=_longest_seconds(size))
        except LinkError as error:
            if "No space left" in str(error):
                raise NoSpace(str(error)) from error
            raise
        self.pushed_bytes += size

    def _look(self) -> Inventory:
        """What is there, after what earlier pushes left half is gone."""
        output = self._link.shell(script(LOOK, self._root))
        self._require(output)
        text = output.stdout.decode("utf-8", "replace")
        df, _, listed = text.partition("\0")
        rows = (re.fullmatch(r"(\d{1,12}) (\d{1,15}) ([0-9a-f]{64}[.a-z0-9]*)", line) for line in listed.splitlines())
        return free_bytes(df), tuple((int(row[1]), int(row[2]), row[3]) for row in rows if row)

    def _require(self, output: subprocess.CompletedProcess[bytes]) -> None:
        """Raise StoreRefused for what a script says that the device does not let it do."""
        if what := REFUSALS.get(output.returncode):
            said = " ".join(output.stderr[-300:].decode("utf-8", "replace").split())
            raise StoreRefused(
                f"the device does not take files: {what}{f' ({said})' if said else ''}",
                where=self._folder,
                remedy=f"let its shell user write and execute in {self._root} (`adb shell` with mount, ls -ldZ and df "
                "says what forbids it), or use another device",
            )  # fmt: skip

    def _make_room(self, there: Inventory, size: int, keep: set[str]) -> None:
        """Remove what was not used longest until the file fits; raises NoSpace when even that is not enough."""
        free, files = there
        if not free or free >= size + RESERVE_BYTES:
            return
        victims = choose_victims(files, size + RESERVE_BYTES - free, keep)
        if victims is None:
            raise NoSpace(f"{free} bytes are free, {size} and a reserve of {RESERVE_BYTES} are needed")
        names = [name for _, _, name in victims]
        for start in range(0, len(names), MOST_REMOVED):
            self._link.shell(script(REMOVE, self._folder, *names[start : start + MOST_REMOVED]))


def choose_victims(files: Iterable[StoredFile], needed: int, keep: set[str]) -> list[StoredFile] | None:
    """The longest unused files that free so many bytes, without those to keep; None when all of them are too few."""
    chosen: list[StoredFile] = []
    for used, size, name in sorted(files, key=lambda file: (file[0], file[2])):
        if needed <= 0:
            break
        if name not in keep:
            chosen.append((used, size, name))
            needed -= size
    return chosen if needed <= 0 else None


def _longest_seconds(size: int) -> float:
    """What sending or reading so many bytes may take at most, so that a hanging connection is noticed soon."""
    return 20.0 + size / SLOWEST_BYTES_PER_SECOND


def part_name() -> str:
    """A name for what is not whole yet."""
    return f".part-{secrets.token_hex(8)}"
