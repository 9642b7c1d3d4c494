"""Tables of a FlatBuffers file, read with bounds: no offset of a damaged file leads outside."""

import mmap
import struct
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap


class BrokenError(Exception):
    """The bytes contradict the format."""


Slots: TypeAlias = tuple[int, ...]


_WIDEST_TABLE = 16


UNALIGNED = "what it points to lies at no multiple of 4"


_SCALARS = {code: struct.Struct("<" + code) for code in "bBIqf"}


class Reader:
    """Bounds-checked access by table position and slot number.

    `budget` counts 4-byte units that may still be read as structure. Each part of an honest file is read once, so
    twice its size suffices; in a file whose offsets make many tables share one part, or go in circles, it runs out.
    `u32` and `i32` are the file in words, as what it points with lies at multiples of 4; beyond its end: IndexError.
    """

    __slots__ = ("budget", "data", "i32", "inner_types", "size", "strings", "u32", "vtables")

    def __init__(self, data: Buffer, *, inner_types: bool = True) -> None:
        self.data = memoryview(data)
        self.inner_types = inner_types
        self.size = len(data)
        whole = self.data[: self.size & ~3]
        self.u32, self.i32 = whole.cast("I"), whole.cast("i")
        self.budget = self.size // 2 + 64
        self.vtables: dict[int, Slots] = {}
        self.strings: dict[int, str] = {}

    def spend(self, units: int) -> None:
        """Take from the budget; raises when the file makes us read more than it can honestly hold."""
        self.budget -= units
        if self.budget < 0:
            raise BrokenError("its parts overlap or go in circles")

    def table(self, at: int) -> Slots:
        """The offsets of all slots from `at`, 0 for absent ones, padded so that every known slot can be asked for."""
        self.budget -= 1
        if self.budget < 0:
            self.spend(0)
        vtable = at - self.i32[at >> 2]
        slots = self.vtables.get(vtable)
        if slots is None:
            if vtable < 0 or at & 3:
                raise BrokenError("a table's description lies before the file" if vtable < 0 else UNALIGNED)
            count: int = struct.unpack_from("<H", self.data, vtable)[0] // 2 - 2
            if count < 0:
                raise BrokenError("a table's description is too short")
            self.spend(1 + count // 2)
            slots = (*struct.unpack_from(f"<{count}H", self.data, vtable + 4), *(0,) * (_WIDEST_TABLE - count))
            self.vtables[vtable] = slots
        return slots

    def scalar(self, at: int, slots: Slots, slot: int, code: str, default: int = 0) -> int:
        """A whole number; `code` is struct's: b, B, i, I or q."""
        offset = slots[slot]
        if not offset:
            return default
        if code == "i":
            return self.i32[at + offset >> 2]
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
        return at + offset + self.u32[at + offset >> 2]

    def text(self, at: int, slots: Slots, slot: int) -> str:
        """A string; absent is empty."""
        offset = slots[slot]
        if not offset:
            return ""
        return self.text_at(at + offset + self.u32[at + offset >> 2])

    def text_at(self, start: int) -> str:
        """The string whose length stands at `start`; bytes that are no UTF-8 come out as backslash escapes."""
        text = self.strings.get(start)
        if text is not None:
            return text
        length = self.u32[start >> 2]
        end = start + 4 + length
        if end > self.size or start & 3:
            raise BrokenError(UNALIGNED if start & 3 else "a text reaches beyond the end of the file")
        self.spend(1 + length // 4)
        text = self.strings[start] = str(self.data[start + 4 : end], "utf-8", "backslashreplace")
        return text

    def span(self, at: int, slots: Slots, slot: int, width: int) -> tuple[int, int]:
        """First position and number of elements of a vector whose elements are `width` bytes; checked to lie inside."""
        start = self.child(at, slots, slot)
        if start is None:
            return 0, 0
        count = self.u32[start >> 2]
        if count * width > self.size - start - 4 or start & 3:
            raise BrokenError(UNALIGNED if start & 3 else "a list reaches beyond the end of the file")
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
        offset = slots[slot]
        if not offset:
            return []
        start = at + offset + self.u32[at + offset >> 2]
        first = (start >> 2) + 1
        count = self.u32[first - 1]
        if count * 4 > self.size - start - 4 or start & 3:
            raise BrokenError(UNALIGNED if start & 3 else "a list reaches beyond the end of the file")
        self.spend(1 + count)
        return [start + 4 * k + offset for k, offset in enumerate(self.u32[first : first + count], 1)]

    def texts(self, at: int, slots: Slots, slot: int) -> tuple[str, ...]:
        """A vector of strings."""
        return tuple([self.strings.get(start) or self.text_at(start) for start in self.tables(at, slots, slot)])

    def root(self) -> int:
        """The position of the root table."""
        return self.u32[0]

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
