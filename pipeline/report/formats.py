"""A campaign's report in a terminal and as report.md."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rich.console import Console

from device_runner.result import Status
from pipeline.campaign.statistics import compare as run_compare
from pipeline.check import library_proof
from pipeline.passes import precisions as passes_precisions
from pipeline.report import wording
from pipeline.report.accuracies import accuracies, searches
from pipeline.report.decision import BannerState, banner
from pipeline.report.explanations import precisions, words
from pipeline.report.first_lines import first_lines
from pipeline.report.inventory import inventory
from pipeline.report.layout import COLUMNS, FROM_WIDTH, WIDE, WORDS, Columns, choices, results
from pipeline.report.model import CampaignReport
from pipeline.report.modes import mode_listings
from pipeline.report.profiles import changes, claims, copies, fallbacks, fusions, operators, summary, view_notes
from pipeline.report.proofs import proof_listing, proof_notes
from pipeline.report.sections import DOUBTS, offered, sections
from pipeline.report.show import show, width
from pipeline.report.wording import (
    Line,
    Listing,
    ListingNote,
    Part,
    Section,
)

SHORT = 6
"""Operators of a view of profiles: report.md has more."""
STYLES = {
    run_compare.Verdict.FASTER: "green",
    run_compare.Verdict.SLOWER: "yellow",
    run_compare.Verdict.MIXED: "yellow",
    run_compare.Verdict.SAME: "",
    run_compare.Verdict.NOT_SHOWN: "dim",
}


def show_report(report: CampaignReport, console: Console | None = None) -> None:
    """Print the report, with as many columns of results as fit."""
    show(render(report, width(console)), console, rest="report.md")


def render(report: CampaignReport, width: int) -> Iterator[Part]:
    """The parts of the report for a terminal of so many columns."""
    # One line per variant and run; columns that need a wider terminal are left out.
    columns = {head: text for head, text in COLUMNS.items() if FROM_WIDTH.get(head, WIDE) <= width}
    if report.stopped:  # what may not ship is not said at the end alone
        yield from _banner(report)
    yield from first_lines(report)
    yield from result_tables(report, columns)
    if report.rows:
        yield Line((wording.legend(report, interval="Interval" in columns), "dim"), indent=0)
        yield Line(indent=0)
    yield from mode_listings(report)
    yield accuracies(report, brief=True)
    if names := ", ".join(map(passes_precisions.common_name, precisions(report))):
        yield Line((f"Precisions by their usual names: {names}.", "dim"), indent=0)
        yield Line(indent=0)
    yield from offered(report, brief=True)
    yield from map(proof_listing, report.proofs)
    for section in sections(report):
        # The usual doubts with their numbers of rows in one line, then the others as they are
        usual = [note for note in section.notes if section.title == DOUBTS and note.title in USUAL_DOUBTS]
        if usual:
            counts = ", ".join(f"{USUAL_DOUBTS[note.title]} in {len(note.places)}" for note in usual)
            text = f"{counts} of the rows above (report.md or --json says how much, and what to do)"
            others = (note for note in section.notes if note not in usual)
            yield Section(title=section.title, notes=(ListingNote(title="", text=text), *others))
        else:
            yield section
    if report.profiles:
        listing = claims(report.profiles)
        yield listing if listing.rows else Line((listing.title, "bold"))
    for view in report.profile_views:
        yield changes(view, most=SHORT)
        yield from map(Line, (*view_notes(view), ""))
    yield choices(report)
    if not report.stopped:
        yield from _banner(report)


def result_tables(report: CampaignReport, columns: Columns = COLUMNS) -> Iterator[Listing]:
    """A table of results for each model on each device."""
    for (model, device), rows in results(report).items():
        styles = []
        for row in rows:
            wrong = row.status is not Status.OK or any(check.failed for check in row.checks)
            styles.append("red" if wrong else STYLES[row.comparison.verdict] if row.comparison else "")
        yield Listing(
            title=f"{model} on {device}",
            head=tuple(columns),
            rows=tuple(tuple(text(row) for text in columns.values()) for row in rows),
            right=tuple(head for head in columns if head not in WORDS),
            styles=tuple(styles),
        )


def _banner(report: CampaignReport, marks: Mapping[BannerState, str] | None = None) -> Iterator[Part]:
    if verdict := banner(report):
        state, headline, reasons = verdict
        yield Line(((marks or {}).get(state, "") + headline, BANNERS[state]), indent=0)
        yield Section(title="", notes=tuple(ListingNote(title="", text=reason) for reason in reasons))


BANNERS = {BannerState.STOP: "bold red", BannerState.CAUTION: "bold yellow", BannerState.READY: "bold green"}


USUAL_DOUBTS = {"spread": "times differ widely", "extreme": "a time far from the median", "short samples": "under 1 ms"}
"""What nearly every short run on a computer in use has: one line here, each with its numbers in the report."""


def proof_parts(proof: library_proof.LibraryProof) -> Iterator[Part]:
    """What came of a bundle in the library that ships, then every finding with cause and remedy."""
    yield proof_listing(proof)
    yield Section(title="Summary", notes=tuple(proof_notes(proof)))


MARKS = {BannerState.STOP: "🛑 ", BannerState.CAUTION: "⚠️ ", BannerState.READY: "✅ "}


def markdown_page(report: CampaignReport) -> str:
    """The whole page."""
    return wording.markdown(report.name, _page(report))


def _page(report: CampaignReport) -> Iterator[Part]:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(report.versions.items()))
    yield from _banner(report, MARKS)
    yield from first_lines(report)
    yield Line(f"Campaign {report.campaign} of {wording.instant(report.created_at)}, made with {versions}.")
    yield choices(report)
    yield from offered(report)
    yield from result_tables(report)
    if report.rows:
        yield Line(wording.legend(report))
    yield from mode_listings(report)
    yield accuracies(report)
    yield from searches(report)
    yield from map(proof_listing, report.proofs)
    yield from sections(report)
    for view in report.profile_views:
        yield changes(view)
        yield Section(title="", notes=tuple(ListingNote(title="", text=note) for note in view_notes(view)))
        yield from (replace(listing, level=3) for listing in (fusions(view), fallbacks(view)))
    yield summary(report.profiles)
    yield from (table(profile) for profile in report.profiles for table in (operators, copies))
    yield from inventory(report)
    yield words(report)
