"""Drawings for the HTML page, as numbers: latencies of a row, its rounds, accuracy against cost, losses of layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.accuracy.result import ArtifactAccuracy
from pipeline.campaign.modes import SustainedNumbers
from pipeline.campaign.record import PrecisionSearch
from pipeline.report import wording
from pipeline.report.accuracy import decibel, higher_is_better, number
from pipeline.report.model import CampaignReport, ModeRow, Row
from pipeline.report.profile_view import OperatorChange, ProfileView

STRIP_WIDTH, STRIP_HEIGHT = 160, 26
ROUNDS_WIDTH, ROUNDS_HEIGHT = 70, 26
MARGIN = 4
ROUNDS_RANGE = 0.25
"""Rounds are drawn from this share below the row's median to this share above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Latencies of a row along a logarithmic axis that all rows of a table share; `label` says it in words."""

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


def axis(rows: Sequence[Row]) -> tuple[int, int]:
    """The ends of a table's axis: the smallest and the largest latency that is drawn in it; zeros where none is.

    It is logarithmic: from zero to an outlier, all others would stand in one place.
    """
    drawn = [latency for row in rows for latency in row.shape.latencies_ns]
    return (max(min(drawn), 1), max(*drawn, 1)) if drawn else (0, 0)


def strip(row: Row, rows: Sequence[Row]) -> Strip | None:
    """The drawing of a row in the table of `rows`; None where nothing was timed."""
    ends = axis(rows)
    if row.statistics is None or not row.shape.latencies_ns:
        return None
    baseline = next((one.statistics.median_ns for one in rows if one.baseline and one.statistics), None)
    # Equal shares of the inferences on three lines in turn, so that dots close together stay apart.
    lines = (STRIP_HEIGHT / 2, STRIP_HEIGHT / 2 - 6, STRIP_HEIGHT / 2 + 6)
    xs = (_x(latency, ends) for latency in row.shape.latencies_ns)
    first, last = row.shape.latencies_ns[0], row.shape.latencies_ns[-1]
    return Strip(
        dots=tuple((x, lines[number % 3]) for number, x in enumerate(xs)),
        median=_x(row.statistics.median_ns, ends),
        baseline=None if baseline is None else _x(baseline, ends),
        label=f"median {wording.duration(row.statistics.median_ns)}, "
        f"19 of 20 inferences between {wording.duration(first)} and {wording.duration(last)}",
    )


def _x(nanoseconds: float, ends: tuple[int, int]) -> float:
    return round(MARGIN + log_place(nanoseconds, *ends) * (STRIP_WIDTH - 2 * MARGIN), 1)


def log_place(value: float, low: float, high: float) -> float:
    """Where a value stands on a logarithmic axis, from 0 to 1; in the middle where both ends are the same."""
    if high <= low:
        return 0.5
    return math.log(min(max(value, low), high) / low) / math.log(high / low)


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


FRONT_WIDTH, FRONT_HEIGHT, FRONT_MARGIN = 480, 200, 64
FRONT_TOP, FRONT_SPAN, FRONT_FOOT = 24, 130, 176
"""Where the best accuracy stands, how far below it the worst, and the axis of costs."""
BARS_HEIGHT = 120
BEST_DB = 60.0
"""Layers that alone leave this much signal to noise cost nothing that could be seen: their bars have no height."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place with what it stands for; `best` marks those that no other beats in both directions, and float layers."""

    x: float
    y: float
    label: str
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Accuracy (up is better) against median latency, or size where nothing was measured, of one model.

    Costs are drawn from 0 to `most`, accuracy from `worst` to `best`; `line` joins the points that nothing beats.
    """

    title: str
    points: tuple[Point, ...]
    line: str
    most: str
    worst: str
    best: str

    @property
    def ahead(self) -> tuple[Point, ...]:
        """The points that nothing beats, cheapest first; the page numbers them. Those in one place are one."""
        places: dict[tuple[float, float], Point] = {}
        for point in sorted((point for point in self.points if point.best), key=lambda point: point.x):
            known = places.get((point.x, point.y))
            places[point.x, point.y] = replace(point, label=f"{known.label}; {point.label}") if known else point
        return tuple(places.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Median latency over the time of a sustained run, from 0 up; `fresh` is the height of the first ones, `throttled`
    where latency began to rise, `most` the latency at the top.
    """

    title: str
    points: str
    fresh: float
    throttled: float | None
    end: str
    most: str
    label: str


def curves(report: CampaignReport) -> tuple[Curve, ...]:
    """One drawing for each sustained run."""
    found = ((row, row.sustained) for row in report.modes)
    return tuple(_curve(row, numbers) for row, numbers in found if numbers and numbers.curve)


