"""What every format shows: lines, tables of plain texts, and notes in sections."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class Line:
    """A line of texts, to be escaped, with the styles of a terminal; without `wrap` it stays one in a narrow terminal.

    With an `indent` it is a paragraph: what wraps is indented, too.
    """

    def __init__(self, *spans: str | tuple[str, str], indent: int | None = None, wrap: bool = True) -> None:
        """Each span is a text, or a text with its style."""
        self.spans = tuple((span, "") if isinstance(span, str) else span for span in spans)
        self.indent = indent
        self.wrap = wrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A plain table: texts to be escaped, the first column names the row.

    For terminals: `right` are the heads of numbers, `styles` those of the rows, `marks` those of cells with such texts.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[str, ...] = ()
    styles: tuple[str, ...] = ()
    marks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingNote:
    """Something to know, once for all places that it concerns: what, why or how, what to do.

    `code` has lines to be copied, as they are, by their language.
    """

    title: str
    text: str
    remedy: str = ""
    places: tuple[str, ...] = ()
    code: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Notes of one kind."""

    title: str
    notes: tuple[ListingNote, ...]


Part = Line | Listing | Section


def filled(listings: Iterable[Listing]) -> list[Listing]:
    """Those that have rows."""
    return [listing for listing in listings if listing.rows]


def gathered(notes: Iterable[ListingNote]) -> list[ListingNote]:
    """Notes that say the same as one note with all their places, in the order of the first."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for note in notes:
        places.setdefault((note.title, note.text, note.remedy), []).extend(note.places)
    return [
        ListingNote(title=title, text=text, remedy=remedy, places=tuple(dict.fromkeys(where)))
        for (title, text, remedy), where in places.items()
    ]
