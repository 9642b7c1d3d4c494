"""Where text goes: rich on a terminal, plain lines of whole tables in a pipe or a file."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

GAP = "  "
UNLIMITED = 10_000
"""Columns of a pipe: no column of a table is left out there."""


class PlainConsole(Console):
    """Prints what a console prints, as plain lines."""

    def print(self, *objects: Any, **_: Any) -> None:
        """Print the texts, tables and groups, or an empty line for none."""
        for text in (line for item in objects or ("",) for line in plain_lines(item)):
            self.file.write(f"{text}\n")


def open_console(*, stderr: bool = False) -> Console:
    """The console for results (stdout) or for messages (stderr), as the stream allows."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=stderr)
    return made if made.is_terminal else PlainConsole(stderr=stderr, highlight=False, width=UNLIMITED)


def plain_lines(item: Any) -> Iterator[str]:
    """A renderable as lines of text; rich's markup in a str is dropped."""
    if isinstance(item, Table):
        yield from _table_lines(item)
    elif isinstance(item, Group):
        for part in item.renderables:
            yield from plain_lines(part)
    elif isinstance(item, Padding):
        yield from [""] * item.top
        yield from (f"{'':{item.left}}{line}".rstrip() for line in plain_lines(item.renderable))
        yield from [""] * item.bottom
    else:
        text = item.plain if isinstance(item, Text) else Text.from_markup(str(item)).plain
        yield from (line.rstrip() for line in text.split("\n"))


def _table_lines(table: Table) -> Iterator[str]:
    """Title, head and rows."""
    if table.title:
        yield from plain_lines(table.title)
    columns = [[*([_cell(column.header)] if table.show_header else []), *map(_cell, column.cells)]
               for column in table.columns]  # fmt: skip
    widths = [max(map(len, cells), default=0) for cells in columns]
    right = [column.justify == "right" for column in table.columns]
    yield from (_row(cells, widths, right) for cells in zip(*columns, strict=True))
    if table.title:
        yield ""


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (f"{cell:>{w}}" if r else f"{cell:<{w}}" for cell, w, r in zip(cells, widths, right, strict=True))
    return GAP.join(padded).rstrip()


def _cell(item: Any) -> str:
    return " ".join(plain_lines(item))