def _curve(row: ModeRow, numbers: SustainedNumbers) -> Curve:
    medians = [one.median_ns for one in numbers.curve]
    most, end = max(*medians, 1), max(numbers.length_ns, 1)

    def x(start_ns: int) -> float:
        return round(FRONT_MARGIN + start_ns / end * (FRONT_WIDTH - FRONT_MARGIN), 1)

    def y(median_ns: int) -> float:
        return round((FRONT_HEIGHT - FRONT_MARGIN) * (1 - median_ns / most), 1)

    began = numbers.throttled_after_ns
    slower = "" if began is None else f", slower from {began / 1e9:.1f} s on (dashes)"
    return Curve(
        title=f"{row.model} on {row.device}, {row.variant} {row.run}: median latency over time, from 0 up{slower}",
        points=" ".join(f"{x(one.start_ns)},{y(one.median_ns)}" for one in numbers.curve),
        fresh=y(numbers.fresh_ns),
        throttled=None if began is None else x(began),
        end=f"{end / 1e9:.0f} s",
        most=wording.duration(most),
        label=f"fresh {wording.duration(numbers.fresh_ns)}, late {wording.duration(numbers.late_ns)}{slower}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBars:
    """A bar for each layer, worst first; `width` is that of one, `worst` the noise of the first."""

    title: str
    bars: tuple[Point, ...]
    width: float
    worst: str
    label: str


def fronts(report: CampaignReport) -> tuple[Front, ...]:
    """One drawing for each model with accuracy of at least two artifacts, its own precision among them."""
    found = (report.accuracy, dict.fromkeys(one.model for one in report.accuracy))
    drawn = (_front(report, [one for one in found[0] if one.model == model]) for model in found[1])
    return tuple(one for one in drawn if one)


def _front(report: CampaignReport, group: Sequence[ArtifactAccuracy]) -> Front | None:
    model = group[0].model
    measured = {one.variant: one.result for one in group if one.result}
    first = next(iter(measured.values()), None)
    own = [a.variant.name for a in report.artifacts if a.model == model and not a.variant.precision]
    values = dict.fromkeys(own, first.reference_value if first else None)
    values |= {name: result.value for name, result in measured.items()}
    accuracy = {name: value for name, value in values.items() if value is not None}
    medians = {
        row.variant: row.statistics.median_ns for row in sorted(report.rows, key=_slowest_first)
        if row.model == model and row.statistics and row.variant in accuracy
    }  # fmt: skip
    sizes = {a.variant.name: a.size_bytes for a in report.artifacts if a.model == model and a.variant.name in accuracy}
    costs: dict[str, float] = dict(medians or sizes)
    if first is None or len({accuracy[name] for name in costs} | {costs[name] for name in costs}) < 3:
        return None
    show = wording.duration if medians else wording.size
    texts = {name: f"{name}: {number(first, accuracy[name])} at {show(int(costs[name]))}" for name in costs}
    sign = 1 if higher_is_better(first.metric) else -1
    points = _placed({name: (cost, sign * accuracy[name]) for name, cost in costs.items()}, texts)
    drawn = sorted((accuracy[name] for name in costs), reverse=sign > 0)
    front = Front(
        title=f"{model}: {first.metric} against {'median latency' if medians else 'size'}; the line joins the best",
        points=points,
        line="",
        most=show(int(max(costs.values()))),
        worst=number(first, drawn[-1]),
        best=number(first, drawn[0]),
    )
    return replace(front, line=" ".join(f"{point.x},{point.y}" for point in front.ahead))


def _slowest_first(row: Row) -> float:
    return -row.statistics.median_ns if row.statistics else 0.0


def _placed(values: dict[str, tuple[float, float]], texts: dict[str, str]) -> tuple[Point, ...]:
    """Points of variants by cost and worth, inside the margins."""
    costs, worths = zip(*values.values(), strict=True)
    most, low, high = max(costs), min(worths), max(worths)
    return tuple(
        Point(
            x=round(FRONT_MARGIN + cost / most * (FRONT_WIDTH - FRONT_MARGIN - 8), 1),
            y=round(FRONT_TOP + (high - worth) / ((high - low) or 1) * FRONT_SPAN, 1),
            label=texts[name],
            best=not any(_beats(other, (cost, worth)) for other in values.values()),
        )
        for name, (cost, worth) in values.items()
    )


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """Whether one costs no more and is worth no less, and is better in either."""
    return one[0] <= other[0] and one[1] >= other[1] and one != other


def loss_bars(report: CampaignReport) -> tuple[LossBars, ...]:
    """One drawing for each search that measured layers."""
    return tuple(_bars(one) for one in report.searches if one.search.layers)


def _bars(one: PrecisionSearch) -> LossBars:
    layers = one.search.layers
    step = FRONT_WIDTH / len(layers)
    bars = tuple(
        Point(
            x=round(number * step, 1),
            y=round(BARS_HEIGHT * min(max(loss.sqnr_db / BEST_DB, 0.0), 1.0), 1),
            label=f"{loss.nodes[0]} ({loss.op_type}, {len(loss.nodes)}): {loss.sqnr_db:.1f} dB",
            best=set(loss.nodes) <= set(one.search.best.nodes),
        )
        for number, loss in enumerate(layers)
    )
    return LossBars(
        title=f"{one.model} in {one.precision}: noise of each layer alone, worst first; those in full color stay float",
        bars=bars,
        width=round(max(step - 1, 1), 1),
        worst=decibel(layers[0].sqnr_db),
        label="; ".join(bar.label for bar in bars[:3]),
    )


TIMES_WIDTH, TIMES_HEIGHT = 160, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBars:
    """The time of an operator before and after as two bars, on an axis that a view's operators share."""

    before: float
    after: float
    label: str


def time_bars(row: OperatorChange, view: ProfileView) -> TimeBars:
    """The bars of one operator of a view."""
    most = max((max(one.before_ns, one.after_ns) for one in view.operators), default=0.0) or 1.0
    return TimeBars(
        before=round(row.before_ns / most * TIMES_WIDTH, 1),
        after=round(row.after_ns / most * TIMES_WIDTH, 1),
        label=f"{row.operator}: {wording.duration(row.before_ns)} before, {wording.duration(row.after_ns)} after",
    )
