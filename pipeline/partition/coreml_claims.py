"""CoreML (ep_rules E): its table of operators by release, the order of its checks, and what fails on load (E.6).

Which rows MLProgram had before release 1.21 is read off the lists of operators that the wheels 1.19.2 and 1.20.1 hold
(tools/mobile_helpers); their finer checks are taken to be those of 1.21.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace

from pipeline.partition import coreml_checks as check
from pipeline.partition import coreml_shapes as shapes
from pipeline.partition.answer import MAX_VERSION, LoadForecast, Refusal, Settings, by_release
from pipeline.partition.graph import Graph, Node, bodies, given_outside
from pipeline.partition.provider import Claim, RuleSet, claim_by_rules
from pipeline.partition.rules import (
    Rule,
    Table,
    external_refusal,
    first_refusal,
    rank,
    rule_of,
    show,
    show_shape,
    version_refusal,
)
from pipeline.partition.units import Case, plain_unit, plain_units

PLAIN = (check.plain,)
FLOAT = (check.float_or_wide,)
ONLY_NN = (check.NN,)
ONLY_MLP = (check.MLP,)


Rows = dict[str, Rule | tuple[Rule, ...]]


def _rules(names: str, *rules: Rule) -> Rows:
    return dict.fromkeys(names.split(), rules)


def later_in_mlprogram(names: str, rule: Rule, release: tuple[int, int] = (1, 21)) -> Rows:
    """Rows that NeuralNetwork had already when a release brought them to MLProgram."""
    return _rules(
        names, replace(rule, formats=ONLY_NN, before=release), replace(rule, formats=check.BOTH, release=release)
    )


ELEMENTWISE: Table = {
    **_rules("Relu LeakyRelu Sigmoid Tanh", Rule(formats=check.BOTH, since=6, types=PLAIN)),
    "Gelu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 21)),
    "Elu": Rule(formats=ONLY_MLP, since=6, types=PLAIN, release=(1, 24)),
    **_rules("Exp Softplus", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 24))),
    "HardSigmoid": Rule(formats=check.BOTH, since=6, types=FLOAT, release=(1, 26)),
    "QuickGelu": Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 26)),
    **later_in_mlprogram("PRelu", Rule(since=6, types=PLAIN, checks=(check.prelu,))),
    **later_in_mlprogram("Sqrt Reciprocal", Rule(types=PLAIN), (1, 20)),
    **_rules("Erf Round", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 21))),
    **_rules("Ceil Sin Cos", Rule(formats=ONLY_MLP, types=PLAIN, release=(1, 27))),
    **_rules("Add Sub Mul Div", Rule(formats=check.BOTH, since=7, types=PLAIN)),
    "Pow": Rule(formats=check.BOTH, since=7, types=(check.same_types, check.plain)),
    "Max": Rule(formats=ONLY_MLP, since=7, types=PLAIN, release=(1, 21)),
    "Clip": Rule(formats=check.BOTH, types=PLAIN, checks=(check.clip,)),
    **later_in_mlprogram("Softmax", Rule(types=PLAIN, checks=(check.softmax,))),
    "Identity": Rule(formats=check.BOTH, types=PLAIN, release=(1, 27)),
    "Where": Rule(formats=ONLY_MLP, types=(check.where_types,), release=(1, 28)),
    "And": Rule(formats=ONLY_MLP, types=(check.both_bool,), release=(1, 28)),
}

LAYERS: Table = {
    **later_in_mlprogram("BatchNormalization", Rule(since=7, types=PLAIN, checks=(check.batch_normalization,))),
    **_rules(
        "InstanceNormalization LayerNormalization GroupNormalization",
        Rule(formats=ONLY_MLP, types=(check.normalization_types,), checks=check.NORMALIZATION, release=(1, 21)),
    ),
    "LRN": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 3, 4),)),
    **later_in_mlprogram("ReduceMean ReduceSum", Rule(types=PLAIN, checks=(check.AXES_CONSTANT, check.noop_axes))),
    **_rules(
        "ReduceMax ReduceMin ReduceProd",
        Rule(formats=ONLY_MLP, types=PLAIN, checks=(check.AXES_CONSTANT,), release=(1, 21)),
    ),
    **later_in_mlprogram("ArgMax", Rule(types=PLAIN, checks=(check.argmax,))),
    "Conv": Rule(formats=check.BOTH, types=PLAIN, checks=(check.conv,)),
    "FusedConv": Rule(formats=ONLY_MLP, types=FLOAT, checks=(check.fused_conv,), release=(1, 27)),
    "ConvTranspose": Rule(formats=ONLY_MLP, types=PLAIN, checks=(check.conv_transpose,)),
    "Gemm": Rule(formats=check.BOTH, types=PLAIN, checks=(check.gemm,)),
    "MatMul": Rule(formats=check.BOTH, types=PLAIN, checks=(check.matmul,)),
    "GridSample": Rule(formats=ONLY_MLP, types=PLAIN, checks=(check.grid_sample,)),
    **_rules("AveragePool MaxPool", Rule(formats=check.BOTH, types=PLAIN, checks=(check.pool,))),
    **_rules("GlobalAveragePool GlobalMaxPool", Rule(formats=check.BOTH, types=PLAIN, checks=(rank(0, 4, 4),))),
    "DepthToSpace": Rule(formats=check.BOTH, types=PLAIN, checks=(check.depth_to_space,)),
    "Resize": Rule(formats=check.BOTH, since=11, types=PLAIN, checks=(shapes.resize,)),
}

SHAPES: Table = {
    "Concat": Rule(formats=check.BOTH, types=PLAIN, checks=(check.concat,)),
    "Flatten": Rule(formats=ONLY_NN, types=PLAIN, checks=(rank(0, 1, 5),)),
    **later_in_mlprogram("Gather", Rule(types=(check.gather_types,), checks=(shapes.gather,)), (1, 22)),
    "GatherND": Rule(formats=ONLY_MLP, types=(check.gather_nd_types,), checks=(shapes.gather_nd,), release=(1, 27)),
    **later_in_mlprogram("Pad", Rule(since=11, types=(check.pad_types,), checks=(shapes.pad,)), (1, 26)),
    "Reshape": Rule(formats=check.BOTH, since=5, types=PLAIN, checks=(shapes.reshape,)),
    **later_in_mlprogram("Shape", Rule(types=(check.shape_types,), checks=(check.shape,))),
    "Slice": Rule(formats=check.BOTH, since=10, types=(check.slice_types,), checks=(shapes.slice_,)),
    **_rules(
        "Split",
        Rule(formats=check.BOTH, since=13, types=PLAIN, checks=(shapes.split,), before=(1, 27)),
        Rule(formats=check.BOTH, types=PLAIN, checks=(shapes.split,), release=(1, 27)),
    ),
    **later_in_mlprogram("Squeeze", Rule(types=PLAIN, checks=(shapes.SQUEEZE,))),
    "Tile": Rule(formats=check.BOTH, types=(check.tile_types,), checks=(shapes.tile,), release=(1, 27)),
    "Transpose": Rule(formats=check.BOTH, types=PLAIN),
    "Unsqueeze": Rule(formats=ONLY_MLP, types=PLAIN, checks=(shapes.unsqueeze,), release=(1, 21)),
}


MIN_COREML = (((1, 22), 5), ((0, 0), 3))
"""Lowest Core ML version by release (E.1): below it the provider cannot be made."""

TRIVIAL = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Tile", "Transpose", "Ceil")
"""Ops that are not worth a partition of their own since release 1.27 (B.6)."""


def _cast(case: Case) -> Refusal | None:
    """MLProgram: behind another node (until 1.27). NeuralNetwork: behind an ArgMax that is claimed, to i32."""
    sources = case.graph.in_edges[case.node.index]
    free = check.mlprogram(case) and case.settings.ort_release >= (1, 27)
    if not sources and not free:
        return Refusal(
            "cast",
            f"no node makes its input {show(case, 0)}; CoreML supports a Cast behind another node",
            "give the model's input in the type that is needed, or ship release 1.27 or later",
        )
    return _behind_argmax(case, case.graph.nodes[sources[0].producer]) if check.neural_network(case) else None


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
    **later_in_mlprogram("Cast", Rule(types=(check.cast_types,), checks=(_cast,))),
}


def refusal(case: Case) -> Refusal | None:
    """The checks that every node passes through, in the order of ep_rules E.2."""
    rule = rule_of(TABLE, case.node.op_type, case.settings)
    if rule is None:
        op_type, release = case.node.op_type, case.settings.ort_release
        rows = TABLE.get(op_type, ())
        later = [row.release for row in ((rows,) if isinstance(rows, Rule) else rows) if row.release > release]
        if not later:
            return Refusal("op", f"{op_type} is not supported by the CoreML EP", "rewrite it with supported operators")
        first = ".".join(str(part) for part in min(later))
        return Refusal(
            "op", f"ONNX Runtime's CoreML has {op_type} from release {first} on", f"ship release {first} or later"
        )
    chosen = check.model_format(case.settings)
    if chosen not in rule.formats:
        other = rule.formats[0]
        return Refusal(
            "format", f"{case.node.op_type} is there in format {other}, not in {chosen}", f"use format {other}"
        )
    return (
        version_refusal(case, "CoreML", rule.since, by_release(MAX_VERSION, case.settings.ort_release))
        or external_refusal(case, (value.name for value in case.unit.inputs if value.name))
        or _inputs(case)
        or first_refusal(case, rule.types)
        or first_refusal(case, rule.checks)
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
    if len(shape) > check.MAX_RANK:
        return Refusal("rank", f"{name} has rank {len(shape)}, Core ML has at most 5", "use fewer dimensions")
    if settings.ort_release < (1, 23) and check.too_long(shape):
        return Refusal("dimension", f"{name} has a dimension above {check.LARGEST}", "work on shorter pieces")
    return None


def _whole(graph: Graph, settings: Settings) -> Refusal | None:
    """The provider cannot be made (E.1), or is asked about a body without EnableOnSubgraphs."""
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


TRIVIAL_REFUSAL = Refusal(
    "trivial",
    "its partition only moves or reshapes data, which costs more than it saves",
    "nothing to do: a neighbour decides",
)


def _veto(_graph: Graph, settings: Settings, group: Sequence[Node]) -> Refusal | None:
    trivial = settings.ort_release >= (1, 27) and all(node.op_type in TRIVIAL for node in group)
    return TRIVIAL_REFUSAL if trivial else None


RULES = RuleSet(
    whole=_whole,
    units=lambda graph, _: plain_units(graph),
    taken=Refusal("other_ep", "it is another provider's already, or in an earlier partition"),
    operator=refusal,
    veto=_veto,
)


def claim(graph: Graph, settings: Settings, only: Container[int] | None = None) -> Claim:
    """What CoreML claims of one graph; `only` are the nodes that no provider has yet."""
    return claim_by_rules(RULES, graph, settings, only)


CORE_ML_TYPES = ("f32", "f16", "i32", "i64")
"""Element types that values between ONNX Runtime and a Core ML model may have (i64 travels as i32)."""


def forecast(rounds: Iterable[tuple[Graph, Claim]], settings: Settings) -> LoadForecast:
    """The compiled nodes of the last round (`rounds` has those of each), or the first thing that goes wrong.

    Bodies are asked about once, before the graph around them.
    """
    counts: list[int] = []
    for number, (graph, given) in enumerate(rounds):
        inside = [body for _, body in bodies(graph)] if number == 0 else []
        counts.append(0)
        for part in (graph, *inside):
            part_claim = given if part is graph else claim(part, settings)
            problem = part_claim.fatal or build_refusal(part, part_claim.groups, settings)
            if problem is not None:
                return LoadForecast.failing(problem)
            counts[-1] += len(part_claim.groups)
    return LoadForecast(partitions=counts[-1], rounds=tuple(counts))


def build_refusal(graph: Graph, groups: Iterable[tuple[Node, ...]], settings: Settings) -> Refusal | None:
    """The first reason why one of the partitions cannot become a Core ML model, so that no session is made."""
    return next((problem for group in groups for problem in _problems(graph, group, settings)), None)


def _problems(graph: Graph, group: tuple[Node, ...], settings: Settings) -> Iterator[Refusal]:
    members = {node.index for node in group}
    taken = (*CORE_ML_TYPES, *(("bool",) if settings.ort_release >= (1, 27) else ()))
    for name, node in _outside_values(graph, group):
        if graph.value(name).dtype not in taken:
            yield _bad_type(graph, name, node, taken)
    for node in group:
        if node.op_type == "Split" and len(node.inputs) > 1 and not node.inputs[1]:
            yield Refusal(
                "crash",
                f"Split '{node.name or node.first_output}' lists its second input under an empty name: ONNX Runtime's "
                "CoreML part reads it all the same and the process ends",
                "leave the second input out of the list",
                fatal=True,
            )
    for name in given_outside(graph, group, members):
        value = graph.value(name)
        if value.shape is None:
            yield Refusal(
                "io_shape",
                f"value '{name}' leaves the Core ML model, and its rank is not known "
                f"({show_shape(None)}): building the model fails and no session is made",
                "give the value's shape in the model (value_info), or fix the model's dynamic dimensions",
            )
        elif value.dtype not in taken:
            yield _bad_type(graph, name, group[-1], taken)


def _outside_values(graph: Graph, group: tuple[Node, ...]) -> Iterator[tuple[str, Node]]:
    """Values that the Core ML model gets from outside: no initializers, and not Resize's roi, which is skipped."""
    outputs = {name for node in group for name in node.outputs}
    for node in group:
        for slot, name in enumerate(node.inputs):
            if not name or name in outputs or name in graph.initializers or graph.constant(name) is not None:
                continue
            if node.op_type != "Resize" or slot != 1:
                yield name, node


def _bad_type(graph: Graph, name: str, node: Node, taken: Iterable[str]) -> Refusal:
    return Refusal(
        "io_type",
        f"value '{name}' goes between ONNX Runtime and the Core ML model with {node.op_type} "
        f"'{node.name or node.first_output}', and is of type {graph.value(name).dtype or 'unknown'}; Core ML has "
        f"{', '.join(taken)} there, so building the model fails and no session is made",
        "cast the value to one of them before the node",
    )
