"""NNAPI (ep_rules D): the table of its operators, the order of its checks, its claims."""

from collections.abc import Container, Iterable

from pipeline.partition.answer import MAX_VERSION, Refusal, Settings, by_release, layout_window
from pipeline.partition.graph import Graph
from pipeline.partition.grouping import Wave, downstream, group_by_waves, outside_inputs
from pipeline.partition.nnapi import checks as check
from pipeline.partition.nnapi import quant
from pipeline.partition.nnapi.quant import resize
from pipeline.partition.rules import (
    Case,
    Check,
    Claim,
    Rule,
    Table,
    attribute,
    dtype,
    external_refusal,
    first_refusal,
    outputs,
    rank,
    refuse_all,
    rule_of,
    show,
    show_shape,
    version_refusal,
    without,
)
from pipeline.partition.units import Quant, Unit, Units, node_units

F32: tuple[Check, ...] = (dtype(0, ("f32",)),)
F32_U8: tuple[Check, ...] = (dtype(0, ("f32", "u8")),)
BOTH_F32: tuple[Check, ...] = (*F32, dtype(1, ("f32",)))
ONE: tuple[Check, ...] = (quant.first_input, quant.quantized_output)
TWO: tuple[Check, ...] = (quant.two_operands,)
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
    return quant.same_parameters(case) if case.settings.api_level < 29 else None


def _pool_parameters(case: Case) -> Refusal | None:
    """A quantized AveragePool keeps its scale."""
    quantized = case.unit.group or case.node.op_type == "QLinearAveragePool"
    return quant.same_parameters(case) if quantized else None


def _resize_level(case: Case) -> int:
    return 28 if case.dtype(0) == "u8" else 29


