"""Builds the shims, the fake libneuralnetworks.so and `ask` from symbols.txt, once for each content and compiler."""

import hashlib
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from device_runner.android_host.processor import HOST_ABIS, Processor, default_abi, find_processor
from device_runner.errors import RunnerError, UnavailableError
from device_runner.files import (
    BUILD_PREFIX,
    are_sound,
    cache_folder,
    note_digests,
    own_folder_errors,
    remove_abandoned,
    scratch_folder,
    taking_turns,
)
from device_runner.local import machine_abi
from device_runner.probe.build import LINUX_TARGETS, zig_command, zig_version

TABLE = Path(__file__).with_name("symbols.txt")
VERSIONED = frozenset({"libdl.so", "libm.so", "libc.so"})
"""Libraries whose symbols carry bionic's version LIBC."""


class How(StrEnum):
    """Who does the work of a symbol."""

    PASS = "pass"  # noqa: S105 - a word of the table
    ADAPT = "adapt"
    OBJECT = "object"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Symbol:
    """One row's symbol; `size_bytes` is an object's, 0 for functions; `machine` the only one of the row, "" for all."""

    name: str
    library: str
    how: How
    size_bytes: int = 0
    machine: str = ""


def parse_table(text: str) -> tuple[Symbol, ...]:
    """Symbols in the order of the table; raises ValueError for a line or a name that cannot be right."""
    symbols = [symbol for line in text.splitlines() for symbol in _parse_line(line)]
    names = Counter((symbol.name, symbol.machine) for symbol in symbols)
    twice = sorted({name for (name, _), count in names.items() if count > 1})
    if twice:
        raise ValueError(f"listed twice: {', '.join(twice)}")
    return tuple(symbols)


def _parse_line(line: str) -> Iterable[Symbol]:
    words = line.partition("#")[0].split()
    if not words:
        return
    how, library, *names = words
    machine, _, how = how.rpartition(":")
    for name in names:
        symbol, _, size = name.partition(":")
        yield Symbol(symbol, library, How(how), int(size or 0), machine)


@lru_cache(maxsize=1)
def table() -> tuple[Symbol, ...]:
    """The committed table."""
    return parse_table(TABLE.read_text("utf-8"))


def symbols_of(library: str, machine: str) -> tuple[Symbol, ...]:
    """What a shim library defines on a machine; a row for that machine goes before the one for all."""
    rows = {symbol.name: symbol for symbol in table() if not symbol.machine}
    rows |= {symbol.name: symbol for symbol in table() if symbol.machine == machine}
    return tuple(symbol for symbol in rows.values() if symbol.library == library and symbol.how is not How.ABSENT)


def shim_libraries() -> tuple[str, ...]:
    """Names of the shim libraries, in the order of the table."""
    return tuple(dict.fromkeys(symbol.library for symbol in table()))


def unknown_imports(imports: Iterable[str]) -> list[str]:
    """Symbols that the table does not have, sorted."""
    return sorted(set(imports) - {symbol.name for symbol in table()})


def check_imports(imports: Iterable[str], libraries: Iterable[str], *, where: str) -> None:
    """Raise UnavailableError when a library needs a symbol or a library that the shims do not give.

    `imports` are the undefined dynamic symbols of the library at `where`, `libraries` its NEEDED entries. Asked before
    anything is loaded: the dynamic linker names one missing symbol only, a lazily bound one not before it is called.
    """
    unknown = unknown_imports(imports)
    others = sorted(set(libraries) - set(shim_libraries()))
    if unknown or others:
        what = ", ".join([*unknown[:8], *(["..."] if len(unknown) > 8 else []), *others])
        raise UnavailableError(
            f"this library needs what android-host does not give: {what}",
            where=where,
            why="each import must be known to be the same here, or have an adapter",
            remedy="run this library on a phone (adb:SERIAL), or add the symbols to android_host/symbols.txt",
        )


PRIVATE = "android_host_"
ADAPTER = "bionic_"


@dataclass(frozen=True, slots=True)
class Machine:
    """Instructions of one processor: `passes` jumps to a function elsewhere, `jumps` to a hidden one of the shim."""

    passes: str
    jumps: str


MACHINES: dict[str, Machine] = {
    "x86_64": Machine(passes="jmp *{target}@GOTPCREL(%rip)", jumps="jmp {target}"),
    "aarch64": Machine(
        passes="adrp x16, :got:{target}\n  ldr x16, [x16, :got_lo12:{target}]\n  br x16", jumps="b {target}"
    ),
    "arm": Machine(passes="b {target}", jumps="b {target}"),
}
"""By the name of qemu's program for it, which on 64 bits is that of `uname -m`."""


