"""Where the nodes of a graph run: as plain data for reports, with one box for many nodes, and drawn as SVG.

With boxes, a partition is one, and so is each run of connected nodes that no partition has. A run that joins what a
partition separates would make a circle with it: it is split there.

The layers of a drawing are Sugiyama's method: layers by longest path, dummy points for edges over several layers, order
by barycenters, and x by isotonic regression, which keeps order and distances and comes as near to the neighbours' mean
as they allow. Boxes that nothing leads to stand right above their first consumer (facts drawing D.1).
"""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from device_runner.problem import Problem
from pipeline.core import groups as counting
from pipeline.core import providers as provider_rules
from pipeline.partition.answer import Decision, ModelAnswer, percent_of

CPU_KIND, KERNEL_KIND = -1, -2
"""Kinds of nodes without a partition: refused ones, and those that a provider on the CPU has kernels for."""

MOST_JOINED = 600
"""Above so many boxes runs stay split where levels split them: to try each pair takes time by their square."""


class ClaimReason(Problem, frozen=True, kw_only=True):
    """Why nodes are refused, and what would change that; "" for nothing known."""

    what: str = msgspec.field(name="reason")


class PlacedNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node by its name, or its first output where it has none; `partition` is the number of its partition, from 0.

    `reason` is the place of why it is refused in `Placement.reasons`; unset for claimed nodes. `inputs` are the places
    of the nodes that feed it.
    """

    name: str
    operator: str
    partition: int | None = None
    reason: int | None = None
    inputs: tuple[int, ...] = ()


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes of a file a provider is predicted to claim on a device, by the rules of a release.

    `provider` is that of the rules: a name of `ort-mobile partition --ep`.
    """

    model: str
    variant: str = ""
    device: str = ""
    provider: str
    release: str
    nodes: tuple[PlacedNode, ...]
    reasons: tuple[ClaimReason, ...] = ()

    @property
    def title(self) -> str:
        """The provider as people write it."""
        return (
            provider_rules.PROVIDER_RULES[self.provider].title
            if self.provider in provider_rules.PROVIDER_RULES
            else self.provider
        )

    @property
    def claimed(self) -> int:
        """How many nodes are claimed."""
        return sum(node.partition is not None for node in self.nodes)

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return len({node.partition for node in self.nodes if node.partition is not None})

    @property
    def kinds(self) -> list[int]:
        """Of each node the number of its partition, or what it is without one: XNNPACK and WebGPU take nodes alone."""
        rules = provider_rules.PROVIDER_RULES.get(self.provider)
        alone = rules is not None and (rules.on_cpu or rules.copies)
        return [CPU_KIND if node.partition is None else KERNEL_KIND if alone else node.partition for node in self.nodes]


def placement_of(answer: ModelAnswer, *, model: str, variant: str = "", device: str = "") -> Placement:
    """The part of an answer that is drawn; an answer with an error has no nodes."""
    reasons: dict[tuple[str, str], int] = {}
    producer = {name: index for index, decision in enumerate(answer.decisions) for name in decision.outputs if name}
    nodes = tuple(
        PlacedNode(
            name=decision.name or next(filter(None, decision.outputs), ""),
            operator=decision.op_type,
            partition=decision.partition if decision.claimed else None,
            reason=None
            if decision.claimed
            else reasons.setdefault((decision.reason or "", decision.remedy or ""), len(reasons)),
            inputs=tuple(
                dict.fromkeys(producer[read] for read in decision.inputs if producer.get(read, index) != index)
            ),
        )
        for index, decision in enumerate(answer.decisions)
    )
    return Placement(
        model=model,
        variant=variant,
        device=device,
        provider=answer.ep,
        release=answer.release_text,
        nodes=nodes,
        reasons=tuple(ClaimReason(what=reason, remedy=remedy) for reason, remedy in reasons),
    )


NodeGroup = tuple[int, tuple[int, ...]]
"""Nodes drawn as one box: their kind, as in `Placement.kinds`, and their places in order."""


