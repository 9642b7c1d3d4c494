"""Small drawings for the HTML page, as numbers: where the latencies of a row lie, and how its rounds went."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.report import wording
from pipeline.report.model import Row

STRIP_WIDTH, STRIP_HEIGHT = 160, 26
ROUNDS_WIDTH, ROUNDS_HEIGHT = 70, 26
MARGIN = 4
ROUNDS_RANGE = 0.25
"""Rounds are drawn from this share below the row's median to this share above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Latencies of a row along an axis from 0 that all rows of a table share; `label` says it in words."""

    dots: tuple[tuple[float, float], ...]
    median: float
    baseline: float | None
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsLine:
    """Medians of the rounds in order as a line; `points` in SVG's notation, `label` says it in words."""

    points: str
    last: tuple[float, float]
    label: str


def axis_end(rows: Sequence[Row]) -> int:
    """Where the axis of a table ends: the largest latency that is drawn in it."""
    return max((max(row.shape.latencies_ns) for row in rows if row.shape.latencies_ns), default=0)


def strip(row: Row, rows: Sequence[Row]) -> Strip | None:
    """The drawing of a row in the table of `rows`; None where nothing was timed."""
    end = axis_end(rows)
    if row.statistics is None or not row.shape.latencies_ns or not end:
        return None
    baseline = next((one.statistics.median_ns for one in rows if one.baseline and one.statistics), None)
    # Equal shares of the inferences on three lines in turn, so that dots close together stay apart.
    lines = (STRIP_HEIGHT / 2, STRIP_HEIGHT / 2 - 6, STRIP_HEIGHT / 2 + 6)
    xs = (_x(latency, end) for latency in row.shape.latencies_ns)
    first, last = row.shape.latencies_ns[0], row.shape.latencies_ns[-1]
    return Strip(
        dots=tuple((x, lines[number % 3]) for number, x in enumerate(xs)),
        median=_x(row.statistics.median_ns, end),
        baseline=None if baseline is None else _x(baseline, end),
        label=f"median {wording.duration(row.statistics.median_ns)}, "
        f"19 of 20 inferences between {wording.duration(first)} and {wording.duration(last)}",
    )


def _x(nanoseconds: float, end: int) -> float:
    return round(MARGIN + min(nanoseconds / end, 1.0) * (STRIP_WIDTH - 2 * MARGIN), 1)


def rounds_line(row: Row) -> RoundsLine | None:
    """How the medians of a row's rounds went; None with fewer than two."""
    medians = row.statistics.round_medians_ns if row.statistics else ()
    if row.statistics is None or len(medians) < 2:
        return None
    step = (ROUNDS_WIDTH - 2 * MARGIN) / (len(medians) - 1)
    places = [(round(MARGIN + n * step, 1), _y(m / max(row.statistics.median_ns, 1))) for n, m in enumerate(medians)]
    return RoundsLine(
        points=" ".join(f"{x},{y}" for x, y in places),
        last=places[-1],
        label=f"medians of {len(medians)} rounds: " + ", ".join(wording.duration(median) for median in medians),
    )


def _y(relative: float) -> float:
    """Up is slower."""
    above = min(max((relative - 1) / ROUNDS_RANGE, -1.0), 1.0)
    return round(ROUNDS_HEIGHT / 2 - above * (ROUNDS_HEIGHT / 2 - MARGIN), 1)
