"""A model's graph as SVG: nodes in layers, partitions in colour, refused nodes with their reason."""

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from pipeline.partition.answer import Decision, ModelAnswer
from pipeline.partition.graph_layout import GraphLayout, curves, extent, lay_out

COLOURS = (
    "#2563a8", "#bb5217", "#2f7d4f", "#7b4fa3", "#a8324a", "#0e7c86", "#8a6d1b", "#5b5fc7", "#a3458f", "#4d6b2f",
)  # fmt: skip
"""Fills of partitions in turn: dark enough for white text (contrast 4.5 and more), which differ in brightness too."""

BOX_HEIGHT, LAYER_HEIGHT, MARGIN, HEAD = 40, 74, 40, 96
CHARACTER, SMALL = 7.6, 5.6
"""Widths of a character of the two font sizes, in pixels."""

MOST_CHARACTERS = 44
STYLE = """
text { font-family: 'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif; }
.title { font-size: 18px; font-weight: bold; fill: #1b1f24; }
.facts { font-size: 13px; fill: #4a525c; }
.op { font-size: 12.5px; font-weight: bold; text-anchor: middle; }
.name, .why { font-size: 9.5px; text-anchor: middle; }
.claimed .op { fill: #ffffff; } .claimed .name { fill: #ffffff; fill-opacity: .85; }
.refused rect { fill: #fff7f5; stroke: #c0392b; stroke-width: 1.4; stroke-dasharray: 5 3; }
.refused .op { fill: #8e2a1e; } .refused .why { fill: #b03a2e; }
.edge { fill: none; stroke: #98a2ad; stroke-width: 1.3; }
"""


def draw(answer: ModelAnswer) -> str:
    """The picture as an SVG document. Sizes are pixels; hovering over a node shows its whole name and reason."""
    boxes = dict(enumerate(answer.decisions))
    widths = {key: _width(decision) for key, decision in boxes.items()}
    layout = lay_out(widths, _edges(answer.decisions))
    left, right = extent(layout, widths)
    width = max(right - left, 560.0) + 2 * MARGIN
    height = HEAD + layout.layers * LAYER_HEIGHT + MARGIN
    shift = MARGIN - left + (width - 2 * MARGIN - (right - left)) / 2
    lines = (f'<path class="edge" d="{line}"/>' for line in curves(layout, shift, HEAD, LAYER_HEIGHT, BOX_HEIGHT))
    parts = [*_header(answer), *lines, *_nodes(answer, layout, shift)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _edges(decisions: Sequence[Decision]) -> list[tuple[int, int]]:
    producer = {name: key for key, decision in enumerate(decisions) for name in decision.outputs if name}
    found: dict[tuple[int, int], None] = {}
    for key, decision in enumerate(decisions):
        for name in decision.inputs:
            if name in producer:
                found[producer[name], key] = None
    return list(found)


def _clean(text: str) -> str:
    """Text that XML can hold: control characters, which names may have, become escapes."""
    return escape("".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text))


def _short(text: str) -> str:
    return (
        text
        if len(text) <= MOST_CHARACTERS
        else f"{text[: MOST_CHARACTERS // 2]}…{text[-(MOST_CHARACTERS // 2) + 1 :]}"
    )


def _second_line(decision: Decision) -> str:
    if decision.claimed:
        return _short(next((name for name in decision.outputs if name), ""))
    reason = decision.reason or ""
    return reason if len(reason) <= MOST_CHARACTERS + 12 else f"{reason[: MOST_CHARACTERS + 11]}…"


def _width(decision: Decision) -> float:
    return max(CHARACTER * len(decision.op_type), SMALL * len(_second_line(decision)), 40.0) + 20.0


def _header(answer: ModelAnswer) -> Iterator[str]:
    share = answer.claimed / answer.nodes if answer.nodes else 0.0
    name = answer.path.replace("\\", "/").rsplit("/", 1)[-1]
    yield f'<text class="title" x="{MARGIN}" y="38">{_clean(name)}</text>'
    facts = (
        f"{answer.ep}, ONNX Runtime {answer.release_text}: {answer.claimed} of {answer.nodes} nodes ({share:.0%}) "
        f"in {len(answer.partitions)} partition{'' if len(answer.partitions) == 1 else 's'}"
    )
    yield f'<text class="facts" x="{MARGIN}" y="60">{_clean(facts)}</text>'
    for place, group in enumerate(answer.partitions[: len(COLOURS)]):
        x = MARGIN + place * 52
        yield f'<rect x="{x}" y="70" width="14" height="14" rx="3" fill="{COLOURS[place]}"/>'
        yield f'<text class="facts" x="{x + 19}" y="82">{len(group)}</text>'


def _nodes(answer: ModelAnswer, layout: GraphLayout, shift: float) -> Iterator[str]:
    for key, decision in enumerate(answer.decisions):
        x, layer = layout.places[key]
        yield _node(decision, x + shift, HEAD + layer * LAYER_HEIGHT + BOX_HEIGHT / 2)


def _node(decision: Decision, x: float, y: float) -> str:
    width = _width(decision)
    fill = f' fill="{COLOURS[(decision.partition or 0) % len(COLOURS)]}"' if decision.claimed else ""
    left, top = x - width / 2, y - BOX_HEIGHT / 2
    box = f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="7"{fill}/>'
    texts = [decision.op_type, *decision.outputs, decision.reason or "", decision.remedy or ""]
    title = _clean(" · ".join(text for text in texts if text))
    second = "name" if decision.claimed else "why"
    return (
        f'<g class="{"claimed" if decision.claimed else "refused"}"><title>{title}</title>{box}'
        f'<text class="op" x="{x:.1f}" y="{y - 3:.1f}">{_clean(decision.op_type)}</text>'
        f'<text class="{second}" x="{x:.1f}" y="{y + 11:.1f}">{_clean(_second_line(decision))}</text></g>'
    )
