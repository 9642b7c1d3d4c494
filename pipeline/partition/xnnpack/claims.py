"""XNNPACK (ep_rules F): the table of its operators and its claims, as made before the layout transformation.

There are no partitions to speak of: every claimed node is a claim of its own, a QDQ group included. A Relu or Clip
behind a float Conv or pool joins it only in the second round, when a session is made.
"""

from collections.abc import Container, Iterable, Iterator, Mapping

from pipeline.core.abis import ARM_ABIS
from pipeline.partition.answer import LoadForecast, Refusal, Settings, layout_window
from pipeline.partition.graph import Graph, Node
from pipeline.partition.grouping import LayoutRound
from pipeline.partition.rules import (
    Case,
    Check,
    Claim,
    Rule,
    Table,
    bodies,
    dtype,
    first_refusal,
    listed,
    refuse_all,
    rule_of,
    show,
    show_shape,
)
from pipeline.partition.units import Unit, UnitValue, node_units
from pipeline.partition.xnnpack import checks as check
from pipeline.partition.xnnpack.checks import resize, softmax_reads_outside

CONV_TYPES = {("u8", "u8", "u8"), ("s8", "s8", "s8"), ("s8", "s8pc", "s8")}
"""Kinds of input, weight and output that Conv supports; s8pc has a scale for each output channel."""

REMEDY = "quantize activations and weights alike: u8 with u8, or i8 with i8 (weights per channel if you like)"


def kind(case: Case, value: UnitValue) -> str | None:
    """u8, s8 or s8pc (one scale for each entry of dimension 0); None for what XNNPACK cannot use."""
    tensor, quant = case.graph.value(value.name), value.quant
    if quant is None or tensor.dtype is None or tensor.shape is None:
        return None
    scale = case.graph.constant(quant.scale)
    zero = case.graph.constant(quant.zero_point) if quant.zero_point else None
    if scale is None or (zero is not None and zero.dtype != tensor.dtype):
        return None
    scales = scale.dims[0] if scale.dims else 1
    zeros = 0 if zero is None else zero.dims[0] if zero.dims else 1
    if tensor.dtype == "u8":
        return "u8" if quant.zero_point is None or scales == zeros == 1 else None
    if tensor.dtype != "i8" or zeros not in (0, scales):
        return None
    if scales == 1:
        return "s8"
    return "s8pc" if tensor.shape and tensor.shape[0] == scales else None


def _refused(case: Case, what: str) -> Refusal:
    return Refusal("quant", f"quantized {case.node.op_type}: {what}", REMEDY)


def conv(case: Case) -> Refusal | None:
    """The combinations of types that XNNPACK has kernels for; a constant i32 bias but for per-channel weights."""
    if not case.unit.group:
        return None
    kinds = kind(case, case.unit.inputs[0]), kind(case, case.unit.inputs[1]), kind(case, case.unit.outputs[0])
    if kinds not in CONV_TYPES:
        words = ", ".join(name or "not usable" for name in kinds)
        return _refused(case, f"input, weight and output are {words}")
    if kinds[1] != "s8pc" and listed(2)(case) and (case.dtype(2) != "i32" or case.constant(2) is None):
        return _refused(case, f"the bias {show(case, 2)} is no constant of type i32")
    return None


def _same(case: Case, taken: tuple[str, ...]) -> Refusal | None:
    first, last = kind(case, case.unit.inputs[0]), kind(case, case.unit.outputs[0])
    if first == last and first in taken:
        return None
    return _refused(case, f"input is {first or 'not usable'} and output {last or 'not usable'}")


def max_pool(case: Case) -> Refusal | None:
    """u8 or i8 on both sides."""
    return _same(case, ("u8", "s8")) if case.unit.group else None


def average_pool(case: Case) -> Refusal | None:
    """u8 on both sides; no longer taken since release 1.24."""
    if not case.unit.group:
        return None
    if case.settings.ort_release >= (1, 24):
        return _refused(case, "not taken since release 1.24")
    return _same(case, ("u8",))


def softmax(case: Case) -> Refusal | None:
    """u8 on both sides, and the one scale that XNNPACK's kernel has."""
    if not case.unit.group:
        return None
    refusal = _same(case, ("u8",))
    quant = case.unit.outputs[0].quant
    if refusal is not None or quant is None:
        return refusal
    scale = case.graph.constant(quant.scale)
    zero = case.graph.constant(quant.zero_point) if quant.zero_point else None
    if scale is not None and abs(scale.numbers()[0] - 1 / 256) > 1e-4:
        return _refused(case, f"the output's scale is {scale.numbers()[0]:g}, not 1/256")
    if zero is not None and zero.numbers()[0] != 0:
        return _refused(case, f"the output's zero point is {zero.numbers()[0]}, not 0")
    return None


