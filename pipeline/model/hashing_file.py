"""Write a large file once and hash it meanwhile, past the page cache where the system allows it.

An artifact of hundreds of megabytes is synced to the disk anyway and read again later, if at all, so copies of it in
the page cache only drive out what others need; filling fresh pages is also most of the time of a buffered write.
"""

import contextlib
import errno
import hashlib
import mmap
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

BUFFER_BYTES = 2 << 20
# Direct writes begin and end at multiples of the disk's block, in memory as in the file; 4 KiB suits all that is sold.
BLOCK_BYTES = 4096
# Smaller files are written before a second thread has begun to hash.
DIRECT_MINIMUM_BYTES = 8 << 20


class HashingFile:
    """A file that is written from front to end once. Use as a context; `finish` gives its digest.

    While one buffer is hashed and written, each in a thread, the next one is filled. OSError as the disk gives it.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.direct = size_bytes >= DIRECT_MINIMUM_BYTES
        self.descriptor = _open(path, direct=self.direct)
        self.digest = hashlib.sha256()
        self.size_bytes = 0
        count = min(BUFFER_BYTES, -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES) or BLOCK_BYTES
        self.buffers = [memoryview(mmap.mmap(-1, count)) for _ in range(2 if self.direct else 1)]
        self.filled = 0
        self.busy: deque[tuple[Future[None], Future[None]]] = deque()
        self.hasher = ThreadPoolExecutor(1)
        self.writer = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hasher.shutdown(cancel_futures=True)
        self.writer.shutdown(cancel_futures=True)
        os.close(self.descriptor)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        with memoryview(data) as view:

            def take(piece: memoryview, done: int) -> int:
                piece[:] = view[done : done + len(piece)]
                return len(piece)

            self._fill(len(view), take)

    def copy(self, descriptor: int, offset: int, length: int) -> int:
        """Append a range of an open file; gives the number of bytes, less than `length` where the file ends early."""
        return self._fill(length, lambda piece, done: os.preadv(descriptor, [piece], offset + done))

    def _fill(self, length: int, take: Callable[[memoryview, int], int]) -> int:
        done = 0
        while done < length:
            piece = self.buffers[0][self.filled : self.filled + length - done]
            count = take(piece, done)
            if not count:
                break
            done += count
            self.filled += count
            if self.filled == len(self.buffers[0]):
                self._flush()
        self.size_bytes += done
        return done

    def _flush(self) -> None:
        """Send the first buffer on its way and take the next, once what was sent from that is done."""
        buffer, used = self.buffers[0], self.filled
        whole = -(-used // BLOCK_BYTES) * BLOCK_BYTES if self.direct else used
        self.busy.append(
            (self.hasher.submit(self.digest.update, buffer[:used]), self.writer.submit(self._put, buffer[:whole]))
        )
        self.buffers.append(self.buffers.pop(0))
        self.filled = 0
        if len(self.busy) == len(self.buffers):
            self._wait()

    def _wait(self) -> None:
        for future in self.busy.popleft():
            future.result()

    def _put(self, data: memoryview) -> None:
        while data:
            data = data[self._put_some(data) :]

    def _put_some(self, data: memoryview) -> int:
        try:
            return os.write(self.descriptor, data)
        except OSError as error:
            if error.errno != errno.EINVAL or not self.direct:
                raise
            _make_buffered(self.descriptor)  # this file system cannot write directly, or not from here
            return os.write(self.descriptor, data)

    def finish(self) -> str:
        """Write what is left, and give the sha256 of the whole."""
        if self.filled:
            self._flush()
        while self.busy:
            self._wait()
        os.ftruncate(self.descriptor, self.size_bytes)
        return self.digest.hexdigest()


def _open(path: Path, *, direct: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
    if direct and hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):
            return os.open(path, flags | os.O_DIRECT, 0o666)
    return os.open(path, flags, 0o666)


def _make_buffered(descriptor: int) -> None:
    import fcntl

    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
