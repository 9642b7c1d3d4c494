"""Reads ELF files, and judges whether one can be a program or a library on Android. Needs nothing but struct."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

MACHINES = {183: "arm64-v8a", 62: "x86_64", 40: "armeabi-v7a", 3: "x86"}
"""e_machine to Android's name of the ABI."""

PT_LOAD, PT_INTERP, PT_NOTE, PT_TLS = 1, 3, 4, 7
PT_GNU_STACK, PT_GNU_RELRO = 0x6474E551, 0x6474E552
DT = {
    "needed": 1, "strtab": 5, "symtab": 6, "rela": 7, "relasz": 8, "strsz": 10, "soname": 14, "rpath": 15,
    "rel": 17, "relsz": 18, "textrel": 22, "jmprel": 23, "pltrelsz": 2, "runpath": 29, "flags": 30,
    "relr": 36, "android_relr": 0x6FFFE000, "gnu_hash": 0x6FFFFEF5, "flags_1": 0x6FFFFFFB, "verneed": 0x6FFFFFFE,
    "verneednum": 0x6FFFFFFF,
}  # fmt: skip


class NotElf(ValueError):
    """The bytes are no whole ELF file; says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header."""

    type: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    alignment: int


@dataclass(frozen=True, slots=True)
class ElfSymbol:
    """A dynamic symbol; `section` 0 means that another file must define it."""

    name: str
    section: int


@dataclass(frozen=True, slots=True)
class Elf:
    """What the dynamic linker sees of a file. `tags` are the dynamic section's pairs in order."""

    bits: int
    machine: int
    type: int
    section_count: int
    section_names_index: int
    segments: tuple[Segment, ...]
    tags: tuple[tuple[int, int], ...] = ()
    needed: tuple[str, ...] = ()
    symbols: tuple[ElfSymbol, ...] = ()
    relocations: frozenset[int] = frozenset()
    notes: tuple[tuple[str, int, bytes], ...] = ()
    interpreter: str = ""

    @property
    def abi(self) -> str:
        """Android's name of its ABI, or `machine N`."""
        return MACHINES.get(self.machine, f"machine {self.machine}")

    @property
    def page_bytes(self) -> int:
        """The smallest alignment of its segments: below 16384 it does not load on devices with 16 KB pages."""
        return min((segment.alignment for segment in self.segments if segment.type == PT_LOAD), default=0)

    @property
    def undefined(self) -> frozenset[str]:
        """Names that other files must define."""
        return frozenset(symbol.name for symbol in self.symbols if symbol.section == 0 and symbol.name)

    def tag(self, name: str) -> int | None:
        """The value of a tag of the dynamic section, None where there is none."""
        return next((value for key, value in self.tags if key == DT[name]), None)


@dataclass(frozen=True, slots=True)
class _Reader:
    data: bytes
    bits: int

    def unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        try:
            return struct.unpack_from("<" + layout, self.data, offset)
        except (struct.error, OverflowError) as error:
            raise NotElf(f"the file ends before byte {offset}") from error

    def text(self, offset: int) -> str:
        end = self.data.find(b"\0", offset) if 0 <= offset < len(self.data) else -1
        if end < 0:
            raise NotElf(f"no string at byte {offset}")
        return self.data[offset:end].decode("utf-8", "replace")

    def rows(self, layout: str, offset: int, count: int) -> Iterator[tuple[int, ...]]:
        size = struct.calcsize("<" + layout)
        if count * size > len(self.data):
            raise NotElf(f"a table of {count} entries is longer than the file")
        return (self.unpack(layout, offset + i * size) for i in range(count))


def read_elf(path: Path) -> Elf:
    """What the dynamic linker sees of a file; raises NotElf, OSError."""
    return parse_elf(path.read_bytes())


def parse_elf(data: bytes) -> Elf:
    """As `read_elf`, of bytes."""
    return _parse_dynamic(_reader(data), _parse_header(_reader(data)))


def read_header(path: Path) -> Elf:
    """Machine and segments of a file of any size, without its dynamic part; raises NotElf, OSError."""
    with path.open("rb") as file:
        return _parse_header(_reader(file.read(65536)))


def parse_header(data: bytes) -> Elf:
    """As `read_header`, of a file's first bytes."""
    return _parse_header(_reader(data))


def _reader(data: bytes) -> _Reader:
    if data[:4] != b"\x7fELF" or len(data) < 52 or data[4] not in (1, 2) or data[5] != 1:
        raise NotElf("not a little-endian ELF file")
    return _Reader(data, 32 * data[4])


