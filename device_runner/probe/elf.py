"""Reads ELF and Mach-O files, bytes or a map of a file that may come from anywhere; of Mach-O load commands alone."""

import itertools
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

MACHINES = {183: "arm64-v8a", 62: "x86_64", 40: "armeabi-v7a", 3: "x86"}
"""e_machine to Android's name of the ABI."""

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_TLS = 1, 2, 3, 4, 7
PT_GNU_STACK, PT_GNU_RELRO = 0x6474E551, 0x6474E552
DT = {
    "needed": 1, "strtab": 5, "symtab": 6, "rela": 7, "relasz": 8, "strsz": 10, "soname": 14, "rpath": 15,
    "rel": 17, "relsz": 18, "textrel": 22, "jmprel": 23, "pltrelsz": 2, "runpath": 29, "flags": 30,
    "relr": 36, "android_relr": 0x6FFFE000, "gnu_hash": 0x6FFFFEF5, "flags_1": 0x6FFFFFFB, "verneed": 0x6FFFFFFE,
    "verneednum": 0x6FFFFFFF,
}  # fmt: skip


MOST_ROWS = 1000
"""Segments, tags, notes and versions of symbols that are read: real files have dozens, and damaged chains circle."""
MOST_ENTRIES = 4 << 20
"""Entries of a table: a library of 200 MB has a million relocations."""
MOST_TEXT = 1 << 15
"""Bytes of a name: those of C++ templates have thousands."""
MOST_NAMES = 64 << 20
"""Bytes that the dynamic symbols take together, each counted with 64 beside its name: a million of them."""


