"""The version of ONNX Runtime's API that a native library asks for, read from its code: nothing of it is run.

Source: the calls of GetApi as clang compiles them in libraries of 1.17.1 to 1.30.0.
"""

import contextlib
import itertools
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from device_runner.probe import elf as elf_file
from device_runner.probe.elf import NotElf

GET_API_BASE = "OrtGetApiBase"


class ApiRange(NamedTuple):
    """Versions of the API that a library asks for one after the other, from the newest down."""

    least: int
    most: int


NO_RANGE = ApiRange(0, 0)
RANGE_TEXT = b"The loaded library did not have an ORT API version between %d and %d.\0"
"""What ONNX Runtime GenAI says where GetApi gave null for each: the two numbers follow it as arguments."""
MOST_DISTANCE = 32
"""Bytes of code between the format's address and the numbers, either side."""
MOST_PLACES = 1000


def asked_range(content: elf_file.Buffer, elf: elf_file.Elf) -> ApiRange:
    """The versions that a library tries, newest first; NO_RANGE where its code does not show them."""
    text = content.find(RANGE_TEXT)
    if text < 0 or elf.abi not in RANGES:
        return NO_RANGE
    with contextlib.suppress(NotElf, struct.error):
        address = _address(elf, text)
        for numbers in RANGES[elf.abi](content, elf, address):
            if 0 < numbers.least < numbers.most < 1000:
                return numbers
    return NO_RANGE


def asked_api(content: elf_file.Buffer, elf: elf_file.Elf) -> int:
    """The version of the API that a library calls GetApi with right after OrtGetApiBase, 0 where none is seen.

    What is called is followed to its slot, so that no other call of this form counts.
    """
    slot = dict(elf.slots).get(GET_API_BASE)
    pattern, decode = CALLS.get(elf.abi, (None, None))
    if slot is None or pattern is None or decode is None:
        return 0
    for match in pattern.finditer(content):
        offset = match.start()
        inside = (
            part
            for part in elf.segments
            if part.type == elf_file.PT_LOAD and 0 <= offset - part.offset < part.file_size
        )
        called = next((offset - part.offset + part.address for part in inside), None)
        with contextlib.suppress(NotElf, struct.error):
            if called is not None and decode(content, elf, offset, called) == slot:
                return int.from_bytes(match[1], "little") >> (5 if elf.machine == 183 else 0) & 0xFFFF
    return 0


def _address(elf: elf_file.Elf, offset: int) -> int:
    for part in elf.segments:
        if part.type == elf_file.PT_LOAD and 0 <= offset - part.offset < part.file_size:
            return offset - part.offset + part.address
    raise NotElf(f"no segment has byte {offset:#x}")


def _place(elf: elf_file.Elf, address: int) -> int:
    for part in elf.segments:
        if part.type == elf_file.PT_LOAD and 0 <= address - part.address < part.file_size:
            return address - part.address + part.offset
    raise NotElf(f"no segment has the address {address:#x}")


