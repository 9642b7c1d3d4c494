"""XNNPACK (ep_rules F): what it claims, and the order of its checks.

There are no partitions to speak of: every claimed node is a claim of its own, a QDQ group included. A Relu or Clip
behind a float Conv or pool joins it only in the second round, when a session is made: claims are those from before the
layout transformation.
"""

from collections.abc import Container

from pipeline.partition.answer import Refusal, Settings, layout_window
from pipeline.partition.claiming import Claim, claim_by_rules
from pipeline.partition.graph import Graph
from pipeline.partition.provider_claims import ProviderClaims
from pipeline.partition.rules import first_refusal, rule_of
from pipeline.partition.selectors import node_units, selection_crash
from pipeline.partition.units import Case
from pipeline.providers.xnnpack.load import forecast
from pipeline.providers.xnnpack.rules import TABLE


def refusal(case: Case) -> Refusal | None:
    """The checks that every unit passes through, in the order of ep_rules F.2."""
    node = case.node
    rule = rule_of(TABLE, node.op_type, case.settings) if node.domain == "" else None
    if rule is None:
        return Refusal(
            "op" if node.domain == "" else "domain",
            f"{node.domain + '.' if node.domain else ''}{node.op_type} is not supported by the XNNPACK EP",
            "nothing to do: the CPU runs it",
        )
    if case.ver < rule.since:
        return Refusal(
            "opset",
            f"{node.op_type} of opset {case.ver}; XNNPACK supports it from {rule.since} on",
            "convert the model to a later opset",
        )
    return first_refusal(case, (*rule.types, *rule.checks))


def _whole(graph: Graph, settings: Settings) -> Refusal | None:
    """Nothing is claimed outside the opset window (A.3)."""
    outside = layout_window(graph.opset, settings.ort_release)
    if outside is not None:
        return Refusal("opset", outside, "convert the model to an opset inside")
    return selection_crash(graph, settings)


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What XNNPACK claims of one graph, bodies included; `only` are the nodes that no provider has yet."""
    taken = Refusal("other_ep", "it is a provider's already")
    return claim_by_rules(graph, settings, only, whole=_whole, units=node_units, taken=taken, operator=refusal)


CLAIMS = ProviderClaims(
    claim=claim,
    forecast=forecast,
    table=TABLE,
    library_note="a library for x86_64 leaves fp16 to the CPU, one for arm64 does not (XNNPACK compiles fp16 in for "
    "ARM only)",
)
