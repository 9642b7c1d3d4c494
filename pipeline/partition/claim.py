"""Claims: what a provider takes of one graph, and the providers by name."""

import importlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.partition.answer import Provider, Refusal, Settings
from pipeline.partition.graph import Graph, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a provider takes of one graph: groups of nodes in their order, and why it refuses the others, by index.

    A fatal refusal says that asking the provider ends the session: then nothing else in here counts.
    """

    groups: tuple[tuple[Node, ...], ...] = ()
    refusals: Mapping[int, Refusal] = field(default_factory=dict)
    fatal: Refusal | None = None

    @property
    def claimed(self) -> frozenset[int]:
        """Indices of all claimed nodes."""
        return frozenset(node.index for group in self.groups for node in group)

    def names(self) -> tuple[tuple[str, ...], ...]:
        """The groups by first outputs, as answers list them."""
        return tuple(tuple(node.first_output for node in group) for group in self.groups)


PROVIDERS: Mapping[Provider, str] = {
    Provider.NNAPI: "pipeline.partition.nnapi",
    Provider.COREML_NN: "pipeline.partition.coreml",
    Provider.COREML_MLPROGRAM: "pipeline.partition.coreml",
    Provider.XNNPACK: "pipeline.partition.xnnpack",
}
"""The module of each provider; it exports `claim(graph, settings) -> Claim`."""


FORECASTS: Mapping[Provider, str] = {
    Provider.NNAPI: "pipeline.partition.nnapi_load",
    Provider.COREML_NN: "pipeline.partition.coreml_load",
    Provider.COREML_MLPROGRAM: "pipeline.partition.coreml_load",
    Provider.XNNPACK: "pipeline.partition.xnnpack_load",
}
"""The module that foresees a provider's part in making a session; it exports `forecast(rounds, settings)`."""


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What the provider takes of one graph, not of its bodies; `only` are the nodes that are still free."""
    module = importlib.import_module(PROVIDERS[settings.provider])
    found: Claim = module.claim(graph, settings) if only is None else module.claim(graph, settings, only)
    return found


def bodies(graph: Graph) -> Iterator[tuple[Node, Graph]]:
    """Every body with the node that owns it, inner ones before outer ones, as ONNX Runtime asks (ep_rules A.2)."""
    for node in graph.nodes.values():
        for body in node.bodies:
            yield from bodies(body)
            yield node, body


def refuse_all(graph: Graph, refusal: Refusal) -> Claim:
    """A claim of nothing, for one reason."""
    return Claim(refusals=dict.fromkeys(graph.nodes, refusal))


def without(claim: Claim, vetoed: Sequence[tuple[Node, ...]], reason: Refusal) -> Claim:
    """The claim without some of its groups, whose nodes are refused for one reason."""
    gone = {node.index for group in vetoed for node in group}
    kept = tuple(group for group in claim.groups if group[0].index not in gone)
    return Claim(groups=kept, refusals={**claim.refusals, **dict.fromkeys(gone, reason)}, fatal=claim.fatal)
