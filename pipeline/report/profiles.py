"""Profiles as tables for every format: what providers took, times by operator, where the trace lies."""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.report import wording
from pipeline.report.layout import Listing
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


SHOWN = 15
"""Operators of one table; they come slowest first."""


def summary(profiles: Sequence[Profiled]) -> Listing:
    """One line for each profile: what the provider took, what was predicted, and where the trace is."""
    rows = ((one.device, one.name, one.run, taken(one), predicted(one), where(one)) for one in profiles)
    head = ("Device", "Model / variant", "Run", "Measured", "Predicted", "Trace in profiles/, for ui.perfetto.dev")
    return Listing(title="Profiles", head=head, rows=tuple(rows))


def claims(profiles: Sequence[Profiled]) -> Listing:
    """As `summary`, for narrow places: only where a provider took something, or should have, and no file names."""
    rows = [(one.device, one.name, one.run, taken(one) or one.failure, predicted(one)) for one in profiles]
    return Listing(
        title=f"Profiles: {sum(bool(one.file) for one in profiles)} traces in profiles/, for ui.perfetto.dev",
        head=("Device", "Model / variant", "Run", "Measured", "Predicted"),
        rows=tuple(row for row in rows if row[3] or row[4]),
    )


def operators(one: Profiled) -> Listing:
    """The slowest operators of a profile with their providers; empty where there is none."""
    rows = one.profile.operators[:SHOWN] if one.profile else ()
    device = f" on {one.device}" if one.device else ""
    return Listing(
        title=f"Operators of {one.name}, {one.run}{device}",
        head=("Operator", "Provider", "Nodes", "Time of an inference", "Share"),
        rows=tuple(
            (
                row.operator,
                row.provider.removesuffix("ExecutionProvider").lower(),
                str(row.nodes),
                wording.duration(round(row.nanoseconds)),
                f"{100 * row.share:.1f} %",
            )
            for row in rows
        ),
    )


def taken(one: Profiled) -> str:
    """What providers took: by their own log, else by the profile; "" for the CPU alone."""
    if one.coverage:
        return _claims(one.coverage.claimed_nodes, one.coverage.nodes, one.coverage.partitions)
    counts = one.profile.partitions if one.profile else {}
    names = (f"{provider.removesuffix('ExecutionProvider')}: {count}" for provider, count in counts.items())
    return ", ".join(f"{name} partitions, or nodes where it has kernels of its own" for name in names)


def predicted(one: Profiled) -> str:
    """What the rules said before; "" where they have no word for the provider."""
    if not one.prediction:
        return ""
    found = one.prediction
    words = found.error or _claims(found.claimed, found.nodes, found.partitions)
    return f"{words} (by the rules of {found.rules})" if found.rules else words


def where(one: Profiled) -> str:
    """The trace's file name, or why there is none."""
    return f"none: {one.failure}" if one.failure else one.file.rpartition("/")[2]


def _claims(claimed: object, nodes: object, partitions: object) -> str:
    return f"{claimed} of {nodes} nodes in {partitions} partition{'s' * (partitions != 1)}"
