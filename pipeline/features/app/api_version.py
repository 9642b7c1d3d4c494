"""The version of ONNX Runtime's API that a native library asks for, read from its code: nothing of it is run.

Source: the calls of GetApi as clang compiles them in libraries of 1.17.1 to 1.30.0.
"""

import contextlib
import re
import struct
from collections.abc import Callable, Mapping

from device_runner.probe.elf import PT_LOAD, Buffer, Elf, NotElf

GET_API_BASE = "OrtGetApiBase"


def asked_api(content: Buffer, elf: Elf) -> int:
    """The version of the API that a library calls GetApi with right after OrtGetApiBase, 0 where none is seen.

    What is called is followed to its slot, so that no other call of this form counts.
    """
    slot = dict(elf.slots).get(GET_API_BASE)
    pattern, decode = CALLS.get(elf.abi, (None, None))
    if slot is None or pattern is None or decode is None:
        return 0
    for match in pattern.finditer(content):
        place = match.start()
        inside = (part for part in elf.segments if part.type == PT_LOAD and 0 <= place - part.offset < part.file_size)
        called = next((place - part.offset + part.address for part in inside), None)
        with contextlib.suppress(NotElf, struct.error):
            if called is not None and decode(content, elf, place, called) == slot:
                return int.from_bytes(match[1], "little") >> (5 if elf.machine == 183 else 0) & 0xFFFF
    return 0


def _place(elf: Elf, address: int) -> int:
    for part in elf.segments:
        if part.type == PT_LOAD and 0 <= address - part.address < part.file_size:
            return address - part.address + part.offset
    raise NotElf(f"no segment has the address {address:#x}")


def _signed(value: int, bits: int) -> int:
    return value - (value >> bits - 1 << bits)


def _slot_arm64(content: Buffer, elf: Elf, place: int, address: int) -> int:
    """BL to a thunk: (BTI c,) ADRP x16, LDR x17 from there; the address that LDR reads."""
    (call,) = struct.unpack_from("<I", content, place)
    thunk = address + _signed(call & 0x3FFFFFF, 26) * 4
    if struct.unpack_from("<I", content, _place(elf, thunk))[0] == 0xD503245F:
        thunk += 4
    page, load = struct.unpack_from("<II", content, _place(elf, thunk))
    if page & 0x9F00001F != 0x90000010:
        return -1
    distance = _signed((page >> 5 & 0x7FFFF) << 2 | page >> 29 & 3, 21)
    return int((thunk & ~0xFFF) + (distance << 12) + (load >> 10 & 0xFFF) * 8)


def _slot_x86_64(content: Buffer, elf: Elf, place: int, address: int) -> int:
    """CALL to a thunk: (ENDBR64,) JMP [RIP + distance]."""
    (distance,) = struct.unpack_from("<i", content, place + 1)
    thunk = address + 5 + int(distance)
    at = _place(elf, thunk)
    if content[at : at + 4] == b"\xf3\x0f\x1e\xfa":
        at, thunk = at + 4, thunk + 4
    if content[at : at + 2] != b"\xff\x25":
        return -1
    return thunk + 6 + int(struct.unpack_from("<i", content, at + 2)[0])


CALLS: Mapping[str, tuple[re.Pattern[bytes], Callable[[Buffer, Elf, int, int], int]]] = {
    # bl; ldr xN, [x0]; mov w0, #version; blr xN
    "arm64-v8a": (re.compile(rb"(?s)...[\x94-\x97].\x00\x40\xf9(..\x80\x52).[\x00-\x03]\x3f\xd6"), _slot_arm64),
    # call; mov edi, version; call [rax]
    "x86_64": (re.compile(rb"(?s)\xe8....\xbf(.\x00\x00\x00)\xff\x10"), _slot_x86_64),
}
