"""The graph that is spliced: after level basic, as the providers see it, and what they take of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.model.onnx_model import LeanModel
from pipeline.partition.graph import Graph

if TYPE_CHECKING:
    from onnx import NodeProto


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGraph:
    """A model with its view. Nodes go by their first output (`links.key`).

    `kept` are the nodes that stay as they are; `claimed` counts them by provider. `closed` are nodes of control flow in
    whose bodies something is claimed: these are left alone as a whole (ep_rules H.4.10). `notes` are warnings.
    """

    model: LeanModel
    graph: Graph
    kept: frozenset[str]
    closed: frozenset[str] = frozenset()
    claimed: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> "list[NodeProto]":
        """The messages of the main graph's nodes."""
        return list(self.model.proto.graph.node)

    @property
    def out_of_reach(self) -> frozenset[str]:
        """Every node that the optimizer must not touch."""
        return self.kept | self.closed
