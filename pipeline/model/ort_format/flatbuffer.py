"""Bounds-checked reading of FlatBuffers by table position and slot number, with work bounded by the file's size."""

import mmap
import struct
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap


class BrokenError(Exception):
    """The bytes contradict the format."""


Slots: TypeAlias = tuple[int, ...]
_WIDEST_TABLE = 16
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U16_PAIR = struct.Struct("<HH")
_SCALARS = {code: struct.Struct("<" + code) for code in "bBiIqf"}


class Reader:
    """Bounds-checked access by table position and slot number.

    `budget` counts 4-byte units that may still be read as structure. Each part of an honest file is read once, so
    twice its size suffices; in a file whose offsets make many tables share one part, or go in circles, it runs out.
    """

    __slots__ = ("_strings", "_vtables", "budget", "data", "size")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.size = len(data)
        self.budget = self.size // 2 + 64
        self._vtables: dict[int, Slots] = {}
        self._strings: dict[int, str] = {}

    def spend(self, units: int) -> None:
        """Take from the budget; raises when the file makes us read more than it can honestly hold."""
        self.budget -= units
        if self.budget < 0:
            raise BrokenError("its parts overlap or go in circles")

    def table(self, at: int) -> Slots:
        """The offsets of all slots from `at`, 0 for absent ones, padded so that every known slot can be asked for."""
        self.budget -= 1
        vtable = at - _I32.unpack_from(self.data, at)[0]
        slots = self._vtables.get(vtable)
        if slots is None:
            slots = self._vtables[vtable] = self._read_vtable(vtable)
        if self.budget < 0:
            self.spend(0)
        return slots

    def _read_vtable(self, at: int) -> Slots:
        if at < 0:
            raise BrokenError("a table's description lies before the file")
        size, _ = _U16_PAIR.unpack_from(self.data, at)
        count = (size - 4) // 2
        if count < 0:
            raise BrokenError("a table's description is too short")
        self.spend(1 + count // 2)
        slots: Slots = struct.unpack_from(f"<{count}H", self.data, at + 4)
        return (*slots, *(0,) * (_WIDEST_TABLE - count))

    def scalar(self, at: int, slots: Slots, slot: int, code: str, default: int = 0) -> int:
        """A whole number; `code` is struct's: b, B, i, I or q."""
        offset = slots[slot]
        if not offset:
            return default
        value: int = _SCALARS[code].unpack_from(self.data, at + offset)[0]
        return value

    def real(self, at: int, slots: Slots, slot: int) -> float:
        """A 32-bit float."""
        offset = slots[slot]
        value: float = _SCALARS["f"].unpack_from(self.data, at + offset)[0] if offset else 0.0
        return value

    def child(self, at: int, slots: Slots, slot: int) -> int | None:
        """The position of the table, string or vector that the slot points to."""
        offset = slots[slot]
        if not offset:
            return None
        at += offset
        target: int = at + _U32.unpack_from(self.data, at)[0]
        return target

    def text(self, at: int, slots: Slots, slot: int) -> str:
        """A string; absent is empty."""
        offset = slots[slot]
        if not offset:
            return ""
        at += offset
        return self.text_at(at + _U32.unpack_from(self.data, at)[0])

    def text_at(self, start: int) -> str:
        """The string whose length stands at `start`; bytes that are no UTF-8 come out as backslash escapes."""
        known = self._strings.get(start)
        if known is not None:
            return known
        length = _U32.unpack_from(self.data, start)[0]
        if length > self.size - start - 4:
            raise BrokenError("a text reaches beyond the end of the file")
        self.spend(1 + length // 4)
        text = bytes(self.data[start + 4 : start + 4 + length]).decode("utf-8", "backslashreplace")
        self._strings[start] = text
        return text

    def span(self, at: int, slots: Slots, slot: int, width: int) -> tuple[int, int]:
        """First position and number of elements of a vector whose elements are `width` bytes; checked to lie inside."""
        start = self.child(at, slots, slot)
        if start is None:
            return 0, 0
        count: int = _U32.unpack_from(self.data, start)[0]
        if count * width > self.size - start - 4:
            raise BrokenError("a list reaches beyond the end of the file")
        return start + 4, count

    def numbers(self, at: int, slots: Slots, slot: int, code: str) -> tuple[int, ...]:
        """A vector of scalars; floats come as floats."""
        width = _SCALARS[code].size
        start, count = self.span(at, slots, slot, width)
        if not count:
            return ()
        self.spend(1 + count * width // 4)
        values: tuple[int, ...] = struct.unpack_from(f"<{count}{code}", self.data, start)
        return values

    def tables(self, at: int, slots: Slots, slot: int) -> list[int]:
        """The positions that a vector of offsets points to."""
        start, count = self.span(at, slots, slot, 4)
        if not count:
            return []
        self.spend(1 + count)
        offsets = struct.unpack_from(f"<{count}I", self.data, start)
        return [start + 4 * k + offset for k, offset in enumerate(offsets)]

    def texts(self, at: int, slots: Slots, slot: int) -> tuple[str, ...]:
        """A vector of strings."""
        return tuple([self.text_at(start) for start in self.tables(at, slots, slot)])

    def root(self) -> int:
        """The position of the root table."""
        position: int = _U32.unpack_from(self.data, 0)[0]
        return position

    def path(self, *steps: tuple[int, str]) -> tuple[int, Slots]:
        """Follow slots from the root; each step's word names what is missing when it is."""
        at = self.root()
        for slot, word in steps:
            at = present(self.child(at, self.table(at), slot), word)
        return at, self.table(at)


def present(at: int | None, word: str) -> int:
    """What `Reader.child` gave for a part that no honest file lacks; raises BrokenError with the part's name."""
    if at is None:
        raise BrokenError(f"it holds no {word}")
    return at
