"""Regions of a file that an older one has elsewhere, with the differences of their numbers.

Weights of a fine-tuned model all differ a little: tensors of two ORT files are matched by their names, wherever they
lie, and their numbers subtracted in the order of their values. Nothing has to know the format when a delta is applied.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.core import files as storage
from pipeline.core.errors import ModelError
from pipeline.model import ort_format

Kind: TypeAlias = Literal["f2", "f4", "f8", "i1", "i2", "i4", "i8"]
"""How the numbers of a region are subtracted: floats or integers, and their bytes."""


ONNX_KINDS: dict[int, Kind] = {
    1: "f4",
    2: "i1",
    3: "i1",
    4: "i2",
    5: "i2",
    6: "i4",
    7: "i8",
    10: "f2",
    11: "f8",
    12: "i4",
    13: "i8",
    16: "f2",
}
"""By ONNX's code of an element type; any other, such as two 4-bit numbers in a byte, are taken as bytes."""


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of the new file that are the old file's with a difference: where they begin in each, and how many."""

    old: int
    new: int
    length: int
    kind: Kind


def regions_of(before: bytes, content: bytes) -> tuple[Region, ...]:
    """The tensors that two ORT files have in common, in the order of the new one, none reaching into another.

    For other contents of one length that is all of them as 32-bit floats, and nothing for those of different lengths.
    """
    try:  # the weights by the number of their graph and their name
        old, new = (
            {
                (index, tensor.name): tensor
                for index, graph in enumerate(ort_format.parse_ort(data, "a model").graph.walk())
                for tensor in graph.initializers.values()
                if tensor.length
            }
            for data in (before, content)
        )
    except ModelError:
        length = len(content)
        return (Region(old=0, new=0, length=length, kind="f4"),) if len(before) == length else ()
    pairs = [(old[key], tensor) for key, tensor in new.items() if key in old and old[key].length == tensor.length]
    regions, end = [], 0
    for was, tensor in sorted(pairs, key=lambda pair: pair[1].offset):
        kind = ONNX_KINDS.get(tensor.data_type, "i1")
        if tensor.offset >= end and tensor.length % int(kind[1]) == 0:
            regions.append(Region(old=was.offset, new=tensor.offset, length=tensor.length, kind=kind))
            end = tensor.offset + tensor.length
    return tuple(regions)


