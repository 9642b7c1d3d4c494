"""Files on a device under their digest: pushed once or patched, checked before they count, fetched with a limit.

Of a file that shares much with others there, only the rest is pushed: the probe puts it together from ranges of those
(pieces.py).
"""

import contextlib
import logging
import os
import re
import secrets
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from device_runner import files as runner_files
from device_runner import shell_facts
from device_runner.adb.link import Link, LinkError, script
from device_runner.adb.phone import SUFFIX
from device_runner.adb.pieces import READ_BYTES, SMALLEST_BYTES, find_patch

MOST_REMOVED = 500
"""Files that one command removes: their names are about 70 characters each, and a command has at most 60,000."""

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


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the store: when it was last used (seconds), its size in bytes, its name."""

    used: int
    size: int
    name: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a device has: free bytes (0 when it does not tell), and the files of the store."""

    free_bytes: int
    files: tuple[StoredFile, ...]


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
        digest = runner_files.sha256(path)
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
        stored = f"{self._folder}/{name}"
        self.used.append(stored)
        return stored

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
        # The file may come of others that the device has and this computer too: used before, or beside it
        digest, dot, ending = name.partition(".")
        names = {other.name: other.size for other in there.files if other.size >= SMALLEST_BYTES}
        sizes, local, patch = set(names.values()), dict(self._local), None
        with contextlib.suppress(OSError):  # of the file itself, pushing says it
            for other in path.parent.iterdir():
                with contextlib.suppress(OSError):
                    if other.suffix == path.suffix and other.stat().st_size in sizes:
                        local[runner_files.sha256(other) + dot + ending] = other
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
            for source in there.files:  # one of those that it takes from may not be whole (any more)
                if source.name in patch.sources and not self._is_whole(source.name, source.size):
                    logger.warning("%s: %s is broken on the device, and goes", self._link.serial, source.name)
                    self._known.discard(source.name)
                    self._link.shell(script(REMOVE, self._folder, source.name))
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
        lines = (re.fullmatch(r"(\d{1,12}) (\d{1,15}) ([0-9a-f]{64}[.a-z0-9]*)", line) for line in listed.splitlines())
        files = tuple(StoredFile(int(line[1]), int(line[2]), line[3]) for line in lines if line)
        return Inventory(shell_facts.free_bytes(df), files)

    def _require(self, output: subprocess.CompletedProcess[bytes]) -> None:
        """Raise StoreRefused for what a script says that the device does not let it do."""
        if what := REFUSALS.get(output.returncode):
            said = " ".join(output.stderr[-300:].decode("utf-8", "replace").split())
            raise StoreRefused(
                f"the device does not take files: {what}{f' ({said})' if said else ''}",
                where=self._folder,
                remedy=f"let its shell user write and execute in {self._root} (`adb shell` with mount, ls -ldZ and df "
                "says what forbids it), or use another device",
            )

    def _make_room(self, there: Inventory, size: int, keep: set[str]) -> None:
        """Remove what was not used longest until the file fits; raises NoSpace when even that is not enough."""
        free = there.free_bytes
        if not free or free >= size + RESERVE_BYTES:
            return
        victims = choose_victims(there.files, size + RESERVE_BYTES - free, keep)
        if victims is None:
            raise NoSpace(f"{free} bytes are free, {size} and a reserve of {RESERVE_BYTES} are needed")
        names = [file.name for file in victims]
        for start in range(0, len(names), MOST_REMOVED):
            self._link.shell(script(REMOVE, self._folder, *names[start : start + MOST_REMOVED]))


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


def part_name() -> str:
    """A name for what is not whole yet."""
    return f".part-{secrets.token_hex(8)}"
