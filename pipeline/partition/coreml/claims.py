"""CoreML (ep_rules E): its table of operators by release, the order of its checks, its claims.

Which rows MLProgram had before release 1.21 is read off the lists of operators that the wheels 1.19.2 and 1.20.1 hold
(tools/mobile_helpers); their finer checks are taken to be those of 1.21.
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from pipeline.partition.answer import MAX_VERSION, Refusal, Settings, by_release
from pipeline.partition.coreml import checks as check
from pipeline.partition.coreml import operators, shapes, types
from pipeline.partition.coreml.operators import LARGEST, MAX_RANK, too_long
from pipeline.partition.coreml.shapes import resize
from pipeline.partition.coreml.types import BOTH, MLP, NN, model_format
from pipeline.partition.graph import Graph, Node
from pipeline.partition.grouping import Wave, group_by_waves
from pipeline.partition.rules import (
    Case,
    Claim,
    Rule,
    Table,
    external_refusal,
    first_refusal,
    rank,
    refuse_all,
    rule_of,
    show,
    show_shape,
    version_refusal,
    without,
)
from pipeline.partition.units import Unit, Units, plain_unit, plain_units

PLAIN = (types.plain,)
FLOAT = (types.float_or_wide,)
ONLY_NN = (NN,)
ONLY_MLP = (MLP,)


Rows = dict[str, Rule | tuple[Rule, ...]]


def _rules(names: str, *rules: Rule) -> Rows:
    return dict.fromkeys(names.split(), rules)


def later_in_mlprogram(names: str, rule: Rule, release: tuple[int, int] = (1, 21)) -> Rows:
    """Rows that NeuralNetwork had already when a release brought them to MLProgram."""
    return _rules(names, replace(rule, formats=ONLY_NN, before=release), replace(rule, formats=BOTH, release=release))


ELEMENTWISE: Table = {
    **_rules("Relu LeakyRelu Sigmoid Tanh", Rule(formats=BOTH, since=6, types=PLAIN)),
    "Gelu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 21)),
    "Elu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 24)),
    **_rules("Exp Softplus", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 24))),
    "HardSigmoid": Rule(formats=BOTH, since=6, types=FLOAT, release=(1, 26)),
    "QuickGelu": Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 26)),
    **later_in_mlprogram("PRelu", Rule(since=6, types=PLAIN, checks=(check.prelu,))),
    **later_in_mlprogram("Sqrt Reciprocal", Rule(types=PLAIN), (1, 20)),
    **_rules("Erf Round", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 21))),
    **_rules("Ceil Sin Cos", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 27))),
    **_rules("Add Sub Mul Div", Rule(formats=BOTH, since=7, types=PLAIN)),
    "Pow": Rule(formats=BOTH, since=7, types=(types.same_types, types.plain)),
    "Max": Rule(formats=ONLY_MLP, since=7, types=PLAIN, release=(1, 21)),
    "Clip": Rule(formats=BOTH, types=PLAIN, checks=(check.clip,)),
    **later_in_mlprogram("Softmax", Rule(types=PLAIN, checks=(check.softmax,))),
    "Identity": Rule(formats=BOTH, types=PLAIN, release=(1, 27)),
    "Where": Rule(formats=ONLY_MLP, types=(types.where,), release=(1, 28)),
    "And": Rule(formats=ONLY_MLP, types=(types.both_bool,), release=(1, 28)),
}

LAYERS: Table = {
    **later_in_mlprogram("BatchNormalization", Rule(since=7, types=PLAIN, checks=(check.batch_normalization,))),
    **_rules(
        "InstanceNormalization LayerNormalization GroupNormalization",
        Rule(formats=ONLY_MLP, types=(types.normalization,), checks=check.NORMALIZATION, release=(1, 21)),
    ),
    "LRN": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 3, 4),)),
    **later_in_mlprogram("ReduceMean ReduceSum", Rule(types=PLAIN, checks=(check.AXES_CONSTANT, check.noop_axes))),
    **_rules(
        "ReduceMax ReduceMin ReduceProd",
        Rule(formats=ONLY_MLP, types=PLAIN, checks=(check.AXES_CONSTANT,), release=(1, 21)),
    ),
    **later_in_mlprogram("ArgMax", Rule(types=PLAIN, checks=(check.argmax,))),
    "Conv": Rule(formats=BOTH, types=PLAIN, checks=(operators.conv,)),
    "FusedConv": Rule(formats=ONLY_MLP, types=FLOAT, checks=(operators.fused_conv,), release=(1, 27)),
    "ConvTranspose": Rule(formats=ONLY_MLP, types=PLAIN, checks=(operators.conv_transpose,)),
    "Gemm": Rule(formats=BOTH, types=PLAIN, checks=(check.gemm,)),
    "MatMul": Rule(formats=BOTH, types=PLAIN, checks=(check.matmul,)),
    "GridSample": Rule(formats=ONLY_MLP, types=PLAIN, checks=(check.grid_sample,)),
    **_rules("AveragePool MaxPool", Rule(formats=BOTH, types=PLAIN, checks=(check.pool,))),
    **_rules("GlobalAveragePool GlobalMaxPool", Rule(formats=BOTH, types=PLAIN, checks=(rank(0, 4, 4),))),
    "DepthToSpace": Rule(formats=BOTH, types=PLAIN, checks=(check.depth_to_space,)),
    "Resize": Rule(formats=BOTH, since=11, types=PLAIN, checks=(resize,)),
}

SHAPES: Table = {
    "Concat": Rule(formats=BOTH, types=PLAIN, checks=(check.concat,)),
    "Flatten": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 1, 5),)),
    **later_in_mlprogram("Gather", Rule(types=(types.gather,), checks=(operators.gather,)), (1, 22)),
    "GatherND": Rule(formats=ONLY_MLP, types=(types.gather_nd,), checks=(operators.gather_nd,), release=(1, 27)),
    **later_in_mlprogram("Pad", Rule(since=11, types=(types.pad,), checks=(shapes.pad,)), (1, 26)),
    "Reshape": Rule(formats=BOTH, since=5, types=PLAIN, checks=(shapes.reshape,)),
    **later_in_mlprogram("Shape", Rule(types=(types.shape,), checks=(check.shape,))),
    "Slice": Rule(formats=BOTH, since=10, types=(types.slice_,), checks=(operators.slice_,)),
    **_rules(
        "Split",
        Rule(formats=BOTH, since=13, types=PLAIN, checks=(operators.split,), before=(1, 27)),
        Rule(formats=BOTH, types=PLAIN, checks=(operators.split,), release=(1, 27)),
    ),
    **later_in_mlprogram("Squeeze", Rule(types=PLAIN, checks=(shapes.SQUEEZE,))),
    "Tile": Rule(formats=BOTH, types=(types.tile,), checks=(shapes.tile,), release=(1, 27)),
    "Transpose": Rule(formats=BOTH, types=PLAIN),
    "Unsqueeze": Rule(formats=ONLY_MLP, types=PLAIN, checks=(shapes.unsqueeze,), release=(1, 21)),
}


MIN_COREML = (((1, 22), 5), ((0, 0), 3))
"""Lowest Core ML version by release (E.1): below it the provider cannot be made."""

TRIVIAL = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Tile", "Transpose", "Ceil")
"""Ops that are not worth a partition of their own since release 1.27 (B.6)."""


def _cast(case: Case) -> Refusal | None:
    """MLProgram: behind another node (until 1.27). NeuralNetwork: behind an ArgMax that is claimed, to i32."""
    sources = case.graph.in_edges[case.node.index]
    free = types.mlprogram(case) and case.settings.ort_release >= (1, 27)
    if not sources and not free:
        return Refusal(
            "cast",
            f"no node makes its input {show(case, 0)}; CoreML supports a Cast behind another node",
            "give the model's input in the type that is needed, or ship release 1.27 or later",
        )
    return _behind_argmax(case, case.graph.nodes[sources[0].producer]) if types.neural_network(case) else None


def _behind_argmax(case: Case, producer: Node) -> Refusal | None:
    if producer.op_type == "ArgMax" and case.attribute("to") == 6:
        argmax = Case(case.graph, plain_unit(producer), case.settings)
        if refusal(argmax) is None:
            return None
    return Refusal(
        "cast",
        f"it casts the output of {producer.op_type}; NeuralNetwork has only a Cast of ArgMax's result to i32",
        "use format MLProgram",
    )


TABLE: Table = {
    **ELEMENTWISE,
    **LAYERS,
    **SHAPES,
    **later_in_mlprogram("Cast", Rule(types=(types.cast,), checks=(_cast,))),
}


def refusal(case: Case) -> Refusal | None:
    """The checks that every node passes through, in the order of ep_rules E.2."""
    rule = rule_of(TABLE, case.node.op_type, case.settings)
    if rule is None:
        return _no_row(case)
    chosen = model_format(case.settings)
    if chosen not in rule.formats:
        other = rule.formats[0]
        return Refusal(
            "format", f"{case.node.op_type} is there in format {other}, not in {chosen}", f"use format {other}"
        )
    return (
        version_refusal(case, "CoreML", rule.since, by_release(MAX_VERSION, case.settings.ort_release))
        or external_refusal(case, (value.name for value in case.values()))
        or _inputs(case)
        or first_refusal(case, rule.types)
        or first_refusal(case, rule.checks)
    )


def _no_row(case: Case) -> Refusal:
    op_type, release = case.node.op_type, case.settings.ort_release
    rows = TABLE.get(op_type, ())
    later = [row.release for row in ((rows,) if isinstance(rows, Rule) else rows) if row.release > release]
    if not later:
        return Refusal("op", f"{op_type} is not supported by the CoreML EP", "rewrite it with supported operators")
    first = ".".join(str(part) for part in min(later))
    return Refusal(
        "op", f"ONNX Runtime's CoreML has {op_type} from release {first} on", f"ship release {first} or later"
    )


def _inputs(case: Case) -> Refusal | None:
    """Every input that exists counts, small ones like axes too (E.2.5)."""
    for position in range(case.listed):
        if case.exists(position):
            reason = _input(case, position)
            if reason is not None:
                return reason
    return None


def _input(case: Case, position: int) -> Refusal | None:
    value, settings = case.value(position), case.settings
    shape, name = value.shape, f"input {show(case, position)} {show_shape(value.shape)}"
    if shape is None:
        return Refusal("shape", f"the shape of {show(case, position)} is not known", "export the model with its shapes")
    if settings.require_static_input_shapes and not value.static:
        return Refusal(
            "dynamic", f"{name} is not static, as RequireStaticInputShapes asks", "fix the model's dynamic dimensions"
        )
    if 0 in shape and case.node.op_type != "Resize":
        return Refusal("zero", f"{name} is empty", "leave the empty value out")
    if len(shape) > MAX_RANK:
        return Refusal("rank", f"{name} has rank {len(shape)}, Core ML has at most 5", "use fewer dimensions")
    if settings.ort_release < (1, 23) and too_long(shape):
        return Refusal("dimension", f"{name} has a dimension above {LARGEST}", "work on shorter pieces")
    return None


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What CoreML claims of one graph; of a body only with EnableOnSubgraphs (E.1).

    `only` are the nodes that no provider has yet, when it is asked again after functions were inlined (A.2).
    """
    nothing = _global_refusal(graph, settings)
    if nothing is not None:
        return Claim(fatal=nothing) if nothing.fatal else refuse_all(graph, nothing)
    units = plain_units(graph)
    refusals = dict(_refusals(graph, units, settings, only))
    fatal = next((reason for reason in refusals.values() if reason.fatal), None)
    if fatal is not None:
        return Claim(refusals=refusals, fatal=fatal)

    def accept(unit: Unit, _: Wave) -> bool:
        return unit.target.index not in refusals

    groups = tuple(tuple(unit.target for unit in group) for group in group_by_waves(graph, units, accept))
    provider_claim = Claim(groups=groups, refusals=refusals)
    if settings.ort_release < (1, 27):
        return provider_claim
    trivial = [group for group in groups if all(node.op_type in TRIVIAL for node in group)]
    return without(provider_claim, trivial, TRIVIAL_REFUSAL)


