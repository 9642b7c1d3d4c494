"""Where nodes run: graphs with a box for many nodes, and the picture of a partitioned graph."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from pipeline.partition.placement import CPU_KIND, collapse, draw, isotonic, lay_out, placement_of
from tests.partition_samples import NNAPI, answer, chain

SVG = "{http://www.w3.org/2000/svg}"


def test_partitions_and_runs_are_boxes_with_reasons(tmp_path: Path) -> None:
    placed = placement_of(answer(chain("Relu", "Erf", "Erf", "Relu"), tmp_path, NNAPI), model="m")
    assert (placed.claimed, placed.partitions, placed.title) == (2, 2, "NNAPI")
    assert [node.inputs for node in placed.nodes] == [(), (0,), (1,), (2,)]
    (reason,) = {placed.reasons[node.reason].what for node in placed.nodes if node.reason is not None}
    assert "Erf is not supported" in reason
    groups, edges = collapse(placed.kinds, [(a, b) for b, node in enumerate(placed.nodes) for a in node.inputs])
    assert groups == (
        (0, (0,)),
        (CPU_KIND, (1, 2)),
        (1, (3,)),
    )
    assert edges == ((0, 1), (1, 2))


def test_a_run_that_would_make_a_circle_is_split() -> None:
    around, _ = collapse([CPU_KIND, 0, CPU_KIND], [(0, 1), (1, 2), (0, 2)])
    assert around == (
        (CPU_KIND, (0,)),
        (0, (1,)),
        (CPU_KIND, (2,)),
    )
    beside, _ = collapse([CPU_KIND, 0, CPU_KIND], [(1, 2), (0, 2)])
    assert beside == (
        (CPU_KIND, (0, 2)),
        (0, (1,)),
    )


def test_partitions_that_make_a_circle_are_split() -> None:
    groups, _ = collapse([0, 1, 0], [(0, 1), (1, 2)])
    assert groups == (
        (0, (0,)),
        (1, (1,)),
        (0, (2,)),
    )


@given(st.lists(st.tuples(st.integers(-2, 3), st.lists(st.integers(0, 40), max_size=3)), min_size=1, max_size=25))
def test_collapsed_graphs_have_every_node_once_and_no_circle(made: list[tuple[int, list[int]]]) -> None:
    kinds = [kind for kind, _ in made]
    edges = sorted({(p % place, place) for place, (_, parents) in enumerate(made) if place for p in parents})
    groups, between = collapse(kinds, edges)
    assert sorted(node for _, nodes in groups for node in nodes) == list(range(len(made)))
    assert all(kinds[node] == kind for kind, nodes in groups for node in nodes)
    box = {node: place for place, (_, nodes) in enumerate(groups) for node in nodes}
    assert set(between) == {(box[a], box[b]) for a, b in edges if box[a] != box[b]}
    left = set(range(len(groups)))
    while left:
        free = {place for place in left if not any(b == place and a in left for a, b in between)}
        assert free
        left -= free
    for a, b in edges:  # runs are split only where another way leads around
        if kinds[a] == kinds[b] and box[a] != box[b]:
            assert way_around(between, box[a], box[b])


def way_around(edges: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    reached = {b for a, b in edges if a == start and b != end}
    for _ in edges:
        reached |= {b for a, b in edges if a in reached}
    return end in reached


def test_picture_names_nodes_and_reasons(tmp_path: Path) -> None:
    made = chain("Relu", "Erf", "Relu")
    made.graph.node[1].name = "\x1b<&>"
    made.graph.node[1].output[0] = made.graph.node[2].input[0] = "a\n<b>\x00"
    root = ET.fromstring(draw(answer(made, tmp_path, NNAPI)))
    groups = root.findall(f"{SVG}g")
    assert [group.get("class") for group in groups] == ["claimed", "refused", "claimed"]
    fills = [group.find(f"{SVG}rect").get("fill") for group in groups]  # type: ignore[union-attr] # every box has one
    assert fills[0] != fills[2]
    assert "Erf is not supported" in "".join(groups[1].itertext())


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_isotonic_is_ordered_and_keeps_the_mean(values: list[float]) -> None:
    found = isotonic(values)
    assert found == sorted(found)
    assert abs(sum(found) - sum(values)) < 1e-3


@given(st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=25))
def test_boxes_of_a_layer_do_not_overlap(parents: list[list[int]]) -> None:
    edges = sorted({(p % i, i) for i, wanted in enumerate(parents) if i for p in wanted})
    widths = {i: 30.0 + 10 * (i % 5) for i in range(len(parents))}
    places, _ = lay_out(widths, edges)
    assert all(places[a][1] < places[b][1] for a, b in edges)
    rows: dict[int, list[tuple[float, float]]] = {}
    for node, (x, layer) in places.items():
        rows.setdefault(layer, []).append((x - widths[node] / 2, x + widths[node] / 2))
    for row in rows.values():
        row.sort()
        assert all(left[1] < right[0] for left, right in pairwise(row))


def test_sources_stand_right_above_their_first_consumer() -> None:
    trunk, weights = range(40), range(101, 140)
    edges = [*((i, i + 1) for i in range(39)), *((weight, weight - 100) for weight in weights), (105, 8)]
    places, _ = lay_out(dict.fromkeys([*trunk, *weights], 100.0), edges)
    assert [places[weight][1] for weight in weights] == list(range(39))
    xs = [x for x, _ in places.values()]
    assert max(xs) - min(xs) < 1_200
