"""Which extensions of arm64 a library has code for, in how many functions, and what of the processor it asks before.

Instructions are words of four bytes, and the masks below are those of the Arm Architecture Reference Manual (DDI 0487,
C4). Released libraries have no symbols for kernels: where functions begin and end, the table of unwind entries says
(.eh_frame_hdr, Linux Standard Base, section 10.6.2). Assembly that has no such entry between two functions counts as
one function, so that the numbers of functions are lower bounds.
"""

import struct
from typing import TYPE_CHECKING

import msgspec

from device_runner.probe import elf as elf_file

if TYPE_CHECKING:
    import numpy as np

    Words = np.ndarray[tuple[int], np.dtype[np.uint32]]
    Places = np.ndarray[tuple[int], np.dtype[np.int64]]

EXECUTABLE, PT_GNU_EH_FRAME = 1, 0x6474E550
TABLE_OF_OFFSETS = b"\x01\x1b\x03\x3b"
"""Version 1, and a sorted table of pairs of four bytes, relative to its beginning: what lld and ld write."""

INSTRUCTIONS = {
    "half precision": ((0xBFE0FC00, 0x0E400C00), (0xBFC0F400, 0x0F001000)),  # FMLA of halves: vector, by element
    "dotprod": (
        (0x9FE0FC00, 0x0E809400),
        (0x9FC0F400, 0x0F80E000),  # SDOT and UDOT: vector, by element
    ),
    "i8mm": (
        (0xDFE0FC00, 0x4E80A400),
        (0xFFE0FC00, 0x4E80AC00),  # SMMLA and UMMLA, USMMLA
        (0xBFE0FC00, 0x0E809C00),
        (0xBF40F400, 0x0F00F000),  # USDOT: vector; USDOT and SUDOT by element
    ),
    "bf16": (
        (0xFFE0FC00, 0x6E40EC00),
        (0xBFE0FC00, 0x2E40FC00),
        (0xBFC0F400, 0x0F40F000),  # BFMMLA, BFDOT
        (0xBFE0FC00, 0x2EC0FC00),
        (0xBFC0F400, 0x0FC0F000),  # BFMLALB and BFMLALT
    ),
    "sve": ((0xFF3FFC10, 0x2518E000), (0xFF20E000, 0x25200000)),  # PTRUE, WHILE: what a loop over vectors begins with
    "sme": ((0xFFFFF9FF, 0xD503417F),),  # SMSTART
    "sme2": ((0xFF000000, 0xC1000000),),  # products of several vectors, moves between them and ZA
}
"""Mask and value of the instructions that tell of an extension."""
WITHIN = {"sve": "sme", "sme": "sme2"}
"""Functions of the first with instructions of the second are the second's: SME computes with vectors of SVE."""

AUXILIARY = {
    16: ("AT_HWCAP", {8: "atomics", 9: "fphp", 10: "asimdhp", 20: "asimddp", 22: "sve"}),
    26: ("AT_HWCAP2", {1: "sve2", 9: "svei8mm", 12: "svebf16", 13: "i8mm", 14: "bf16", 23: "sme", 37: "sme2"}),
}
"""What getauxval is asked for, and names of its bits (Linux, asm/hwcap.h)."""
GETAUXVAL = "getauxval"
CPU_FILE = b"/proc/cpuinfo\0"
BEFORE, AFTER = 8, 6
"""Instructions before a call among which its argument is set, and behind it where a bit of the answer is taken."""


class ExtensionCode(msgspec.Struct, frozen=True, kw_only=True):
    """Code for an extension of arm64: how many functions have such instructions, and how many those are."""

    extension: str
    functions: int
    instructions: int


class ProcessorQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What a library asks of the processor: where, how often in its code, and the bits that it takes at once.

    `bits` () is an answer that is kept and looked at elsewhere.
    """

    source: str
    reads: int = 1
    bits: tuple[str, ...] = ()


class ArmCode(msgspec.Struct, frozen=True, kw_only=True):
    """Code of an arm64 library that only some processors run, and what it asks of the processor."""

    abi: str
    extensions: tuple[ExtensionCode, ...]
    queries: tuple[ProcessorQuery, ...]


def read_arm_code(content: elf_file.Buffer, elf: elf_file.Elf | None = None) -> ArmCode:
    """What an arm64 library has for extensions; half a second of processor time for 32 MB. Raises NotElf.

    `elf` where it was parsed already.
    """
    import numpy as np

    elf = elf or elf_file.parse_elf(content)
    bounds = _functions(content, elf)
    places: dict[str, list[Places]] = {name: [] for name in INSTRUCTIONS}
    reads: dict[int, list[int]] = {kind: [] for kind in AUXILIARY}
    for part in elf.segments:
        if part.type != elf_file.PT_LOAD or not part.flags & EXECUTABLE:
            continue
        count = max(min(part.file_size, len(content) - part.offset), 0) // 4
        words = np.frombuffer(content, "<u4", count, part.offset)
        for name, rows in INSTRUCTIONS.items():
            hits = np.zeros(count, bool)
            for mask, value in rows:
                hits |= (words & np.uint32(mask)) == np.uint32(value)
            matches = np.flatnonzero(hits) * 4 + part.address
            places[name].append(matches[matches >= (bounds[0] if len(bounds) else 0)])  # constants lie before the code
        for call in _calls(words, part, dict(elf.slots).get(GETAUXVAL)):
            kind = _argument(words[max(call - BEFORE, 0) : call])
            if kind in reads:
                reads[kind].append(_bit(words[call + 1 : call + 1 + AFTER]))
    at = {name: np.concatenate(parts or [np.empty(0, np.int64)]) for name, parts in places.items()}
    functions = {name: set(_indices(bounds, hits).tolist()) for name, hits in at.items()}
    extensions = []
    for name, inside in functions.items():
        alone = inside - functions.get(WITHIN.get(name, ""), set())
        if name == "sme2":
            alone = inside & functions["sme"]  # data between functions may look so
        hits = at[name][np.isin(_indices(bounds, at[name]), sorted(alone))]
        if alone:
            extensions.append(ExtensionCode(extension=name, functions=len(alone), instructions=len(hits)))
    queries = [
        ProcessorQuery(
            source=source,
            reads=len(reads[kind]),
            bits=tuple(names.get(bit, f"bit {bit}") for bit in sorted(set(reads[kind]) - {-1})),
        )
        for kind, (source, names) in AUXILIARY.items()
        if reads[kind]
    ]
    if content.find(CPU_FILE) >= 0:
        queries.append(ProcessorQuery(source="/proc/cpuinfo"))
    return ArmCode(abi=elf.abi, extensions=tuple(extensions), queries=tuple(queries))


def _functions(content: elf_file.Buffer, elf: elf_file.Elf) -> "Places":
    """Addresses where functions begin and where they end, in order; empty for a file without the table."""
    import numpy as np

    table = next((part for part in elf.segments if part.type == PT_GNU_EH_FRAME), None)
    if table is None or content[table.offset : table.offset + 4] != TABLE_OF_OFFSETS or table.file_size < 12:
        return np.empty(0, np.int64)
    count = min(
        struct.unpack_from("<I", content, table.offset + 8)[0],
        (table.file_size - 12) // 8,
        (len(content) - table.offset - 12) // 8,
    )
    rows = np.frombuffer(content, "<i4", count * 2, table.offset + 12).reshape(-1, 2).astype(np.int64) + table.address
    loads = [part for part in elf.segments if part.type == elf_file.PT_LOAD]
    ends = []
    for start, entry_point in rows.tolist():
        offset = next(
            (
                entry_point - part.address + part.offset
                for part in loads
                if part.address <= entry_point < part.address + part.file_size
            ),
            -1,
        )
        if not 0 <= offset <= len(content) - 16:
            return np.empty(0, np.int64)
        ends.append(start + struct.unpack_from("<I", content, offset + 12)[0])
    return np.unique(np.concatenate([rows[:, 0], np.array(ends, np.int64)]))


def _indices(bounds: "Places", places: "Places") -> "Places":
    import numpy as np

    return np.searchsorted(bounds, places, "right")


def _calls(words: "Words", part: elf_file.Segment, slot: int | None) -> list[int]:
    """Indices of the calls of a function of another library, whose address the linker writes to `slot`."""
    import numpy as np

    if slot is None:
        return []
    # A stub of the procedure linkage table: ADRP X16, page; LDR X17, [X16, #offset]
    pages = np.flatnonzero((words[:-1] & np.uint32(0x9F00001F)) == np.uint32(0x90000010))
    first, second = words[pages].astype(np.int64), words[pages + 1].astype(np.int64)
    high = (first >> 5 & 0x7FFFF) << 2 | first >> 29 & 3
    page = (part.address + pages * 4 & ~0xFFF) + ((high ^ 1 << 20) - (1 << 20) << 12)
    loads = (second & 0xFFC003FF) == 0xF9400211
    stubs = pages[loads & (page + (second >> 10 & 0xFFF) * 8 == slot)]
    branches = np.flatnonzero((words & np.uint32(0xFC000000)) == np.uint32(0x94000000))
    distance = words[branches].astype(np.int64) & 0x3FFFFFF
    targets = branches + (distance ^ 1 << 25) - (1 << 25)
    # Stubs of programs with branch targets begin with BTI
    calls: list[int] = branches[np.isin(targets, np.concatenate([stubs, stubs - 1]))].tolist()
    return calls


def _argument(before: "Words") -> int:
    """The constant that the first argument was set to last: MOV W0 or X0, #number; -1 for none."""
    return next((word >> 5 & 0xFFFF for word in before.tolist()[::-1] if word & 0x7FE0001F == 0x52800000), -1)


def _bit(behind: "Words") -> int:
    """The bit that is taken of what a call returned, by UBFX of one bit, TBZ or TBNZ; -1 for none."""
    holders = {0}
    for word in behind.tolist():
        if word & 0xFC000000 == 0x94000000:
            break
        if word & 0x7FE0FFE0 == 0x2A0003E0 and word >> 16 & 31 in holders:  # MOV Rd, Rm
            holders.add(word & 31)
        elif word & 0x7F800000 == 0x52800000:  # MOV Rd, #number: the next call's argument
            holders.discard(word & 31)
        elif word & 0x7F800000 == 0x53000000 and word >> 5 & 31 in holders and word >> 16 & 63 == word >> 10 & 63:
            return int(word >> 16 & 63)
        elif word & 0x7E000000 == 0x36000000 and word & 31 in holders:
            return int(word >> 31 << 5 | word >> 19 & 31)
    return -1
