"""What a bisection found, as a document, a table and notes."""

from collections.abc import Iterator
from typing import Final, Literal

from device_runner.result import Struct
from pipeline.campaign.bisection import BisectionEnd, PositionStanding
from pipeline.report import wording
from pipeline.report.comparison import change_text
from pipeline.report.layout import Listing, ListingNote, Section
from pipeline.report.regression import GatedRun, GateOutcome

BISECTION_VERSION: Final = 1


class BisectionRow(Struct, frozen=True, kw_only=True):
    """A position compared with the first; `standing` is good, slower, undecided or skipped."""

    position: int
    name: str
    standing: PositionStanding
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    note: str = ""


class BisectionReport(Struct, frozen=True, kw_only=True):
    """`good` is the last position known as fast as the first, `slower` the first known as slower.

    `step` compares those two directly, where the bisection found them next to each other.
    """

    version: Literal[1] = BISECTION_VERSION
    device: str
    positions: tuple[str, ...]
    end: BisectionEnd
    good: str
    slower: str
    rows: tuple[BisectionRow, ...]
    step: GatedRun | None = None


def headline(report: BisectionReport) -> str:
    """The result in one line."""
    match report.end:
        case BisectionEnd.FOUND if report.step and report.step.outcome is not GateOutcome.REGRESSION:
            return f"The difference vanishes: {report.slower} is not slower than {report.good} when both alternate"
        case BisectionEnd.FOUND:
            return f"The first slower one is {report.slower}; {report.good} is not"
        case BisectionEnd.RANGE:
            return (
                f"The first slower one is after {report.good}, at the latest {report.slower}: what is between is open"
            )
        case BisectionEnd.NO_DIFFERENCE if report.step and report.step.outcome is GateOutcome.FASTER:
            return f"No slowdown: {report.slower} is faster than {report.good}"
        case BisectionEnd.NO_DIFFERENCE if report.step and report.step.high:
            most = max(0.0, report.step.high - 1)
            return f"No slowdown shown: {report.slower} is at most {most:.1%} slower than {report.good}"
        case BisectionEnd.NO_DIFFERENCE:
            return f"No difference: {report.slower} is not slower than {report.good}"
        case BisectionEnd.NOT_MONOTONE:
            return f"Not monotone: {report.good} is good, though {report.slower} before it is slower"
    return f"{report.slower} could not be measured"


def listing(report: BisectionReport) -> Listing:
    """Every position that was compared with the first."""
    return Listing(
        title=f"Relative to {report.positions[0]} on {report.device}, 99% intervals",
        head=("Position", "Name", "Ratio", "Interval", "Rounds", "Standing"),
        rows=tuple(
            (
                f"{row.position} of {len(report.positions) - 1}",
                row.name,
                f"{row.ratio:.3f}" if row.ratio else wording.DASH,
                f"{row.low:.3f} to {row.high:.3f}" if row.low and row.high else wording.DASH,
                str(row.rounds),
                row.standing.value + (f": {row.note}" if row.note else ""),
            )
            for row in report.rows
        ),
    )


def sections(report: BisectionReport) -> tuple[Section, ...]:
    """The result, and what differs between the two ends of the step that was found."""
    notes = [ListingNote(title="", text=headline(report)), *_step(report)]
    return (Section(title="Result", notes=tuple(notes)),)


def _step(report: BisectionReport) -> Iterator[ListingNote]:
    if report.step is None:
        return
    if report.step.ratio and report.step.low and report.step.high:
        text = f"{report.step.ratio:.3f} times as long ({report.step.low:.3f} to {report.step.high:.3f})"
        yield ListingNote(title="the step alone", text=text)
    for change in report.step.changes:
        yield ListingNote(title=change.what, text=change_text(change))