def _rules(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


TABLE: Table = {
    **_rules("Abs Exp Log Neg Sin Sqrt", Rule(level=29, since=6, types=F32)),
    **_rules("Floor Tanh", Rule(level=27, since=6, types=F32)),
    "Sigmoid": Rule(level=27, since=6, types=F32, checks=(RANK_1_4,)),
    "QLinearSigmoid": Rule(level=27, types=ONE, checks=(quant.sigmoid_output,)),
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
        quantized=(quant.quantized_inputs, quant.quantized_output, _concat_parameters),
        checks=(RANK_1_4,),
    ),
    "DepthToSpace": Rule(level=27, types=F32, checks=(check.depth_to_space,)),
    "Flatten": Rule(level=27, types=F32, checks=(RANK_1_4, check.flatten)),
    "Gather": Rule(level=29, types=F32, checks=(RANK_1_4, check.no_zero_dimension, check.gather)),
    "Identity": Rule(level=27, types=F32),
    "Pad": Rule(level=29, since=11, types=F32, checks=(RANK_1_4, check.no_zero_dimension, check.pad)),
    "ReduceMean": Rule(level=28, types=F32, checks=(RANK_1_4, check.reduce_mean)),
    "Reshape": Rule(level=27, since=5, types=F32, quantized=ONE, checks=(check.reshape,)),
    "Resize": Rule(level=_resize_level, since=11, types=F32_U8, quantized=ONE, checks=(resize,)),
    "Slice": Rule(level=28, since=10, types=F32, checks=(check.slice_,)),
    "Softmax": Rule(level=28, types=F32, quantized=(*ONE, quant.sigmoid_output), checks=(check.softmax,)),
    "Split": Rule(level=29, since=13, types=F32, checks=(check.split,)),
    "Squeeze": Rule(level=28, types=F32, checks=(RANK_1_4, check.axes)),
    "Unsqueeze": Rule(level=27, types=F32, checks=(RANK_1_4, check.axes)),
    "Transpose": Rule(level=28, types=F32_U8, quantized=ONE, checks=(RANK_1_4,)),
    "DequantizeLinear": Rule(level=27, types=(quant.first_input,)),
    "QuantizeLinear": Rule(level=29, types=(quant.quantized_output,)),
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
    names = [name for io in case.unit.inputs if io.name for name in (io.name, *_parameters(io.quant))]
    highest = rule.until or by_release(MAX_VERSION, case.settings.ort_release)
    return (
        _shapes(case, names)
        or first_refusal(case, types)
        or external_refusal(case, names)
        or version_refusal(case, "NNAPI", rule.since, highest)
        or first_refusal(case, rule.checks)
    )


def _shapes(case: Case, names: Iterable[str]) -> Refusal | None:
    for name in names:
        value = case.graph.value(name)
        if not value.static:
            return Refusal(
                "shape",
                f"input '{name}' {show_shape(value.shape)} has dynamic dimensions",
                "fix the model's dynamic dimensions",
            )
    return None


def _parameters(quant: Quant | None) -> tuple[str, ...]:
    if quant is None:
        return ()
    return (quant.scale,) if quant.zero_point is None else (quant.scale, quant.zero_point)


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What NNAPI claims of one graph: nothing in bodies (D.1), outside the opset window (A.3), below level 27.

    `only` are the nodes that no provider has yet, when it is asked again after functions were inlined (A.2).
    """
    nothing = _global_refusal(graph, settings)
    if nothing is not None:
        return refuse_all(graph, nothing)
    units = node_units(graph, settings)
    if units.crash is not None:
        return Claim(fatal=units.crash)
    return _Judge(graph, settings, units, only).claim()


def _global_refusal(graph: Graph, settings: Settings) -> Refusal | None:
    if graph.outer is not None:
        return Refusal("subgraph", "NNAPI supports nothing inside If, Loop and Scan", "move the work out of the body")
    if settings.api_level < 27:
        return Refusal("level", "ONNX Runtime's NNAPI needs API level 27", "target Android 8.1 or later")
    outside = None if settings.nchw else layout_window(graph.opset, settings.ort_release)
    if outside is not None:
        return Refusal("opset", outside, "convert the model to an opset inside, or set USE_NCHW")
    return None


class _Judge:
    """The verdicts on one graph's units; each is computed once, when the unit first comes up (D.2)."""

    def __init__(self, graph: Graph, settings: Settings, units: Units, only: Container[int] | None) -> None:
        self.graph = graph
        self.settings = settings
        self.units = units
        self.only = only
        self.verdicts: dict[int, Refusal | None] = {}
        stops = [unit for unit in units.units if unit.target.op_type in settings.stop_ops]
        self.stopped = downstream(graph, units, stops) if stops else set()

    def claim(self) -> Claim:
        """Groups, after the vetoes, and the refusals of all other nodes."""
        groups = group_by_waves(self.graph, self.units, self._accept)
        refusals = {
            node.index: verdict
            for unit in self.units.units
            if (verdict := self.verdicts.get(unit.target.index)) is not None
            for node in unit.nodes
        }
        fatal = next((verdict for verdict in self.verdicts.values() if verdict and verdict.fatal), None)
        provider_claim = Claim(
            groups=tuple(tuple(n for u in g for n in u.nodes) for g in groups), refusals=refusals, fatal=fatal
        )
        lonely = [g for g in provider_claim.groups if len(g) == 1 and g[0].op_type in LONELY]
        constant_only = [
            tuple(n for u in g for n in u.nodes)
            for g in groups
            if all(self.graph.constant(name) is not None for name in outside_inputs(g)) and len(g) > 0
        ]
        if fatal is not None:
            return Claim(refusals=refusals, fatal=fatal)
        provider_claim = without(provider_claim, lonely, LONELY_REFUSAL)
        return without(provider_claim, constant_only, CONSTANT_REFUSAL)

    def _accept(self, unit: Unit, wave: Wave) -> bool:
        index = unit.target.index
        if index not in self.verdicts:
            self.verdicts[index] = self._verdict(unit, wave)
        return self.verdicts[index] is None

    def _verdict(self, unit: Unit, wave: Wave) -> Refusal | None:
        if self.only is not None and unit.target.index not in self.only:
            return Refusal("other_ep", "the CPU has it already, from before a function next to it was inlined")
        if unit.target.index in self.stopped:
            return Refusal(
                "stop_op",
                f"it is, or comes behind, one of the stop operators {', '.join(self.settings.stop_ops)}",
                "set ep.nnapi.partitioning_stop_ops otherwise (--stop-ops)",
            )
        case = Case(self.graph, unit, self.settings)
        return refusal(case) or _internal_u8(case, wave)


def _internal_u8(case: Case, wave: Wave) -> Refusal | None:
    if case.unit.group or case.node.op_type not in INTERNAL_U8 or case.dtype(0) != "u8":
        return None
    positions = range(case.listed) if case.node.op_type == "Concat" else range(1)
    for position in positions:
        if case.input(position) not in wave.outputs:
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
