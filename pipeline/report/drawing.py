"""Drawings for the HTML page, as numbers for SVG that the template draws; every one has its label in words.

Latencies of a row and its rounds, latency against cost, accuracy against cost, latency under load, losses of layers,
and the graph of a model with what a provider claims.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from device_runner import safe_text
from pipeline.core import groups as counting
from pipeline.core import providers as provider_rules
from pipeline.partition import answer as claim_answer
from pipeline.partition import placement as node_placement
from pipeline.report import wording
from pipeline.report.accuracies import decibel, higher_is_better, number
from pipeline.report.model import CampaignReport, Row
from pipeline.report.profiles import taken

RowKey = tuple[str, str, str, str]
"""Device, model, variant and run."""

Tick = tuple[float, str]
"""A place on an axis with its text."""

Mark = dict[str, Any]
"""A place (x, y) with its label; `number` is not 0 for what no other beats, in the list below, and for float layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Marks, and a line in SVG's notation that joins what nothing beats, or medians of rounds.

    `label` says the picture in words where the title does not.
    """

    title: str
    marks: tuple[Mark, ...] = ()
    label: str = ""
    line: str = ""
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()

    @property
    def ahead(self) -> tuple[Mark, ...]:
        """What nothing beats, in the order of its numbers; marks in one place are one."""
        numbered = sorted((mark for mark in self.marks if mark["number"]), key=lambda mark: int(mark["number"]))
        places = counting.grouped((mark["number"], mark) for mark in numbered)
        return tuple({**alike[0], "label": "; ".join(mark["label"] for mark in alike)} for alike in places.values())


def log_place(value: float, low: float, high: float) -> float:
    """Where a value stands on a logarithmic axis, from 0 to 1; in the middle where both ends are the same."""
    if high <= low:
        return 0.5
    return math.log(min(max(value, low), high) / low) / math.log(high / low)


def unbeaten(costs: Sequence[tuple[float, float]]) -> list[int]:
    """The places of those that no other beats: of which none is less in one cost and no more in the other."""
    return [
        index for index, (x, y) in enumerate(costs) if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in costs)
    ]


def _median(row: Row) -> float:
    return row.statistics.median_ns if row.statistics else 0.0


# ---- A row of a table: its latencies and its rounds

STRIP_WIDTH, STRIP_HEIGHT = 160, 26
ROUNDS_WIDTH, ROUNDS_HEIGHT = 70, 26
MARGIN = 4
ROUNDS_RANGE = 0.25
"""Rounds are drawn from this share below the row's median to this share above it."""


def axis(rows: Sequence[Row]) -> tuple[int, int]:
    """The ends of a table's axis: the smallest and the largest latency that is drawn in it; zeros where none is.

    It is logarithmic: from zero to an outlier, all others would stand in one place.
    """
    drawn = [latency for row in rows for latency in row.shape.latencies_ns]
    return (max(min(drawn), 1), max(*drawn, 1)) if drawn else (0, 0)


def strip(row: Row, rows: Sequence[Row]) -> Plot | None:
    """Latencies of a row along the axis of the table of `rows`; None where nothing was timed.

    The first tick is the median, the other the baseline's, where there is one.
    """
    ends = axis(rows)
    if row.statistics is None or not row.shape.latencies_ns:
        return None

    def x(nanoseconds: float) -> float:
        return round(MARGIN + log_place(nanoseconds, *ends) * (STRIP_WIDTH - 2 * MARGIN), 1)

    baseline = next((_median(other) for other in rows if other.baseline and other.statistics), None)
    # Equal shares of the inferences on three lines in turn, so that dots close together stay apart.
    lines = (STRIP_HEIGHT / 2, STRIP_HEIGHT / 2 - 6, STRIP_HEIGHT / 2 + 6)
    first, last = row.shape.latencies_ns[0], row.shape.latencies_ns[-1]
    dots = ((x(latency), lines[index % 3]) for index, latency in enumerate(row.shape.latencies_ns))
    return Plot(
        title=f"median {wording.duration(row.statistics.median_ns)}, "
        f"19 of 20 inferences between {wording.duration(first)} and {wording.duration(last)}",
        marks=tuple({"x": along, "y": up} for along, up in dots),
        x_ticks=(
            (x(row.statistics.median_ns), "median"),
            *([] if baseline is None else [(x(baseline), "baseline")]),
        ),
    )


