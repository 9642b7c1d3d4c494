"""What becomes of XNNPACK's claims when a session is made: its kernels, and what they fail on."""

from collections.abc import Iterable, Mapping

from pipeline.core import abis as core_abis
from pipeline.partition.answer import LoadForecast, Refusal, Settings
from pipeline.partition.claiming import Claim, claim
from pipeline.partition.graph import Graph, Node, bodies
from pipeline.partition.rules import Check, first_refusal, listed, refuse, show, show_shape
from pipeline.partition.selectors import node_units
from pipeline.partition.units import Case
from pipeline.providers.xnnpack.rules import grouped


def forecast(rounds: Iterable[tuple[Graph, Claim]], settings: Settings) -> LoadForecast:
    """The kernels of all rounds, or why making the session will probably fail."""
    counts: list[int] = []
    for number, (graph, whole_claim) in enumerate(rounds):
        shown = [(graph, whole_claim)]
        if number == 0:
            shown += [(body, claim(body, settings)) for _, body in bodies(graph)]
        counts.append(0)
        for part, part_claim in shown:
            claimed = part_claim.claimed
            units = [unit for unit in node_units(part, settings) if unit.target.index in claimed]
            cases = (Case(part, unit, settings) for unit in units)
            problems = (first_refusal(case, LOAD_CHECKS.get(case.node.op_type, ())) for case in cases)
            problem = part_claim.fatal or next((refusal for refusal in problems if refusal is not None), None)
            if problem is not None:
                return LoadForecast.failing(problem, estimate=True)
            counts[-1] += len(units)
    return LoadForecast(partitions=sum(counts), rounds=tuple(counts), estimate=True)


def _empty(case: Case) -> Refusal | None:
    shape = case.shape(0) or ()
    if 0 not in shape[1:]:
        return None
    return Refusal(
        "zero", f"{case.label} reads {show(case, 0)} {show_shape(shape)}, which is empty", "leave the node out"
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
        f"{fused.label} is fused into {case.label}, whose output others need "
        "too: ONNX Runtime up to 1.27 loses it and makes no session",
        "ship release 1.28 or later, or give the others a copy by a second node",
    )


def _half_clip(case: Case) -> Refusal | None:
    """Bounds of a fused Clip are read as f32 whatever their type is (arm64_host.md 5.2)."""
    if case.unit.group or case.settings.abi not in core_abis.ARM_ABIS or case.dtype(0) != "f16":
        return None
    graph = case.graph
    behind = (graph.nodes[edge.consumer] for edge in graph.out_edges[case.node.index])
    fused = next((node for node in behind if node.op_type == "Clip" and _activates(graph, node)), None)
    if fused is None or not any(fused.inputs[1:3]):
        return None
    return Refusal(
        "fusion",
        f"{fused.label} in half precision is fused into {case.label}, which reads its "
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
    lacking = next((io.name for io in values if io.scale is not None and not io.zero_point), None)
    if lacking is None:
        return None
    return Refusal(
        "qzp", f"{case.label}: quantized value '{lacking}' has no zero point", "give every Q and DQ a zero point"
    )


def _softmax_scale(case: Case) -> Refusal | None:
    name = case.unit.outputs[0].scale if case.unit.group else None
    scale = None if name is None else case.graph.constant(name)
    if scale is None or scale.numbers()[0] == 1 / 256:
        return None
    return Refusal(
        "quant",
        f"{case.label}: the output's scale {scale.numbers()[0]:g} is near 1/256, XNNPACK's kernel wants it exactly",
        "set the scale to 0.00390625",
    )


def _batch_kept(case: Case) -> Refusal | None:
    shape = case.shape(0) or ()
    sizes = case.constant(3) if listed(3)(case) and case.ver > 10 else None
    if sizes is None or sizes.numbers()[0] == shape[0]:
        return None
    return Refusal(
        "nc",
        f"{case.label}: sizes {sizes.numbers()} do not repeat the batch of {show_shape(shape)}",
        "fix the batch, and resize height and width only",
    )


SAME_LOWER = refuse(
    lambda case: case.attribute("auto_pad", "NOTSET") == "SAME_LOWER",
    "attr",
    lambda case: f"{case.label} has auto_pad SAME_LOWER, for which there is no kernel",
    "give the pads only",
)

LOAD_CHECKS: Mapping[str, tuple[Check, ...]] = {
    "Conv": (_empty, _zero_points, SAME_LOWER, _dangling, _half_clip),
    "ConvTranspose": (_zero_points, SAME_LOWER),
    "MaxPool": (_empty, _dangling, _half_clip),
    "AveragePool": (_empty, _dangling, _half_clip),
    "Softmax": (
        # What comes of it is open: mostly the process ends, sometimes it goes unnoticed and the node is claimed.
        refuse(
            lambda case: case.ver < 13 and case.attribute("axis", -1) < -1,
            "crash",
            lambda case: (
                f"{case.label} has axis {case.attribute('axis')}: before opset 13 ONNX Runtime's XNNPACK part reads "
                "outside the shape, and the process may end"
            ),
            "write the axis as a positive number",
            fatal=True,
        ),
        _softmax_scale,
    ),
    "Resize": (
        refuse(
            grouped,
            "compile",
            lambda case: f"{case.label} between Q and DQ is claimed, but ONNX Runtime cannot build it",
            "leave Resize out of quantization, or ship release 1.27 or later",
        ),
        refuse(
            lambda case: case.ver == 10,
            "opset",
            lambda case: f"{case.label} of opset 10 has no form for channels last",
            "convert to opset 11 or later",
        ),
        refuse(
            lambda case: None in (case.shape(0) or ())[2:],
            "dynamic",
            lambda case: (
                f"{case.label} reads {show(case, 0)} {show_shape(case.shape(0) or ())}: without height and width the "
                "process ends"
            ),
            "fix height and width",
            fatal=True,
        ),
        _batch_kept,
    ),
    "Gemm": (_empty,),
}
"""What is known to go wrong with claimed operators, by type."""
