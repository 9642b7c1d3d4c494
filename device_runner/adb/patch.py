"""A file as what others already have of it and what they have not: the text and bytes that `probe join` takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from device_runner.adb.matching import find_same

SMALLEST_BYTES = 1024 * 1024
"""A smaller file goes whole: over a cable of USB 2 (40 MB/s) it takes no longer than one more command."""

WORTH = 0.75
"""The part of a file above which the whole goes: over USB 2 a device takes about as long to read and write four bytes
(200 MB/s each) as to get one, so less than a quarter saved is no gain."""

READ_BYTES = 256 * 1024
"""What is read and sent at once: less costs calls, more costs fresh memory each time (measured: 64 KB to 1 MB)."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next bytes of a file: from a place of another file (its name), or its own ("")."""

    source: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Patch:
    """How a file comes of others; `head` is what the probe reads (probe/pieces.h), the bytes of own steps follow it."""

    path: Path
    steps: tuple[Step, ...]
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


def find_steps(path: Path, sources: dict[str, Path]) -> Iterator[Step]:
    """The steps that give a file. Raises OSError."""
    names, end = list(sources), 0
    for same in find_same(path, list(sources.values())):
        if same.start > end:
            yield Step("", end, same.start - end)
        yield Step(names[same.source], same.offset, same.end - same.start)
        end = same.end
    if path.stat().st_size > end:
        yield Step("", end, path.stat().st_size - end)
