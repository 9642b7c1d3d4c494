"""The picture of a partitioned graph."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from pipeline.partition.placement import draw, isotonic, lay_out
from tests.partition_samples import NNAPI, answer, chain

SVG = "{http://www.w3.org/2000/svg}"


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
