"""What somebody else wrote: files read up to a stated size, and text made harmless before it is shown.

A named pipe blocks whoever opens it, and a device such as /dev/zero has no end. What is refused here is an `OSError`
like any other that reading can meet, so that each caller says in its own words what it needed the file for.
"""

import errno
import functools
import json
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import msgspec

if TYPE_CHECKING:
    import zipfile  # 8 ms that `--help` does not pay

TEXT_BYTES = 16 << 20
"""Most that is read of a text that people write or a tool notes: configs, profiles, records."""

SUSPECT_BYTES = 512 << 20
LARGEST_RATIO = 200
"""Weights and machine code shrink to a third, pruned models to a tenth: what is large and shrinks more is made to fill
disks. Test models of a repeating pattern shrink to a 400th, and are smaller."""

KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a disk"),
    (stat.S_ISSOCK, "a socket"),
)


T = TypeVar("T")
_MAKING = threading.Lock()


@functools.cache
def _decoder(kind: Any, strict: bool) -> "msgspec.json.Decoder[Any]":
    with _MAKING:
        return msgspec.json.Decoder(kind, strict=strict)


def decode_json(content: bytes | str, kind: type[T], *, strict: bool = True, unique: bool = False) -> T:
    """A JSON document as that type, in any thread; raises msgspec.DecodeError, also where it is nested too deeply, or
    UnicodeDecodeError.

    With `unique` a key that an object has twice is an error: readers differ in which of them they take, and what was
    signed would be two documents.

    msgspec 0.22 ends the process with a segmentation fault when two threads are the first to decode a Struct type
    (docs/facts/lab.md D.1): its fields are looked up on first use, without a lock.
    """
    try:
        value: T = _decoder(cast(Hashable, kind), strict).decode(content)
        if unique:
            json.loads(content, object_pairs_hook=_refuse_twice, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
    return value


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise msgspec.DecodeError(f"the key {twice[:100]!r} is there twice")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises OSError, also for whatever is no regular file, and never waits."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    # The file owns the descriptor from the first instant: closing it by hand after Ctrl-C would close it twice.
    file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115 - who asked for it closes it
    try:
        _require_regular(os.fstat(file.fileno()).st_mode, path)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, limit_bytes: int = TEXT_BYTES) -> bytes:
    """The bytes of a regular file of at most `limit_bytes`; raises OSError (EFBIG for a larger one)."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(limit_bytes + 1) if size <= limit_bytes else b""
    if max(size, len(content)) > limit_bytes:
        raise OSError(
            errno.EFBIG, f"it has {max(size, len(content)):,} bytes; at most {limit_bytes:,} are read", str(path)
        )
    return content


def _require_regular(mode: int, path: Path) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = next((name for test, name in KINDS if test(mode)), "something else")
    raise OSError(errno.EINVAL, f"it is {kind}; only regular files are read", str(path))


def check_unpacked(info: "zipfile.ZipInfo", limit_bytes: int) -> None:
    """Raise OSError (EFBIG) for a member of a zip archive that would become too large, before it is unpacked."""
    ratio = info.file_size / max(info.compress_size, 1)
    if info.file_size > limit_bytes:
        why = f"at most {max(limit_bytes, 0):,} are allowed"
    elif info.file_size > SUSPECT_BYTES and ratio > LARGEST_RATIO:
        why = f"{ratio:.0f} times what it has packed, at most {LARGEST_RATIO} times are allowed"
    else:
        return
    raise OSError(errno.EFBIG, f"{info.filename[:200]} would become {info.file_size:,} bytes: {why}")


INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, marks that turn the direction of text, separators of lines, zero-width ones, lone surrogates."""


def visible(text: str) -> str:
    r"""`text` on one line with every invisible character written out, as in \x1b: nothing can act or hide."""
    return INVISIBLE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """As `visible`, but lines stay lines: all after the first begin with `  | `, so that none passes for ours."""
    return "\n  | ".join(map(visible, text.rstrip("\n").split("\n")))


def public_address(address: str) -> str:
    """An address without the user and the password that may stand in it."""
    return re.sub(r"(?<=://)[^/]*@", "", address)