def forecast(rounds: Iterable[LayoutRound], settings: Settings) -> LoadForecast:
    """The kernels of all rounds, or why making the session will probably fail."""
    counts: list[int] = []
    for number, asked in enumerate(rounds):
        shown = [(asked.graph, asked.claim)]
        if number == 0:
            shown += [(body, claim(body, settings)) for _, body in bodies(asked.graph)]
        problem = next((refusal for graph, given in shown if (refusal := _problem(graph, given, settings))), None)
        if problem is not None:
            return LoadForecast.failing(problem, estimate=True)
        counts.append(sum(1 for graph, given in shown for _ in accepted(graph, given, settings)))
    return LoadForecast(partitions=sum(counts), rounds=tuple(counts), estimate=True)


def accepted(graph: Graph, provider_claim: Claim, settings: Settings) -> Iterator[Unit]:
    """The units behind a claim."""
    claimed = provider_claim.claimed
    return (unit for unit in node_units(graph, settings).units if unit.target.index in claimed)


def _problem(graph: Graph, provider_claim: Claim, settings: Settings) -> Refusal | None:
    if provider_claim.fatal is not None:
        return provider_claim.fatal
    cases = (Case(graph, unit, settings) for unit in accepted(graph, provider_claim, settings))
    refusals = (first_refusal(case, CHECKS.get(case.node.op_type, ())) for case in cases)
    return next((refusal for refusal in refusals if refusal is not None), None)


def _name(case: Case) -> str:
    return f"{case.node.op_type} '{case.node.name or case.node.first_output}'"


def _empty(case: Case) -> Refusal | None:
    shape = case.shape(0) or ()
    if 0 not in shape[1:]:
        return None
    return Refusal(
        "zero", f"{_name(case)} reads {show(case, 0)} {show_shape(shape)}, which is empty", "leave the node out"
    )


def _dangling(case: Case) -> Refusal | None:
    """Up to release 1.27 an activation is fused although others need the value before it."""
    if case.unit.group or case.settings.ort_release >= (1, 28):
        return None
    graph = case.graph
    edges = graph.out_edges[case.node.index]
    shared = len(edges) > 1 or graph.gives_output(case.node)
    fused = next((graph.nodes[e.consumer] for e in edges if _activates(graph, graph.nodes[e.consumer])), None)
    if fused is None or not shared:
        return None
    return Refusal(
        "fusion",
        f"{fused.op_type} '{fused.name or fused.first_output}' is fused into {_name(case)}, whose output others need "
        "too: ONNX Runtime up to 1.27 loses it and makes no session",
        "ship release 1.28 or later, or give the others a copy by a second node",
    )


def _half_clip(case: Case) -> Refusal | None:
    """Bounds of a fused Clip are read as f32 whatever their type is (arm64_host.md 5.2)."""
    if case.unit.group or case.settings.abi not in ARM_ABIS or case.dtype(0) != "f16":
        return None
    graph = case.graph
    behind = (graph.nodes[edge.consumer] for edge in graph.out_edges[case.node.index])
    fused = next((node for node in behind if node.op_type == "Clip" and _activates(graph, node)), None)
    if fused is None or not any(fused.inputs[1:3]):
        return None
    return Refusal(
        "fusion",
        f"Clip '{fused.name or fused.first_output}' in half precision is fused into {_name(case)}, which reads its "
        "bounds as 32-bit floats: there is no session, or values are wrong",
        "compute in f32, use Relu in place of the Clip, or leave XNNPACK out",
    )


def _activates(graph: Graph, node: Node) -> bool:
    if node.op_type not in ("Relu", "Clip") or node.domain != "":
        return False
    return all(graph.constant(name) is not None for name in node.inputs[1:3])


def _zero_points(case: Case) -> Refusal | None:
    """The fused quantized operator's schema wants zero points."""
    if not case.unit.group:
        return None
    values = (*case.unit.inputs[:2], case.unit.outputs[0])
    lacking = next((io.name for io in values if io.quant is not None and not io.quant.zero_point), None)
    if lacking is None:
        return None
    return Refusal(
        "qzp", f"{_name(case)}: quantized value '{lacking}' has no zero point", "give every Q and DQ a zero point"
    )


def _same_lower(case: Case) -> Refusal | None:
    if case.attribute("auto_pad", "NOTSET") != "SAME_LOWER":
        return None
    return Refusal("attr", f"{_name(case)} has auto_pad SAME_LOWER, for which there is no kernel", "give the pads only")


def _softmax_scale(case: Case) -> Refusal | None:
    quant = case.unit.outputs[0].quant if case.unit.group else None
    scale = case.graph.constant(quant.scale) if quant else None
    if scale is None or scale.numbers()[0] == 1 / 256:
        return None
    return Refusal(
        "quant",
        f"{_name(case)}: the output's scale {scale.numbers()[0]:g} is near 1/256, XNNPACK's kernel wants it exactly",
        "set the scale to 0.00390625",
    )