def assembler(symbols: tuple[Symbol, ...], machine: Machine) -> str:
    """Source text of one shim library's thunks and objects."""
    parts = ['  .section .note.GNU-stack,"",%progbits', "  .text"]
    for symbol in symbols:
        parts += _object(symbol) if symbol.how is How.OBJECT else _function(symbol, machine)
    return "\n".join(parts) + "\n"


def version_script(symbols: tuple[Symbol, ...]) -> str:
    """Linker script: what is exported, under LIBC where bionic has that version. `local: *` would hide everything."""
    hidden = f"  local: {PRIVATE}*; {ADAPTER}*;"
    names = "; ".join(symbol.name for symbol in symbols)
    head = "LIBC {" if any(symbol.library in VERSIONED for symbol in symbols) else f"{{\n  global: {names};"
    return f"{head}\n{hidden}\n}};\n"


def _function(symbol: Symbol, machine: Machine) -> list[str]:
    exported, lines = _exported(symbol)
    jump = machine.passes if symbol.how is How.PASS else machine.jumps
    target = symbol.name if symbol.how is How.PASS else ADAPTER + symbol.name
    hidden = [] if symbol.how is How.PASS else [f"  .hidden {target}"]
    body = ["  .p2align 4", f"{exported}:", "  " + jump.format(target=target), f"  .size {exported}, .-{exported}"]
    return [f"  .globl {exported}", f"  .type {exported}, %function", *hidden, *body, *lines]


def _object(symbol: Symbol) -> list[str]:
    """Zero bytes under two names: the exported one, and the hidden one that the adapters fill."""
    exported, lines = _exported(symbol)
    inner = ADAPTER + symbol.name
    labels = [
        f"  .globl {name}\n  .type {name}, %object\n  .size {name}, {symbol.size_bytes}" for name in (exported, inner)
    ]
    body = ["  .bss", "  .p2align 4", f"{exported}:", f"{inner}:", f"  .zero {symbol.size_bytes}", "  .text"]
    return [*labels, f"  .hidden {inner}", *body, *lines]


def _exported(symbol: Symbol) -> tuple[str, list[str]]:
    """Name that the code stands under, and the line that exports it with its version."""
    if symbol.library not in VERSIONED:
        return symbol.name, []
    private = PRIVATE + symbol.name
    return private, [f"  .symver {private}, {symbol.name}@LIBC"]


SOURCES = Path(__file__).parent
NNAPI = "libneuralnetworks.so"
ASK = "ask"
PROBE = SOURCES.parent / "probe"
ASKS_WITH = ("checksum.c", "json.c", "platform.c")
"""Units of the probe in `ask`."""
ADAPTERS: dict[str, tuple[str, ...]] = {
    "libdl.so": (),
    "libm.so": ("math.c",),
    "libc.so": ("stdio.c", "text.c", "system.c", "threads.c", "arm.c"),
    "liblog.so": ("log.c",),
    "libandroid.so": ("android.c",),
}
"""Shim library to its sources in shims/."""

FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-Wno-unused-command-line-argument",
    "-s",  # as the probe: ziglang compiles its C library's parts, for five seconds, once with symbols and once without
)
SHIM_FLAGS = ("-fno-builtin", "-D_FORTIFY_SOURCE=0")
"""Adapters must call what they name, not what a compiler makes of it."""
LINK = ("-shared", "-Wl,-z,now", "-lm", "-ldl", "-lpthread")


@dataclass(frozen=True, slots=True)
class Compiler:
    """How to call it, and what tells it from another for the cache."""

    command: tuple[str, ...]
    identity: str


def find_compiler() -> Compiler:
    """cc, gcc, clang (or CC), else the package ziglang; raises UnavailableError when there is none."""
    own = os.environ.get("CC", "")
    names = [*([own] if own and " " not in own else []), "cc", "gcc", "clang"]
    if found := next((path for name in names if (path := shutil.which(name))), None):
        facts = Path(found).resolve().stat()
        return Compiler((found,), f"{Path(found).resolve()} {facts.st_size} {facts.st_mtime_ns}")
    if zig := zig_command():
        return Compiler((*zig, "cc"), zig_version())
    raise UnavailableError(
        "no C compiler for the shims of android-host",
        why="neither cc, gcc nor clang is on PATH, and the package ziglang is not installed",
        remedy="pip install ziglang, or install a C compiler; `local` and `adb:SERIAL` need none of the shims",
    )


