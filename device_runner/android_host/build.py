"""Builds the shims, the fake libneuralnetworks.so and `ask` from symbols.txt, once for each content and compiler."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from device_runner import build as runner_build
from device_runner import errors as runner_errors
from device_runner import host_device
from device_runner import local as local_device
from device_runner.errors import UnavailableError

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
    symbols = []
    for line in text.splitlines():
        how, library, *names = line.partition("#")[0].split() or ("", "")
        machine, _, how = how.rpartition(":")
        for name in names:
            symbol, _, size = name.partition(":")
            symbols.append(Symbol(symbol, library, How(how), int(size or 0), machine))
    names_met = Counter((symbol.name, symbol.machine) for symbol in symbols)
    if twice := sorted({name for (name, _), count in names_met.items() if count > 1}):
        raise ValueError(f"listed twice: {', '.join(twice)}")
    return tuple(symbols)


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


Jumps = tuple[str, str]
"""Instructions of a processor that jump to a function elsewhere, and to a hidden one of the shim."""

MACHINES: dict[str, Jumps] = {
    "x86_64": ("jmp *{target}@GOTPCREL(%rip)", "jmp {target}"),
    "aarch64": ("adrp x16, :got:{target}\n  ldr x16, [x16, :got_lo12:{target}]\n  br x16", "b {target}"),
    "arm": ("b {target}", "b {target}"),
}
"""By the name of qemu's program for it, which on 64 bits is that of `uname -m`."""


def assembler(symbols: tuple[Symbol, ...], jumps: Jumps) -> str:
    """Source text of one shim library's thunks and objects."""
    parts = ['  .section .note.GNU-stack,"",%progbits', "  .text"]
    for symbol in symbols:
        name, inner, exported = symbol.name, ADAPTER + symbol.name, []
        if symbol.library in VERSIONED:  # the code stands under another name, which is exported with the version
            name = PRIVATE + symbol.name
            exported = [f"  .symver {name}, {symbol.name}@LIBC"]
        if symbol.how is How.OBJECT:  # zero bytes under two names: the exported one, and the one that adapters fill
            for label in (name, inner):
                parts += [f"  .globl {label}", f"  .type {label}, %object", f"  .size {label}, {symbol.size_bytes}"]
            parts += [f"  .hidden {inner}", "  .bss", "  .p2align 4", f"{name}:", f"{inner}:"]
            parts += [f"  .zero {symbol.size_bytes}", "  .text", *exported]
            continue
        parts += [f"  .globl {name}", f"  .type {name}, %function"]
        if symbol.how is How.PASS:
            jump = jumps[0].format(target=symbol.name)
        else:
            jump = jumps[1].format(target=inner)
            parts.append(f"  .hidden {inner}")
        parts += ["  .p2align 4", f"{name}:", f"  {jump}", f"  .size {name}, .-{name}", *exported]
    return "\n".join(parts) + "\n"


def version_script(symbols: tuple[Symbol, ...]) -> str:
    """Linker script: what is exported, under LIBC where bionic has that version. `local: *` would hide everything."""
    hidden = f"  local: {PRIVATE}*; {ADAPTER}*;"
    names = "; ".join(symbol.name for symbol in symbols)
    head = "LIBC {" if any(symbol.library in VERSIONED for symbol in symbols) else f"{{\n  global: {names};"
    return f"{head}\n{hidden}\n}};\n"


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
    *("-std=c11", "-O3", "-fPIC", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-unused-command-line-argument"),
    "-s",  # as the probe: ziglang compiles its C library's parts, for five seconds, once with symbols and once without
)
SHIM_FLAGS = ("-fno-builtin", "-D_FORTIFY_SOURCE=0")
"""Adapters must call what they name, not what a compiler makes of it."""
LINK = ("-shared", "-Wl,-z,now", "-lm", "-ldl", "-lpthread")


def build_host(processor: host_device.Processor | None = None) -> Path:
    """The folder with the shims and the fake NNAPI for a processor (this computer's), built unless it is in the cache.

    Raises UnavailableError on another system or without a compiler, RunnerError when the compiler fails.
    """
    abi = (processor or host_device.find_processor(host_device.default_abi())).abi
    machine = host_device.HOST_ABIS[abi].machine
    if abi == local_device.machine_abi():
        otherwise = "; `local` and `adb:SERIAL` need none of the shims"
        compiler, identity = runner_build.host_compiler(" for the shims of android-host", otherwise)
    elif zig := runner_build.zig_command():
        compiler = (
            *zig,
            "cc",
            *runner_build.LINUX_TARGETS[host_device.HOST_ABIS[abi].probe],
            "-fno-sanitize=undefined",
        )
        identity = runner_build.zig_version()
    else:
        raise UnavailableError(
            f"no compiler for {abi}",
            why="the package ziglang is not installed; cc builds for this computer only",
            remedy=runner_errors.pip_install("ziglang") + ", or use x86_64",
        )
    start = (*compiler, *FLAGS)
    texts: list[tuple[str, str]] = []
    steps: list[runner_build.Command] = []
    for library in shim_libraries():
        symbols = symbols_of(library, machine)
        texts.append((f"{library}.s", assembler(symbols, MACHINES[machine])))
        texts.append((f"{library}.map", version_script(symbols)))
        sources = (f"{{work}}/{library}.s", *(str(SOURCES / "shims" / name) for name in ADAPTERS[library]))
        link = (*LINK, f"-Wl,-soname,{library}", f"-Wl,--version-script={{work}}/{library}.map")
        steps.append((*start, *SHIM_FLAGS, "-o", f"{{out}}/{library}", *sources, *link))
    sources = tuple(sorted(str(path) for path in (SOURCES / "nnapi").glob("*.c")))
    steps.append((*start, "-o", f"{{out}}/{NNAPI}", *sources, *LINK, f"-Wl,-soname,{NNAPI}", "-fvisibility=hidden"))
    sources = (str(SOURCES / "ask" / "ask.c"), *(str(PROBE / unit) for unit in ASKS_WITH))
    steps.append((*start, "-D_GNU_SOURCE", "-o", f"{{out}}/{ASK}", *sources, "-ldl"))
    inputs = (*SOURCES.glob("*/*.[ch]"), *SOURCES.glob("*/*.def"), *PROBE.glob("*.[ch]"))
    return runner_build.built(
        runner_build.BuildRecipe(
            what="the shims of android-host",
            place="android-host/shims",
            parts=(*shim_libraries(), NNAPI, ASK),
            compiler=identity,
            steps=tuple(steps),
            sources=SOURCES.parent,
            inputs=inputs,
            texts=tuple(texts),
        )
    )
