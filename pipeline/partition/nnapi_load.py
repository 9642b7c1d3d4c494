"""What becomes of NNAPI's claims when a session is made: compiled nodes, or why its model cannot be built (D.7)."""

from collections.abc import Iterable

from pipeline.partition.answer import LoadForecast, Refusal, Settings
from pipeline.partition.graph import Graph, Node
from pipeline.partition.nnapi_build import build_error
from pipeline.partition.nnapi_layout import layout_refusal
from pipeline.partition.rounds import LayoutRound
from pipeline.partition.units import node_units


def forecast(rounds: Iterable[LayoutRound], settings: Settings) -> LoadForecast:
    """The compiled nodes of the last round (`rounds` has those of each), or the first thing that goes wrong.

    NNAPI takes nothing in bodies. Without USE_NCHW the layout is transformed between question and answer.
    """
    counts: list[int] = []
    for asked in rounds:
        problem = (
            asked.claim.fatal
            or layout_refusal(asked.graph, asked.claim, settings)
            or build_refusal(asked.graph, asked.claim.groups, settings)
        )
        if problem is not None:
            return LoadForecast(error=problem.text, remedy=problem.remedy or None, estimate=settings.nhwc)
        counts.append(len(asked.claim.groups))
    return LoadForecast(partitions=counts[-1], rounds=tuple(counts), estimate=settings.nhwc)


def build_refusal(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why the model of one of the partitions cannot be built, so that no session is made."""
    owner = node_units(graph, settings.ort_release).by_node()
    for group in groups:
        units = list({owner[node.index].target.index: owner[node.index] for node in group}.values())
        problem = build_error(graph, units)
        if problem is not None:
            return problem
    return None
