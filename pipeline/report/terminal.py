"""The report in a terminal: a table per model and device as wide as fits, then what to know."""

from collections.abc import Iterator

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from device_runner.result import Status
from pipeline.campaign.statistics import Verdict
from pipeline.check.library_proof import LibraryProof
from pipeline.report import wording
from pipeline.report.banner import Banner, State, banner
from pipeline.report.layout import (
    COLUMNS,
    INTERVAL,
    Column,
    Listing,
    ListingNote,
    Results,
    Section,
    choices,
    proof_listing,
    proof_notes,
    results,
    sections,
)
from pipeline.report.model import CampaignReport, Row
from pipeline.report.profile_listings import claims
from pipeline.report.wording import visible

PLACES_SHOWN = 3
STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "yellow", Verdict.SAME: "", Verdict.CANNOT_TELL: "dim"}


def show(report: CampaignReport, console: Console) -> None:
    """Print the report. Texts are never read as rich's markup and cannot move the cursor."""
    console.print(Group(*render(report, console.width)))


def render(report: CampaignReport, width: int) -> Iterator[RenderableType]:
    """The parts of the report for a terminal of so many columns."""
    for found in results(report):
        yield results_table(found, width)
    if report.rows:
        yield Padding(Text(wording.legend(report, interval=INTERVAL in shown(width)), style="dim"), (0, 0, 1, 0))
    for proof in report.proofs:
        yield from _proof_table(proof)
    for section in sections(report):
        yield _section(section)
    if report.profiles:
        yield _listing(claims(report.profiles))
    if report.choices:
        yield _listing(choices(report))
    if verdict := banner(report):
        yield _banner(verdict)


BANNERS = {State.STOP: "bold red", State.CAUTION: "bold yellow", State.READY: "bold green"}


def _banner(found: Banner) -> RenderableType:
    reasons = [Text(f"- {visible(reason)}") for reason in found.reasons]
    return Padding(Group(Text(visible(found.headline), style=BANNERS[found.state]), *reasons), (0, 0, 1, 0))


def shown(width: int) -> list[Column]:
    """The columns of the table of results that a terminal of so many columns has place for."""
    return [column for column in COLUMNS if column.from_width <= width]


def results_table(found: Results, width: int) -> Table:
    """One line per variant and run; columns that need a wider terminal are left out."""
    columns = shown(width)
    table = _table(f"{found.model} on {found.device}")
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.number else "left", overflow="fold", no_wrap=column.number
        )
    for row in found.rows:
        table.add_row(*(Text(visible(column.text(row))) for column in columns), style=_style(row))
    return table


def _table(title: str) -> Table:
    heading = Text(visible(title), style="bold")
    return Table(
        title=heading,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _style(row: Row) -> str:
    if row.status is not Status.OK or any(check.failed for check in row.checks):
        return "red"
    return STYLES[row.comparison.verdict] if row.comparison else ""


def show_proof(proof: LibraryProof, console: Console) -> None:
    """Print what came of a bundle in the library that ships, then every finding with cause and remedy."""
    notes = Section(title="Summary", notes=tuple(proof_notes(proof)))
    console.print(Group(*_proof_table(proof), _section(notes, rest="--json")))


def _proof_table(proof: LibraryProof) -> Iterator[Table]:
    if proof.rows:
        yield _listing(proof_listing(proof))


def _section(section: Section, rest: str = "report.md") -> RenderableType:
    lines = [line for note in section.notes for line in _note(note, rest)]
    return Padding(Group(Text(section.title, style="bold"), *lines), (0, 0, 1, 0))


def _note(note: ListingNote, rest: str) -> Iterator[RenderableType]:
    head = ": ".join(visible(part) for part in (note.title, note.text) if part)
    yield Padding(Text(f"- {head}"), (0, 0, 0, 0))
    for place in note.places[:PLACES_SHOWN]:
        yield Padding(Text(visible(place), style="dim"), (0, 0, 0, 4))
    if len(note.places) > PLACES_SHOWN:
        more = f"and {len(note.places) - PLACES_SHOWN} more ({rest} has them all)"
        yield Padding(Text(more, style="dim"), (0, 0, 0, 4))
    if note.remedy:
        yield Padding(Text(f"remedy: {visible(note.remedy)}"), (0, 0, 0, 2))


def _listing(listing: Listing) -> Table:
    table = _table(listing.title)
    for title in listing.head:
        table.add_column(title, overflow="fold")
    for row in listing.rows:
        table.add_row(*(Text(visible(text)) for text in row))
    return table
