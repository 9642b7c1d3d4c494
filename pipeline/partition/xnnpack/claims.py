"""XNNPACK (ep_rules F): the table of its operators and its claims, as made before the layout transformation.

There are no partitions to speak of: every claimed node is a claim of its own, a QDQ group included. A Relu or Clip
behind a float Conv or pool joins it only in the second round, when a session is made.
"""

from collections.abc import Container

from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.graph import Graph
from pipeline.partition.options import layout_window
from pipeline.partition.rules import Case, Claim, Rule, Table, dtype, first_refusal, refuse_all, rule_of
from pipeline.partition.units import Unit, node_units
from pipeline.partition.xnnpack import checks as check
from pipeline.partition.xnnpack import load as quant
from pipeline.partition.xnnpack.checks import resize

WITH_I8 = (dtype(0, ("f32", "f16", "u8", "i8")),)
WITH_U8 = (dtype(0, ("f32", "f16", "u8")),)


def _pool_type(case: Case) -> Refusal | None:
    """MaxPool's type is that of the node's own input, in a QDQ group a float."""
    found = case.graph.value(case.node.inputs[0]).dtype
    if found in ("f32", "f16", "u8", "i8"):
        return None
    return Refusal("type", f"input '{case.node.inputs[0]}' is of type {found}", "pool in f32")


TABLE: Table = {
    "Conv": Rule(since=11, types=WITH_I8, checks=(quant.conv, *check.CONV)),
    "ConvTranspose": Rule(since=11, types=WITH_I8, checks=(quant.conv, *check.CONV)),
    "MaxPool": Rule(since=8, types=(_pool_type,), checks=(quant.max_pool, *check.MAX_POOL)),
    "AveragePool": Rule(since=7, types=WITH_U8, checks=(quant.average_pool, *check.AVERAGE_POOL)),
    "Softmax": Rule(types=WITH_U8, checks=(quant.softmax, check.softmax)),
    "Resize": Rule(since=10, types=WITH_I8, checks=(resize,)),
    "Gemm": Rule(since=7, checks=(check.gemm,)),
    "MatMul": Rule(checks=(check.matmul,)),
}


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


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What XNNPACK takes of one graph, bodies included; nothing outside the opset window (A.3).

    `only` are the nodes that no provider has yet, when it is asked again after functions were inlined (A.2).
    """
    outside = layout_window(graph.opset, settings.ort_release)
    if outside is not None:
        return refuse_all(graph, Refusal("opset", outside, "convert the model to an opset inside"))
    units = node_units(graph, settings.ort_release)
    if units.crash is not None:
        return Claim(fatal=units.crash)
    verdicts = [(unit, _taken(unit, only) or refusal(Case(graph, unit, settings))) for unit in units.units]
    fatal = next((found for _, found in verdicts if found is not None and found.fatal), None)
    return Claim(
        groups=tuple((node,) for unit, found in verdicts if found is None for node in unit.nodes),
        refusals=_refusals(verdicts),
        fatal=fatal,
    )


def _taken(unit: Unit, only: Container[int] | None) -> Refusal | None:
    free = only is None or all(node.index in only for node in unit.nodes)
    return None if free else TAKEN_REFUSAL


def _refusals(verdicts: list[tuple[Unit, Refusal | None]]) -> dict[int, Refusal]:
    return {node.index: found for unit, found in verdicts if found is not None for node in unit.nodes}


TAKEN_REFUSAL = Refusal("other_ep", "it is a provider's already")
