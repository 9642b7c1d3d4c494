"""What a phone runs once to see whether a way of running a model works: inputs, sketches of outputs, limits."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from device_runner.spec import ElementType
from pipeline.features.guard.sketch import LEAST_DECIBELS, SUMS, Sketch

MAGIC = 0x4F4D5354
VERSION = 1
MOST_BYTES = 64 << 10
"""Of a model's data; larger inputs are no sample."""

ANY = "*"
"""In the place of digests and session options: a way that cannot be run here, as a context for an NPU."""

ANY_WAY = (ANY, ANY)

NOTHING_DECIBELS = LEAST_DECIBELS
"""What an output reaches that is not there."""

JAVA_TYPES: Mapping[ElementType, str] = {
    ElementType.FLOAT32: "FLOAT", ElementType.FLOAT64: "DOUBLE", ElementType.FLOAT16: "FLOAT16",
    ElementType.INT8: "INT8", ElementType.UINT8: "UINT8", ElementType.INT16: "INT16", ElementType.INT32: "INT32",
    ElementType.INT64: "INT64", ElementType.BOOL: "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleInput:
    """An input: its raw elements, or a seed of random floats between two bounds."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: bytes = b""
    seed: int = 0
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOutput:
    """An output that is compared: its place among the session's, and its sketch."""

    place: int
    sketch: Sketch


@dataclass(frozen=True, slots=True, kw_only=True)
class WayLimits:
    """What the outputs of a file with some session options must reach, in decibels, in the order of the sample's."""

    digests: str
    way: str
    decibels: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSample:
    """The self-test of a model."""

    inputs: tuple[SampleInput, ...]
    outputs: tuple[SampleOutput, ...]
    limits: tuple[WayLimits, ...]


def encoded(sample: TrialSample) -> bytes:
    """The sample as `GuardSample` of the Java classes reads it: numbers in network order, texts with their length."""
    parts = [struct.pack(">III", MAGIC, VERSION, len(sample.inputs))]
    for given in sample.inputs:
        parts += [_text(given.name), _text(given.dtype), struct.pack(">I", len(given.shape))]
        parts += [struct.pack(">q", size) for size in given.shape]
        packed = zlib.compress(given.content, 9) if given.content else b""
        parts += [struct.pack(">IQdd", len(packed), given.seed, given.low, given.high), packed]
    parts.append(struct.pack(">I", len(sample.outputs)))
    for output in sample.outputs:
        kept = output.sketch
        parts.append(struct.pack(">IIId", output.place, kept.count, kept.step, kept.energy))
        parts.append(struct.pack(f">{len(kept.sums)}d", *kept.sums))
    parts.append(struct.pack(">I", len(sample.limits)))
    parts += [_limits(limits) for limits in sample.limits]
    return b"".join(parts)


def _limits(limits: WayLimits) -> bytes:
    return _text(limits.digests) + _text(limits.way) + _doubles(limits.decibels)


def _doubles(values: Sequence[float]) -> bytes:
    return struct.pack(f">{len(values)}d", *values)


def _text(text: str) -> bytes:
    """As Java's DataInputStream.readUTF reads texts without NUL and without characters beyond the first 65,536."""
    encoded_text = text.encode()
    return struct.pack(">H", len(encoded_text)) + encoded_text


def decoded(data: bytes) -> TrialSample:
    """The sample of data that `encoded` gave, as devices read it."""
    reader = _Reader(data)
    reader.numbers(">II")  # the format and its version
    inputs = tuple(reader.input() for _ in range(reader.count()))
    outputs = tuple(reader.output() for _ in range(reader.count()))
    limits = tuple(
        WayLimits(digests=reader.text(), way=reader.text(), decibels=reader.numbers(f">{len(outputs)}d"))
        for _ in range(reader.count())
    )
    return TrialSample(inputs=inputs, outputs=outputs, limits=limits)


class _Reader:
    """Data of our own making, read from its beginning."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        numbers = struct.unpack_from(form, self.data, self.place)
        self.place += struct.calcsize(form)
        return numbers

    def count(self) -> int:
        (count,) = self.numbers(">I")
        return int(count)

    def taken(self, size: int) -> bytes:
        self.place += size
        return self.data[self.place - size : self.place]

    def text(self) -> str:
        (size,) = self.numbers(">H")
        return self.taken(size).decode()

    def input(self) -> SampleInput:
        name, dtype = self.text(), self.text()
        shape = self.numbers(f">{self.count()}q")
        size, seed, low, high = self.numbers(">IQdd")
        content = zlib.decompress(self.taken(size)) if size else b""
        return SampleInput(name=name, dtype=dtype, shape=shape, content=content, seed=seed, low=low, high=high)

    def output(self) -> SampleOutput:
        place, count, step, energy = self.numbers(">IIId")
        sketch = Sketch(count=count, step=step, energy=energy, sums=self.numbers(f">{SUMS}d"))
        return SampleOutput(place=place, sketch=sketch)