def gaps_of(content: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """What lies between spans, each a first position and a length."""
    parts, at = [], 0
    for start, length in sorted(spans):
        parts.append(content[at:start])
        at = max(at, start + length)
    return b"".join([*parts, content[at:]])


def write_gaps(source: BinaryIO, regions: Sequence[Region], size: int, out: BinaryIO) -> None:
    """Write what lies between regions, in their order, to its places in a file of `size` bytes.

    Raises ValueError where that is more or less than `source` has.
    """
    at = 0
    for start, length in [*((region.new, region.length) for region in regions), (size, 0)]:
        out.seek(at)
        copy_exactly(source, out, start - at)
        at = start + length
    if source.read(1):
        raise ValueError("its regions and what is between them do not make the file")


def copy_exactly(source: BinaryIO, out: BinaryIO, size: int) -> None:
    """Copy so many bytes in pieces; raises ValueError where there are fewer."""
    while size:
        piece = source.read(min(size, storage.CHUNK_BYTES))
        if not piece:
            raise ValueError("it has fewer bytes than stated")
        size -= out.write(piece)


def refuse_outside(regions: Sequence[Region], old: int, new: int) -> None:
    """Raise ValueError for regions that overlap, are out of order or leave files of these sizes."""
    at = 0
    for region in regions:
        if (
            region.new < at
            or min(region.old, region.length) < 0
            or region.new + region.length > new
            or region.old + region.length > old
        ):
            raise ValueError("a region of weights lies outside of its file")
        at = region.new + region.length


def words_of(before: bytes, content: bytes, regions: Sequence[Region]) -> bytes:
    """The differences inside all regions, those of one kind together: small for weights that changed a little.

    Bits of floats in the order of their values, differences as unsigned numbers with the sign last, all highest bytes
    first, then the next; a rest of less than a number as it is.
    """
    parts = []
    for kind in dict.fromkeys(region.kind for region in regions):
        of_kind = [region for region in regions if region.kind == kind]
        was = b"".join(before[region.old : region.old + region.length] for region in of_kind)
        now = b"".join(content[region.new : region.new + region.length] for region in of_kind)
        width = int(kind[1])
        steps = (_ordered(now, kind) - _ordered(was, kind)).view(f"i{width}")
        unsigned = ((steps << 1) ^ (steps >> (8 * width - 1))).view(f"u{width}")
        planes = np.ascontiguousarray(unsigned.astype(f">u{width}").view(np.uint8).reshape(-1, width).T)
        parts += [planes.tobytes(), now[len(now) // width * width :]]
    return b"".join(parts)


def write_words(before: BinaryIO, words: BinaryIO, regions: Sequence[Region], out: BinaryIO) -> None:
    """Write what is inside each region to its place in `out`, of what `words_of` made, in pieces of `CHUNK_BYTES`.

    `before` and `words` are files. Raises ValueError where one of them ends too early.
    """
    start = 0
    for kind in dict.fromkeys(region.kind for region in regions):
        of_kind = [region for region in regions if region.kind == kind]
        total, width = sum(region.length for region in of_kind), int(kind[1])
        count, done = total // width, 0
        for piece in cut(of_kind, storage.CHUNK_BYTES):
            was = b"".join(_bytes_at(before, region.old, region.length) for region in piece)
            numbers, rest = divmod(len(was), width)
            planes = (_bytes_at(words, start + plane * count + done, numbers) for plane in range(width))
            now = _added(was, b"".join(planes), kind) + _bytes_at(words, start + count * width, rest)
            at = 0
            for region in piece:
                out.seek(region.new)
                out.write(now[at : at + region.length])
                at += region.length
            done += numbers
        start += total


def cut(regions: Iterable[Region], size: int) -> Iterator[list[Region]]:
    """Regions, divided where that is needed, in groups of `size` bytes, the last one of what is left."""
    group: list[Region] = []
    left = size
    for region in regions:
        done = 0
        while done < region.length:
            length = min(left, region.length - done)
            group.append(Region(old=region.old + done, new=region.new + done, length=length, kind=region.kind))
            done, left = done + length, left - length
            if not left:
                yield group
                group, left = [], size
    if group:
        yield group


def _bytes_at(file: BinaryIO, start: int, length: int) -> bytes:
    with storage.reading_errors(str(file.name)):
        content = os.pread(file.fileno(), length, start)
    if len(content) < length:
        raise ValueError("a region of weights lies outside of its file")
    return content


def _added(was: bytes, differences: bytes, kind: Kind) -> bytes:
    """The numbers of some bytes, changed by differences as `words_of` writes them, without a rest of less than one."""
    width = int(kind[1])
    planes = np.frombuffer(differences, np.uint8).reshape(width, -1)
    unsigned = np.ascontiguousarray(planes.T).view(f">u{width}").ravel().astype(f"u{width}")
    ordered = _ordered(was, kind) + ((unsigned >> 1) ^ (~(unsigned & 1) + 1))
    signs = 1 - (ordered >> (8 * width - 1))
    bits: npt.NDArray[Any] = ordered ^ _flip(signs, width) if kind[0] == "f" else ordered
    return bits.astype(f"<u{width}").tobytes()


def _ordered(content: bytes, kind: Kind) -> npt.NDArray[Any]:
    """Numbers as unsigned ones: bits of floats in the order of the floats, those of integers as they are."""
    width = int(kind[1])
    bits = np.frombuffer(content, f"<u{width}", len(content) // width).astype(f"u{width}")
    return bits ^ _flip(bits >> (8 * width - 1), width) if kind[0] == "f" else bits


def _flip(negative: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """What floats are changed by: all bits of negative ones, the sign of others."""
    every, sign = np.array([-1], f"i{width}").view(f"u{width}"), np.array([1 << (8 * width - 1)], f"u{width}")
    return np.where(negative.astype(bool), every, sign)
