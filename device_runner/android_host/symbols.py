"""The table symbols.txt: which symbol of Android's system libraries is given here, by which library, and how."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from device_runner.errors import MissingError

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
    """One row's symbol; `size_bytes` is an object's, 0 for functions."""

    name: str
    library: str
    how: How
    size_bytes: int = 0


def parse_table(text: str) -> tuple[Symbol, ...]:
    """Symbols in the order of the table; raises ValueError for a line or a name that cannot be right."""
    symbols = [symbol for line in text.splitlines() for symbol in _parse_line(line)]
    names = [symbol.name for symbol in symbols]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"listed twice: {', '.join(twice)}")
    return tuple(symbols)


def _parse_line(line: str) -> Iterable[Symbol]:
    words = line.partition("#")[0].split()
    if not words:
        return
    how, library, *names = words
    for name in names:
        symbol, _, size = name.partition(":")
        yield Symbol(symbol, library, How(how), int(size or 0))


@lru_cache(maxsize=1)
def table() -> tuple[Symbol, ...]:
    """The committed table."""
    return parse_table(TABLE.read_text("utf-8"))


def shim_libraries() -> tuple[str, ...]:
    """Names of the shim libraries, in the order of the table."""
    return tuple(dict.fromkeys(symbol.library for symbol in table()))


def unknown_imports(imports: Iterable[str]) -> list[str]:
    """Symbols that the table does not have, sorted."""
    return sorted(set(imports) - {symbol.name for symbol in table()})


def check_imports(imports: Iterable[str], libraries: Iterable[str], *, where: str) -> None:
    """Raise MissingError when a library needs a symbol or a library that the shims do not give.

    `imports` are the undefined dynamic symbols of the library at `where`, `libraries` its NEEDED entries. Asked before
    anything is loaded: the dynamic linker names one missing symbol only, a lazily bound one not before it is called.
    """
    unknown = unknown_imports(imports)
    others = sorted(set(libraries) - set(shim_libraries()))
    if unknown or others:
        what = ", ".join([*unknown[:8], *(["..."] if len(unknown) > 8 else []), *others])
        raise MissingError(
            f"this library needs what android-host does not give: {what}",
            where=where,
            why="each import must be known to be the same here, or have an adapter",
            remedy="run this library on a phone (adb:SERIAL), or add the symbols to android_host/symbols.txt",
        )