def rounds_line(row: Row) -> Plot | None:
    """How the medians of a row's rounds went, with a mark at the last, up is slower; None with fewer than two."""
    medians = row.statistics.round_medians_ns if row.statistics else ()
    if row.statistics is None or len(medians) < 2:
        return None
    step = (ROUNDS_WIDTH - 2 * MARGIN) / (len(medians) - 1)
    points = []
    for index, median in enumerate(medians):
        above = min(max((median / max(row.statistics.median_ns, 1) - 1) / ROUNDS_RANGE, -1.0), 1.0)
        y = round(ROUNDS_HEIGHT / 2 - above * (ROUNDS_HEIGHT / 2 - MARGIN), 1)
        points.append((round(MARGIN + index * step, 1), y))
    return Plot(
        title=f"medians of {len(medians)} rounds: " + ", ".join(wording.duration(median) for median in medians),
        marks=({"x": points[-1][0], "y": points[-1][1]},),
        line=" ".join(f"{x},{y}" for x, y in points),
    )


# ---- A table: latency against cost

WIDTH, HEIGHT = 560, 220
RIGHT, TOP, BOTTOM = 14, 10, 28
COST_LEFT, INSET = 84, 12
"""Left edge of plots whose axis of costs has its texts beside it, and how far inside its frame points stand."""
SMALLEST_SPAN = 1.2
"""Factor that an axis of such a plot spans at least: costs that differ by a few per cent look alike, as they are."""
TICKS = (1, 1.5, 2, 3, 5, 7)
"""Steps of a logarithmic axis within a factor of ten; of those inside, at most MOST_TICKS are marked."""
MOST_TICKS = 6


