"""What a regression gate found: as tables and notes, JUnit XML for a CI, and a bounded comment for a pull request."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, Literal

from device_runner.result import Struct
from pipeline.campaign.history import History
from pipeline.campaign.provenance import ChangedFact
from pipeline.core.errors import Severity
from pipeline.report import wording
from pipeline.report.ci import CiCase, CiDocument, CiFinding, bounded
from pipeline.report.comparison import change_text
from pipeline.report.layout import Listing, ListingNote, Section, gathered, place

GATE_VERSION: Final = 1
ALARMS = 0.01
"""How often a gate of equal bases and candidates may alarm, over all its comparisons."""


class GateOutcome(StrEnum):
    """What came of one base and candidate on one device."""

    REGRESSION = "regression"
    FASTER = "faster"
    NOT_SHOWN = "no regression shown"
    UNCHANGED = "unchanged"
    NOT_SUSPECTED = "not suspected"
    NOT_COMPARED = "not compared"
    FAILED = "failed"


class GatedRun(Struct, frozen=True, kw_only=True):
    """A base and a candidate on a device; `base` and `candidate` are VARIANT/RUN.

    `ratio` is the candidate's latency to the base's over the rounds that both have; `low` and `high` bound it with the
    confidence of the report, for all its rows together. `changes` is what differs between the two.
    """

    device: str
    model: str
    base: str
    candidate: str
    outcome: GateOutcome
    base_median_ns: float | None = None
    candidate_median_ns: float | None = None
    rounds: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    changes: tuple[ChangedFact, ...] = ()
    note: str = ""


class GateReport(Struct, frozen=True, kw_only=True):
    """Everything that a gate found. `least` is the share by which a candidate must be slower at least.

    `histories` are those that decided what was measured; () where everything was. `measured_at` is the instant in which
    measuring began, perhaps of an earlier call that measured the same; "" where nothing was measured.
    """

    version: Literal[1] = GATE_VERSION
    base: str = ""
    candidate: str = ""
    least: float = 0.01
    confidence: float = 0.99
    measured_at: str = ""
    rows: tuple[GatedRun, ...] = ()
    only_base: tuple[str, ...] = ()
    only_candidate: tuple[str, ...] = ()
    histories: tuple[History, ...] = ()
    warnings: tuple[str, ...] = ()

    def having(self, *outcomes: GateOutcome) -> list[GatedRun]:
        """The rows with one of these outcomes."""
        return [row for row in self.rows if row.outcome in outcomes]


def headline(report: GateReport) -> str:
    """The result in one line."""
    regressions = report.having(GateOutcome.REGRESSION)
    without = report.having(GateOutcome.FAILED, GateOutcome.NOT_COMPARED)
    quiet = report.having(GateOutcome.NOT_SUSPECTED)
    suspected = [one for one in report.histories if one.suspicion]
    rest = f"; {len(quiet)} not suspected by their history" if quiet else ""
    measured = len(report.rows) - len(quiet)
    if regressions:
        worst = max(row.ratio or 0 for row in regressions)
        return f"Regression: {len(regressions)} of {measured} slower, by up to {worst - 1:.1%}{rest}"
    if without:
        return f"No verdict on {len(without)} of {measured}{rest}"
    if suspected and not measured:
        return f"{len(suspected)} of {len(report.histories)} histories look slower: measure base and candidate in pairs"
    if not measured:
        short = sum(bool(one.note) for one in report.histories)
        few = f"; {short} too short to raise one" if short else ""
        return (
            f"No suspicion in {len(report.histories)} {'history' if len(report.histories) == 1 else 'histories'}{few}"
        )
    return f"No regression in {measured} {'comparison' if measured == 1 else 'comparisons'}{rest}"


HEAD = ("Device", "Model", "Run", "Base", "Candidate", "Ratio", "Interval", "Rounds", "Verdict")


def listings(report: GateReport) -> Iterator[Listing]:
    """The paired measurements, then the histories."""
    rows = sorted(report.rows, key=lambda row: list(GateOutcome).index(row.outcome))
    when = f", measured {wording.instant(report.measured_at)}" if report.measured_at else ""
    title = f"{report.candidate} relative to {report.base}, {report.confidence:.0%} intervals{when}"
    yield Listing(title=title, head=HEAD, rows=tuple(_cells(row) for row in rows))
    yield Listing(
        title="Histories",
        head=("Device", "Model", "Run", "Campaigns", "Usual", "Newest", "Limit", "Suspicion"),
        rows=tuple(_history_cells(one) for one in report.histories),
    )


def _cells(row: GatedRun) -> tuple[str, ...]:
    bounds = None if row.low is None or row.high is None else (row.low, row.high)
    verdict = row.outcome.value + (f": {row.note}" if row.note else "")
    return (
        row.device,
        row.model,
        row.candidate if row.base == row.candidate else f"{row.base} → {row.candidate}",
        wording.duration(row.base_median_ns),
        wording.duration(row.candidate_median_ns),
        f"{row.ratio:.3f}" if row.ratio else wording.DASH,
        f"{bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else wording.DASH,
        str(row.rounds) if row.rounds else wording.DASH,
        verdict,
    )


def _history_cells(one: History) -> tuple[str, ...]:
    found = one.suspicion
    said = f"{found.ratio - 1:+.1%} since {found.first}" if found else one.note or "none"
    newest = wording.duration(one.points[-1].median_ns if one.points else None)
    return (
        one.device, one.model, one.run, str(len(one.points)), wording.duration(one.usual_ns), newest,
        wording.duration(one.limit_ns), said,
    )  # fmt: skip


def sections(report: GateReport) -> tuple[Section, ...]:
    """What changed, what was not compared, and what interrupts histories."""
    made = {
        "What changed from base to candidate": gathered(
            ListingNote(title=one.what, text=change_text(one), places=(place(row.device, row.model, row.candidate),))
            for row in report.rows
            for one in row.changes
        ),
        "Only in the base": [ListingNote(title="", text=text) for text in report.only_base],
        "Only in the candidate": [ListingNote(title="", text=text) for text in report.only_candidate],
        "Suspicions": [note for one in report.histories for note in _suspected(one)],
        "Interruptions of histories": gathered(note for one in report.histories for note in _interruptions(one)),
        "Warnings": [ListingNote(title="", text=text) for text in report.warnings],
    }
    return tuple(Section(title=title, notes=tuple(notes)) for title, notes in made.items() if notes)


def _suspected(one: History) -> Iterator[ListingNote]:
    if one.suspicion:
        where = place(one.device, one.model, one.run)
        text = f"every campaign from {one.suspicion.first} on is over the limit; {one.suspicion.before} was not"
        changed = tuple(f"{change.what}: {change_text(change)}" for change in one.suspicion.changes)
        yield ListingNote(title=where, text=text, places=changed or ("nothing that is known changed between the two",))


def _interruptions(one: History) -> Iterator[ListingNote]:
    where = place(one.device, one.model, one.run)
    for restart in one.restarts:
        changed = "; ".join(f"{change.what} {change_text(change)}" for change in restart.changes)
        at = one.points[restart.place].campaign
        yield ListingNote(
            title="environment changed", text=f"{changed}: the history begins again", places=(f"{where}: {at}",)
        )
    for missing in one.missing:
        yield ListingNote(title="gap", text=missing.reason, places=(f"{where}: {missing.campaign}",))


def comment(report: GateReport) -> str:
    """Markdown for a pull request: at most SUMMARY_CHARACTERS, the worst first, and how many rows are left out."""
    return bounded(headline(report), list(listings(report)), list(sections(report)), "the JSON")


KINDS = {
    GateOutcome.REGRESSION: "failure",
    GateOutcome.FAILED: "error",
    GateOutcome.NOT_COMPARED: "skipped",
    GateOutcome.NOT_SUSPECTED: "skipped",
}
"""Outcome to the element of a test case in JUnit XML; the others are passed tests."""


def document(report: GateReport) -> CiDocument:
    """What a CI reads: a test case for each row, by device, model and run; regressions and failures are findings."""
    pairs = [(row, KINDS.get(row.outcome, "")) for row in report.rows]
    return CiDocument(
        name="ort-mobile gate",
        cases=tuple(
            CiCase(place=row.device, name=f"{row.model} {row.candidate}", kind=kind,
                   reason=row.outcome.value if kind else "", text=_said(row))
            for row, kind in pairs
        ),
        findings=tuple(
            CiFinding(rule=row.outcome.value.replace(" ", "_"), severity=Severity.ERROR, text=_said(row),
                      place=place(row.device, row.model, row.candidate))
            for row, kind in pairs
            if kind in ("failure", "error")
        ),
        summary=comment(report),
    )  # fmt: skip


def _said(row: GatedRun) -> str:
    known = row.ratio is not None and row.low is not None and row.high is not None
    bounds = f"({row.low:.3f} to {row.high:.3f}, {row.rounds} rounds)" if known else ""
    said = f"{row.ratio:.3f} times the base's latency {bounds}" if known else row.note or row.outcome.value
    return "; ".join([said, *(f"{one.what}: {change_text(one)}" for one in row.changes)])
