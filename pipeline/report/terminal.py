"""Reports and device tables in a terminal, as wide as fits; plain lines in a pipe or a file."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from device_runner.device import DeviceFacts, Readiness
from device_runner.result import Status
from pipeline.campaign.statistics import Verdict
from pipeline.check.library_proof import LibraryProof
from pipeline.report import wording
from pipeline.report.decision import BannerState, banner
from pipeline.report.layout import (
    COLUMNS,
    DOUBTS,
    INTERVAL,
    Column,
    accuracies,
    choices,
    offered,
    results,
    sections,
)
from pipeline.report.model import CampaignReport, Row
from pipeline.report.modes import mode_listings
from pipeline.report.profiles import changes, claims, view_notes
from pipeline.report.proof import proof_listing, proof_notes
from pipeline.report.show import show, width
from pipeline.report.wording import Line, Listing, ListingNote, Part, Section


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
    ("GPU", wording.gpu),
    ("state", _state),
)


def device_listing(devices: Sequence[DeviceFacts]) -> Listing:
    """One row a device, without columns that are empty everywhere."""
    rows = [[text(facts) for _, text in DEVICE_COLUMNS] for facts in devices]
    kept = [index for index in range(len(DEVICE_COLUMNS)) if any(row[index] for row in rows)]
    return Listing(
        title="",
        head=tuple(DEVICE_COLUMNS[index][0] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in rows),
    )


SHORT = 6
"""Operators of a view of profiles: report.md has more."""
STYLES = {Verdict.FASTER: "green", Verdict.SLOWER: "yellow", Verdict.SAME: "", Verdict.NOT_SHOWN: "dim"}


def show_report(report: CampaignReport, console: Console | None = None) -> None:
    """Print the report, with as many columns of results as fit."""
    show(render(report, width(console)), console, rest="report.md")


def render(report: CampaignReport, width: int) -> Iterator[Part]:
    """The parts of the report for a terminal of so many columns."""
    for (model, device), rows in results(report).items():
        yield results_listing(model, device, rows, width)
    if report.rows:
        yield Line((wording.legend(report, interval=INTERVAL in shown(width)), "dim"), indent=0)
        yield Line(indent=0)
    yield from mode_listings(report)
    if (accuracy := accuracies(report)).rows:
        yield accuracy
    yield from offered(report, brief=True)
    for listing in map(proof_listing, report.proofs):
        if listing.rows:
            yield listing
    for section in sections(report):
        yield section if section.title != DOUBTS else _in_short(section)
    if report.profiles:
        yield claims(report.profiles)
    for view in report.profile_views:
        yield changes(view, most=SHORT)
        yield from map(Line, (*view_notes(view), ""))
    if report.choices:
        yield choices(report)
    if verdict := banner(report):
        yield Line((verdict.headline, BANNERS[verdict.state]), indent=0)
        for reason in verdict.reasons:
            yield Line(f"- {reason}", indent=0)
        yield Line(indent=0)


BANNERS = {BannerState.STOP: "bold red", BannerState.CAUTION: "bold yellow", BannerState.READY: "bold green"}


USUAL_DOUBTS = {"spread": "times differ widely", "extreme": "a time far from the median", "short samples": "under 1 ms"}
"""What nearly every short run on a computer in use has: one line here, each with its numbers in the report."""


def _in_short(doubts: Section) -> Section:
    """The usual doubts with their numbers of rows in one line, then the others as they are."""
    usual = [note for note in doubts.notes if note.title in USUAL_DOUBTS]
    counts = ", ".join(f"{USUAL_DOUBTS[note.title]} in {len(note.places)}" for note in usual)
    line = ListingNote(title="", text=f"{counts} of the rows above (report.md or --json says how much, and what to do)")
    others = tuple(note for note in doubts.notes if note not in usual)
    return Section(title=doubts.title, notes=((line, *others) if usual else others))


def shown(width: int) -> list[Column]:
    """The columns of the table of results that a terminal of so many columns has place for."""
    return [column for column in COLUMNS if column.from_width <= width]


def results_listing(model: str, device: str, rows: Sequence[Row], width: int) -> Listing:
    """One line per variant and run; columns that need a wider terminal are left out."""
    columns = shown(width)
    return Listing(
        title=f"{model} on {device}",
        head=tuple(column.title for column in columns),
        rows=tuple(tuple(column.text(row) for column in columns) for row in rows),
        right=tuple(column.title for column in columns if column.number),
        styles=tuple(map(_style, rows)),
    )


def _style(row: Row) -> str:
    if row.status is not Status.OK or any(check.failed for check in row.checks):
        return "red"
    return STYLES[row.comparison.verdict] if row.comparison else ""


def proof_parts(proof: LibraryProof) -> Iterator[Part]:
    """What came of a bundle in the library that ships, then every finding with cause and remedy."""
    if (listing := proof_listing(proof)).rows:
        yield listing
    yield Section(title="Summary", notes=tuple(proof_notes(proof)))
