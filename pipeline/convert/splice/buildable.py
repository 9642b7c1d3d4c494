"""What of a claim a provider cannot build its model of, and nodes that it is kept from (`--safe`)."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.convert.splice.links import key, sorted_nodes
from pipeline.model.onnx_model import LeanModel
from pipeline.partition.answer import Provider, Refusal, Settings
from pipeline.partition.claim import FORECASTS, Claim, claim
from pipeline.partition.fresh import FreshNames
from pipeline.partition.graph import Graph, Node
from pipeline.partition.units import node_units

if TYPE_CHECKING:
    from onnx import ModelProto

MOST_CLOSED = 200
"""Nodes of one model that are kept from a provider before giving up."""

Look = Callable[["ModelProto"], Graph]


def problem(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why one of the provider's models cannot be built on the phone."""
    if settings.provider not in FORECASTS:
        return None
    module = importlib.import_module(FORECASTS[settings.provider])
    found: Refusal | None = module.build_refusal(graph, groups, settings)
    return found


def culprits(graph: Graph, found: Claim, settings: Settings) -> Sequence[Node]:
    """The members of the first unit without which the first problem is another one or none; empty without problem."""
    for group in found.groups:
        first = problem(graph, (group,), settings)
        if first is None:
            continue
        for unit in _units(graph, group, settings):
            members = {node.index for node in unit}
            others = tuple(node for node in group if node.index not in members)
            if not others or problem(graph, (others,), settings) != first:
                return unit
        return group
    return ()


def _units(graph: Graph, group: tuple[Node, ...], settings: Settings) -> Iterable[tuple[Node, ...]]:
    """A group's nodes as the provider takes or leaves them: NNAPI by units, CoreML one by one."""
    if settings.provider is not Provider.NNAPI:
        return [(node,) for node in group]
    owner = node_units(graph, settings.ort_release).by_node()
    return {owner[node.index].target.index: owner[node.index].nodes for node in group}.values()


def close_off(model: LeanModel, settings: Settings, look: Look) -> Iterator[str]:
    """Keep a provider from the nodes of a finished model that it would claim and not build; gives warnings.

    The phone partitions the file again. Every rule that asks for a constant refuses what an Identity makes of one, and
    the file is saved and loaded without optimizations that would see through it. In place; a node without constants
    cannot be kept from the provider so.
    """
    fresh, tried = FreshNames(), set[tuple[str, str]]()
    for _ in range(MOST_CLOSED):
        graph = look(model.proto)
        found = claim(graph, settings)
        refusal = found.fatal or problem(graph, found.groups, settings)
        if refusal is None:
            return
        place = next(_constants(graph, culprits(graph, found, settings), tried), None)
        if place is None:
            yield f"{settings.provider.value}: {refusal.text}. No change of the file keeps this node from the provider"
            return
        tried.add(place)
        _hide(model.proto, *place, fresh)


def _constants(graph: Graph, nodes: Sequence[Node], tried: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(node, initializer) for the constants that nodes read, the smallest first, without those tried before."""
    found = [
        (constant.count, node.first_output, name)
        for node in nodes
        for name in node.inputs
        if name and (constant := graph.constant(name)) is not None
    ]
    yield from (place for _, *pair in sorted(found) if (place := (pair[0], pair[1])) not in tried)


def _hide(proto: "ModelProto", name: str, constant: str, fresh: FreshNames) -> None:
    """Make one node read an initializer through an Identity."""
    graph = proto.graph
    taken = {value for node in graph.node for value in (*node.input, *node.output)}
    hidden = fresh.take(f"{constant}/for the CPU", taken)
    node = next(node for node in graph.node if key(node) == name)
    node.input[:] = [hidden if value == constant else value for value in node.input]
    graph.node.add(op_type="Identity", input=[constant], output=[hidden])
    ordered = [type(node).FromString(node.SerializeToString()) for node in sorted_nodes(graph.node)]
    del graph.node[:]
    graph.node.extend(ordered)
