"""Reports and device tables in a terminal, as wide as fits; plain lines in a pipe or a file."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from device_runner.device import DeviceFacts, Readiness
from device_runner.result import Status
from pipeline.campaign.statistics import Verdict
from pipeline.check.library_proof import LibraryProof
from pipeline.report import tuning, wording
from pipeline.report.console import open_console
from pipeline.report.decision import Banner, BannerState, banner
from pipeline.report.layout import (
    COLUMNS,
    INTERVAL,
    Column,
    Listing,
    ListingNote,
    Results,
    Section,
    accuracies,
    choices,
    proof_listing,
    proof_notes,
    results,
    sections,
)
from pipeline.report.model import CampaignReport, Row
from pipeline.report.modes import mode_listings
from pipeline.report.profiles import changes, claims, view_notes, views
from pipeline.report.wording import visible


def _processor(facts: DeviceFacts) -> str:
    cores = f"{len(facts.core_max_mhz)} cores to {max(facts.core_max_mhz) / 1000:.1f} GHz" if facts.core_max_mhz else ""
    return ", ".join(part for part in (facts.soc, cores) if part)


def _system(facts: DeviceFacts) -> str:
    api = f" (API {facts.api_level})" if facts.api_level else ""
    return f"{facts.platform} {facts.os_release}{api}".strip()


def _memory(facts: DeviceFacts) -> str:
    return f"{facts.memory_bytes / 2**30:.1f} GiB" if facts.memory_bytes else ""


def _battery(facts: DeviceFacts) -> str:
    charging = " charging" if facts.charging else ""
    return "" if facts.battery_percent is None else f"{facts.battery_percent} %{charging}"


def _state(facts: DeviceFacts) -> str:
    if facts.readiness is not Readiness.READY:
        return facts.advice or facts.readiness.value
    notes = ["ready"]
    if facts.platform == "android" and 0 < facts.api_level < 27:
        notes.append(f"API {facts.api_level}: NNAPI needs 27")
    if 0 < facts.free_bytes < 2**28:
        notes.append("little space")
    if (facts.thermal_status or 0) >= 2:
        notes.append("hot: numbers will be throttled")
    return "; ".join(notes)


DEVICE_COLUMNS: tuple[tuple[str, Callable[[DeviceFacts], str]], ...] = (
    ("device", lambda facts: facts.name),
    ("model", lambda facts: f"{facts.manufacturer} {facts.model}".strip()),
    ("processor", _processor),
    ("ABIs", lambda facts: ", ".join(facts.abis)),
    ("system", _system),
    ("memory", _memory),
    ("battery", _battery),
    ("NNAPI", wording.nnapi_devices),
    ("state", _state),
)


def show_devices(devices: Sequence[DeviceFacts], console: Console | None = None) -> None:
    """Print one row a device, without columns that are empty everywhere; control characters are written out."""
    table = Table(box=None, pad_edge=False)
    rows = [[text(facts) for _, text in DEVICE_COLUMNS] for facts in devices]
    kept = [index for index in range(len(DEVICE_COLUMNS)) if any(row[index] for row in rows)]
    for index in kept:
        table.add_column(DEVICE_COLUMNS[index][0], overflow="fold")
    for row in rows:
        table.add_row(*(Text(wording.visible(row[index])) for index in kept))
    (console or open_console()).print(table)


PLACES_SHOWN = 3
SHORT = 6
"""Operators of a view of profiles: report.md has more."""
STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "yellow", Verdict.SAME: "", Verdict.NOT_SHOWN: "dim"}


def show(report: CampaignReport, console: Console) -> None:
    """Print the report. Texts are never read as rich's markup and cannot move the cursor."""
    console.print(Group(*render(report, console.width)))


def render(report: CampaignReport, width: int) -> Iterator[RenderableType]:
    """The parts of the report for a terminal of so many columns."""
    for found in results(report):
        yield results_table(found, width)
    if report.rows:
        yield Padding(Text(wording.legend(report, interval=INTERVAL in shown(width)), style="dim"), (0, 0, 1, 0))
    yield from map(_listing, mode_listings(report))
    if (accuracy := accuracies(report)).rows:
        yield _listing(accuracy)
    yield from (_listing(found) for found in (tuning.summary(report.tuned) if report.tuned else ()))
    for proof in report.proofs:
        yield from _proof_table(proof)
    for section in sections(report):
        yield _section(section)
    if report.profiles:
        yield _listing(claims(report.profiles))
    for view in views(report):
        yield Group(_listing(changes(view, most=SHORT)), *(Text(visible(note)) for note in view_notes(view)), Text())
    if report.choices:
        yield _listing(choices(report))
    if verdict := banner(report):
        yield _banner(verdict)


BANNERS = {BannerState.STOP: "bold red", BannerState.CAUTION: "bold yellow", BannerState.READY: "bold green"}


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


def show_parts(
    listings: Iterable[Listing],
    notes: Iterable[Section],
    console: Console | None = None,
    rest: str = "--json",
    most: int = PLACES_SHOWN,
) -> None:
    """Print tables and sections with so many places of each note; `rest` names what has all of them."""
    tables = (_listing(listing) for listing in listings if listing.rows)
    (console or open_console()).print(Group(*tables, *(_section(section, rest, most) for section in notes)))


def _section(section: Section, rest: str = "report.md", most: int = PLACES_SHOWN) -> RenderableType:
    lines = [line for note in section.notes for line in _note(note, rest, most)]
    return Padding(Group(Text(section.title, style="bold"), *lines), (0, 0, 1, 0))


def _note(note: ListingNote, rest: str, most: int) -> Iterator[RenderableType]:
    head = ": ".join(visible(part) for part in (note.title, note.text) if part)
    yield Padding(Text(f"- {head}"), (0, 0, 0, 0))
    for place in note.places[:most]:
        yield Padding(Text(visible(place), style="dim"), (0, 0, 0, 4))
    if len(note.places) > most:
        more = f"and {len(note.places) - most} more ({rest} has them all)"
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