def _parse_header(reader: _Reader) -> Elf:
    wide = reader.bits == 64
    header = reader.unpack("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH", 16)
    kind, machine, _, _, start, _, _, _, _, count, _, sections, names = header
    rows = reader.rows("IIQQQQQQ" if wide else "IIIIIIII", start, count)
    order = (0, 1, 2, 3, 5, 6, 7) if wide else (0, 6, 1, 2, 4, 5, 7)
    segments = tuple(Segment(*(row[i] for i in order)) for row in rows)
    return Elf(reader.bits, machine, kind, sections, names, segments)


def _parse_dynamic(reader: _Reader, elf: Elf) -> Elf:
    segments = elf.segments
    tags = _tags(reader, segments)
    values = dict(reversed(tags))
    strings = _offset(segments, values.get(DT["strtab"]))
    return replace(
        elf,
        tags=tags,
        needed=tuple(reader.text(strings + value) for key, value in tags if key == DT["needed"]),
        symbols=tuple(_symbols(reader, segments, values)),
        relocations=frozenset(info & 0xFFFFFFFF for info in _relocation_infos(reader, segments, values)),
        notes=tuple(note for segment in segments if segment.type == PT_NOTE for note in _notes(reader, segment)),
        interpreter=next((reader.text(segment.offset) for segment in segments if segment.type == PT_INTERP), ""),
    )


def _offset(segments: tuple[Segment, ...], address: int | None) -> int:
    """Where in the file the byte at an address lies."""
    for segment in segments:
        if segment.type == PT_LOAD and address and 0 <= address - segment.address < segment.file_size:
            return segment.offset + address - segment.address
    return -1 if address is None else address


def _tags(reader: _Reader, segments: tuple[Segment, ...]) -> tuple[tuple[int, int], ...]:
    pairs: list[tuple[int, int]] = []
    for segment in segments:
        if segment.type != 2:
            continue
        wide = reader.bits == 64
        for key, value in reader.rows("QQ" if wide else "II", segment.offset, segment.file_size // (16 if wide else 8)):
            if key == 0:
                break
            pairs.append((key, value))
    return tuple(pairs)


def _symbols(reader: _Reader, segments: tuple[Segment, ...], tags: dict[int, int]) -> Iterator[ElfSymbol]:
    """All of .dynsym: linkers put .dynstr behind it, or else the gnu hash table says how many there are."""
    start = _offset(segments, tags.get(DT["symtab"]))
    strings = _offset(segments, tags.get(DT["strtab"]))
    if start < 0 or DT["gnu_hash"] not in tags:
        return
    count = _symbol_count(reader, _offset(segments, tags[DT["gnu_hash"]]))
    layout, place = ("IBBHQQ", 3) if reader.bits == 64 else ("IIIBBH", 5)
    for row in reader.rows(layout, start, max(count, _referenced(reader, segments, tags) + 1)):
        yield ElfSymbol(reader.text(strings + row[0]), row[place])


def _symbol_count(reader: _Reader, table: int) -> int:
    """Symbols by the gnu hash table: undefined ones lie before its first, chains end with a set low bit."""
    buckets, first, bloom_words, _ = reader.unpack("IIII", table)
    start = table + 16 + bloom_words * reader.bits // 8
    highest = max((row[0] for row in reader.rows("I", start, buckets)), default=0)
    if highest < first:
        return first
    chains = start + buckets * 4
    while not reader.unpack("I", chains + (highest - first) * 4)[0] & 1:
        highest += 1
    return highest + 1


def _referenced(reader: _Reader, segments: tuple[Segment, ...], tags: dict[int, int]) -> int:
    """The highest symbol that a relocation names: an empty hash table need not count undefined ones."""
    return max((info >> 32 for info in _relocation_infos(reader, segments, tags)), default=0)


def _relocation_infos(reader: _Reader, segments: tuple[Segment, ...], tags: dict[int, int]) -> Iterator[int]:
    """As 64-bit files have them, the symbol in the upper half; 32-bit ARM has entries without addend."""
    wide = reader.bits == 64
    for table, size in (("rela", "relasz") if wide else ("rel", "relsz"), ("jmprel", "pltrelsz")):
        if DT[table] in tags:
            start, length = _offset(segments, tags[DT[table]]), tags.get(DT[size], 0)
            if wide:
                yield from (info for _, info, _ in reader.rows("QQq", start, length // 24))
            else:
                yield from (info >> 8 << 32 | info & 0xFF for _, info in reader.rows("II", start, length // 8))


def _notes(reader: _Reader, segment: Segment) -> Iterator[tuple[str, int, bytes]]:
    at, end = segment.offset, segment.offset + segment.file_size
    while at + 12 <= end:
        name_size, size, kind = reader.unpack("III", at)
        name = reader.data[at + 12 : at + 12 + name_size].rstrip(b"\0").decode("ascii", "replace")
        start = at + 12 + (name_size + 3) // 4 * 4
        yield name, kind, reader.data[start : start + size]
        at = start + (size + 3) // 4 * 4
