"""Reads files that somebody else chose: regular files only, and never more of them than a stated size.

A named pipe blocks whoever opens it, and a device such as /dev/zero has no end. What is refused here is an `OSError`
like any other that reading can meet, so that each caller says in its own words what it needed the file for.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

TEXT_BYTES = 16 << 20
"""Most that is read of a text that people write or a tool notes: configs, profiles, records."""

KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a disk"),
    (stat.S_ISSOCK, "a socket"),
)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises OSError, also for whatever is no regular file, and never waits."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _require_regular(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


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