def _signed(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


def _slot_arm64(content: elf_file.Buffer, elf: elf_file.Elf, offset: int, address: int) -> int:
    """BL to a thunk: (BTI c,) ADRP x16, LDR x17 from there; the address that LDR reads."""
    (call,) = struct.unpack_from("<I", content, offset)
    thunk = address + _signed(call & 0x3FFFFFF, 26) * 4
    if struct.unpack_from("<I", content, _place(elf, thunk))[0] == 0xD503245F:
        thunk += 4
    page, load = struct.unpack_from("<II", content, _place(elf, thunk))
    if page & 0x9F00001F != 0x90000010:
        return -1
    distance = _signed((page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3, 21)
    return int((thunk & ~0xFFF) + (distance << 12) + (load >> 10 & 0xFFF) * 8)


def _slot_x86_64(content: elf_file.Buffer, elf: elf_file.Elf, offset: int, address: int) -> int:
    """CALL to a thunk: (ENDBR64,) JMP [RIP + distance]."""
    (distance,) = struct.unpack_from("<i", content, offset + 1)
    thunk = address + 5 + int(distance)
    at = _place(elf, thunk)
    if content[at : at + 4] == b"\xf3\x0f\x1e\xfa":
        at, thunk = at + 4, thunk + 4
    if content[at : at + 2] != b"\xff\x25":
        return -1
    return thunk + 6 + int(struct.unpack_from("<i", content, at + 2)[0])


CALLS: Mapping[str, tuple[re.Pattern[bytes], Callable[[elf_file.Buffer, elf_file.Elf, int, int], int]]] = {
    # bl; ldr xN, [x0]; mov w0, #version; blr xN
    "arm64-v8a": (re.compile(rb"(?s)...[\x94-\x97].\x00\x40\xf9(..\x80\x52).[\x00-\x03]\x3f\xd6"), _slot_arm64),
    # call; mov edi, version; call [rax]
    "x86_64": (re.compile(rb"(?s)\xe8....\xbf(.\x00\x00\x00)\xff\x10"), _slot_x86_64),
}


def _range_arm64(content: elf_file.Buffer, elf: elf_file.Elf, address: int) -> Iterator[ApiRange]:
    """ADRP and ADD make the text's address in xN; MOV puts the numbers into wN+1 and wN+2."""
    for register in range(6):
        add = struct.pack("<I", 0x91000000 | (address & 0xFFF) << 10 | register << 5 | register)
        for match in itertools.islice(re.finditer(re.escape(add), content), MOST_PLACES):
            page, moved = -1, {}
            for at in range(
                max(match.start() - MOST_DISTANCE, 0), min(match.end() + MOST_DISTANCE, len(content) - 3), 4
            ):
                (word,) = struct.unpack_from("<I", content, at)
                if at < match.start() and word & 0x9F00001F == 0x90000000 | register:
                    distance = _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) << 12
                    page = (_address(elf, at) & ~0xFFF) + distance
                if word & 0xFFE00000 == 0x52800000:
                    moved[word & 31] = word >> 5 & 0xFFFF
            if page == address & ~0xFFF:
                yield ApiRange(moved.get(register + 2, 0), moved.get(register + 1, 0))


LOADS = (b"\x48\x8d\x3d", b"\x48\x8d\x35", b"\x48\x8d\x15", b"\x48\x8d\x0d")
"""LEA with a distance from RIP, into the registers of the first four arguments."""
MOVES = (b"\xbf", b"\xbe", b"\xba", b"\xb9", b"\x41\xb8", b"\x41\xb9")
"""MOV of 32 bits into those of all six."""


def _range_x86_64(content: elf_file.Buffer, elf: elf_file.Elf, address: int) -> Iterator[ApiRange]:
    """LEA makes the text's address, MOV puts the numbers into the next two registers of arguments."""
    for part in elf.segments:
        start, end = part.offset, part.offset + part.file_size
        for number, load in enumerate(LOADS if part.type == elf_file.PT_LOAD and part.flags & 1 else ()):
            for match in re.compile(b"(?s)" + re.escape(load) + b"(....)").finditer(content, start, end):
                reached = match.end() - part.offset + part.address + int.from_bytes(match[1], "little", signed=True)
                if reached != address:
                    continue
                around = content[max(match.start() - MOST_DISTANCE, 0) : match.end() + MOST_DISTANCE]
                moved = [
                    re.search(b"(?s)" + re.escape(move) + rb"([\x01-\xff]\x00\x00\x00)", around)
                    for move in MOVES[number + 1 : number + 3]
                ]
                most, least = (int.from_bytes(match[1], "little") if match else 0 for match in moved)
                yield ApiRange(least, most)


RANGES: Mapping[str, Callable[[elf_file.Buffer, elf_file.Elf, int], Iterator[ApiRange]]] = {
    "arm64-v8a": _range_arm64,
    "x86_64": _range_x86_64,
}
