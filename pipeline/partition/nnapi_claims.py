"""NNAPI (ep_rules D): the table of its operators, the order of its checks, its rules for graphs and groups."""

from collections.abc import Collection, Container, Iterable, Sequence

from pipeline.partition import nnapi_checks as check
from pipeline.partition.answer import MAX_VERSION, Refusal, Settings, by_release, layout_window
from pipeline.partition.graph import Graph, Node, outside_inputs
from pipeline.partition.provider import Claim, RuleSet, claim_by_rules
from pipeline.partition.rules import (
    Check,
    Rule,
    Table,
    attribute,
    dtype,
    external_refusal,
    first_refusal,
    outputs,
    rank,
    rule_of,
    show,
    show_shape,
    version_refusal,
)
from pipeline.partition.units import Case, node_units, selection_crash

F32: tuple[Check, ...] = (dtype(0, ("f32",)),)
F32_U8: tuple[Check, ...] = (dtype(0, ("f32", "u8")),)
BOTH_F32: tuple[Check, ...] = (*F32, dtype(1, ("f32",)))
ONE: tuple[Check, ...] = (check.first_input, check.quantized_output)
TWO: tuple[Check, ...] = (check.two_operands,)
RANK_1_4 = rank(0, 1, 4)
RANKS = (check.ranks_up_to_4,)

INTERNAL_U8 = ("Transpose", "Resize", "Concat", "MaxPool")
"""Single nodes that take u8 only from within their own partition (D.2.9)."""

LONELY = ("Reshape", "Flatten", "Identity")
"""Ops that are not worth a partition of their own (B.6)."""


def _by_layout(case: Case) -> int:
    return 29 if case.settings.nchw else 28


def _concat_parameters(case: Case) -> Refusal | None:
    """Before level 29 a quantized Concat keeps one scale."""
    return check.same_parameters(case) if case.settings.api_level < 29 else None


def _pool_parameters(case: Case) -> Refusal | None:
    """A quantized AveragePool keeps its scale."""
    quantized = case.unit.group or case.node.op_type == "QLinearAveragePool"
    return check.same_parameters(case) if quantized else None


def _resize_level(case: Case) -> int:
    return 28 if case.dtype(0) == "u8" else 29


