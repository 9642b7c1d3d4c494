"""Histories as SVG: a panel each, campaigns from left to right, latency upwards, what interrupts them marked."""

import itertools
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from pipeline.campaign.history import History
from pipeline.report import wording
from pipeline.report.wording import visible

WIDTH, HEIGHT, MARGIN, TITLE = 720, 150, 40, 20
MOST_PANELS = 100
"""Histories that are drawn, suspected ones first: JSON has all."""
NAME_CHARACTERS = 100

STYLE = (
    "text{font:12px sans-serif;fill:#333}.line{fill:none;stroke:#4477aa;stroke-width:1.5}.usual{stroke:#999}"
    ".limit{stroke:#cc6677;stroke-dasharray:4 3}.restart{stroke:#ddaa33;stroke-dasharray:2 2}"
    ".point{fill:#4477aa}.slow{fill:#cc3311}"
)


def history_svg(histories: Sequence[History]) -> str:
    """One SVG document; the same histories give the same text, and names in it cannot be markup."""
    drawn = sorted((one for one in histories if one.points), key=lambda one: one.suspicion is None)[:MOST_PANELS]
    height = max(1, len(drawn)) * HEIGHT + TITLE
    left_out = len(histories) - len(drawn)
    note = f"{left_out} more: without a point, or over {MOST_PANELS}" if left_out else ""
    body = "".join(
        f'<g transform="translate(0 {n * HEIGHT})">{"".join(_panel(one))}</g>' for n, one in enumerate(drawn)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img"><style>{STYLE}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>{body}'
        f'<text x="{MARGIN}" y="{height - 6}">{note}</text></svg>\n'
    )


def _panel(one: History) -> Iterator[str]:
    values = [point.median_ns for point in one.points]
    levels = [level for level in (one.usual_ns, one.limit_ns) if level]
    low, high = min(values + levels), max(values + levels)
    step = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)

    def x(place: int) -> float:
        return round(MARGIN + place * step, 1)

    def y(value: float) -> float:
        return round(TITLE + 10 + (high - value) / ((high - low) or 1) * (HEIGHT - TITLE - 40), 1)

    title = f"{one.model} {one.run} on {one.device}"[:NAME_CHARACTERS]
    rise = f"{one.suspicion.ratio - 1:+.1%} since {one.suspicion.first}" if one.suspicion else ""
    yield f'<text x="{MARGIN}" y="{TITLE - 4}">{_text(title)}: {_text(rise or one.note or "no suspicion")}</text>'
    yield f'<text x="2" y="{y(high) + 4}">{_text(wording.duration(high))}</text>'
    yield f'<text x="2" y="{y(low) + 4}">{_text(wording.duration(low))}</text>' if low < high else ""
    for kind, level in (("usual", one.usual_ns), ("limit", one.limit_ns)):
        if level:
            yield f'<line class="{kind}" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y(level)}" y2="{y(level)}"/>'
    starts = [0, *(restart.place for restart in one.restarts), len(values)]
    for start, end in itertools.pairwise(starts):
        points = " ".join(f"{x(place)},{y(values[place])}" for place in range(start, end))
        yield f'<polyline class="line" points="{points}"/>'
    for restart in one.restarts:
        at = x(restart.place) - step / 2
        changed = ", ".join(f"{change.what}: {change.before} → {change.after}" for change in restart.changes)
        yield (f'<line class="restart" x1="{at:.1f}" x2="{at:.1f}" y1="{TITLE}" y2="{HEIGHT - 20}">'
               f"<title>{_text(changed)}</title></line>")  # fmt: skip
    since = [point.campaign for point in one.points].index(one.suspicion.first) if one.suspicion else len(values)
    for place, point in enumerate(one.points):
        colour, centre = "slow" if place >= since else "point", f'cx="{x(place)}" cy="{y(point.median_ns)}"'
        label = f"{point.campaign}: {wording.duration(point.median_ns)}"
        yield f'<circle class="{colour}" {centre} r="3"><title>{_text(label)}</title></circle>'


def _text(text: str) -> str:
    return escape(visible(text)[: 4 * NAME_CHARACTERS]).replace("\ufffe", "?").replace("\uffff", "?")