def collapse(
    kinds: Sequence[int], edges: Sequence[tuple[int, int]]
) -> tuple[tuple[NodeGroup, ...], tuple[tuple[int, int], ...]]:
    """One box for each kind from 0 on, and for each connected run of nodes of another kind.

    The boxes are in the order of their first nodes; with them come (producer, consumer) of boxes, without circles.
    `edges` are (producer, consumer) of nodes and make no circle. Partitions that make a circle together, which no
    runtime could run, are drawn as runs too.
    """
    units = [kind if kind >= 0 else -1 - index for index, kind in enumerate(kinds)]
    circular = set(units) - set(_ordered(_consumers(units, edges)))
    units = [-1 - index if unit in circular else unit for index, unit in enumerate(units)]
    boxes = _joined(units, kinds, edges)
    places = {box: index for index, box in enumerate(dict.fromkeys(boxes))}
    members: list[list[int]] = [[] for _ in places]
    for node, box in enumerate(boxes):
        members[places[box]].append(node)
    groups = tuple((kinds[nodes[0]], tuple(nodes)) for nodes in members)
    between = dict.fromkeys((places[boxes[a]], places[boxes[b]]) for a, b in edges if boxes[a] != boxes[b])
    return groups, tuple(between)


def _consumers(units: Sequence[int], edges: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    consumers: dict[int, set[int]] = {unit: set() for unit in units}
    for a, b in edges:
        if units[a] != units[b]:
            consumers[units[a]].add(units[b])
    return consumers


def _ordered(consumers: Mapping[int, set[int]]) -> list[int]:
    """Producers before consumers; what is in or behind a circle is left out."""
    waiting = dict.fromkeys(consumers, 0)
    for unit in (consumer for below in consumers.values() for consumer in below):
        waiting[unit] += 1
    order = [unit for unit, count in waiting.items() if not count]
    for unit in order:
        for below in consumers[unit]:
            waiting[below] -= 1
            if not waiting[below]:
                order.append(below)
    return order


def _joined(units: Sequence[int], kinds: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[int]:
    """The box of each node: its unit, or the first of those that it is joined with.

    A level counts changes of kind on the way to a unit. Neighbours of one kind and level are joined at once: every way
    from one to another over a third kind ends on a higher level. The others are joined where there is no other way.
    """
    kind = dict(zip(units, kinds, strict=True))
    consumers = _consumers(units, edges)
    level = dict.fromkeys(units, 0)
    for unit in _ordered(consumers):
        for below in consumers[unit]:
            level[below] = max(level[below], level[unit] + (kind[below] != kind[unit]))
    pairs = list(dict.fromkeys((units[a], units[b]) for a, b in edges if kinds[a] == kinds[b] and units[a] != units[b]))
    box = {unit: unit for unit in units}
    for a, b in pairs:
        if level[a] == level[b]:
            _join(box, a, b)
    if len({_root(box, unit) for unit in units}) <= MOST_JOINED:
        # Join boxes of one kind that an edge joins and no other way, until there are none
        consumers = _consumers([_root(box, unit) for unit in units], edges)
        joined = True
        while joined:
            joined = False
            for first, second in pairs:
                a, b = _root(box, first), _root(box, second)
                if a == b or _way_around(consumers, a, b):
                    continue
                _join(box, a, b)
                consumers[a] |= consumers.pop(b)
                for unit, readers in consumers.items():
                    if b in readers:
                        readers.remove(b)
                        readers.add(a)
                    if unit == a:
                        readers.discard(a)
                joined = True
    return [_root(box, unit) for unit in units]


def _root(box: dict[int, int], unit: int) -> int:
    while box[unit] != unit:
        box[unit] = unit = box[box[unit]]
    return unit


def _join(box: dict[int, int], a: int, b: int) -> None:
    box[_root(box, b)] = _root(box, a)


def _way_around(consumers: Mapping[int, set[int]], a: int, b: int) -> bool:
    """Whether a way leads from a box to a consumer of it over a third one."""
    waiting, seen = [unit for unit in consumers[a] if unit != b], {a}
    while waiting:
        unit = waiting.pop()
        if unit == b:
            return True
        if unit not in seen:
            seen.add(unit)
            waiting.extend(consumers[unit])
    return False


SWEEPS = 12
MOST_POINTS = 40_000
"""Above this many dummy points long edges go straight: the drawing would be unreadable anyway."""

DUMMY_WIDTH = 14.0
GAP = 18.0

Key = tuple[int, int, int]
"""A box is (node, -1, -1); a point of an edge is (producer, consumer, layer)."""


Point = tuple[float, int]
"""Its x in pixels, and its layer."""


def lay_out(
    widths: Mapping[int, float], edges: Sequence[tuple[int, int]]
) -> tuple[dict[int, Point], list[list[Point]]]:
    """Place boxes of given widths; `edges` are (producer, consumer), which must make no circle.

    Gives the centre of each box by node, and the way of each edge over its points.
    """
    consumers: dict[int, set[int]] = {node: set() for node in widths}
    for a, b in edges:
        consumers[a].add(b)
    layer = dict.fromkeys(widths, 0)
    for node in _ordered(consumers):
        for consumer in consumers[node]:
            layer[consumer] = max(layer[consumer], layer[node] + 1)
    fed = {b for _, b in edges}
    late = {a: min(layer[b] for b in below) - 1 for a, below in consumers.items() if below and a not in fed}
    layer |= late
    # Boxes and points by layer, and their neighbours above and below
    rows: list[list[Key]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node in widths:
        rows[layer[node]].append((node, -1, -1))
    with_points = sum(layer[b] - layer[a] - 1 for a, b in edges) <= MOST_POINTS
    up: dict[Key, list[Key]] = {}
    down: dict[Key, list[Key]] = {}
    for a, b in edges:
        points = [(a, b, between) for between in range(layer[a] + 1, layer[b])] if with_points else []
        for point in points:
            rows[point[2]].append(point)
        way: list[Key] = [(a, -1, -1), *points, (b, -1, -1)]
        for above, below in pairwise(way):
            down.setdefault(above, []).append(below)
            up.setdefault(below, []).append(above)
    for sweep in range(SWEEPS):
        position = {key: float(i) for row in rows for i, key in enumerate(row)}
        for row in reversed(rows) if (sweep % 2 == 1) else rows:
            mean = {}
            for key in row:
                near = (up if sweep % 2 == 0 else down).get(key)
                mean[key] = sum(position[k] for k in near) / len(near) if near else position[key]
            row.sort(key=lambda key: mean[key])
            position.update((key, float(i)) for i, key in enumerate(row))
    x = _positions(rows, up, down, widths)
    places = {node: (x[node, -1, -1], layer[node]) for node in widths}
    ways = [
        [
            places[a],
            *((x[a, b, between], between) for between in range(layer[a] + 1, layer[b]) if (a, b, between) in x),
            places[b],
        ]
        for a, b in dict.fromkeys(edges)
    ]
    return places, ways


def _positions(
    rows: Sequence[Sequence[Key]],
    up: Mapping[Key, Sequence[Key]],
    down: Mapping[Key, Sequence[Key]],
    widths: Mapping[int, float],
) -> dict[Key, float]:
    x: dict[Key, float] = {}
    for row in rows:
        offsets = _offsets(row, widths)
        x.update({key: offset - offsets[-1] / 2 for key, offset in zip(row, offsets, strict=True)})
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            places = []
            for key in row:
                near = [*up.get(key, ()), *down.get(key, ())]
                places.append(sum(x[k] for k in near) / len(near) if near else x[key])
            offsets = _offsets(row, widths)
            fitted = isotonic([w - offset for w, offset in zip(places, offsets, strict=True)])
            x.update({key: f + offset for key, f, offset in zip(row, fitted, offsets, strict=True)})
    return x


def _offsets(row: Sequence[Key], widths: Mapping[int, float]) -> list[float]:
    """The least x of each key when the first one's is 0."""
    offsets, before = [0.0], None
    for key in row:
        width = widths[key[0]] if key[2] < 0 else DUMMY_WIDTH
        if before is not None:
            offsets.append(offsets[-1] + (before + width) / 2 + GAP)
        before = width
    return offsets


def isotonic(values: Sequence[float]) -> list[float]:
    """The non-decreasing numbers nearest to the given ones by squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, size = pools.pop()
            total, count = total + before, count + size
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Extent:
    """The smallest and the largest x of boxes and lines, and the number of layers."""

    left: float
    right: float
    layers: int


def extent(places: Mapping[int, Point], ways: Iterable[Sequence[Point]], widths: Mapping[int, float]) -> Extent:
    """How far a laid out graph reaches; zeros for an empty one."""
    boxes = [(x - widths[node] / 2, x + widths[node] / 2) for node, (x, _) in places.items()]
    points = [(x, x) for way in ways for x, _ in way]
    both = [*boxes, *points] or [(0.0, 0.0)]
    layers = 1 + max((layer for _, layer in places.values()), default=-1)
    return Extent(min(left for left, _ in both), max(right for _, right in both), layers)


def curves(
    ways: Iterable[Sequence[Point]], shift: float, top: float, layer_height: float, box_height: float
) -> Iterator[str]:
    """Each edge as the `d` of an SVG path, from foot to head of boxes; the first layer begins at `top`, in pixels."""
    for way in ways:
        start_x, start = way[0][0] + shift, top + way[0][1] * layer_height + box_height
        path = [f"M{start_x:.0f} {start:.0f}"]
        for position, (x, layer) in enumerate(way[1:], 1):
            end_x, end = x + shift, top + layer * layer_height
            middle = (start + end) / 2
            path.append(f"C{start_x:.0f} {middle:.0f} {end_x:.0f} {middle:.0f} {end_x:.0f} {end:.0f}")
            if position < len(way) - 1:
                path.append(f"V{end + box_height:.0f}")
            start_x, start = end_x, end + box_height
        yield "".join(path)


COLOURS = ("#2563a8", "#bb5217", "#2f7d4f", "#7b4fa3", "#a8324a", "#0e7c86", "#8a6d1b", "#5b5fc7", "#a3458f", "#4d6b2f")
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
    share = percent_of(answer.claimed, answer.nodes)
    name = answer.path.replace("\\", "/").rsplit("/", 1)[-1]
    borders = provider_rules.PROVIDER_RULES[answer.ep].borders(answer.borders)
    facts = (
        f"{answer.ep}, ONNX Runtime {answer.release_text}: {answer.claimed} of {answer.nodes} nodes ({share} %) "
        + (
            f"in {counting.counted(len(answer.partitions), 'partition')}"
            if answer.copies is None
            else f"with {borders}"
        )
    )
    parts = [
        f'<text class="title" x="{MARGIN}" y="38">{_clean(name)}</text>',
        f'<text class="facts" x="{MARGIN}" y="60">{_clean(facts)}</text>',
    ]
    for index, group in enumerate(answer.partitions[: len(COLOURS)] if answer.copies is None else ()):
        x = MARGIN + index * 52
        parts.append(f'<rect x="{x}" y="70" width="14" height="14" rx="3" fill="{COLOURS[index]}"/>')
        parts.append(f'<text class="facts" x="{x + 19}" y="82">{len(group)}</text>')
    boxes = dict(enumerate(answer.decisions))
    widths = {key: _width(decision) for key, decision in boxes.items()}
    producer = {name: key for key, box in boxes.items() for name in box.outputs if name}
    edges = [(producer[name], key) for key, box in boxes.items() for name in box.inputs if name in producer]
    places, ways = lay_out(widths, list(dict.fromkeys(edges)))
    size = extent(places, ways, widths)
    width = max(size.right - size.left, 560.0) + 2 * MARGIN
    height = HEAD + size.layers * LAYER_HEIGHT + MARGIN
    shift = MARGIN - size.left + (width - 2 * MARGIN - (size.right - size.left)) / 2
    parts += [f'<path class="edge" d="{line}"/>' for line in curves(ways, shift, HEAD, LAYER_HEIGHT, BOX_HEIGHT)]
    for key, (x_centre, layer) in places.items():
        y = HEAD + layer * LAYER_HEIGHT + BOX_HEIGHT / 2
        parts.append(_node(boxes[key], x_centre + shift, y))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">\n<style>{STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _clean(text: str) -> str:
    """Text that XML can hold: control characters, which names may have, become escapes."""
    return html.escape("".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text), quote=False)


def _second_line(decision: Decision) -> str:
    if decision.claimed:
        name, half = next((name for name in decision.outputs if name), ""), MOST_CHARACTERS // 2
        return name if len(name) <= MOST_CHARACTERS else f"{name[:half]}…{name[-half + 1 :]}"
    reason = decision.reason or ""
    return reason if len(reason) <= MOST_CHARACTERS + 12 else f"{reason[: MOST_CHARACTERS + 11]}…"


def _width(decision: Decision) -> float:
    return max(CHARACTER * len(decision.op_type), SMALL * len(_second_line(decision)), 40.0) + 20.0


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
