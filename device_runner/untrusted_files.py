"""Files that other people made, read with limits: regular files, JSON, members of zip archives."""

import contextlib
import errno
import functools
import json
import os
import stat
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

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
        value: T = _decoder(cast("Hashable", kind), strict).decode(content)
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
    with contextlib.ExitStack() as opened:
        # The file owns the descriptor from the first instant: closing it by hand after Ctrl-C would close it twice.
        file = opened.enter_context(open(path, "rb", opener=lambda name, _: os.open(name, flags)))
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            kind = next((name for test, name in KINDS if test(mode)), "something else")
            raise OSError(errno.EINVAL, f"it is {kind}; only regular files are read", str(path))
        opened.pop_all()
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


def files_of(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The members of a zip archive that are no folders; `ZipInfo.is_dir` raises IndexError for an empty name."""
    return [info for info in archive.infolist() if not info.filename.endswith("/")]


def check_unpacked(info: zipfile.ZipInfo, limit_bytes: int) -> None:
    """Raise OSError (EFBIG) for a member of a zip archive that would become too large, before it is unpacked."""
    ratio = info.file_size / max(info.compress_size, 1)
    if info.file_size > limit_bytes:
        why = f"at most {max(limit_bytes, 0):,} are allowed"
    elif info.file_size > SUSPECT_BYTES and ratio > LARGEST_RATIO:
        why = f"{ratio:.0f} times what it has packed, at most {LARGEST_RATIO} times are allowed"
    else:
        return
    raise OSError(errno.EFBIG, f"{info.filename[:200]} would become {info.file_size:,} bytes: {why}")


ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError)
"""What zipfile raises for archives that are damaged, encrypted, or packed in a way that it does not know."""
