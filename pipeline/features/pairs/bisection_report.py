"""What a bisection found: its document, and the positions that it compared as a table."""

from enum import StrEnum
from typing import Final, Literal

import msgspec

from pipeline.core import errors as core_errors
from pipeline.features.pairs.report import GatedRun, GateOutcome, change_text, ratio_cells
from pipeline.report import wording

BISECTION_VERSION: Final = 1


class PositionStanding(StrEnum):
    """How a position compares with the first: as fast, slower, not decided by its rounds, or not measurable."""

    GOOD = "good"
    SLOWER = "slower"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"


class BisectionEnd(StrEnum):
    """Why a bisection ended."""

    FOUND = "found"
    RANGE = "range"
    """Between the last good and the first slower position are only ones that could not be decided."""
    NO_DIFFERENCE = "no difference"
    """The last position was not shown to be slower than the first."""
    NOT_MONOTONE = "not monotone"
    """A good position follows a slower one: the slowdown came, went, and perhaps came again."""
    NOT_MEASURABLE = "not measurable"
    """The last position could not be compared with the first."""


class BisectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A position compared with the first; `standing` is good, slower, undecided or skipped, with why in `note`."""

    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""
    position: int
    name: str
    standing: PositionStanding
    rounds: int = 0


class BisectionReport(msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The positions between the ends that were not compared with the first, as the answer did not need them."""
        measured = {row.position for row in self.rows}
        return tuple(name for number, name in list(enumerate(self.positions))[1:-1] if number not in measured)

    @property
    def exit_code(self) -> core_errors.ExitCode:
        """0 where there is an answer: the step, a range, or that there is no difference; 1 where runs gave none."""
        unanswered = self.end in (BisectionEnd.NOT_MEASURABLE, BisectionEnd.NOT_MONOTONE)
        return core_errors.ExitCode.SOME_FAILED if unanswered else core_errors.ExitCode.DONE


def bisection_headline(report: BisectionReport) -> str:
    """The result in one line."""
    between = len(report.unmeasured) if report.end is BisectionEnd.NO_DIFFERENCE else 0
    return _bisected(report) + (f"; {between} between them not measured" if between else "")


def _bisected(report: BisectionReport) -> str:
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


def bisection_parts(report: BisectionReport) -> tuple[wording.Listing, wording.Section]:
    """Every position that was compared with the first; the result, and what differs between the ends of the step."""
    notes = [wording.ListingNote(title="", text=bisection_headline(report))]
    if report.step and report.step.ratio:
        ratio, interval = ratio_cells(report.step.ratio, report.step.low, report.step.high)
        notes.append(wording.ListingNote(title="the step alone", text=f"{ratio} times as long ({interval})"))
    if report.unmeasured:
        notes.append(
            wording.ListingNote(title="not measured, as the answer did not need it", text=", ".join(report.unmeasured))
        )
    changes = report.step.changes if report.step else ()
    notes += [wording.ListingNote(title=change.what, text=change_text(change)) for change in changes]
    positions = wording.Listing(
        title=f"Relative to {report.positions[0]} on {report.device}, 99% intervals",
        head=("Position", "Name", "Ratio", "Interval", "Rounds", "Standing"),
        rows=tuple(
            (
                f"{row.position} of {len(report.positions) - 1}",
                row.name,
                *ratio_cells(row.ratio, row.low, row.high),
                str(row.rounds),
                row.standing.value + (f": {row.note}" if row.note else ""),
            )
            for row in report.rows
        ),
    )
    return positions, wording.Section(title="Result", notes=tuple(notes))
