"""Profiles in a terminal: a table of operators for each file, and where the trace lies."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from device_runner.coverage import Coverage
from device_runner.profile import Profile
from pipeline.report.wording import visible

SHOWN = 15


class Profiled(msgspec.Struct, frozen=True, kw_only=True):
    """One file with one set of run options. `file` is the trace for Perfetto, `failure` why there is none.

    `finding` says where the partitions are not those predicted; `coverage` is the provider's own word.
    """

    name: str
    run: str
    file: str = ""
    profile: Profile | None = None
    coverage: Coverage | None = None
    prediction: Mapping[str, object] | None = None
    finding: str = ""
    failure: str = ""


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
        for provider, count in one.profile.partitions.items():
            yield Text(visible(f"{provider}: {count} partitions, or nodes where it has kernels of its own"))
    if one.coverage:
        taken = f"{one.coverage.claimed_nodes} of {one.coverage.nodes} nodes in {one.coverage.partitions} partitions"
        yield Text(visible(f"{one.coverage.provider} took {taken}"))
    if one.prediction:
        told = f"{one.prediction['claimed']} of {one.prediction['nodes']} nodes in {one.prediction['partitions']}"
        yield Text(visible(f"predicted: {told} partitions"))
    for note in (one.finding, one.failure):
        if note:
            yield Text(visible(note), style="yellow")
    if one.file:
        yield Text(visible(f"trace for ui.perfetto.dev: {one.file}"))


def _operators(one: Profiled) -> Table:
    table = Table("operator", "provider", box=None, header_style="bold", pad_edge=False)
    for title in ("nodes", "ms", "share"):
        table.add_column(title, justify="right")
    for row in one.profile.operators[:SHOWN] if one.profile else ():
        provider = row.provider.removesuffix("ExecutionProvider").lower()
        values = (row.operator, provider, str(row.nodes), f"{row.nanoseconds / 1e6:.3f}", f"{100 * row.share:.1f} %")
        table.add_row(*(Text(visible(value)) for value in values))
    return table
