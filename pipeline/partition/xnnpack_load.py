"""What becomes of XNNPACK's claims when a session is made (ep_rules F.1 to F.3): an estimate.

Each accepted unit becomes one XNNPACK kernel. What the layout transformation moves around them is not computed.
"""

from collections.abc import Iterable, Iterator, Mapping

from pipeline.partition.answer import LoadForecast, Refusal, Settings
from pipeline.partition.checks import listed, show, show_shape
from pipeline.partition.claim import Claim, bodies, claim
from pipeline.partition.graph import Graph, Node
from pipeline.partition.rounds import LayoutRound
from pipeline.partition.rules import Case, Check, first_refusal
from pipeline.partition.units import Unit, node_units
from pipeline.partition.xnnpack_checks import softmax_reads_outside


def forecast(rounds: Iterable[LayoutRound], settings: Settings) -> LoadForecast:
    """The kernels of all rounds, or why making the session will probably fail."""
    counts: list[int] = []
    for number, asked in enumerate(rounds):
        shown = [(asked.graph, asked.claim)]
        if number == 0:
            shown += [(body, claim(body, settings)) for _, body in bodies(asked.graph)]
        problem = next((found for graph, given in shown if (found := _problem(graph, given, settings))), None)
        if problem is not None:
            return LoadForecast(error=problem.text, remedy=problem.remedy or None, estimate=True)
        counts.append(sum(1 for graph, given in shown for _ in accepted(graph, given, settings)))
    return LoadForecast(partitions=sum(counts), rounds=tuple(counts), estimate=True)


def accepted(graph: Graph, found: Claim, settings: Settings) -> Iterator[Unit]:
    """The units behind a claim."""
    claimed = found.claimed
    return (unit for unit in node_units(graph, settings.ort_release).units if unit.target.index in claimed)


def _problem(graph: Graph, found: Claim, settings: Settings) -> Refusal | None:
    if found.fatal is not None:
        return found.fatal
    cases = (Case(graph, unit, settings) for unit in accepted(graph, found, settings))
    return next((refusal for case in cases if (refusal := _fails(case)) is not None), None)


def _fails(case: Case) -> Refusal | None:
    return first_refusal(case, CHECKS.get(case.node.op_type, ()))


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
    "Conv": (_empty, *CONV, _dangling),
    "ConvTranspose": CONV,
    "MaxPool": (_empty, _dangling),
    "AveragePool": (_empty, _dangling),
    "Softmax": (_softmax_axis, _softmax_scale),
    "Resize": (_resize_group, _resize_10, _resize_sizes),
    "Gemm": (_empty,),
}
"""What is known to go wrong with claimed operators, by type."""
