"""Static pictures of a campaign: distributions of latencies, and latency against size, memory and accuracy.

Places are numbers for SVG that the template draws; every picture has its label in words, and stands beside its table.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.report import wording
from pipeline.report.drawing import log_place
from pipeline.report.model import Row

WIDTH, HEIGHT = 560, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 10, 28
MOST_LINES = 12
"""Distributions in one picture, the fastest: more cannot be told apart."""
COST_LEFT, INSET = 84, 12
"""Left edge of plots whose axis of costs has its texts beside it, and how far inside its frame points stand."""
SMALLEST_SPAN = 1.2
"""Factor that an axis of such a plot spans at least: costs that differ by a few per cent look alike, as they are."""
COLOURS, DASHES = 8, 3
TICKS = (1, 1.5, 2, 3, 5, 7)
"""Steps of a logarithmic axis within a factor of ten; of those inside, at most MOST_TICKS are marked."""
MOST_TICKS = 6

RowKey = tuple[str, str, str, str]
"""Device, model, variant and run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis with its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """One distribution: CSS classes of colour and dash, points in SVG's notation, what it is of."""

    style: str
    points: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Shares of inferences (up) that take at most so long (along, logarithmic), a line for each row of a table."""

    label: str
    ticks: tuple[Tick, ...]
    lines: tuple[DrawnLine, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPoint:
    """A configuration in a scatter plot; `number` is its place in the list below where nothing beats it, else 0."""

    x: float
    y: float
    label: str
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Median latency along, a cost up (less is lower), both logarithmic; `front` joins what nothing beats."""

    title: str
    marks: tuple[CostPoint, ...]
    front: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


def distribution(rows: Sequence[Row], samples: Mapping[RowKey, Sequence[int]]) -> Distribution | None:
    """The picture of one table; None with nothing timed. `samples` are sorted latencies, where raw ones are known."""
    timed = sorted((row for row in rows if row.statistics and row.shape.latencies_ns), key=_median)
    shown = timed[:MOST_LINES]
    if not shown:
        return None
    curves = [_quantiles(row, samples) for row in shown]
    low = min(curve[0] for curve in curves)
    high = max(low * 1.05, *(curve[max(0, int(len(curve) * 0.99) - 1)] for curve in curves))
    lines = tuple(
        DrawnLine(style=style(number), points=_steps(curve, low, high), name=f"{row.variant} {row.run}")
        for number, (row, curve) in enumerate(zip(shown, curves, strict=True))
    )
    words = "; ".join(f"{r.variant} {r.run}: median {wording.duration(_median(r))}" for r in shown)
    return Distribution(
        label=f"distribution of latencies, {words}",
        ticks=tuple(Tick(at=x_of(value, low, high), text=wording.duration(value)) for value in ticks(low, high)),
        lines=lines,
        left_out=len(timed) - len(shown),
    )


def style(number: int) -> str:
    """Colour and dash of the line with that number: the eighth has the first colour again, dashed."""
    return f"s{number % COLOURS} d{number // COLOURS % DASHES}"


def _median(row: Row) -> float:
    return row.statistics.median_ns if row.statistics else 0.0


def _quantiles(row: Row, samples: Mapping[RowKey, Sequence[int]]) -> list[int]:
    """Up to 60 latencies at even shares, ascending and not below 1 ns."""
    raw = samples.get((row.device, row.model, row.variant, row.run)) or row.shape.latencies_ns
    count = min(len(raw), 60)
    return [max(raw[int((n + 0.5) * len(raw) / count)], 1) for n in range(count)]


def _steps(curve: Sequence[int], low: float, high: float) -> str:
    points, count = [], len(curve)
    for number, value in enumerate(curve):
        x = x_of(value, low, high)
        points += [f"{x},{_share_y(number / count)}", f"{x},{_share_y((number + 1) / count)}"]
    return " ".join(points)


def _share_y(share: float) -> float:
    return round(TOP + (1 - share) * (HEIGHT - TOP - BOTTOM), 1)


def x_of(value: float, low: float, high: float) -> float:
    """A place along the axis, to a tenth."""
    return round(LEFT + log_place(value, low, high) * (WIDTH - LEFT - RIGHT), 1)


def _cost_x(value: float, low: float, high: float) -> float:
    return round(COST_LEFT + INSET + log_place(value, low, high) * (WIDTH - COST_LEFT - RIGHT - 2 * INSET), 1)


def _cost_y(value: float, low: float, high: float) -> float:
    return round(HEIGHT - BOTTOM - INSET - log_place(value, low, high) * (HEIGHT - TOP - BOTTOM - 2 * INSET), 1)


def span(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis for such values: their own, or around their middle where they lie close together."""
    low, high = min(values), max(values)
    if high / low >= SMALLEST_SPAN:
        return low, high
    middle = math.sqrt(low * high)
    return middle / math.sqrt(SMALLEST_SPAN), middle * math.sqrt(SMALLEST_SPAN)


def ticks(low: float, high: float) -> list[float]:
    """Round values between two, at most MOST_TICKS of them; both ends where none is."""
    found, power = [], 1.0
    while power <= high:
        found += [power * step for step in TICKS if low <= power * step <= high]
        power *= 10
    if len(found) < 2:
        return [low, high]
    every = -(-len(found) // MOST_TICKS)
    return found[::every]


COSTS: tuple[tuple[str, Callable[[Row], int]], ...] = (
    ("size", lambda row: row.size_bytes),
    ("peak memory", lambda row: row.memory_peak_bytes),
)
"""What latency is drawn against; accuracy has a drawing of its own."""


def scatters(rows: Sequence[Row]) -> tuple[Scatter, ...]:
    """The pictures of one table; none with fewer than three timed rows, or where a cost is the same everywhere."""
    timed = [row for row in rows if row.statistics and not row.same_as]
    made = []
    for name, cost in COSTS:
        known = [row for row in timed if cost(row)]
        if len(known) > 2 and len({cost(row) for row in known}) > 1:
            made.append(_scatter(name, cost, known))
    return tuple(made)


def _scatter(name: str, cost: Callable[[Row], int], rows: Sequence[Row]) -> Scatter:
    values = [(max(_median(row), 1.0), float(cost(row))) for row in rows]
    (left, right), (low, high) = (span(axis) for axis in zip(*values, strict=True))
    ahead = sorted(
        (n for n, (x, y) in enumerate(values) if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in values)),
        key=lambda n: values[n],
    )
    places = [(_cost_x(x, left, right), _cost_y(y, low, high)) for x, y in values]
    marks = [
        CostPoint(x=x, y=y, number=ahead.index(n) + 1 if n in ahead else 0,
             label=f"{row.variant} {row.run}: {wording.duration(_median(row))}, {wording.size(cost(row))}")
        for n, (row, (x, y)) in enumerate(zip(rows, places, strict=True))
    ]  # fmt: skip
    steps = [f"{places[ahead[0]][0]},{places[ahead[0]][1]}"]
    steps += [f"{places[b][0]},{places[a][1]} {places[b][0]},{places[b][1]}" for a, b in pairwise(ahead)]
    return Scatter(
        title=f"Latency against {name}: down and left is better, the line joins what nothing beats",
        marks=tuple(marks),
        front=" ".join(steps),
        x_ticks=tuple(Tick(at=_cost_x(v, left, right), text=wording.duration(v)) for v in ticks(left, right)),
        y_ticks=tuple(Tick(at=_cost_y(v, low, high), text=wording.size(round(v))) for v in (low, high)),
    )
