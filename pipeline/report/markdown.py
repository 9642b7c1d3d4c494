"""Markdown of tables and notes, in which no text of a model or a device acts."""

import re
from collections.abc import Iterable, Iterator, Sequence

from pipeline.report.parts import Listing, ListingNote, Section
from pipeline.report.wording import visible

SPECIAL = re.compile(r"[\\`*\[\]<>#|~$&@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<=:)//|(?<=www)\.")
OPENING = re.compile(r"^(\s+|[-+=]|\d+[.)])")


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in a table too: no mark, tag, mention or bare link of its own works."""
    return SPECIAL.sub(_entities, visible(text))


def _entities(match: re.Match[str]) -> str:
    return "".join(f"&#{ord(char)};" for char in match.group())


def item(text: str) -> str:
    """Text as `escaped`, which at the start of a line opens no list, heading or code either."""
    opening = OPENING.match(text)
    return escaped(text) if opening is None else _entities(opening) + escaped(text[opening.end() :])


def render_parts(title: str, listings: Iterable[Listing], notes: Iterable[Section]) -> str:
    """A page of tables and sections."""
    parts = [
        f"# {escaped(title)}",
        *(part for listing in listings for part in listing_lines(listing)),
        *section_lines(notes),
    ]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain texts."""
    lines = [head, ["---"] * len(head), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def listing_lines(listing: Listing) -> Iterator[str]:
    """A heading and a table; nothing where there are no rows."""
    if listing.rows:
        yield f"## {escaped(listing.title)}"
        yield table(listing.head, listing.rows)


def section_lines(notes: Iterable[Section]) -> Iterator[str]:
    """Each section's heading and its list."""
    for section in notes:
        yield f"## {section.title}"
        yield "\n".join(line for note in section.notes for line in _note(note))


def _note(note: ListingNote) -> Iterator[str]:
    head = f"**{escaped(note.title)}**: {escaped(note.text)}" if note.title else item(note.text)
    yield f"- {head}" + (f" *{escaped(note.remedy)}*" if note.remedy else "")
    for place in note.places:
        yield f"  - {item(place)}"
    for language, lines in note.code.items():
        text = "\n".join(f"  {visible(line)}" for line in lines)
        fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall("`+", text))])  # longer than any inside
        yield f"\n  {fence}{language}\n{text}\n  {fence}\n"
