"""A file as what others already have of it and what they have not: the text and bytes that `probe join` takes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from device_runner.adb.pieces import pieces_of, usual_bytes

if TYPE_CHECKING:
    import numpy as np

SMALLEST_BYTES = 1024 * 1024
"""A smaller file goes whole: over a cable of USB 2 (40 MB/s) it takes no longer than one more command."""

WORTH = 0.75
"""The part of a file above which the whole goes: over USB 2 a device takes about as long to read and write four bytes
(200 MB/s each) as to get one, so less than a quarter saved is no gain."""

READ_BYTES = 1024 * 1024


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
    steps = find_steps(path, sources)
    lines = [f"copy {step.source} {step.offset} {step.size}" if step.source else f"data {step.size}" for step in steps]
    head = "\n".join(["ort-mobile pieces 1", f"size {size}", *lines, "end", ""]).encode()
    patch = Patch(path, tuple(steps), head)
    return patch if patch.size <= WORTH * size else None


def find_steps(path: Path, sources: dict[str, Path]) -> Sequence[Step]:
    """The steps that give a file, as long as they can be. Raises OSError."""
    import numpy as np

    usual = usual_bytes(path.stat().st_size)
    wanted = pieces_of(path, usual)
    others = [pieces_of(source, usual) for source in sources.values()]
    starts = _starts(wanted.ends)
    digests = np.concatenate([other.digests for other in others])
    offsets = np.concatenate([_starts(other.ends) for other in others])
    files = np.repeat(np.arange(len(others)), [len(other.ends) for other in others])
    order = np.argsort(digests, kind="stable")
    at = order[np.searchsorted(digests, wanted.digests, sorter=order).clip(max=len(order) - 1)]
    found = digests[at] == wanted.digests
    file = np.where(found, files[at], -1)
    shift = np.where(found, offsets[at] - starts, 0)
    first = np.flatnonzero(np.diff(file, prepend=-2) | np.diff(shift, prepend=0))
    behind = [*first[1:].tolist(), len(starts)]
    names = (*sources, "")
    return [
        Step(names[file[i]], int(starts[i] + shift[i]), int(wanted.ends[end - 1] - starts[i]))
        for i, end in zip(first.tolist(), behind, strict=True)
    ]


def _starts(ends: "np.ndarray") -> "np.ndarray":
    import numpy as np

    return np.concatenate([[0], ends[:-1]])
