"""Files on a device under their digest: pushed once or patched, checked before they count, fetched with a limit.

Of a file that shares much with others there, only the rest is pushed: the probe puts it together from ranges of those.
"""

import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from device_runner.adb.facts import SUFFIX, free_bytes
from device_runner.adb.link import Link, LinkError, script
from device_runner.adb.pieces import find_same
from device_runner.files import PROFILE_LIMIT_BYTES, Fetch, sha256, tensor_bytes
from device_runner.result import RunResult

GRACE_SECONDS = 20.0


def fetch_from(link: Link, folder: str, result: RunResult) -> Fetch:
    """What brings files of the run folder here; raises LinkError, and LinkTimeout when the time for all is over.

    The time is that of the slowest sound connection, from now on.
    """
    tensors = (*result.outputs, *((result.labelled_outputs,) if result.labelled_outputs else ()))
    size = sum(map(tensor_bytes, tensors)) + (PROFILE_LIMIT_BYTES if result.profile_file else 0)
    deadline = time.monotonic() + GRACE_SECONDS + size / SLOWEST_BYTES_PER_SECOND

    def fetch(name: str, path: Path, limit_bytes: int) -> None:
        seconds = max(0.0, deadline - time.monotonic())
        link.pull(f"{folder}/{name}", path, seconds=seconds, limit_bytes=limit_bytes)

    return fetch


SMALLEST_BYTES = 1024 * 1024
"""A smaller file goes whole: over a cable of USB 2 (40 MB/s) it takes no longer than one more command."""

WORTH = 0.75
"""The part of a file above which the whole goes: over USB 2 a device takes about as long to read and write four bytes
(200 MB/s each) as to get one, so less than a quarter saved is no gain."""

READ_BYTES = 256 * 1024
"""What is read and sent at once: less costs calls, more costs fresh memory each time (measured: 64 KB to 1 MB)."""


@dataclass(frozen=True, slots=True)
class PatchStep:
    """The next bytes of a file: from a place of another file (its name), or its own ("")."""

    source: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Patch:
    """How a file comes of others; `head` is what the probe reads (probe/pieces.h), the bytes of own steps follow it."""

    path: Path
    steps: tuple[PatchStep, ...]
    head: bytes

    @property
    def size(self) -> int:
        """Bytes that are to be pushed."""
        return len(self.head) + sum(step.size for step in self.steps if not step.source)

    @property
    def sources(self) -> set[str]:
        """Names of the files that it takes from."""
        return {step.source for step in self.steps if step.source}

    def chunks(self) -> Iterator[bytes]:
        """What is to be pushed, part by part. Raises OSError."""
        yield self.head
        with self.path.open("rb") as file:
            for step in self.steps:
                if step.source:
                    file.seek(step.size, 1)
                    continue
                for start in range(0, step.size, READ_BYTES):
                    yield file.read(min(READ_BYTES, step.size - start))


def find_patch(path: Path, sources: dict[str, Path]) -> Patch | None:
    """The patch that makes a file from others, by their names on the device; None where the whole is no dearer.

    Raises OSError.
    """
    size = path.stat().st_size
    if size < SMALLEST_BYTES or not sources:
        return None
    steps = tuple(find_steps(path, sources))
    lines = [f"copy {step.source} {step.offset} {step.size}" if step.source else f"data {step.size}" for step in steps]
    head = "\n".join(["ort-mobile pieces 1", f"size {size}", *lines, "end", ""]).encode()
    patch = Patch(path, steps, head)
    return patch if patch.size <= WORTH * size else None


def find_steps(path: Path, sources: dict[str, Path]) -> Iterator[PatchStep]:
    """The steps that give a file. Raises OSError."""
    names, end = list(sources), 0
    for same in find_same(path, list(sources.values())):
        if same.start > end:
            yield PatchStep("", end, same.start - end)
        yield PatchStep(names[same.source], same.offset, same.end - same.start)
        end = same.end
    if path.stat().st_size > end:
        yield PatchStep("", end, path.stat().st_size - end)


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


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the store: when it was last used (seconds), its size, its name."""

    used: int
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a device has: free bytes (0 when it does not tell), and the files of the store."""

    free: int
    files: tuple[StoredFile, ...]


CHECK = 'cd "$1" && sha256sum "$2" && touch "$2"'

