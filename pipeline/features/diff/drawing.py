"""Two graphs side by side as SVG: what is gone on the left, what is new on the right, each region with its number."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from device_runner.files import visible
from pipeline.core.groups import counted
from pipeline.features.diff.changes import FileGraph, GraphDiff
from pipeline.partition.placement import CHARACTER, SMALL, collapse, curves, extent, lay_out

BOX_HEIGHT, LAYER_HEIGHT, MARGIN, HEAD, BETWEEN = 40, 74, 32, 96, 60
MOST_NODES = 120
"""Above so many nodes of a file, a region is one box, and so is each connected run of nodes without change."""

MOST_BOXES = 600
LONGEST = 64
STYLE = """
text { font-family: 'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif; }
.title { font-size: 18px; font-weight: bold; fill: #1b1f24; }
.facts { font-size: 13px; fill: #4a525c; }
.op { font-size: 12.5px; font-weight: bold; text-anchor: middle; fill: #1b1f24; }
.name { font-size: 9.5px; text-anchor: middle; fill: #4a525c; }
rect.box { stroke-width: 1.4; }
.same rect { fill: #eef1f4; stroke: #98a2ad; }
.changed rect { fill: #fff3cd; stroke: #8a6d1b; }
.gone rect { fill: #fdecea; stroke: #b03a2e; stroke-dasharray: 5 3; } .gone .op { fill: #8e2a1e; }
.new rect { fill: #e3f4e8; stroke: #2f7d4f; stroke-width: 2.2; } .new .op { fill: #1e5c38; }
.edge { fill: none; stroke: #98a2ad; stroke-width: 1.3; }
"""
SAME, CHANGED = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Box:
    """A box: its CSS class, its two lines and what a pointer on it shows."""

    style: str
    head: str
    line: str
    tip: str

    @property
    def width(self) -> float:
        return max(CHARACTER * len(self.head), SMALL * len(self.line), 40.0) + 20.0


def draw_diff(before: FileGraph, after: FileGraph, change_set: GraphDiff, titles: tuple[str, str]) -> str:
    """The picture as an SVG document, sizes in pixels; a graph of over 600 boxes is one line that says so."""
    regions = dict(enumerate(change_set.regions, 1))
    sides = (
        (before, "gone", {place: n for n, region in regions.items() for place in region.gone},
         {change.before: change.what for change in change_set.changed}),
        (after, "new", {place: n for n, region in regions.items() for place in region.new},
         {change.after: change.what for change in change_set.changed}),
    )  # fmt: skip
    makers = {number: ", ".join(name.partition(" ")[0] for name in region.by) for number, region in regions.items()}
    parts: list[str] = []
    left, height = float(MARGIN), 0.0
    for title, (graph, style, numbers, changes) in zip(titles, sides, strict=True):
        drawn, width, deep = _side(graph, style, numbers, changes, makers, left)
        parts.append(f'<text class="title" x="{left:.0f}" y="38">{_clean(title)}</text>')
        count = f"{counted(len(graph.nodes), 'node')}, {len(numbers)} {style}"
        parts.append(f'<text class="facts" x="{left:.0f}" y="60">{_clean(count)}</text>')
        parts += drawn
        left += max(width, 11.0 * len(title)) + BETWEEN
        height = max(height, deep)
    left, height = left - BETWEEN + MARGIN, HEAD + height + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {left:.0f} {height:.0f}">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _side(
    graph: FileGraph,
    style: str,
    numbers: Mapping[int, int],
    changes: Mapping[int, Sequence[str]],
    makers: Mapping[int, str],
    left: float,
) -> tuple[list[str], float, float]:
    """One graph as SVG elements, its width and its height."""
    kinds = [numbers.get(place, CHANGED if place in changes else SAME) for place in range(len(graph.nodes))]
    if len(graph.nodes) > MOST_NODES:
        boxes_of_nodes, edges = collapse(kinds, graph.edges)
        groups = [box.nodes for box in boxes_of_nodes]
    else:
        groups, edges = [(place,) for place in range(len(graph.nodes))], tuple(graph.edges)
    if len(groups) > MOST_BOXES:
        return [f'<text class="facts" x="{left:.0f}" y="{HEAD}">{len(groups)} boxes: too many to draw</text>'], 300, 20
    boxes = [_box(graph, nodes, style, kinds[nodes[0]], changes, makers) for nodes in groups]
    widths = {place: box.width for place, box in enumerate(boxes)}
    layout = lay_out(widths, edges)
    low, high = extent(layout, widths)
    shift = left - low
    elements = [f'<path class="edge" d="{line}"/>' for line in curves(layout, shift, HEAD, LAYER_HEIGHT, BOX_HEIGHT)]
    for place, (x, layer) in layout.places.items():
        elements += _drawn(boxes[place], x + shift, HEAD + layer * LAYER_HEIGHT)
    return elements, high - low, layout.layers * LAYER_HEIGHT


def _box(
    graph: FileGraph,
    nodes: Sequence[int],
    style: str,
    kind: int,
    changes: Mapping[int, Sequence[str]],
    makers: Mapping[int, str],
) -> _Box:
    operators = Counter(graph.nodes[place].operator for place in nodes)
    text = ", ".join(f"{name} {count}" if count > 1 else name for name, count in operators.most_common())
    label = graph.nodes[nodes[0]].label if len(nodes) == 1 else counted(len(nodes), "node")
    why = (
        f"{kind} {makers[kind]}".rstrip() if kind in makers else "; ".join(w for p in nodes for w in changes.get(p, ()))
    )
    return _Box(
        style=style if kind in makers else "changed" if kind == CHANGED else "same",
        head=_cut(text),
        line=_cut(why or label),
        tip=" · ".join(filter(None, (text, label, why))),
    )


def _cut(text: str) -> str:
    text = visible(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _clean(text: str) -> str:
    return escape(visible(text))


def _drawn(box: _Box, x: float, top: float) -> Iterator[str]:
    rect = f'x="{x - box.width / 2:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{BOX_HEIGHT}" rx="7"'
    yield (
        f'<g class="{box.style}"><title>{_clean(box.tip)}</title><rect class="box" {rect}/>'
        f'<text class="op" x="{x:.1f}" y="{top + 17:.1f}">{_clean(box.head)}</text>'
        f'<text class="name" x="{x:.1f}" y="{top + 31:.1f}">{_clean(box.line)}</text></g>'
    )
