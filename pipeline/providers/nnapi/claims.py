"""NNAPI (ep_rules D): the order of its checks, its rules for graphs and groups, and what it claims."""

from collections.abc import Collection, Container, Sequence

from pipeline.core import releases as ort_releases
from pipeline.partition.answer import MAX_VERSION, Refusal, Settings, layout_window
from pipeline.partition.claiming import Claim, claim_by_rules
from pipeline.partition.graph import Graph, Node, outside_inputs
from pipeline.partition.provider_claims import ProviderClaims
from pipeline.partition.rules import external_refusal, first_refusal, rule_of, show, show_shape, version_refusal
from pipeline.partition.selectors import node_units, selection_crash
from pipeline.partition.units import Case
from pipeline.providers.nnapi.load import build_refusal, crash_in_file, forecast
from pipeline.providers.nnapi.rules import INTERNAL_U8, LONELY, TABLE


def refusal(case: Case) -> Refusal | None:
    """The checks that every unit passes through, in the order of ep_rules D.2 (1 to 8)."""
    rule = rule_of(TABLE, case.node.op_type, case.settings)
    if rule is None:
        return Refusal(
            "op", f"{case.node.op_type} is not supported by the NNAPI EP", "rewrite it with supported operators"
        )
    level = rule.level(case) if callable(rule.level) else rule.level
    if case.settings.api_level < level:
        return Refusal(
            "level",
            f"{case.node.op_type} needs API level {level}, asked for is {case.settings.api_level}",
            f"target API level {level} or later; on older devices the CPU runs it",
        )
    if case.unit.group and rule.quantized is None:
        return Refusal(
            "qdq_group",
            f"{case.node.op_type} between DequantizeLinear and QuantizeLinear is not taken as a quantized operation",
            "leave this operator out of quantization",
        )
    types = (rule.quantized or ()) if case.unit.group else rule.types
    names = [name for value in case.unit.inputs if value.name for name in value if name is not None]
    dynamic = next((name for name in names if not case.graph.value(name).static), None)
    if dynamic is not None:
        shape = show_shape(case.graph.value(dynamic).shape)
        return Refusal(
            "shape", f"input '{dynamic}' {shape} has dynamic dimensions", "fix the model's dynamic dimensions"
        )
    highest = ort_releases.at_release(MAX_VERSION, case.settings.ort_release)
    return (
        first_refusal(case, types)
        or external_refusal(case, names)
        or version_refusal(case, "NNAPI", rule.since, highest)
        or first_refusal(case, rule.checks)
    )


def _whole(graph: Graph, settings: Settings) -> Refusal | None:
    """NNAPI claims nothing in bodies (D.1), below level 27, and outside the opset window (A.3)."""
    if graph.outer is not None:
        return Refusal("subgraph", "NNAPI supports nothing inside If, Loop and Scan", "move the work out of the body")
    if settings.api_level < 27:
        return Refusal("level", "ONNX Runtime's NNAPI needs API level 27", "target Android 8.1 or later")
    outside = None if settings.nchw else layout_window(graph.opset, settings.ort_release)
    if outside is not None:
        return Refusal("opset", outside, "convert the model to an opset inside, or set USE_NCHW")
    return selection_crash(graph, settings)


def _internal_u8(case: Case, group_outputs: Collection[str]) -> Refusal | None:
    if case.unit.group or case.node.op_type not in INTERNAL_U8 or case.dtype(0) != "u8":
        return None
    positions = range(case.listed) if case.node.op_type == "Concat" else range(1)
    for position in positions:
        if case.input(position) not in group_outputs:
            return Refusal(
                "internal_u8",
                f"u8 input {show(case, position)} comes from outside the partition, where NNAPI knows no scale for it",
                "quantize this node as a QDQ group, or keep it in float",
            )
    return None


LONELY_REFUSAL = Refusal(
    "trivial", "alone in its partition, which would cost more than it saves", "nothing to do: a neighbour decides"
)
CONSTANT_REFUSAL = Refusal(
    "constant", "its whole partition computes with constants only", "fold constants (optimization level basic)"
)


def _veto(graph: Graph, _: Settings, group: Sequence[Node]) -> Refusal | None:
    if all(graph.constant(name) is not None for name in outside_inputs(group)):
        return CONSTANT_REFUSAL
    return LONELY_REFUSAL if len(group) == 1 and group[0].op_type in LONELY else None


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What NNAPI claims of one graph; `only` are the nodes that no provider has yet."""
    return claim_by_rules(
        graph,
        settings,
        only,
        whole=_whole,
        units=node_units,
        taken=Refusal("other_ep", "the CPU has it already, from before a function next to it was inlined"),
        stopped=Refusal(
            "stop_op",
            f"it is, or comes behind, one of the stop operators {', '.join(settings.stop_ops)}",
            "set ep.nnapi.partitioning_stop_ops otherwise (--stop-ops)",
        ),
        operator=refusal,
        in_group=_internal_u8,
        veto=_veto,
    )


CLAIMS = ProviderClaims(
    claim=claim, forecast=forecast, build_refusal=build_refusal, crash_in_file=crash_in_file, table=TABLE
)