def _softmax_axis(case: Case) -> Refusal | None:
    if not softmax_reads_outside(case):
        return None
    return Refusal(
        "crash",
        f"{_name(case)} has axis {case.attribute('axis')}: before opset 13 ONNX Runtime's XNNPACK part reads outside "
        "the shape, and the process may end",
        "write the axis as a positive number",
        fatal=True,
    )


def _resize_group(case: Case) -> Refusal | None:
    if not case.unit.group:
        return None
    return Refusal(
        "compile",
        f"{_name(case)} between Q and DQ is claimed, but ONNX Runtime cannot build it",
        "leave Resize out of quantization, or ship release 1.27 or later",
    )


def _resize_sizes(case: Case) -> Refusal | None:
    shape = case.shape(0) or ()
    if None in shape[2:]:
        return Refusal(
            "dynamic",
            f"{_name(case)} reads {show(case, 0)} {show_shape(shape)}: without height and width the process ends",
            "fix height and width",
            fatal=True,
        )
    sizes = case.constant(3) if listed(3)(case) and case.ver > 10 else None
    if sizes is None or sizes.numbers()[0] == shape[0]:
        return None
    return Refusal(
        "nc",
        f"{_name(case)}: sizes {sizes.numbers()} do not repeat the batch of {show_shape(shape)}",
        "fix the batch, and resize height and width only",
    )


def _resize_10(case: Case) -> Refusal | None:
    if case.ver != 10:
        return None
    return Refusal("opset", f"{_name(case)} of opset 10 has no form for channels last", "convert to opset 11 or later")


CONV: tuple[Check, ...] = (_zero_points, _same_lower)
CHECKS: Mapping[str, tuple[Check, ...]] = {
    "Conv": (_empty, *CONV, _dangling, _half_clip),
    "ConvTranspose": CONV,
    "MaxPool": (_empty, _dangling, _half_clip),
    "AveragePool": (_empty, _dangling, _half_clip),
    "Softmax": (_softmax_axis, _softmax_scale),
    "Resize": (_resize_group, _resize_10, _resize_sizes),
    "Gemm": (_empty,),
}
"""What is known to go wrong with claimed operators, by type."""


WITH_I8 = (check.half_precision, dtype(0, ("f32", "f16", "u8", "i8")))
WITH_U8 = (check.half_precision, dtype(0, ("f32", "f16", "u8")))


def _pool_type(case: Case) -> Refusal | None:
    """MaxPool's type is that of the node's own input, in a QDQ group a float."""
    element = case.graph.value(case.node.inputs[0]).dtype
    if element in ("f32", "f16", "u8", "i8"):
        return None
    return Refusal("type", f"input '{case.node.inputs[0]}' is of type {element}", "pool in f32")


TABLE: Table = {
    "Conv": Rule(since=11, types=WITH_I8, checks=(conv, *check.CONV)),
    "ConvTranspose": Rule(since=11, types=WITH_I8, checks=(conv, *check.CONV)),
    "MaxPool": Rule(since=8, types=(check.own_half_precision, _pool_type), checks=(max_pool, *check.MAX_POOL)),
    "AveragePool": Rule(since=7, types=WITH_U8, checks=(average_pool, *check.AVERAGE_POOL)),
    "Softmax": Rule(types=WITH_U8, checks=(softmax, check.softmax)),
    "Resize": Rule(since=10, types=WITH_I8, checks=(resize,)),
    "Gemm": Rule(since=7, types=(check.own_half_precision,), checks=(check.gemm,)),
    "MatMul": Rule(types=(check.own_half_precision,), checks=(check.matmul,)),
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
    """What XNNPACK claims of one graph, bodies included; nothing outside the opset window (A.3).

    `only` are the nodes that no provider has yet, when it is asked again after functions were inlined (A.2).
    """
    outside = layout_window(graph.opset, settings.ort_release)
    if outside is not None:
        return refuse_all(graph, Refusal("opset", outside, "convert the model to an opset inside"))
    units = node_units(graph, settings)
    if units.crash is not None:
        return Claim(fatal=units.crash)
    verdicts = [(unit, _taken(unit, only) or refusal(Case(graph, unit, settings))) for unit in units.units]
    fatal = next((reason for _, reason in verdicts if reason is not None and reason.fatal), None)
    return Claim(
        groups=tuple((node,) for unit, reason in verdicts if reason is None for node in unit.nodes),
        refusals={node.index: reason for unit, reason in verdicts if reason is not None for node in unit.nodes},
        fatal=fatal,
    )


def _taken(unit: Unit, only: Container[int] | None) -> Refusal | None:
    free = only is None or all(node.index in only for node in unit.nodes)
    return None if free else TAKEN_REFUSAL


TAKEN_REFUSAL = Refusal("other_ep", "it is a provider's already")
