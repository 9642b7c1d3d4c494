"""Nodes that a provider claims and cannot compile, closed off from it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.model import edit as onnx_edit
from pipeline.model.onnx_model import LeanModel
from pipeline.partition import answer as claim_answer
from pipeline.partition import claiming as partition_claiming
from pipeline.partition import graph as partition_graph
from pipeline.partition import selectors
from pipeline.partition import shown as partition_shown

if TYPE_CHECKING:
    pass


MOST_CLOSED = 200
"""Nodes of one model that are kept from a provider before giving up."""


def problem(
    graph: partition_graph.Graph, groups: Iterable[tuple[partition_graph.Node, ...]], settings: claim_answer.Settings
) -> claim_answer.Refusal | None:
    """The first reason why one of the provider's models cannot be built on the phone."""
    return partition_claiming.claims_of(settings).build_refusal(graph, groups, settings)


def culprits(
    graph: partition_graph.Graph, claimed: partition_claiming.Claim, settings: claim_answer.Settings
) -> Sequence[partition_graph.Node]:
    """The members of the first unit without which the first problem is another one or none; empty without problem."""
    for group in claimed.groups:
        first = problem(graph, (group,), settings)
        if first is None:
            continue
        units: Collection[tuple[partition_graph.Node, ...]] = [(node,) for node in group]
        if settings.rules.qdq_units:  # NNAPI takes or leaves units, CoreML nodes
            owner = selectors.unit_of_node(selectors.node_units(graph, settings))
            units = {owner[node.index].target.index: owner[node.index].nodes for node in group}.values()
        for unit in units:
            members = {node.index for node in unit}
            others = tuple(node for node in group if node.index not in members)
            if not others or problem(graph, (others,), settings) != first:
                return unit
        return group
    return ()


def close_off(model: LeanModel, settings: claim_answer.Settings, viewed: partition_shown.AsGraph) -> Iterator[str]:
    """Keep a provider from the nodes of a finished model that it would claim and not build; gives warnings.

    The phone partitions the file again. Every rule that asks for a constant refuses what an Identity makes of one, and
    the file is saved and loaded without optimizations that would see through it. In place; a node without constants
    cannot be kept from the provider so.
    """
    fresh, tried = partition_graph.FreshNames(), set[tuple[str, str]]()
    for _ in range(MOST_CLOSED):
        graph = viewed(model.proto)
        claimed = partition_claiming.claim(graph, settings)
        refusal = claimed.fatal or problem(graph, claimed.groups, settings)
        if refusal is None:
            return
        # The smallest constant that one of the nodes reads, and that was not tried before
        places = sorted(
            (value.count, node.first_output, name)
            for node in culprits(graph, claimed, settings)
            for name in node.inputs
            if name and (node.first_output, name) not in tried and (value := graph.constant(name)) is not None
        )
        if not places:
            yield f"{settings.provider}: {refusal.what}. No change of the file keeps this node from the provider"
            return
        _, name, constant = places[0]
        tried.add((name, constant))
        proto = model.proto.graph
        taken = {value for node in proto.node for value in (*node.input, *node.output)}
        hidden = fresh.take(f"{constant}/for the CPU", taken)
        node = next(node for node in proto.node if onnx_edit.first_output(node) == name)
        node.input[:] = [hidden if value == constant else value for value in node.input]
        identity = type(node)(op_type="Identity", input=[constant], output=[hidden])
        onnx_edit.set_nodes(proto, (identity, *proto.node))
