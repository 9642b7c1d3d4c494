"""Properties of the grouping by waves (ep_rules B): the algorithm against its closed form, on random graphs."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.partition.graph import Graph, Node
from pipeline.partition.rules import downstream, group_by_waves
from pipeline.partition.units import plain_units


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, frozenset[int]]:
    """A random graph of single-output nodes in any file order, and which of them are supported."""
    count = draw(st.integers(1, 14))
    inputs = [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(count)]
    places = draw(st.permutations(range(count)))
    nodes = {
        places[i]: Node(
            index=places[i], name="", op_type="Op", domain="", since_version=1,
            inputs=tuple(f"v{places[j]}" for j in inputs[i]), outputs=(f"v{places[i]}",),
        )
        for i in range(count)
    }  # fmt: skip
    graph = Graph(nodes=dict(sorted(nodes.items())), values={}, inputs=(), outputs=(), initializers={})
    return graph, frozenset(draw(st.sets(st.integers(0, count - 1))))


def closed_form(graph: Graph, supported: frozenset[int]) -> list[set[int]]:
    """Groups by the formula of ep_rules B.3."""
    wave: dict[int, int] = {}
    for index in graph.order:
        producers = [edge.producer for edge in graph.in_edges[index]]
        highest = max((wave[p] for p in producers), default=0)
        cut = index not in supported and any(p in supported and wave[p] == highest for p in producers)
        wave[index] = highest + cut
    return [
        group for w in sorted(set(wave.values())) if (group := {i for i in supported & wave.keys() if wave[i] == w})
    ]


@given(graphs())
def test_waves_are_the_closed_form(case: tuple[Graph, frozenset[int]]) -> None:
    graph, supported = case
    groups = group_by_waves(graph, plain_units(graph), lambda unit, _: unit.target.index in supported)
    assert [{node.index for node in group} for group in groups] == closed_form(graph, supported)


@given(graphs())
def test_order_puts_producers_first(case: tuple[Graph, frozenset[int]]) -> None:
    graph, _ = case
    place = {index: position for position, index in enumerate(graph.order)}
    assert sorted(graph.order) == sorted(graph.nodes)
    assert all(place[edge.producer] < place[index] for index in graph.nodes for edge in graph.in_edges[index])


@given(graphs())
def test_downstream_is_reachability(case: tuple[Graph, frozenset[int]]) -> None:
    graph, starts = case
    units = plain_units(graph)
    reached = set(starts)
    for index in graph.order:
        if any(edge.producer in reached for edge in graph.in_edges[index]):
            reached.add(index)
    assert downstream(graph, units, [u for u in units if u.target.index in starts]) == reached
