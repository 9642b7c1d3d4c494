"""The rounds in which ONNX Runtime asks a provider when a session is made, and what the last gives (ep_rules A.2, A.7).

Nodes that were claimed stand as one fused node from then on; functions that nobody claimed and the CPU cannot run are
inlined, and the provider is asked again about the nodes that came of them.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.partition.answer import LoadForecast, Settings
from pipeline.partition.functions import View, inlined_view, without_functions
from pipeline.partition.graph import Graph, Node
from pipeline.partition.rules import FORECASTS, Claim, claim

if TYPE_CHECKING:
    from onnx import ModelProto


Ask = Callable[[Graph, frozenset[int]], Claim]
"""Asks a provider about a graph of which only some nodes are without a provider."""

FUSED = "(fused)"
MOST = 64
"""Bodies of functions call functions in turn; no schema of ONNX needs more rounds than a few."""


@dataclass(frozen=True, slots=True)
class LayoutRound:
    """What the provider was shown and what it claimed of it."""

    graph: Graph
    claim: Claim


def rounds(model: "ModelProto", first: LayoutRound, view: View, ask: Ask) -> Iterator[LayoutRound]:
    """All rounds, the first included. `model` is what the first round's graph was made of."""
    yield first
    whole, groups = first.graph, first.claim.groups
    for _ in range(MOST):
        claimed = frozenset(node.first_output for group in groups for node in group)
        changed = without_functions(model, whole, claimed)
        if changed is model:
            return
        whole, fresh = inlined_view(whole, view(changed))
        fused = fuse(whole, groups)
        found = ask(fused, fresh)
        yield LayoutRound(fused, found)
        model, groups = changed, (*groups, *found.groups)


def fuse(graph: Graph, groups: tuple[tuple[Node, ...], ...]) -> Graph:
    """The graph with each group as one node, which reads and gives what the group did."""
    nodes = dict(graph.nodes)
    for group in groups:
        members = {node.index for node in group}
        index = max(nodes) + 1
        for member in members:
            del nodes[member]
        nodes[index] = _fused(graph, group, members, index)
    return replace(graph, nodes=nodes)


def _fused(graph: Graph, group: tuple[Node, ...], members: set[int], index: int) -> Node:
    made = {name for node in group for name in node.outputs if name}
    read = dict.fromkeys(name for node in group for name in (*node.inputs, *node.implicit_inputs) if name)
    return Node(
        index=index,
        name="",
        op_type=FUSED,
        domain="",
        since_version=1,
        inputs=tuple(name for name in read if name not in made),
        outputs=tuple(dict.fromkeys(given_outside(graph, group, members))),
    )


def given_outside(graph: Graph, group: tuple[Node, ...], members: set[int]) -> Iterator[str]:
    """Values of a group that others read or that the graph gives (ep_rules B.4), perhaps more than once."""
    for node in group:
        yield from (name for name in node.outputs if name in graph.output_set)
        for edge in graph.out_edges[node.index]:
            if edge.consumer not in members:
                yield node.outputs[edge.source_slot]


Forecast = Callable[..., LoadForecast]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """The graph of the file that ships. `model` is None for an ORT format file, in which nothing is inlined."""

    graph: Graph
    model: "ModelProto | None"
    view: View


def foresee(shipped: SavedFile, shown: Graph, found: Claim, settings: Settings) -> LoadForecast:
    """How many compiled nodes the session will have, or why it cannot be made.

    `found` is the claim on `shown`, which is not asked for again where that is the graph that ships.
    """
    first = LayoutRound(shipped.graph, found if shown is shipped.graph else claim(shipped.graph, settings))
    if first.claim.fatal is not None:
        return LoadForecast(error=first.claim.fatal.text, remedy=first.claim.fatal.remedy or None)
    forecast: Forecast = importlib.import_module(FORECASTS[settings.provider]).forecast
    if shipped.model is None:
        return forecast((first,), settings)
    return forecast(
        rounds(shipped.model, first, shipped.view, lambda graph, free: claim(graph, settings, free)), settings
    )