ACCEPT = """
cd "$1" || exit 1
sum=$(sha256sum "$2") || exit 1
case "$sum" in
  "$4 "*) chmod 755 "$2" && mv -f "$2" "$3" ;;
  *) rm -f "$2"; exit 9 ;;
esac
"""
"""Folder, temporary name, final name, digest: the file gets its name only when it is whole."""

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
mkdir -p "$1/store" && cd "$1/store" || exit 1
rm -f .part-*
df -k "$1"
printf '\\0'
stat -c "%Y %s %n" * 2>/dev/null
true
"""

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
        self.pushed_bytes = 0
        self.put_ns = 0
        """Time that bringing files to the device, or seeing that they are there, took since it was opened."""

    def put(self, path: Path, suffix: str = "") -> str:
        """Where the file lies on the device; pushed unless it is there and whole. Raises LinkError, OSError.

        `suffix` stays at the name, for those who judge a file by it (ONNX Runtime: .ort).
        """
        begun = time.monotonic_ns()
        try:
            return self._put(path, suffix)
        finally:
            self.put_ns += time.monotonic_ns() - begun

    def _put(self, path: Path, suffix: str = "") -> str:
        digest = sha256(path)
        name = digest + (suffix if re.fullmatch(r"\.[a-z0-9]{1,8}", suffix) else "")
        size = path.stat().st_size
        if name not in self._known and not self._is_whole(name, size) and not self._join(path, name):
            self._push(path, name)
        self._known.add(name)
        self._local[name] = path
        return f"{self._folder}/{name}"

    def forget(self) -> None:
        """Believe nothing any more: the device was away, and may be another or wiped."""
        self._known.clear()

    def _is_whole(self, name: str, size: int) -> bool:
        output = self._link.shell(script(CHECK, self._folder, name), seconds=_longest_seconds(size))
        return output.code == 0 and output.text.startswith(digest_of(name))

    def _push(self, path: Path, name: str) -> None:
        size = path.stat().st_size
        self._make_room(self._look(), size, self._known)
        for _ in range(2):
            part = part_name()
            self._send(read_parts(path), part, size)
            arguments = script(ACCEPT, self._folder, part, name, digest_of(name))
            output = self._link.shell(arguments, seconds=_longest_seconds(size))
            if output.code == 0:
                return
            logger.warning("%s: %s arrived broken (%s)", self._link.serial, path, output.stderr[-200:])
        raise BrokenTransfer(f"{path.name}: what arrives on the device is not what was sent")

    def _join(self, path: Path, name: str) -> bool:
        """Push what the device does not have of a file, and have it put together; False where the whole must go."""
        size = path.stat().st_size
        if self.joiner in (None, path) or size < SMALLEST_BYTES or os.environ.get(PIECES_VARIABLE) == "0":
            return False
        joiner = self._put(self.joiner, SUFFIX)
        there = self._look()
        patch = self._patch(path, name, there)
        if patch is None:
            return False
        with contextlib.suppress(NoSpace):  # the whole needs less
            self._make_room(there, size + patch.size, self._known | patch.sources)
            part, target = part_name(), part_name()
            self._send(patch.chunks(), part, patch.size)
            arguments = (self._folder, target, name, digest_of(name), joiner, part)
            output = self._link.shell(
                script(JOIN, *arguments), seconds=_longest_seconds(3 * size)
            )  # read, written, read
            if output.code == 0:
                return True
            logger.warning("%s: %s was joined wrong (%s)", self._link.serial, path, output.stderr[-200:])
            self._remove_broken(file for file in there.files if file.name in patch.sources)
        return False

    def _patch(self, path: Path, name: str, there: Inventory) -> Patch | None:
        """How the file comes of others that the device has and this computer too: used before, or beside it."""
        suffix = name.removeprefix(digest_of(name))
        names = {file.name: file.size for file in there.files if file.size >= SMALLEST_BYTES}
        with contextlib.suppress(OSError):  # of the file itself, pushing says it
            beside = [other for other in path.parent.iterdir() if other.suffix == path.suffix]
            local = self._local | named(beside, suffix, set(names.values()))
            return find_patch(path, {name: local[name] for name in names if name in local})
        return None

    def _remove_broken(self, files: Iterable[StoredFile]) -> None:
        """Remove those that are not whole (any more)."""
        for file in files:
            if not self._is_whole(file.name, file.size):
                logger.warning("%s: %s is broken on the device, and goes", self._link.serial, file.name)
                self._known.discard(file.name)
                self._link.shell(script(REMOVE, self._folder, file.name))

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
        df, _, listed = self._link.shell(script(LOOK, self._root)).text.partition("\0")
        found = (re.fullmatch(r"(\d{1,12}) (\d{1,15}) ([0-9a-f]{64}[.a-z0-9]*)", line) for line in listed.splitlines())
        return Inventory(free_bytes(df), tuple(StoredFile(int(m[1]), int(m[2]), m[3]) for m in found if m))

    def _make_room(self, there: Inventory, size: int, keep: set[str]) -> None:
        """Remove what was not used longest until the file fits; raises NoSpace when even that is not enough."""
        if not there.free or there.free >= size + RESERVE_BYTES:
            return
        victims = choose_victims(there.files, size + RESERVE_BYTES - there.free, keep)
        if victims is None:
            raise NoSpace(f"{there.free} bytes are free, {size} and a reserve of {RESERVE_BYTES} are needed")
        self._link.shell(script(REMOVE, self._folder, *(victim.name for victim in victims)))


def choose_victims(files: Iterable[StoredFile], needed: int, keep: set[str]) -> list[StoredFile] | None:
    """The longest unused files that free so many bytes, without those to keep; None when all of them are too few."""
    chosen: list[StoredFile] = []
    for file in sorted(files, key=lambda file: (file.used, file.name)):
        if needed <= 0:
            break
        if file.name not in keep:
            chosen.append(file)
            needed -= file.size
    return chosen if needed <= 0 else None


def _longest_seconds(size: int) -> float:
    """What sending or reading so many bytes may take at most, so that a hanging connection is noticed soon."""
    return 20.0 + size / SLOWEST_BYTES_PER_SECOND


def digest_of(name: str) -> str:
    """The digest in the name of a stored file."""
    return name.partition(".")[0]


def part_name() -> str:
    """A name for what is not whole yet."""
    return f".part-{secrets.token_hex(8)}"


def named(paths: Iterable[Path], suffix: str, sizes: set[int]) -> dict[str, Path]:
    """Files by the names that they have in a store, those that have one of these sizes and can be read."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            if path.stat().st_size in sizes:
                found[sha256(path) + suffix] = path
    return found


def read_parts(path: Path) -> Iterator[bytes]:
    """The bytes of a file, part by part. Raises OSError."""
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            yield data
