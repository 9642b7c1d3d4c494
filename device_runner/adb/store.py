"""Files on a device under their digest: pushed once, checked before they count, the longest unused ones go first."""

import logging
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from device_runner.adb.facts import free_bytes
from device_runner.adb.link import Link, LinkError
from device_runner.adb.quote import script
from device_runner.files import sha256

RESERVE_BYTES = 64 * 1024 * 1024
"""What stays free on the device: Android misbehaves on a full disk."""

SLOWEST_BYTES_PER_SECOND = 1_000_000
"""A push slower than this counts as stalled."""

logger = logging.getLogger(__name__)


class NoSpace(LinkError):
    """The device is full, and what could go is gone."""


class Broken(LinkError):
    """What arrived is not what was sent, twice."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the store: when it was last used (seconds), its size, its name."""

    used: int
    size: int
    name: str


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

LIST = 'cd "$1" && for f in *; do [ -f "$f" ] && stat -c "%Y %s %n" "$f"; done; true'

REMOVE = 'cd "$1" && shift && rm -f "$@"'


class Store:
    """The folder `store` under a device's root. Not for two processes at once: the device's lease sees to that."""

    def __init__(self, link: Link, root: str) -> None:
        self._link = link
        self._root = root
        self._folder = f"{root}/store"
        self._known: set[str] = set()
        self.pushed_bytes = 0

    def put(self, path: Path, suffix: str = "") -> str:
        """Where the file lies on the device; pushed unless it is there and whole. Raises LinkError, OSError.

        `suffix` stays at the name, for those who judge a file by it (ONNX Runtime: .ort).
        """
        digest = sha256(path)
        name = digest + (suffix if re.fullmatch(r"\.[a-z0-9]{1,8}", suffix) else "")
        if name not in self._known and not self._is_whole(name, digest):
            self._push(path, name, digest)
        self._known.add(name)
        return f"{self._folder}/{name}"

    def forget(self) -> None:
        """Believe nothing any more: the device was away, and may be another or wiped."""
        self._known.clear()

    def _is_whole(self, name: str, digest: str) -> bool:
        output = self._link.shell(script(CHECK, self._folder, name), seconds=120.0)
        return output.code == 0 and output.text.startswith(digest)

    def _push(self, path: Path, name: str, digest: str) -> None:
        size = path.stat().st_size
        self._make_room(size)
        for _ in range(2):
            part = f".part-{secrets.token_hex(8)}"
            self._send(path, part, size)
            self.pushed_bytes += size
            output = self._link.shell(script(ACCEPT, self._folder, part, name, digest), seconds=120.0)
            if output.code == 0:
                return
            logger.warning("%s: %s arrived broken (%s)", self._link.serial, path, output.stderr[-200:])
        raise Broken(f"{path.name}: what arrives on the device is not what was sent")

    def _send(self, path: Path, part: str, size: int) -> None:
        seconds = 20.0 + size / SLOWEST_BYTES_PER_SECOND
        try:
            self._link.push(path, f"{self._folder}/{part}", seconds=seconds)
        except LinkError as error:
            if "No space left" in str(error):
                raise NoSpace(str(error)) from error
            raise

    def _make_room(self, size: int) -> None:
        """Remove what was not used longest until the file fits; raises NoSpace when even that is not enough."""
        self._link.shell(script('mkdir -p "$1" && rm -f "$1"/.part-*', self._folder))
        output = self._link.shell(script('df -k "$1"', self._root))
        free = free_bytes(output.text)
        if not free or free >= size + RESERVE_BYTES:
            return
        victims = choose_victims(self._files(), size + RESERVE_BYTES - free, self._known)
        if victims is None:
            raise NoSpace(f"{free} bytes are free, {size} and a reserve of {RESERVE_BYTES} are needed")
        self._link.shell(script(REMOVE, self._folder, *(victim.name for victim in victims)))

    def _files(self) -> list[Stored]:
        lines = self._link.shell(script(LIST, self._folder)).text.splitlines()
        found = (re.fullmatch(r"(\d{1,12}) (\d{1,15}) ([0-9a-f]{64}[.a-z0-9]*)", line) for line in lines)
        return [Stored(int(match[1]), int(match[2]), match[3]) for match in found if match]


def choose_victims(files: Iterable[Stored], needed: int, keep: set[str]) -> list[Stored] | None:
    """The longest unused files that free so many bytes, without those to keep; None when all of them are too few."""
    chosen: list[Stored] = []
    for file in sorted(files, key=lambda file: (file.used, file.name)):
        if needed <= 0:
            break
        if file.name not in keep:
            chosen.append(file)
            needed -= file.size
    return chosen if needed <= 0 else None
