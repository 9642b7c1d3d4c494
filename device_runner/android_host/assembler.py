"""Assembler and linker script of the shims, generated from the table of symbols.

A passed symbol is one jump through the global offset table, so that registers, stack and return address stay as they
were: variadic functions work, dlopen sees its real caller. The thunk has a private name and is exported as
NAME@LIBC with one @; with two the linker would bind the thunk's own reference to itself, an endless loop.
"""

from dataclasses import dataclass

from device_runner.android_host.symbols import VERSIONED, How, Symbol

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
}
"""By the name that `uname -m` gives. Adapters and layouts of structures are checked for x86_64 only."""


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
    head = "LIBC {" if _versioned(symbols) else f"{{\n  global: {names};"
    return f"{head}\n{hidden}\n}};\n"


def _versioned(symbols: tuple[Symbol, ...]) -> bool:
    return any(symbol.library in VERSIONED for symbol in symbols)


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
