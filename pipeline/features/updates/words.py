"""Differences of weights that all changed a little: what a fine-tuned model differs in (release_consumers R.5).

Tensors of two ORT files are matched by their names, wherever they lie; of each pair the numbers are subtracted in the
order of their values. Nothing here has to know the format when a delta is applied: the regions are part of it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from device_runner.result import Struct
from pipeline.core.errors import ModelError
from pipeline.model.ort_format import OrtModel, Tensor, parse_ort

Kind: TypeAlias = Literal["f2", "f4", "f8", "i1", "i2", "i4", "i8"]
"""How the numbers of a region are subtracted: floats or integers, and their bytes."""

ONNX_KINDS: dict[int, Kind] = {
    1: "f4", 2: "i1", 3: "i1", 4: "i2", 5: "i2", 6: "i4", 7: "i8", 10: "f2", 11: "f8", 12: "i4", 13: "i8", 16: "f2",
}  # fmt: skip
"""By ONNX's code of an element type; any other, such as two 4-bit numbers in a byte, are taken as bytes."""


class Region(Struct, frozen=True, array_like=True):
    """Bytes of the new file that are the old file's with a difference: where they begin in each, and how many."""

    old: int
    new: int
    length: int
    kind: Kind


def whole(length: int) -> tuple[Region, ...]:
    """Two contents of one length as one region of 32-bit floats."""
    return (Region(old=0, new=0, length=length, kind="f4"),)


def regions_of(before: bytes, content: bytes) -> tuple[Region, ...]:
    """The tensors that two ORT files have in common, in the order of the new one.

    For other contents of one length that is all of them, and nothing for those of different lengths.
    """
    try:
        old, new = (_tensors(parse_ort(data, "a model")) for data in (before, content))
    except ModelError:
        return whole(len(content)) if len(before) == len(content) else ()
    pairs = [(old[key], tensor) for key, tensor in new.items() if key in old and old[key].length == tensor.length]
    regions = (
        Region(old=was.offset, new=tensor.offset, length=tensor.length, kind=ONNX_KINDS.get(tensor.data_type, "i1"))
        for was, tensor in pairs
    )
    return tuple(_apart(sorted(regions, key=lambda region: region.new)))


def _tensors(model: OrtModel) -> dict[tuple[int, str], Tensor]:
    """The weights by the number of their graph and their name."""
    graphs = enumerate(model.graph.walk())
    return {
        (place, tensor.name): tensor
        for place, graph in graphs
        for tensor in graph.initializers.values()
        if tensor.length
    }


def _apart(regions: Iterable[Region]) -> Iterator[Region]:
    """Those that do not reach into the one before."""
    end = 0
    for region in regions:
        if region.new >= end and region.length % int(region.kind[1]) == 0:
            yield region
            end = region.new + region.length


def gaps_of(content: bytes, spans: Iterable[tuple[int, int]]) -> bytes:
    """What lies between spans, each a first position and a length."""
    parts, at = [], 0
    for start, length in sorted(spans):
        parts.append(content[at:start])
        at = max(at, start + length)
    return b"".join([*parts, content[at:]])


def filled(size: int, regions: Sequence[Region], inside: Sequence[bytes], gaps: bytes) -> bytes:
    """A file of `size` bytes made of what is inside its regions and what is between them."""
    parts, at, used = [], 0, 0
    for region, content in zip(regions, inside, strict=True):
        parts += [gaps[used : used + region.new - at], content]
        used, at = used + region.new - at, region.new + region.length
    whole = b"".join([*parts, gaps[used:]])
    if len(whole) != size:
        raise ValueError("its regions and what is between them do not make the file")
    return whole


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


def from_words(before: bytes, words: bytes, regions: Sequence[Region]) -> list[bytes]:
    """What is inside each region, of what `words_of` made."""
    totals = Counter[Kind]()
    for region in regions:
        totals[region.kind] += region.length
    if len(words) != totals.total():
        raise ValueError("the words have another length than their regions")
    streams: dict[Kind, bytes] = {}
    at = 0
    for kind, total in totals.items():
        was = b"".join(before[region.old : region.old + region.length] for region in regions if region.kind == kind)
        streams[kind] = _added(was, words[at : at + total], kind)
        at += total
    inside: list[bytes] = []
    used = Counter[Kind]()
    for region in regions:
        inside.append(streams[region.kind][used[region.kind] : used[region.kind] + region.length])
        used[region.kind] += region.length
    return inside


def _added(before: bytes, words: bytes, kind: Kind) -> bytes:
    """The numbers of one kind that have these differences to those before."""
    width = int(kind[1])
    count = len(before) // width
    planes = np.frombuffer(words, np.uint8, count * width).reshape(width, count)
    unsigned = np.ascontiguousarray(planes.T).view(f">u{width}").ravel().astype(f"u{width}")
    steps = (unsigned >> 1) ^ (~(unsigned & 1) + 1)
    ordered = _ordered(before, kind) + steps
    bits: npt.NDArray[Any] = ordered ^ _flip(1 - (ordered >> (8 * width - 1)), width) if kind[0] == "f" else ordered
    return bits.astype(f"<u{width}").tobytes() + words[count * width :]


def _ordered(content: bytes, kind: Kind) -> npt.NDArray[Any]:
    """Numbers as unsigned ones: bits of floats in the order of the floats, those of integers as they are."""
    width = int(kind[1])
    bits = np.frombuffer(content, f"<u{width}", len(content) // width).astype(f"u{width}")
    return bits ^ _flip(bits >> (8 * width - 1), width) if kind[0] == "f" else bits


def _flip(negative: npt.NDArray[Any], width: int) -> npt.NDArray[Any]:
    """What floats are changed by: all bits of negative ones, the sign of others."""
    every, sign = np.array([-1], f"i{width}").view(f"u{width}"), np.array([1 << (8 * width - 1)], f"u{width}")
    return np.where(negative.astype(bool), every, sign)
