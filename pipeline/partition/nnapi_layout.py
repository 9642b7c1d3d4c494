"""Claims that do not survive the layout transformation, so that no session is made (ep_rules A.3).

Without USE_NCHW a provider of channels-last layouts is asked twice, before and after Transposes were put around its
layout-sensitive nodes and pushed through their neighbours. The pushing itself is not computed here: what is foreseen
is the claims that it undoes, which releases up to 1.27 do not survive.
"""

from pipeline.partition import selectors
from pipeline.partition.answer import Refusal, Settings
from pipeline.partition.claim import Claim
from pipeline.partition.graph import Graph, Node
from pipeline.partition.nnapi import TABLE
from pipeline.partition.nnapi_resize import permuted
from pipeline.partition.rules import Case
from pipeline.partition.selector_checks import equal_pair
from pipeline.partition.units import Unit, node_units

PASSED = frozenset({
    "Abs", "Ceil", "Clip", "Cos", "Elu", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Neg", "Relu",
    "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh",
})  # fmt: skip
"""Operators of one input that a Transpose is pushed through."""

GROUPED = "without the Transposes around it, it becomes part of a quantized group, which is refused"
ADVICE = "set USE_NCHW, leave the node to the CPU (--safe), or ship ONNX Runtime 1.28 or later"


def layout_refusal(graph: Graph, found: Claim, settings: Settings) -> Refusal | None:
    """The first claim that the transformation undoes, None where none is foreseen."""
    if not settings.nhwc or not found.groups:
        return None
    units = node_units(graph, settings.ort_release).units
    claimed = found.claimed
    for unit in units:
        if unit.target.index in claimed:
            for look in (_permuted_resize, _empty_quantized, _new_pool_group, _new_group):
                problem = look(graph, unit, settings)
                if problem is not None:
                    return problem
    return None


def _permuted_resize(graph: Graph, unit: Unit, settings: Settings) -> Refusal | None:
    """Scales and sizes are permuted to channels-last order and judged again."""
    if unit.target.op_type != "Resize" or permuted(Case(graph, unit, settings)) is None:
        return None
    return _undone(unit.target, "its scales or sizes, permuted to channels-last order, are not taken")


def _empty_quantized(graph: Graph, unit: Unit, settings: Settings) -> Refusal | None:
    """Observed in 1.23.2: a quantized Conv or Resize of an empty batch is not taken again."""
    shape = graph.value(unit.inputs[0].name).shape if unit.inputs else None
    if settings.ort_release >= (1, 28) or not unit.group or unit.target.op_type not in ("Conv", "Resize"):
        return None
    return _undone(unit.target, "its input is empty") if shape and 0 in shape else None


def _new_pool_group(graph: Graph, unit: Unit, settings: Settings) -> Refusal | None:
    """A quantized MaxPool of opset 22 is a group only in the channels-last domain, and is refused there."""
    node = unit.target
    if settings.ort_release >= (1, 28) or unit.group or node.op_type != "MaxPool" or node.since_version <= 12:
        return None
    dq, q = _only_producer(graph, node), _only_consumer(graph, node)
    if dq is None or q is None or (dq.op_type, q.op_type) != ("DequantizeLinear", "QuantizeLinear"):
        return None
    return _undone(node, GROUPED) if equal_pair(graph, dq, q) else None


def _new_group(graph: Graph, unit: Unit, settings: Settings) -> Refusal | None:
    """DequantizeLinear, Transpose, X, QuantizeLinear: with the Transpose pushed on, the others become one group."""
    if settings.ort_release >= (1, 28) or unit.target.op_type != "Transpose" or unit.group:
        return None
    dq, node = _only_producer(graph, unit.target), _only_consumer(graph, unit.target)
    q = _only_consumer(graph, node) if node else None
    if dq is None or node is None or q is None or node.op_type not in PASSED or _takes_groups(node):
        return None
    if (dq.op_type, q.op_type) != ("DequantizeLinear", "QuantizeLinear") or node.op_type not in selectors.TABLE:
        return None
    return _undone(dq, GROUPED) if _same_type(graph, dq, q) else None


def _same_type(graph: Graph, dq: Node, q: Node) -> bool:
    return graph.value(dq.inputs[0]).dtype == graph.value(q.outputs[0]).dtype == "u8"


def _only_producer(graph: Graph, node: Node) -> Node | None:
    edges = graph.in_edges[node.index]
    return graph.nodes[edges[0].producer] if len(edges) == 1 else None


def _takes_groups(node: Node) -> bool:
    rule = TABLE.get(node.op_type)
    return rule is not None and not isinstance(rule, tuple) and rule.quantized is not None


def _only_consumer(graph: Graph, node: Node) -> Node | None:
    edges = graph.out_edges[node.index]
    return graph.nodes[edges[0].consumer] if len(edges) == 1 and not graph.gives_output(node) else None


def _undone(node: Node, why: str) -> Refusal:
    name = node.name or node.first_output
    return Refusal("layout", f"NNAPI claims {node.op_type} '{name}' and then refuses it: {why}", ADVICE)
