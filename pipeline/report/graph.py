"""The graph of a model with a box for each partition and each run of other nodes: values for the page's templates.

A box leads to the list of its nodes with reasons, which opens without a script where it is led to. Positions are
computed here, so that a page with 2,000 nodes has nothing to lay out.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pipeline.core.groups import counted, grouped
from pipeline.core.providers import PROVIDER_RULES
from pipeline.partition.answer import ModelAnswer, percent_of
from pipeline.partition.placement import (
    CPU_KIND,
    KERNEL_KIND,
    ClaimReason,
    NodeGroup,
    PlacedNode,
    Placement,
    collapse,
    curves,
    extent,
    lay_out,
    placement_of,
    same_reason,
)
from pipeline.report.model import CampaignReport
from pipeline.report.profiles import taken
from pipeline.report.wording import visible

MOST_BOXES = 300
"""Boxes on one page, shared by its graphs in their order: one that is cut into more is as unreadable as all nodes."""

MOST_NAMES = 1_500
"""Names of nodes on one page, shared by its graphs; the JSON documents have all."""

MOST_REASONS, MOST_TIPS, MOST_MEASURED = 12, 4, 4
NAME_LENGTH, LINE_LENGTH, TIP_LENGTH = 72, 30, 100
CHARACTER, BOX_HEIGHT, LAYER_HEIGHT, MARGIN = 6.9, 42, 66, 12
COLOURS = 10
"""Fills of partitions in turn: g0 to g9 in graph.css."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeNodes:
    """Nodes of an operator in a box that are claimed, or refused for the same reason; `more` are not named.

    A name is as it is shown, and the whole where that is longer.
    """

    operator: str
    count: int
    names: tuple[tuple[str, str], ...]
    more: int = 0
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBox:
    """A box: its corner and size in pixels, what stands in it, and its nodes; `tip` says all of it in words."""

    id: str
    x: float
    y: float
    width: float
    style: str
    head: str
    line: str
    tip: str
    alike: tuple[AlikeNodes, ...]

    @property
    def middle(self) -> float:
        """Where its texts are centred."""
        return round(self.x + self.width / 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDrawing:
    """A drawing of one placement. `lines` is one SVG path of all edges; without boxes only the table is shown.

    A reason has the number of nodes that are refused for it, their operators, the reason (with an example where it
    names nodes or shapes) and the remedy.
    """

    id: str
    title: str
    facts: tuple[str, ...]
    label: str
    width: int
    height: int
    lines: str
    boxes: tuple[GraphBox, ...]
    reasons: tuple[tuple[int, str, str, str], ...]
    more_reasons: int


def draw_graph(
    placement: Placement,
    anchor: str,
    *,
    facts: Sequence[str] = (),
    most_boxes: int = MOST_BOXES,
    names: int = MOST_NAMES,
) -> GraphDrawing:
    """The drawing of a placement; `facts` follow what was predicted, `names` is how many nodes are named at most.

    A graph of more than `most_boxes` is not drawn.
    """
    collapsed = collapse(placement.kinds, [(a, b) for b, node in enumerate(placement.nodes) for a in node.inputs])
    drawn = len(collapsed.groups) <= most_boxes
    texts = list(_texts(collapsed.groups, placement)) if drawn else []
    widths = {place: CHARACTER * max(map(len, pair)) + 22 for place, pair in enumerate(texts)}
    layout = lay_out(widths, collapsed.edges if drawn else ())
    left, right = extent(layout, widths)
    shift = MARGIN - left
    count = f"{len(collapsed.groups)} box{'es' * (len(collapsed.groups) != 1)}"
    reasons = list(_refused(placement))
    return GraphDrawing(
        id=anchor,
        title=f"{placement.model} with {placement.title}",
        facts=(_predicted(placement), *facts, *([] if drawn else [f"Not drawn here: it has {count}"])),
        label=f"Graph of {placement.model}: {counted(len(placement.nodes), 'node')} in {count}",
        width=round(right - left + 2 * MARGIN),
        height=layout.layers * LAYER_HEIGHT - (LAYER_HEIGHT - BOX_HEIGHT) + 2 * MARGIN,
        lines=" ".join(curves(layout, shift, MARGIN, LAYER_HEIGHT, BOX_HEIGHT)),
        boxes=tuple(
            _box(
                f"{anchor}-{place}", placement, collapsed.groups[place], text,
                x=layout.places[place][0] + shift - widths[place] / 2,
                y=layout.places[place][1] * LAYER_HEIGHT + MARGIN,
                width=widths[place],
                named=min(1.0, names / max(1, len(placement.nodes))),
            )
            for place, text in enumerate(texts)
        ),
        reasons=tuple(reasons[:MOST_REASONS]),
        more_reasons=max(0, len(reasons) - MOST_REASONS),
    )  # fmt: skip


def _predicted(placement: Placement) -> str:
    """As in `Predicted for all-fixed on adb:A: 3 of 4 nodes (75 %) in 2 partitions, by the rules of 1.29`."""
    count = len(placement.nodes)
    kernels = KERNEL_KIND in placement.kinds
    groups = "" if kernels else f" in {counted(placement.partitions, 'partition')}"
    about = "".join(f" {word} {text}" for word, text in (("for", placement.variant), ("on", placement.device)) if text)
    claimed = f"{placement.claimed} of {counted(count, 'node')} ({percent_of(placement.claimed, count)} %)"
    return f"Predicted{about}: {claimed}{groups}, ONNX Runtime {placement.release}"


def _texts(groups: Sequence[NodeGroup], placement: Placement) -> Iterator[tuple[str, str]]:
    """The two lines of each box."""
    for group in groups:
        kernels = f"{placement.title} kernels" if group.kind == KERNEL_KIND else "CPU"
        head = f"Partition {group.kind + 1}" if group.kind >= 0 else kernels
        yield f"{head} · {counted(len(group.nodes), 'node')}", _begun(_operators(group, placement.nodes), LINE_LENGTH)


def _operators(group: NodeGroup, nodes: Sequence[PlacedNode]) -> str:
    """As in `Conv 3, Relu 2`, the commonest first."""
    counts = Counter(nodes[place].operator for place in group.nodes)
    return ", ".join(f"{name} {count}" if count > 1 else name for name, count in counts.most_common())


def _begun(text: str, length: int) -> str:
    text = visible(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _cut(text: str) -> tuple[str, str]:
    """A name as it is shown, and the whole where that is longer: it loses its middle, as the ends of names differ."""
    text = visible(text)
    if len(text) <= NAME_LENGTH:
        return text, ""
    return f"{text[: NAME_LENGTH // 3]}…{text[-(NAME_LENGTH - NAME_LENGTH // 3 - 1) :]}", text


def _box(
    anchor: str,
    placement: Placement,
    group: NodeGroup,
    texts: tuple[str, str],
    *,
    x: float,
    y: float,
    width: float,
    named: float,
) -> GraphBox:
    alike = tuple(_alike(group, placement, named))
    refused = [nodes for nodes in alike if nodes.reason][:MOST_TIPS]
    reasons = (_begun(f"{nodes.count} {nodes.operator}: {nodes.reason}", TIP_LENGTH) for nodes in refused)
    return GraphBox(
        id=anchor,
        x=round(x, 1),
        y=round(y, 1),
        width=round(width, 1),
        style="cpu" if group.kind == CPU_KIND else f"claimed g{max(group.kind, 0) % COLOURS}",
        head=texts[0],
        line=texts[1],
        tip="; ".join((f"{texts[0]}: {_operators(group, placement.nodes)}", *reasons)),
        alike=alike,
    )


def _alike(group: NodeGroup, placement: Placement, named: float) -> Iterator[AlikeNodes]:
    """The nodes of a box by operator and reason, in the order of the first; at least one of each is named."""
    placed = (placement.nodes[place] for place in group.nodes)
    for (operator, reason), nodes in grouped(((node.operator, node.reason), node) for node in placed).items():
        shown = nodes[: max(1, int(named * len(nodes)))]
        why = ClaimReason(reason="") if reason is None else placement.reasons[reason]
        yield AlikeNodes(
            operator=_cut(operator)[0],
            count=len(nodes),
            names=tuple(_cut(node.name) for node in shown if node.name),
            more=len(nodes) - len(shown),
            reason=why.reason,
            remedy=why.remedy,
        )


def _refused(placement: Placement) -> Iterator[tuple[int, str, str, str]]:
    """Why nodes are refused, the commonest reason first; those that differ in names and shapes alone are one."""
    nodes = [(node, placement.reasons[node.reason]) for node in placement.nodes if node.reason is not None]
    alike = grouped(((same_reason(why.reason), why.remedy), (node, why.reason)) for node, why in nodes)
    for (_, remedy), group in sorted(alike.items(), key=lambda item: -len(item[1])):
        operators = ", ".join(name for name, _ in Counter(node.operator for node, _ in group).most_common())
        first, *others = dict.fromkeys(reason for _, reason in group)
        yield len(group), operators, f"for example {first}" if others else first, remedy


def graphs(report: CampaignReport) -> tuple[GraphDrawing, ...]:
    """The drawings of a campaign: what was predicted, and what providers took where a profile run says so."""
    placements = report.placements
    return drawings(placements, [tuple(_measured(placement, report)) for placement in placements])


def draw_answers(answers: Sequence[ModelAnswer]) -> tuple[GraphDrawing, ...]:
    """The drawings of answers that have no error."""
    good = [answer for answer in answers if not answer.error]
    names = [PurePath(answer.path.replace("\\", "/")).name for answer in good]
    placements = [placement_of(answer, model=name) for answer, name in zip(good, names, strict=True)]
    return drawings(placements, [tuple(_facts(answer)) for answer in good])


def _facts(answer: ModelAnswer) -> Iterator[str]:
    if answer.load and answer.load.error:
        yield f"It does not load on the phone: {answer.load.error}"
    if answer.fixed:
        sizes = ", ".join(f"{name}={size}" for name, size in answer.fixed.sizes.items())
        claimed = f"{answer.fixed.claimed} of {counted(answer.fixed.nodes, 'node')}"
        yield f"Dimensions are dynamic ({', '.join(answer.dynamic)}): with {sizes} it would be {claimed}"
    yield from (warning.rstrip(".") for warning in answer.warnings)


def drawings(placements: Sequence[Placement], facts: Sequence[Sequence[str]]) -> tuple[GraphDrawing, ...]:
    """The drawings of one page, each with facts of its own; together they keep to the bounds of a page."""
    page: list[GraphDrawing] = []
    names = MOST_NAMES // max(1, len(placements))
    for number, (placement, texts) in enumerate(zip(placements, facts, strict=True), 1):
        left = MOST_BOXES - sum(len(drawing.boxes) for drawing in page)
        page.append(draw_graph(placement, f"graph-{number}", facts=texts, most_boxes=left, names=names))
    return tuple(page)


def _measured(placement: Placement, report: CampaignReport) -> Iterator[str]:
    """As in `Measured for all-fixed nnapi on adb:A: 3 of 4 nodes in 2 partitions`; of other variants too."""
    rules = PROVIDER_RULES.get(placement.provider)
    same = [row for row in report.profiles if rules and (row.model, row.provider) == (placement.model, rules.provider)]
    same.sort(key=lambda row: row.variant != placement.variant)
    texts = (f"Measured for {row.variant} {row.run} on {row.device}: {taken(row)}" for row in same if taken(row))
    yield from dict.fromkeys(itertools.islice(texts, MOST_MEASURED))