def cross_compiler(abi: str) -> Compiler:
    """The package ziglang for another processor's Linux; raises UnavailableError where it is not installed."""
    if zig := zig_command():
        flags = LINUX_TARGETS[HOST_ABIS[abi].probe]
        return Compiler((*zig, "cc", *flags), f"{zig_version()} {' '.join(flags)}")
    raise UnavailableError(
        f"no compiler for {abi}",
        why="the package ziglang is not installed; cc builds for this computer only",
        remedy="pip install ziglang (it is in the extra `android`), or use x86_64",
    )


def build_host(processor: Processor | None = None) -> Path:
    """The folder with the shims and the fake NNAPI for a processor (this computer's), built unless it is in the cache.

    Raises UnavailableError on another system or without a compiler, RunnerError when the compiler fails.
    """
    found = processor or find_processor(default_abi())
    compiler = find_compiler() if found.abi == machine_abi() else cross_compiler(found.abi)
    folder = cache_folder() / "android-host" / "shims" / _digest(compiler)
    parts = (*shim_libraries(), NNAPI, ASK)
    if not are_sound(folder, parts):
        with own_folder_errors(folder), taking_turns(folder.with_name(f".lock-{folder.name[:16]}")):
            if not are_sound(folder, parts):  # another process may have built them
                # Somebody removed or changed a part: without the fake NNAPI a library would call null pointers.
                shutil.rmtree(folder, ignore_errors=True)
                _make(compiler, HOST_ABIS[found.abi].machine, folder)
    return folder


def _digest(compiler: Compiler) -> str:
    total = hashlib.sha256(repr((compiler.identity, FLAGS, SHIM_FLAGS, LINK)).encode())
    own = [TABLE, *SOURCES.glob("*/*.[ch]"), *SOURCES.glob("*/*.def"), Path(__file__)]
    for path in sorted([*own, *PROBE.glob("*.[ch]")]):
        total.update(path.relative_to(SOURCES.parent).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _make(compiler: Compiler, machine: str, folder: Path) -> None:
    """Build in a folder of its own and rename it, so that nobody sees a part; without locks two may do so at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(BUILD_PREFIX, folder.parent)
    with scratch_folder(BUILD_PREFIX, folder.parent) as building:
        work, done = building / "work", building / "done"
        work.mkdir()
        done.mkdir()
        for library in shim_libraries():
            _make_shim(compiler, machine, library, work, done / library)
        _make_nnapi(compiler, done / NNAPI)
        ask = (SOURCES / "ask" / "ask.c", *(PROBE / unit for unit in ASKS_WITH))
        _run((*compiler.command, *FLAGS, "-D_GNU_SOURCE", "-o", str(done / ASK), *map(str, ask), "-ldl"))
        for path in done.iterdir():
            _sync(path)
        note_digests(done, [path.name for path in done.iterdir()])
        try:
            done.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def _make_shim(compiler: Compiler, machine: str, library: str, work: Path, target: Path) -> None:
    symbols = symbols_of(library, machine)
    source, script = work / f"{library}.s", work / f"{library}.map"
    source.write_text(assembler(symbols, MACHINES[machine]), "utf-8")
    script.write_text(version_script(symbols), "utf-8")
    adapters = [str(SOURCES / "shims" / name) for name in ADAPTERS[library]]
    link = (*LINK, f"-Wl,-soname,{library}", f"-Wl,--version-script={script}")
    _run((*compiler.command, *FLAGS, *SHIM_FLAGS, "-o", str(target), str(source), *adapters, *link))


def _make_nnapi(compiler: Compiler, target: Path) -> None:
    sources = sorted(str(path) for path in (SOURCES / "nnapi").glob("*.c"))
    link = (*LINK, f"-Wl,-soname,{NNAPI}", "-fvisibility=hidden")
    _run((*compiler.command, *FLAGS, "-o", str(target), *sources, *link))


def _run(command: tuple[str, ...]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise RunnerError(
            "the shims of android-host could not be built",
            where=" ".join(command[:3]) + " ...",
            why=done.stderr.strip()[-2000:] or f"the compiler ended with code {done.returncode}",
            remedy="try another compiler (CC=...), or pip install ziglang",
        )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
