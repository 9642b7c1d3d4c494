"""Which nodes form a QDQ group: ONNX Runtime's selection loop and its selectors by op type (ep_rules C.2).

A selector sees the candidate group and says yes or no; the table gives each op its selector, the schema versions it
knows and the releases that have it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipeline.partition import selector_checks as check
from pipeline.partition.answer import Refusal
from pipeline.partition.graph import Graph, Node
from pipeline.partition.selector_checks import Selector, SelectorGroup

DOMAINS = ("", "com.ms.internal.nhwc", "com.microsoft")

Release = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SelectorRow:
    """A selector with the schema versions it is registered for (None: all) and the first release that has it."""

    selector: Selector
    versions: Callable[[Release], tuple[int, ...] | None] = lambda _: None
    release: Release = (0, 0)


def _max_pool_versions(release: Release) -> tuple[int, ...]:
    return (12, 22) if release >= (1, 28) else (12,)


def _rows(names: str, selector: Selector, release: Release = (0, 0)) -> dict[str, SelectorRow]:
    return {name: SelectorRow(selector, release=release) for name in names.split()}


TABLE: Mapping[str, SelectorRow] = {
    **_rows("Gather GatherElements Reshape Expand Flatten Transpose Squeeze Unsqueeze Tile", check.drop_qdq),
    "MaxPool": SelectorRow(check.drop_qdq, _max_pool_versions),
    "Resize": SelectorRow(check.resize),
    **_rows("ArgMax ArgMin", check.drop_dq),
    **_rows(
        "AveragePool GlobalAveragePool GlobalMaxPool LeakyRelu ReduceMean ReduceMin ReduceMax ReduceProd ReduceSum "
        "Relu Gelu Elu HardSigmoid HardSwish Sigmoid Slice LogSoftmax Softmax Sqrt Atan Asin Sin Cos Sign Tanh Exp "
        "Log LRN Ceil Floor Round Abs Neg DepthToSpace SpaceToDepth LpNormalization",
        check.unary,
    ),
    "Clip": SelectorRow(check.clip),
    **_rows("Add Div Mul Pow Sub PRelu GridSample", check.binary),
    **_rows("Concat Max Min", check.variadic),
    "Split": SelectorRow(check.split),
    **_rows("Conv ConvTranspose", check.conv),
    "MatMul": SelectorRow(check.matmul),
    "Gemm": SelectorRow(check.gemm),
    **_rows("InstanceNormalization LayerNormalization", check.normalization),
    "BatchNormalization": SelectorRow(check.batch_normalization),
    **_rows("Equal Greater GreaterOrEqual Less LessOrEqual", check.compare),
    "Where": SelectorRow(check.where),
    "Pad": SelectorRow(check.pad),
    "TopK": SelectorRow(check.top_k),
    **_rows("Einsum Reciprocal", check.optional_q, (1, 23)),
    **_rows("CumSum", check.unary, (1, 23)),
    **_rows("ScatterElements RMSNormalization", check.variadic, (1, 24)),
}


def select(graph: Graph, node: Node, release: Release) -> SelectorGroup | None:
    """The QDQ group around a node, None when it has none."""
    group = _candidate(graph, node, release)
    if group is None or not TABLE[node.op_type].selector(group):
        return None
    return group


def crashes(graph: Graph, node: Node, release: Release) -> Refusal | None:
    """A Pad without DequantizeLinear before a QuantizeLinear: releases up to 1.27 read out of range (C.2)."""
    if node.op_type != "Pad" or release >= (1, 28):
        return None
    group = _candidate(graph, node, release)
    if group is None or group.dqs or not check.complete(group, 0):
        return None
    return Refusal(
        "crash",
        f"Pad '{node.name or node.first_output}' feeds a QuantizeLinear but has no DequantizeLinear before it: ONNX "
        "Runtime up to 1.27 reads out of range here and the process ends",
        "quantize the input of the Pad too, or take away the QuantizeLinear behind it",
        fatal=True,
    )


def _candidate(graph: Graph, node: Node, release: Release) -> SelectorGroup | None:
    """The nodes around a target before its selector is asked; None when the op or a Relu behind it allows no group."""
    row = TABLE.get(node.op_type)
    if row is None or node.domain not in DOMAINS or row.release > release:
        return None
    versions = row.versions(release)
    if versions is not None and node.since_version not in versions:
        return None
    sources = sorted(graph.in_edges[node.index], key=lambda edge: edge.input_slot)
    dqs = tuple(graph.nodes[s.producer] for s in sources if graph.nodes[s.producer].op_type == "DequantizeLinear")
    clip = _activation(graph, node)
    last = clip or node
    consumers = sorted(graph.out_edges[last.index], key=lambda edge: edge.source_slot)
    qs = tuple(
        graph.nodes[edge.consumer] for edge in consumers if graph.nodes[edge.consumer].op_type == "QuantizeLinear"
    )
    if clip is not None and (len(qs) != 1 or not check.redundant(graph, clip, qs[0])):
        return None
    return SelectorGroup(graph=graph, target=node, dqs=dqs, clip=clip, qs=qs, release=release)


def _activation(graph: Graph, node: Node) -> Node | None:
    """The Relu or Clip behind a node when it is its only consumer and has one consumer itself."""
    edges = graph.out_edges[node.index]
    if len(edges) != 1:
        return None
    found = graph.nodes[edges[0].consumer]
    if found.op_type not in ("Relu", "Clip") or len(graph.out_edges[found.index]) != 1 or graph.gives_output(found):
        return None
    return found
