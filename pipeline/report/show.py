"""Parts of a result for people: rich on a terminal, plain lines of whole tables in a pipe or a file."""

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from device_runner import safe_text
from pipeline.report.wording import Line, Listing, Part, Section

GAP = "  "
UNLIMITED = 10_000
"""Columns of a pipe: no column of a table is left out there."""
PLACES_SHOWN = 3


def width(console: Console | None = None) -> int:
    """Columns of a console, or of stdout: of a pipe, more than any table needs."""
    stdout = Console()
    return console.width if console else stdout.width if stdout.is_terminal else UNLIMITED


def show(parts: Iterable[Part], console: Console | None = None, *, err: bool = False, rest: str = "--json") -> None:
    """Print parts to stdout, or messages to stderr; `rest` names what has all places of a note.

    Texts are never read as rich's markup and cannot move the cursor. A `console` is used as it is.
    """
    terminal = console or Console(stderr=err, highlight=False)
    lines = (line for part in parts for line in (_section(part, rest) if isinstance(part, Section) else (part,)))
    lines = (line for line in lines if isinstance(line, Line) or line.rows)
    if not (console or terminal.is_terminal):
        for plain in (plain for line in lines for plain in plain_lines(line)):
            terminal.file.write(f"{plain}\n")
        return
    for line in lines:
        if isinstance(line, Listing):
            terminal.print(_table(line))
        else:
            text = Text.assemble(*((safe_text.visible(span), style) for span, style in line.spans))
            indented = text if line.indent is None else Padding(text, (0, 0, 0, line.indent))
            terminal.print(indented, soft_wrap=err or not line.wrap)


def _section(section: Section, rest: str) -> Iterator[Line]:
    if section.title:
        yield Line((section.title, "bold"), indent=0)
    for note in section.notes:
        yield Line(f"- {': '.join(part for part in (note.title, note.text) if part)}", indent=0)
        for place in note.places[:PLACES_SHOWN]:
            yield Line((place, "dim"), indent=4)
        if len(note.places) > PLACES_SHOWN:
            yield Line((f"and {len(note.places) - PLACES_SHOWN} more ({rest} has them all)", "dim"), indent=4)
        for line in (line for lines in note.code.values() for line in lines):
            yield Line((line, "dim"), indent=4)
        if note.remedy:
            yield Line(f"remedy: {note.remedy}", indent=2)
    yield Line(indent=0)


def _table(listing: Listing) -> Table:
    """With a title and a rule under its head as part of a report; else bare."""
    if listing.title:
        table = Table(
            title=Text(safe_text.visible(listing.title), style="bold"),
            title_justify="left",
            header_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
    else:
        table = Table(box=None, pad_edge=not listing.head[0], header_style="bold")
    for head in listing.head:
        right = head in listing.right
        # Numbers of a report's table stay whole in a narrow terminal: its texts wrap.
        table.add_column(
            head, justify="right" if right else "left", overflow="fold", no_wrap=right and bool(listing.title)
        )
    for number, row in enumerate(listing.rows):
        cells = (Text(safe_text.visible(cell), style=listing.marks.get(cell, "")) for cell in row)
        table.add_row(*cells, style=listing.styles[number] if listing.styles else "")
    return table


def plain_lines(part: Line | Listing) -> Iterator[str]:
    """A line, or title, head and rows of a table, without colours and borders."""
    if isinstance(part, Line):
        yield f"{'':{part.indent or 0}}{''.join(safe_text.visible(text) for text, _ in part.spans)}".rstrip()
        return
    if part.title:
        yield safe_text.visible(part.title)
    rows = [part.head, *([safe_text.visible(cell).rstrip() for cell in row] for row in part.rows)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(part.head, row, widths, strict=True)
        padded = (f"{cell:>{size}}" if head in part.right else f"{cell:<{size}}" for head, cell, size in cells)
        yield GAP.join(padded).rstrip()
    if part.title:
        yield ""