def _rules(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


TABLE: Table = {
    **_rules("Abs Exp Log Neg Sin Sqrt", Rule(level=29, since=6, types=F32)),
    **_rules("Floor Tanh", Rule(level=27, since=6, types=F32)),
    "Sigmoid": Rule(level=27, since=6, types=F32, checks=(RANK_1_4,)),
    "QLinearSigmoid": Rule(level=27, types=ONE, checks=(check.sigmoid_output,)),
    **_rules("Add Mul", Rule(level=27, since=7, types=F32, quantized=TWO, checks=RANKS)),
    **_rules("QLinearAdd QLinearMul", Rule(level=27, types=TWO, checks=RANKS)),
    **_rules("Sub Div", Rule(level=28, since=7, types=F32, checks=RANKS)),
    "Pow": Rule(level=29, since=7, types=BOTH_F32, checks=RANKS),
    "PRelu": Rule(level=29, types=F32, checks=RANKS),
    **_rules("Max Min", Rule(level=29, since=6, types=F32, checks=(check.two_inputs,))),
    "Relu": Rule(level=27, types=F32),
    "LeakyRelu": Rule(level=27, since=6, types=F32, checks=(RANK_1_4,)),
    "Elu": Rule(level=30, since=6, types=F32),
    "Clip": Rule(level=27, types=F32, checks=(check.clip,)),
    "Cast": Rule(level=29, since=6, types=F32, checks=(attribute("to", (1, 6), code="to"),)),
    "BatchNormalization": Rule(level=27, since=7, types=F32, checks=(outputs(1), check.batch_normalization)),
    "LRN": Rule(level=28, types=F32, checks=(rank(0, 4, 4),)),
    "Conv": Rule(level=_by_layout, types=F32, quantized=TWO, checks=(check.conv,)),
    "QLinearConv": Rule(level=_by_layout, types=TWO, checks=(check.conv,)),
    "AveragePool": Rule(level=_by_layout, types=F32, quantized=ONE, checks=(check.pool, _pool_parameters)),
    "QLinearAveragePool": Rule(level=_by_layout, types=ONE, checks=(check.pool, _pool_parameters)),
    "MaxPool": Rule(level=_by_layout, types=F32_U8, checks=(check.pool,)),
    **_rules("GlobalAveragePool GlobalMaxPool", Rule(level=_by_layout, types=F32, checks=(rank(0, 4, 4),))),
    "Concat": Rule(
        level=27,
        types=F32_U8,
        quantized=(check.quantized_inputs, check.quantized_output, _concat_parameters),
        checks=(RANK_1_4,),
    ),
    "DepthToSpace": Rule(level=27, types=F32, checks=(check.depth_to_space,)),
    "Flatten": Rule(level=27, types=F32, checks=(RANK_1_4, check.flatten)),
    "Gather": Rule(level=29, types=F32, checks=(RANK_1_4, check.no_zero_dimension, check.gather)),
    "Identity": Rule(level=27, types=F32),
    "Pad": Rule(level=29, since=11, types=F32, checks=(RANK_1_4, check.no_zero_dimension, check.pad)),
    "ReduceMean": Rule(level=28, types=F32, checks=(RANK_1_4, check.reduce_mean)),
    "Reshape": Rule(level=27, since=5, types=F32, quantized=ONE, checks=(check.reshape,)),
    "Resize": Rule(level=_resize_level, since=11, types=F32_U8, quantized=ONE, checks=(check.resize,)),
    "Slice": Rule(level=28, since=10, types=F32, checks=(check.slice_,)),
    "Softmax": Rule(level=28, types=F32, quantized=(*ONE, check.sigmoid_output), checks=(check.softmax,)),
    "Split": Rule(level=29, since=13, types=F32, checks=(check.split,)),
    "Squeeze": Rule(level=28, types=F32, checks=(RANK_1_4, check.axes)),
    "Unsqueeze": Rule(level=27, types=F32, checks=(RANK_1_4, check.axes)),
    "Transpose": Rule(level=28, types=F32_U8, quantized=ONE, checks=(RANK_1_4,)),
    "DequantizeLinear": Rule(level=27, types=(check.first_input,)),
    "QuantizeLinear": Rule(level=29, types=(check.quantized_output,)),
    "Gemm": Rule(level=27, since=7, types=F32, quantized=TWO, checks=(check.gemm,)),
    "MatMul": Rule(level=27, types=F32, quantized=TWO, checks=(check.gemm,)),
    "QLinearMatMul": Rule(level=27, types=TWO, checks=(check.gemm,)),
}


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
    names = []
    for value in case.unit.inputs:
        if value.name:
            names.append(value.name)
            names += [name for name in (value.quant[:2] if value.quant else ()) if name is not None]
    highest = rule.until or by_release(MAX_VERSION, case.settings.ort_release)
    return (
        _dynamic(case, names)
        or first_refusal(case, types)
        or external_refusal(case, names)
        or version_refusal(case, "NNAPI", rule.since, highest)
        or first_refusal(case, rule.checks)
    )


def _dynamic(case: Case, names: Iterable[str]) -> Refusal | None:
    for name in names:
        value = case.graph.value(name)
        if not value.static:
            return Refusal(
                "shape",
                f"input '{name}' {show_shape(value.shape)} has dynamic dimensions",
                "fix the model's dynamic dimensions",
            )
    return None


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


def _stopped(settings: Settings) -> Refusal:
    return Refusal(
        "stop_op",
        f"it is, or comes behind, one of the stop operators {', '.join(settings.stop_ops)}",
        "set ep.nnapi.partitioning_stop_ops otherwise (--stop-ops)",
    )


RULES = RuleSet(
    whole=_whole,
    units=node_units,
    taken=Refusal("other_ep", "the CPU has it already, from before a function next to it was inlined"),
    stopped=_stopped,
    operator=refusal,
    in_group=_internal_u8,
    veto=_veto,
)


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What NNAPI claims of one graph; `only` are the nodes that no provider has yet."""
    return claim_by_rules(RULES, graph, settings, only)
