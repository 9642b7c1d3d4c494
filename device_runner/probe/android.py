"""Android programs without the NDK: stub libraries of one allow-list, and the rules by which the result is judged.

ziglang has no libc for Android, so headers (android/include), start file (android/start.c) and stubs are ours; the
program is linked with lld itself, since the driver refuses. What lld leaves undefined is an error: so only functions
that bionic of API level 27 has can be used, and no helper of a compiler's run-time library.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from device_runner.probe.elf import (
    PT_GNU_RELRO,
    PT_GNU_STACK,
    PT_LOAD,
    PT_TLS,
    Elf,
    Segment,
)

LIBC = frozenset(
    re.findall(
        r"\w+",
        "__libc_init __cxa_atexit __errno __stack_chk_fail _exit abort calloc clock_gettime close dup dup2 fclose"
        " fflush fgetc fgets fopen fork fprintf fputc fread free fsync fwrite getpagesize getpid getppid kill lseek"
        " malloc memcmp memcpy memmove memset mincore mmap munmap nanosleep open pipe poll posix_fadvise"
        " posix_memalign prctl pread pthread_mutex_lock pthread_mutex_unlock putchar puts qsort read setenv signal"
        " snprintf strcmp strerror strlen strncmp strstr strtoll strtoull unlink vsnprintf waitpid write",
    )
)
"""Functions of libc.so, all in bionic since API level 21 or earlier."""

LIBC_DATA = frozenset({"stdin", "stdout", "stderr"})
"""Variables of libc.so, each a pointer; since API level 23."""

LIBDL = frozenset({"dlopen", "dlsym", "dlerror"})

STUBS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "libc.so": (LIBC, LIBC_DATA),
    "libdl.so": (LIBDL, frozenset()),
}
"""SONAME to the functions and variables that a program may take from it."""

PAGE = 0x4000
"""16 KB, as devices of Android 15 and later may have; right for 4 KB ones too."""

LD_EMULATION = {"arm64-v8a": "aarch64linux", "x86_64": "elf_x86_64"}
ZIG_ARCH = {"arm64-v8a": "aarch64", "x86_64": "x86_64"}

COMPILE_FLAGS = (
    "-std=c11", "-O2", "-fPIE", "-fno-sanitize=undefined", "-fno-stack-protector", "-nostdlibinc",
    "-Werror=implicit-function-declaration",
)  # fmt: skip

LINK_FLAGS = (
    "-pie", "--no-undefined", "--dynamic-linker=/system/bin/linker64", "--hash-style=gnu", "--build-id=sha1",
    "--eh-frame-hdr", "--enable-new-dtags", "--no-rosegment", "--as-needed", "--gc-sections",
    "-z", "now", "-z", "relro", "-z", "noexecstack", "-z", "text",
    "-z", f"max-page-size={PAGE}", "-z", f"common-page-size={PAGE}", "--strip-debug",
)  # fmt: skip
"""As the NDK links; --no-rosegment since unwinders before API level 29 do not know a read-only segment of its own."""

ARM64_LINK_FLAGS = ("--fix-cortex-a53-843419",)


def stub_source(soname: str) -> str:
    """Assembler text of a library that has the names of the allow-list and nothing behind them."""
    functions, variables = STUBS[soname]
    code = [f".globl {name}\n.type {name},%function\n{name}:" for name in sorted(functions)]
    data = [f".globl {name}\n.type {name},%object\n.size {name},8\n{name}: .quad 0" for name in sorted(variables)]
    return "\n".join([".text", *code, ".data", *data, ""])


FORBIDDEN_NAME = re.compile(
    r"__ubsan_|__emutls_|__tls_get_addr|__aarch64_|__libc_start_main|__errno_location|__assert_fail|__stdio|GLIBC_"
    r"|__.*(tf|ti)\d"
)
"""Names of compiler run-time helpers and of other C libraries."""

RELOCATIONS = {"arm64-v8a": {257, 1025, 1026, 1027}, "x86_64": {1, 6, 7, 8}}
"""ABS64, GLOB_DAT, JUMP_SLOT, RELATIVE: no copies, no thread-locals, no indirect functions."""


@dataclass(frozen=True, slots=True)
class ElfRule:
    """What must hold of a program, and why."""

    text: str
    holds: Callable[[Elf], bool]


def _segments(elf: Elf, kind: int) -> list[Segment]:
    return [segment for segment in elf.segments if segment.type == kind]


def _right_kind(elf: Elf) -> bool:
    return (elf.bits, elf.type) == (64, 3) and elf.abi in RELOCATIONS


def _aligned(elf: Elf) -> bool:
    return all(s.alignment == PAGE and (s.address - s.offset) % PAGE == 0 for s in _segments(elf, PT_LOAD))


def _write_or_execute(elf: Elf) -> bool:
    return not any(segment.flags & 3 == 3 for segment in _segments(elf, PT_LOAD))


def _clean_stack(elf: Elf) -> bool:
    stacks = _segments(elf, PT_GNU_STACK)
    return bool(stacks) and not any(segment.flags & 1 for segment in stacks)


def _relro_ends_on_page(elf: Elf) -> bool:
    ends = [segment.address + segment.memory_size for segment in _segments(elf, PT_GNU_RELRO)]
    return bool(ends) and all(end % PAGE == 0 for end in ends)


def _known_needs(elf: Elf) -> bool:
    return set(elf.needed) <= {"libc.so", "libdl.so", "libm.so"} and "libc.so" in elf.needed


def _old_linkers_know_it(elf: Elf) -> bool:
    return not any(elf.tag(name) is not None for name in ("textrel", "rpath", "runpath", "relr", "android_relr"))


def _no_helpers(elf: Elf) -> bool:
    return not any(FORBIDDEN_NAME.match(name) for name in elf.undefined)


def _has_note(elf: Elf) -> bool:
    levels = [note[:4] for name, kind, note in elf.notes if (name, kind) == ("Android", 1)]
    return len(levels) == 1 and 21 <= int.from_bytes(levels[0], "little") <= 99


def _has_build_id(elf: Elf) -> bool:
    return any((name, kind) == ("GNU", 3) for name, kind, _ in elf.notes)


PROGRAM_RULES = (
    ElfRule("64 bits, position-independent, for arm64-v8a or x86_64", _right_kind),
    ElfRule("section headers are there: linker64 checks them", lambda e: 0 < e.section_names_index < e.section_count),
    ElfRule("the interpreter is /system/bin/linker64", lambda e: e.interpreter == "/system/bin/linker64"),
    ElfRule("segments are aligned to 16 KB", _aligned),
    ElfRule("no segment is writable and executable", _write_or_execute),
    ElfRule("the stack is not executable", _clean_stack),
    ElfRule("the part that is read-only after relocation ends on a 16 KB page", _relro_ends_on_page),
    ElfRule("no thread-local storage: it needs API level 29", lambda e: not _segments(e, PT_TLS)),
    ElfRule("needs libc.so, and of others libdl.so and libm.so at most", _known_needs),
    ElfRule("everything is bound at the start", lambda e: e.tag("flags") == 8 and e.tag("flags_1") == 0x08000001),
    ElfRule("has a gnu hash table", lambda e: e.tag("gnu_hash") is not None),
    ElfRule("no tag that old linkers do not know", _old_linkers_know_it),
    ElfRule("relocations are of the plain kinds", lambda e: e.relocations <= RELOCATIONS.get(e.abi, set())),
    ElfRule("no helper of a compiler or of another C library", _no_helpers),
    ElfRule("exports nothing", lambda e: all(symbol.section == 0 for symbol in e.symbols)),
    ElfRule("has the Android note with an API level", _has_note),
    ElfRule("has a build-id", _has_build_id),
)

STUB_RULES = (
    ElfRule("takes from the system what the allow-list has", lambda e: e.undefined <= LIBC | LIBC_DATA | LIBDL),
    ElfRule("wants no symbol versions", lambda e: e.tag("verneed") is None),
)
"""Beside PROGRAM_RULES for programs linked against our stubs; the NDK's have versions and more helpers."""


def broken_rules(elf: Elf, *, stubs: bool) -> list[str]:
    """What keeps an Android program from running on every device from API level 27 on; empty when nothing does."""
    rules = (*PROGRAM_RULES, *STUB_RULES) if stubs else PROGRAM_RULES
    return [rule.text for rule in rules if not rule.holds(elf)]