def ticks(low: float, high: float) -> list[float]:
    """Round values between two, at most MOST_TICKS of them; both ends where none is."""
    values, power = [], 1.0
    while power <= high:
        values += [power * step for step in TICKS if low <= power * step <= high]
        power *= 10
    return values[:: -(-len(values) // MOST_TICKS)] if len(values) > 1 else [low, high]


COSTS: tuple[tuple[str, Callable[[Row], int]], ...] = (
    ("size", lambda row: row.size_bytes),
    ("peak memory", lambda row: row.memory_peak_bytes),
)
"""What latency is drawn against; accuracy has a drawing of its own."""


def scatters(rows: Sequence[Row]) -> tuple[Plot, ...]:
    """The pictures of one table; none with fewer than three timed rows, or where a cost is the same everywhere."""
    timed_rows = [row for row in rows if row.statistics and not row.same_as]
    drawn = [(name, cost, [row for row in timed_rows if cost(row)]) for name, cost in COSTS]
    return tuple(
        _scatter(name, cost, group) for name, cost, group in drawn if len(group) > 2 and len(set(map(cost, group))) > 1
    )


def _scatter(name: str, cost: Callable[[Row], int], rows: Sequence[Row]) -> Plot:
    """Median latency along, a cost up (less is lower), both logarithmic."""
    values = [(max(_median(row), 1.0), float(cost(row))) for row in rows]
    spans = []  # the ends of each axis: those of the values, or around their middle where these lie close together
    for ends in zip(*values, strict=True):
        low, high = min(ends), max(ends)
        if high / low < SMALLEST_SPAN:
            middle = math.sqrt(low * high)
            low, high = middle / math.sqrt(SMALLEST_SPAN), middle * math.sqrt(SMALLEST_SPAN)
        spans.append((low, high))
    along, up = spans

    def x(value: float) -> float:
        return round(COST_LEFT + INSET + log_place(value, *along) * (WIDTH - COST_LEFT - RIGHT - 2 * INSET), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - INSET - log_place(value, *up) * (HEIGHT - TOP - BOTTOM - 2 * INSET), 1)

    ahead = sorted(unbeaten(values), key=lambda place: values[place])
    points = [(x(median), y(worth)) for median, worth in values]
    steps = ["{},{}".format(*points[ahead[0]])]
    steps += [f"{points[b][0]},{points[a][1]} {points[b][0]},{points[b][1]}" for a, b in pairwise(ahead)]
    return Plot(
        title=f"Latency against {name}: down and left is better, the line joins what nothing beats",
        marks=tuple(
            {
                "x": point[0],
                "y": point[1],
                "label": f"{row.variant} {row.run}: {wording.duration(_median(row))}, {wording.size(cost(row))}",
                "number": ahead.index(index) + 1 if index in ahead else 0,
            }
            for index, (row, point) in enumerate(zip(rows, points, strict=True))
        ),
        line=" ".join(steps),
        x_ticks=tuple((x(value), wording.duration(value)) for value in ticks(*along)),
        y_ticks=tuple((y(value), wording.size(round(value))) for value in up),
    )


# ---- A model: latency under load, accuracy against cost, losses of layers

FRONT_WIDTH, FRONT_HEIGHT, FRONT_MARGIN = 480, 200, 64
FRONT_TOP, FRONT_SPAN, FRONT_FOOT = 24, 130, 176
"""Where the best accuracy stands, how far below it the worst, and the axis of costs."""
BARS_HEIGHT = 120
BEST_DB = 60.0
"""Layers that alone leave this much signal to noise cost nothing that could be seen: their bars have no height."""


def curves(report: CampaignReport) -> tuple[Plot, ...]:
    """Median latency over the time of each sustained run, from 0 up.

    Ticks along are the end and, where latency began to rise, that moment; ticks up are the top and the first latency.
    """
    plots = []
    for run in report.modes:
        numbers = run.sustained
        if numbers is None or not numbers.curve:
            continue
        most, end = max(*(median_ns for _, median_ns in numbers.curve), 1), max(numbers.length_ns, 1)
        began = numbers.throttled_after_ns
        moments = [end, *(start_ns for start_ns, _ in numbers.curve), *([] if began is None else [began])]
        x = {ns: round(FRONT_MARGIN + ns / end * (FRONT_WIDTH - FRONT_MARGIN), 1) for ns in moments}
        medians = [numbers.fresh_ns, *(median_ns for _, median_ns in numbers.curve)]
        y = {ns: round((FRONT_HEIGHT - FRONT_MARGIN) * (1 - ns / most), 1) for ns in medians}
        slower = "" if began is None else f", slower from {began / 1e9:.1f} s on (dashes)"
        title = f"{run.model} on {run.device}, {run.variant} {run.run}: median latency over time, from 0 up{slower}"
        plots.append(
            Plot(
                title=title,
                line=" ".join(f"{x[start_ns]},{y[median_ns]}" for start_ns, median_ns in numbers.curve),
                x_ticks=((x[end], f"{end / 1e9:.0f} s"), *([] if began is None else [(x[began], "slower")])),
                y_ticks=((0.0, wording.duration(most)), (y[numbers.fresh_ns], "fresh")),
                label=f"fresh {wording.duration(numbers.fresh_ns)}, late {wording.duration(numbers.late_ns)}{slower}",
            )
        )
    return tuple(plots)


def fronts(report: CampaignReport) -> tuple[Plot, ...]:
    """One drawing for each model with accuracy of at least two artifacts, its own precision among them.

    Accuracy (up is better) against median latency, or size where nothing was measured. Costs are drawn from 0 to the
    last tick along, accuracy from the second tick up to the first.
    """
    plots = []
    for model, group in counting.grouped((accuracy.model, accuracy) for accuracy in report.accuracy).items():
        results = {accuracy.variant: accuracy.result for accuracy in group if accuracy.result}
        first = next(iter(results.values()), None)
        artifacts = [artifact for artifact in report.artifacts if artifact.model == model]
        floats = [artifact.variant.name for artifact in artifacts if not artifact.variant.precision]
        values = dict.fromkeys(floats, first.reference_value if first else None)
        values |= {name: result.value for name, result in results.items()}
        accuracy = {name: value for name, value in values.items() if value is not None}
        rows_slowest_first = sorted(report.rows, key=lambda row: -_median(row))
        medians = {
            row.variant: row.statistics.median_ns
            for row in rows_slowest_first
            if row.model == model and row.statistics and row.variant in accuracy
        }
        sizes = {a.variant.name: a.size_bytes for a in artifacts if a.variant.name in accuracy}
        costs: dict[str, float] = dict(medians or sizes)
        if first is None or len({accuracy[name] for name in costs} | {costs[name] for name in costs}) < 3:
            continue
        show = wording.duration if medians else wording.size
        sign = 1 if higher_is_better(first.metric) else -1
        worth = [sign * accuracy[name] for name in costs]
        most, low, high = max(costs.values()), min(worth), max(worth)
        points = [
            (
                round(FRONT_MARGIN + cost / most * (FRONT_WIDTH - FRONT_MARGIN - 8), 1),
                round(FRONT_TOP + (high - value) / ((high - low) or 1) * FRONT_SPAN, 1),
            )
            for cost, value in zip(costs.values(), worth, strict=True)
        ]
        best = unbeaten([(cost, -value) for cost, value in zip(costs.values(), worth, strict=True)])
        ahead = list(dict.fromkeys(sorted((points[index] for index in best), key=lambda point: point[0])))
        drawn = sorted((accuracy[name] for name in costs), reverse=sign > 0)
        cost_name = "median latency" if medians else "size"
        plots.append(
            Plot(
                title=f"{model}: {first.metric} against {cost_name}; the line joins the best",
                marks=tuple(
                    {
                        "x": points[index][0],
                        "y": points[index][1],
                        "label": f"{name}: {number(first, accuracy[name])} at {show(int(cost))}",
                        "number": ahead.index(points[index]) + 1 if index in best else 0,
                    }
                    for index, (name, cost) in enumerate(costs.items())
                ),
                line=" ".join(f"{x},{y}" for x, y in ahead),
                x_ticks=((FRONT_WIDTH, show(int(most))),),
                y_ticks=((FRONT_TOP, number(first, drawn[0])), (FRONT_TOP + FRONT_SPAN, number(first, drawn[-1]))),
            )
        )
    return tuple(plots)


def loss_bars(report: CampaignReport) -> tuple[Plot, ...]:
    """One drawing for each search that measured layers: a bar for each, worst first, whose noise is the tick."""
    plots = []
    for search in report.searches:
        layers = search.search.layers
        marks = tuple(
            {
                "x": round(index * FRONT_WIDTH / len(layers), 1),
                "y": round(BARS_HEIGHT * min(max(loss.sqnr_db / BEST_DB, 0.0), 1.0), 1),
                "label": f"{loss.nodes[0]} ({loss.op_type}, {len(loss.nodes)}): {loss.sqnr_db:.1f} dB",
                "number": int(set(loss.nodes) <= set(search.search.best.nodes)),
            }
            for index, loss in enumerate(layers)
        )
        if marks:
            title = f"{search.model} in {search.precision}: noise of each layer alone, worst first"
            worst = (0.0, decibel(layers[0].sqnr_db))
            plots.append(Plot(title=f"{title}; those in full color stay float", marks=marks, y_ticks=(worst,)))
    return tuple(plots)


# ---- The graph of a model

MOST_BOXES = 300
"""Boxes on one page, shared by its graphs in their order: one that is cut into more is as unreadable as all nodes."""

MOST_NAMES = 1_500
"""Names of nodes on one page, shared by its graphs; the JSON documents have all."""

MOST_REASONS, MOST_TIPS, MOST_MEASURED = 12, 4, 4
NAME_LENGTH, LINE_LENGTH, TIP_LENGTH = 72, 30, 100
CHARACTER, BOX_HEIGHT, LAYER_HEIGHT, GRAPH_MARGIN = 6.9, 42, 66, 12
GRAPH_COLOURS = 10
"""Fills of partitions in turn: g0 to g9 in graph.css."""


GraphDrawing = dict[str, Any]
"""What graph.html reads of one placement; see `draw_graph`."""


def draw_graph(
    placement: node_placement.Placement,
    anchor: str,
    *,
    facts: Sequence[str] = (),
    most_boxes: int = MOST_BOXES,
    names: int = MOST_NAMES,
) -> GraphDrawing:
    """The drawing of a placement; `facts` follow what was predicted, `names` is how many nodes are named at most.

    `lines` is one SVG path of all edges. A graph of more than `most_boxes` is not drawn: it has no boxes, and only the
    table of reasons is shown.
    A box has its corner and size in pixels, what stands in it, `tip`, which says all of it in words, and its nodes: of
    each operator those that are claimed, or refused for the same reason, by their name as it is shown, and the whole
    where that is longer; `more` are not named.
    A reason has the number of nodes that are refused for it, their operators, the reason (with an example where it
    names nodes or shapes) and the remedy.
    """
    total = len(placement.nodes)
    groups, edges = node_placement.collapse(
        placement.kinds, [(a, b) for b, node in enumerate(placement.nodes) for a in node.inputs]
    )
    drawn = len(groups) <= most_boxes
    texts = []  # the two lines of each box
    for kind, nodes in groups if drawn else ():
        kernels = f"{placement.title} kernels" if kind == node_placement.KERNEL_KIND else "CPU"
        head = f"Partition {kind + 1}" if kind >= 0 else kernels
        line = _begun(_operators(nodes, placement.nodes), LINE_LENGTH)
        texts.append((f"{head} · {counting.counted(len(nodes), 'node')}", line))
    widths = {index: CHARACTER * max(map(len, pair)) + 22 for index, pair in enumerate(texts)}
    places, ways = node_placement.lay_out(widths, edges if drawn else ())
    size = node_placement.extent(places, ways, widths)
    shift = GRAPH_MARGIN - size.left
    count = f"{len(groups)} box{'es' * (len(groups) != 1)}"
    boxes = []
    for index, (head, line) in enumerate(texts):
        kind, nodes = groups[index]
        alike = list(_alike(nodes, placement, min(1.0, names / max(1, total))))
        refused = [kind_of_node for kind_of_node in alike if kind_of_node["reason"]][:MOST_TIPS]
        tips = (_begun("{count} {operator}: {reason}".format(**kind_of_node), TIP_LENGTH) for kind_of_node in refused)
        x, width = round(places[index][0] + shift - widths[index] / 2, 1), round(widths[index], 1)
        boxes.append(
            {
                "id": f"{anchor}-{index}",
                "x": x,
                "y": round(places[index][1] * LAYER_HEIGHT + GRAPH_MARGIN, 1),
                "width": width,
                "middle": round(x + width / 2, 1),
                "style": "cpu" if kind == node_placement.CPU_KIND else f"claimed g{max(kind, 0) % GRAPH_COLOURS}",
                "head": head,
                "line": line,
                "tip": "; ".join((f"{head}: {_operators(nodes, placement.nodes)}", *tips)),
                "alike": alike,
            }
        )
    reasons = _reasons(placement)
    # As in `Predicted for all-fixed on adb:A: 3 of 4 nodes (75 %) in 2 partitions, by the rules of 1.29`
    inside = (
        ""
        if node_placement.KERNEL_KIND in placement.kinds
        else f" in {counting.counted(placement.partitions, 'partition')}"
    )
    about = "".join(f" {word} {text}" for word, text in (("for", placement.variant), ("on", placement.device)) if text)
    claimed = (
        f"{placement.claimed} of {counting.counted(total, 'node')} "
        f"({claim_answer.percent_of(placement.claimed, total)} %)"
    )
    predicted = f"Predicted{about}: {claimed}{inside}, ONNX Runtime {placement.release}"
    return {
        "id": anchor,
        "title": f"{placement.model} with {placement.title}",
        "facts": (predicted, *facts, *([] if drawn else [f"Not drawn here: it has {count}"])),
        "label": f"Graph of {placement.model}: {counting.counted(len(placement.nodes), 'node')} in {count}",
        "width": round(size.right - size.left + 2 * GRAPH_MARGIN),
        "height": size.layers * LAYER_HEIGHT - (LAYER_HEIGHT - BOX_HEIGHT) + 2 * GRAPH_MARGIN,
        "lines": " ".join(node_placement.curves(ways, shift, GRAPH_MARGIN, LAYER_HEIGHT, BOX_HEIGHT)),
        "boxes": tuple(boxes),
        "reasons": tuple(reasons[:MOST_REASONS]),
        "more_reasons": max(0, len(reasons) - MOST_REASONS),
    }


def _reasons(placement: node_placement.Placement) -> list[tuple[int, str, str, str]]:
    """Why nodes are refused, the commonest reason first; those that differ in names and shapes alone are one."""
    reasons = []
    why_not = [(node, placement.reasons[node.reason]) for node in placement.nodes if node.reason is not None]
    by_reason = counting.grouped(
        ((claim_answer.same_reason(why.what), why.remedy), (node, why.reason)) for node, why in why_not
    )
    for (_, remedy), group in sorted(by_reason.items(), key=lambda pair: -len(pair[1])):
        operators = ", ".join(name for name, _ in Counter(node.operator for node, _ in group).most_common())
        first, *others = dict.fromkeys(reason for _, reason in group)
        reasons.append((len(group), operators, f"for example {first}" if others else first, remedy))
    return reasons


def _operators(places: Sequence[int], nodes: Sequence[node_placement.PlacedNode]) -> str:
    """As in `Conv 3, Relu 2`, the commonest first."""
    counts = Counter(nodes[place].operator for place in places)
    return ", ".join(f"{name} {count}" if count > 1 else name for name, count in counts.most_common())


def _begun(text: str, length: int) -> str:
    text = safe_text.visible(text)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _cut(text: str) -> tuple[str, str]:
    """A name as it is shown, and the whole where that is longer: it loses its middle, as the ends of names differ."""
    text = safe_text.visible(text)
    if len(text) <= NAME_LENGTH:
        return text, ""
    return f"{text[: NAME_LENGTH // 3]}…{text[-(NAME_LENGTH - NAME_LENGTH // 3 - 1) :]}", text


def _alike(places: Sequence[int], placement: node_placement.Placement, named: float) -> Iterator[dict[str, Any]]:
    """The nodes of a box by operator and reason, in the order of the first; at least one of each is named."""
    members = (placement.nodes[place] for place in places)
    for (operator, reason), nodes in counting.grouped(((node.operator, node.reason), node) for node in members).items():
        shown = nodes[: max(1, int(named * len(nodes)))]
        why = node_placement.ClaimReason(what="") if reason is None else placement.reasons[reason]
        yield {
            "operator": _cut(operator)[0],
            "count": len(nodes),
            "names": [_cut(node.name) for node in shown if node.name],
            "more": len(nodes) - len(shown),
            "reason": why.what,
            "remedy": why.remedy,
        }


def graphs(report: CampaignReport) -> tuple[GraphDrawing, ...]:
    """The drawings of a campaign: what was predicted, and what providers took where a profile run says so."""
    facts = []
    for placement in report.placements:
        # As in `Measured for all-fixed nnapi on adb:A: 3 of 4 nodes in 2 partitions`; of other variants too
        rules, variant = provider_rules.PROVIDER_RULES.get(placement.provider), placement.variant
        graph = (placement.model, rules.provider if rules else "")
        alike = [
            profile
            for profile in report.profiles
            if rules and (profile.model, profile.provider) == graph and taken(profile)
        ]
        ordered = [profile for profile in alike if profile.variant == variant] + [
            profile for profile in alike if profile.variant != variant
        ]
        texts = (
            f"Measured for {profile.variant} {profile.run} on {profile.device}: {taken(profile)}" for profile in ordered
        )
        facts.append(tuple(dict.fromkeys(itertools.islice(texts, MOST_MEASURED))))
    return drawings(report.placements, facts)


def draw_answers(answers: Sequence[claim_answer.ModelAnswer]) -> tuple[GraphDrawing, ...]:
    """The drawings of answers that have no error."""
    placements, facts = [], []
    for answer in (answer for answer in answers if not answer.error):
        texts = []
        if answer.load and answer.load.error:
            texts.append(f"It {answer.load.what}: {answer.load.error}")
        if answer.fixed:
            sizes = ", ".join(f"{name}={size}" for name, size in answer.fixed.sizes.items())
            claimed = f"{answer.fixed.claimed} of {counting.counted(answer.fixed.nodes, 'node')}"
            texts.append(f"Dimensions are dynamic ({', '.join(answer.dynamic)}): with {sizes} it would be {claimed}")
        texts += [warning.rstrip(".") for warning in answer.warnings]
        placements.append(node_placement.placement_of(answer, model=PurePath(answer.path.replace("\\", "/")).name))
        facts.append(tuple(texts))
    return drawings(placements, facts)


def drawings(
    placements: Sequence[node_placement.Placement], facts: Sequence[Sequence[str]]
) -> tuple[GraphDrawing, ...]:
    """The drawings of one page, each with facts of its own; together they keep to the bounds of a page."""
    page: list[GraphDrawing] = []
    names = MOST_NAMES // max(1, len(placements))
    for index, (placement, texts) in enumerate(zip(placements, facts, strict=True), 1):
        left = MOST_BOXES - sum(len(drawing["boxes"]) for drawing in page)
        page.append(draw_graph(placement, f"graph-{index}", facts=texts, most_boxes=left, names=names))
    return tuple(page)
