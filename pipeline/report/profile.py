"""Profiles in a terminal: a table of operators for each file, and where the trace lies."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.report.profile_listings import SHOWN, operators, predicted, taken
from pipeline.report.profiled import Profiled
from pipeline.report.wording import visible


def show_profiles(profiles: Sequence[Profiled], console: Console) -> None:
    """Print each profile; names from models are text, never markup."""
    for one in profiles:
        console.print()
        for part in _parts(one):
            console.print(part, soft_wrap=not isinstance(part, Table))


def _parts(one: Profiled) -> Iterator[RenderableType]:
    yield Text(visible(f"Profile of {one.name}, {one.run}"), style="bold")
    if one.profile:
        yield _operators(one)
        if (rest := len(one.profile.operators) - SHOWN) > 0:
            yield Text(f"and {rest} more operators, each faster")
    for told, text in (("measured", taken(one)), ("predicted", predicted(one))):
        if text:
            yield Text(visible(f"{told}: {text}"))
    for note in (one.finding, one.failure):
        if note:
            yield Text(visible(note), style="yellow")
    if one.file:
        yield Text(visible(f"trace for ui.perfetto.dev: {one.file}"))


def _operators(one: Profiled) -> Table:
    listing = operators(one)
    table = Table(*listing.head[:2], box=None, header_style="bold", pad_edge=False)
    for title in listing.head[2:]:
        table.add_column(title, justify="right")
    for row in listing.rows:
        table.add_row(*(Text(visible(value)) for value in row))
    return table
