"""Java classes in a dex file, as D8 and R8 write them for Android; it may come from anywhere, and nothing is loaded.

Source: source.android.com, "Dalvik executable format"; from version 041 on a file may hold several, whose offsets all
count from its beginning.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from device_runner.probe import elf as elf_file
from pipeline.library.java_class import ABSTRACT, NATIVE, Budget, JavaClass, JavaMember, NotJava, text_of

MAGIC = b"dex\n"
HEADER_BYTES, SIZE_AT, TABLES_AT = 112, 32, 56
ROW_BYTES = {"strings": 4, "types": 4, "prototypes": 12, "fields": 8, "methods": 8, "classes": 32}
"""The tables in their order, and what a row of each takes."""
MOST_CLASSES = 1 << 16
MOST_TEXT = 1 << 12
MOST_PARAMETERS = 255


@dataclass(frozen=True, slots=True)
class _Table:
    count: int
    start: int
    row_bytes: int


def read_dex(content: elf_file.Buffer, package: str, budget: Budget) -> Iterator[JavaClass]:
    """The classes of a Java package (ai/onnxruntime) and of those below it; raises NotJava."""
    if content[:4] != MAGIC:
        raise NotJava("it does not begin as a dex file does")
    start = 0
    while True:
        budget.spend(HEADER_BYTES)
        try:
            yield from _Dex(content, start, budget).classes(f"L{package}/".encode())
            (size,) = struct.unpack_from("<I", content, start + SIZE_AT)
        except (struct.error, IndexError) as error:
            raise NotJava("this dex is cut off or damaged") from error
        start += size
        if size < HEADER_BYTES or content[start : start + 4] != MAGIC:
            return


class _Dex:
    """One dex: rows of its tables are read where they lie."""

    def __init__(self, content: elf_file.Buffer, start: int, budget: Budget) -> None:
        self.content = content
        self.budget = budget
        numbers = iter(struct.unpack_from("<12I", content, start + TABLES_AT))
        self.tables = {name: _Table(next(numbers), next(numbers), size) for name, size in ROW_BYTES.items()}
        if any(table.count * table.row_bytes > len(content) for table in self.tables.values()):
            raise NotJava("its tables are longer than the file")

    def classes(self, prefix: bytes) -> Iterator[JavaClass]:
        """Types are sorted by their names, so that those of a package are found by halves and lie together."""
        count = self.tables["types"].count
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._type(middle) < prefix else (low, middle)
        names: dict[int, str] = {}
        while low < count and (descriptor := self._type(low)).startswith(prefix):
            names[low] = text_of(descriptor)[1:-1]
            low += 1
        defined = self.tables["classes"].count if names else 0
        if defined > MOST_CLASSES:
            raise NotJava(f"it defines {defined:,} classes, and has numbers for {MOST_CLASSES:,}")
        self.budget.spend(defined)
        for index in range(defined):
            number, flags, *_, data, _ = self._row("classes", index, "8I")
            if name := names.pop(number, ""):
                yield JavaClass(name, bool(flags & ABSTRACT), tuple(self._methods(data)) if data else ())

    def _methods(self, offset: int) -> Iterator[JavaMember]:
        """Of a class's data: numbers as steps from the one before, of fields and then of methods, each with flags."""
        counts = []
        for _ in range(4):
            count, offset = self._number(offset)
            counts.append(count)
        for kind, count in enumerate(counts):
            number, is_method = 0, kind >= 2
            for _ in range(count):
                step, offset = self._number(offset)
                flags, offset = self._number(offset)
                number += step
                self.budget.spend(8)
                if is_method:
                    _, offset = self._number(offset)
                    _, prototype, name = self._row("methods", number, "HHI")
                    yield JavaMember(text_of(self._string(name)), self._descriptor(prototype), bool(flags & NATIVE))

    def _descriptor(self, number: int) -> str:
        _, returned, given = self._row("prototypes", number, "3I")
        count = struct.unpack_from("<I", self.content, given)[0] if given else 0
        if count > MOST_PARAMETERS:
            raise NotJava(f"a method of it has {count:,} parameters")
        types = struct.unpack_from(f"<{count}H", self.content, given + 4) if count else ()
        return text_of(b"(" + b"".join(map(self._type, types)) + b")" + self._type(returned))

    def _row(self, table: str, number: int, layout: str) -> tuple[int, ...]:
        rows = self.tables[table]
        if number >= rows.count:
            raise NotJava(f"it has no {number} in its table of {table}")
        return struct.unpack_from(f"<{layout}", self.content, rows.start + number * rows.row_bytes)

    def _type(self, number: int) -> bytes:
        return self._string(*self._row("types", number, "I"))

    def _string(self, number: int) -> bytes:
        (offset,) = self._row("strings", number, "I")
        _, offset = self._number(offset)
        end = self.content.find(b"\0", offset, offset + MOST_TEXT)
        if end < 0:
            raise NotJava(f"it has no name at byte {offset}")
        self.budget.spend(end - offset)
        return bytes(self.content[offset:end])

    def _number(self, offset: int) -> tuple[int, int]:
        """A number in groups of seven bits (ULEB128), and where it ends."""
        number = 0
        for shift in range(0, 35, 7):
            byte = self.content[offset]
            offset += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number, offset
        raise NotJava("a number of it is longer than 32 bits")
