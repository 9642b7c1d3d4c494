"""Two graphs side by side as SVG, what changed in colour."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from device_runner import safe_text
from pipeline.core import groups as counting
from pipeline.features.diff.changes import GraphDiff
from pipeline.features.diff.graph import FileGraph
from pipeline.partition import placement as node_placement

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


def draw_diff(before: FileGraph, after: FileGraph, change_set: GraphDiff, titles: tuple[str, str]) -> str:
    """The picture as an SVG document, sizes in pixels; a graph of over 600 boxes is one line that says so."""
    regions = dict(enumerate(change_set.regions, 1))
    sides = (
        (
            before,
            "gone",
            {index: n for n, (gone, _, _) in regions.items() for index in gone},
            {index: what for index, _, what in change_set.changed},
        ),
        (
            after,
            "new",
            {index: n for n, (_, new, _) in regions.items() for index in new},
            {index: what for _, index, what in change_set.changed},
        ),
    )
    makers = {number: ", ".join(name.partition(" ")[0] for name in by) for number, (_, _, by) in regions.items()}
    parts: list[str] = []
    left, height = float(MARGIN), 0.0
    for title, (graph, style, numbers, changes) in zip(titles, sides, strict=True):
        drawn, width, deep = _side(graph, style, numbers, changes, makers, left)
        parts.append(f'<text class="title" x="{left:.0f}" y="38">{_clean(title)}</text>')
        count = f"{counting.counted(len(graph.nodes), 'node')}, {len(numbers)} {style}"
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


class _Side(NamedTuple):
    """One graph as SVG elements."""

    elements: list[str]
    width: float
    height: float


def _side(
    graph: FileGraph,
    style: str,
    numbers: Mapping[int, int],
    changes: Mapping[int, Sequence[str]],
    makers: Mapping[int, str],
    left: float,
) -> _Side:
    kinds = [numbers.get(index, CHANGED if index in changes else SAME) for index in range(len(graph.nodes))]
    if len(graph.nodes) > MOST_NODES:
        boxes_of_nodes, edges = node_placement.collapse(kinds, graph.edges)
        groups = [nodes for _, nodes in boxes_of_nodes]
    else:
        groups, edges = [(index,) for index in range(len(graph.nodes))], tuple(graph.edges)
    if len(groups) > MOST_BOXES:
        text = f'<text class="facts" x="{left:.0f}" y="{HEAD}">{len(groups)} boxes: too many to draw</text>'
        return _Side([text], 300, 20)
    boxes = []
    for nodes in groups:
        kind = kinds[nodes[0]]
        operators = Counter(graph.nodes[index].operator for index in nodes)
        text = ", ".join(f"{name} {count}" if count > 1 else name for name, count in operators.most_common())
        label = graph.nodes[nodes[0]].label if len(nodes) == 1 else counting.counted(len(nodes), "node")
        why = "; ".join(what for index in nodes for what in changes.get(index, ()))
        why = f"{kind} {makers[kind]}".rstrip() if kind in makers else why
        shown = style if kind in makers else "changed" if kind == CHANGED else "same"
        # The CSS class, two lines, and what a pointer on it shows
        boxes.append((shown, _cut(text), _cut(why or label), " · ".join(filter(None, (text, label, why)))))
    widths = {
        index: max(node_placement.CHARACTER * len(head), node_placement.SMALL * len(line), 40.0) + 20.0
        for index, (_, head, line, _) in enumerate(boxes)
    }
    places, ways = node_placement.lay_out(widths, edges)
    size = node_placement.extent(places, ways, widths)
    shift = left - size.left
    elements = [
        f'<path class="edge" d="{line}"/>'
        for line in node_placement.curves(ways, shift, HEAD, LAYER_HEIGHT, BOX_HEIGHT)
    ]
    for place, (middle, layer) in places.items():
        (shown, head, line, tip), width = boxes[place], widths[place]
        x, top = middle + shift, HEAD + layer * LAYER_HEIGHT
        rect = f'x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="7"'
        elements.append(
            f'<g class="{shown}"><title>{_clean(tip)}</title><rect class="box" {rect}/>'
            f'<text class="op" x="{x:.1f}" y="{top + 17:.1f}">{_clean(head)}</text>'
            f'<text class="name" x="{x:.1f}" y="{top + 31:.1f}">{_clean(line)}</text></g>'
        )
    return _Side(elements, size.right - size.left, size.layers * LAYER_HEIGHT)


def _cut(text: str) -> str:
    text = safe_text.visible(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _clean(text: str) -> str:
    return escape(safe_text.visible(text))