Buffer = bytes | mmap.mmap


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
class Note:
    """A note of a linker: who defined it, its type, and its content."""

    owner: str
    type: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Elf:
    """What the dynamic linker sees of a file. `tags` are the dynamic section's pairs in order.

    `symbols` are the dynamic ones by name and section; section 0 means that another file must define it. `slots` are
    the addresses where the linker writes those of functions that are called, by name; `versions` those that it must
    find in another file, as (file, version).
    """

    bits: int
    machine: int
    type: int
    section_count: int
    section_names_index: int
    segments: tuple[Segment, ...]
    tags: tuple[tuple[int, int], ...] = ()
    needed: tuple[str, ...] = ()
    soname: str = ""
    symbols: tuple[tuple[str, int], ...] = ()
    relocations: frozenset[int] = frozenset()
    slots: tuple[tuple[str, int], ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[Note, ...] = ()
    interpreter: str = ""

    @property
    def abi(self) -> str:
        """Android's name of its ABI, or `machine N`."""
        return MACHINES.get(self.machine, f"machine {self.machine}")

    @property
    def system(self) -> str:
        """The system by the C library that it needs: android or linux."""
        return "android" if "libc.so" in self.needed else "linux"

    @property
    def page_bytes(self) -> int:
        """The smallest alignment of its segments: below 16384 it does not load on devices with 16 KB pages."""
        return min((segment.alignment for segment in self.segments if segment.type == PT_LOAD), default=0)

    @property
    def undefined(self) -> frozenset[str]:
        """Names that other files must define."""
        return frozenset(name for name, section in self.symbols if section == 0 and name)

    def tag(self, name: str) -> int | None:
        """The value of a tag of the dynamic section, None where there is none."""
        return next((value for key, value in self.tags if key == DT[name]), None)


def read_elf(path: Path) -> Elf:
    """What the dynamic linker sees of a file; raises NotElf, OSError."""
    return parse_elf(path.read_bytes())


def read_header(path: Path) -> Elf:
    """Machine and segments of a file of any size, without its dynamic part; raises NotElf, OSError."""
    with path.open("rb") as file:
        return parse_header(file.read(65536))


def _unpack(data: Buffer, layout: str, offset: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from("<" + layout, data, offset)
    except (struct.error, OverflowError) as error:
        raise NotElf(f"the file ends before byte {offset}") from error


def _text(data: Buffer, offset: int) -> str:
    end = data.find(b"\0", offset, offset + MOST_TEXT) if 0 <= offset < len(data) else -1
    if end < 0:
        raise NotElf(f"no string at byte {offset}")
    return data[offset:end].decode("utf-8", "replace")


def _rows(data: Buffer, layout: str, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    size = struct.calcsize("<" + layout)
    if count > MOST_ENTRIES or count * size > len(data):
        raise NotElf(f"a table of {count} entries is longer than the file or any library's")
    return (_unpack(data, layout, offset + index * size) for index in range(count))


def parse_header(data: Buffer) -> Elf:
    """As `read_header`, of a file's first bytes."""
    if data[:4] != b"\x7fELF" or len(data) < 52 or data[4] not in (1, 2) or data[5] != 1:
        raise NotElf("not a little-endian ELF file")
    wide = data[4] == 2
    header = _unpack(data, "HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH", 16)
    kind, machine, _, _, start, _, _, _, _, count, _, sections, names = header
    rows = _rows(data, "IIQQQQQQ" if wide else "IIIIIIII", start, count)
    if count > MOST_ROWS:
        raise NotElf(f"it has {count} segments, more than any linker loads")
    order = (0, 1, 2, 3, 5, 6, 7) if wide else (0, 6, 1, 2, 4, 5, 7)
    segments = tuple(Segment(*(row[column] for column in order)) for row in rows)
    return Elf(64 if wide else 32, machine, kind, sections, names, segments)


def parse_elf(data: Buffer) -> Elf:
    """As `read_elf`, of bytes."""
    elf = parse_header(data)
    wide = elf.bits == 64
    tags: list[tuple[int, int]] = []
    for segment in elf.segments:
        if segment.type == PT_DYNAMIC:
            layout, size = ("QQ", 16) if wide else ("II", 8)
            rows = _rows(data, layout, segment.offset, min(segment.file_size // size, MOST_ROWS - len(tags)))
            tags += ((row[0], row[1]) for row in itertools.takewhile(lambda row: row[0] != 0, rows))
    values = dict(reversed(tags))

    def offset(tag: str) -> int:
        """Where in the file the byte at the address of a tag lies; -1 without the tag."""
        address = values.get(DT[tag])
        for segment in elf.segments:
            if segment.type == PT_LOAD and address and 0 <= address - segment.address < segment.file_size:
                return segment.offset + address - segment.address
        return -1 if address is None else address

    # A relocation has the symbol in the upper half, and 32-bit ARM has entries without addend.
    layout, shift, size = ("QQq", 32, 24) if wide else ("II", 8, 8)
    tables = (("rela", "relasz") if wide else ("rel", "relsz"), ("jmprel", "pltrelsz"))
    kinds: set[int] = set()
    called: dict[int, int] = {}
    highest = 0
    for table, length in tables:
        entries = values.get(DT[length], 0) // size if DT[table] in values else 0
        for relocation in _rows(data, layout, offset(table), entries):
            symbol = relocation[1] >> shift
            kinds.add(relocation[1] & (1 << shift) - 1)
            highest = max(highest, symbol)
            if table == "jmprel":
                called[symbol] = relocation[0]
    strings = offset("strtab")
    symbols: list[tuple[str, int]] = []
    if offset("symtab") >= 0 and DT["gnu_hash"] in values:
        # An empty hash table need not count undefined symbols: the highest that a relocation names counts too.
        count = max(_symbol_count(data, offset("gnu_hash")), highest + 1)
        layout, column = ("IBBHQQ", 3) if wide else ("IIIBBH", 5)
        left = MOST_NAMES
        for row in _rows(data, layout, offset("symtab"), count):
            name = _text(data, strings + row[0])
            left -= len(name) + 64
            if left < 0:
                raise NotElf("its symbols are more than any library has")
            symbols.append((name, row[column]))
    return replace(
        elf,
        tags=tuple(tags),
        needed=tuple(_text(data, strings + value) for key, value in tags if key == DT["needed"]),
        symbols=tuple(symbols),
        relocations=frozenset(kinds),
        slots=tuple((symbols[symbol][0], slot) for symbol, slot in called.items() if slot and symbol < len(symbols)),
        versions=tuple(
            itertools.islice(_versions(data, offset("verneed"), strings, values.get(DT["verneednum"], 0)), MOST_ROWS)
        ),
        soname=_text(data, strings + values[DT["soname"]]) if DT["soname"] in values else "",
        notes=tuple(
            itertools.islice(
                (note for segment in elf.segments if segment.type == PT_NOTE for note in _notes(data, segment)),
                MOST_ROWS,
            )
        ),
        interpreter=next((_text(data, segment.offset) for segment in elf.segments if segment.type == PT_INTERP), ""),
    )


def _symbol_count(data: Buffer, table: int) -> int:
    """Symbols by the gnu hash table: undefined ones lie before its first, chains end with a set low bit."""
    buckets, first, bloom_words, _ = _unpack(data, "IIII", table)
    start = table + 16 + bloom_words * data[4] * 4
    highest = max((bucket[0] for bucket in _rows(data, "I", start, buckets)), default=0)
    if highest < first:
        return first
    chains = start + buckets * 4
    while not _unpack(data, "I", chains + (highest - first) * 4)[0] & 1 and highest < first + MOST_ENTRIES:
        highest += 1
    return highest + 1


def _versions(data: Buffer, start: int, strings: int, files: int) -> Iterator[tuple[str, str]]:
    """Elf_Verneed entries, each with its Elf_Vernaux: both are chains whose links are distances in bytes."""
    for _ in range(min(files, MOST_ROWS) if start >= 0 else 0):
        _, count, file, auxiliary, step = _unpack(data, "HHIII", start)
        at = start + auxiliary
        for _ in range(min(count, MOST_ROWS)):
            _, _, _, name, link = _unpack(data, "IHHII", at)
            yield _text(data, strings + file), _text(data, strings + name)
            at += link
        start += step


def _notes(data: Buffer, segment: Segment) -> Iterator[Note]:
    at, end = segment.offset, segment.offset + segment.file_size
    while at + 12 <= end:
        name_size, size, kind = _unpack(data, "III", at)
        if name_size + size > MOST_TEXT:
            raise NotElf("a note of it is larger than any linker writes")
        name = data[at + 12 : at + 12 + name_size].rstrip(b"\0").decode("ascii", "replace")
        start = at + 12 + (name_size + 3) // 4 * 4
        yield Note(name, kind, data[start : start + size])
        at = start + (size + 3) // 4 * 4


ARCHITECTURES = {0x0100000C: "arm64", 0x01000007: "x86_64", 12: "armv7", 7: "i386"}
SYSTEMS = {1: ("macos", ""), 2: ("ios", ""), 6: ("ios", "maccatalyst"), 7: ("ios", "simulator")}
"""The platform of LC_BUILD_VERSION as an xcframework writes platform and variant."""

THIN, FAT, ARCHIVE = b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"!<arch>\n"
BUILD_VERSION, OLD_VERSIONS, OBJECT = 0x32, {0x24: 1, 0x25: 2}, 1
COMMANDS_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MachOImage:
    """Code of one architecture: `system` is platform and variant, `lowest` the oldest version of it that can run it.

    `start` and `size_bytes` are where it lies in its file.
    """

    architecture: str
    static: bool
    system: tuple[str, str]
    lowest: tuple[int, int, int]
    start: int = field(default=0, compare=False)
    size_bytes: int = field(default=0, compare=False)


def read_images(content: Buffer) -> Iterator[MachOImage]:
    """The code in a file, one value for each architecture; raises ValueError or struct.error for anything else."""
    count = 1
    if content[:4] == FAT:
        (count,) = struct.unpack_from(">I", content, 4)
        if not 0 < count <= 16:
            raise ValueError("its list of architectures is damaged")
    for number in range(count):
        start, size = 0, len(content)
        if content[:4] == FAT:
            _, _, start, size, _ = struct.unpack_from(">5I", content, 8 + 20 * number)
        if start + size > len(content):
            raise ValueError("a part of it lies outside the file")
        if content[start : start + 8] != ARCHIVE:
            yield replace(_image(content, start, size), start=start, size_bytes=size)
            continue
        # What the members of a static archive have in common, and the highest of their lowest systems
        images: set[MachOImage] = set()
        at, end = start + 8, start + size
        while at + 60 <= end:
            header = content[at : at + 60]
            numbers = (header[48:58], header[3:16] if header.startswith(b"#1/") else b"0")
            length, name = (int(text) if re.fullmatch(rb"\d{1,13} *", text) else -1 for text in numbers)
            if header[58:] != b"`\n" or not 0 <= name <= length or at + 60 + length > end:
                raise ValueError("a member of the archive is damaged")
            body = at + 60 + name
            if content[body : body + 4] == THIN:
                images.add(_image(content, body, length - name))
            at += 60 + length + length % 2
        kinds = {(image.architecture, image.system) for image in images}
        if len(kinds) != 1:
            raise ValueError(f"its objects are for {len(kinds)} systems instead of one")
        architecture, system = kinds.pop()
        lowest = max(image.lowest for image in images)
        yield MachOImage(
            architecture=architecture, static=True, system=system, lowest=lowest, start=start, size_bytes=size
        )


def _image(content: Buffer, start: int, size: int) -> MachOImage:
    if size < 32 or content[start : start + 4] != THIN:
        raise ValueError("it is no Mach-O file of 64 bits")
    _, machine, _, kind, count, length = struct.unpack_from("<6I", content, start)
    commands = content[start + 32 : start + 32 + min(length, size - 32, COMMANDS_BYTES)]
    system, lowest, offset = ("", ""), 0, 0
    for _ in range(min(count, len(commands) // 8)):
        if offset + 16 > len(commands):
            break
        command, step, first, second = struct.unpack_from("<4I", commands, offset)
        if command == BUILD_VERSION:
            system, lowest = SYSTEMS.get(first, ("", "")), second
        elif command in OLD_VERSIONS:
            system, lowest = SYSTEMS[OLD_VERSIONS[command]], first
        if step < 8:
            raise ValueError("its load commands are damaged")
        offset += step
    version = (lowest >> 16, lowest >> 8 & 0xFF, lowest & 0xFF)
    architecture = ARCHITECTURES.get(machine, f"machine {machine}")
    return MachOImage(architecture=architecture, static=kind == OBJECT, system=system, lowest=version)
