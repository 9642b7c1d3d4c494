"""Graphs with a box for many nodes."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pipeline.partition.placement import CPU_KIND, collapse, placement_of
from tests.partition_samples import NNAPI, answer, chain


def test_partitions_and_runs_are_boxes_with_reasons(tmp_path: Path) -> None:
    placed = placement_of(answer(chain("Relu", "Erf", "Erf", "Relu"), tmp_path, NNAPI), model="m")
    assert (placed.claimed, placed.partitions, placed.title) == (2, 2, "NNAPI")
    assert [node.inputs for node in placed.nodes] == [(), (0,), (1,), (2,)]
    (reason,) = {placed.reasons[node.reason].reason for node in placed.nodes if node.reason is not None}
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