def _refusals(
    graph: Graph, units: Units, settings: Settings, only: Container[int] | None
) -> Iterator[tuple[int, Refusal]]:
    for unit in units.units:
        index = unit.target.index
        taken = only is not None and index not in only
        reason = TAKEN_REFUSAL if taken else refusal(Case(graph, unit, settings))
        if reason is not None:
            yield index, reason


def _global_refusal(graph: Graph, settings: Settings) -> Refusal | None:
    least = by_release(MIN_COREML, settings.ort_release)
    if settings.coreml_version < least:
        return Refusal(
            "version",
            f"Core ML version {settings.coreml_version} is below {least}, which ONNX Runtime's CoreML needs",
            "target iOS 15 (version 5) or later",
            fatal=True,
        )
    if graph.outer is not None and not settings.enable_on_subgraphs:
        return Refusal(
            "subgraph",
            "CoreML supports nothing inside If, Loop and Scan unless EnableOnSubgraphs is set",
            "set EnableOnSubgraphs=1",
        )
    return None


TAKEN_REFUSAL = Refusal("other_ep", "it is another provider's already, or in an earlier partition")
TRIVIAL_REFUSAL = Refusal(
    "trivial",
    "its partition only moves or reshapes data, which costs more than it saves",
    "nothing to do: a neighbour decides",
)
