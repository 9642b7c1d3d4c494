"""Code for extensions of arm64, as LLVM 14 disassembles the same words and libraries."""

import struct

import pytest

from device_runner.probe.elf import NotElf
from pipeline.core.abis import ARM64
from pipeline.library.kernels import read_arm_code
from tests.library.library_files import library

RET, NOP = 0xD65F03C0, 0xD503201F
WORDS = {
    "half precision": {"fmla v0.8h, v1.8h, v2.8h": 0x4E420C20, "fmla v0.8h, v1.8h, v2.h[0]": 0x4F021020},
    "dotprod": {"sdot v0.4s, v1.16b, v2.16b": 0x4E829420, "udot v0.4s, v1.16b, v2.4b[0]": 0x6F82E020},
    "i8mm": {
        "smmla v0.4s, v1.16b, v2.16b": 0x4E82A420, "ummla v0.4s, v1.16b, v2.16b": 0x6E82A420,
        "usmmla v0.4s, v1.16b, v2.16b": 0x4E82AC20, "usdot v0.4s, v1.16b, v2.16b": 0x4E829C20,
        "sudot v0.4s, v1.16b, v2.4b[0]": 0x4F02F020,
    },
    "bf16": {"bfmmla v0.4s, v1.8h, v2.8h": 0x6E42EC20, "bfdot v0.4s, v1.8h, v2.2h[0]": 0x4F42F020},
    "sve": {"ptrue p2.b": 0x2518E3E2, "whilelt p1.s, x20, x10": 0x25AA1681},
}  # fmt: skip
SMSTART, SMSTOP, FMOPA = 0xD503477F, 0xD503467F, 0x80914A40


def arm(*words: int) -> bytes:
    """A library for arm64-v8a with these words in its code, which begins at a multiple of four bytes."""
    mark = b"\xff" * 8
    at = library(ARM64, extra=mark).index(mark)
    return library(ARM64, extra=bytes(-at % 4) + struct.pack(f"<{len(words)}I", *words))


@pytest.mark.parametrize("extension", WORDS)
def test_instructions_tell_of_an_extension(extension: str) -> None:
    words = WORDS[extension].values()
    code = read_arm_code(arm(NOP, *words, RET))
    assert [(row.extension, row.instructions) for row in code.extensions] == [(extension, len(words))]


def test_vectors_of_a_function_with_sme_are_not_counted_as_sve() -> None:
    code = read_arm_code(arm(SMSTART, *WORDS["sve"].values(), FMOPA, SMSTOP, RET))
    assert [(row.extension, row.functions) for row in code.extensions] == [("sme", 1)]


def test_common_code_has_no_extension() -> None:
    plain = {"fmla v0.4s, v1.4s, v2.4s": 0x4E22CC20, "mla v0.4s, v1.4s, v2.4s": 0x4EA29420, "smlal": 0x0E628020}
    assert not read_arm_code(arm(*plain.values(), RET)).extensions


@pytest.mark.parametrize("size", [0, 60, 200, 400])
def test_a_cut_off_library_is_no_crash(size: int) -> None:
    try:
        code = read_arm_code(arm(NOP, RET)[:size])
    except NotElf:
        return
    assert not code.extensions
